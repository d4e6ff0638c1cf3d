"""Daily weather of the five states, from the collected table beside the News2Forecast benchmark.

What belongs here: this table, and when each of its values could be known. What does not: forecasts of weather; the
table holds observations, so a value for the predicted day itself is hindsight and is never available in time.

Morning and afternoon readings of a day are taken as known from 18:00 local time of that day. Minimum, maximum, wind
and precipitation cover the whole day and are known from 09:00 the next morning, when the Bureau of Meteorology closes
its day. Temperatures stay in kelvin, as published.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import COVARIATE_SCHEMA
from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    archive_files,
    archive_raw,
    sample_raw,
)
from compevo_pipeline.sources.common.nem import LOCAL_ZONES
from compevo_pipeline.sources.common.sample_world import SampleWorld
from compevo_pipeline.sources.common.tables import (
    read_table,
    refuse_duplicates,
    refuse_rows,
    to_number,
    to_stamp,
)

SOURCE = "n2f_weather"
FILE = "combined_weather_data.csv"
SAME_DAY = timedelta(hours=18)
NEXT_MORNING = timedelta(hours=33)
MISSING = ("NA", "")
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
"""Published column -> covariate name, and how long after local midnight of its day the value is known."""
HEADER = ("Date", "State", *COLUMNS)


def raw_files(mode: Mode, *, archive: Path | None = None, clock: Clock) -> Iterator[RawFile]:
    """Yield the weather table of a mode.

    Raises:
        SourceAbsent: live mode (this table is not published daily), or no such file in the archive.
    """
    match mode:
        case Mode.SAMPLE:
            yield sample_raw(SOURCE, FILE, sample_table(SampleWorld()))
        case Mode.ARCHIVE:
            for path in archive_files(archive, "n2f_electricity", f"{FILE}*"):
                yield archive_raw(path, path.parents[1], source=SOURCE, member=None, clock=clock)
        case Mode.LIVE:
            raise SourceAbsent(
                "the weather table has no live endpoint; use the archive or sample mode for weather"
            )


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse the table into ``COVARIATE_SCHEMA``; a missing value has no row.

    Raises:
        SchemaDrift: header, date, state, number or repeat; names file, line and remedy.
    """
    frame = to_number(
        raw, to_stamp(raw, read_table(raw, HEADER), "Date", ("%Y-%m-%d",)), *COLUMNS, empty=MISSING
    )
    states = {region.removesuffix("1"): region for region in LOCAL_ZONES}
    known = pl.col("State").is_in(list(states))
    refuse_rows(raw, frame, ~known, "State is {State!r}", f"expected one of {', '.join(states)}")
    refuse_duplicates(raw, frame, ["Date", "State"])
    long = frame.unpivot(
        on=list(COLUMNS), index=["Date", "State"], variable_name="column"
    ).drop_nulls("value")
    lags = {key: lag for key, (_, lag) in COLUMNS.items()}
    long = long.with_columns(
        pl.col("State").replace_strict(states).alias("entity"),
        pl.col("column")
        .replace_strict({key: name for key, (name, _) in COLUMNS.items()})
        .alias("name"),
        pl.col("Date").dt.date().alias("valid_date"),
        (pl.col("Date") + pl.col("column").replace_strict(lags)).alias("local"),
        pl.lit(raw.label).alias("source"),
    )
    at = [
        pl.when(pl.col("entity") == region).then(
            pl.col("local").dt.replace_time_zone(zone).dt.convert_time_zone("UTC")
        )
        for region, zone in LOCAL_ZONES.items()
    ]
    long = long.with_columns(pl.coalesce(at).alias("available_at"))
    ordered = long.sort("entity", "name", "valid_date")
    return ordered.select(pl.col(name).cast(kind) for name, kind in COVARIATE_SCHEMA.items())


def sample_table(world: SampleWorld) -> bytes:
    """Write the synthetic world's weather in the published layout, CRLF included."""
    rows = [",".join(HEADER)]
    for day in world.weather_days():
        for state, values in world.weather(day):
            rows.append(f"{day:%Y-%m-%d},{state}," + ",".join(f"{value:.2f}" for value in values))
    return "".join(row + "\r\n" for row in rows).encode()
