"""Whether news helps: own news against none, another day's and irrelevant ones, and what was seen.

What belongs here: the readings, effects by series and by days declared on train, their rows; a
linear probe for data sets without a trained population, and its power. What does not: how windows
are changed (``paper.news_changes``), wording (``paper.report.evidence_tables``). A gain over no
news is not a proof of reading, as any text may steady a forecast: own news must also beat another
day's.

A null without power says nothing. So effects are planted: the errors of a split are moved on
against its articles by a random number of weeks, and the days that have a signal are shifted. Power
is the share of such draws in which the probe sees it.

Shapes: N windows, M articles, S signals, F parts of train, H horizon.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from compevo_core.agents.logics import TOPICS
from compevo_core.baselines import fit_baseline
from compevo_core.data.arrays import BoolArray, FloatArray, IntArray
from compevo_core.data.datasets import DATASETS
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.comparison import compare_pairs
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.result_rows import replace_own_rows
from compevo_core.evaluation.scopes import Scope, select_scopes
from compevo_core.evaluation.scoring import forecast_scopes
from compevo_core.forecast.prediction import Prediction
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.declared import read_columns
from compevo_core.paper.news_changes import (
    IRRELEVANT,
    NONE,
    OWN,
    SEED,
    SWAPPED,
    Relevance,
    change_news,
    find_lenders,
)
from compevo_core.paper.planted_news import measure_residuals
from compevo_core.training.prior import PriorKey, forecast_out_of_fold

if TYPE_CHECKING:
    from compevo_core.forecast.forecaster import CompEvoForecaster

READINGS = (OWN, NONE, SWAPPED, IRRELEVANT)

ALL, SERIES, DECLARED, MOVED = "all", "series", "declared", "moved"
"""Kinds of groups that effects are given for; declared days are declared on train alone. What an
agent read about is one more kind, as "agent 0"."""

MOST, REST = "most", "rest"
MOST_SHARE = 1 / 4
"""Share of windows, those whose forecast their news moves most: no truth says which they are."""

SIGNALS = (*TOPICS, "more news than usual")
ANY = "any signal"

FEWEST_WINDOWS = 10  # a group of fewer windows has no effect worth an interval, and is left out

MOST_SERIES = 12  # effects by series are given for no more series than a reader can compare

AUDIT_SCHEMA = read_columns("audit")

BASE = "calendar-ridge"  # the forecast whose errors the probe explains

FRESH, USUAL = timedelta(days=1), timedelta(days=28)
"""Older news has acted on the input already; the span whose mean number of articles is usual."""
RARE = 0.9  # share of the train windows with fresh news in which a signal does not count yet
FEWEST_FRESH = 16

EFFECTS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
"""Planted effects, in standard deviations of what the base misses."""
DRAWS = 40
POWER = 0.8

Forecast = Callable[[Scope], Prediction]
"""Forecasts of a scope's windows with the candidates that they have."""

Facts = Mapping[str, Any]  # what the rows say about the forecaster, by column

Errors = Mapping[str, FloatArray]  # errors (N,) by what was read


Group = tuple[str, str, BoolArray]
"""Kind and name of a group of windows, and which of all (N,) are its members."""


class NewsSignals:
    """What the fresh news of a window's own region says, where it is out of the usual.

    For each topic that a logic can name, the similarity of the nearest article; last, the number of
    articles against their daily mean of four weeks. Each counts by how far it exceeds what nine of
    ten train windows with fresh news stay below. Without places, all articles count as regional.
    """

    def __init__(self, news: NewsPool, train: Sequence[WindowView]) -> None:
        """Take the limits from train; DataError if hardly any of its windows has fresh news."""
        self._news = news
        self._nearness_MT = news.embeddings @ load_encoder(news.encoder_name).encode(TOPICS).T
        self._seconds_M = news.articles["available_at"].dt.epoch("s").to_numpy()
        self._own: dict[str, BoolArray] = {}

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
        for n, view in enumerate(views):
            is_own_M, end = self._find_own(view), view.known_before.timestamp()
            rows = self._news.find_rows(view.candidate_ids)
            rows = rows[is_own_M[rows] & (self._seconds_M[rows] >= end - FRESH.total_seconds())]
            if len(rows):
                since = end - USUAL.total_seconds()
                is_recent_M = (self._seconds_M >= since) & (self._seconds_M < end)
                usual = (is_own_M & is_recent_M).sum() / USUAL.days
                raw_NS[n, :-1] = self._nearness_MT[rows].max(0)
                raw_NS[n, -1] = np.log((1 + len(rows)) / (1 + usual))
        return raw_NS

    def _find_own(self, view: WindowView) -> BoolArray:
        """Return which articles name a window's own region (M,)."""
        if view.entity not in self._own:
            spec = DATASETS.get(view.dataset)
            place = spec.places.get(view.entity) if spec else None
            ids = self._news.articles["article_id"].to_list()
            self._own[view.entity] = (
                self._news.names_region(ids, place) if place else np.ones(len(ids), dtype=bool)
            )
        return self._own[view.entity]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProbeSample:
    """The windows of a scope as the probe sees them."""

    scope: Scope
    missed_NH: FloatArray  # what the base misses, in standard deviations of the series on train
    size_N: FloatArray  # such a standard deviation, in the series' unit
    fold_N: IntArray  # part of train that a window lies in, -1 after train
    own_NS: FloatArray
    swapped_NS: FloatArray  # signals of the windows that lend their news


class NewsProbe:
    """A ridge from the signals of the news to what a calendar ridge misses.

    A window of train is read by a fit on other parts of train, one horizon away.
    """

    def __init__(self, train: WindowSet, news: NewsPool) -> None:
        """Fit base and signals on train; DataError if hardly any of its windows has fresh news."""
        # Torch comes with it: reports read the names of this module without it.
        from compevo_core.agents.linear_reader import FOLDS

        views = train.views()
        self._signals = NewsSignals(news, views)
        self._base = fit_baseline(BASE, train)
        self._sizes = measure_residuals(train)
        # Out of fold: errors that the base made on its own train days are too small to learn from.
        missed_NH = train.truth() - forecast_out_of_fold(PriorKey(BASE), train, FOLDS)
        entities = np.array([view.entity for view in views])
        for entity in train.entities:
            # A constant would be drift, which news does not explain.
            missed_NH[entities == entity] -= np.nanmean(missed_NH[entities == entity], axis=0)

        origins = sorted({view.origin_utc for view in views})
        part_of = {origin: i * FOLDS // len(origins) for i, origin in enumerate(origins)}
        fold_N = np.array([part_of[view.origin_utc] for view in views])
        starts: dict[int, datetime] = {}
        for n, (view, fold) in enumerate(zip(views, fold_N, strict=True)):
            # What lies next to the part before teaches nothing and is not scored.
            start = starts.setdefault(fold, view.origin_utc)
            if view.origin_utc < start + view.horizon * view.step:
                missed_NH[n] = np.nan
        self.train = self._make_sample(Scope(subset="train", windows=train), missed_NH, fold_N)

    def open(self, scope: Scope) -> ProbeSample:
        """Return windows after train as the probe sees them."""
        missed_NH = scope.windows.truth() - self._base.predict(scope.windows.views())
        return self._make_sample(scope, missed_NH, np.full(len(missed_NH), -1))

    def _make_sample(self, scope: Scope, missed_NH: FloatArray, fold_N: IntArray) -> ProbeSample:
        lenders = [
            lender.view if lender else window.change_view(candidate_ids=()).view
            for window, lender in zip(scope.windows, find_lenders(scope.windows, SEED), strict=True)
        ]
        # A series that train lacks has no scale and is not scored.
        size_N = np.array([self._sizes.get(view.entity, np.nan) for view in scope.windows.views()])
        return ProbeSample(
            scope=scope,
            missed_NH=missed_NH / size_N[:, None],
            size_N=size_N,
            fold_N=fold_N,
            own_NS=self._signals.measure(scope.windows.views()),
            swapped_NS=self._signals.measure(lenders),
        )

    def read(self, samples: Sequence[ProbeSample]) -> list[Errors]:
        """Return the errors of samples; the first sample is from train."""
        weights_FSH = self.fit(samples[0])
        errors: list[Errors] = []
        for sample in samples:
            readings = {
                news: np.einsum("ns,nsh->nh", signals_NS, weights_FSH[sample.fold_N])
                for news, signals_NS in ((OWN, sample.own_NS), (SWAPPED, sample.swapped_NS))
            }
            readings[NONE] = np.zeros_like(sample.missed_NH)
            errors.append(
                {
                    news: measure_window_errors(sample.missed_NH, read_NH) * sample.size_N
                    for news, read_NH in readings.items()
                }
            )

        return errors

    @staticmethod
    def fit(train: ProbeSample) -> FloatArray:
        """Return weights (F + 1, S, H): without each part of train, and of all of it."""
        from compevo_core.agents.linear_reader import FOLDS
        from compevo_core.agents.ridge import fit_ridge

        # A window without a signal teaches nothing, and a masked truth neither.
        rows = np.flatnonzero(np.isfinite(train.missed_NH).any(1) & train.own_NS.any(1))
        x_NS, y_NH, fold_N = train.own_NS[rows], train.missed_NH[rows], train.fold_N[rows]
        blocks = [(fold_N == part, fold_N != part) for part in range(FOLDS)]
        return np.stack(
            [
                fit_ridge(x_NS, np.nan_to_num(y_NH), blocks, fold_N != part).weights_KH
                for part in (*range(FOLDS), -1)
            ]
        )

    def measure_power(
        self, samples: Sequence[ProbeSample], signal: str
    ) -> list[tuple[float | None, float]]:
        """Return for each sample the smallest effect of a signal that is seen, and false alarms.

        An effect counts where it is seen in :data:`POWER` of the draws; None if no effect is. The
        first sample is from train.
        """
        seen_EN = np.zeros((len(EFFECTS) + 1, len(samples)))
        for row, effect in enumerate((0.0, *EFFECTS)):
            for draw in range(DRAWS):
                planted = plant_effect(samples, signal, effect, np.random.default_rng([draw, 17]))
                for n, errors in enumerate(self.read(planted)):
                    # More of an effect than is needed need not be tried.
                    if not (seen_EN[1:row, n] >= POWER).any():
                        seen_EN[row, n] += is_seen(errors, samples[n], signal) / DRAWS
        return [
            (next((e for e, n in zip(EFFECTS, seen, strict=True) if n >= POWER), None), alarms)
            for alarms, *seen in seen_EN.T.tolist()
        ]


def plant_effect(
    samples: Sequence[ProbeSample], signal: str, effect: float, rng: np.random.Generator
) -> list[ProbeSample]:
    """Return samples in which the windows with a signal are shifted and nothing else is to find.

    Each signal acts to a side of its own; of several the strongest decides.
    """
    signs_S = rng.choice((-1.0, 1.0), len(SIGNALS))
    number = None if signal == ANY else SIGNALS.index(signal)
    shifts = []
    for sample in samples:
        side_N = signs_S[sample.own_NS.argmax(1) if number is None else number]
        shifts.append(np.where(find_members(sample.own_NS, signal), effect * side_N, 0.0))
    return [
        # The base would learn the mean of the effect on train.
        replace(sample, missed_NH=rotate(sample, rng) + (shift_N - shifts[0].mean())[:, None])
        for sample, shift_N in zip(samples, shifts, strict=True)
    ]


def rotate(sample: ProbeSample, rng: np.random.Generator) -> FloatArray:
    """Return what the base misses (N, H), moved on by a random number of weeks in every series."""
    entities = np.array([view.entity for view in sample.scope.windows.views()])
    rows_of = [np.flatnonzero(entities == entity) for entity in sample.scope.windows.entities]
    weeks = int(rng.integers(1, max(2, min(map(len, rows_of)) // 7)))
    rotated_NH = np.empty_like(sample.missed_NH)
    for rows in rows_of:
        rotated_NH[rows] = np.roll(sample.missed_NH[rows], 7 * weeks, axis=0)
    # What was not to be scored is not scored.
    return np.where(np.isnan(sample.missed_NH), np.nan, rotated_NH)


def find_members(own_NS: FloatArray, signal: str) -> BoolArray:
    """Return the windows (N,) that have a signal, or any."""
    columns = slice(None) if signal == ANY else [SIGNALS.index(signal)]
    return np.asarray((own_NS[:, columns] > 0).any(axis=1))


def is_seen(errors: Errors, sample: ProbeSample, signal: str) -> bool:
    """Return whether own news is better than none and than another day's, by the intervals."""
    members_N = find_members(sample.own_NS, signal) & np.isfinite(errors[OWN])
    inside = [sample.scope.windows[int(n)].view for n in np.flatnonzero(members_N)]
    for other in (NONE, SWAPPED) if inside else ():
        compared = compare_pairs(errors[OWN][members_N], errors[other][members_N], inside)
        if compared.interval_high is None or compared.interval_high >= 0:
            return False
    return bool(inside)


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
    scopes = _select_later_scopes(windows, every)
    return pl.concat([audit_scope(scope, forecast, relevance, signals, facts) for scope in scopes])


def audit_scope(
    scope: Scope, forecast: Forecast, relevance: Relevance, signals: NewsSignals, facts: Facts
) -> pl.DataFrame:
    """Return the rows of one scope; ``forecast`` is called once for each of :data:`READINGS`."""
    # The days between the scored ones keep their news: only what is scored is in question.
    changed = {news: change_news(scope.windows, news, relevance) for news in READINGS}
    read = {news: forecast(_replace_windows(scope, windows)) for news, windows in changed.items()}
    truth_NH = scope.windows.truth()
    errors = {news: measure_window_errors(truth_NH, read[news].aggregate) for news in READINGS}
    groups = [
        *list_groups(scope.windows, signals.measure(scope.windows.views())),
        *list_read_groups(read, signals.find_topics),
    ]
    return pl.DataFrame(_list_rows(scope, errors, changed, groups, facts), schema=AUDIT_SCHEMA)


def audit_probe(windows: WindowSet, news: NewsPool, *, commit: str, every: int = 1) -> pl.DataFrame:
    """Return the rows of the probe on train, each part of it held out, validation and test."""
    facts = {"source": "probe", "encoder": news.encoder_name, "commit": commit}
    probe = NewsProbe(windows.split("train"), news)
    later = [probe.open(scope) for scope in _select_later_scopes(windows, every)]
    samples = [probe.train, *later]
    power = {signal: probe.measure_power(samples, signal) for signal in (ANY, *SIGNALS)}

    rows = []
    for n, (sample, errors) in enumerate(zip(samples, probe.read(samples), strict=True)):
        changed = {news: change_news(sample.scope.windows, news) for news in errors}
        groups = list_groups(sample.scope.windows, sample.own_NS)
        for row in _list_rows(sample.scope, errors, changed, groups, facts):
            if row["group_kind"] == DECLARED and row["news"] == OWN:
                row["seen_from_sd"], row["false_alarms"] = power[row["group"]][n]
                size = sample.size_N[find_members(sample.own_NS, row["group"])].mean()
                row["seen_from"] = row["seen_from_sd"] and row["seen_from_sd"] * size
            rows.append(row)
    return pl.DataFrame(rows, schema=AUDIT_SCHEMA)


def _select_later_scopes(windows: WindowSet, every: int) -> list[Scope]:
    # Validation first: users may act on it, while the test split stays for the last word.
    splits = ("val", "test")
    return [scope for name in splits for scope in select_scopes(windows, split=name, every=every)]


def _replace_windows(scope: Scope, changed: WindowSet) -> Scope:
    """Return the scope with changed windows, also among the days before them."""
    if scope.days is None:
        return replace(scope, windows=changed)
    by_id = {window.view.window_id: window for window in changed}
    days = (by_id.get(window.view.window_id, window) for window in scope.days)
    return replace(scope, windows=changed, days=scope.days.with_windows(days))


def _list_rows(
    scope: Scope,
    errors: Errors,
    changed: Mapping[str, WindowSet],
    groups: Sequence[Group],
    facts: Facts,
) -> list[dict[str, Any]]:
    """Return the error of every reading of every group, and its difference from own news.

    The errors of its windows are known; a group of few windows is left out.
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
    groups = [(ALL, ALL, np.ones(len(entities), dtype=bool))]
    # One series is all of them again.
    if 1 < len(windows.entities) <= MOST_SERIES:
        groups += [(SERIES, entity, entities == entity) for entity in windows.entities]
    # A window that has three signals counts for each of them.
    groups += [(DECLARED, signal, find_members(own_NS, signal)) for signal in (ANY, *SIGNALS)]
    return groups


def list_read_groups(
    read: Mapping[str, Prediction], find_topics: Callable[[Sequence[str]], set[str]]
) -> Iterator[Group]:
    """Yield the windows whose forecast their news moves most, the rest, and what each agent read.

    Of an agent, those in which it read an article on a topic, for each topic.
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
