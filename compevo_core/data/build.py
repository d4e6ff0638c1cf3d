"""Building the windows of a data set out of series, covariates, articles and published forecasts.

What belongs here: ``build_windows``, which joins the numbers (``data.cutting``), the split plan
(``data.splits``) and what was known at each origin (``data.context``), and the manifest of what was
left out. What does not: any of these steps, the window objects (``data.window``).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl

from compevo_core.data.context import ContextBuilder, NewsCutoff, WindowLabels
from compevo_core.data.coverage import count_coverage, measure_news_choice
from compevo_core.data.cutting import (
    DroppedOrigins,
    GriddedSeries,
    WindowValues,
    cut_window,
    find_origins,
    grid_series,
)
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.files import hash_text
from compevo_core.data.published_windows import build_benchmark_windows
from compevo_core.data.series import is_synthetic
from compevo_core.data.splits import (
    Boundaries,
    Span,
    assign_folds,
    resolve_spans,
    split_chronologically,
)
from compevo_core.data.window import HORIZON, Window, WindowSet
from compevo_core.errors import DataError

_LISTED_SERIES = 8  # how many given series an error message names


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedSeries:
    """A series with the split plan that holds for it."""

    series: GriddedSeries
    entity: str
    boundaries: Boundaries
    spans: tuple[Span, ...]


def build_windows(
    spec: DatasetSpec,
    series: pl.DataFrame,
    covariates: pl.DataFrame | None = None,
    articles: pl.DataFrame | None = None,
    published: pl.DataFrame | None = None,
    benchmark: pl.DataFrame | None = None,
    *,
    news_cutoff: NewsCutoff = "origin",
) -> WindowSet:
    """Cut all windows of a data set.

    Args:
        spec: the declaration of the data set.
        series: follows ``SERIES_SCHEMA``.
        covariates: follows ``COVARIATE_SCHEMA``.
        articles: follows ``ARTICLE_SCHEMA``.
        published: follows ``PUBLISHED_SCHEMA``.
        benchmark: follows ``BENCHMARK_SCHEMA``; becomes a subset of the test split.
        news_cutoff: with "horizon-end" candidates reach to the end of the horizon, as in published
            prompts, and every window says ``leaky``.

    Returns:
        The windows; their manifest counts what was dropped, filled, masked and left unused.

    Raises:
        DataError: no series of the data set is in the frame, or a frame breaks its contract.
    """
    chosen, unused = _select_series(spec, series)
    planned = [_plan_series(spec, frame, entity) for entity, frame in chosen]
    context = ContextBuilder(spec, covariates, articles, published, news_cutoff)

    dropped = DroppedOrigins()
    cuts = [cut for plan in planned for cut in _cut_series(spec, plan, dropped)]

    # Folds divide the time of all train series together, so they need every origin first.
    folds = assign_folds([values.origin_utc for labels, values in cuts if labels.split == "train"])

    windows = []
    for labels, values in cuts:
        if labels.split == "train":
            labels = replace(labels, fold=folds[values.origin_utc])
        view = context.build_view(labels, values.origin_utc, values.x, values.n_filled)
        windows.append(Window(view=view, y=values.y))

    if benchmark is not None:
        windows.extend(build_benchmark_windows(spec, benchmark, context))

    manifest = {
        **_describe_spec(spec),
        **_describe_series([frame for _, frame in chosen], planned),
        **_count_context(windows),
        "unused_series": unused,
        "dropped_origins": dict(sorted(dropped.counts.items())),
        "articles": 0 if articles is None else articles.height,
        "news_cutoff": news_cutoff,
    }
    return WindowSet(windows, dataset=spec.name, manifest=manifest)


def _select_series(
    spec: DatasetSpec, series: pl.DataFrame
) -> tuple[list[tuple[str, pl.DataFrame]], list[str]]:
    """Return (entity, series) of every series to cut, and the ids of the others."""
    frame = series.filter(pl.col("variable") == spec.variable)
    market_day = (pl.col("start_utc") + spec.market_offset).dt.date()
    if spec.first_day is not None:
        frame = frame.filter(market_day >= spec.first_day)
    if spec.last_day is not None:
        frame = frame.filter(market_day <= spec.last_day)
    by_id = {
        str(key[0]): part for key, part in frame.partition_by("series_id", as_dict=True).items()
    }

    chosen: list[tuple[str, str]] = []
    covered: set[str] = set()
    for pattern, name in spec.series:
        matches = [
            (name or str(match.group(1)), series_id)
            for series_id in sorted(by_id)
            if (match := re.match(pattern, series_id))
        ]
        # Without dated spans two sources of one entity would give the same windows twice.
        chosen += [pair for pair in matches if spec.spans or pair[0] not in covered]
        covered |= {entity for entity, _ in matches}

    if not chosen:
        given = sorted(series["series_id"].unique().to_list())[:_LISTED_SERIES]
        raise DataError(
            f"{spec.name}: no series with variable {spec.variable!r} matches "
            f"{' or '.join(pattern for pattern, _ in spec.series)} in "
            f"{spec.first_day or 'any day'}..{spec.last_day or 'any day'} "
            f"(given: {', '.join(given) or 'none'}); read its source first"
        )

    used = {series_id for _, series_id in chosen}
    return [(entity, by_id[series_id]) for entity, series_id in chosen], sorted(set(by_id) - used)


def _plan_series(spec: DatasetSpec, frame: pl.DataFrame, entity: str) -> _PlannedSeries:
    series = grid_series(frame, spec.step, spec.max_fill_steps)

    if not spec.spans:
        boundaries = split_chronologically(series.first_utc, len(series), spec.step, spec.fractions)
        return _PlannedSeries(series=series, entity=entity, boundaries=boundaries, spans=())

    limits = resolve_spans(spec.spans, spec.step, spec.market_offset)
    spans = tuple(s for s in spec.spans if re.match(s.series_pattern, series.series_id))
    names = [span.split for span in spans]
    if len(set(names)) < len(names):
        raise DataError(
            f"{series.series_id}: two spans of one split, {', '.join(names)}; join them, or give "
            "them different series"
        )

    boundaries = Boundaries(spans={span.split: limits[span] for span in spans})
    return _PlannedSeries(series=series, entity=entity, boundaries=boundaries, spans=spans)


def _cut_series(
    spec: DatasetSpec, plan: _PlannedSeries, dropped: DroppedOrigins
) -> Iterator[tuple[WindowLabels, WindowValues]]:
    series = plan.series
    aligned_offset = spec.market_offset if spec.align_to_market_day else None

    for position in find_origins(series, spec.stride_steps, aligned_offset):
        origin = series.first_utc + position * series.step
        split = plan.boundaries.find_split(origin, origin + HORIZON * series.step)
        if split is None:
            dropped.add("outside the split plan or in an embargo")
            continue

        values = cut_window(series, position, spec.max_filled_inputs, dropped)
        if values is None:
            continue

        day = (origin + spec.market_offset).date()
        subsets = tuple(
            subset.name
            for span in plan.spans
            if span.split == split
            for subset in span.subsets
            if subset.contains(day)
        )
        labels = WindowLabels(
            series_id=series.series_id,
            entity=plan.entity,
            variable=series.variable,
            unit=series.unit,
            split=split,
            subsets=subsets,
        )
        yield labels, values


def _describe_spec(spec: DatasetSpec) -> dict[str, Any]:
    # JSON and back, so that a manifest in memory equals the one that is read from its file.
    text = json.dumps(asdict(spec), default=str)
    sorted_text = json.dumps(asdict(spec), default=str, sort_keys=True)
    return {"spec": json.loads(text), "spec_hash": hash_text(sorted_text)}


def _describe_series(
    frames: Sequence[pl.DataFrame], planned: Sequence[_PlannedSeries]
) -> dict[str, Any]:
    # "archive:aemo/file.csv" counts as "archive:aemo": a manifest names publishers, not files.
    sources = {source for frame in frames for source in frame["source"].unique().to_list()}

    return {
        "series": {
            plan.series.series_id: {
                "first_utc": str(plan.series.first_utc),
                **plan.series.gaps.as_dict(),
            }
            for plan in planned
        },
        "sources": sorted({source.split("/")[0] for source in sources}),
        "synthetic": any(is_synthetic(frame) for frame in frames),
    }


def _count_context(windows: Sequence[Window]) -> dict[str, Any]:
    views = [window.view for window in windows]
    return {
        "coverage": count_coverage(views),
        "news_choice": measure_news_choice(views),
        "n_without_covariates": sum(not window.view.covariates for window in windows),
        "n_with_published": sum(window.view.published is not None for window in windows),
        "n_without_candidates": sum(not window.view.candidate_ids for window in windows),
    }
