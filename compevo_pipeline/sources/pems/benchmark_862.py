"""The 862-sensor traffic benchmark (Lai 2018): hourly road occupancy of the Bay Area, 2015 and 2016.

What belongs here: the benchmark table in the three forms it goes round in (the original headerless text, the common
CSV whose dates are wrong, a cut of some sensors with right dates). What does not: PeMS' own files (``pems``).

The table has neither stations nor stamps. Its 17,544 rows are 731 days of 24 hours, 2015-01-01 to 2016-12-31, and its
clock is *standard time all year* (UTC-8): weekday peaks move from 7-8 to 6-7 o'clock on the very days daylight saving
starts, and back when it ends. The common CSV's stamps (from 2016-07-01 02:00) are another's invention and are replaced.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.delimited import (
    LINE,
    require_regular,
    split_table,
    to_number,
    to_stamp,
)

SENSORS = 862
HOURS = 17_544
FIRST_HOUR_UTC = datetime(2015, 1, 1, 8, tzinfo=UTC)
"""2015-01-01 00:00 at UTC-8."""

_RIGHT_FIRST = datetime(2015, 1, 1)
_WRONG_FIRST = datetime(2016, 7, 1, 2)
_HOUR = timedelta(hours=1)


def parse_table(text: str, raw: RawFile, keep: Sequence[str] | None = None) -> pl.DataFrame:
    """Parse the table into series ``PEMS862/<sensor>``, occupancy as a fraction.

    Args:
        text: the decoded file.
        raw: where it came from.
        keep: sensor numbers to keep, as text; all where left out (15 million rows for the full table).

    Raises:
        SchemaDrift: not 17,544 rows an hour apart, a first stamp of neither known kind, sensors out of 0..861, a cell
            that is not a number, or a sensor asked for that the table does not hold.
    """
    header = text.split("\n", 1)[0].split(",")
    dated = header[0].lower() == "date"
    if not dated and len(header) != SENSORS:
        message = f"{raw.name}, line 1: neither a header 'date,0,1,...' nor {SENSORS} numbers; not the benchmark table"
        raise SchemaDrift(message)
    sensors = _sensors(
        header[1:] if dated else [str(index) for index in range(len(header))], raw.name
    )
    table = split_table(text, raw.name, header if dated else sensors, header=dated)
    if dated:
        table = table.rename(dict(zip(header, ("stamp", *sensors), strict=True)))
        _check_stamps(
            to_stamp(table.select(LINE, "stamp"), "stamp", ("%Y-%m-%d %H:%M:%S",), raw.name),
            raw.name,
        )
    if table.height != HOURS:
        message = f"{raw.name}: {table.height} rows, not {HOURS}; the benchmark table is cut, fetch it again"
        raise SchemaDrift(message)
    wanted = list(sensors) if keep is None else list(keep)
    absent = [sensor for sensor in wanted if sensor not in sensors]
    if absent:
        message = f"{raw.name}: no sensor {absent[:5]}; it holds {len(sensors)}, {sensors[0]} to {sensors[-1]}"
        raise SchemaDrift(message)
    return _long(table.select(LINE, *wanted), wanted, raw)


def _sensors(names: Sequence[str], name: str) -> list[str]:
    """Return sensor numbers; the common CSV calls the last one ``OT``."""
    sensors = [str(SENSORS - 1) if cell == "OT" else cell for cell in names]
    known = {str(index) for index in range(SENSORS)}
    strange = [cell for cell in sensors if cell not in known]
    if strange or not sensors or len(set(sensors)) != len(sensors):
        message = (
            f"{name}, line 1: sensors {strange[:5] or sensors[:5]} are not distinct numbers from 0 to {SENSORS - 1}; "
            "this is not the 862-sensor table"
        )
        raise SchemaDrift(message)
    return sensors


def _check_stamps(table: pl.DataFrame, name: str) -> None:
    require_regular(table, "stamp", _HOUR, name)
    if table[0, "stamp"] not in {_RIGHT_FIRST, _WRONG_FIRST}:
        message = (
            f"{name}, line 2: first stamp {table[0, 'stamp']}, but the benchmark starts {_RIGHT_FIRST} "
            f"(or, misdated, {_WRONG_FIRST}); rows are missing at the start, fetch it again"
        )
        raise SchemaDrift(message)


def _long(table: pl.DataFrame, sensors: Sequence[str], raw: RawFile) -> pl.DataFrame:
    for sensor in sensors:
        table = to_number(table, sensor, raw.name)
    hours = pl.datetime_range(
        FIRST_HOUR_UTC, FIRST_HOUR_UTC + (HOURS - 1) * _HOUR, _HOUR, time_unit="us", eager=True
    )
    table = table.drop(LINE).with_columns(hours.alias("start_utc"))
    long = table.unpivot(index="start_utc", variable_name="sensor", value_name="value")
    frame = long.select(
        series_id=pl.lit("PEMS862/") + pl.col("sensor"),
        variable=pl.lit("occupancy"),
        start_utc=pl.col("start_utc"),
        value=pl.col("value"),
        unit=pl.lit("fraction"),
        flag=pl.when(pl.col("value").is_null())
        .then(pl.lit("missing"))
        .otherwise(pl.lit("observed")),
        source=pl.lit(raw.label),
        fetched_at=pl.lit(raw.fetched_at),
    )
    return frame.cast(pl.Schema(SERIES_SCHEMA))
