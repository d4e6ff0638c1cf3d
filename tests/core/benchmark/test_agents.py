"""Systems of agents in the benchmark: one budget for all, and rows that say what they were."""

from dataclasses import replace

import numpy as np
import pytest

from compevo_core.benchmark import agents
from compevo_core.benchmark.agents import configure_agents, fit_agents
from compevo_core.benchmark.budgets import BUDGETS, STANDARD, Budget
from compevo_core.benchmark.methods import FitInputs, TrainingPlan
from compevo_core.benchmark.table import METHODS
from compevo_core.config import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.experiments.controls import configure_experiment
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from tests.support.population import news_pool, tiny, windows

SYSTEMS = [name for name, method in METHODS.items() if method.family == "agents"]


def _inputs(budget: Budget, seed: int) -> FitInputs:
    return FitInputs(train=windows("train", 4), val=windows("val", 2), seed=seed, budget=budget)


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=str)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_gets_the_updates_of_the_budget(system: str, budget) -> None:
    run = configure_agents(system, _inputs(budget, 4)).run
    assert run.supervised_rounds + run.rounds == budget.rounds and run.rounds >= 1
    assert (run.batch_size, run.seed) == (budget.round_windows, 4)


def test_the_full_budget_has_as_many_rewritings_as_the_preset() -> None:
    preset = RunConfig.preset("default")
    assert configure_agents("compevo", _inputs(STANDARD, 0)).run.rounds == preset.run.rounds


def test_a_system_is_trained_sealed_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    def configure(system: str, inputs: FitInputs) -> RunConfig:
        return configure_experiment(tiny(run__rounds=1, run__seed=inputs.seed), system)

    monkeypatch.setattr(agents, "configure_agents", configure)
    train, val = windows("train", 4), windows("val", 2, first_day=20)
    inputs = FitInputs(train=train, val=val, seed=2, budget=STANDARD, news=news_pool())
    fitted = fit_agents("mael", inputs)

    views = windows("test", 2, first_day=40).views()
    assert fitted.predict(views).shape == (len(views), 48)
    assert np.isfinite(fitted.predict(views)).all()
    assert fitted.count_answers() == (0, 2 * 3 * len(views))

    facts = fitted.facts
    assert (fitted.name, facts.backbone, facts.news_top_k) == ("mael", "tiny-random", 2)
    assert facts.config_hash == configure("mael", inputs).hash
    assert facts.seedless_hash == configure("mael", replace(inputs, seed=0)).hash
    assert len(facts.artifact_hash) == 64
    # Three agents, each with an adapter and a head: a third of them is one agent's.
    assert facts.trainable_parameters and facts.trainable_parameters % 3 == 0


def test_a_training_that_was_stopped_goes_on_and_a_finished_one_is_taken(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        agents,
        "configure_agents",
        lambda system, *_: configure_experiment(
            tiny(run__rounds=3, run__checkpoint_every=1), system
        ),
    )
    told: list[int] = []

    def stop_in_the_second_round(record: RoundRecord) -> None:
        told.append(record.round)
        if len(told) == 2:
            raise KeyboardInterrupt

    inputs = FitInputs(
        train=windows("train", 4),
        val=windows("val", 2, first_day=20),
        seed=0,
        budget=STANDARD,
        news=news_pool(),
        training=TrainingPlan(folder=tmp_path / "run", on_round=stop_in_the_second_round),
    )
    with pytest.raises(KeyboardInterrupt):
        fit_agents("compevo", inputs)
    fitted = fit_agents("compevo", inputs)
    assert told == [0, 1, 2]

    # The clock of a second fit would say nothing of a training that was finished before it.
    summary = RunFolder(tmp_path / "run").read_metrics()
    for found in (fitted, fit_agents("compevo", inputs)):
        assert found.facts.train_seconds == summary["seconds"] > 0
        assert found.facts.peak_memory_gb == summary["peak_memory_gb"] > 0
    assert told == [0, 1, 2]


def test_a_system_without_news_is_refused() -> None:
    inputs = FitInputs(train=windows("train", 2), val=windows("val", 2), seed=0, budget=STANDARD)
    with pytest.raises(ConfigError, match="sa reads news"):
        fit_agents("sa", inputs)
