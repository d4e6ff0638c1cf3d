"""AEMO ``PUBLIC_HISTDEMAND`` daily reports: half-hourly demand of the five regions in whole MW.

What belongs here: this report. What does not: its known bad readings (``compevo_core.data.faults``).
``SETTLEMENTDATE`` is the trading day at midnight and ``PERIODID`` 1..48, so a period ends at day + 30 min x PERIODID.
It is another measure than TOTALDEMAND (a mean 45 MW higher in New South Wales) and stays a series of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo.report import STAMP_FORMATS, read_report
from compevo_pipeline.sources.common.base import Clock, RawFile, archive_files, archive_raw, untar
from compevo_pipeline.sources.common.nem import (
    DEMAND_UNIT,
    DEMAND_VARIABLE,
    NEM_OFFSET,
    OBSERVED,
    PERIODS_PER_DAY,
    REGIONS,
)
from compevo_pipeline.sources.common.tables import (
    refuse_duplicates,
    refuse_rows,
    series_frame,
    to_number,
    to_stamp,
)

SOURCE = "aemo_histdemand"
TABLE = ("DEMAND", "HISTORIC")
COLUMNS = ("REGIONID", "SETTLEMENTDATE", "PERIODID", "DEMAND")


def archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield every daily report inside the monthly bundles."""
    for path in archive_files(root, "aemo_histdemand", "PUBLIC_HISTDEMAND_*.tar.gz"):
        assert root is not None
        for member in untar(path.read_bytes(), path.name):
            yield archive_raw(path, root, source=SOURCE, member=member, clock=clock)


def parse(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse one day into rows of ``SERIES_SCHEMA``, ``AEMO/HISTDEMAND/<region>``.

    Raises:
        SchemaDrift: framing, footer, number, stamp, period, region, repeat, or (unless tolerated) missing periods.
    """
    frame = read_report(raw, TABLE, COLUMNS)
    frame = to_stamp(raw, frame, "SETTLEMENTDATE", STAMP_FORMATS)
    frame = to_number(raw, frame, "PERIODID", "DEMAND")
    refuse_rows(
        raw,
        frame,
        ~pl.col("REGIONID").is_in(REGIONS),
        "REGIONID is {REGIONID!r}",
        "extend nem.REGIONS",
    )
    period = pl.col("PERIODID")
    in_day = period.is_between(1, PERIODS_PER_DAY) & (period == period.round())
    refuse_rows(raw, frame, ~in_day, "PERIODID is {PERIODID}, not 1..48", "fetch the file again")
    refuse_duplicates(raw, frame, ["REGIONID", "SETTLEMENTDATE", "PERIODID"])
    if not tolerate_gaps:
        _refuse_short_days(raw, frame)
    start = (
        pl.col("SETTLEMENTDATE")
        - NEM_OFFSET
        + pl.duration(minutes=30 * (period.cast(pl.Int64) - 1))
    )
    rows = frame.select(
        pl.concat_str(pl.lit("AEMO/HISTDEMAND/"), pl.col("REGIONID")).alias("series_id"),
        pl.lit(DEMAND_VARIABLE).alias("variable"),
        start.dt.replace_time_zone("UTC").alias("start_utc"),
        pl.col("DEMAND").alias("value"),
        pl.lit(DEMAND_UNIT).alias("unit"),
        pl.lit(OBSERVED).alias("flag"),
    )
    return series_frame(raw, rows)


def _refuse_short_days(raw: RawFile, frame: pl.DataFrame) -> None:
    days = frame.group_by("REGIONID", "SETTLEMENTDATE").agg(
        pl.len().alias("n"), pl.col("_line").max()
    )
    short = days.filter(pl.col("n") != PERIODS_PER_DAY).sort("_line")
    if short.height:
        region, day, count, line = short.row(0)
        message = f"{raw.name}, line {line}: {region} on {day:%Y-%m-%d} has {count} periods, not {PERIODS_PER_DAY}"
        raise SchemaDrift(
            f"{message}; stamps are missing: fetch the file again, or parse it with tolerate_gaps=True"
        )
