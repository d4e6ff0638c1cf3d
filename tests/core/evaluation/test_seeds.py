"""Several seeds of one method: scored as one method, and refused where they are not."""

import polars as pl
import pytest

from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA
from compevo_core.evaluation.scopes import Scope
from compevo_core.evaluation.scoring import (
    PopulationScores,
    compare_seeds,
    require_seeds_of_one_method,
)
from tests.support import population as small

SCOPE = Scope(subset="first", windows=small.windows("test", 6))
TRUTH_NH = SCOPE.windows.truth()


def _scores(**errors: float) -> PopulationScores:
    """Scores whose methods are off by a constant each."""
    forecasts = {name.replace("_", "-"): TRUTH_NH + error for name, error in errors.items()}
    return PopulationScores(rows=pl.DataFrame(), panels=[], predictions=[(SCOPE, forecasts)])


def test_a_method_meets_its_parts_and_every_baseline_with_its_mean_error_over_seeds() -> None:
    scores = [
        _scores(compevo=1.0, compevo_equal=2.0, compevo_agent_0=9.0),
        _scores(compevo=-3.0, compevo_equal=4.0, compevo_agent_0=9.0),
    ]
    tests = compare_seeds(scores, [{"gbm": [TRUTH_NH + 6.0, TRUTH_NH + 8.0]}], "compevo")

    assert tests.schema == PAIRED_TEST_SCHEMA
    assert tests["method_a"].unique().to_list() == ["compevo"]
    difference = dict(tests.select("method_b", "mean_difference").iter_rows())
    # 2 against 3 and 7; forecasts averaged first would err by 1. Single agents are not compared.
    assert difference == {"compevo-equal": pytest.approx(-1.0), "gbm": pytest.approx(-5.0)}
    assert (tests["n"] == len(SCOPE.windows)).all()


def test_runs_of_other_settings_or_of_one_seed_twice_are_refused() -> None:
    config = RunConfig.preset("tiny")
    second = config.with_overrides({"run.seed": 7})
    require_seeds_of_one_method([config, second])
    with pytest.raises(ConfigError, match="different settings"):
        require_seeds_of_one_method([config, second.with_overrides({"population.rank": 2})])
    with pytest.raises(ConfigError, match="same seed"):
        require_seeds_of_one_method([second, second])
