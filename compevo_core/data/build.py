"""Cuts windows out of series, covariates, articles and published forecasts (design 3).

What belongs here: ``build_windows``, which joins the numbers (``cutting``), the split plan (``splits``) and what was
known at each origin (``context``). The objects are in ``windowset`` and are named here for convenience.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from compevo_core.data.calendar import Calendar
from compevo_core.data.context import Context, Names, NewsCutoff
from compevo_core.data.cutting import Dropped, Grid, cut, origin_positions, to_grid
from compevo_core.data.datasets import DATASETS, DatasetSpec
from compevo_core.data.published_windows import benchmark_windows
from compevo_core.data.series import is_synthetic
from compevo_core.data.splits import Boundaries, Span, chronological, dated, fold_numbers
from compevo_core.data.window import HORIZON, LOOKBACK, SPLITS, Window, WindowSet, WindowView
from compevo_core.errors import DataError

__all__ = ["DATASETS", "HORIZON", "LOOKBACK", "SPLITS", "Calendar", "DatasetSpec", "Window", "WindowSet", "WindowView",
           "build_windows"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Planned:
    """A series with the split plan that holds for it."""

    grid: Grid
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

    Frames follow SERIES_SCHEMA, COVARIATE_SCHEMA, ARTICLE_SCHEMA, PUBLISHED_SCHEMA and BENCHMARK_SCHEMA. With
    ``news_cutoff="horizon-end"`` candidates reach to the end of the horizon, as in published prompts, and every
    window says ``leaky``. The manifest counts what was dropped, filled, masked and left unused.

    Raises:
        DataError: no series of the data set is in the frame, or a frame breaks its contract.
    """
    mine, unused = _series_of(spec, series)
    context = Context(spec, covariates, articles, published, news_cutoff)
    dropped = Dropped()
    planned = [_plan(spec, frame, entity) for entity, frame in mine]
    cuts = [found for one in planned for found in _cuts(spec, one, dropped)]
    numbers = fold_numbers([origin for names, origin, *_ in cuts if names.split == "train"])
    windows = []
    for names, origin, x, y, n_filled in cuts:
        if names.split == "train":
            names = Names(**{**asdict(names), "fold": numbers[origin]})
        windows.append(Window(view=context.view(names, origin, x, n_filled), y=y))
    if benchmark is not None:
        windows.extend(benchmark_windows(spec, benchmark, context))
    manifest = {
        "spec": json.loads(json.dumps(asdict(spec), default=str)),
        "spec_hash": hashlib.sha256(
            json.dumps(asdict(spec), default=str, sort_keys=True).encode()
        ).hexdigest(),
        "series": {
            p.grid.series_id: {"first_utc": str(p.grid.first_utc)} | p.grid.gaps.as_dict()
            for p in planned
        },
        "unused_series": unused,
        "dropped_origins": dict(sorted(dropped.counts.items())),
        "sources": sorted(
            {s.split("/")[0] for _, frame in mine for s in frame["source"].unique().to_list()}
        ),
        "synthetic": any(is_synthetic(frame) for _, frame in mine),
        "articles": 0 if articles is None else articles.height,
        "news_cutoff": news_cutoff,
    }
    return WindowSet(windows, dataset=spec.name, manifest=manifest | _coverage(windows))


def _series_of(
    spec: DatasetSpec, series: pl.DataFrame
) -> tuple[list[tuple[str, pl.DataFrame]], list[str]]:
    frame = series.filter(pl.col("variable") == spec.variable)
    if spec.first_day is not None:
        frame = frame.filter((pl.col("start_utc") + spec.market_offset).dt.date() >= spec.first_day)
    if spec.last_day is not None:
        frame = frame.filter((pl.col("start_utc") + spec.market_offset).dt.date() <= spec.last_day)
    by_id = {
        str(key[0]): part for key, part in frame.partition_by("series_id", as_dict=True).items()
    }
    chosen: list[tuple[str, str]] = []
    taken: set[str] = set()
    for pattern, name in spec.series:
        matched = [
            (name or str(m.group(1)), sid) for sid in sorted(by_id) if (m := re.match(pattern, sid))
        ]
        chosen += [(entity, sid) for entity, sid in matched if spec.spans or entity not in taken]
        taken |= {entity for entity, _ in matched}
    if not chosen:
        raise DataError(
            f"{spec.name}: no series with variable {spec.variable!r} matches "
            f"{' or '.join(p for p, _ in spec.series)} in {spec.first_day or 'any day'}..{spec.last_day or 'any day'} "
            f"(given: {', '.join(sorted(series['series_id'].unique().to_list())[:8]) or 'none'}); read its source first"
        )
    used = {sid for _, sid in chosen}
    return [(entity, by_id[sid]) for entity, sid in chosen], sorted(set(by_id) - used)


def _plan(spec: DatasetSpec, frame: pl.DataFrame, entity: str) -> _Planned:
    grid = to_grid(frame, spec.step, spec.max_fill_steps)
    if not spec.spans:
        return _Planned(
            grid, entity, chronological(grid.first_utc, len(grid), spec.step, spec.fractions), ()
        )
    limits = dated(spec.spans, spec.step, spec.market_offset)
    here = tuple(s for s in spec.spans if re.match(s.series_pattern, grid.series_id))
    return _Planned(grid, entity, Boundaries(spans={s.split: limits[s] for s in here}), here)


def _cuts(
    spec: DatasetSpec, plan: _Planned, dropped: Dropped
) -> Iterator[tuple[Names, Any, Any, Any, int]]:
    grid = plan.grid
    for position in origin_positions(
        grid, spec.stride_steps, spec.market_offset if spec.align_to_market_day else None
    ):
        origin = grid.first_utc + position * grid.step
        split = plan.boundaries.split_of(origin, origin + HORIZON * grid.step)
        if split is None:
            dropped.add("outside the split plan or in an embargo")
            continue
        found = cut(grid, position, spec.max_filled_inputs, dropped)
        if found is None:
            continue
        day = (origin + spec.market_offset).date()
        subsets = tuple(
            d.name for s in plan.spans if s.split == split for d in s.subsets if d.holds(day)
        )
        names = Names(
            series_id=grid.series_id,
            entity=plan.entity,
            variable=grid.variable,
            unit=grid.unit,
            split=split,
            subsets=subsets,
        )
        yield names, origin, found.x, found.y, found.n_filled


def _coverage(windows: list[Window]) -> dict[str, int]:
    return {
        "n_without_covariates": sum(not w.view.covariates for w in windows),
        "n_with_published": sum(w.view.published is not None for w in windows),
        "n_without_candidates": sum(not w.view.candidate_ids for w in windows),
    }
