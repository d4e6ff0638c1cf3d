"""Systems of agents in the benchmark: one budget for all, and rows that say what they were."""

import numpy as np
import pytest

from compevo_core.benchmark import agents
from compevo_core.benchmark.agents import configure_agents, fit_agents
from compevo_core.benchmark.budgets import BUDGETS, STANDARD
from compevo_core.benchmark.methods import FitInputs
from compevo_core.benchmark.table import METHODS
from compevo_core.config import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.experiments.controls import configure_experiment
from tests.support.population import news_pool, tiny, windows

SYSTEMS = [name for name, method in METHODS.items() if method.family == "agents"]


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=str)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_gets_the_updates_of_the_budget(system: str, budget) -> None:
    run = configure_agents(system, budget, 4).run
    assert run.supervised_rounds + run.rounds == budget.rounds and run.rounds >= 1
    assert (run.batch_size, run.seed) == (budget.round_windows, 4)


def test_the_full_budget_has_as_many_rewritings_as_the_preset() -> None:
    preset = RunConfig.preset("default")
    assert configure_agents("compevo", STANDARD, 0).run.rounds == preset.run.rounds


def test_a_system_is_trained_sealed_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    def configure(system: str, budget: object, seed: int) -> RunConfig:
        return configure_experiment(tiny(run__rounds=1, run__seed=seed), system)

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
    assert facts.config_hash == configure("mael", None, 2).hash
    assert facts.seedless_hash == configure("mael", None, 0).hash
    assert len(facts.artifact_hash) == 64
    # Three agents, each with an adapter and a head: a third of them is one agent's.
    assert facts.trainable_parameters and facts.trainable_parameters % 3 == 0


def test_a_system_without_news_is_refused() -> None:
    inputs = FitInputs(train=windows("train", 2), val=windows("val", 2), seed=0, budget=STANDARD)
    with pytest.raises(ConfigError, match="sa reads news"):
        fit_agents("sa", inputs)
