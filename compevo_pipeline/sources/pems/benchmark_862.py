"""The 862-sensor traffic benchmark (Lai 2018): hourly road occupancy of the Bay Area, 2015-2016.

What belongs here: the benchmark table in its three circulating forms (the original headerless text,
the common CSV whose dates are wrong, a cut of some sensors with right dates). What does not: PeMS'
own files (``pems.source``).

The table has neither stations nor timestamps. Its 17,544 rows are 731 days of 24 hours, 2015-01-01
to 2016-12-31, and its clock is *standard time all year* (UTC-8): weekday peaks move from 7-8 to 6-7
o'clock on the very days daylight saving starts, and back when it ends. The timestamps of the common
CSV (from 2016-07-01 02:00) are not the publisher's and are replaced.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.series_frame import build_series_frame, flag_missing
from compevo_pipeline.sources.common.tables import (
    BLANK,
    LINE,
    read_rows,
    read_table,
    refuse_irregular_rows,
    split_cells,
    to_number,
    to_stamp,
)

SENSORS = 862
HOURS = 17_544
FIRST_HOUR_UTC = datetime(2015, 1, 1, 8, tzinfo=UTC)
"""2015-01-01 00:00 at UTC-8."""

_RIGHT_FIRST = datetime(2015, 1, 1)  # noqa: DTZ001  # naive, as in the file
_WRONG_FIRST = datetime(2016, 7, 1, 2)  # noqa: DTZ001  # naive, as in the file
_STAMP_FORMAT = "%Y-%m-%d %H:%M:%S"
_HOUR = timedelta(hours=1)


def parse_table(text: str, raw: RawFile, only: Sequence[str] | None = None) -> pl.DataFrame:
    """Parse the table into series ``PEMS862/<sensor>``, occupancy as a fraction.

    Args:
        text: the decoded file.
        raw: the file it comes from.
        only: sensor numbers to parse, as text; all by default (15 million rows for the full table).

    Raises:
        SchemaDrift: not 17,544 rows an hour apart, a first timestamp that is neither of the two
            known, sensors out of 0 to 861, a cell that is not a number, or a requested sensor that
            the table does not have.
    """
    header = split_cells(text.split("\n", 1)[0])
    if header[0].lower() == "date":
        table = _read_dated(text, raw.name, header)
    elif len(header) == SENSORS:
        table = read_rows(text, raw.name, [str(index) for index in range(SENSORS)])
    else:
        raise SchemaDrift(
            f"{raw.name}, line 1: neither a header 'date,0,1,...' nor {SENSORS} numbers; "
            "this is not the benchmark table"
        )

    if table.height != HOURS:
        raise SchemaDrift(
            f"{raw.name}: {table.height} rows, not {HOURS}; the benchmark table is cut, "
            "fetch it again"
        )

    sensors = [name for name in table.columns if name != LINE]
    wanted = sensors if only is None else list(only)
    # A cut of the table has some sensors only.
    absent = [sensor for sensor in wanted if sensor not in sensors]
    if absent:
        raise SchemaDrift(
            f"{raw.name}: no sensor {absent[:5]}; the table has {len(sensors)}, "
            f"{sensors[0]} to {sensors[-1]}: correct the requested sensors"
        )

    # Selected before numbers are parsed: the full table has 15 million cells.
    return _build_series(table.select(LINE, *wanted), wanted, raw)


def _read_dated(text: str, file_name: str, header: Sequence[str]) -> pl.DataFrame:
    """Read a table whose first column is a timestamp, checked and then dropped."""
    sensors = _read_sensors(header[1:], file_name)
    table = read_table(text, file_name, header)
    table = table.rename(dict(zip(header, ("stamp", *sensors), strict=True)))

    stamps = to_stamp(table.select(LINE, "stamp"), file_name, "stamp", (_STAMP_FORMAT,))
    refuse_irregular_rows(stamps, file_name, "stamp", _HOUR)
    if stamps[0, "stamp"] not in {_RIGHT_FIRST, _WRONG_FIRST}:
        raise SchemaDrift(
            f"{file_name}, line 2: first timestamp {stamps[0, 'stamp']}, but the benchmark starts "
            f"{_RIGHT_FIRST} (or, misdated, {_WRONG_FIRST}); rows are missing at the start, "
            "fetch it again"
        )
    return table.drop("stamp")


def _read_sensors(names: Sequence[str], file_name: str) -> list[str]:
    """Return sensor numbers; the common CSV calls the last one ``OT``."""
    sensors = [str(SENSORS - 1) if name == "OT" else name for name in names]

    known = {str(index) for index in range(SENSORS)}
    unknown = [sensor for sensor in sensors if sensor not in known]
    if unknown or not sensors or len(set(sensors)) != len(sensors):
        raise SchemaDrift(
            f"{file_name}, line 1: sensors {unknown[:5] or sensors[:5]} are not distinct numbers "
            f"from 0 to {SENSORS - 1}; this is not the 862-sensor table"
        )
    return sensors


def _build_series(table: pl.DataFrame, sensors: Sequence[str], raw: RawFile) -> pl.DataFrame:
    table = to_number(table, raw.name, sensors, missing=BLANK)
    hours = pl.datetime_range(
        FIRST_HOUR_UTC, FIRST_HOUR_UTC + (HOURS - 1) * _HOUR, _HOUR, time_unit="us", eager=True
    )

    # Rows are dated by their position: the published timestamps are absent or wrong.
    table = table.drop(LINE).with_columns(hours.alias("start_utc"))
    rows = table.unpivot(index="start_utc", variable_name="sensor", value_name="value")
    return build_series_frame(
        rows,
        raw,
        series_id=pl.lit("PEMS862/") + pl.col("sensor"),
        variable="occupancy",
        start_utc=pl.col("start_utc"),
        value=pl.col("value"),
        unit="fraction",
        flag=flag_missing(pl.col("value")),
    )
