"""Whether news helps: own news against none, another day's or irrelevant news, and what was read.

What belongs here: the readings of a trained population, effects by series and by days declared on
train, their rows, and the rows of the numeric audit for data sets without a population. What does
not: that audit and its power (``evaluation.news_audit``), how windows are changed
(``paper.changes``), wording (``paper.report.evidence_tables``). A gain over no news is not a
proof of reading, as any text may steady a forecast: own news must also beat another day's.

Shapes: N windows, M articles, S signals.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from compevo_core.agents.logics import TOPICS
from compevo_core.data.arrays import BoolArray, FloatArray
from compevo_core.data.datasets import DATASETS
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.comparison import compare_pairs
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.news_audit import audit_news
from compevo_core.evaluation.result_rows import replace_own_rows
from compevo_core.evaluation.scopes import Scope, select_scopes
from compevo_core.evaluation.scoring import forecast_scopes
from compevo_core.forecast.prediction import Prediction
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.changes import IRRELEVANT, NONE, OWN, SWAPPED, Relevance, change_news
from compevo_core.paper.declared import read_columns
from compevo_core.training.training_data import join_for_refit

if TYPE_CHECKING:
    from compevo_core.forecast.forecaster import CompEvoForecaster

READINGS = (OWN, NONE, SWAPPED, IRRELEVANT)
# Kinds of groups that effects are given for; days are declared on train only. What an agent read
# about is one more kind, such as "agent 0".
ALL, SERIES, DECLARED, MOVED = "all", "series", "declared", "moved"
MOST, REST = "most", "rest"
# Share of the windows: those whose forecasts move most with their news, chosen without truth.
MOST_SHARE = 1 / 4
SIGNALS = (*TOPICS, "more news than usual")
ANY = "any signal"
FEWEST_WINDOWS = 10  # smaller groups are left out: an interval would mean nothing
MOST_SERIES = 12  # effects by series are given for at most this many, as a reader compares them
AUDIT_SCHEMA = read_columns("audit")
# Older news has already acted on the input; the span over which the usual number is the mean.
FRESH, USUAL = timedelta(days=1), timedelta(days=28)
RARE = 0.9  # share of the train windows with fresh news in which a signal does not count yet
FEWEST_FRESH = 16
# Forecasts of a scope's windows with the candidates that they have.
Forecast = Callable[[Scope], Prediction]
Facts = Mapping[str, Any]  # what the rows say about the forecaster, by column
Errors = Mapping[str, FloatArray]  # errors (N,) by what was read
# Kind and name of a group of windows, and which of all windows (N,) it contains.
Group = tuple[str, str, BoolArray]


class NewsSignals:
    """Unusual fresh news about a window's own region.

    Signals are the similarity of the nearest article to each topic that a logic can name and, last,
    the number of articles over the daily mean of four weeks. Each counts by its excess over the
    90th percentile in train windows with fresh news. Without places, all articles count as
    regional.
    """

    def __init__(self, news: NewsPool, train: Sequence[WindowView]) -> None:
        """Take the limits from train; DataError if hardly any of its windows has fresh news."""
        self._news = news
        self._nearness_MT = news.embeddings @ load_encoder(news.encoder_name).encode(TOPICS).T
        self._seconds_M = news.articles["available_at"].dt.epoch("s").to_numpy()

        raw_NS = self._read(train)
        is_fresh_N = np.isfinite(raw_NS).all(1)
        if is_fresh_N.sum() < FEWEST_FRESH:
            raise DataError(
                f"{is_fresh_N.sum()} train windows have news of their region and last day, too few "
                f"for an audit, which needs {FEWEST_FRESH}: read more news, or forecast without it"
            )
        self._limit_S = np.quantile(raw_NS[is_fresh_N], RARE, axis=0)
        scale_S = np.sqrt((np.maximum(raw_NS - self._limit_S, 0.0) ** 2).mean(0))
        self._scale_S = np.where(scale_S > 0, scale_S, 1.0)

    def measure(self, views: Sequence[WindowView]) -> FloatArray:
        """Return by how much each window exceeds the usual (N, S), scaled; elsewhere zero."""
        return np.maximum(self._read(views) - self._limit_S, 0.0) / self._scale_S

    def find_topics(self, ids: Sequence[str]) -> set[str]:
        """Return the topics that articles are nearest to."""
        nearest = self._nearness_MT[self._news.find_rows(ids)].argmax(1)
        return {TOPICS[topic] for topic in nearest}

    def _read(self, views: Sequence[WindowView]) -> FloatArray:
        """Return similarities and number (N, S), all minus infinity without a fresh article."""
        raw_NS = np.full((len(views), len(SIGNALS)), -np.inf)
        by_entity = {view.entity: view for view in views}
        own = {entity: find_own(view, self._news) for entity, view in by_entity.items()}
        for n, view in enumerate(views):
            is_own_M, end = own[view.entity], view.known_before.timestamp()
            rows = self._news.find_rows(view.candidate_ids)
            rows = rows[is_own_M[rows] & (self._seconds_M[rows] >= end - FRESH.total_seconds())]
            if len(rows):
                since = end - USUAL.total_seconds()
                is_recent_M = (self._seconds_M >= since) & (self._seconds_M < end)
                usual = (is_own_M & is_recent_M).sum() / USUAL.days
                raw_NS[n, :-1] = self._nearness_MT[rows].max(0)
                raw_NS[n, -1] = np.log((1 + len(rows)) / (1 + usual))
        return raw_NS


def find_own(view: WindowView, news: NewsPool) -> BoolArray:
    """Return which articles name the region of a view's series (M,)."""
    spec = DATASETS.get(view.dataset)
    place = spec.places.get(view.entity) if spec else None
    ids = news.articles["article_id"].to_list()
    return news.names_region(ids, place) if place else np.ones(len(ids), dtype=bool)


def select_own(windows: WindowSet, news: NewsPool) -> WindowSet:
    """Return the windows of one series with only those candidates that name its own region."""
    own = set(news.articles.filter(find_own(windows[0].view, news))["article_id"])
    return windows.with_windows(
        window.change_view(candidate_ids=tuple(i for i in window.view.candidate_ids if i in own))
        for window in windows
    )


def audit_run(
    windows: WindowSet,
    news: NewsPool,
    forecaster: "CompEvoForecaster",
    *,
    commit: str,
    log: logging.Logger,
    every: int = 1,
) -> pl.DataFrame:
    """Return the rows of a population on validation and test, of every n-th origin."""
    facts = {
        "source": "run",
        "encoder": news.encoder_name,
        "config_hash": forecaster.config.hash,
        "artifact_hash": forecaster.artifact_hash,
        "commit": commit,
    }

    def forecast(scope: Scope) -> Prediction:
        return forecast_scopes(forecaster, [scope], log)[0].prediction

    relevance = Relevance(news, load_encoder(news.encoder_name).encode(TOPICS))
    signals = NewsSignals(news, windows.split("train").views())
    # Validation first: users may act on it, while the test split is for the final verdict.
    scopes = [
        scope
        for split in ("val", "test")
        for scope in select_scopes(windows, split=split, every=every)
    ]
    return pl.concat([audit_scope(scope, forecast, relevance, signals, facts) for scope in scopes])


def audit_scope(
    scope: Scope, forecast: Forecast, relevance: Relevance, signals: NewsSignals, facts: Facts
) -> pl.DataFrame:
    """Return the rows of one scope; ``forecast`` is called once for each of :data:`READINGS`."""
    # The days between the scored ones keep their news: only scored windows are examined.
    changed = {news: change_news(scope.windows, news, relevance) for news in READINGS}
    read = {}
    for news, windows in changed.items():
        days = scope.days
        if days is not None:
            by_id = {window.view.window_id: window for window in windows}
            days = days.with_windows(by_id.get(day.view.window_id, day) for day in days)
        read[news] = forecast(replace(scope, windows=windows, days=days))

    truth_NH = scope.windows.truth()
    errors = {news: measure_window_errors(truth_NH, read[news].aggregate) for news in READINGS}
    groups = [
        *list_groups(scope.windows, signals.measure(scope.windows.views())),
        *list_read_groups(read, signals.find_topics),
    ]
    return pl.DataFrame(_list_rows(scope, errors, changed, groups, facts), schema=AUDIT_SCHEMA)


def audit_probe(windows: WindowSet, news: NewsPool, *, commit: str) -> pl.DataFrame:
    """Return the rows of the numeric audit of all days before the test.

    It reads all series and news together, and each series with the news of its own region. Series
    that are too short are left out; DataError if all are.
    """
    known = join_for_refit(windows.split("train"), windows.split("val"))
    parts = [(ALL, ALL, known)]
    if 1 < len(known.entities) <= MOST_SERIES:
        parts += [(SERIES, name, select_own(known.entity(name), news)) for name in known.entities]

    rows: list[dict[str, Any]] = []
    for kind, group, part in parts:
        try:
            audit = audit_news(part, news)
        except DataError:
            if kind == ALL:
                raise
            continue
        shared = {
            "dataset": windows.dataset,
            "source": "probe",
            "split": "train",
            "subset": "train",
            "group_kind": kind,
            "group": group,
            "n_windows": len(part),
            "n_with_news": sum(bool(view.candidate_ids) for view in part.views()),
            "unit": part[0].view.unit,
            "encoder": news.encoder_name,
            "data_hash": part.hash,
            "commit": commit,
        }
        found = {"p_two_sided": audit.p_value, "seen_from_sd": audit.power}
        rows.append(shared | {"news": OWN, "mae": audit.own, "verdict": audit.verdict} | found)
        for name, error in ((NONE, audit.none), (SWAPPED, audit.swapped)):
            rows.append(shared | {"news": name, "mae": error, "difference": audit.own - error})
    return pl.DataFrame(rows, schema=AUDIT_SCHEMA)


def _list_rows(
    scope: Scope,
    errors: Errors,
    changed: Mapping[str, WindowSet],
    groups: Sequence[Group],
    facts: Facts,
) -> list[dict[str, Any]]:
    """Return errors of every reading by group, without small groups, and differences from own news.

    Only windows with known errors count.
    """
    views = scope.windows.views()
    shared = {
        "dataset": scope.windows.dataset,
        "split": views[0].split,
        "subset": scope.subset,
        "unit": views[0].unit,
        "data_hash": scope.windows.hash,
        **facts,
    }

    rows = []
    for kind, group, is_member_N in groups:
        members = np.flatnonzero(is_member_N & np.isfinite(errors[OWN])).tolist()
        if len(members) < FEWEST_WINDOWS and kind != ALL:
            continue
        inside = [views[n] for n in members]
        for news, errors_N in errors.items():
            row = shared | {
                "news": news,
                "group_kind": kind,
                "group": group,
                "n_windows": len(members),
                "n_with_news": sum(bool(changed[news][n].view.candidate_ids) for n in members),
                "mae": float(errors_N[members].mean()),
            }
            if news != OWN:
                compared = compare_pairs(errors[OWN][members], errors_N[members], inside)
                row |= {
                    "difference": compared.mean_difference,
                    "interval_low": compared.interval_low,
                    "interval_high": compared.interval_high,
                    "p_two_sided": compared.p_two_sided,
                }
            rows.append(row)

    return rows


def list_groups(windows: WindowSet, own_NS: FloatArray) -> list[Group]:
    """Return all windows, the windows of each series, and the declared days."""
    entities = np.array([view.entity for view in windows.views()])
    groups: list[Group] = [(ALL, ALL, np.ones(len(entities), dtype=bool))]
    # A single series would only repeat all windows.
    if 1 < len(windows.entities) <= MOST_SERIES:
        groups += [(SERIES, entity, entities == entity) for entity in windows.entities]
    # A window that has three signals counts for each of them.
    is_signal_NS = np.asarray(own_NS > 0)
    groups.append((DECLARED, ANY, np.asarray(is_signal_NS.any(axis=1))))
    groups += [(DECLARED, name, is_signal_NS[:, i]) for i, name in enumerate(SIGNALS)]
    return groups


def list_read_groups(
    read: Mapping[str, Prediction], find_topics: Callable[[Sequence[str]], set[str]]
) -> Iterator[Group]:
    """Yield the windows whose forecasts move most with their news, the rest, and groups by agent.

    For each agent and topic, they are the windows in which it read an article on the topic.
    """
    without_NH = read[NONE].aggregate
    moved_N = np.abs(read[OWN].aggregate - without_NH).mean(1) / np.abs(without_NH).mean(1)
    is_most_N = moved_N > np.quantile(moved_N, 1 - MOST_SHARE)
    yield MOVED, MOST, is_most_N
    yield MOVED, REST, ~is_most_N

    for agent, chosen in enumerate(read[OWN].chosen_news):
        topics = [find_topics(ids) for ids in chosen]
        for topic in TOPICS:
            yield f"agent {agent}", topic, np.array([topic in of_window for of_window in topics])


def write_audit(results: Path, rows: pl.DataFrame) -> Path:
    """Write rows to ``news-audit-<dataset>.csv``; they replace the rows of the same source."""
    path = results / f"news-audit-{rows['dataset'][0]}.csv"
    # A probe and a run of one data set share the file.
    replace_own_rows(path, rows, ["source"])
    return path
