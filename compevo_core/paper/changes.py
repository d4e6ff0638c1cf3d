"""The registry of named changes: what the paper's experiments do to the full method (5.4 to E.9).

What belongs here: every variant, control, rival system and sweep as settings or news that differ
from the full method, the experiments as lists of them, and windows with other weather. What does
not: scoring (``paper.trials``), how news is changed (``paper.news_changes``). Whatever a change
does not name stays as it is. Changes are trained from the start: a model that was trained with news
and is then given none would only show that it misses what it was used to.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Literal

from compevo_core.config.run import SYSTEM_SETTINGS, RunConfig, iterate_settings
from compevo_core.data.context import PAST_MEAN
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.paper.news_changes import NEWS_CHANGES, OWN, SWAPPED, Relevance, change_news

Kind = Literal["variant", "control", "system", "sweep", "news", "weather"]
Settings = Mapping[str, Any]

OWN_WEATHER, NO_WEATHER, EARLIER = "own", "none", "nine-days-before"
WEATHER_CHANGES = (OWN_WEATHER, NO_WEATHER, EARLIER)
"""What a window may be given in place of its own forecast weather."""

DISTANCE = timedelta(days=9)
"""How far the day that lends its weather lies back: another weekday, and the season is the same."""


@dataclass(frozen=True, kw_only=True)
class NamedChange:
    """One change of the full method."""

    name: str  # what rows say under ``method``
    # ``variant`` of the paper's ablation, ``control`` that the paper lacks, rival ``system`` of
    # agents, value of a ``sweep``, ``news`` changed after training, or another ``weather``
    kind: Kind
    settings: Settings = field(default_factory=dict)  # settings that it changes, by dotted name
    # Further settings, which depend on those of the full method
    adapt: Callable[[RunConfig], Settings] | None = None
    news: str = OWN  # what every window reads, one of ``NEWS_CHANGES``
    weather: str = OWN_WEATHER  # what every window knows of it, one of ``WEATHER_CHANGES``

    def configure(self, config: RunConfig) -> RunConfig:
        """Return the settings of the change, made from the settings of the full method."""
        adapted = self.adapt(config) if self.adapt else {}
        return config.with_overrides({**self.settings, **adapted})

    def change_windows(self, windows: WindowSet, relevance: Relevance | None = None) -> WindowSet:
        """Return the windows of all splits; irrelevant articles need their ``relevance``."""
        return change_news(change_weather(windows, self.weather), self.news, relevance)

    def changes_nothing(self, config: RunConfig) -> bool:
        """Whether it is the full method itself under these settings.

        Its row would repeat the row of the full method and look like a finding.
        """
        if self.name == FULL_METHOD or self.weather != OWN_WEATHER:
            return False
        if self.news != OWN:
            # Without any article to read, other articles are the same.
            return config.news.top_k == 0
        return self.configure(config) == config


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A list of named changes, one of which is the reference that the others are paired with."""

    title: str  # what is varied, for readers
    # The change that the others are paired with, ``name=value`` but in the ablation
    reference: str
    changes: tuple[NamedChange, ...]  # the changes, in order
    # Whether each change is trained; otherwise it is applied to finished runs of the full method
    trains: bool = True
    scores_later: bool = False  # whether the days after the test split are scored as well
    split: Literal["test", "val"] = "test"  # whose windows are scored

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return ABLATION if self.reference == FULL_METHOD else self.reference.partition("=")[0]

    @property
    def names(self) -> list[str]:
        """Names of the changes, in order."""
        return [change.name for change in self.changes]

    @property
    def rows_name(self) -> str:
        """What rows say under ``experiment``, and what their file begins with."""
        # Rows of the ablation always had its bare name.
        return self.name if self.name == ABLATION else f"{PREFIX}{self.name}"

    def select(self, names: Sequence[str] = ()) -> list[NamedChange]:
        """Return the changes of these names, all where none is named; ConfigError for others."""
        known = {change.name: change for change in self.changes}
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(
                f"experiment {self.name} has no change {unknown[0]!r}; known: {', '.join(known)}"
            )
        return [known[name] for name in names or known]


FULL_METHOD = "compevo"  # the change that changes nothing, which the ablation is compared with

SWAPPED_NEWS = "swapped-news"

ALL_TRIALS = "one-agent-all-trials"  # one agent that samples as many logics as the population

PAPER_METHOD = "full"
"""The preset whose rewriting, policy steps, diversity and pruning are the paper's, as a control on
the same priors, for at most as many rounds. Beside a run without a language model it is a sample of
that: two agents, an eighth of the rounds, groups of four logics, forecasts read through one layer.
"""

MOST_SAMPLES = 64  # that a group may have

ABLATION = "ablation"
PARTS = "parts"
PREFIX = "experiment-"
"""What ``experiment`` begins with in rows of all experiments but the ablation."""


def _give_all_trials(config: RunConfig) -> Settings:
    # The first member that a logic chooses articles for, with the samples of the whole population.
    members = [member for member in config.population.members if member.reads == "chosen"][:1]
    samples = config.grpo.group_size * config.population.agents
    return {"population.members": members, "grpo.group_size": min(samples, MOST_SAMPLES)}


def _take_paper_method(config: RunConfig) -> Settings:
    preset = RunConfig.preset(PAPER_METHOD)
    settings = {name: attrgetter(name)(preset) for name, _ in iterate_settings()}
    # A round without a language model takes a second or two, one of the preset half a minute.
    is_sample = config.forecast.decoder == "linear"
    rounds = min(preset.run.rounds, math.ceil(config.run.rounds / (8 if is_sample else 1)))
    kept = ("population.agents", "population.members", "forecast.prior", "forecast.prior_folds")
    settings |= {name: attrgetter(name)(config) for name in (*kept, "run.seed")}
    if is_sample:
        agents = min(2, config.population.agents)
        members = config.population.members[:agents]
        settings |= {"population.agents": agents, "population.members": members}
        settings |= {"forecast.layers": 1, "grpo.group_size": 4}
    supervised = min(preset.run.supervised_rounds, rounds)
    return settings | {"run.rounds": rounds, "run.supervised_rounds": supervised}


_ABLATION: Mapping[Kind, Mapping[str, Settings]] = {
    "variant": {
        FULL_METHOD: {},
        # No opponent context, no gates, no soft prompt: an agent rewrites its logic from text.
        "simplified-logic": {"evolution.update": "simplified"},
        "uniform-weights": {"selection.uniform": True},
        "no-diversity": {"objective.lambda_div": 0.0},
        "no-pruning": {"objective.lambda_prune": 0.0},
        # Logics are still sampled and the best one is carried, but no policy step is taken.
        "no-grpo": {"grpo.enabled": False},
    },
    "control": {
        # Embeddings stay, so that words still differ; what the layers learnt is gone.
        "random-layers": {"backbone.weights": "random"},
        "no-news": {"news.top_k": 0},
        SWAPPED_NEWS: {},
        "fixed-logics": {"evolution.every": 0},
        "one-agent": {"population.agents": 1},
        ALL_TRIALS: {"population.agents": 1},
        "paper-method": {},
        "equal-weights": {"selection.uniform": True},
        "no-known-errors": {"forecast.known_errors": "none"},
        "alike-agents": {"population.members": ()},
    },
    "system": {
        name: {"population.system": name, **settings}
        for name, settings in SYSTEM_SETTINGS.items()
        if name != FULL_METHOD
    },
}

_ADAPT: Mapping[str, Callable[[RunConfig], Settings]] = {
    # A population has one entry for each agent or none.
    "one-agent": lambda config: {"population.members": config.population.members[:1]},
    ALL_TRIALS: _give_all_trials,
    "paper-method": _take_paper_method,
    # On all windows: a share of them only sets agents apart.
    "sa": lambda config: {
        "population.members": tuple(
            member.model_copy(update={"window_share": 1.0})
            for member in config.population.members[:1]
        )
    },
}


def _sweep(
    name: str, setting: str, *values: float | str, needs: Settings | None = None
) -> tuple[NamedChange, ...]:
    """Return one change for each value of a setting, named ``name=value`` as its rows are.

    All have the settings that it ``needs``, without which no value acts.
    """
    return tuple(
        NamedChange(
            name=f"{name}={value if isinstance(value, str) else format(value, 'g')}",
            kind="sweep",
            settings={**(needs or {}), setting: value},
        )
        for value in values
    )


def _repeat_members(count: int, config: RunConfig) -> Settings:
    members = config.population.members
    # With more agents than members these are reused, each time with another seed.
    repeated = [
        members[i % len(members)].model_copy(update={"seed": i}) for i in range(count) if members
    ]
    return {"population.members": tuple(repeated)}


def _set_epochs(count: int, config: RunConfig) -> Settings:
    # A run with a supervised stage spends its passes there; the paper's preset has none.
    return {"run.supervised_epochs" if config.run.supervised_epochs else "run.epochs": count}


def _keep_error_models(config: RunConfig) -> Settings:
    members = config.population.members
    error_models = tuple(member for member in members if member.prior.startswith("published"))
    if not error_models:
        raise ConfigError(
            "members=published keeps the members that model a published forecast's error, and "
            "there is none: name a preset that has some, such as operational"
        )
    return {"population.members": error_models, "population.agents": len(error_models)}


# Of the policy term; at 0 a logic is carried on by its reward alone.
_POLICY_WEIGHTS = (0.0, 0.1, 0.5, 1.0, 5.0)

# Chance has no policy to train.
_POLICIES: Settings = {
    "grpo.enabled": True,
    "evolution.flat_share": 0.0,
    "evolution.cross_share": 0.0,
}

# The printed weights, and what the preset ``default`` has in place of them
_FOUR_PARTS: Mapping[str, Settings] = {
    "all": {
        **_POLICIES,
        "evolution.update": "three-stage",
        "objective.lambda_div": 0.1,
        "objective.lambda_prune": 0.01,
    },
    "none": {
        "evolution.update": "simplified",
        "grpo.enabled": False,
        "objective.lambda_div": 0.0,
        "objective.lambda_prune": 0.0,
    },
}


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            title="Architecture and controls",
            reference=FULL_METHOD,
            changes=tuple(
                NamedChange(
                    name=name,
                    kind=kind,
                    settings=settings,
                    adapt=_ADAPT.get(name),
                    news=SWAPPED if name == SWAPPED_NEWS else OWN,
                )
                for kind, changes in _ABLATION.items()
                for name, settings in changes.items()
            ),
        ),
        Experiment(
            title="Weight of the policy term",
            reference="lambda-pg=0.5",
            changes=_sweep("lambda-pg", "objective.lambda_pg", *_POLICY_WEIGHTS, needs=_POLICIES),
        ),
        Experiment(
            title="Weight of the diversity term",
            reference="lambda-div=0.1",
            # The paper's figure has no printed numbers.
            changes=_sweep("lambda-div", "objective.lambda_div", 0.0, 0.01, 0.1, 0.5, 1.0),
        ),
        Experiment(
            title="Weight of the pruning term",
            reference="lambda-prune=0.01",
            # Rewards are negative: see decision 10-fitness for its sign.
            changes=_sweep("lambda-prune", "objective.lambda_prune", 0.0, 0.001, 0.01, 0.1, 1.0),
        ),
        Experiment(
            title="Temperature of the weights",
            reference="tau=0.5",
            changes=_sweep("tau", "selection.temperature", 0.1, 0.5, 1.0, 2.0, 5.0),
            # The agents are those of the run: only their weights are computed anew.
            trains=False,
        ),
        Experiment(
            title="Memory of the fitness",
            reference="beta=0.9",
            # The paper says "moderate" and prints nothing.
            changes=_sweep("beta", "selection.ema", 0.0, 0.5, 0.9, 0.98),
        ),
        Experiment(
            title="Temperature of sampled logics",
            reference="t-gen=0.7",
            # The default preset samples at 3, because a grammar leaves few tokens.
            changes=_sweep("t-gen", "evolution.temperature", 0.1, 0.7, 1.0, 1.5, 3.0),
        ),
        Experiment(
            title="Number of agents",
            reference="agents=10",
            # The paper has 2 to 10; one agent is the control of all of them.
            changes=tuple(
                NamedChange(
                    name=f"agents={n}",
                    kind="sweep",
                    settings={"population.agents": n},
                    adapt=partial(_repeat_members, n),
                )
                for n in range(1, 11)
            ),
        ),
        Experiment(
            title="Passes over the train windows",
            reference="epochs=3",
            changes=tuple(
                NamedChange(name=f"epochs={n}", kind="sweep", adapt=partial(_set_epochs, n))
                for n in range(1, 6)
            ),
        ),
        Experiment(
            title="Wording of the logic-update instruction",
            reference="instruction=original",
            # The judge's prompt stays, the task of the agents is worded otherwise.
            changes=_sweep("instruction", "evolution.instruction", "original", "paraphrased"),
        ),
        Experiment(
            title="News perturbed at inference",
            reference="news=own",
            # What the paper lacks: no news at all, and news of another day.
            changes=tuple(
                NamedChange(name=f"news={news}", kind="news", news=news) for news in NEWS_CHANGES
            ),
            trains=False,
        ),
        Experiment(
            title="Weather, and members that know it (a second look at this test)",
            reference="weather=own",
            changes=(
                *(
                    NamedChange(name=f"weather={weather}", kind="weather", weather=weather)
                    for weather in WEATHER_CHANGES
                ),
                NamedChange(name="members=published", kind="weather", adapt=_keep_error_models),
                # The weights that the rule begins with, whatever becomes known.
                NamedChange(
                    name="weights=fixed", kind="weather", settings={"selection.rule": "equal"}
                ),
            ),
            scores_later=True,
        ),
        Experiment(
            title="Layers of the backbone that a forecast passes through",
            reference="layers=30",
            # The paper varies the model; here the packaged one is read after fewer layers.
            changes=_sweep("layers", "forecast.layers", 4, 8, 16, 30),
        ),
        Experiment(
            title="Four parts of the method at once",
            reference="parts=all",
            changes=tuple(
                NamedChange(name=f"parts={name}", kind="sweep", settings=settings)
                for name, settings in _FOUR_PARTS.items()
            ),
            # They may come back into a preset, so that the test split must not judge them.
            split="val",
        ),
    )
}
"""Every experiment by name."""

CHANGES: dict[str, NamedChange] = {
    change.name: change for experiment in EXPERIMENTS.values() for change in experiment.changes
}
"""Every change by name."""


def list_changes(*kinds: Kind) -> list[str]:
    """Return the names of the changes of some kinds, in order."""
    return [change.name for change in CHANGES.values() if change.kind in kinds]


def find_experiment(name: str) -> Experiment:
    """Return an experiment; ConfigError if there is none of that name."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"no experiment {name!r}; known: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def find_variant(name: str) -> NamedChange:
    """Return what ``compevo paper train --variant`` names; ConfigError if there is none."""
    known = EXPERIMENTS[ABLATION].names
    if name not in known:
        raise ConfigError(f"no variant, control or system {name!r}; known: {', '.join(known)}")
    return CHANGES[name]


def change_weather(windows: WindowSet, name: str) -> WindowSet:
    """Return the windows with other forecast weather, and all else as it was.

    A window has no weather if its earlier day has no window. ConfigError for another name.
    """
    if name not in WEATHER_CHANGES:
        raise ConfigError(f"no weather {name!r}; known: {', '.join(WEATHER_CHANGES)}")
    if name == OWN_WEATHER:
        return windows

    by_key = {_find_key(view, timedelta(0)): view for view in windows.views()}
    changed = []
    for window in windows:
        view = window.view
        names = {name for name in view.step_covariates if _is_weather(view, name)}
        other = by_key.get(_find_key(view, DISTANCE)) if name == EARLIER else None
        lent = {} if other is None else other.step_covariates
        rest = {key: values for key, values in view.step_covariates.items() if key not in names}
        changed.append(
            window.change_view(
                step_covariates=rest | {key: lent[key] for key in names if key in lent}
            )
        )
    return windows.with_windows(changed)


def _find_key(view: WindowView, back: timedelta) -> tuple[str, object, int]:
    return view.entity, view.origin_utc - back, view.unknown_steps


def _is_weather(view: WindowView, name: str) -> bool:
    """Whether a covariate by step is weather: neither own past, nor a publication, nor a power."""
    stem = name.removesuffix("_lag1").removesuffix(PAST_MEAN)
    return not stem.startswith(("past", "published")) and not stem.endswith(f"_{view.unit.lower()}")
