"""The paper's experiments as lists of named changes (5.4 to 5.8, appendix E).

What belongs here: which settings or windows each experiment changes, and what it is compared with.
What does not: training and scoring (``experiments.run``), the table of each (``report.paper``).

A change is named ``key=value``, as its rows are. Every other setting, the data and the budget stay
as they are. An experiment that changes nothing that training reads is scored on runs that are there
already.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compevo_core.config import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.experiments.ablation import FULL_METHOD
from compevo_core.experiments.controls import EXPERIMENTS, configure_experiment, prepare_windows
from compevo_core.experiments.perturbations import NEWS_CHANGES, Relevance, change_news

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A list of named changes.

    Attributes:
        title: what is varied, for readers.
        reference: the change that the others are paired with.
        changes: settings by the name of the change; of a configuration where they depend on it.
        windows: whether a change is one of the windows' news, and not of settings.
        trains: whether each change is trained; else runs of the full method are scored with it.
        names: names of the ablation and the controls, which have a module of their own.
    """

    title: str
    reference: str
    changes: Mapping[str, Settings | Callable[[RunConfig], Settings]] = field(default_factory=dict)
    windows: bool = False
    trains: bool = True
    names: tuple[str, ...] = ()

    def list_names(self) -> list[str]:
        """Return the names of its changes, in order."""
        return list(self.names or self.changes)


def _vary(setting: str, key: str, *values: float) -> dict[str, Settings]:
    return {f"{key}={value:g}": {setting: value} for value in values}


def _set_agents(count: int) -> Callable[[RunConfig], Settings]:
    def change(config: RunConfig) -> Settings:
        members = config.population.members
        # More agents than members: they go round, each with draws of its own.
        repeated = [
            members[i % len(members)].model_copy(update={"seed": i})
            for i in range(count)
            if members
        ]
        return {"population.agents": count, "population.members": tuple(repeated)}

    return change


def _set_epochs(count: int) -> Callable[[RunConfig], Settings]:
    def change(config: RunConfig) -> Settings:
        # A run with a supervised stage spends its passes there; the paper's preset has none.
        name = "run.supervised_epochs" if config.run.supervised_epochs else "run.epochs"
        return {name: count}

    return change


ABLATION = "ablation"
PREFIX = "experiment-"
"""What ``experiment`` begins with in rows of the others."""

SWEEPS: dict[str, Experiment] = {
    # Paper 5.4, and controls that the paper lacks.
    ABLATION: Experiment(
        title="Architecture and controls", reference=FULL_METHOD, names=tuple(EXPERIMENTS)
    ),
    # Paper E.5; at 0 a logic is carried on by its reward alone.
    "lambda-pg": Experiment(
        title="Weight of the policy term",
        reference="lambda-pg=0.5",
        changes=_vary("objective.lambda_pg", "lambda-pg", 0.0, 0.1, 0.5, 1.0, 5.0),
    ),
    # Paper 5.7; the figure has no printed numbers.
    "lambda-div": Experiment(
        title="Weight of the diversity term",
        reference="lambda-div=0.1",
        changes=_vary("objective.lambda_div", "lambda-div", 0.0, 0.01, 0.1, 0.5, 1.0),
    ),
    # Paper 5.7; rewards are negative, so see decision 24 for its sign.
    "lambda-prune": Experiment(
        title="Weight of the pruning term",
        reference="lambda-prune=0.01",
        changes=_vary("objective.lambda_prune", "lambda-prune", 0.0, 0.001, 0.01, 0.1, 1.0),
    ),
    # Paper E.7. The agents are those of the run: only their weights are computed anew.
    "tau": Experiment(
        title="Temperature of the weights",
        reference="tau=0.5",
        changes=_vary("selection.temperature", "tau", 0.1, 0.5, 1.0, 2.0, 5.0),
        trains=False,
    ),
    # Paper E.8 says "moderate" and prints nothing.
    "beta": Experiment(
        title="Memory of the fitness",
        reference="beta=0.9",
        changes=_vary("selection.ema", "beta", 0.0, 0.5, 0.9, 0.98),
    ),
    # Paper E.6. The default preset samples at 3, because a grammar leaves few tokens.
    "t-gen": Experiment(
        title="Temperature of sampled logics",
        reference="t-gen=0.7",
        changes=_vary("evolution.temperature", "t-gen", 0.1, 0.7, 1.0, 1.5, 3.0),
    ),
    # Paper E.4, from 2 to 10; one agent is the control of all of them.
    "agents": Experiment(
        title="Number of agents",
        reference="agents=10",
        changes={f"agents={count}": _set_agents(count) for count in range(1, 11)},
    ),
    # Paper E.9 shows errors by epoch; the main runs have three.
    "epochs": Experiment(
        title="Passes over the train windows",
        reference="epochs=3",
        changes={f"epochs={count}": _set_epochs(count) for count in (1, 2, 3, 4, 5)},
    ),
    # Paper E.9: the judge's prompt stays, the task of the agents is worded otherwise.
    "instruction": Experiment(
        title="Wording of the logic-update instruction",
        reference="instruction=original",
        changes={
            f"instruction={name}": {"evolution.instruction": name}
            for name in ("original", "paraphrased")
        },
    ),
    # Paper 5.8, and what the paper lacks: no news at all, and that of another day.
    "news": Experiment(
        title="News perturbed at inference",
        reference="news=own",
        changes={f"news={name}": {} for name in NEWS_CHANGES},
        windows=True,
        trains=False,
    ),
    # Paper 5.5 varies the model; here the packaged one is read after fewer layers.
    "layers": Experiment(
        title="Layers of the backbone that a forecast passes through",
        reference="layers=30",
        changes=_vary("forecast.layers", "layers", 4, 8, 16, 30),
    ),
}
"""Every experiment by name."""

REFERENCES = frozenset(experiment.reference for experiment in SWEEPS.values())
"""What paired tests of experiments have on their second side."""


def name_rows(name: str) -> str:
    """Return what rows of an experiment say under ``experiment``, and what their file begins with.

    The ablation keeps the name that it has always had.
    """
    return name if name == ABLATION else f"{PREFIX}{name}"


def find_experiment(name: str) -> Experiment:
    """Return an experiment.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in SWEEPS:
        raise ConfigError(f"no experiment {name!r}; known: {', '.join(SWEEPS)}")
    return SWEEPS[name]


def configure_change(config: RunConfig, experiment: Experiment, name: str) -> RunConfig:
    """Return the configuration of one change.

    Raises:
        ConfigError: the experiment has no change of that name, or a setting is out of bounds.
    """
    if experiment.names:
        return configure_experiment(config, name)
    _require_change(experiment, name)
    change = experiment.changes[name]
    return config.with_overrides(change(config) if callable(change) else change)


def change_windows(
    windows: WindowSet, experiment: Experiment, name: str, relevance: Relevance | None = None
) -> WindowSet:
    """Return the windows of one change.

    Args:
        windows: those of the full method.
        experiment: whose change.
        name: the change.
        relevance: of the articles, for changes with irrelevant ones.
    """
    if experiment.names:
        return prepare_windows(windows, name)
    _require_change(experiment, name)
    return (
        change_news(windows, name.partition("=")[2], relevance) if experiment.windows else windows
    )


def _require_change(experiment: Experiment, name: str) -> None:
    if name not in experiment.changes:
        raise ConfigError(
            f"no change {name!r} in this experiment; known: {', '.join(experiment.list_names())}"
        )
