"""Scoring a trained population and the baselines on a scope: the part that evaluation, ablation and leakage share.

What belongs here: loading a run, predicting with progress, who a result row is about, paired comparisons, panels.
What does not: metrics and statistics (``compevo_core``), which scopes there are (``scopes``), assets.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from compevo_core.baselines import BASELINES, applicable, fit_baseline
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import FloatArray, WindowSet
from compevo_core.durations import format_duration
from compevo_core.evaluation.panels import ForecastPanel
from compevo_core.evaluation.result_rows import (
    Identity,
    evaluate,
    forecast,
    paired_test,
    window_errors,
)
from compevo_core.evaluation.scopes import Scope

if TYPE_CHECKING:
    from compevo_core.forecaster import CompEvoForecaster

COMPEVO = "compevo"
SEEDED = ("gbm",)
"""Baselines whose fit draws random numbers."""
BATCH = 10
"""Windows between two progress lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """What a population said of a scope: values (N, 48), chosen articles of every window, unread answers, seconds."""

    values: FloatArray
    chosen: list[tuple[str, ...]]
    unread: int
    answers: int
    seconds: float


def load(run: Path, news: Path) -> "CompEvoForecaster":
    """The sealed population of a run folder."""
    from compevo_core.forecaster import CompEvoForecaster

    return CompEvoForecaster.load(run, NewsPool.read(news))


def predict(forecaster: "CompEvoForecaster", scope: Scope, log: logging.Logger) -> Forecasts:
    """Forecasts every window of a scope, telling how long it will take."""
    views, started = scope.windows.views(), time.monotonic()
    values: list[FloatArray] = []
    chosen: list[tuple[str, ...]] = []
    unread = 0
    for start in range(0, len(views), BATCH):
        found = forecaster.predict_detailed(views[start : start + BATCH])
        values.append(found.aggregate)
        unread += found.unread
        chosen += [
            tuple(dict.fromkeys(i for agent in found.chosen for i in agent[n]))
            for n in range(len(found.aggregate))
        ]
        done, spent = min(start + BATCH, len(views)), time.monotonic() - started
        log.info(
            f"{scope.subset}: {done}/{len(views)} windows, {format_duration(spent / done * (len(views) - done))} left"
        )
    agents = forecaster.config.population.agents
    return Forecasts(
        values=np.concatenate(values),
        chosen=chosen,
        unread=unread,
        answers=agents * len(views),
        seconds=time.monotonic() - started,
    )


def identity(
    forecaster: "CompEvoForecaster",
    found: Forecasts,
    *,
    experiment: str,
    method: str,
    subset: str,
    commit: str,
) -> Identity:
    """Who a population's rows are about."""
    config = forecaster.config
    return Identity(
        experiment=experiment,
        method=method,
        subset=subset,
        seed=config.run.seed,
        config_hash=config.hash,
        artifact_hash=forecaster.artifact_hash,
        commit=commit,
        device=str(forecaster.manifest.get("device", "cpu")),
        seconds=found.seconds,
        backbone=config.backbone.spec,
        knowledge_cutoff=forecaster.knowledge_cutoff,
        parse_failure_rate=found.unread / found.answers,
    )


def score_baselines(
    train: WindowSet, scopes: Sequence[Scope], *, experiment: str, seeds: int, commit: str
) -> tuple[pl.DataFrame, list[dict[str, FloatArray]]]:
    """Rows of every baseline on the scopes all of whose windows it can answer, and by scope the forecasts of seed 0."""
    rows: list[pl.DataFrame] = []
    forecasts: list[dict[str, FloatArray]] = [{} for _ in scopes]
    for name in BASELINES:
        answerable = [i for i, scope in enumerate(scopes) if applicable(name, scope.windows)]
        for seed in range(seeds if name in SEEDED else 1) if answerable else ():
            fitted = fit_baseline(name, train, seed=seed)
            for i in answerable:
                scope = scopes[i]
                started = time.monotonic()
                values = forecast(fitted, scope.windows)
                about = Identity(
                    experiment=experiment,
                    method=name,
                    subset=scope.subset,
                    seed=seed,
                    commit=commit,
                    seconds=time.monotonic() - started,
                )
                rows.append(evaluate(values, scope.windows, about, train=train))
                forecasts[i].setdefault(name, values)
    return pl.concat(rows), forecasts


def compare(
    scope: Scope, own: FloatArray, rivals: Mapping[str, FloatArray]
) -> list[dict[str, Any]]:
    """Paired tests that the population's window errors are smaller than each rival's."""
    truth = scope.windows.truth()
    errors = window_errors(truth, own)
    rows = []
    for name, values in rivals.items():
        found = paired_test(errors, window_errors(truth, values))
        rows.append(
            {
                "dataset": scope.windows.dataset,
                "subset": scope.subset,
                "method_a": COMPEVO,
                "method_b": name,
                "n": found.n,
                "n_equal": found.n_equal,
                "mean_difference": found.mean_difference,
                "p_value": found.p_value,
            }
        )
    return rows


def panels(
    scope: Scope, found: Forecasts, rivals: Mapping[str, FloatArray], news: NewsPool, count: int
) -> list[ForecastPanel]:
    """Evenly spaced windows of a scope with every method's forecast and the news the agents read."""
    total = len(scope.windows)
    synthetic = bool(scope.windows.manifest.get("synthetic", False))
    shown = []
    for i in sorted({round(k * (total - 1) / max(1, count - 1)) for k in range(min(count, total))}):
        window = scope.windows[i]
        view = window.view
        dated = sorted(
            ((news.date(name), news.title(name)) for name in found.chosen[i]), reverse=True
        )
        shown.append(
            ForecastPanel(
                window_id=view.window_id,
                dataset=view.dataset,
                subset=scope.subset,
                entity=view.entity,
                unit=view.unit,
                origin_utc=view.origin_utc,
                step_minutes=view.step_minutes,
                history=view.x.tolist(),
                truth=window.y.tolist(),
                forecasts={COMPEVO: found.values[i].tolist()}
                | {m: v[i].tolist() for m, v in rivals.items()},
                news=[(f"{date:%Y-%m-%d %H:%M}", title) for date, title in dated],
                synthetic=synthetic,
            )
        )
    return shown
