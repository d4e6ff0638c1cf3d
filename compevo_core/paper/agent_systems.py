"""The systems of agents that the paper compares its method with, as methods and by their size.

What belongs here: training a system under a budget, the sealed model as a method of the comparison,
the parameters that a system trains (D.4, "Multi-agent baseline configurations"). What does not: the
settings that make a system (``config.systems``), the modules it trains (``training``), its place in
the ablation (``paper.changes``).

All systems have one budget: the preset ``default``, so many updates of so many windows. Logics may
change in the last ones (:data:`EVOLUTION_SHARE`), as that costs a multiple of any other update.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compevo_core.baselines.base import MethodFacts
from compevo_core.config.run import RunConfig
from compevo_core.config.systems import SYSTEM_SETTINGS
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.errors import ConfigError
from compevo_core.evaluation.result_rows import hash_without_seed
from compevo_core.lm.architectures import Architecture, load_architecture
from compevo_core.paper.changes import find_variant
from compevo_core.paper.method import (
    LANGUAGE_MODEL_SEEDS,
    Budget,
    FitInputs,
    Method,
    TrainingPlan,
)
from compevo_core.paper.parameter_counts import (
    METHODS,
    PAPER_AGENTS,
    PAPER_RANK,
    build_meta_model,
    build_parameter_report,
)

if TYPE_CHECKING:
    from compevo_core.forecast.forecaster import CompEvoForecaster

PRESET = "default"
"""What agents of the benchmark train by, and whose encoder finds the news of every method."""

EVOLUTION_SHARE = 8
"""One of so many updates may rewrite logics, and at most as many as the preset has."""


def list_agents() -> list[Method]:
    """Return the systems of agents as methods, the paper's method first."""
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
    return find_variant(system).configure(preset.with_overrides(settings))


def spend(budget: Budget, preset: RunConfig) -> dict[str, int]:
    """Return the settings by which a training spends a budget, and no more."""
    # At least one, or the systems that rewrite logics would equal those that do not.
    evolution = min(preset.run.rounds, max(1, budget.rounds // EVOLUTION_SHARE))
    return {
        "run.supervised_rounds": budget.rounds - evolution,
        "run.rounds": evolution,
        "run.batch_size": budget.round_windows,
        "run.micro_batch_size": budget.round_windows,
    }


def fit_agents(system: str, inputs: FitInputs) -> "SealedAgents":
    """Train a system, or resume its training where it was stopped."""
    # In here, as the command line and Dagster read the table of methods.
    from compevo_core.forecast.forecaster import CompEvoForecaster
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
    """The sealed model of a training, with its summary, as a method of the benchmark."""

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


def count_built(architecture: Architecture, system: str, *, agents: int, rank: int) -> int:
    """Build a system on the meta device and return how many parameters it trains.

    The decoder is left out, as the paper's agents answer in text; a run's rows count it as well.
    """
    # The table of methods is read by commands that need no torch.
    import torch

    from compevo_core.lm.backbone import Backbone
    from compevo_core.runtime.distributed import AgentShards
    from compevo_core.training.model import build_modules

    settings = {"population.agents": agents, "population.rank": rank}
    config = find_variant(system).configure(RunConfig().with_overrides(settings))

    with torch.device("meta"):
        model = build_meta_model(architecture)
        model.requires_grad_(False)
        backbone = Backbone(model, None, architecture.name, "")
        # Outside of the meta device: the soft prompt's start is measured, not only shaped.
        neutral_D = torch.zeros(architecture.hidden_size, device="cpu")
        shards = AgentShards(config.population.agents)
        return build_modules(config, backbone, shards, (), neutral_D).count_trainable()


def report_built_parameters(
    backbone: str,
    *,
    methods: Sequence[str] = METHODS,
    agents: int = PAPER_AGENTS,
    rank: int = PAPER_RANK,
) -> dict[str, Any]:
    """Build the JSON of ``compevo params``; ConfigError where system and parts differ."""
    architecture = load_architecture(backbone)
    report = build_parameter_report(backbone, methods=methods, agents=agents, rank=rank)
    for method in methods:
        built = count_built(architecture, method, agents=agents, rank=rank)
        listed = report["methods"][method]["trainable_parameters"]
        if built != listed:
            raise ConfigError(
                f"{architecture.name}: {method} as built trains {built} parameters, its parts add "
                f"up to {listed}; the list of its parts is out of date"
            )
    return report
