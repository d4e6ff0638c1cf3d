"""Building views and windows of a data set out of series, covariates, articles and publications.

What belongs here: which series a data set is made of; ``build_views``, which joins the numbers
(``data.cutting``) and what was known at one origin (``data.context``); ``build_windows``, which
adds the split plan (``data.splits``), the truth and a manifest of what was left out; the published
100-window electricity test set. What does not: any of these steps, the window objects.

The benchmark's day is the rows *stamped* 00:00 to 23:30. Stamps are interval ends, so its day
starts at 23:30 NEM time of the day before. From 2021-10-01 its values are means of rows t to t + 25
minutes, 25 minutes later than AEMO's half-hours; those windows carry a second subset name.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter, itemgetter
from typing import Any, cast

import numpy as np
import polars as pl

from compevo_core.data.calendar import HOLIDAYS_VERSION
from compevo_core.data.candidates import Articles, NewsCutoff
from compevo_core.data.context import ContextBuilder
from compevo_core.data.cutting import (
    GriddedSeries,
    InputValues,
    cut_inputs,
    find_origins,
    grid_series,
    locate_origin,
)
from compevo_core.data.datasets import DatasetSpec, Span
from compevo_core.data.schemas import BENCHMARK_SCHEMA, UTC_US, validate_frame
from compevo_core.data.series import (
    find_closed,
    is_synthetic,
    select_going_on,
    skip_closed,
    split_series,
)
from compevo_core.data.splits import (
    Boundaries,
    assign_folds,
    find_split,
    resolve_spans,
    split_chronologically,
)
from compevo_core.data.steps import shift
from compevo_core.data.view import Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, list_some
from compevo_core.runtime.files import hash_text

UPCOMING_SPLIT = "inference"  # split of views whose truth is not known: no fit may ever see them

SUBSET = "n2f-test-100"
SHIFTED_SUBSET = "n2f-shifted-25min"
FIVE_MINUTE_DAY = date(2021, 10, 1)
ORIGIN_BEFORE_MIDNIGHT = timedelta(minutes=30)

_NOT_LEARNT = "of a series without a train window"
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltViews:
    """Views of one origin."""

    views: tuple[WindowView, ...]  # one for each entity, in the order of their series
    left_out: Mapping[str, tuple[str, str]]  # why an entity has none, and the span of its values
    repeated: Mapping[str, int] = field(default_factory=dict)  # inputs that have the season before


def build_views(
    spec: DatasetSpec,
    series: pl.DataFrame,
    covariates: pl.DataFrame | None = None,
    articles: Articles | None = None,
    published: pl.DataFrame | None = None,
    *,
    origin_utc: datetime,
    information_until: datetime | None = None,
    step_covariates: pl.DataFrame | None = None,
    repeats: bool = False,
) -> BuiltViews:
    """Make what a forecaster may see at one origin, whether its truth is known or not.

    Later values in the frames change nothing. The frames follow the schemas of ``data.schemas``;
    ``articles`` may be what reads a store part by part. Nothing in the views is known later than
    ``information_until`` (default: the origin). For ``repeats`` see :func:`cut_inputs`.

    DataError if no series of the data set is in the frame, an instant is not a step of the grid, or
    a frame breaks its contract.
    """
    until = origin_utc if information_until is None else information_until
    unknown_steps, rest = divmod(origin_utc - until, spec.step)
    if rest or unknown_steps < 0:
        raise DataError(
            f"information until {until} is not a whole number of steps of {spec.step} before the "
            f"origin {origin_utc}; give the end of an interval"
        )

    chosen, _ = select_series(spec, series)
    context = ContextBuilder(
        spec,
        covariates,
        articles,
        published,
        step_covariates=step_covariates,
        # Strangers write the public news; past windows hold what was printed, as experiments do.
        spreads_news=not spec.news_source,
    )
    views: list[WindowView] = []
    left_out: dict[str, tuple[str, str]] = {}
    repeated: dict[str, int] = {}

    for entity, frame in select_newest(chosen, until):
        gridded = grid_series(_reach_over_closed(spec, entity, frame, until), spec)
        position = locate_origin(gridded, origin_utc)
        inputs = cut_inputs(gridded, position, spec, unknown_steps, repeats=repeats)
        if isinstance(inputs, str):
            last_utc = gridded.locate_start(len(gridded))
            left_out[entity] = (
                f"{inputs} (a look-back of {spec.lookback_steps} steps)",
                f"{gridded.first_utc:%Y-%m-%d %H:%M} to {last_utc:%Y-%m-%d %H:%M} UTC",
            )
            continue

        views.append(context.build_view(gridded, entity, inputs, UPCOMING_SPLIT))
        if inputs.n_repeated:
            repeated[entity] = inputs.n_repeated
    return BuiltViews(views=tuple(views), left_out=left_out, repeated=repeated)


def describe_left_out(left_out: Mapping[str, tuple[str, str]]) -> list[str]:
    """Say why series have no view, those with one reason together."""
    names: dict[str, list[str]] = {}
    for name, (reason, known) in left_out.items():
        names.setdefault(reason, []).append(f"{name} ({known})" if known else name)
    return [f"{list_some(some)}: {reason}" for reason, some in names.items()]


def describe_repeated(built: BuiltViews) -> list[str]:
    """Say in which series the season before stands for a gap in the inputs."""
    counts = [f"{entity} ({count})" for entity, count in built.repeated.items()]
    if not counts:
        return []
    return [
        f"missing inputs have the values of the season before, in {list_some(counts)}: the "
        "forecast is less sure than its bands"
    ]


def find_next_origin(spec: DatasetSpec, series: pl.DataFrame) -> datetime:
    """Return the newest origin that every series of a data set can be forecast from.

    It follows the last value of the series that ends first, or lies as many steps later as the data
    set's views may lack; where windows start with a day, it is the last midnight by then, or the
    last origin of that day where several are a stride apart. DataError if no series of the data set
    is in the frame, or one has no value.
    """
    end = shift(find_common_end(spec, series), max(spec.unknown_steps), spec.step)
    if not spec.align_to_market_day:
        return end
    on_clock = spec.to_market(end)
    midnight = on_clock.replace(hour=0, minute=0, second=0, microsecond=0)
    return spec.from_market(on_clock - (on_clock - midnight) % (spec.stride_steps * spec.step))


def find_common_end(spec: DatasetSpec, series: pl.DataFrame) -> datetime:
    """Return until when all series are known; DataError if one has no value."""
    return min(
        _find_end(spec, entity, starts) for entity, starts in _list_known(spec, series).items()
    )


def _list_known(spec: DatasetSpec, series: pl.DataFrame) -> dict[str, pl.Series]:
    """Return the stamps of all values by entity; DataError if one has none."""
    chosen, _ = select_series(spec, series)
    stamps = {}
    for entity, frame in select_newest(chosen):
        stamps[entity] = frame.drop_nulls("value")["start_utc"]
        if not len(stamps[entity]):
            raise DataError(f"{spec.name}: {entity} has no value; read its source first")
    return stamps


def _find_end(spec: DatasetSpec, entity: str, stamps: pl.Series) -> datetime:
    """Return the end of the last value, and of the times without any value after it."""
    zone = spec.find_place(entity).timezone
    closed = find_closed(stamps, spec.step, zone)
    return skip_closed(shift(cast(datetime, stamps.max()), 1, spec.step), spec.step, zone, closed)


def _reach_over_closed(
    spec: DatasetSpec, entity: str, frame: pl.DataFrame, until: datetime
) -> pl.DataFrame:
    """Return a series up to an instant, if it never has a value between its end and then."""
    # Almost always it reaches that far, and there is nothing to look for.
    if shift(cast(datetime, frame["start_utc"].max()), 1, spec.step) >= until:
        return frame
    stamps = frame.drop_nulls("value")["start_utc"]
    if not len(stamps) or _find_end(spec, entity, stamps) < until:
        return frame

    last = frame.tail(1).with_columns(
        start_utc=pl.lit(until - spec.step, dtype=UTC_US),
        value=pl.lit(None, dtype=pl.Float64),
        flag=pl.lit("missing"),
    )
    return pl.concat([frame, last])


def select_entities(
    spec: DatasetSpec, series: pl.DataFrame, names: Collection[str]
) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows of entities, such as those a model has learnt, and the others' names."""
    chosen, _ = select_series(spec, series)
    others = {frame["series_id"][0]: entity for entity, frame in chosen if entity not in names}
    return series.filter(~pl.col("series_id").is_in(list(others))), sorted(set(others.values()))


def describe_new(names: Sequence[str]) -> str:
    """Return what a reader of forecasts of series should know that a model has not learnt."""
    return (
        f"not in the fit: {list_some(names)}; what was learnt of the other series forecasts them "
        "from their own values, with bands from the errors of all; fit again to learn them"
    )


def select_live(spec: DatasetSpec, series: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the rows of the series that continue, and which have ended (``select_going_on``).

    DataError if a series has no value.
    """
    ends = {name: cast(datetime, at.max()) for name, at in _list_known(spec, series).items()}
    going_on = select_going_on(ends, spec.horizon_steps, spec.step)
    ended = {name: end for name, end in ends.items() if name not in going_on}
    if not ended:
        return series, ""

    shown = [f"{name} (ended {end:%Y-%m-%d %H:%M} UTC)" for name, end in sorted(ended.items())]
    return (
        select_entities(spec, series, going_on)[0],
        f"no forecast of {list_some(shown)}: the others continue to "
        f"{max(ends.values()):%Y-%m-%d %H:%M}",
    )


def grid_chosen(spec: DatasetSpec, series: pl.DataFrame) -> dict[str, GriddedSeries]:
    """Return every series that a data set is made of, on its grid, by its id.

    DataError if no series of the data set is in the frame.
    """
    chosen, _ = select_series(spec, series)
    gridded = [grid_series(frame, spec) for _, frame in chosen]
    return {grid.series_id: grid for grid in gridded}


def select_series(
    spec: DatasetSpec, series: pl.DataFrame
) -> tuple[list[tuple[str, pl.DataFrame]], list[str]]:
    """Return (entity, series) of every series to cut, and the ids of the others."""
    is_chosen = pl.col("variable") == spec.variable
    if spec.first_day is not None:
        is_chosen &= spec.find_market_day() >= spec.first_day
    if spec.last_day is not None:
        is_chosen &= spec.find_market_day() <= spec.last_day
    by_id = {
        name: rows
        for name, part in split_series(series)
        if (rows := part if part.select(is_chosen.all()).item() else part.filter(is_chosen)).height
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
        given = list_some(sorted(series["series_id"].unique().to_list()))
        raise DataError(
            f"{spec.name}: no series with variable {spec.variable!r} matches "
            f"{' or '.join(pattern for pattern, _ in spec.series)} in "
            f"{spec.first_day or 'any day'}..{spec.last_day or 'any day'} "
            f"(given: {given or 'none'}); read its source first"
        )

    used = {series_id for _, series_id in chosen}
    return [(entity, by_id[series_id]) for entity, series_id in chosen], sorted(set(by_id) - used)


def select_newest(
    chosen: Sequence[tuple[str, pl.DataFrame]], before: datetime | None = None
) -> list[tuple[str, pl.DataFrame]]:
    """Return one series for each entity: the one whose values before an instant reach furthest.

    One that begins later counts where there is no other, so that messages can name its entity.
    """
    newest: dict[str, tuple[datetime, pl.DataFrame]] = {}
    for entity, frame in chosen:
        starts = frame["start_utc"]
        starts = starts if before is None else starts.filter(starts < before)
        reach = cast(datetime | None, starts.max()) or _NEVER
        if entity not in newest or reach > newest[entity][0]:
            newest[entity] = reach, frame
    return [(entity, frame) for entity, (_, frame) in sorted(newest.items(), key=itemgetter(0))]


def build_windows(
    spec: DatasetSpec,
    series: pl.DataFrame,
    covariates: pl.DataFrame | None = None,
    articles: Articles | None = None,
    published: pl.DataFrame | None = None,
    benchmark: pl.DataFrame | None = None,
    *,
    news_cutoff: NewsCutoff = "origin",
    step_covariates: pl.DataFrame | None = None,
    first_origin: datetime | None = None,
    origins: Collection[datetime] = (),
    unchanged: Iterable[Window] = (),
) -> WindowSet:
    """Cut all windows of a data set, or only the windows of its last days.

    The frames follow the schemas of ``data.schemas``; ``articles`` may be what reads a store part
    by part, and ``benchmark`` becomes a subset of the test split. With the news cutoff
    "horizon-end" candidates reach to the end of the horizon, as in published prompts, and every
    window is marked ``leaky``. No window is cut before ``first_origin``; the others are as in the
    whole set, except for folds, which need every window of train. With ``origins`` windows are cut
    only at these instants, and not a stride apart.

    ``unchanged`` are windows of an earlier set up to whose end nothing in the frames has changed
    since: everything in a view but its numbers is copied from them, which saves most of the time.

    The manifest counts what was dropped, filled, masked and left unused. DataError if no series of
    the data set is in the frame, or a frame breaks its contract.
    """
    if not isinstance(series, pl.DataFrame):
        raise DataError(
            f"series is a {type(series).__name__}: give a polars DataFrame that follows "
            "SERIES_SCHEMA, or a table of your own to compevo_core.Forecaster"
        )
    chosen, unused = select_series(spec, series)
    gridded = [(entity, grid_series(frame, spec)) for entity, frame in chosen]
    boundaries = _find_boundaries(spec, [grid for _, grid in gridded])
    context = ContextBuilder(spec, covariates, articles, published, news_cutoff, step_covariates)

    dropped: Counter[str] = Counter()
    known = {_read_labels(window.view): window for window in unchanged}
    cut: list[Window] = []
    for (entity, grid), limits in zip(gridded, boundaries, strict=True):
        cut += _cut_series(
            spec, entity, grid, limits, context, dropped, first_origin, origins, known
        )
    # No model has learnt a series that begins after train, and none can forecast it.
    learnt = {window.view.entity for window in cut if window.view.split == "train"}
    if learnt:
        dropped.update(_NOT_LEARNT for window in cut if window.view.entity not in learnt)
        cut = [window for window in cut if window.view.entity in learnt]

    # Folds divide the time of all train series together, so they need every origin first.
    folds = assign_folds([w.view.origin_utc for w in cut if w.view.split == "train"])
    windows = [
        w.change_view(fold=folds[w.view.origin_utc])
        if w.view.split == "train" and w.view.fold != folds[w.view.origin_utc]
        else w
        for w in cut
    ]

    if benchmark is not None:
        windows.extend(_build_benchmark_windows(spec, benchmark, context))

    sources = {source for _, frame in chosen for source in frame["source"].unique()}
    # JSON and back, so that a manifest in memory equals the one that is read from its file.
    described = json.loads(json.dumps(asdict(spec), default=str))
    manifest = {
        "spec": described,
        "spec_hash": hash_text(json.dumps(described, sort_keys=True)),
        "series": {
            grid.series_id: {"first_utc": str(grid.first_utc), **grid.gaps} for _, grid in gridded
        },
        # A manifest names publishers, not files: "archive:aemo/file.csv" counts as "archive:aemo".
        "sources": sorted({source.split("/")[0] for source in sources}),
        "synthetic": any(is_synthetic(frame) for _, frame in chosen),
        "unused_series": unused,
        "dropped_origins": dict(sorted(dropped.items())),
        "articles": context.candidates.count_articles(),
        "news_cutoff": news_cutoff,
        "holidays_version": HOLIDAYS_VERSION,
    }
    return WindowSet(windows, dataset=spec.name, manifest=manifest)


def _find_boundaries(spec: DatasetSpec, gridded: Sequence[GriddedSeries]) -> list[Boundaries]:
    if not spec.spans:
        # One calendar for all series. By fractions of its own, the train span of a series that
        # begins late would be in the test span of the others, and a model learns from all of them.
        first = min(series.first_utc for series in gridded)
        end = max(series.locate_start(len(series)) for series in gridded)
        return [split_chronologically(spec, first, end)] * len(gridded)

    limits = resolve_spans(spec)
    plans: list[Boundaries] = []
    for series in gridded:
        spans = _select_spans(spec, series)
        plans.append({span.split: limits[span] for span in spans})
        if len(plans[-1]) < len(spans):
            raise DataError(
                f"{series.series_id}: two spans of one split; join them, or give them different "
                "series"
            )
    return plans


def _select_spans(spec: DatasetSpec, series: GriddedSeries) -> list[Span]:
    return [span for span in spec.spans if re.match(span.series_pattern, series.series_id)]


#: By these a window of an earlier set is found again.
_read_labels = attrgetter(
    "series_id", "origin_utc", "unknown_steps", "entity", "unit", "split", "subsets", "n_filled"
)


def _cut_series(
    spec: DatasetSpec,
    entity: str,
    series: GriddedSeries,
    boundaries: Boundaries,
    context: ContextBuilder,
    dropped: Counter[str],
    first_origin: datetime | None,
    only: Collection[datetime],
    known: Mapping[Any, Window],
) -> Iterator[Window]:
    spans = _select_spans(spec, series)
    for position in find_origins(series, spec, 1 if only else spec.stride_steps):
        origin = series.locate_start(position)
        if (first_origin is not None and origin < first_origin) or (only and origin not in only):
            continue

        end = series.locate_start(position + spec.horizon_steps)
        split = find_split(boundaries, origin, end)
        if split is None:
            dropped["outside the split plan or in an embargo"] += 1
            continue

        targets = series.observed[position : position + spec.horizon_steps]
        for unknown_steps in spec.unknown_steps:
            inputs = cut_inputs(series, position, spec, unknown_steps)
            if isinstance(inputs, str):
                dropped[inputs] += 1
                continue
            if np.isnan(targets).all():
                dropped["no observed target"] += 1
                continue

            # Windows that know less are a subset of their own, with rows of their own.
            until = spec.to_market(origin - unknown_steps * spec.step)
            ending = f"-known-{until:%H%M}" if unknown_steps else ""
            day = spec.to_market(origin).date()
            named = [subset for span in spans if span.split == split for subset in span.subsets]
            subsets = tuple(subset.name + ending for subset in named if subset.contains(day))
            labels = (entity, series.unit, split, subsets, inputs.n_filled)
            same = known.get((series.series_id, origin, unknown_steps, *labels))
            if (
                same is not None
                and np.array_equal(same.view.x, inputs.x)
                and np.array_equal(same.y, targets, equal_nan=True)
            ):
                yield same
            else:
                view = context.build_view(series, entity, inputs, split, subsets)
                yield Window(view=view, y=targets)


def _build_benchmark_windows(
    spec: DatasetSpec, records: pl.DataFrame, context: ContextBuilder
) -> list[Window]:
    """Return one test window per record; ``x`` and ``y`` are the published numbers.

    DataError if a record has not 48 numbers, or predicts a day outside the test span.
    """
    records = validate_frame(records, BENCHMARK_SCHEMA, "benchmark frame")

    windows = []
    for record in records.sort("record").iter_rows(named=True):
        day: date = record["target_date"]
        # A day of the train years would put its target into the data that all methods learn from.
        is_test_day = any(
            span.first_day <= day <= span.last_day for span in spec.spans if span.split == "test"
        )
        steps = (len(record["x"]), len(record["y"]))
        if not is_test_day or steps != (spec.lookback_steps, spec.horizon_steps):
            raise DataError(
                f"benchmark record {record['record']} predicts {day} with {steps[0]} inputs and "
                f"{steps[1]} outputs; of {spec.name} it must be {spec.lookback_steps} and "
                f"{spec.horizon_steps} on a day of the test span: give the benchmark's test file"
            )

        # A record is a short series of its own: the inputs, and the targets after them.
        origin = spec.from_market(day) - ORIGIN_BEFORE_MIDNIGHT
        values = np.array([*record["x"], *record["y"]], dtype=np.float64)
        series = GriddedSeries(
            series_id=f"N2F/TOTALDEMAND/{record['entity']}",
            variable=spec.variable,
            unit="MW",
            first_utc=shift(origin, -spec.lookback_steps, spec.step),
            step=spec.step,
            observed=values,
            filled=values,
            gaps={},
        )
        inputs = InputValues(origin_utc=origin, x=values[: spec.lookback_steps], n_filled=0)
        subsets = (SUBSET, SHIFTED_SUBSET) if day >= FIVE_MINUTE_DAY else (SUBSET,)
        view = context.build_view(series, record["entity"], inputs, "test", subsets)
        windows.append(Window(view=view, y=values[spec.lookback_steps :]))
    return windows
