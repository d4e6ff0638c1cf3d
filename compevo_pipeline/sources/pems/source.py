"""Caltrans PeMS: station-hour text files, station metadata, and what each mode reads.

What belongs here: the clearinghouse's own formats. What does not: the 862-sensor benchmark table (``pems862``), log-in
and download, filling.

A station-hour file has no header and 42 comma-separated columns. Its stamp is the *begin* of the hour on the local wall
clock: the hour that daylight saving skips is absent, and the hour that comes twice in November cannot be told apart, so
both of its UTC hours are nulled rather than guessed. Occupancy is a fraction of time, 0 to 1. Numbers may be imputed by
PeMS: the share of observed samples is kept as a series of its own, and an occupancy with no observed sample at all is
flagged as filled.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    archive_files,
    archive_raw,
    decode_text,
    gunzip,
    refuse_html,
    sample_raw,
)
from compevo_pipeline.sources.common.delimited import (
    LINE,
    refuse_duplicates,
    split_table,
    to_number,
    to_stamp,
)
from compevo_pipeline.sources.pems import benchmark_862 as pems862
from compevo_pipeline.sources.pems import sample as pems_sample

SOURCE = "pems"
LOCAL_ZONE = "America/Los_Angeles"
STAMP_FORMAT = "%m/%d/%Y %H:%M:%S"
HOUR_COLUMNS = (
    *(
        "stamp",
        "station",
        "district",
        "freeway",
        "direction",
        "lane_type",
        "length",
        "samples",
        "pct_observed",
    ),
    *("flow", "occupancy", "speed_mph"),
    *(f"delay_{limit}" for limit in (35, 40, 45, 50, 55, 60)),
    *(f"lane{lane}_{what}" for lane in range(1, 9) for what in ("flow", "occupancy", "speed_mph")),
)
"""The 42 columns of a station-hour file, in order."""

META_COLUMNS = (
    *(
        "ID",
        "Fwy",
        "Dir",
        "District",
        "County",
        "City",
        "State_PM",
        "Abs_PM",
        "Latitude",
        "Longitude",
        "Length",
    ),
    *("Type", "Lanes", "Name", "User_ID_1", "User_ID_2", "User_ID_3", "User_ID_4"),
)
_META_NUMBERS = ("Abs_PM", "Latitude", "Longitude", "Length", "Lanes")
_AMBIGUOUS = "nulled:ambiguous-dst-hour"


def raw_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the traffic files of a mode.

    ``archive`` gives the benchmark table (``traffic/traffic.csv.gz`` or ``traffic.txt.gz``) and any station-hour files
    that were downloaded by hand into ``traffic/``; ``sample`` gives three synthetic station-hour months of 2016.

    Raises:
        SourceAbsent: the folder has neither; or the mode is live, which needs an account and manual download.
    """
    if mode is Mode.LIVE:
        message = (
            "PeMS needs a personal account: download station_hour files from the clearinghouse into "
            "<COMPEVO_ARCHIVE>/traffic and use archive mode"
        )
        raise SourceAbsent(message)
    if mode is Mode.SAMPLE:
        for name, content in pems_sample.station_hour_months():
            yield sample_raw(SOURCE, name, content)
        return
    paths = archive_files(archive, "traffic", "*")
    chosen = [
        path
        for path in paths
        if path.name.startswith("traffic.") or "_text_station_hour_" in path.name
    ]
    if not chosen:
        message = f"no traffic.csv.gz and no *_text_station_hour_*.txt.gz under {paths[0].parent}; add one of them"
        raise SourceAbsent(message)
    for path in chosen:
        yield archive_raw(path, path.parents[1], source=SOURCE, member=None, clock=clock)


def parse(raw: RawFile, *, keep: Sequence[str] | None = None) -> pl.DataFrame:
    """Parse a station-hour file or the benchmark table into ``SERIES_SCHEMA``.

    Args:
        raw: the file, gzipped or not.
        keep: stations (``"400001"``) or sensor numbers (``"0"``) to keep; all where left out. The full benchmark table
            makes 15 million rows.

    Raises:
        SchemaDrift: the file breaks its format.
    """
    text = _text(raw)
    if "_text_station_hour_" in raw.name:
        return parse_station_hour(text, raw, keep)
    if raw.name.startswith("traffic."):
        return pems862.parse_table(text, raw, keep)
    message = f"{raw.name}: neither a station_hour file nor traffic.csv/.txt; see the file names on the clearinghouse"
    raise SchemaDrift(message)


def parse_station_hour(
    text: str, raw: RawFile, stations: Sequence[str] | None = None
) -> pl.DataFrame:
    """Parse station-hour rows into ``PEMS/<station>`` (occupancy) and ``PEMS_OBSERVED/<station>`` (percent observed).

    Raises:
        SchemaDrift: a line without 42 cells, a stamp or number that is none, an hour given twice for a station, or a
            stamp in the hour that daylight saving skips.
    """
    table = split_table(text, raw.name, HOUR_COLUMNS, header=False)
    table = table.select(LINE, "stamp", "station", "pct_observed", "occupancy")
    if stations is not None:
        table = table.filter(pl.col("station").is_in(list(stations)))
    table = to_stamp(table, "stamp", (STAMP_FORMAT,), raw.name)
    for column in ("pct_observed", "occupancy"):
        table = to_number(table, column, raw.name)
    hours = _to_utc(table, raw.name)
    out_of_range = ~pl.col("occupancy").is_between(0.0, 1.0)
    hours = hours.with_columns(
        flag=pl.when(pl.col("ambiguous")).then(pl.lit(_AMBIGUOUS))
        .when(pl.col("occupancy").is_null()).then(pl.lit("missing"))
        .when(out_of_range).then(pl.lit("nulled:out-of-range"))
        .when(pl.col("pct_observed") == 0).then(pl.lit("filled:pems-imputed"))
        .otherwise(pl.lit("observed"))
    )  # fmt: skip
    has_value = (pl.col("flag") == "observed") | pl.col("flag").str.starts_with("filled:")
    value = pl.when(has_value).then("occupancy")
    occupancy = _series(hours, raw, "PEMS", "occupancy", "fraction", value, pl.col("flag"))
    share = pl.when(~pl.col("ambiguous")).then("pct_observed")
    share_flag = (
        pl.when(pl.col("ambiguous"))
        .then(pl.lit(_AMBIGUOUS))
        .when(share.is_null())
        .then(pl.lit("missing"))
    )
    observed = _series(
        hours,
        raw,
        "PEMS_OBSERVED",
        "pct_observed",
        "%",
        share,
        share_flag.otherwise(pl.lit("observed")),
    )
    return pl.concat([occupancy, observed])


def parse_meta(raw: RawFile) -> pl.DataFrame:
    """Parse a station metadata file (tab-separated, with header); positions and lengths become numbers.

    Raises:
        SchemaDrift: a changed header, a text where a number belongs, a station given twice.
    """
    table = split_table(_text(raw), raw.name, META_COLUMNS, separator="\t", header=True)
    refuse_duplicates(table, ("ID",), raw.name)
    for column in _META_NUMBERS:
        table = to_number(table, column, raw.name)
    return table.drop(LINE)


def meta_file(archive: Path | None, clock: Clock) -> RawFile:
    """Return the newest station metadata file of the archive, for :func:`parse_meta`."""
    path = archive_files(archive, "traffic", "d*_text_meta_*.txt*")[-1]
    return archive_raw(path, path.parents[1], source=SOURCE, member=None, clock=clock)


def _text(raw: RawFile) -> str:
    content = gunzip(raw.content, raw.name) if raw.name.endswith(".gz") else raw.content
    refuse_html(content, raw.name)
    return decode_text(content, raw.name)


def _to_utc(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Add ``start_utc`` and ``ambiguous``; a repeated local hour becomes one row for each UTC hour it may be."""
    local = pl.col("stamp")
    early, late = (
        local.dt.replace_time_zone(
            LOCAL_ZONE, ambiguous=which, non_existent="null"
        ).dt.convert_time_zone("UTC")
        for which in ("earliest", "latest")
    )
    table = table.with_columns(early=early, late=late)
    skipped = table.filter(pl.col("early").is_null())
    if skipped.height:
        message = (
            f"{name}, line {skipped[0, LINE]}: {skipped[0, 'stamp']} does not exist in {LOCAL_ZONE} (daylight saving "
            "starts); PeMS leaves that hour out: check whether the file is in standard time"
        )
        raise SchemaDrift(message)
    table = table.with_columns(ambiguous=pl.col("early") != pl.col("late"))
    plain = table.filter(~pl.col("ambiguous"))
    refuse_duplicates(plain, ("station", "stamp"), name)
    twice = table.filter("ambiguous").unique(
        ("station", "stamp"), keep="first", maintain_order=True
    )
    both = [twice.with_columns(start_utc=pl.col(which)) for which in ("early", "late")]
    return pl.concat([plain.with_columns(start_utc="early"), *both])


def _series(
    hours: pl.DataFrame,
    raw: RawFile,
    prefix: str,
    variable: str,
    unit: str,
    value: pl.Expr,
    flag: pl.Expr,
) -> pl.DataFrame:
    frame = hours.select(
        series_id=pl.lit(f"{prefix}/") + pl.col("station"),
        variable=pl.lit(variable),
        start_utc=pl.col("start_utc"),
        value=value,
        unit=pl.lit(unit),
        flag=flag,
        source=pl.lit(raw.label),
        fetched_at=pl.lit(raw.fetched_at),
    )
    return frame.cast(pl.Schema(SERIES_SCHEMA))
