"""Daily weather of the five states, from the collected table of the News2Forecast benchmark.

What belongs here: this table, and when each of its values could be known. What does not: forecasts
of weather. The table holds observations: a value of the predicted day itself is hindsight.

Morning and afternoon readings of a day are taken as known from 18:00 local time of that day.
Minimum, maximum, wind and precipitation cover the whole day and are known from 09:00 the next
morning, when the Bureau of Meteorology closes its day. Temperatures stay in kelvin, as published.
"""

import functools
from datetime import timedelta

import polars as pl

from compevo_core.data.schemas import COVARIATE_SCHEMA
from compevo_pipeline.sources.common import tables
from compevo_pipeline.sources.common.base import RawFile, read_product
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.nem import LOCAL_ZONES

SOURCE = "n2f_weather"
FILE = "combined_weather_data.csv"
SAME_DAY = timedelta(hours=18)  # after local midnight of the day
NEXT_MORNING = timedelta(hours=33)  # 09:00 of the next day
MISSING_CELLS = ("NA", "")
COLUMNS: dict[str, tuple[str, timedelta]] = {
    "Min Temp (K)": ("min_temp_k", NEXT_MORNING),
    "Max Temp (K)": ("max_temp_k", NEXT_MORNING),
    "Max Wind Speed (m/s)": ("max_wind_m_s", NEXT_MORNING),
    "Afternoon Humidity": ("afternoon_humidity_pct", SAME_DAY),
    "Afternoon Pressure": ("afternoon_pressure_hpa", SAME_DAY),
    "Morning Temp": ("morning_temp_k", SAME_DAY),
    "Afternoon Temp": ("afternoon_temp_k", SAME_DAY),
    "Total Precipitation": ("precipitation_mm", NEXT_MORNING),
}
"""Published column -> covariate name, and how long after local midnight of its day it is known."""

HEADER = ("Date", "State", *COLUMNS)

read_files = functools.partial(
    read_product, source=SOURCE, folder="n2f_electricity", files=[f"{FILE}*"]
)
"""Yields the table of a mode, plain or gzipped. It is not published daily: live mode has none."""


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse the table into ``COVARIATE_SCHEMA``; a missing value has no row."""
    table = tables.read_table(read_text(raw.content, raw.name), raw.name, HEADER)
    table = tables.to_stamp(table, raw.name, "Date", ("%Y-%m-%d",))
    table = tables.to_number(table, raw.name, list(COLUMNS), missing=MISSING_CELLS)

    # The table names states, this project names market regions: NSW is NSW1.
    regions = {region.removesuffix("1"): region for region in LOCAL_ZONES}
    is_unknown = ~pl.col("State").is_in(list(regions))
    remedy = f"expected one of {', '.join(regions)}"
    tables.raise_if_rows(table, raw.name, is_unknown, "State is {State!r}", remedy)
    tables.raise_if_duplicates(table, raw.name, ["Date", "State"])

    values = table.unpivot(
        on=list(COLUMNS), index=["Date", "State"], variable_name="column"
    ).drop_nulls("value")

    names = {column: name for column, (name, _) in COLUMNS.items()}
    delays = {column: delay for column, (_, delay) in COLUMNS.items()}
    values = values.with_columns(
        pl.col("State").replace_strict(regions).alias("entity"),
        pl.col("column").replace_strict(names).alias("name"),
        pl.col("Date").dt.date().alias("valid_date"),
        (pl.col("Date") + pl.col("column").replace_strict(delays)).alias("known_local"),
        pl.lit(raw.label).alias("source"),
    )

    # A column has one time zone, so each region's rows are converted on their own.
    known = pl.coalesce(
        pl.when(pl.col("entity") == region).then(
            pl.col("known_local").dt.replace_time_zone(zone).dt.convert_time_zone("UTC")
        )
        for region, zone in LOCAL_ZONES.items()
    )
    values = values.with_columns(known.alias("available_at"))
    ordered = values.sort("entity", "name", "valid_date")
    return ordered.select(pl.col(name).cast(kind) for name, kind in COVARIATE_SCHEMA.items())
