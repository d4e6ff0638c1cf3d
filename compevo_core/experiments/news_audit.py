"""Whether news helps: a forecaster with own news, none, that of another day, irrelevant ones.

What belongs here: the four readings, effects by series and by topic with intervals, and their rows.
What does not: the probe where no population is trained (``experiments.news_probe``), how windows
are changed (``experiments.perturbations``), wording (``report.audit_tables``).

A gain over no news is no proof of reading: any text may steady a forecast. So own news must also
beat the news of another day. Shapes: N windows of a scope, H horizon (48).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import write_atomically
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.comparison import compare_pairs
from compevo_core.evaluation.metrics import measure_window_errors
from compevo_core.evaluation.scopes import Scope
from compevo_core.experiments.perturbations import (
    IRRELEVANT,
    NONE,
    OWN,
    SWAPPED,
    Relevance,
    change_news,
)

READINGS = (OWN, NONE, SWAPPED, IRRELEVANT)

ALL, SERIES, TOPIC, WITH_NEWS = "all", "series", "topic", "with news"
"""Kinds of groups that effects are given for."""

FEWEST_WINDOWS = 10
"""A group of fewer windows has no effect worth an interval, and is left out."""

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


def audit_scope(
    scope: Scope,
    forecast: Forecast,
    relevance: Relevance,
    topics: Sequence[str],
    facts: Mapping[str, Any],
) -> pl.DataFrame:
    """Return the rows of one scope.

    Args:
        scope: windows of one split, with their own candidates.
        forecast: forecasts windows; called once for each of :data:`READINGS`.
        relevance: of the articles.
        topics: names of the topics that ``relevance`` was built with.
        facts: what the rows say about the forecaster, by column.
    """
    # One forecast a reading: groups below are cut from the same errors.
    truth_NH = scope.windows.truth()
    errors: dict[str, FloatArray] = {}
    has_news: dict[str, npt.NDArray[np.bool_]] = {}
    for news in READINGS:
        # The days between the scored ones keep their news: only what is scored is in question.
        changed = change_news(scope.windows, news, relevance)
        has_news[news] = np.array([bool(view.candidate_ids) for view in changed.views()])
        errors[news] = measure_window_errors(truth_NH, forecast(_replace(scope, changed)))

    # What a row needs to be traced to its run and its windows.
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
        for kind, group, chosen_N in list_groups(scope.windows, relevance, topics)
        for news, measured in _measure_group(errors, chosen_N, has_news, views)
    ]
    return pl.DataFrame(rows, schema=AUDIT_SCHEMA)


def _replace(scope: Scope, changed: WindowSet) -> Scope:
    """Return the scope with changed windows, also among the days that are lived through."""
    if scope.days is None:
        return Scope(subset=scope.subset, windows=changed)
    by_id = {window.view.window_id: window for window in changed}
    days = [by_id.get(window.view.window_id, window) for window in scope.days]
    return Scope(
        subset=scope.subset,
        windows=changed,
        days=WindowSet(days, dataset=changed.dataset, manifest=scope.days.manifest),
    )


def list_groups(
    windows: WindowSet, relevance: Relevance, topics: Sequence[str]
) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
    """Yield kind, name and members (N,) of every group that is large enough."""
    views = windows.views()
    has_news_N = np.array([bool(view.candidate_ids) for view in views])
    topics_N = [{relevance.topic_of[one] for one in view.candidate_ids} for view in views]

    groups = [(ALL, ALL, np.ones(len(views), dtype=bool)), (WITH_NEWS, WITH_NEWS, has_news_N)]
    # One series is all of them again, and hundreds are no table.
    if 1 < len(windows.entities) <= 12:
        groups += [
            (SERIES, entity, np.array([view.entity == entity for view in views]))
            for entity in windows.entities
        ]
    # A window with articles on three topics counts for each of them.
    groups += [
        (TOPIC, topic, np.array([number in found for found in topics_N]))
        for number, topic in enumerate(topics)
    ]
    for kind, group, chosen_N in groups:
        if chosen_N.sum() >= FEWEST_WINDOWS or kind == ALL:
            yield kind, group, chosen_N


def _measure_group(
    errors: Mapping[str, FloatArray],
    chosen_N: npt.NDArray[np.bool_],
    has_news: Mapping[str, npt.NDArray[np.bool_]],
    views: Sequence[WindowView],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the error of every reading of a group, and how far own news lies from it."""
    own = errors[OWN][chosen_N]
    own_views = [view for view, is_chosen in zip(views, chosen_N, strict=True) if is_chosen]

    for news, all_errors in errors.items():
        other = all_errors[chosen_N]
        measured: dict[str, Any] = {
            "n_windows": int(chosen_N.sum()),
            "n_with_news": int(has_news[news][chosen_N].sum()),
            "mae": float(np.nanmean(other)),
        }
        if news != OWN:
            compared = compare_pairs(own, other, own_views)
            measured |= {
                "difference": compared.mean_difference,
                "interval_low": compared.interval_low,
                "interval_high": compared.interval_high,
                "p_two_sided": compared.p_two_sided,
            }
        yield news, measured


def write_audit(results: Path, rows: pl.DataFrame) -> Path:
    """Write rows to ``news-audit-<dataset>.csv``, in the place of those of the same source."""
    path = results / f"news-audit-{rows['dataset'][0]}.csv"
    # A probe and a run of one data set stand in the same file.
    if path.exists():
        stored = pl.read_csv(path, schema=AUDIT_SCHEMA)
        rows = pl.concat([stored.filter(pl.col("source") != rows["source"][0]), rows])
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(path, rows.write_csv)
    return path
