"""Agents of the benchmark: the paper's method and the systems it is compared with.

What belongs here: a training under a budget, and the sealed model as a method. What does not: the
systems (``training.systems``) and their settings (``config_systems``), the training itself
(``training.trainer``).

All of them have one budget: the preset ``default``, so many updates of so many windows. Logics may
change in the last ones (:data:`EVOLUTION_SHARE`), as that costs a multiple of any other update.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compevo_core.baselines.facts import MethodFacts
from compevo_core.benchmark.budgets import Budget
from compevo_core.benchmark.methods import LANGUAGE_MODEL_SEEDS, FitInputs, Method, TrainingPlan
from compevo_core.config import RunConfig
from compevo_core.config_systems import SYSTEM_SETTINGS
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.evaluation.configs import hash_without_seed
from compevo_core.experiments.controls import configure_experiment

if TYPE_CHECKING:
    from compevo_core.forecaster import CompEvoForecaster

PRESET = "default"
"""What agents of the benchmark train by, and whose encoder finds the news of every method."""

EVOLUTION_SHARE = 8
"""One of so many updates may rewrite logics, and at most as many as the preset has."""


def list_agents() -> list[Method]:
    """Return the systems of agents, the paper's method first."""
    return [
        Method(
            name=name,
            family="agents",
            fit=partial(fit_agents, name),
            seeds=LANGUAGE_MODEL_SEEDS,
            reads_news=True,
            configure=partial(configure_agents, name),
            leaves_run=True,
        )
        for name in SYSTEM_SETTINGS
    ]


def configure_agents(system: str, inputs: FitInputs) -> RunConfig:
    """Return the settings of a training of a system under the budget and the seed of its inputs."""
    preset = RunConfig.preset(PRESET)
    settings = spend(inputs.budget, preset) | {"run.seed": inputs.seed}
    return configure_experiment(preset.with_overrides(settings), system)


def spend(budget: Budget, preset: RunConfig) -> dict[str, int]:
    """Return the settings by which a training spends a budget, and no more."""
    # At least one, or the systems that rewrite logics would be those that do not.
    evolution = min(preset.run.rounds, max(1, budget.rounds // EVOLUTION_SHARE))
    return {
        "run.supervised_rounds": budget.rounds - evolution,
        "run.rounds": evolution,
        "run.batch_size": budget.round_windows,
        "run.micro_batch_size": budget.round_windows,
    }


def fit_agents(system: str, inputs: FitInputs) -> "SealedAgents":
    """Train a system, or take up its training where it was stopped.

    Raises:
        ConfigError: there are no news to train with.
    """
    # In here, as the command line and Dagster read the table of methods.
    from compevo_core.forecaster import CompEvoForecaster
    from compevo_core.training.trainer import train

    news = inputs.require_news(system)
    config = configure_agents(system, inputs)
    with _open_training(system, inputs) as training:
        summary = train(
            config,
            inputs.train,
            inputs.val,
            news,
            training.folder,
            on_round=training.on_round,
            fit=training.fit,
        )
        forecaster = CompEvoForecaster.load(training.folder, news, fit=training.fit)
        return SealedAgents(forecaster, summary)


@contextlib.contextmanager
def _open_training(system: str, inputs: FitInputs) -> Iterator[TrainingPlan]:
    if inputs.training is not None:
        yield inputs.training
        return
    # The sealed model is read into memory before the folder goes.
    with tempfile.TemporaryDirectory(prefix=f"compevo-{system}-") as folder:
        yield TrainingPlan(folder=Path(folder))


class SealedAgents:
    """The sealed model of a training as a method of the benchmark.

    Args:
        forecaster: the sealed model.
        summary: of its training, as ``metrics.json`` holds it.

    Attributes:
        name: that of its system.
    """

    def __init__(self, forecaster: "CompEvoForecaster", summary: Mapping[str, Any]) -> None:
        self.name = forecaster.name
        self._forecaster = forecaster
        self._summary = summary
        self._unread = 0
        self._answers = 0

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecast N windows, (N, H) in the views' unit."""
        prediction = self._forecaster.predict_by_agent(views)
        self._unread += prediction.n_unparsed
        # Every agent answers for every window.
        self._answers += len(prediction.agents) * len(views)
        return prediction.aggregate

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        config = self._forecaster.config
        return MethodFacts(
            trainable_parameters=self._forecaster.trainable_parameters,
            learning_rate=config.optim.forecast_lr,
            backbone=config.backbone.name_or_path,
            knowledge_cutoff=self._forecaster.knowledge_cutoff,
            device=str(self._forecaster.manifest["device"]),
            config_hash=config.hash,
            seedless_hash=hash_without_seed(config),
            artifact_hash=self._forecaster.artifact_hash,
            news_top_k=config.news.top_k,
            # A clock around the fit would miss what was trained before an interruption.
            train_seconds=self._summary["seconds"],
            peak_memory_gb=self._summary["peak_memory_gb"],
        )

    def count_answers(self) -> tuple[int, int]:
        """Return how many answers could not be read so far, and how many there were."""
        # A head answers in numbers, which are always read; its share is 0, not missing.
        return self._unread, self._answers
