"""AEMO ``PUBLIC_HISTDEMAND`` daily reports: half-hourly demand of the five regions in whole MW.

What belongs here: this report. What does not: its known bad readings
(``compevo_core.data.faults``).

``SETTLEMENTDATE`` is the trading day at midnight and ``PERIODID`` counts from 1 to 48, so a period
ends at day + 30 min x PERIODID. It is another measure than TOTALDEMAND (a mean 45 MW higher in New
South Wales) and stays a series of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo.region_series import build_region_series, refuse_unknown_regions
from compevo_pipeline.sources.aemo.report import STAMP_FORMATS, read_report
from compevo_pipeline.sources.common.base import (
    Clock,
    RawFile,
    read_downloads,
)
from compevo_pipeline.sources.common.nem import NEM_OFFSET, PERIODS_PER_DAY
from compevo_pipeline.sources.common.tables import (
    LINE,
    refuse_duplicates,
    refuse_rows,
    to_number,
    to_stamp,
)

SOURCE = "aemo_histdemand"
FOLDER = "aemo_histdemand"
FILES = ("PUBLIC_HISTDEMAND_*",)
TABLE = ("DEMAND", "HISTORIC")
COLUMNS = ("REGIONID", "SETTLEMENTDATE", "PERIODID", "DEMAND")


def read_archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield every daily report: a file of its own, or in an archive of a day or a month."""
    yield from read_downloads(root, FOLDER, FILES, source=SOURCE, clock=clock)


def parse(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse one day into rows of ``SERIES_SCHEMA``, ``AEMO/HISTDEMAND/<region>``.

    Raises:
        SchemaDrift: framing, footer, number, timestamp, period, region, duplicate, or (unless
            tolerated) missing periods.
    """
    table = read_report(raw, TABLE, COLUMNS)
    table = to_stamp(table, raw.name, "SETTLEMENTDATE", STAMP_FORMATS)
    table = to_number(table, raw.name, ["PERIODID", "DEMAND"])
    refuse_unknown_regions(table, raw.name, "REGIONID")

    # Read as a number, so 1.5 gets this far.
    period = pl.col("PERIODID")
    in_day = period.is_between(1, PERIODS_PER_DAY) & (period == period.round())
    problem = f"PERIODID is {{PERIODID}}, not 1 to {PERIODS_PER_DAY}"
    refuse_rows(table, raw.name, ~in_day, problem, "fetch the file again")
    refuse_duplicates(table, raw.name, ["REGIONID", "SETTLEMENTDATE", "PERIODID"])
    if not tolerate_gaps:
        _refuse_short_days(table, raw.name)

    # The stamp is the day's midnight in NEM time, and period 1 starts there.
    minutes = 30 * (period.cast(pl.Int64) - 1)
    start = pl.col("SETTLEMENTDATE") - NEM_OFFSET + pl.duration(minutes=minutes)
    return build_region_series(
        table,
        raw,
        "HISTDEMAND",
        region="REGIONID",
        start_utc=start.dt.replace_time_zone("UTC"),
        value="DEMAND",
    )


def _refuse_short_days(table: pl.DataFrame, file_name: str) -> None:
    days = table.group_by("REGIONID", "SETTLEMENTDATE").agg(
        pl.len().alias("periods"), pl.col(LINE).max()
    )
    short = days.filter(pl.col("periods") != PERIODS_PER_DAY).sort(LINE)

    # A region that lacks the whole day has no row here; the series' gaps show it.
    if short.height:
        region, day, periods, line = short.row(0)
        raise SchemaDrift(
            f"{file_name}, line {line}: {region} on {day:%Y-%m-%d} has {periods} periods, "
            f"not {PERIODS_PER_DAY}; fetch the file again, or set tolerate_gaps for this run"
        )
