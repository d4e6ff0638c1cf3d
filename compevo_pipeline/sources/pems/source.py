"""Caltrans PeMS (https://pems.dot.ca.gov/): what each mode reads, and the parser of each file.

What belongs here: dispatch by file name. What does not: formats (``pems.parse``), log-in and
download (``pems.live``).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.common.decode import gunzip, read_text
from compevo_pipeline.sources.pems import parse as parsers
from compevo_pipeline.sources.sample_archive import read_product

SOURCE = "pems"
FOLDER = "traffic"
HOUR_FILE = "_text_station_hour_"
FIVE_MINUTE_FILE = "_text_station_5min_"
BENCHMARK_FILE = "traffic."
MAX_TEXT_BYTES = 2**30
"""Largest unpacked file; a month of the largest district is above half of it."""


def read_files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the traffic files of a mode.

    ``archive`` gives the benchmark table (``traffic/traffic.csv.gz`` or ``traffic.txt.gz``) and any
    station files that were downloaded by hand into ``traffic/``; ``sample`` gives three synthetic
    station-hour months of 2016.

    Raises:
        SourceAbsent: the folder has neither.
    """
    files = [f"{BENCHMARK_FILE}*", f"*{HOUR_FILE}*", f"*{FIVE_MINUTE_FILE}*"]
    yield from read_product(mode, archive, clock, source=SOURCE, folder=FOLDER, files=files)


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
    text = read_file_text(raw)
    if HOUR_FILE in raw.name:
        return parsers.parse_station_hour(text, raw, only)
    if FIVE_MINUTE_FILE in raw.name:
        return parsers.parse_five_minutes(text, raw, only)
    if raw.name.startswith(BENCHMARK_FILE):
        return parsers.parse_benchmark(text, raw, only)

    raise SchemaDrift(
        f"{raw.name}: neither a station_hour or station_5min file nor traffic.csv/.txt; "
        "see the file names on the clearinghouse"
    )


def parse_chosen(raw: RawFile, *, stations: Sequence[str]) -> pl.DataFrame:
    """Parse a file as :func:`parse`; of a published station file, the chosen stations alone.

    Args:
        raw: the file.
        stations: their numbers, or empty for all. The benchmark table has no stations.

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
    return HOUR_FILE in name or FIVE_MINUTE_FILE in name


def read_file_text(raw: RawFile) -> str:
    """Return the text of a file; only the archive mode unpacks what is gzipped.

    Raises:
        SourceTransient, SchemaDrift: damaged, empty, too large or no text.
    """
    is_packed = raw.name.endswith(".gz")
    content = gunzip(raw.content, raw.name, MAX_TEXT_BYTES) if is_packed else raw.content
    return read_text(content, raw.name)
