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
    scope: Scope, method: str, population_NH: FloatArray, opponents: Mapping[str, FloatArray]
) -> list[dict[str, Any]]:
    """Test, window by window, whether the population's errors differ from each opponent's.

    Args:
        scope: the windows.
        method: name of the population.
        population_NH: its forecasts.
        opponents: forecasts (N, H) by name.

    Returns:
        One record an opponent, with the keys of ``PAIRED_TEST_SCHEMA``.
    """
    truth_NH = scope.windows.truth()
    population_N = measure_window_errors(truth_NH, population_NH)
    return [
        _compare(scope, method, population_N, name, measure_window_errors(truth_NH, opponent_NH))
        for name, opponent_NH in opponents.items()
    ]


def compare_with_reference(
    scope: Scope, forecasts: Mapping[str, Sequence[FloatArray]], reference: str
) -> list[dict[str, Any]]:
    """Test, window by window, whether each method's errors differ from those of one of them.

    A method's error of a window is the mean over its seeds: the chance of one training is no
    property of the method, and pairs of single seeds would count a window several times.

    Args:
        scope: the windows.
        forecasts: forecasts (N, H) of every seed, by method.
        reference: the method that the others are compared with.

    Returns:
        One record a method besides the reference, with the keys of ``PAIRED_TEST_SCHEMA``; none
        where there is no reference.
    """
    truth_NH = scope.windows.truth()
    errors = {
        name: np.mean([measure_window_errors(truth_NH, seed_NH) for seed_NH in seeds], axis=0)
        for name, seeds in forecasts.items()
    }
    if reference not in errors:
        return []
    return [
        _compare(scope, name, errors_N, reference, errors[reference])
        for name, errors_N in errors.items()
        if name != reference
    ]


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
