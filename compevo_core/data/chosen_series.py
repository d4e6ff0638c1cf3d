"""Which series of a frame a data set is made of, one for each entity.

What belongs here: choosing by the patterns of a declaration. What does not: cutting the series
(``data.cutting``), joining them to windows (``data.build``).
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

import polars as pl

from compevo_core.data.cutting import GriddedSeries, grid_series
from compevo_core.data.datasets import DatasetSpec
from compevo_core.errors import DataError

_LISTED_SERIES = 8  # how many given series an error message names
_NEVER = datetime.min.replace(tzinfo=UTC)


def grid_chosen(spec: DatasetSpec, series: pl.DataFrame) -> dict[str, GriddedSeries]:
    """Return every series that a data set is made of, on its grid, by its id.

    Args:
        spec: the declaration of the data set.
        series: follows ``SERIES_SCHEMA``.

    Raises:
        DataError: no series of the data set is in the frame.
    """
    chosen, _ = select_series(spec, series)
    gridded = [grid_series(frame, spec.step, spec.max_fill_steps) for _, frame in chosen]
    return {one.series_id: one for one in gridded}


def select_series(
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


def take_newest(
    chosen: Sequence[tuple[str, pl.DataFrame]], before: datetime | None = None
) -> list[tuple[str, pl.DataFrame]]:
    """Return one series for each entity: the one whose values reach furthest.

    Args:
        chosen: entity and series.
        before: instant from which on values do not count; None counts all.
    """
    newest: dict[str, pl.DataFrame] = {}
    reach: dict[str, datetime] = {}
    for entity, frame in chosen:
        counted = frame if before is None else frame.filter(pl.col("start_utc") < before)
        # A series that begins later is kept where there is no other: its entity has a name.
        last = find_last_stamp(counted) if counted.height else _NEVER
        if entity not in newest or last > reach[entity]:
            newest[entity], reach[entity] = frame, last
    return sorted(newest.items())


def find_last_stamp(frame: pl.DataFrame) -> datetime:
    """Return the start of the newest interval."""
    return cast(datetime, frame["start_utc"].max())
