"""Paired tests of methods on the same windows: a population against others, or variants of it.

What belongs here: the columns of a paired test and filling them. What does not: the statistics
(``evaluation.significance``), whose forecasts they are (``evaluation.scoring``).

Shapes: N windows of a scope, H horizon (48).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON, WindowView
from compevo_core.errors import DataError
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.scopes import Scope
from compevo_core.evaluation.significance import bootstrap_interval, paired_test

BOOTSTRAP_SEED = 0

FEWEST_BLOCKS = 10
"""With fewer blocks of days there is a mean difference, and neither a test nor an interval."""

OVERLAPPING_HORIZONS = 4
"""Length of a block, in horizons, where windows overlap. Blocks of one horizon still share steps at
their ends: for 100 of them a nominal 95 % interval held the truth in 85 % of simulated cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """How the errors of two methods differ on the same windows, a minus b, in their unit.

    Attributes:
        n: windows with an error of both.
        n_blocks: blocks of days that these lie in (:func:`label_blocks`).
        n_equal: windows where both err the same.
        mean_difference: mean over windows; negative where a is better.
        p_value: the paper's one-sided test that a is better, on means of blocks; None, as all that
            follows, with fewer than :data:`FEWEST_BLOCKS`.
        p_two_sided: the two-sided test.
        rank_sign: direction of its ranks: -1 where a is better.
        interval_low: lower end of the 95 % interval of the mean difference, blocks drawn again.
        interval_high: upper end.
    """

    n: int
    n_blocks: int
    n_equal: int
    mean_difference: float
    p_value: float | None = None
    p_two_sided: float | None = None
    rank_sign: int | None = None
    interval_low: float | None = None
    interval_high: float | None = None


PAIRED_TEST_SCHEMA = {
    "dataset": pl.String(),
    "subset": pl.String(),
    "method_a": pl.String(),
    "method_b": pl.String(),
    "n": pl.Int64(),
    "n_blocks": pl.Int64(),
    "n_equal": pl.Int64(),
    "mean_difference": pl.Float64(),
    "p_value": pl.Float64(),
    "p_two_sided": pl.Float64(),
    "rank_sign": pl.Int64(),
    "interval_low": pl.Float64(),
    "interval_high": pl.Float64(),
    "seeds_a": pl.Int64(),
    "seeds_b": pl.Int64(),
    "budget": pl.String(),
}
"""Columns of a comparison: those of :class:`PairedComparison`, how many trainings each side is the
mean of, and what both sides could spend, where that was one and the same by name. Files of earlier
versions have no ``n_blocks``: their tests took every window for independent of the others."""


def compare_with_opponents(
    scope: Scope, forecasts: Mapping[str, Sequence[FloatArray]], method: str
) -> list[dict[str, Any]]:
    """Test, window by window, whether a method's errors differ from those of each other one.

    A method's error of a window is the mean over its seeds: the chance of one training is no
    property of the method, and pairs of single seeds would count a window several times.

    Args:
        scope: the windows.
        forecasts: forecasts (N, H) of every seed, by method.
        method: the method that is tested against all others.

    Returns:
        One record for each other method, with the keys of ``PAIRED_TEST_SCHEMA``.
    """
    errors = _average_errors(scope, forecasts)
    others = [name for name in errors if name != method]
    return [_compare(scope, (method, name), errors, forecasts) for name in others]


def compare_with_reference(
    scope: Scope, forecasts: Mapping[str, Sequence[FloatArray]], reference: str
) -> list[dict[str, Any]]:
    """Test whether each method's errors differ from those of one of them.

    As :func:`compare_with_opponents`, with the sides exchanged.

    Returns:
        One record a method besides the reference; none where there is no reference.
    """
    errors = _average_errors(scope, forecasts)
    if reference not in errors:
        return []
    others = [name for name in errors if name != reference]
    return [_compare(scope, (name, reference), errors, forecasts) for name in others]


def _average_errors(
    scope: Scope, forecasts: Mapping[str, Sequence[FloatArray]]
) -> dict[str, FloatArray]:
    """Return one error a window (N,) by method, the mean over its seeds."""
    truth_NH = scope.windows.truth()
    return {
        name: np.mean([measure_window_errors(truth_NH, seed_NH) for seed_NH in seeds], axis=0)
        for name, seeds in forecasts.items()
    }


def label_blocks(views: Sequence[WindowView]) -> list[int]:
    """Return the block of days that each window belongs to (N,).

    A block is a day where a window forecasts no more than that. Longer windows that begin on
    following days share target steps, and so errors: there a block is :data:`OVERLAPPING_HORIZONS`
    horizons long, for windows at its end reach into the next one.
    """
    days = [view.calendar.target_date for view in views]
    first = min(days, default=None)
    longest = max((view.step for view in views), default=timedelta())
    horizon = max(1, math.ceil(HORIZON * longest / timedelta(days=1)))
    length = horizon if horizon == 1 else horizon * OVERLAPPING_HORIZONS
    return [(day - first).days // length for day in days] if first is not None else []


def compare_pairs(
    errors_a_N: FloatArray, errors_b_N: FloatArray, views: Sequence[WindowView]
) -> PairedComparison:
    """Compare two errors a window.

    One error a window, since the 48 steps of a day are not independent. The series of a day share
    their weather, and windows that overlap their values: test and interval take a block of days as
    one piece of evidence. The interval is drawn with one seed, so that the same forecasts give the
    same interval.

    Raises:
        DataError: no window has an error of both.
    """
    difference_N = errors_a_N - errors_b_N
    is_known_N = np.isfinite(difference_N)
    if not is_known_N.any():
        raise DataError("no window has an error of both methods; there is nothing to compare")

    blocks = [block for block, known in zip(label_blocks(views), is_known_N, strict=True) if known]
    known = difference_N[is_known_N]
    compared = PairedComparison(
        n=len(known),
        n_blocks=len(set(blocks)),
        n_equal=int((known == 0).sum()),
        mean_difference=float(known.mean()),
    )
    # Of a handful of blocks the resampled means are a handful, and so are the ranks of a test.
    if compared.n_blocks < FEWEST_BLOCKS:
        return compared

    means_a, means_b = (
        _average_by_block(errors_N[is_known_N], blocks) for errors_N in (errors_a_N, errors_b_N)
    )
    test = paired_test(means_a, means_b)
    low, high = bootstrap_interval(known, np.random.default_rng(BOOTSTRAP_SEED), groups=blocks)
    return replace(
        compared,
        p_value=test.p_value,
        p_two_sided=test.p_two_sided,
        rank_sign=test.rank_sign,
        interval_low=low,
        interval_high=high,
    )


def _average_by_block(errors_N: FloatArray, blocks: Sequence[int]) -> FloatArray:
    """Return the mean error of each block's windows."""
    members: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        members.setdefault(block, []).append(number)
    return np.array([errors_N[numbers].mean() for numbers in members.values()])


def _compare(
    scope: Scope,
    sides: tuple[str, str],
    errors: Mapping[str, FloatArray],
    forecasts: Mapping[str, Sequence[FloatArray]],
) -> dict[str, Any]:
    name_a, name_b = sides
    compared = compare_pairs(errors[name_a], errors[name_b], scope.windows.views())
    return {
        "dataset": scope.windows.dataset,
        "subset": scope.subset,
        "method_a": name_a,
        "method_b": name_b,
        **asdict(compared),
        "seeds_a": len(forecasts[name_a]),
        "seeds_b": len(forecasts[name_b]),
        "budget": None,
    }
