"""The demo asks for settings that exist, and a refresh is of the data set that was named."""

from datetime import UTC, datetime

import pytest

from compevo_core.data.datasets import DATASETS
from compevo_core.errors import ConfigError
from compevo_core.paper.changes import FULL_METHOD, list_changes
from compevo_pipeline.defs.assets.research import AblationConfig
from compevo_pipeline.defs.assets.training import TrainConfig
from compevo_pipeline.defs.jobs import build_demo_config, choose_day, run_job

OPS = {name: op["config"] for name, op in build_demo_config("electricity")["ops"].items()}


def test_the_demos_trainings_resolve_and_the_ablation_is_the_smaller_one():
    training = TrainConfig(**OPS["models__compevo__electricity"]).resolve("demo")
    ablation = AblationConfig(**OPS["ablation__variants__electricity"]).resolve("demo")
    assert ablation.population.agents == len(ablation.population.members) == 2
    assert 0 < ablation.run.rounds < training.run.rounds
    assert 0 < ablation.run.supervised_rounds < training.run.supervised_rounds


def test_no_variant_of_the_demos_ablation_repeats_the_full_method():
    config = AblationConfig(**OPS["ablation__variants__electricity"])
    changes, base = config.select_variants(), config.resolve("demo")
    assert changes[0].name == FULL_METHOD
    assert {change.name for change in changes} < set(list_changes("variant", "control"))
    assert not any(change.changes_nothing(base) for change in changes)


class AskedError(Exception):
    """Ends a run where its job is looked up."""


class Definitions:
    def resolve_job_def(self, name):
        raise AskedError(name)


@pytest.mark.parametrize(
    ("dataset", "job"),
    [("exchange", "refresh_exchange"), ("electricity-operational", "refresh")],
)
def test_a_refresh_is_of_the_data_set_that_was_named(dataset, job):
    with pytest.raises(AskedError, match=f"^{job}$"):
        run_job(Definitions(), "refresh", dataset)


def test_a_refresh_forecasts_tomorrow_for_the_market_and_else_the_day_that_has_begun(defs):
    evening = datetime(2026, 3, 30, 15, 0, tzinfo=UTC)
    days = {name: choose_day(spec, evening) for name, spec in DATASETS.items()}
    # It is the 31st already in Brisbane.
    assert days["electricity-operational"] == "2026-04-01" and days["electricity"] == "2026-03-31"
    assert days["exchange"] == "2026-03-30" and days["traffic"] == ""
    with pytest.raises(ConfigError, match="leave --day 2026-03-30 out"):
        run_job(defs, "refresh", "traffic", "2026-03-30")
