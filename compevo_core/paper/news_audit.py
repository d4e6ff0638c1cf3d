"""Whether news helps: a forecaster with own news, none, another day's, irrelevant ones.

What belongs here: the four readings, effects by series and topic with intervals, their rows, and a
linear probe for data sets without a trained population. What does not: how windows are changed
(``paper.news_changes``), wording (``report.audit_tables``). A gain over no news is no proof of
reading, as any text may steady a forecast: own news must also beat another day's.

Shapes: N windows of a scope, H horizon (48), D embedding size, C components.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.agents.logics import TOPICS
from compevo_core.baselines import fit_baseline
from compevo_core.baselines.base import Forecaster
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.comparison import compare_pairs
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.scopes import Scope, select_scopes
from compevo_core.evaluation.score_files import replace_own_rows
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.news_changes import (
    IRRELEVANT,
    NONE,
    OWN,
    SWAPPED,
    Relevance,
    change_news,
)
from compevo_core.training.prior import PriorKey, forecast_out_of_fold

READINGS = (OWN, NONE, SWAPPED, IRRELEVANT)

ALL, SERIES, TOPIC, WITH_NEWS = "all", "series", "topic", "with news"
"""Kinds of groups that effects are given for."""

FEWEST_WINDOWS = 10
"""A group of fewer windows has no effect worth an interval, and is left out."""

MOST_SERIES = 12
"""Effects by series are given for no more series than a reader can compare."""

AUDIT_SCHEMA: dict[str, pl.DataType] = {
    "dataset": pl.String(),
    "source": pl.String(),  # "run", or "probe" where no population was trained
    "split": pl.String(),
    "subset": pl.String(),
    "news": pl.String(),  # what was read
    "group_kind": pl.String(),
    "group": pl.String(),  # a series, a topic, or all
    "n_windows": pl.Int64(),
    "n_with_news": pl.Int64(),  # windows that have at least one article in this reading
    "mae": pl.Float64(),
    "difference": pl.Float64(),  # MAE with own news less this one: below 0, own news is better
    "interval_low": pl.Float64(),  # 95 %, whole days drawn
    "interval_high": pl.Float64(),
    "p_two_sided": pl.Float64(),
    "unit": pl.String(),
    "encoder": pl.String(),
    "penalty": pl.Float64(),  # of the probe, chosen on validation
    "config_hash": pl.String(),
    "artifact_hash": pl.String(),
    "data_hash": pl.String(),
    "commit": pl.String(),
}

Forecast = Callable[[Scope], FloatArray]
"""Forecasts (N, H) of a scope's windows with the candidates that they have."""

BoolArray = npt.NDArray[np.bool_]

BASE = "calendar-ridge"
"""The forecast whose errors the probe explains."""

COMPONENTS = 16
FOLDS = 5
PENALTIES = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
"""Penalties of the probe's squared weights; validation chooses one."""


def audit_splits(
    windows: WindowSet,
    news: NewsPool,
    forecast: Forecast,
    facts: Mapping[str, Any],
    *,
    every: int = 1,
) -> pl.DataFrame:
    """Return the rows of the validation and of the test split, of every n-th origin."""
    relevance = Relevance(news, load_encoder(news.encoder_name).encode(TOPICS))
    # Validation first: users may act on it, while the test split stays for the last word.
    return pl.concat(
        [
            audit_scope(scope, forecast, relevance, TOPICS, facts)
            for split in ("val", "test")
            for scope in select_scopes(windows, split=split, every=every)
        ]
    )


def audit_scope(
    scope: Scope,
    forecast: Forecast,
    relevance: Relevance,
    topics: Sequence[str],
    facts: Mapping[str, Any],
) -> pl.DataFrame:
    """Return the rows of one scope; ``forecast`` is called once for each of :data:`READINGS`.

    ``relevance`` is to ``topics``, and ``facts`` are what the rows say about the forecaster, by
    column.
    """
    # One forecast a reading: groups below are cut from the same errors.
    truth_NH = scope.windows.truth()
    errors: dict[str, FloatArray] = {}
    has_news: dict[str, BoolArray] = {}
    for news in READINGS:
        # The days between the scored ones keep their news: only what is scored is in question.
        changed = change_news(scope.windows, news, relevance)
        has_news[news] = np.array([bool(view.candidate_ids) for view in changed.views()])
        errors[news] = measure_window_errors(truth_NH, forecast(_replace_windows(scope, changed)))

    views = scope.windows.views()
    shared = {
        "dataset": scope.windows.dataset,
        "split": views[0].split,
        "subset": scope.subset,
        "unit": views[0].unit,
        "data_hash": scope.windows.hash,
        **facts,
    }
    rows = [
        shared | {"group_kind": kind, "group": group, "news": news} | measured
        for kind, group, is_member_N in list_groups(scope.windows, relevance, topics)
        for news, measured in _measure_group(errors, is_member_N, has_news, views)
    ]
    return pl.DataFrame(rows, schema=AUDIT_SCHEMA)


def _replace_windows(scope: Scope, changed: WindowSet) -> Scope:
    """Return the scope with changed windows, also among the days before them."""
    if scope.days is None:
        return replace(scope, windows=changed)
    by_id = {window.view.window_id: window for window in changed}
    days = (by_id.get(window.view.window_id, window) for window in scope.days)
    return replace(scope, windows=changed, days=scope.days.with_windows(days))


def list_groups(
    windows: WindowSet, relevance: Relevance, topics: Sequence[str]
) -> Iterator[tuple[str, str, BoolArray]]:
    """Yield kind, name and members (N,) of every group that is large enough."""
    views = windows.views()
    has_news_N = np.array([bool(view.candidate_ids) for view in views])
    topics_N = [{relevance.topic_of[article] for article in view.candidate_ids} for view in views]

    groups = [(ALL, ALL, np.ones(len(views), dtype=bool)), (WITH_NEWS, WITH_NEWS, has_news_N)]
    # One series is all of them again.
    if 1 < len(windows.entities) <= MOST_SERIES:
        groups += [
            (SERIES, entity, np.array([view.entity == entity for view in views]))
            for entity in windows.entities
        ]
    # A window with articles on three topics counts for each of them.
    groups += [
        (TOPIC, topic, np.array([number in numbers for numbers in topics_N]))
        for number, topic in enumerate(topics)
    ]
    for kind, group, is_member_N in groups:
        if is_member_N.sum() >= FEWEST_WINDOWS or kind == ALL:
            yield kind, group, is_member_N


def _measure_group(
    errors: Mapping[str, FloatArray],
    is_member_N: BoolArray,
    has_news: Mapping[str, BoolArray],
    views: Sequence[WindowView],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the error of every reading of a group, and its difference from own news."""
    with_own_news = errors[OWN][is_member_N]
    members = [view for view, is_member in zip(views, is_member_N, strict=True) if is_member]

    for news, all_errors in errors.items():
        group_errors = all_errors[is_member_N]
        measured: dict[str, Any] = {
            "n_windows": int(is_member_N.sum()),
            "n_with_news": int(has_news[news][is_member_N].sum()),
            "mae": float(np.nanmean(group_errors)),
        }
        if news != OWN:
            compared = compare_pairs(with_own_news, group_errors, members)
            measured |= {
                "difference": compared.mean_difference,
                "interval_low": compared.interval_low,
                "interval_high": compared.interval_high,
                "p_two_sided": compared.p_two_sided,
            }
        yield news, measured


def write_audit(results: Path, rows: pl.DataFrame) -> Path:
    """Write rows to ``news-audit-<dataset>.csv``; they replace the rows of the same source."""
    path = results / f"news-audit-{rows['dataset'][0]}.csv"
    # A probe and a run of one data set share the file.
    replace_own_rows(path, rows, ["source"], read=partial(pl.read_csv, schema=AUDIT_SCHEMA))
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsProbe:
    """A ridge from headline embeddings to the error of a numeric forecast."""

    base: Forecaster
    scaler: Scaler
    news: NewsPool
    mean_D: FloatArray  # mean of the train windows' headline means
    axes_CD: FloatArray  # their principal axes
    weights: dict[str, FloatArray]  # by series, from components to scaled errors (C, H)
    penalty: float  # penalty of the squared weights

    @classmethod
    def fit(cls, train: WindowSet, val: WindowSet, news: NewsPool) -> Self:
        """Fit on train; validation chooses the penalty. DataError if hardly any window has news."""
        scaler = Scaler.fit(train)
        base = fit_baseline(BASE, train)
        # Out of fold: errors that the base made on its own train days are too small to learn from.
        base_NH = forecast_out_of_fold(PriorKey(BASE), train, FOLDS)
        with_news = [window for window in train if window.view.candidate_ids]
        if len(with_news) <= COMPONENTS:
            raise DataError(
                f"{len(with_news)} train windows have news, too few for {COMPONENTS} components: "
                "read more news, or forecast without it"
            )

        means_ND = np.stack([average_news(window.view, news) for window in with_news])
        mean_D = means_ND.mean(axis=0)
        axes_CD = np.linalg.svd(means_ND - mean_D, full_matrices=False)[2][:COMPONENTS]
        probe = cls(
            base=base,
            scaler=scaler,
            news=news,
            mean_D=mean_D,
            axes_CD=axes_CD,
            weights={},
            penalty=0.0,
        )

        # The only choice, made on validation; the winner alone forecasts the test split.
        tried = [
            replace(probe, weights=probe._fit_weights(train, base_NH, penalty), penalty=penalty)
            for penalty in PENALTIES
        ]
        truth_NH = val.truth()
        return min(
            tried, key=lambda probe: np.nanmean(np.abs(probe.predict(val.views()) - truth_NH))
        )

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H): the base, and what the headlines say about its error."""
        forecast_NH = self.base.predict(views)
        features_NC = self._reduce_news(views)
        for row, view in enumerate(views):
            # A series that train lacks keeps its base.
            if view.entity in self.weights:
                scaled_H = features_NC[row] @ self.weights[view.entity]
                forecast_NH[row] += scaled_H * self.scaler.std[view.entity]
        return forecast_NH

    def _reduce_news(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the components (N, C); zeros without news, which leave the base as it is."""
        rows = [
            self.axes_CD @ (average_news(view, self.news) - self.mean_D)
            if view.candidate_ids
            else np.zeros(len(self.axes_CD))
            for view in views
        ]
        return np.stack(rows)

    def _fit_weights(
        self, train: WindowSet, base_NH: FloatArray, penalty: float
    ) -> dict[str, FloatArray]:
        features_NC = self._reduce_news(train.views())
        weights = {}
        for entity in train.entities:
            rows = [i for i, view in enumerate(train.views()) if view.entity == entity]
            residual_NH = (train.truth()[rows] - base_NH[rows]) / self.scaler.std[entity]
            # A masked truth says nothing about the error.
            residual_NH = np.nan_to_num(residual_NH - np.nanmean(residual_NH, axis=0))
            # No intercept: a constant would be drift, which news does not explain.
            x_NC = features_NC[rows]
            gram_CC = x_NC.T @ x_NC + penalty / len(train.entities) * np.eye(x_NC.shape[1])
            weights[entity] = np.linalg.solve(gram_CC, x_NC.T @ residual_NH)
        return weights


def average_news(view: WindowView, news: NewsPool) -> FloatArray:
    """Return the mean embedding (D,) of a view's candidates."""
    rows = news.find_rows(view.candidate_ids)
    return np.asarray(news.embeddings[rows].mean(axis=0), dtype=np.float64)
