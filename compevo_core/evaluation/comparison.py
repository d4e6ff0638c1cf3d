"""Paired tests of methods on the same windows: a population against others, or variants of it.

What belongs here: the columns of a paired test and filling them. What does not: the statistics
(``evaluation.significance``), whose forecasts they are (``evaluation.scoring``).

Shapes: N windows of a scope, H horizon (48).
"""

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON, WindowView
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.scopes import Scope
from compevo_core.evaluation.significance import PairedTest, bootstrap_interval, paired_test

BOOTSTRAP_SEED = 0
PAIRED_TEST_SCHEMA = {
    "dataset": pl.String(),
    "subset": pl.String(),
    "method_a": pl.String(),
    "method_b": pl.String(),
    "n": pl.Int64(),
    "n_equal": pl.Int64(),
    "mean_difference": pl.Float64(),
    "p_value": pl.Float64(),
    "p_two_sided": pl.Float64(),
    "rank_sign": pl.Int64(),
    "interval_low": pl.Float64(),
    "interval_high": pl.Float64(),
    "budget": pl.String(),
}
"""Columns of a paired test: differences are a minus b, in the unit of the windows; ``p_value`` is
the paper's one-sided test that a is better, ``p_two_sided`` and ``rank_sign`` (-1: a is better) the
two-sided one, the interval that of the mean difference at 95 %, whole days drawn. Where windows
overlap, blocks as long as a horizon are drawn, and ``n`` counts means of a series in a block.
``budget`` is what both sides could spend, where that was one and the same by name."""


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
    return [_compare(scope, method, errors[method], name, errors[name]) for name in others]


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
    return [_compare(scope, name, errors[name], reference, errors[reference]) for name in others]


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

    A block is as long as a horizon: a day of half-hours, 48 days of days. Windows that begin on
    following days of a daily series share almost all of their target steps, and so their errors:
    a draw of single days would take them for independent, and its interval would be too narrow.
    """
    days = [view.calendar.target_date for view in views]
    first = min(days, default=None)
    longest = max((view.step for view in views), default=timedelta())
    length = max(1, math.ceil(HORIZON * longest / timedelta(days=1)))
    return [(day - first).days // length for day in days] if first is not None else []


def compare_pairs(
    errors_a_N: FloatArray, errors_b_N: FloatArray, views: Sequence[WindowView]
) -> tuple[PairedTest, tuple[float, float]]:
    """Return the paired test of one error a window, and the interval of the mean difference.

    One error a window, since the 48 steps of a day are not independent; one a block where windows
    overlap. The series of a day share their weather: the interval draws whole blocks, of one seed,
    so that the same forecasts give the same interval.
    """
    blocks = label_blocks(views)
    test = paired_test(
        _average_overlapping(errors_a_N, views, blocks),
        _average_overlapping(errors_b_N, views, blocks),
    )
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    return test, bootstrap_interval(errors_a_N - errors_b_N, rng, groups=blocks)


def _average_overlapping(
    errors_N: FloatArray, views: Sequence[WindowView], blocks: Sequence[int]
) -> FloatArray:
    """Return the mean error of each series in each block (P,); NaN where it has a masked one.

    Where a block is a day, that is the error of every window.
    """
    members: dict[tuple[str, int], list[int]] = {}
    for number, (view, block) in enumerate(zip(views, blocks, strict=True)):
        members.setdefault((view.entity, block), []).append(number)
    return np.array([errors_N[numbers].mean() for numbers in members.values()])


def _compare(
    scope: Scope, name_a: str, errors_a_N: FloatArray, name_b: str, errors_b_N: FloatArray
) -> dict[str, Any]:
    test, (low, high) = compare_pairs(errors_a_N, errors_b_N, scope.windows.views())
    return {
        "dataset": scope.windows.dataset,
        "subset": scope.subset,
        "method_a": name_a,
        "method_b": name_b,
        "n": test.n,
        "n_equal": test.n_equal,
        "mean_difference": test.mean_difference,
        "p_value": test.p_value,
        "p_two_sided": test.p_two_sided,
        "rank_sign": test.rank_sign,
        "interval_low": low,
        "interval_high": high,
        "budget": None,
    }
