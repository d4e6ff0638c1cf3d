"""Whether one method's errors differ from another's: a paired test and a bootstrap interval.

What belongs here: statistics on window errors (paper 5.1, Wilcoxon signed-rank test). What does
not: errors (``evaluation.metrics``), which methods are compared (``evaluation.scoring``).

Shapes: N windows.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError

RESAMPLES = 2000  # the ends of a 95 % interval rest on 50 resamples each


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Wilcoxon signed-rank test of errors a against errors b.

    Attributes:
        n: pairs that were compared.
        n_equal: pairs of equal errors among them, which carry no rank.
        n_left_out: pairs with a masked error, which were not compared.
        mean_difference: mean of a minus b; negative where a is better.
        statistic: sum of the ranks of the positive differences.
        p_value: one-sided, that errors a are smaller: probability of such ranks or smaller ones
            where the methods do not differ.
        p_two_sided: probability of ranks as uneven as these, in either direction.
        rank_sign: direction of the ranks: -1 where a has the smaller errors, 1 where b has, 0 where
            neither.
    """

    n: int
    n_equal: int
    n_left_out: int
    mean_difference: float
    statistic: float
    p_value: float
    p_two_sided: float
    rank_sign: int


def paired_test(errors_a: FloatArray, errors_b: FloatArray) -> PairedTest:
    """Test that ``errors_a`` (N,) are smaller than ``errors_b`` (N,), pair by pair.

    Raises:
        DataError: the lengths differ, or no pair is known.
    """
    if errors_a.shape != errors_b.shape or errors_a.ndim != 1:
        raise DataError(
            f"errors of shapes {errors_a.shape} and {errors_b.shape}; "
            "give one error a window, same windows"
        )

    # A pair counts only if both sides are known, or the methods would meet different windows.
    is_known = np.isfinite(errors_a) & np.isfinite(errors_b)
    if not is_known.any():
        raise DataError("no window has an error of both methods; there is nothing to compare")

    difference = errors_a[is_known] - errors_b[is_known]
    n_equal = int((difference == 0).sum())
    if n_equal == difference.size:
        # scipy has no answer without a rank; equal methods do not differ.
        statistic, p_value, p_two_sided, rank_sign = 0.0, 1.0, 1.0, 0
    else:
        # "less": the paper asks whether the first method is better, not whether they differ.
        result = wilcoxon(difference, alternative="less", zero_method="wilcox")
        statistic = float(result.statistic)
        p_value = float(result.pvalue)

        # A one-sided test calls a worse method and an equal one by the same name.
        two_sided = wilcoxon(difference, alternative="two-sided", zero_method="wilcox")
        p_two_sided = float(two_sided.pvalue)
        n_ranked = difference.size - n_equal
        rank_sign = int(np.sign(statistic - n_ranked * (n_ranked + 1) / 4))

    return PairedTest(
        n=difference.size,
        n_equal=n_equal,
        n_left_out=int((~is_known).sum()),
        mean_difference=float(difference.mean()),
        statistic=statistic,
        p_value=p_value,
        p_two_sided=p_two_sided,
        rank_sign=rank_sign,
    )


def bootstrap_interval(
    errors: FloatArray,
    rng: np.random.Generator,
    *,
    groups: Sequence[Hashable] | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Return the percentile interval of the mean error.

    Args:
        errors: error of every window (N,); NaN is left out.
        rng: draws the resamples.
        groups: label of every window, such as its day. Whole groups are drawn, since regions share
            a day's weather and their errors are not independent; None: windows are drawn.
        level: share of the resampled means inside the interval.
        resamples: number of resamples.

    Raises:
        DataError: no error is known, ``level`` is not between 0 and 1, or there is not one group
            for every error.
    """
    if not 0 < level < 1:
        raise DataError(f"level is {level}; it must lie between 0 and 1")
    labels = list(range(len(errors))) if groups is None else list(groups)
    if len(labels) != len(errors):
        raise DataError(f"{len(labels)} groups for {len(errors)} errors; give one group a window")

    # After the labels were checked: a masked error keeps its place in ``groups``.
    is_known = np.isfinite(errors)
    if not is_known.any():
        raise DataError("no error is known; there is nothing to resample")

    code_of = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([code_of[label] for label in labels])[is_known]

    # The mean of a resample is the sum over its groups by their windows: big groups weigh more.
    sums = np.bincount(codes, weights=errors[is_known], minlength=len(code_of))
    counts = np.bincount(codes, minlength=len(code_of))
    has_errors = counts > 0
    sums = sums[has_errors]
    counts = counts[has_errors]

    # As many groups as there are, with replacement: the bootstrap's definition.
    drawn = rng.integers(0, len(sums), size=(resamples, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    # Percentiles of the resampled means need no assumption on how errors are distributed.
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
