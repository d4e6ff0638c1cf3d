"""Caltrans PeMS: station-hour text files, station metadata, and what each mode reads.

What belongs here: the clearinghouse's own formats. What does not: the 862-sensor benchmark table
(``pems.benchmark_862``), log-in and download, filling.

A station-hour file has no header and 42 comma-separated columns. Its timestamp is the *begin* of
the hour on the local wall clock: the hour that daylight saving skips is absent, and the hour that
comes twice in November cannot be told apart, so both of its UTC hours are nulled rather than
guessed. Occupancy is a fraction of time, 0 to 1. Numbers may be imputed by PeMS: the share of
observed samples is a series of its own, and an occupancy with no observed sample at all is flagged
as filled.

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
from compevo_pipeline.sources.common.series_frame import MISSING, OBSERVED, build_series_frame
from compevo_pipeline.sources.common.tables import (
    BLANK,
    LINE,
    read_rows,
    read_table,
    refuse_duplicates,
    refuse_rows,
    to_number,
    to_stamp,
)
from compevo_pipeline.sources.common.unpack import gunzip
from compevo_pipeline.sources.pems import benchmark_862, sample

SOURCE = "pems"
LOCAL_ZONE = "America/Los_Angeles"
STAMP_FORMAT = "%m/%d/%Y %H:%M:%S"
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

_META_NUMBERS = ("Abs_PM", "Latitude", "Longitude", "Length", "Lanes")
_AMBIGUOUS = "nulled:ambiguous-dst-hour"
_HOUR_FILE = "_text_station_hour_"
_BENCHMARK_FILE = "traffic."


def read_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the traffic files of a mode.

    ``archive`` gives the benchmark table (``traffic/traffic.csv.gz`` or ``traffic.txt.gz``) and any
    station-hour files that were downloaded by hand into ``traffic/``; ``sample`` gives three
    synthetic station-hour months of 2016.

    Raises:
        SourceAbsent: the folder has neither; or the mode is live, which needs an account and manual
            download.
    """
    if mode is Mode.LIVE:
        raise SourceAbsent(
            "PeMS needs a personal account: download station_hour files from the clearinghouse "
            "into <COMPEVO_ARCHIVE>/traffic and use archive mode"
        )

    if mode is Mode.SAMPLE:
        for name, content in sample.make_station_hour_files():
            yield wrap_sample(SOURCE, name, content)
        return

    paths = find_archive_files(archive, "traffic", "*")
    chosen = [
        path for path in paths if path.name.startswith(_BENCHMARK_FILE) or _HOUR_FILE in path.name
    ]
    if not chosen:
        raise SourceAbsent(
            f"no traffic.csv.gz and no *_text_station_hour_*.txt.gz under {paths[0].parent}; "
            "add one of them"
        )
    for path in chosen:
        yield read_archive_file(path, path.parents[1], source=SOURCE, clock=clock)


def parse(raw: RawFile, *, only: Sequence[str] | None = None) -> pl.DataFrame:
    """Parse a station-hour file or the benchmark table into ``SERIES_SCHEMA``.

    Args:
        raw: the file, gzipped or not.
        only: stations (``"400001"``) or sensor numbers (``"0"``) to parse; all by default. The full
            benchmark table makes 15 million rows.

    Raises:
        SourceTransient: a damaged or empty file.
        SchemaDrift: the file breaks its format.
    """
    text = _read_text(raw)
    if _HOUR_FILE in raw.name:
        return parse_station_hour(text, raw, only)
    if raw.name.startswith(_BENCHMARK_FILE):
        return benchmark_862.parse_table(text, raw, only)

    raise SchemaDrift(
        f"{raw.name}: neither a station_hour file nor traffic.csv/.txt; "
        "see the file names on the clearinghouse"
    )


def parse_station_hour(text: str, raw: RawFile, only: Sequence[str] | None = None) -> pl.DataFrame:
    """Parse station-hour rows into ``PEMS/<station>`` and ``PEMS_OBSERVED/<station>``.

    The first is occupancy as a fraction, the second the share of observed samples in percent.

    Raises:
        SchemaDrift: a line without 42 cells, a bad timestamp or number, an hour given twice for a
            station, or a timestamp in the hour that daylight saving skips.
    """
    table = read_rows(text, raw.name, HOUR_COLUMNS)
    # The other 38 columns are split for the cell count alone.
    table = table.select(LINE, "stamp", "station", "pct_observed", "occupancy")
    if only is not None:
        table = table.filter(pl.col("station").is_in(list(only)))

    table = to_stamp(table, raw.name, "stamp", (STAMP_FORMAT,))
    table = to_number(table, raw.name, ["pct_observed", "occupancy"], missing=BLANK)
    hours = _to_utc_hours(table, raw.name)
    return pl.concat([_occupancy_series(hours, raw), _observed_series(hours, raw)])


def parse_meta(raw: RawFile) -> pl.DataFrame:
    """Parse a station metadata file; the columns :data:`META_COLUMNS`, some of them as numbers.

    Raises:
        SchemaDrift: the header changed, a bad number, or a station given twice.
    """
    table = read_table(_read_text(raw), raw.name, META_COLUMNS, separator="\t")
    refuse_duplicates(table, raw.name, ["ID"])
    return to_number(table, raw.name, _META_NUMBERS, missing=BLANK).drop(LINE)


def read_meta_file(archive: Path | None, clock: Clock) -> RawFile:
    """Return the newest station metadata file of the archive, for :func:`parse_meta`."""
    path = find_archive_files(archive, "traffic", "d*_text_meta_*.txt*")[-1]
    return read_archive_file(path, path.parents[1], source=SOURCE, clock=clock)


def _read_text(raw: RawFile) -> str:
    # The archive mode unpacks its files; a raw file made elsewhere may still be packed.
    content = gunzip(raw.content, raw.name) if raw.name.endswith(".gz") else raw.content
    return read_text(content, raw.name)


def _to_utc_hours(table: pl.DataFrame, file_name: str) -> pl.DataFrame:
    """Add ``start_utc`` and ``is_ambiguous``; a repeated local hour gives two rows."""
    earliest, latest = (
        pl.col("stamp")
        .dt.replace_time_zone(LOCAL_ZONE, ambiguous=which, non_existent="null")
        .dt.convert_time_zone("UTC")
        for which in ("earliest", "latest")
    )
    table = table.with_columns(earliest=earliest, latest=latest)

    refuse_rows(
        table,
        file_name,
        pl.col("earliest").is_null(),
        f"{{stamp}} does not exist in {LOCAL_ZONE} (daylight saving starts)",
        "PeMS leaves that hour out: check whether the file is in standard time",
    )

    table = table.with_columns(is_ambiguous=pl.col("earliest") != pl.col("latest"))
    certain = table.filter(~pl.col("is_ambiguous"))
    refuse_duplicates(certain, file_name, ["station", "stamp"])

    # The repeated hour may stand in the file once or twice; either way it gives two null hours.
    ambiguous = table.filter("is_ambiguous").unique(
        ("station", "stamp"), keep="first", maintain_order=True
    )
    both = [ambiguous.with_columns(start_utc=pl.col(which)) for which in ("earliest", "latest")]
    return pl.concat([certain.with_columns(start_utc="earliest"), *both])


def _occupancy_series(hours: pl.DataFrame, raw: RawFile) -> pl.DataFrame:
    is_impossible = ~pl.col("occupancy").is_between(0.0, 1.0)
    flag = (
        pl.when(pl.col("is_ambiguous"))
        .then(pl.lit(_AMBIGUOUS))
        .when(pl.col("occupancy").is_null())
        .then(pl.lit(MISSING))
        .when(is_impossible)
        .then(pl.lit("nulled:out-of-range"))
        # PeMS fills detectors that sent nothing; its value is an estimate.
        .when(pl.col("pct_observed") == 0)
        .then(pl.lit("filled:pems-imputed"))
        .otherwise(pl.lit(OBSERVED))
    )
    has_value = (flag == OBSERVED) | flag.str.starts_with("filled:")

    return build_series_frame(
        hours,
        raw,
        series_id=pl.lit("PEMS/") + pl.col("station"),
        variable="occupancy",
        start_utc=pl.col("start_utc"),
        value=pl.when(has_value).then("occupancy"),
        unit="fraction",
        flag=flag,
    )


def _observed_series(hours: pl.DataFrame, raw: RawFile) -> pl.DataFrame:
    share = pl.when(~pl.col("is_ambiguous")).then("pct_observed")
    flag = (
        pl.when(pl.col("is_ambiguous"))
        .then(pl.lit(_AMBIGUOUS))
        .when(share.is_null())
        .then(pl.lit(MISSING))
        .otherwise(pl.lit(OBSERVED))
    )

    return build_series_frame(
        hours,
        raw,
        series_id=pl.lit("PEMS_OBSERVED/") + pl.col("station"),
        variable="pct_observed",
        start_utc=pl.col("start_utc"),
        value=share,
        unit="%",
        flag=flag,
    )
