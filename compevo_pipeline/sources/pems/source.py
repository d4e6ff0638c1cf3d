"""Caltrans PeMS: station-hour text files, station metadata, and what each mode reads.

What belongs here: these two formats, dispatch by file name. What does not: five-minute files
(``pems.five_minutes``), the local clock and flags (``pems.hours``), the 862-sensor benchmark table
(``pems.benchmark_862``), log-in and download (``pems.live``), filling.

A station-hour file has no header and 42 comma-separated columns. Occupancy is a fraction of time, 0
to 1. Numbers may be imputed by PeMS: the share of observed samples is a series of its own, and an
occupancy with no observed sample at all is flagged as filled.

Published at https://pems.dot.ca.gov/ (Data Clearinghouse; needs a free account).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    find_archive_files,
    read_archive_file,
    wrap_sample,
)
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.tables import (
    BLANK,
    LINE,
    read_table,
    refuse_duplicates,
    to_number,
)
from compevo_pipeline.sources.common.unpack import gunzip
from compevo_pipeline.sources.pems import benchmark_862, five_minutes, sample
from compevo_pipeline.sources.pems.hours import build_hours
from compevo_pipeline.sources.pems.rows import read_station_rows

SOURCE = "pems"
FOLDER = "traffic"
DELAY_LIMITS_MPH = (35, 40, 45, 50, 55, 60)
LANES = range(1, 9)

HOUR_COLUMNS = (
    *("stamp", "station", "district", "freeway", "direction", "lane_type", "length"),
    *("samples", "pct_observed", "flow", "occupancy", "speed_mph"),
    *(f"delay_{limit}" for limit in DELAY_LIMITS_MPH),
    *(f"lane{lane}_{name}" for lane in LANES for name in ("flow", "occupancy", "speed_mph")),
)
"""The 42 columns of a station-hour file, in order."""

META_COLUMNS = (
    *("ID", "Fwy", "Dir", "District", "County", "City", "State_PM", "Abs_PM"),
    *("Latitude", "Longitude", "Length", "Type", "Lanes", "Name"),
    *("User_ID_1", "User_ID_2", "User_ID_3", "User_ID_4"),
)
"""The columns of a station metadata file, in order."""

MAX_TEXT_BYTES = 2**30
"""Largest unpacked file; a month of the largest district is above half of it."""

_META_NUMBERS = ("Abs_PM", "Latitude", "Longitude", "Length", "Lanes")
HOUR_FILE = "_text_station_hour_"
_BENCHMARK_FILE = "traffic."


def read_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the traffic files of a mode.

    ``archive`` gives the benchmark table (``traffic/traffic.csv.gz`` or ``traffic.txt.gz``) and any
    station-hour files that were downloaded by hand into ``traffic/``; ``sample`` gives three
    synthetic station-hour months of 2016.

    Raises:
        SourceAbsent: the folder has neither.
    """
    if mode is Mode.SAMPLE:
        for name, content in sample.make_station_hour_files():
            yield wrap_sample(SOURCE, name, content)
        return

    paths = find_archive_files(archive, FOLDER, "*")
    chosen = [
        path
        for path in paths
        if path.name.startswith(_BENCHMARK_FILE) or is_station_file(path.name)
    ]
    if not chosen:
        raise SourceAbsent(
            f"no traffic.csv.gz and no *_text_station_hour_*.txt.gz under {paths[0].parent}; "
            "add one of them"
        )
    for path in chosen:
        yield read_archive_file(path, path.parents[1], source=SOURCE, clock=clock)


def parse(raw: RawFile, *, only: Sequence[str] | None = None) -> pl.DataFrame:
    """Parse a station-hour or five-minute file, or the benchmark table, into ``SERIES_SCHEMA``.

    Args:
        raw: the file, gzipped or not.
        only: stations (``"400001"``) or sensor numbers (``"0"``) to parse; all by default. The full
            benchmark table makes 15 million rows.

    Raises:
        SourceTransient: a damaged or empty file.
        SchemaDrift: the file breaks its format.
    """
    text = _read_text(raw)
    if HOUR_FILE in raw.name:
        return parse_station_hour(text, raw, only)
    if five_minutes.FILE in raw.name:
        return five_minutes.parse(text, raw, only)
    if raw.name.startswith(_BENCHMARK_FILE):
        return benchmark_862.parse_table(text, raw, only)

    raise SchemaDrift(
        f"{raw.name}: neither a station_hour or station_5min file nor traffic.csv/.txt; "
        "see the file names on the clearinghouse"
    )


def parse_chosen(raw: RawFile, *, stations: Sequence[str]) -> pl.DataFrame:
    """Parse a file as :func:`parse`; of a published station file, the chosen stations alone.

    Args:
        raw: the file.
        stations: their numbers; none are all. The benchmark table has sensors without stations.

    Raises:
        SourceTransient: a damaged or empty file.
        SchemaDrift: the file breaks its format, or has none of the stations.
    """
    if not stations or raw.mode is Mode.SAMPLE or not is_station_file(raw.name):
        return parse(raw)

    frame = parse(raw, only=stations)
    if not frame.height:
        raise SchemaDrift(
            f"{raw.name}: none of the stations {', '.join(stations)}; correct "
            "COMPEVO_PEMS_STATIONS, or the district that the files are of"
        )
    return frame


def is_station_file(name: str) -> bool:
    """Return whether a file of this name holds values of stations."""
    return HOUR_FILE in name or five_minutes.FILE in name


def parse_station_hour(text: str, raw: RawFile, only: Sequence[str] | None = None) -> pl.DataFrame:
    """Parse station-hour rows into ``PEMS/<station>`` and ``PEMS_OBSERVED/<station>``.

    The first is occupancy as a fraction, the second the share of observed samples in percent.

    Raises:
        SchemaDrift: a line without 42 cells, a bad timestamp or number, an hour given twice for a
            station, or a timestamp in the hour that daylight saving skips.
    """
    return build_hours(read_station_rows(text, raw.name, HOUR_COLUMNS, only), raw)


def parse_meta(raw: RawFile) -> pl.DataFrame:
    """Parse a station metadata file; the columns :data:`META_COLUMNS`, some of them as numbers.

    Raises:
        SchemaDrift: the header changed, a bad number, or a station given twice.
    """
    table = read_table(_read_text(raw), raw.name, META_COLUMNS, separator="\t")
    refuse_duplicates(table, raw.name, ["ID"])
    return to_number(table, raw.name, _META_NUMBERS, missing=BLANK).drop(LINE)


def _read_text(raw: RawFile) -> str:
    # The archive mode unpacks its files; a raw file made elsewhere may still be packed.
    content = (
        gunzip(raw.content, raw.name, MAX_TEXT_BYTES) if raw.name.endswith(".gz") else raw.content
    )
    return read_text(content, raw.name)
