"""Paired tests of methods on the same windows: a population against others, or variants of it.

What belongs here: the columns of a paired test and filling them. What does not: the statistics
(``evaluation.significance``), whose forecasts they are (``evaluation.scoring``).

Shapes: N windows of a scope, H horizon (48).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.scopes import Scope
from compevo_core.evaluation.significance import bootstrap_interval, paired_test

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
}
"""Columns of a paired test: differences are a minus b, in the unit of the windows; ``p_value`` is
the paper's one-sided test that a is better, ``p_two_sided`` and ``rank_sign`` (-1: a is better) the
two-sided one, the interval that of the mean difference at 95 %, whole days drawn."""


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


def _compare(
    scope: Scope, name_a: str, errors_a_N: FloatArray, name_b: str, errors_b_N: FloatArray
) -> dict[str, Any]:
    """Return one paired test of one error a window: the 48 steps of a day are not independent."""
    test = paired_test(errors_a_N, errors_b_N)

    # Nor are the series of a day, which share their weather: whole days are drawn. Of one seed, so
    # that the same forecasts give the same interval.
    days = [view.calendar.target_date for view in scope.windows.views()]
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    low, high = bootstrap_interval(errors_a_N - errors_b_N, rng, groups=days)

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
    }
