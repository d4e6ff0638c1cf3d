"""Operational demand: actuals, AEMO's forecast in three quantiles, its forecast of rooftop solar.

What belongs here: collected day files (one JSON a trading day) and NEMWeb's three reports, by name.
What does not: the framing of a report (``parse_tables``), which files are read (``source``).

Operational demand is another measure than TOTALDEMAND and HISTDEMAND. POE10 is the level exceeded
with a probability of 10 %, which is the 0.9 quantile. A day's forecast was public from its
``forecastIssuedAt``, 17:00 NEM time the day before; a report's when its file was created, the stamp
of its first record, or when its last row was loaded or changed if that is later. Of each issue the
intervals that begin within two days are kept: no view of a day can use later ones.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from typing import Annotated

import polars as pl
from pydantic import AfterValidator, BaseModel, Field

from compevo_core.data.schemas import PUBLISHED_SCHEMA, SERIES_SCHEMA, STEP_COVARIATE_SCHEMA
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo.names import (
    ACTUAL_REPORT,
    FORECAST_REPORT,
    ROOFTOP_REPORT,
    find_report,
)
from compevo_pipeline.sources.aemo.parse_tables import (
    STAMP_FORMATS,
    build_region_series,
    convert_columns,
    read_created,
    read_report,
)
from compevo_pipeline.sources.common import nem, tables
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import Day, Moment, Number, check_document, read_json

FORECAST_VARIABLE = "demand_forecast_mw"
ROOFTOP_PV_COVARIATE = "rooftop_pv_mw"
LONGEST_LEAD = timedelta(days=2)

ACTUAL = "actual"
QUANTILES = {"poe10": 0.9, "poe50": 0.5, "poe90": 0.1}
"""Field of the day file -> the quantile it is; POE is a probability of exceedance."""

_REPORT_QUANTILES = {f"OPERATIONAL_DEMAND_{field.upper()}": q for field, q in QUANTILES.items()}
_ALL_QUANTILES = QUANTILES | _REPORT_QUANTILES
_ROOFTOP_MEDIAN = "POWERPOE50"
_KEY = ("REGIONID", "INTERVAL_DATETIME")
_NO_DEMAND_MW = 1e9  # above every demand; a number of hundreds of digits fits no column
_Values = Annotated[
    list[Annotated[Number, Field(gt=-_NO_DEMAND_MW, lt=_NO_DEMAND_MW)] | None],
    Field(min_length=nem.PERIODS_PER_DAY, max_length=nem.PERIODS_PER_DAY),
]


class _Demand(BaseModel):
    intervals: list[str]
    actual: _Values
    poe10: _Values
    poe50: _Values
    poe90: _Values


class _Solar(BaseModel):
    intervals: list[str]
    poe50: _Values


def _check_regions(regions: dict[str, object]) -> dict[str, object]:
    # A missing region would be a silent gap in its series.
    if set(regions) != set(nem.REGIONS):
        raise ValueError(f"holds {sorted(regions)}, expected {list(nem.REGIONS)}")
    return regions


class _Day(BaseModel):
    tradingDate: Day
    forecastIssuedAt: Moment
    regions: Annotated[dict[str, dict[str, object]], AfterValidator(_check_regions)]


def parse_operational(*raws: RawFile) -> pl.DataFrame:
    """Parse files into ``SERIES_SCHEMA``: actuals, and the forecasts of day files.

    A null actual becomes a row flagged ``missing``. A report of forecasts has no row: one interval
    has many issues, which :func:`parse_published` keeps apart. Series are
    ``AEMO/OPERATIONAL_DEMAND/<region>`` and ``AEMO/POE10|POE50|POE90/<region>``.
    """
    frames = [pl.DataFrame(schema=SERIES_SCHEMA)]
    if actual := _select_report(raws, ACTUAL_REPORT):
        frames.append(_parse_actuals(actual))

    if days := _select_report(raws, ""):
        # Actual and forecasts become different series: a forecast never stands in for an actual.
        is_actual = pl.col("field") == ACTUAL
        forecast = pl.col("field").str.to_uppercase()
        measure = pl.when(is_actual).then(pl.lit("OPERATIONAL_DEMAND")).otherwise(forecast)
        variables = pl.lit(nem.DEMAND_VARIABLE), pl.lit(FORECAST_VARIABLE)
        series = tables.build_series_frame(
            tables.stack_files(days, lambda raw: _read_day(raw, "demand", _Demand)),
            days[0],
            series_id=pl.concat_str(pl.lit("AEMO/"), measure, pl.lit("/"), pl.col("region")),
            variable=pl.when(is_actual).then(variables[0]).otherwise(variables[1]),
            unit=nem.DEMAND_UNIT,
        )
        frames.append(series)
    return pl.concat(frames)


def _parse_actuals(raws: Sequence[RawFile]) -> pl.DataFrame:
    # Adjustment and demand-response estimate are not added to the demand.
    columns = (*_KEY, "OPERATIONAL_DEMAND", "LASTCHANGED")
    raw, name = raws[0], ("OPERATIONAL_DEMAND", "ACTUAL")
    table = tables.stack_files(raws, lambda one: read_report(one, name, columns))
    table = tables.to_stamp(table, raw.name, "LASTCHANGED", STAMP_FORMATS)
    table = convert_columns(table, raw, "INTERVAL_DATETIME", ["OPERATIONAL_DEMAND"], "REGIONID")

    # Of a reissued interval the row changed last counts; of two in one second the later line.
    table = table.sort("LASTCHANGED", tables.LINE)
    latest = table.unique((tables.FILE, *_KEY), keep="last", maintain_order=True)
    return build_region_series(latest, raw, "OPERATIONAL_DEMAND", *_KEY, "OPERATIONAL_DEMAND")


def _select_report(raws: Sequence[RawFile], report: str) -> list[RawFile]:
    """Return the files of a report; "" for day files."""
    return [raw for raw in raws if find_report(raw.name) == report]


def parse_published(*raws: RawFile) -> pl.DataFrame:
    """Parse the demand forecasts of files into ``PUBLISHED_SCHEMA``; other reports have none.

    ``available_at`` is when AEMO issued them.
    """
    frames = []
    if issues := _select_report(raws, FORECAST_REPORT):
        names = list(_REPORT_QUANTILES)
        table = _read_issues(issues, ("OPERATIONAL_DEMAND", "FORECAST"), names)
        index = [name for name in table.columns if name not in names]
        frames.append(table.unpivot(names, index=index, variable_name="field"))
    if days := _select_report(raws, ""):
        table = tables.stack_files(days, lambda raw: _read_day(raw, "demand", _Demand))
        frames.append(table.filter(pl.col("field") != ACTUAL).rename({"region": "entity"}))

    quantile = pl.col("field").replace_strict(_ALL_QUANTILES, return_dtype=pl.Float64)
    return _stack_rows(
        [frame.with_columns(quantile=quantile) for frame in frames], PUBLISHED_SCHEMA
    )


def parse_step_covariates(*raws: RawFile) -> pl.DataFrame:
    """Parse the median forecasts of rooftop solar power into ``STEP_COVARIATE_SCHEMA``."""
    frames = []
    if issues := _select_report(raws, ROOFTOP_REPORT):
        table = _read_issues(issues, ("ROOFTOP", "FORECAST"), [_ROOFTOP_MEDIAN])
        frames.append(table.rename({_ROOFTOP_MEDIAN: "value"}))
    if days := _select_report(raws, ""):
        table = tables.stack_files(days, lambda raw: _read_day(raw, "rooftopPv", _Solar))
        frames.append(table.rename({"region": "entity"}))

    name = pl.lit(ROOFTOP_PV_COVARIATE)
    return _stack_rows([frame.with_columns(name=name) for frame in frames], STEP_COVARIATE_SCHEMA)


def _read_issues(
    raws: Sequence[RawFile], table_name: tuple[str, str], values: list[str]
) -> pl.DataFrame:
    """Return ``values``, ``entity``, ``start_utc`` and ``available_at`` of issues, by file."""
    raw = raws[0]
    loaded = ["LASTCHANGED"] if table_name[0] == "ROOFTOP" else ["LOAD_DATE", "LASTCHANGED"]
    columns = (*_KEY, *values, *loaded)
    table = tables.stack_files(
        raws,
        lambda one: read_report(one, table_name, columns).with_columns(
            pl.lit(read_created(one)).alias("created")
        ),
    )
    table = convert_columns(
        table, raw, "INTERVAL_DATETIME", values, "REGIONID", missing=tables.BLANK
    )
    tables.raise_if_duplicates(table, raw.name, _KEY)

    # No row was readable before it was loaded, even if the first record says so.
    for column in loaded:
        table = tables.to_stamp(table, raw.name, column, STAMP_FORMATS)
    stamps = (nem.interval_start_utc(pl.col(column), timedelta(0)) for column in loaded)
    rows = table.with_columns(
        pl.col("REGIONID").alias("entity"),
        nem.interval_start_utc(pl.col("INTERVAL_DATETIME"), nem.HALF_HOUR).alias("start_utc"),
        pl.max_horizontal("created", *stamps).max().over(tables.FILE).alias("available_at"),
    )
    rows = rows.drop(*_KEY, *loaded, "created", tables.LINE)
    return rows.filter(pl.col("start_utc") < pl.col("available_at") + LONGEST_LEAD)


def _stack_rows(frames: Sequence[pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the rows with a value in the columns of a schema."""
    rows = [pl.DataFrame(schema=schema)]
    for frame in frames:
        known = frame.drop_nulls("value").with_columns(source=tables.SOURCE)
        rows.append(known.select(pl.col(name).cast(kind) for name, kind in schema.items()))
    return pl.concat(rows)


def _read_day(raw: RawFile, part: str, kind: type[_Demand] | type[_Solar]) -> pl.DataFrame:
    """Return 48 rows per region and field: its ``value`` in MW, ``start_utc``, ``available_at``.

    Every region must have the part ``demand``; ``rooftopPv`` may be missing.
    """
    day = check_document(read_json(raw.content, raw.name), raw.name, _Day)
    midnight = pl.lit(day.tradingDate).cast(pl.Datetime("us"))
    ends = midnight + pl.duration(minutes=30 * (pl.int_range(nem.PERIODS_PER_DAY) + 1))
    intervals = pl.select(ends.dt.strftime("%Y-%m-%dT%H:%M+10:00")).to_series().to_list()

    rows: list[tuple[str, str, list[float | None]]] = []
    for region in nem.REGIONS:
        if part != "demand" and not day.regions[region].get(part):
            continue
        place = ("regions", region, part)
        measure = dict(check_document(day.regions[region].get(part), raw.name, kind, *place))
        if measure.pop("intervals") != intervals:
            raise SchemaDrift(
                f"{raw.name}, at {'.'.join(place)}.intervals: not the {nem.PERIODS_PER_DAY} "
                f"half-hours that end {intervals[0]} to {intervals[-1]}; fetch the day again"
            )
        rows += [(region, field, values) for field, values in measure.items()]

    schema = {"region": pl.String(), "field": pl.String(), "value": pl.List(pl.Float64())}
    days = pl.DataFrame(rows, schema=schema, orient="row").explode("value")
    # Every list has exactly 48 values, so the row number gives the half-hour.
    start = midnight + pl.duration(minutes=30 * pl.int_range(pl.len()).mod(nem.PERIODS_PER_DAY))
    return days.with_columns(
        (start - nem.NEM_OFFSET).dt.replace_time_zone("UTC").alias("start_utc"),
        pl.lit(day.forecastIssuedAt.astimezone(UTC)).alias("available_at"),
    )
