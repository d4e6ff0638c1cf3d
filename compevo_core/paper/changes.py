"""The registry of named changes: what the paper's experiments do to the full method (5.4 to E.9).

What belongs here: every variant, control, rival system and sweep as settings, news or weather that
differ from the full method, the experiments as lists of them, and windows with other news (none,
another day's, irrelevant ones) or weather. What does not: scoring (``paper.trials``). What a change
does not name stays as it is. Changes are trained from the start: a model that was trained with news
and then gets none would only show that it misses what it was used to.
"""

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from compevo_core.config.run import SYSTEM_SETTINGS, RunConfig, iterate_settings
from compevo_core.data.context import PAST_MEAN
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.paper.declared import read_declared, require_known

OWN, NONE, SWAPPED, IRRELEVANT = "own", "none", "swapped", "irrelevant"
SHUFFLED, NOISY = "shuffled", "noisy"
# What a window may be given in place of its own candidates.
NEWS_CHANGES = (OWN, NONE, SWAPPED, IRRELEVANT, SHUFFLED, NOISY)
# Seed of the draws. Which news a window gets is part of a change: the seeds of a method differ
# only by training, and are scored on the same windows.
SEED = 0
# Irrelevant articles are sampled from this share of the available ones: those furthest from every
# topic that a logic can name.
IRRELEVANT_SHARE = 0.25
# Age of the day that lends its news: after a month hardly any of it is still news.
LEAST_DISTANCE = timedelta(days=30)
# The same in the sample world, whose events last a day and whose splits last a month.
LEAST_DISTANCE_OF_SAMPLES = timedelta(days=7)


class Relevance:
    """How near each article is to any topic (T, D) that a logic can name, by one encoder."""

    def __init__(self, news: NewsPool, topics: npt.NDArray[np.float32]) -> None:
        self._ids = np.array(news.articles["article_id"].to_list())
        available = news.articles["available_at"].to_list()
        nearness_NT = news.embeddings @ topics.T

        # By time, so that the articles available to a window are a prefix.
        self._order = sorted(range(len(self._ids)), key=lambda row: available[row])
        self._times = [available[row] for row in self._order]
        self._nearness = nearness_NT.max(1)

    def sample_irrelevant(self, window: Window, rng: np.random.Generator) -> tuple[str, ...]:
        """Return as many other available articles as a window has, if possible, far from topics."""
        # News of the future would be a leak, not a control.
        candidates = set(window.view.candidate_ids)
        n_available = bisect_left(self._times, window.view.known_before)
        rows = [row for row in self._order[:n_available] if self._ids[row] not in candidates]
        if not rows:
            return ()

        furthest = sorted(rows, key=lambda row: self._nearness[row])
        pool = furthest[: max(len(candidates), round(IRRELEVANT_SHARE * len(furthest)))]
        chosen = rng.permutation(len(pool))[: len(candidates)]
        return tuple(str(self._ids[pool[i]]) for i in chosen)


def change_news(windows: WindowSet, name: str, relevance: Relevance | None = None) -> WindowSet:
    """Return the windows with other candidate articles and everything else unchanged.

    ``name`` is one of :data:`NEWS_CHANGES`: their own news; none; news of another day; as many
    irrelevant articles; their own in another order; their own and as many irrelevant ones. The two
    with irrelevant ones need the ``relevance`` of the articles, else ConfigError.
    """
    require_known("news", [name], NEWS_CHANGES)
    if name == OWN:
        return windows
    if name == SWAPPED:
        return swap_news(windows, SEED)
    if name in (IRRELEVANT, NOISY) and relevance is None:
        raise ConfigError(f"news {name!r} needs the relevance of the articles")

    changed = [
        window.change_view(candidate_ids=_change_ids(window, name, relevance)) for window in windows
    ]
    return windows.with_windows(changed, perturbation={"name": f"news-{name}", "seed": SEED})


def _change_ids(window: Window, name: str, relevance: Relevance | None) -> tuple[str, ...]:
    candidates = window.view.candidate_ids
    if name == NONE or not candidates:
        return ()
    rng = _make_rng(window.view, SEED)
    if name == SHUFFLED:
        return tuple(candidates[i] for i in rng.permutation(len(candidates)))

    irrelevant = relevance.sample_irrelevant(window, rng) if relevance else ()
    return (*candidates, *irrelevant) if name == NOISY else irrelevant


def swap_news(windows: WindowSet, seed: int) -> WindowSet:
    """Give each window the candidate articles of another day; everything else is unchanged.

    The day is sampled from the same series and split at least 30 days earlier, 7 in the sample
    world. News of a later day would be a leak, not a control. A window of the first days of a split
    is left without articles; the manifest counts them.

    A draw depends only on the seed, the window and the windows of its series and split: a split
    swapped by itself equals its part of the swapped whole.
    """
    is_sample = windows.manifest.get("synthetic", False)
    distance = LEAST_DISTANCE_OF_SAMPLES if is_sample else LEAST_DISTANCE
    by_series: defaultdict[tuple[str, str], list[Window]] = defaultdict(list)
    for window in windows:  # in the order of their origins
        by_series[window.view.split, window.view.series_id].append(window)
    swapped, n_without = [], 0
    for window in windows:
        lenders = by_series[window.view.split, window.view.series_id]
        ids = draw_news(window.view, lenders, distance, seed)
        n_without += bool(window.view.candidate_ids) and not ids
        swapped.append(window.change_view(candidate_ids=ids))

    about = {
        "name": "swap-news",
        "seed": seed,
        "least_days": distance.days,
        "n_left_without_articles": n_without,
    }
    return windows.with_windows(swapped, perturbation=about)


def lend_news(views: Sequence[WindowView], lenders: WindowSet) -> list[WindowView]:
    """Return views with the candidates of a window of their series, at least 30 days earlier.

    ``lenders`` are train windows: all news was available in training. Early views get no articles.
    """
    lent = []
    for view in views:
        of_series = [w for w in lenders if w.view.series_id == view.series_id]
        ids = draw_news(view, of_series, LEAST_DISTANCE, SEED)
        lent.append(replace(view, candidate_ids=ids))
    return lent


def draw_news(
    view: WindowView, lenders: list[Window], distance: timedelta, seed: int
) -> tuple[str, ...]:
    """Return the candidates of one of the windows that begin at least so long before a view.

    ``lenders`` are in the order of their origins; if none begins as early there is no article.
    """
    latest = view.origin_utc - distance
    n_earlier = bisect_right(lenders, latest, key=lambda other: other.view.origin_utc)
    if not n_earlier:
        return ()
    return lenders[int(_make_rng(view, seed).integers(n_earlier))].view.candidate_ids


def _make_rng(view: WindowView, seed: int) -> np.random.Generator:
    """Return a generator of this window's own, so that a draw does not depend on the others."""
    digest = hashlib.sha256(view.window_id.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8])])


Kind = Literal["variant", "control", "system", "sweep", "news", "weather"]
Settings = Mapping[str, Any]
OWN_WEATHER, NO_WEATHER, EARLIER = "own", "none", "nine-days-before"
# What a window may be given in place of its own forecast weather.
WEATHER_CHANGES = (OWN_WEATHER, NO_WEATHER, EARLIER)
# Age of the day that lends its weather: another weekday, but the same season.
DISTANCE = timedelta(days=9)


@dataclass(frozen=True, kw_only=True)
class NamedChange:
    """One change of the full method."""

    name: str  # what rows say under ``method``
    # ``variant`` of the paper's ablation, ``control`` that the paper lacks, rival ``system`` of
    # agents, value of a ``sweep``, ``news`` changed after training, or another ``weather``
    kind: Kind
    settings: Settings = field(default_factory=dict)  # settings that it changes, by dotted name
    # Further settings, computed from the settings of the full method
    adapt: Callable[[RunConfig], Settings] | None = None
    news: str = OWN  # what every window reads, one of ``NEWS_CHANGES``
    weather: str = OWN_WEATHER  # what every window knows of it, one of ``WEATHER_CHANGES``

    def configure(self, config: RunConfig) -> RunConfig:
        """Return the settings of the change, derived from the settings of the full method."""
        adapted = self.adapt(config) if self.adapt else {}
        return config.with_overrides({**self.settings, **adapted})

    def change_windows(self, windows: WindowSet, relevance: Relevance | None = None) -> WindowSet:
        """Return the windows of all splits; irrelevant articles need their ``relevance``."""
        return change_news(change_weather(windows, self.weather), self.news, relevance)

    def changes_nothing(self, config: RunConfig) -> bool:
        """Whether its row would only repeat the full method's row under these settings."""
        if self.name == FULL_METHOD or self.weather != OWN_WEATHER:
            return False
        if self.news != OWN:
            # Without any article to read, other articles are the same.
            return config.news.top_k == 0
        return self.configure(config) == config


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A list of named changes; the others are paired with one of them, the reference."""

    name: str  # its name on the command line
    title: str  # what is varied, for readers
    # The change that the others are paired with: ``name=value``, except in the ablation
    reference: str
    changes: tuple[NamedChange, ...]  # the changes, in order
    # Whether each change is trained; otherwise it is applied to finished runs of the system
    trains: bool = True
    system: str = "compevo"  # system of agents whose finished runs are changed
    scores_later: bool = False  # whether the days after the test split are scored as well
    split: Literal["test", "val"] = "test"  # whose windows are scored

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
        require_known(f"change of the experiment {self.name}", names, known)
        return [known[name] for name in names or known]


FULL_METHOD = "compevo"  # the change that changes nothing, which the ablation is compared with
ALL_TRIALS = "one-agent-all-trials"  # one agent that samples as many logics as the population
PAPER_METHOD = "full"
"""The preset whose rewriting, policy steps, diversity and pruning are the paper's, as a control on
the same priors, for at most as many rounds. It only samples what a run without a language model
does: two agents, an eighth of the rounds, groups of four logics, forecasts read through one layer.
"""
MOST_SAMPLES = 64  # that a group may have
ABLATION = "ablation"
PARTS = "parts"
# What ``experiment`` begins with in rows of all experiments but the ablation.
PREFIX = "experiment-"
FOLDS = f"{PREFIX}folds"  # what it is in rows of the folds within train
_DECLARED = ("title", "reference", "trains", "system", "scores_later", "split")


def _give_all_trials(config: RunConfig) -> Settings:
    # The first member for which a logic chooses articles, with the samples of the whole population.
    members = [member for member in config.population.members if member.reads == "chosen"][:1]
    samples = config.grpo.group_size * config.population.agents
    return {"population.members": members, "grpo.group_size": min(samples, MOST_SAMPLES)}


def _take_paper_method(config: RunConfig) -> Settings:
    preset = RunConfig.preset(PAPER_METHOD)
    settings = {name: attrgetter(name)(preset) for name, _ in iterate_settings()}
    # A round without a language model takes a second or two, one of the preset half a minute. The
    # few rounds that are left move a policy only at a higher rate.
    is_sample = config.forecast.decoder == "linear"
    rounds = min(preset.run.rounds, math.ceil(config.run.rounds / (8 if is_sample else 1)))
    kept = ("population.agents", "population.members", "forecast.prior", "forecast.prior_folds")
    settings |= {name: attrgetter(name)(config) for name in (*kept, "run.seed")}
    if is_sample:
        agents = min(2, config.population.agents)
        members = config.population.members[:agents]
        settings |= {"population.agents": agents, "population.members": members}
        settings |= {"forecast.layers": 1, "grpo.group_size": 4, "optim.policy_lr": 5e-3}
    supervised = min(preset.run.supervised_rounds, rounds)
    return settings | {"run.rounds": rounds, "run.supervised_rounds": supervised}


def _take_first_member(config: RunConfig, **changes: float) -> Settings:
    # A population has one entry for each agent or none.
    members = config.population.members[:1]
    return {"population.members": tuple(m.model_copy(update=changes) for m in members)}


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


def _list_ablation() -> Iterator[NamedChange]:
    """Yield the paper's variants, controls that it lacks, and rival systems of agents."""
    variant, control = partial(NamedChange, kind="variant"), partial(NamedChange, kind="control")
    one_agent = {"population.agents": 1}

    yield variant(name=FULL_METHOD)
    # No opponent context, no gates, no soft prompt: an agent rewrites its logic from text.
    yield variant(name="simplified-logic", settings={"evolution.update": "simplified"})
    yield variant(name="uniform-weights", settings={"selection.uniform": True})
    yield variant(name="no-diversity", settings={"objective.lambda_div": 0.0})
    yield variant(name="no-pruning", settings={"objective.lambda_prune": 0.0})
    # Logics are still sampled and the best one is carried, but no policy step is taken.
    yield variant(name="no-grpo", settings={"grpo.enabled": False})

    # Embeddings stay, so that words still differ; what the layers learnt is gone.
    yield control(name="random-layers", settings={"backbone.weights": "random"})
    yield control(name="no-news", settings={"news.top_k": 0})
    yield control(name="swapped-news", news=SWAPPED)
    yield control(name="fixed-logics", settings={"evolution.every": 0})
    yield control(name="one-agent", settings=one_agent, adapt=_take_first_member)
    yield control(name=ALL_TRIALS, settings=one_agent, adapt=_give_all_trials)
    yield control(name="paper-method", adapt=_take_paper_method)
    yield control(name="equal-weights", settings={"selection.uniform": True})
    yield control(name="no-known-errors", settings={"forecast.known_errors": "none"})
    yield control(name="alike-agents", settings={"population.members": ()})

    # On all windows: training each agent on a share of them serves only to set agents apart.
    adapt = {"sa": partial(_take_first_member, window_share=1.0)}
    for name, settings in SYSTEM_SETTINGS.items():
        if name != FULL_METHOD:
            settings = {"population.system": name, **settings}
            yield NamedChange(name=name, kind="system", settings=settings, adapt=adapt.get(name))


def _list_changes(name: str, declared: Settings) -> Iterator[NamedChange]:
    """Yield the changes of an experiment, named ``name=value`` as their rows are."""
    # All have the settings without which no value of the swept setting would have an effect.
    for value in declared.get("values", ()):
        text = value if isinstance(value, str) else format(value, "g")
        settings = {**declared.get("needs", {}), declared["setting"]: value}
        yield NamedChange(name=f"{name}={text}", kind="sweep", settings=settings)
    for text, settings in declared.get("changes", {}).items():
        yield NamedChange(name=f"{name}={text}", kind="sweep", settings=settings)

    if name == ABLATION:
        yield from _list_ablation()
    elif name == "agents":
        for n in range(1, 11):
            settings, adapt = {"population.agents": n}, partial(_repeat_members, n)
            yield NamedChange(name=f"agents={n}", kind="sweep", settings=settings, adapt=adapt)
    elif name == "epochs":
        for n in range(1, 6):
            yield NamedChange(name=f"epochs={n}", kind="sweep", adapt=partial(_set_epochs, n))
    elif name.startswith("news"):
        # What the paper lacks: no news at all, and news of another day.
        for news in NEWS_CHANGES:
            yield NamedChange(name=f"news={news}", kind="news", news=news)
    elif name == "weather":
        for weather in WEATHER_CHANGES:
            yield NamedChange(name=f"weather={weather}", kind="weather", weather=weather)
        yield NamedChange(name="members=published", kind="weather", adapt=_keep_error_models)
        # The weights that the rule begins with, never updated.
        fixed = {"selection.rule": "equal"}
        yield NamedChange(name="weights=fixed", kind="weather", settings=fixed)


# Every experiment by name.
EXPERIMENTS = {
    name: Experiment(
        name=name,
        changes=tuple(_list_changes(name, declared)),
        **{field: declared[field] for field in _DECLARED if field in declared},
    )
    for name, declared in read_declared("experiments").items()
}

# Every change by name.
CHANGES: dict[str, NamedChange] = {
    change.name: change for experiment in EXPERIMENTS.values() for change in experiment.changes
}


def list_changes(*kinds: Kind) -> list[str]:
    """Return the names of the changes of some kinds, in order."""
    return [change.name for change in CHANGES.values() if change.kind in kinds]


def find_experiment(name: str) -> Experiment:
    """Return an experiment; ConfigError if there is none of that name."""
    require_known("experiment", [name], EXPERIMENTS)
    return EXPERIMENTS[name]


def find_variant(name: str) -> NamedChange:
    """Return what ``compevo paper train --variant`` names; ConfigError if there is none."""
    require_known("variant, control or system", [name], EXPERIMENTS[ABLATION].names)
    return CHANGES[name]


def change_weather(windows: WindowSet, name: str) -> WindowSet:
    """Return the windows with other forecast weather, and all else as it was.

    A window has no weather if its earlier day has no window. ConfigError for another name.
    """
    require_known("weather", [name], WEATHER_CHANGES)
    if name == OWN_WEATHER:
        return windows

    by_key = {(v.entity, v.origin_utc, v.unknown_steps): v for v in windows.views()}
    changed = []
    for window in windows:
        view = window.view
        names = {name for name in view.step_covariates if _is_weather(view, name)}
        other = by_key.get((view.entity, view.origin_utc - DISTANCE, view.unknown_steps))
        lent = other.step_covariates if other and name == EARLIER else {}
        rest = {key: values for key, values in view.step_covariates.items() if key not in names}
        changed.append(
            window.change_view(
                step_covariates=rest | {key: lent[key] for key in names if key in lent}
            )
        )
    return windows.with_windows(changed)


def _is_weather(view: WindowView, name: str) -> bool:
    """Whether a covariate by step is weather: neither own past, nor a publication, nor a power."""
    stem = name.removesuffix("_lag1").removesuffix(PAST_MEAN)
    return not stem.startswith(("past", "published")) and not stem.endswith(f"_{view.unit.lower()}")
