"""How much is read from news that is known to matter: planted (a positive control) and real text.

What belongs here: the arms, the experiment on specialists (its worlds, effects and seeds, fixed
before it was run), training them, the share of the planted effect that each recovers, and which of
the acting topics the logics name, round by round; for real text, also the ridge that reads without
any agent, and rows against the calendar ridge. What does not: the worlds and the text themselves
(``paper.planted_news``), tables (``paper.report.evidence_tables``).

Shapes: N windows, H horizon.
"""

import json
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.linear_reader import FittedReader
from compevo_core.agents.logics import SLOT_SEED_LOGICS, TOPICS, find_topics, list_regions
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.baselines import fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import MOST_ARTICLES, MemberConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import release_windows
from compevo_core.data.view import Window
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.comparison import compare_pairs
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.result_rows import replace_own_rows, write_config
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.encoder import Encoder
from compevo_core.paper.changes import MOST_SAMPLES, NONE, SWAPPED, change_news
from compevo_core.paper.declared import read_declared, require_known
from compevo_core.paper.planted_news import (
    AFTER_TRAINING,
    BEST_AGENT,
    CONTROL_SCHEMA,
    EFFECTS,
    EVOLVED,
    HOMES,
    MEAN,
    PRIOR,
    ROUNDS_SCHEMA,
    SPECIALISTS_SCHEMA,
    SUM,
    TEXT_SCHEMA,
    WORLDS,
    PlantedNews,
    PlantedWorld,
    WordedData,
    plant_news,
)
from compevo_core.runtime.files import write_atomically
from compevo_core.training.prior import PriorKey, forecast_out_of_fold
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.trainer import train

FIXED: dict[str, Any] = {"evolution.every": 0}
_READS_ALL = FIXED | {"population.agents": 1, "population.members": [{"reads": "everything"}]}
POLICY, ADAPTERS = "policy", "-adapters"
# Arms that are trained with adapters as well, under names with their suffix.
CORRECTED = (EVOLVED, "one-agent", "seed-logics")
# Arms that read the sum of all articles, by itself and together with agents that choose.
GENERALIST, WITH_SPECIALISTS = "generalist", "generalist-and-specialists"
_SEARCH, _MODEL = (read_declared("arms")["settings"][name] for name in ("search", "adapters"))
# What the arms of a control compare: who reads which news, who searches how, or what agents gain
# by being read together.
READING, SEARCH, SPECIALISTS = "reading", "search", "specialists"


def list_specialists(config: RunConfig, planted: PlantedNews) -> dict[str, dict[str, Any]]:
    """Return the settings by which each arm differs from specialists that are read together.

    A single agent has a whole population's trials, in groups as large as allowed. If the articles
    of all regions are candidates, a generalist reads only what names its own region.
    """
    agents, group = config.population.agents, config.grpo.group_size
    parts = math.ceil(agents * group / MOST_SAMPLES)
    generalist: dict[str, Any] = {
        "reads": "everything",
        "news_scope": "place" if planted.is_regional else "all",
    }
    fixed_single = {**FIXED, "population.agents": 1}
    apart = {"news.fit": "own", "evolution.credit": "own"}

    return {
        EVOLVED: {},
        "independent": {**apart, "evolution.cross_share": 0.0, "population.exposed_peers": 0},
        "crossed": {**apart, "evolution.cross_share": 0.5},
        "credit-alone": {"news.fit": "own"},
        "joint-alone": {"evolution.credit": "own"},
        "one-agent": {
            "population.agents": 1,
            "grpo.group_size": agents * group // parts,
            "run.rounds": config.run.rounds * parts,
        },
        GENERALIST: {**fixed_single, "population.members": [generalist]},
        WITH_SPECIALISTS: {
            "population.agents": agents + 1,
            "population.members": [{}] * agents + [generalist],
            "evolution.start": (*SLOT_SEED_LOGICS[:agents], SLOT_SEED_LOGICS[0]),
        },
        "2A-articles": {**fixed_single, "news.top_k": agents * config.news.top_k},
        MEAN: {**fixed_single, "news.top_k": MOST_ARTICLES},
        "oracle-joint": {**FIXED, "evolution.start": write_oracle(planted, agents, step=2)},
        "seed-logics": FIXED,
    }


def write_oracle(planted: PlantedNews, agents: int, *, step: int) -> tuple[str, ...]:
    """Return logics that name acting topics: two for each agent, or one of its own region.

    The next agent begins this many topics later: at two, no topic is named twice.
    """
    topics = tuple(planted.signs)
    places = [list_regions([planted.homes[topic]])[0] for topic in topics if planted.homes]
    logics = []
    for agent in range(agents):
        named = [topics[place % len(topics)] for place in (step * agent, step * agent + 1)]
        place = "the home region" if planted.is_regional else "any region"
        if places:
            named, place = [topics[agent % len(topics)]], places[agent % len(topics)]
        logics.append(
            f"Track news about {' and '.join(named)} in {place}, at any time of day, as a sign of "
            "sudden changes."
        )
    return tuple(logics)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlan:
    """Which worlds to make and which arms to train in each."""

    config: RunConfig  # settings of the full search
    world: str = "plain"  # name of the worlds' kind, of ``WORLDS``
    series: Sequence[str] = ()  # series to plant news in; empty: all
    compares: str = READING  # what the arms compare
    only: Sequence[str] = ()  # names of the arms to train; empty: all
    effects: Sequence[float] = EFFECTS  # effect of an acting topic in each world
    seeds: Sequence[int] = (0, 1, 2)  # of the worlds and of their trainings
    commit: str = ""  # version of the code

    def __post_init__(self) -> None:
        """Check the names; ConfigError if one is unknown."""
        require_known("world", [self.world], WORLDS)
        require_known("comparison", [self.compares], (READING, SEARCH, SPECIALISTS))
        if self.only:
            arms = replace(self, only=()).configure_arms(0)
            require_known(f"arm of {self.compares}", self.only, arms)

    def plant(self, effect: float, seed: int) -> PlantedNews:
        """Return what is planted in one world."""
        return PlantedNews(effect=effect, seed=seed, **WORLDS[self.world])

    def configure_arms(self, seed: int) -> dict[str, RunConfig]:
        """Return the settings of each trained arm."""
        planted = self.plant(0.0, seed)
        base = self.config
        if planted.topics != TOPICS:
            base = base.with_overrides({"evolution.topics": planted.topics})

        if self.compares == SEARCH:
            arms = {
                arm: _SEARCH | {key: value for key, value in declared.items() if "." in key}
                for arm, declared in read_declared("arms")["search"].items()
            }
        elif self.compares == SPECIALISTS:
            together = {
                "news.fit": "joint",
                "evolution.credit": "contribution",
                "news.selects": planted.is_regional or bool(planted.homes),
            }
            specialists = list_specialists(base, planted)
            specialists |= {arm + ADAPTERS: _MODEL | specialists[arm] for arm in CORRECTED}
            specialists[POLICY] = _MODEL | _SEARCH
            arms = {arm: together | settings for arm, settings in specialists.items()}
        else:
            oracle = write_oracle(planted, base.population.agents, step=1)
            arms = {
                "seed-logics": FIXED,
                SUM: _READS_ALL,
                MEAN: {**FIXED, "news.top_k": MOST_ARTICLES},
                EVOLVED: {},
                "oracle-logics": {**FIXED, "evolution.start": oracle},
            }
            if planted.is_regional:
                arms = {arm: {"news.selects": True} | changes for arm, changes in arms.items()}
                arms["no-place"] = {"news.selects": False}

        return {
            arm: base.with_overrides({**settings, "run.seed": seed})
            for arm, settings in arms.items()
            if not self.only or arm in self.only
        }


class Cells(NamedTuple):
    """Worlds of one kind in the experiment on specialists."""

    world: str
    effects: Sequence[float] = (2.0,)
    seeds: int = 5
    agents: int = 5
    series: Sequence[str] = ("NSW1", "VIC1")
    arms: Sequence[str] = ()  # empty: all in which no language model has a part


# The experiment on specialists, fixed before it was run: it may only be cut by seeds.
EXPERIMENT: Sequence[Cells] = (
    Cells("niches-wide", (2.0, 1.0), 10),
    Cells("niches-regional", (2.0, 1.0), 10, series=tuple(HOMES.values())),
    Cells("plain", (2.0, 1.0), 10),  # two niches for five agents: no gain is expected
    Cells("niches"),
    Cells("many-topics"),
    Cells("events"),
    Cells("regional"),
    Cells("niches-wide", agents=10),
    Cells("niches-wide", arms=(POLICY, *(arm + ADAPTERS for arm in CORRECTED))),
    Cells("niches-wide", (0.0,)),
    Cells("plain", (0.0,)),
)


def list_cells(
    config: RunConfig,
    *,
    worlds: Sequence[str] = (),
    effects: Sequence[float] = (),
    seeds: int | None = None,
    only: Sequence[str] = (),
    commit: str = "",
) -> list[ControlPlan]:
    """Return the requested parts of the experiment on specialists: plans by world, effect, seed.

    The first seeds of all worlds come first. ConfigError if a name is unknown or nothing is left.
    """
    require_known("world", worlds, dict.fromkeys(cells.world for cells in EXPERIMENT))
    ridges = list(list_specialists(config, PlantedNews(effect=0.0)))
    chosen = [
        (seed, cells, effect, arms)
        for seed in range(max(cells.seeds for cells in EXPERIMENT) if seeds is None else seeds)
        for cells in EXPERIMENT
        for effect in cells.effects
        if seed < cells.seeds
        and cells.world in (worlds or [cells.world])
        and effect in (effects or [effect])
        and (arms := [arm for arm in cells.arms or ridges if arm in (only or [arm])])
    ]
    if not chosen or set(only) - {arm for *_, arms in chosen for arm in arms}:
        raise ConfigError("the experiment has no such world, effect, seed and arm: see EXPERIMENT")

    return [
        ControlPlan(
            config=config.with_overrides({"population.agents": cells.agents}),
            world=cells.world,
            series=cells.series,
            compares=SPECIALISTS,
            only=arms,
            effects=(effect,),
            seeds=(seed,),
            commit=commit,
        )
        for seed, cells, effect, arms in chosen
    ]


def leave_out_scored(plan: ControlPlan, path: Path) -> ControlPlan | None:
    """Return a world's plan without arms that have rows of equal settings; None if none is left."""
    if not path.exists():
        return plan
    rows = pl.read_csv(path, schema_overrides=SPECIALISTS_SCHEMA)
    (effect,), (seed,) = plan.effects, plan.seeds
    hashes = set(rows.filter(world=plan.world, effect=effect, seed=seed)["config_hash"])
    arms = plan.configure_arms(seed).items()
    left = [arm for arm, config in arms if config.hash not in hashes]
    return replace(plan, only=left) if left else None


def run_control(
    windows: WindowSet, encoder: Encoder, plan: ControlPlan, out: Path, log: logging.Logger
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Train every arm in every world; return the rows and those by rewriting round.

    Windows need all three splits. Runs are left in ``out``, where finished ones are not trained
    again. ConfigError if there is no series of a name.
    """
    require_known(f"series of {windows.dataset}", plan.series, windows.entities)
    if plan.series:
        windows = windows.with_windows(w for w in windows if w.view.entity in plan.series)
    if plan.compares == SPECIALISTS:
        out = out / f"specialists-{plan.config.population.agents}"

    rows: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    for effect in plan.effects:
        for seed in plan.seeds:
            world = plant_news(windows, plan.plant(effect, seed), encoder)
            folder = out / f"{plan.world}-effect-{effect:g}-seed-{seed}"
            facts = {
                "dataset": windows.dataset,
                "world": plan.world,
                "effect": effect,
                "seed": seed,
            }

            for arm, config in plan.configure_arms(seed).items():
                log.info(f"{plan.world} world, effect {effect:g}, seed {seed}: {arm}")
                run = folder / arm
                train(config, world.split("train"), world.split("val"), world.news, run)
                shared = facts | {"config_hash": config.hash, "commit": plan.commit}
                rows += [shared | row for row in _score_arm(arm, run, world)]
                if config.evolution.every and plan.compares != SPECIALISTS:
                    named = read_rewritings(run, world.topics)
                    rounds += [facts | {"arm": arm} | row for row in named]

    return pl.DataFrame(rows, schema=CONTROL_SCHEMA), pl.DataFrame(rounds, schema=ROUNDS_SCHEMA)


def write_control(
    results: Path, dataset: str, plan: ControlPlan, rows: pl.DataFrame, rounds: pl.DataFrame
) -> tuple[Path, Path]:
    """Put both tables among the rows of other worlds, with their settings; return the files.

    Specialists have a file of their own, without rounds.
    """
    for seed in plan.seeds:
        for config in plan.configure_arms(seed).values():
            write_config(results, config)
    key = ["world", "effect", "seed"]
    paths = results / f"control-{dataset}.csv", results / f"control-rounds-{dataset}.csv"
    if plan.compares == SPECIALISTS:
        paths = results / f"specialists-{dataset}.csv", paths[1]
        agents = pl.lit(plan.config.population.agents, dtype=pl.Int64()).alias("agents")
        rows = rows.select(agents, pl.all())
        key.insert(0, "agents")

    for path, frame in zip(paths, (rows, rounds), strict=True):
        if frame.is_empty():
            continue
        replace_own_rows(
            path, frame, (*key, "arm"), arrange=lambda rows: rows.sort(key, maintain_order=True)
        )
    return paths


def read_rewritings(run: Path, topics: Sequence[str]) -> list[dict[str, Any]]:
    """Return which acting topics the logics of a run named, before and after each rewriting."""
    records = [record for record in RunFolder(run).read_rounds() if record.evolved]
    final = json.loads(RunFolder(run).model_logics_file.read_text(encoding="utf-8"))
    played = [*(record.logics for record in records), final]
    gains = [None, *(float(np.mean(record.news_gains)) for record in records)]
    named = [compare_topics(logics, topics) for logics in played]
    return [
        {"rewriting": number, "precision": precision, "recall": recall, "news_gain": gain}
        for number, ((precision, recall), gain) in enumerate(zip(named, gains, strict=True))
    ]


def compare_topics(logics: Sequence[str], topics: Sequence[str]) -> tuple[float, float]:
    """Return precision and recall of the topics that logics name, each a mean over agents."""
    named = [set(find_topics(logic)) for logic in logics]
    acting = set(topics)
    precision = [len(names & acting) / len(names) if names else 0.0 for names in named]
    recall = [len(names & acting) / len(acting) for names in named]
    return float(np.mean(precision)), float(np.mean(recall))


def forecast_arm(
    arm: str, run: Path, news: NewsPool, test: WindowSet, changes: Mapping[str, str]
) -> tuple[dict[str, FloatArray], FloatArray, tuple[str, ...]]:
    """Return a trained arm's forecasts of test windows, its prior's forecast (N, H) and its logics.

    Forecasts (N, H) are by arm, those with changed news by the name of the change. The evolved arm
    comes with its prior and, unless its agents are read together, with its best agent.
    """
    forecaster = CompEvoForecaster.load(run, news)
    prediction = forecaster.predict_by_agent(test.views())
    prior_NH = prediction.aggregate if prediction.prior is None else prediction.prior
    forecasts = {arm: prediction.aggregate}
    if arm == EVOLVED:
        if forecaster.config.news.fit == "own":
            # The agent with the largest weight, which was fixed before the test windows.
            forecasts[BEST_AGENT] = prediction.agents[int(prediction.weights.mean(0).argmax())]
        forecasts[PRIOR] = prior_NH
    for name, change in changes.items():
        forecasts[name] = forecaster.predict(change_news(test, change).views())
    return forecasts, prior_NH, tuple(forecaster.logics)


def _score_arm(arm: str, run: Path, world: PlantedWorld) -> list[dict[str, Any]]:
    """Return rows on the test windows for a trained arm, and for the arms that change its news."""
    test = world.split("test")
    changes = AFTER_TRAINING if arm == EVOLVED else {"no-news": NONE}
    forecasts, prior_NH, logics = forecast_arm(arm, run, world.news, test, changes)
    no_news_NH = forecasts["no-news"]
    precision, recall = compare_topics(logics, world.topics)
    facts = {
        "n_windows": len(test),
        "precision": precision,
        "recall": recall,
        "logics": " | ".join(logics),
        "unit": test[0].view.unit,
        "data_hash": test.hash,
    }

    return [
        facts
        | _measure(name, forecast_NH, prior_NH if name == PRIOR else no_news_NH, prior_NH, world)
        for name, forecast_NH in forecasts.items()
        if name == arm or arm == EVOLVED
    ]


def _measure(
    arm: str,
    forecast_NH: FloatArray,
    no_news_NH: FloatArray,
    prior_NH: FloatArray,
    world: PlantedWorld,
) -> dict[str, Any]:
    """Return errors, and the share of the planted effect that a forecast holds due to the news.

    ``recovered`` compares with the same model without news, ``slope`` and ``effect_r2`` with the
    prior.
    """
    test = world.split("test")
    truth_NH, effect_N = test.truth(), world.effects_of(test)
    known_NH = prior_NH + world.surprises_of(test)[:, None]
    error_N, no_news_N, prior_N, known_N = (
        np.nanmean(np.abs(truth_NH - values_NH), axis=1)
        for values_NH in (forecast_NH, no_news_NH, prior_NH, known_NH)
    )
    row: dict[str, Any] = {
        "arm": arm,
        "mae": float(error_N.mean()),
        "known_mae": float(known_N.mean()),
        "no_news_mae": float(no_news_N.mean()),
    }
    if not effect_N.any():
        return row

    cost = float((prior_N - known_N).mean())
    compared = compare_pairs(no_news_N, error_N, test.views())
    added_NH = forecast_NH - prior_NH
    return row | {
        "recovered": compared.mean_difference / cost,
        "recovered_low": None if compared.interval_low is None else compared.interval_low / cost,
        "recovered_high": None if compared.interval_high is None else compared.interval_high / cost,
        "slope": float(np.polyfit(effect_N, added_NH.mean(1), 1)[0]),
        "effect_r2": measure_effect(added_NH, world, test),
    }


def measure_effect(added_NH: FloatArray, world: PlantedWorld, windows: WindowSet) -> float:
    """Return which share of the variance of the planted effect is added to the prior's forecast.

    With a (N, H) what is added and e (N,) the effect less its mean on train, which the prior has
    learnt, both in units of the series' effects: 1 - sum (a - e)^2 / sum e^2 over all windows and
    steps. It is 1 if all of the effect is added and 0 if nothing is; added noise lowers it,
    possibly below 0. It does not depend on the truth, nor on its randomness.
    """
    size_N = np.array([world.sizes[view.entity] for view in windows.views()])
    effect_N1 = (world.surprises_of(windows) / size_N)[:, None]
    left_NH = added_NH / size_N[:, None] - effect_N1
    return float(1 - (left_NH**2).mean() / (effect_N1**2).mean())


BASE = "calendar-ridge"
FOLDS = 5
# A ridge on all articles, by part of the day and with their numbers; two others read only the
# numbers or only the words.
RIDGE = "ridge"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """Which arms to train on worded data."""

    config: RunConfig  # settings of the search; the data set's own settings override them
    # Seeds of every trained arm; without any, only the ridges are fitted
    seeds: Sequence[int] = (0, 1, 2)
    commit: str = ""  # version of the code

    def configure_arms(self, data: WordedData, seed: int) -> dict[str, RunConfig]:
        """Return the settings of each trained arm."""
        agents = self.config.population.agents
        arms: dict[str, Mapping[str, Any]] = {
            "seed-logics": FIXED,
            MEAN: {**FIXED, "news.top_k": MOST_ARTICLES},
            **{
                f"hand-{name}": {**FIXED, "evolution.start": (logic,) * agents}
                for name, logic in data.logics.items()
            },
            GENERALIST: _READS_ALL,
            WITH_SPECIALISTS: {
                "population.agents": agents + 1,
                "population.members": [{}] * agents + _READS_ALL["population.members"],
            },
            EVOLVED: {},
        }
        shared = {**data.settings, "forecast.prior": BASE, "run.seed": seed}
        return {
            arm: self.config.with_overrides({**shared, **changes}) for arm, changes in arms.items()
        }


def run_text(
    data: WordedData, encoder: Encoder, plan: TextPlan, out: Path, log: logging.Logger
) -> pl.DataFrame:
    """Score naive forecasts and ridges, train every arm under every seed; return the rows.

    Only windows with articles count. Finished runs in ``out`` are not trained again.
    """
    rows: list[dict[str, Any]] = []
    for split in data.scored:
        scored = _select(data, split)
        forecasts = read_by_ridges(data, encoder, split)
        base_NH = forecasts[PRIOR]
        facts = {
            "dataset": data.windows.dataset,
            "split": split,
            "foresight": data.foresight,
            "n_windows": len(scored),
            "unit": scored[0].view.unit,
            "data_hash": scored.hash,
            "commit": plan.commit,
        }
        forecasts["persistence"] = np.stack([view.x for view in scored.views()])
        rows += [
            facts | {"arm": arm} | _compare_with_base(forecast_NH, base_NH, scored)
            for arm, forecast_NH in forecasts.items()
        ]

    # Trained arms are scored on the split of the last ridges: test.
    for seed in plan.seeds if data.trains else ():
        for arm, config in plan.configure_arms(data, seed).items():
            log.info(f"{data.windows.dataset}, seed {seed}: {arm}")
            run = out / f"seed-{seed}" / arm
            train(config, data.windows.split("train"), data.windows.split("val"), data.news, run)
            changes = AFTER_TRAINING if arm == EVOLVED else {}
            if arm == WITH_SPECIALISTS:
                changes = {f"{arm}-swapped": SWAPPED}
            by_arm, _, logics = forecast_arm(arm, run, data.news, scored, changes)
            shared = facts | {
                "seed": seed,
                "config_hash": config.hash,
                "logics": " | ".join(logics),
            }
            rows += [
                shared | {"arm": name} | _compare_with_base(forecast_NH, base_NH, scored)
                for name, forecast_NH in by_arm.items()
                if name != PRIOR  # the same for every seed
            ]
    return pl.DataFrame(rows, schema=TEXT_SCHEMA)


def read_by_ridges(
    data: WordedData, encoder: Encoder, split: str = "test"
) -> dict[str, FloatArray]:
    """Return forecasts (N, H) of a split by the calendar ridge, and by ridges on all articles.

    No agent takes part. The full ridge also reads the news of another day, where there is one.
    """
    scored = _select(data, split)
    swapped = {window.view.window_id: window.view for window in change_news(scored, SWAPPED)}
    forecasts: defaultdict[str, list[FloatArray]] = defaultdict(list)
    for known, step in _list_steps(data, scored):
        scaler = Scaler.fit(known)
        base_NH = fit_baseline(BASE, known).predict(step.views())
        forecasts[PRIOR].append(base_NH)
        std_N = np.array([scaler.std[view.entity] for view in step.views()])

        # Out of fold: errors that the base made on its own train days are too small to learn from.
        held_out_NH = forecast_out_of_fold(PriorKey(BASE), known, FOLDS)
        examples = [
            ForecastExample(
                window.view,
                scaler.scale(base_H, window.view.entity)[None],
                scaler.scale(window.y, window.view.entity),
            )
            for window, base_H in zip(known, held_out_NH, strict=True)
        ]
        alike = np.repeat(data.news.embeddings[:1], len(data.news), axis=0)
        for arm, pattern, embeddings in (
            (RIDGE, "$^", data.news.embeddings),
            (f"{RIDGE}-numbers", "$^", alike),
            (f"{RIDGE}-words", r"\d", data.news.embeddings),
        ):
            titles = pl.col("title").str.replace_all(pattern, "")
            articles = data.news.articles.with_columns(titles)
            news = NewsPool(articles, embeddings, data.news.encoder_name)
            retriever = NewsRetriever(news, encoder, MOST_ARTICLES)
            fit = FittedReader(examples, retriever, [MemberConfig()], np.ones((1, 1))).find(
                0, RIDGE
            )

            views = {arm: step.views()}
            if arm == RIDGE and any(view.candidate_ids for view in swapped.values()):
                views[f"{arm}-swapped"] = tuple(swapped[view.window_id] for view in step.views())
            for name, of_step in views.items():
                read = [retriever.resolve(retriever.retrieve(RIDGE, view)) for view in of_step]
                read_NH = [
                    fit.read(view, reading) if reading else np.zeros(view.horizon)
                    for view, reading in zip(of_step, read, strict=True)
                ]
                forecasts[name].append(base_NH + std_N[:, None] * np.stack(read_NH))
    return {arm: np.concatenate(of_steps) for arm, of_steps in forecasts.items()}


def _select(data: WordedData, split: str) -> WindowSet:
    """Return the windows of a split that have articles: without any, nothing could be read."""
    windows = data.windows.split(split)
    return windows.with_windows(window for window in windows if window.view.candidate_ids)


def _list_steps(data: WordedData, scored: WindowSet) -> Iterator[tuple[WindowSet, WindowSet]]:
    """Yield windows to fit on and the windows that are then forecast, in the order of time."""
    train_set, first = data.windows.split("train"), scored[0].view.origin_utc
    steps: defaultdict[int, list[Window]] = defaultdict(list)
    for window in scored:
        days = (window.view.origin_utc - first).days
        steps[days // data.refit_days if data.refit_days else 0].append(window)

    later = [window for split in data.scored for window in data.windows.split(split)]
    for _, step in sorted(steps.items()):
        origin = step[0].view.origin_utc
        ended = [w for w in later if data.refit_days and w.view.end_utc <= origin]
        known = train_set.with_windows([*train_set, *release_windows(ended)])
        yield known, scored.with_windows(step)


def write_text(results: Path, data: WordedData, plan: TextPlan, rows: pl.DataFrame) -> Path:
    """Write the rows, and the settings of all trainings next to them; return the rows' file."""
    for seed in plan.seeds if data.trains else ():
        for config in plan.configure_arms(data, seed).values():
            write_config(results, config)
    path = results / f"text-{data.windows.dataset}.csv"
    write_atomically(path, rows.write_csv)
    return path


def _compare_with_base(
    forecast_NH: FloatArray, base_NH: FloatArray, test: WindowSet
) -> dict[str, Any]:
    """Return the error of a forecast, and its difference from the error of the calendar ridge."""
    truth_NH = test.truth()
    error_N, base_N = (measure_window_errors(truth_NH, of_NH) for of_NH in (forecast_NH, base_NH))
    compared = compare_pairs(error_N, base_N, test.views())
    return {
        "mae": float(np.nanmean(error_N)),
        "difference": compared.mean_difference,
        "interval_low": compared.interval_low,
        "interval_high": compared.interval_high,
    }
