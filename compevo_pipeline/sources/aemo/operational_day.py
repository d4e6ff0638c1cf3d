"""One trading day of operational demand as JSON.

What belongs here: reading the document (``tradingDate``, ``forecastIssuedAt``, 48 intervals a
region), with an error that names the path to the fault. What does not: series and forecasts made
from it (``aemo.operational``).

POE10 is the level exceeded with a probability of 10 %, that is the 0.9 quantile. The forecast was
public from ``forecastIssuedAt``, 17:00 NEM time the day before.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import read_json
from compevo_pipeline.sources.common.nem import HALF_HOUR, NEM_OFFSET, PERIODS_PER_DAY, REGIONS

ACTUAL = "actual"
QUANTILES = {"poe10": 0.9, "poe50": 0.5, "poe90": 0.1}
"""Field of the day file -> the quantile it is; POE is a probability of exceedance."""

MEDIAN_FIELD = "poe50"
DEMAND = "demand"
ROOFTOP_PV = "rooftopPv"

_NO_DEMAND_MW = 1e9
"""Above every demand there can be; a number of hundreds of digits fits no column."""


def read_day(
    raw: RawFile, part: str = DEMAND, fields: Sequence[str] = (ACTUAL, *QUANTILES)
) -> pl.DataFrame:
    """Read one day: 48 rows a region and field.

    Args:
        raw: the day's file.
        part: ``demand``, which every region must have, or ``rooftopPv``, which may be missing.
        fields: fields of it to read.

    Returns:
        Columns ``region``, ``field`` (``actual`` or a key of :data:`QUANTILES`), ``value`` in MW,
        ``period`` from 0, ``start_utc`` and ``available_at`` (UTC).

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    document = _read_object(raw, read_json(raw.content, raw.name), "the document")
    day = _read_date(raw, document.get("tradingDate"))
    issued_at = _read_moment(raw, document.get("forecastIssuedAt"), "forecastIssuedAt")

    regions = _read_object(raw, document.get("regions"), "regions")
    # A missing region would be a silent gap in the series of that region.
    if set(regions) != set(REGIONS):
        raise _drift(raw, "regions", f"holds {sorted(regions)}, expected {list(REGIONS)}")

    columns: dict[str, list[object]] = {"region": [], "field": [], "value": []}
    for region in REGIONS:
        path = f"regions.{region}.{part}"
        parts = _read_object(raw, regions[region], f"regions.{region}")
        if part != DEMAND and not parts.get(part):
            continue
        found = _read_object(raw, parts.get(part), path)
        _check_intervals(raw, found.get("intervals"), day, f"{path}.intervals")

        for field in fields:
            columns["region"].append(region)
            columns["field"].append(field)
            columns["value"].append(_read_values(raw, found.get(field), f"{path}.{field}"))

    days = pl.DataFrame(
        columns, schema={"region": pl.String, "field": pl.String, "value": pl.List(pl.Float64)}
    )
    # Every list has exactly 48 values, so the row number gives the period.
    rows = days.explode("value").with_columns(
        pl.int_range(pl.len()).mod(PERIODS_PER_DAY).alias("period")
    )
    midnight_utc = pl.lit(day.replace(tzinfo=UTC) - NEM_OFFSET)
    return rows.with_columns(
        (midnight_utc + pl.duration(minutes=30 * pl.col("period"))).alias("start_utc"),
        pl.lit(issued_at).alias("available_at"),
    )


def _check_intervals(raw: RawFile, intervals: object, day: datetime, path: str) -> None:
    expected = [
        f"{day + (period + 1) * HALF_HOUR:%Y-%m-%dT%H:%M}+10:00"
        for period in range(PERIODS_PER_DAY)
    ]
    if intervals != expected:
        raise _drift(
            raw, path, f"is not the 48 half-hours that end {expected[0]} to {expected[-1]}"
        )


def _read_values(raw: RawFile, values: object, path: str) -> list[float | None]:
    if not isinstance(values, list) or len(values) != PERIODS_PER_DAY:
        raise _drift(raw, path, f"is not a list of {PERIODS_PER_DAY} values")

    for index, value in enumerate(values):
        # A JSON true is an int to Python, and 1e999 a number.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and abs(value) < _NO_DEMAND_MW):
            raise _drift(raw, f"{path}[{index}]", f"is {str(value)[:40]!r}, not a number of MW")
    return values


def _read_object(raw: RawFile, value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _drift(raw, path, f"is {type(value).__name__}, not an object")

    return value


def _read_date(raw: RawFile, value: object) -> datetime:
    try:
        day = date.fromisoformat(str(value))
        # The half-hours of the last day that Python knows end on a day that it does not.
        _ = day + timedelta(days=1)
    except (ValueError, OverflowError) as error:
        raise _drift(raw, "tradingDate", f"is {value!r}, not YYYY-MM-DD") from error

    return datetime(day.year, day.month, day.day)  # noqa: DTZ001  # NEM time, as published


def _read_moment(raw: RawFile, value: object, path: str) -> datetime:
    try:
        moment = datetime.fromisoformat(str(value))
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _drift(raw, path, f"is {value!r}, not a timestamp with an offset") from error

    raise _drift(raw, path, f"is {value!r}, a timestamp without an offset")


def _drift(raw: RawFile, path: str, problem: str) -> SchemaDrift:
    return SchemaDrift(
        f"{raw.name}, at {path}: {problem}; fetch the day again; extend the parser if the format "
        "changed"
    )
