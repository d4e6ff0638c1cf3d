"""Whether one method's errors are smaller than another's: paired test and bootstrap interval (paper 5.1; rule 10).

What belongs here: statistics on window errors. What does not: scoring, rows, layout.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError

RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """One-sided Wilcoxon signed-rank test that errors a are smaller than errors b.

    ``n`` pairs were compared; ``n_equal`` of them were equal and carry no rank; ``n_left_out`` had a masked error.
    """

    n: int
    n_equal: int
    n_left_out: int
    mean_difference: float
    statistic: float
    p_value: float


def paired_test(errors_a: FloatArray, errors_b: FloatArray) -> PairedTest:
    """Test that ``errors_a`` (N,) are smaller than ``errors_b`` (N,), pair by pair.

    Raises:
        DataError: the lengths differ, or no pair is known.
    """
    if errors_a.shape != errors_b.shape or errors_a.ndim != 1:
        raise DataError(
            f"errors of shapes {errors_a.shape} and {errors_b.shape}; give one error a window, same windows"
        )
    known = np.isfinite(errors_a) & np.isfinite(errors_b)
    if not known.any():
        raise DataError("no window has an error of both methods; there is nothing to compare")
    difference = errors_a[known] - errors_b[known]
    equal = int((difference == 0).sum())
    if equal == difference.size:
        statistic, p_value = 0.0, 1.0
    else:
        result = wilcoxon(difference, alternative="less", zero_method="wilcox")
        statistic, p_value = float(result.statistic), float(result.pvalue)
    return PairedTest(
        n=int(known.sum()),
        n_equal=equal,
        n_left_out=int((~known).sum()),
        mean_difference=float(difference.mean()),
        statistic=statistic,
        p_value=p_value,
    )


def bootstrap_interval(
    errors: FloatArray,
    rng: np.random.Generator,
    *,
    groups: Sequence[Hashable] | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Percentile interval of the mean error; whole ``groups`` (days, say) are drawn, since regions share weather.

    Raises:
        DataError: no error is known, the level is not between 0 and 1, or groups are not one a value.
    """
    if not 0 < level < 1:
        raise DataError(f"level is {level}; it must lie between 0 and 1")
    labels = list(range(len(errors))) if groups is None else list(groups)
    if len(labels) != len(errors):
        raise DataError(f"{len(labels)} groups for {len(errors)} errors; give one group a window")
    known = np.isfinite(errors)
    if not known.any():
        raise DataError("no error is known; there is nothing to resample")
    codes = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    code = np.array([codes[label] for label in labels])[known]
    sums = np.bincount(code, weights=errors[known], minlength=len(codes))
    counts = np.bincount(code, minlength=len(codes))
    sums, counts = sums[counts > 0], counts[counts > 0]
    drawn = rng.integers(0, len(sums), size=(resamples, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
