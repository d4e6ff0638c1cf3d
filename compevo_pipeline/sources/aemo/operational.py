"""AEMO operational demand: one JSON a trading day with actuals and the day-ahead forecast in three quantiles.

What belongs here: the collected day files (``tradingDate``, ``forecastIssuedAt``, regions, 48 intervals) and the
publisher's own ``OPERATIONAL_DEMAND`` report. What does not: rooftop PV, which the days also carry.
Operational demand is another measure than TOTALDEMAND and HISTDEMAND. POE10 is the level exceeded with a probability
of 10 %, that is the 0.9 quantile. The forecast was public from ``forecastIssuedAt``, 17:00 NEM time the day before.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import PUBLISHED_SCHEMA
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo.report import STAMP_FORMATS, read_report
from compevo_pipeline.sources.common.base import (
    Clock,
    RawFile,
    archive_files,
    archive_raw,
    read_json,
    untar,
)
from compevo_pipeline.sources.common.nem import (
    DEMAND_UNIT,
    DEMAND_VARIABLE,
    HALF_HOUR,
    NEM_OFFSET,
    OBSERVED,
    PERIODS_PER_DAY,
    REGIONS,
    utc_start,
)
from compevo_pipeline.sources.common.tables import refuse_rows, series_frame, to_number, to_stamp

SOURCE = "aemo_operational_demand"
FORECAST_VARIABLE = "demand_forecast_mw"
QUANTILES = {"poe10": 0.9, "poe50": 0.5, "poe90": 0.1}
"""Field of the day file -> the quantile it is; POE is a probability of exceedance."""
REPORT_TABLE = ("OPERATIONAL_DEMAND", "ACTUAL")
REPORT_COLUMNS = ("REGIONID", "INTERVAL_DATETIME", "OPERATIONAL_DEMAND", "LASTCHANGED")


def archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield every day inside the monthly bundles."""
    for path in archive_files(root, "aemo_operational_demand", "*.tar.gz"):
        assert root is not None
        for member in untar(path.read_bytes(), path.name):
            yield archive_raw(path, root, source=SOURCE, member=member, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse one day into ``AEMO/OPERATIONAL_DEMAND/<region>`` and ``AEMO/POE10|POE50|POE90/<region>``.

    A null actual becomes a row flagged ``missing``.

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    days = _read_day(raw)
    actual = pl.col("field") == "actual"
    measure = (
        pl.when(actual)
        .then(pl.lit("OPERATIONAL_DEMAND"))
        .otherwise(pl.col("field").str.to_uppercase())
    )
    rows = days.select(
        pl.concat_str(pl.lit("AEMO/"), measure, pl.lit("/"), pl.col("region")).alias("series_id"),
        pl.when(actual)
        .then(pl.lit(DEMAND_VARIABLE))
        .otherwise(pl.lit(FORECAST_VARIABLE))
        .alias("variable"),
        pl.col("start_utc"),
        pl.col("value"),
        pl.lit(DEMAND_UNIT).alias("unit"),
        pl.when(pl.col("value").is_null())
        .then(pl.lit("missing"))
        .otherwise(pl.lit(OBSERVED))
        .alias("flag"),
    )
    return series_frame(raw, rows)


def parse_published(raw: RawFile) -> pl.DataFrame:
    """Parse one day's forecasts into ``PUBLISHED_SCHEMA``; ``available_at`` is when AEMO issued them.

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    days = _read_day(raw).filter(pl.col("field") != "actual", pl.col("value").is_not_null())
    rows = days.select(
        pl.col("region").alias("entity"),
        pl.col("start_utc"),
        pl.col("value"),
        pl.col("available_at"),
        pl.col("field").replace_strict(QUANTILES, return_dtype=pl.Float64).alias("quantile"),
        pl.lit(raw.label).alias("source"),
    )
    return rows.select(pl.col(name).cast(dtype) for name, dtype in PUBLISHED_SCHEMA.items())


def parse_report(raw: RawFile) -> pl.DataFrame:
    """Parse AEMO's own ``PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH`` report; a reissue keeps the latest LASTCHANGED.

    The adjustment and the demand-response estimate in the report are not added to the demand.
    """
    frame = read_report(raw, REPORT_TABLE, REPORT_COLUMNS)
    frame = to_stamp(raw, frame, "INTERVAL_DATETIME", STAMP_FORMATS)
    frame = to_number(raw, to_stamp(raw, frame, "LASTCHANGED", STAMP_FORMATS), "OPERATIONAL_DEMAND")
    refuse_rows(
        raw,
        frame,
        ~pl.col("REGIONID").is_in(REGIONS),
        "REGIONID is {REGIONID!r}",
        "extend nem.REGIONS",
    )
    latest = frame.sort("LASTCHANGED", "_line").unique(
        ["REGIONID", "INTERVAL_DATETIME"], keep="last", maintain_order=True
    )
    rows = latest.select(
        pl.concat_str(pl.lit("AEMO/OPERATIONAL_DEMAND/"), pl.col("REGIONID")).alias("series_id"),
        pl.lit(DEMAND_VARIABLE).alias("variable"),
        utc_start(pl.col("INTERVAL_DATETIME"), HALF_HOUR).alias("start_utc"),
        pl.col("OPERATIONAL_DEMAND").alias("value"),
        pl.lit(DEMAND_UNIT).alias("unit"),
        pl.lit(OBSERVED).alias("flag"),
    )
    return series_frame(raw, rows)


def _read_day(raw: RawFile) -> pl.DataFrame:
    """Columns region, field, start_utc, value, available_at; 48 rows a region and field."""
    document = _mapping(raw, read_json(raw.content, raw.name), "")
    day = _day(raw, document.get("tradingDate"))
    issued = _instant(raw, document.get("forecastIssuedAt"), "forecastIssuedAt")
    regions = _mapping(raw, document.get("regions"), "regions")
    if set(regions) != set(REGIONS):
        raise _drift(raw, "regions", f"holds {sorted(regions)}, expected {list(REGIONS)}")
    expected = [f"{day + (k + 1) * HALF_HOUR:%Y-%m-%dT%H:%M}+10:00" for k in range(PERIODS_PER_DAY)]
    columns: dict[str, list[object]] = {"region": [], "field": [], "value": []}
    for region in REGIONS:
        path = f"regions.{region}.demand"
        demand = _mapping(
            raw, _mapping(raw, regions[region], f"regions.{region}").get("demand"), path
        )
        if demand.get("intervals") != expected:
            raise _drift(
                raw,
                f"{path}.intervals",
                f"is not the 48 half-hours that end {expected[0]} to {expected[-1]}",
            )
        for field in ("actual", *QUANTILES):
            columns["region"].append(region)
            columns["field"].append(field)
            columns["value"].append(_numbers(raw, demand.get(field), f"{path}.{field}"))
    frame = pl.DataFrame(
        columns, schema={"region": pl.String, "field": pl.String, "value": pl.List(pl.Float64)}
    )
    frame = frame.explode("value").with_columns(
        pl.int_range(pl.len()).mod(PERIODS_PER_DAY).alias("period")
    )
    start = pl.lit(day.replace(tzinfo=UTC) - NEM_OFFSET) + pl.duration(
        minutes=30 * pl.col("period")
    )
    return frame.with_columns(
        start.alias("start_utc"), pl.lit(issued.astimezone(UTC)).alias("available_at")
    )


def _numbers(raw: RawFile, values: object, path: str) -> list[float | None]:
    if not isinstance(values, list) or len(values) != PERIODS_PER_DAY:
        raise _drift(raw, path, f"is not a list of {PERIODS_PER_DAY} values")
    for index, value in enumerate(values):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _drift(raw, f"{path}[{index}]", f"is {value!r}, not a number")
    return values


def _mapping(raw: RawFile, value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _drift(raw, path or "the document", f"is {type(value).__name__}, not an object")
    return value


def _day(raw: RawFile, value: object) -> datetime:
    try:
        found = date.fromisoformat(str(value))
    except ValueError as error:
        raise _drift(raw, "tradingDate", f"is {value!r}, not YYYY-MM-DD") from error
    return datetime(found.year, found.month, found.day)


def _instant(raw: RawFile, value: object, path: str) -> datetime:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise _drift(raw, path, f"is {value!r}, not a stamp with an offset") from error
    if found.tzinfo is None:
        raise _drift(raw, path, f"is {value!r}, a stamp without an offset")
    return found


def _drift(raw: RawFile, path: str, what: str) -> SchemaDrift:
    return SchemaDrift(
        f"{raw.name}, at {path}: {what}; fetch the day again; extend the parser if the format changed"
    )
