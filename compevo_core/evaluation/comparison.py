"""Paired tests of a population against others on the same windows.

What belongs here: the columns of a paired test and filling them. What does not: the statistics
(``evaluation.significance``), whose forecasts they are (``evaluation.scoring``).

Shapes: N windows of a scope, H horizon (48).
"""

from collections.abc import Mapping
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
    # One error a window: the 48 steps of a day are far from independent.
    population_N = measure_window_errors(truth_NH, population_NH)
    days = [view.calendar.target_date for view in scope.windows.views()]

    records = []
    for name, opponent_NH in opponents.items():
        opponent_N = measure_window_errors(truth_NH, opponent_NH)
        test = paired_test(population_N, opponent_N)
        # Nor are the series of a day, which share their weather: whole days are drawn. Of one seed,
        # so that the same forecasts give the same interval.
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        low, high = bootstrap_interval(population_N - opponent_N, rng, groups=days)
        records.append(
            {
                "dataset": scope.windows.dataset,
                "subset": scope.subset,
                "method_a": method,
                "method_b": name,
                "n": test.n,
                "n_equal": test.n_equal,
                "mean_difference": test.mean_difference,
                "p_value": test.p_value,
                "p_two_sided": test.p_two_sided,
                "rank_sign": test.rank_sign,
                "interval_low": low,
                "interval_high": high,
            }
        )
    return records
