"""Paired tests of methods on the same windows.

What belongs here: the statistics on window errors (paper 5.1, Wilcoxon signed-rank test, and
Student's t on blocks of days). What does not: errors (``evaluation.metrics``), making forecasts,
which methods are paired (``paper.trials``). Shapes: N windows of a scope, H horizon, D days that
have windows, K blocks of days.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from statistics import stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.errors import DataError
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.scopes import Scope, SeedForecasts

LEVEL = 0.95

BLOCK_DAYS = 14
"""Longest block of windows that forecast a day: errors a week apart correlate by 0.06 to 0.16."""

USUAL_BLOCKS = 20
"""Blocks are shorter than :data:`BLOCK_DAYS` if there would be fewer of them than this."""

FEWEST_BLOCKS = 10
"""With fewer blocks of days there is only a mean difference, no test and no interval."""

OVERLAPPING_HORIZONS = 4
"""Length of a block, in horizons, if windows overlap: shorter ones share steps at their ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """How the errors of two methods differ on the same windows, a minus b, in their unit."""

    n: int  # windows with an error of both
    n_blocks: int  # blocks of days that hold these
    block_days: int  # their length (:func:`choose_block_days`)
    n_equal: int  # windows where both err the same
    mean_difference: float  # mean over windows; negative where a is better
    # The paper's one-sided test that a is better, on means of blocks; None, like all that follows,
    # with fewer than :data:`FEWEST_BLOCKS`
    p_value: float | None = None
    p_two_sided: float | None = None  # the two-sided test
    rank_sign: int | None = None  # of its ranks: -1 where a is better, 1 where b is, 0 for neither
    # Lower end of the 95 % interval of the mean difference (:func:`measure_interval`)
    interval_low: float | None = None
    interval_high: float | None = None  # upper end


PAIRED_TEST_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(("dataset", "subset", "method_a", "method_b"), pl.String()),
    **dict.fromkeys(("n", "n_blocks", "block_days", "n_equal"), pl.Int64()),
    **dict.fromkeys(("mean_difference", "p_value", "p_two_sided"), pl.Float64()),
    "rank_sign": pl.Int64(),
    **dict.fromkeys(("interval_low", "interval_high"), pl.Float64()),
    **dict.fromkeys(("seeds_a", "seeds_b"), pl.Int64()),
    "seeds": pl.String(),
    "sd_between_seeds": pl.Float64(),
    "budget": pl.String(),
}
"""Columns of a comparison: the fields of :class:`PairedComparison`, how many trainings each side is
the mean of, which seeds both sides had ("0 1 2"; null where two methods share none), the standard
deviation of the error between the trainings of the method that all others are compared with (null
with one), and the budget where both sides had the same one by name."""


def paired_test(errors_a: FloatArray, errors_b: FloatArray) -> dict[str, Any]:
    """Test that ``errors_a`` (N,) are smaller than ``errors_b`` (N,), pair by pair.

    The Wilcoxon signed-rank test, by the fields of :class:`PairedComparison`.
    """
    from scipy.stats import rankdata, wilcoxon

    difference = errors_a - errors_b
    ranked_N = difference[difference != 0]
    n = len(ranked_N)
    if len(difference) <= 13 or not n:
        # Exact, over all signs of the ranks: scipy's answer, which takes seconds where some are
        # tied or 0, as it ranks again for each of the 2^N signs. It has none without ranks.
        ranks_N = rankdata(np.abs(ranked_N))
        sums = ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) @ ranks_N
        statistic = ranks_N[ranked_N > 0].sum()
        less, greater = (sums <= statistic).mean(), (sums >= statistic).mean()
        two_sided = min(1.0, 2 * min(less, greater))
    else:
        # "less": the paper asks whether the first method is better, not whether they differ.
        statistic, less = wilcoxon(difference, alternative="less", zero_method="wilcox")
        # A one-sided test cannot distinguish a worse method from an equal one.
        two_sided = wilcoxon(difference, alternative="two-sided", zero_method="wilcox").pvalue
    sign = int(np.sign(float(statistic) - n * (n + 1) / 4))
    return {"p_value": float(less), "p_two_sided": float(two_sided), "rank_sign": sign}


def measure_interval(
    errors_N: FloatArray, days_N: npt.ArrayLike, blocks_N: npt.ArrayLike
) -> tuple[float, float]:
    """Return the 95 % interval of the mean of known errors: Student's t on sums of whole blocks.

    Days are numbers. Days of neighbouring blocks are correlated too, and few blocks vary too little
    around their own mean: both are corrected by what an autoregression of days of the measured
    correlation makes of these very blocks. In simulations with correlations to 0.6 the interval
    holds the mean in 94 to 96 % of cases from 100 days on (``benchmarks/intervals.py``).
    """
    from scipy.stats import t

    mean = float(errors_N.mean())
    days_D, first_D, codes_N = np.unique(days_N, return_index=True, return_inverse=True)
    counts_D = np.bincount(codes_N)
    deviation_D = np.bincount(codes_N, errors_N - mean) / counts_D
    share_D = counts_D / len(errors_N)

    _, block_D = np.unique(np.asarray(blocks_N)[first_D], return_inverse=True)
    share_KD = np.where(block_D == np.arange(block_D.max() + 1)[:, None], share_D, 0.0)
    variance = float(np.square(share_KD @ deviation_D).sum())

    # What the sum of squares is expected to be, and the variance of the mean, for such days.
    apart_DD = np.abs(np.subtract.outer(days_D, days_D))
    correlation_DD = measure_correlation(days_D, deviation_D) ** apart_DD
    centred_KD = share_KD - share_KD.sum(1, keepdims=True) * share_D
    expected = float((centred_KD @ correlation_DD * centred_KD).sum())
    variance *= float(share_D @ correlation_DD @ share_D) / expected

    reach = float(t.ppf((1 + LEVEL) / 2, len(share_KD) - 1)) * math.sqrt(variance)
    return mean - reach, mean + reach


def measure_correlation(days_D: FloatArray, deviation_D: FloatArray) -> float:
    """Return the correlation of following days, 0 to 0.9; 0 with fewer than ten pairs of days.

    Of a short series it is estimated too low, by (1 + 3 r) / n (Kendall, 1954), which is added.
    """
    follows_D = np.diff(days_D) == 1
    n, spread = int(follows_D.sum()), float(np.square(deviation_D).mean())
    if n < FEWEST_BLOCKS or not spread:
        return 0.0
    r = float((deviation_D[1:] * deviation_D[:-1])[follows_D].mean()) / spread
    return min(max((n * r + 1) / (n - 3), 0.0), 0.9)


def compare_means(
    errors_a_N: FloatArray, errors_b_N: FloatArray, views: Sequence[WindowView]
) -> tuple[float, float]:
    """Return the mean difference of two errors per window, a minus b, and its standard error.

    It is the spread of means of 2000 resamples of days. Windows that reach into later days share
    target steps with the windows of those days: so many days are one piece of evidence.
    """
    difference_N = errors_a_N - errors_b_N
    days = [view.calendar.target_date for view in views]
    reach = max(view.end_utc - view.origin_utc for view in views)
    apart = (max(days) - min(days)) / max(1, len(set(days)) - 1) or reach
    shared = min(max(1, math.ceil(reach / apart)), len(set(days)))

    # The mean of a resample is the sum over its days by their windows: big days weigh more.
    code_of = {day: code for code, day in enumerate(dict.fromkeys(days))}
    codes = np.array([code_of[day] for day in days])
    sums, counts = np.bincount(codes, weights=difference_N), np.bincount(codes)
    sampled = np.random.default_rng(0).integers(0, len(sums), size=(2000, len(sums)))
    means = sums[sampled].sum(axis=1) / counts[sampled].sum(axis=1)
    return float(difference_N.mean()), float(means.std() * math.sqrt(shared))


def choose_block_days(views: Sequence[WindowView]) -> int:
    """Return the length of a block: :data:`BLOCK_DAYS`, or a 20th of the days that windows span.

    Windows longer than a day that begin on following days share target steps, and so errors: there
    a block is at least :data:`OVERLAPPING_HORIZONS` long, as those at its end reach into the next.
    """
    days = [view.calendar.target_date for view in views]
    spanned = (max(days) - min(days)).days + 1
    horizon = math.ceil(max(view.horizon * view.step for view in views) / timedelta(days=1))
    overlapping = horizon * OVERLAPPING_HORIZONS if horizon > 1 else 1
    return max(overlapping, min(BLOCK_DAYS, spanned // USUAL_BLOCKS))


def compare_pairs(
    errors_a_N: FloatArray, errors_b_N: FloatArray, views: Sequence[WindowView]
) -> PairedComparison:
    """Compare two errors per window; DataError if no window has both.

    One error per window, since the steps of a day are not independent. The series of a day share
    their weather, following days their season, and windows that overlap their values: test and
    interval treat a block of days as one piece of evidence.
    """
    difference_N = errors_a_N - errors_b_N
    is_known_N = np.isfinite(difference_N)
    if not is_known_N.any():
        raise DataError("no window has an error of both methods; there is nothing to compare")

    length = choose_block_days(views)
    days_N = np.array([view.calendar.target_date.toordinal() for view in views])
    days_N = (days_N - days_N.min())[is_known_N]
    blocks, codes_N = np.unique(days_N // length, return_inverse=True)
    known = difference_N[is_known_N]
    compared = PairedComparison(
        n=len(known),
        n_blocks=len(blocks),
        block_days=length,
        n_equal=int((known == 0).sum()),
        mean_difference=float(known.mean()),
    )
    # Of a handful of blocks the variance is a guess, and so are the ranks of a test.
    if compared.n_blocks < FEWEST_BLOCKS:
        return compared

    means_a, means_b = (
        np.bincount(codes_N, errors_N[is_known_N]) / np.bincount(codes_N)
        for errors_N in (errors_a_N, errors_b_N)
    )
    low, high = measure_interval(known, days_N, codes_N)
    tested = paired_test(means_a, means_b)
    return replace(compared, **tested, interval_low=low, interval_high=high)


def compare_methods(
    scope: Scope,
    forecasts: SeedForecasts,
    reference: str,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> list[dict[str, Any]]:
    """Test, window by window, whether errors differ: of the reference and each other method.

    Or of other ``pairs``. A method's error of a window is the mean over its seeds: the chance of
    one training is not a property of the method, and pairs of single seeds would count a window
    several times. The records, one for each pair, have the keys of ``PAIRED_TEST_SCHEMA``.
    """
    if pairs is None:
        pairs = [(reference, name) for name in forecasts if name != reference]
    truth_NH = scope.windows.truth()
    views = scope.windows.views()
    errors_SN = {
        name: np.array([measure_window_errors(truth_NH, seed_NH) for seed_NH in of_seeds])
        for name, of_seeds in forecasts.items()
    }
    errors = {name: of_seeds.mean(axis=0) for name, of_seeds in errors_SN.items()}
    by_training = [float(np.nanmean(errors_N)) for errors_N in errors_SN[reference]]

    return [
        {
            "dataset": scope.windows.dataset,
            "subset": scope.subset,
            "method_a": name_a,
            "method_b": name_b,
            **asdict(compare_pairs(errors[name_a], errors[name_b], views)),
            "seeds_a": len(forecasts[name_a]),
            "seeds_b": len(forecasts[name_b]),
            "seeds": None,
            "sd_between_seeds": stdev(by_training) if len(by_training) > 1 else None,
            "budget": None,
        }
        for name_a, name_b in pairs
    ]
