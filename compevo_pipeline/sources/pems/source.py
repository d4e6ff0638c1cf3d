"""Caltrans PeMS (https://pems.dot.ca.gov/) as series: its files in each mode, and their formats.

What belongs here: station hours, five-minute files, the 862-sensor benchmark table. What does not:
log-in and download (``pems.live``), filling.

Station files have no header. Their timestamps are the *begin* of an interval on the local wall
clock: the hour that daylight saving skips is absent, and the hour that comes twice in November is
ambiguous, so both of its UTC hours are nulled rather than guessed. A month's station-hour file
appears when the month is over, a day's five-minute file days later, at first perhaps cut short.
"""

import functools
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from compevo_core.errors import SchemaDrift, SourceError
from compevo_pipeline.sources.common import tables
from compevo_pipeline.sources.common.base import Mode, RawFile, read_product
from compevo_pipeline.sources.common.decode import gunzip, read_text
from compevo_pipeline.sources.common.tables import Period, expect_month

SOURCE = "pems"
FOLDER = "traffic"
HOUR_FILE = "_text_station_hour_"
FIVE_MINUTE_FILE = "_text_station_5min_"
BENCHMARK_FILE = "traffic."
FILE_NAME = re.compile(
    r"d(?P<district>\d\d)_text_[a-z0-9_]+_(?P<year>\d{4})_(?P<month>\d\d)(?:_(?P<day>\d\d))?"
    r"\.txt(?:\.gz)?"
)
"""Name of a file of the clearinghouse; a name without a day means a whole month."""

MAX_TEXT_BYTES = 2**30  # largest unpacked file; a month of the largest district is above half of it
LOCAL_ZONE = "America/Los_Angeles"
_PLACE = ("station", "district", "freeway", "direction", "lane_type", "length")
_MEASURES = ("samples", "pct_observed", "flow", "occupancy", "speed_mph")
STATION_COLUMNS = ("stamp", *_PLACE, *_MEASURES)
LANES = range(1, 9)
HOUR_COLUMNS = (
    *STATION_COLUMNS,
    *(f"delay_{limit_mph}" for limit_mph in (35, 40, 45, 50, 55, 60)),
    *(f"lane{lane}_{name}" for lane in LANES for name in ("flow", "occupancy", "speed_mph")),
)
"""The 42 columns of a station-hour file, in order."""

FIVE_MINUTE_COLUMNS = (
    *STATION_COLUMNS,
    *(
        f"lane{lane}_{name}"
        for lane in LANES
        for name in ("samples", "flow", "occupancy", "speed_mph", "observed")
    ),
)
"""The 52 columns of a five-minute file, in order."""

SENSORS = 862
HOURS = 17_544
FIRST_HOUR_UTC = datetime(2015, 1, 1, 8, tzinfo=UTC)  # 2015-01-01 00:00 at UTC-8
_HOUR = timedelta(hours=1)
_INTERVAL = timedelta(minutes=5)
_INTERVALS = 12
_DAY_SLOTS = 24 * _INTERVALS  # on the clock's face: an hour that comes twice counts once
_SLOT = re.compile(r'^"?(\d\d/\d\d/\d{4} \d\d:\d\d)', re.MULTILINE)
_AMBIGUOUS = "nulled:ambiguous-dst-hour"
_RIGHT_FIRST = datetime(2015, 1, 1)  # noqa: DTZ001  # naive, as in the file
_WRONG_FIRST = datetime(2016, 7, 1, 2)  # noqa: DTZ001  # naive, as in the file

read_files = functools.partial(
    read_product,
    source=SOURCE,
    folder=FOLDER,
    files=[f"{BENCHMARK_FILE}*", f"*{HOUR_FILE}*", f"*{FIVE_MINUTE_FILE}*"],
)
"""Yields the files of a mode: ``archive`` the benchmark table and station files that a person
downloaded, ``sample`` three synthetic station-hour months of 2016."""


def read_periods(raw: RawFile) -> list[Period]:
    """Return the period that a file's name states: its month or day on the local clock."""
    name = FILE_NAME.fullmatch(raw.name)
    if name is None:
        return []
    year, month, zone = int(name["year"]), int(name["month"]), ZoneInfo(LOCAL_ZONE)
    if name["day"] is None:
        return [expect_month(year, month, zone)]
    midnight = datetime(year, month, int(name["day"]), tzinfo=zone)
    following = midnight + timedelta(days=1)  # a day of the clock, of 23 to 25 hours
    return [Period(first=midnight.astimezone(UTC), end=following.astimezone(UTC))]


def describe_short(raw: RawFile) -> str:
    """Return how many slots a five-minute file holds if its day has more, or an empty text.

    The day that summer time begins has 276, every other 288.
    """
    if FIVE_MINUTE_FILE not in raw.name:
        return ""
    try:
        text = read_file_text(raw)
    except SourceError:
        return ""  # the parser says what is wrong with it

    (day,) = read_periods(raw)
    expected = min(_DAY_SLOTS, (day.end - day.first) // _INTERVAL)
    slots = len({match[1] for match in _SLOT.finditer(text)})
    return f"{slots} of {expected} five-minute slots" if slots < expected else ""


def parse(raw: RawFile, *, stations: Sequence[str] = ()) -> pl.DataFrame:
    """Parse a station-hour or five-minute file, or the benchmark table, into ``SERIES_SCHEMA``.

    Rows of station hours become ``PEMS/<station>``, occupancy as a fraction of time, and
    ``PEMS_OBSERVED/<station>``, the share of observed samples in percent. PeMS fills detectors that
    sent nothing: a value without any observed sample is flagged. Of a published station file only
    ``stations`` (``"400001"``) are kept, if any are named.
    """
    text = read_file_text(raw)
    chosen = () if raw.mode is Mode.SAMPLE else stations
    if HOUR_FILE in raw.name:
        hours = _read_station_rows(text, raw.name, HOUR_COLUMNS, chosen)
    elif FIVE_MINUTE_FILE in raw.name:
        hours = _average_hours(
            _read_station_rows(text, raw.name, FIVE_MINUTE_COLUMNS, chosen), raw.name
        )
    elif raw.name.startswith(BENCHMARK_FILE):
        return _parse_benchmark(text, raw)
    else:
        raise SchemaDrift(
            f"{raw.name}: neither a station_hour or station_5min file nor traffic.csv/.txt; "
            "see the file names on the clearinghouse"
        )

    if not hours.height:
        raise SchemaDrift(
            f"{raw.name}: none of the stations {', '.join(chosen)}; correct "
            "COMPEVO_PEMS_STATIONS, or use files of another district"
        )
    return _build_hours(hours, raw)


def has_values(name: str) -> bool:
    """Return whether a file of this name holds values, of stations or of the benchmark."""
    return HOUR_FILE in name or FIVE_MINUTE_FILE in name or name.startswith(BENCHMARK_FILE)


def read_file_text(raw: RawFile) -> str:
    """Return the text of a file; only the archive mode unpacks what is gzipped."""
    is_packed = raw.name.endswith(".gz")
    content = gunzip(raw.content, raw.name, MAX_TEXT_BYTES) if is_packed else raw.content
    return read_text(content, raw.name)


def _average_hours(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return a row per station and local hour of a day's five-minute rows.

    An hour has a value, as PeMS' own the mean, if all twelve intervals have one, a fraction.
    """
    off_grid = pl.col("stamp") != pl.col("stamp").dt.truncate(_INTERVAL)
    problem = "{stamp} is not a five-minute interval"
    tables.raise_if_rows(table, name, off_grid, problem, "fetch it again")
    # The repeated hour has every interval twice, and is nulled as a whole.
    is_repeated = (_to_utc("earliest") != _to_utc("latest")).fill_null(value=False)
    tables.raise_if_duplicates(table.filter(~is_repeated), name, ["station", "stamp"])

    hour = pl.col("stamp").dt.truncate("1h")
    # A mean with an impossible part looks possible.
    is_complete = pl.col("occupancy").is_between(0.0, 1.0).sum() == _INTERVALS
    return table.group_by("station", hour, maintain_order=True).agg(
        pl.col(tables.LINE).first(),
        pl.col("pct_observed").mean(),
        pl.when(is_complete).then(pl.col("occupancy").mean()).alias("occupancy"),
    )


def _parse_benchmark(text: str, raw: RawFile) -> pl.DataFrame:
    """Parse the 862-sensor table (Lai 2018) into series ``PEMS862/<sensor>``, a fraction.

    It circulates as a headerless text, as a CSV whose dates are wrong, and as cuts of some sensors
    with right dates. It has neither stations nor timestamps: its rows are 731 days of 24 hours from
    2015-01-01 on, and its clock is *standard time all year* (UTC-8), as weekday peaks move from 7-8
    to 6-7 o'clock on the very days daylight saving starts. The dates of the common CSV (from
    2016-07-01 02:00) are not the publisher's and are replaced.
    """
    header = tables.split_cells(text.split("\n", 1)[0])
    if header[0].lower() == "date":
        table = _read_dated(text, raw.name, header)
    elif len(header) == SENSORS:
        table = tables.read_rows(text, raw.name, [str(index) for index in range(SENSORS)])
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

    sensors = [name for name in table.columns if name != tables.LINE]
    table = tables.to_number(table, raw.name, sensors, missing=tables.BLANK)
    hours = pl.datetime_range(
        FIRST_HOUR_UTC, FIRST_HOUR_UTC + (HOURS - 1) * _HOUR, _HOUR, time_unit="us", eager=True
    )
    # Rows are dated by their position: the published timestamps are absent or wrong.
    dated = table.drop(tables.LINE).with_columns(hours.alias("start_utc"))
    return tables.build_series_frame(
        dated.unpivot(index="start_utc", variable_name="sensor", value_name="value"),
        raw,
        series_id=pl.lit("PEMS862/") + pl.col("sensor"),
        variable="occupancy",
        unit="fraction",
    )


def _read_dated(text: str, file_name: str, header: Sequence[str]) -> pl.DataFrame:
    """Read a table whose first column is a timestamp, checked and then dropped."""
    # The common CSV calls the last sensor OT.
    sensors = [str(SENSORS - 1) if name == "OT" else name for name in header[1:]]
    known = {str(index) for index in range(SENSORS)}
    unknown = [sensor for sensor in sensors if sensor not in known]
    if unknown or not sensors or len(set(sensors)) != len(sensors):
        raise SchemaDrift(
            f"{file_name}, line 1: sensors {unknown[:5] or sensors[:5]} are not distinct numbers "
            f"from 0 to {SENSORS - 1}; this is not the 862-sensor table"
        )

    table = tables.read_table(text, file_name, header)
    table = table.rename(dict(zip(header, ("stamp", *sensors), strict=True)))
    stamps = tables.to_stamp(
        table.select(tables.LINE, "stamp"), file_name, "stamp", ("%Y-%m-%d %H:%M:%S",)
    )
    tables.raise_if_gaps(stamps, file_name, "stamp", _HOUR)
    if stamps[0, "stamp"] not in {_RIGHT_FIRST, _WRONG_FIRST}:
        raise SchemaDrift(
            f"{file_name}, line 2: first timestamp {stamps[0, 'stamp']}, but the benchmark starts "
            f"{_RIGHT_FIRST} (or, misdated, {_WRONG_FIRST}); rows are missing at the start, "
            "fetch it again"
        )
    return table.drop("stamp")


def _read_station_rows(
    text: str, name: str, columns: Sequence[str], stations: Sequence[str]
) -> pl.DataFrame:
    """Read ``line``, ``stamp``, ``station``, ``pct_observed`` and ``occupancy`` of every row.

    A month of a district is half a gigabyte of text, so it is split into cells part by part.
    """
    named = FILE_NAME.fullmatch(name)
    district = int(named["district"]) if named else None
    parts = []
    for first_line, part in tables.cut_at_lines(text):
        table = tables.read_rows(part, name, columns, first_line=first_line)
        if district is not None:
            is_other = pl.col("district").cast(pl.Int64, strict=False) != district
            problem = f"district {{district}}, not {district} as the file's name says"
            tables.raise_if_rows(table, name, is_other, problem, "fetch the file again")

        # The other columns are split only for the cell count.
        table = table.select(tables.LINE, "stamp", "station", "pct_observed", "occupancy")
        if stations:
            table = table.filter(pl.col("station").is_in(list(stations)))

        table = tables.to_stamp(table, name, "stamp", ("%m/%d/%Y %H:%M:%S",))
        table = tables.to_number(table, name, ["pct_observed", "occupancy"], missing=tables.BLANK)
        # A station occurs in thousands of rows: its text is kept once, not as parts of the file.
        parts.append(table.with_columns(pl.col("station").cast(pl.Categorical)))
    return pl.concat(parts)


def _build_hours(table: pl.DataFrame, raw: RawFile) -> pl.DataFrame:
    """Build both series from a row per station and local hour; the repeated hour once or twice."""
    table = table.with_columns(earliest=_to_utc("earliest"), latest=_to_utc("latest"))
    tables.raise_if_rows(
        table,
        raw.name,
        pl.col("earliest").is_null(),
        f"{{stamp}} does not exist in {LOCAL_ZONE} (daylight saving starts)",
        "PeMS leaves that hour out: check whether the file is in standard time",
    )

    table = table.with_columns(is_ambiguous=pl.col("earliest") != pl.col("latest"))
    certain = table.filter(~pl.col("is_ambiguous"))
    tables.raise_if_duplicates(certain, raw.name, ["station", "stamp"])

    # The repeated hour may be in the file once or twice; either way it gives two null hours.
    ambiguous = table.filter("is_ambiguous").unique(
        ("station", "stamp"), keep="first", maintain_order=True
    )
    both = [ambiguous.with_columns(start_utc=pl.col(which)) for which in ("earliest", "latest")]
    hours = pl.concat([certain.with_columns(start_utc="earliest"), *both])
    is_ambiguous = pl.when("is_ambiguous").then(pl.lit(_AMBIGUOUS))
    flag = (
        is_ambiguous.when(pl.col("occupancy").is_null())
        .then(pl.lit(tables.MISSING))
        .when(~pl.col("occupancy").is_between(0.0, 1.0))
        .then(pl.lit("nulled:out-of-range"))
        # PeMS fills detectors that sent nothing; its value is an estimate.
        .when(pl.col("pct_observed") == 0)
        .then(pl.lit("filled:pems-imputed"))
        .otherwise(pl.lit(tables.OBSERVED))
    )
    has_value = (flag == tables.OBSERVED) | flag.str.starts_with("filled:")
    occupancy = tables.build_series_frame(
        hours,
        raw,
        series_id=pl.lit("PEMS/") + pl.col("station"),
        variable="occupancy",
        value=pl.when(has_value).then("occupancy"),
        unit="fraction",
        flag=flag,
    )

    share = pl.when(~pl.col("is_ambiguous")).then("pct_observed")
    observed = tables.build_series_frame(
        hours,
        raw,
        series_id=pl.lit("PEMS_OBSERVED/") + pl.col("station"),
        variable="pct_observed",
        value=share,
        unit="%",
        flag=is_ambiguous.otherwise(tables.flag_missing(share)),
    )
    return pl.concat([occupancy, observed])


def _to_utc(which: str) -> pl.Expr:
    local = pl.col("stamp").dt.replace_time_zone(
        LOCAL_ZONE,
        ambiguous=which,  # type: ignore[arg-type]  # "earliest" or "latest"
        non_existent="null",
    )
    return local.dt.convert_time_zone("UTC")
