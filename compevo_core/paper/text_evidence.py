"""Real text with signal: what is read of articles that are known to speak of their target day.

What belongs here: the arms, training them, the ridge that reads without any agent, rows against the
calendar ridge. What does not: windows and articles (``paper.worded_data``), how an arm forecasts
(``paper.control``), tables (``report.evidence_tables``).

Shapes: N windows, P priors, H horizon.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.linear_reader import FittedReader
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.baselines import fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import MOST_ARTICLES
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import release_windows
from compevo_core.data.view import Window
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.comparison import compare_pairs
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.score_files import write_config
from compevo_core.lm.encoder import Encoder
from compevo_core.paper.control import FIXED, RIDGE_ALONE, forecast_arm
from compevo_core.paper.news_changes import SWAPPED, change_news
from compevo_core.paper.planted_news import EVOLVED, PRIOR
from compevo_core.paper.worded_data import TEXT_SCHEMA, WordedData
from compevo_core.runtime.files import write_atomically
from compevo_core.training.prior import PriorKey, forecast_out_of_fold
from compevo_core.training.trainer import train

BASE = "calendar-ridge"
FOLDS = 5

RIDGE = "ridge"
"""A ridge on all articles: by part of the day, with the numbers of their words.

Beside it are a ridge on the numbers alone and one on the words alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """Which arms to train on worded data."""

    config: RunConfig  # settings of the search; what the data set itself sets comes on top
    # Seeds of every trained arm; none trains nothing, and leaves the ridges
    seeds: Sequence[int] = (0, 1, 2)
    commit: str = ""  # version of the code

    def configure_arms(self, data: WordedData, seed: int) -> dict[str, RunConfig]:
        """Return the settings of each trained arm."""
        agents = self.config.population.agents
        arms: dict[str, Mapping[str, Any]] = {
            "seed-logics": FIXED,
            "all-articles": {**FIXED, "news.top_k": MOST_ARTICLES},
            **{
                f"hand-{name}": {**FIXED, "evolution.start": (logic,) * agents}
                for name, logic in data.logics.items()
            },
            EVOLVED: {},
        }
        shared = {**RIDGE_ALONE, **data.settings, "forecast.prior": BASE, "run.seed": seed}
        return {
            arm: self.config.with_overrides({**shared, **changes}) for arm, changes in arms.items()
        }


def run_text(
    data: WordedData, encoder: Encoder, plan: TextPlan, out: Path, log: logging.Logger
) -> pl.DataFrame:
    """Score naive forecasts and ridges, train every arm under every seed; return the rows.

    Windows without any article are left out. Runs are left in ``out``; finished ones are not
    trained again.
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
            facts | {"arm": arm} | _measure(forecast_NH, base_NH, scored)
            for arm, forecast_NH in forecasts.items()
        ]

    # What is trained is scored where the last ridges were: on test.
    for seed in plan.seeds if data.trains else ():
        for arm, config in plan.configure_arms(data, seed).items():
            log.info(f"{data.windows.dataset}, seed {seed}: {arm}")
            run = out / f"seed-{seed}" / arm
            train(config, data.windows.split("train"), data.windows.split("val"), data.news, run)
            by_arm, _, logics = forecast_arm(arm, run, data.news, scored)
            shared = facts | {
                "seed": seed,
                "config_hash": config.hash,
                "logics": " | ".join(logics),
            }
            rows += [
                shared | {"arm": name} | _measure(forecast_NH, base_NH, scored)
                for name, forecast_NH in by_arm.items()
                if name != PRIOR  # the same for every seed
            ]
    return pl.DataFrame(rows, schema=TEXT_SCHEMA)


def read_by_ridges(
    data: WordedData, encoder: Encoder, split: str = "test"
) -> dict[str, FloatArray]:
    """Return forecasts (N, H) of a split by the calendar ridge, and by ridges on all articles.

    No agent is in them. The whole ridge also reads the news of another day, where there is one.
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
            fit = FittedReader(examples, retriever, ["all"], np.ones((1, 1))).find(0, RIDGE)

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
    """Yield windows to fit on, and those that are then forecast, in the order of time."""
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
    """Write the rows, and the settings of all trainings beside them; return the rows' file."""
    for seed in plan.seeds if data.trains else ():
        for config in plan.configure_arms(data, seed).values():
            write_config(results, config)
    path = results / f"text-{data.windows.dataset}.csv"
    write_atomically(path, rows.write_csv)
    return path


def _measure(forecast_NH: FloatArray, base_NH: FloatArray, test: WindowSet) -> dict[str, Any]:
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
