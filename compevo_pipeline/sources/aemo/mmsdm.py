"""AEMO MMSDM monthly archives: demand in the dispatch and the trading table.

What belongs here: TOTALDEMAND of ``DISPATCHREGIONSUM`` (5-minute) and ``TRADINGREGIONSUM``
(30-minute). What does not: their other 90 to 130 columns.

Dispatch rows come twice where AEMO intervened (INTERVENTION 0 and 1); the physical run, 1, is used,
and the demand of both is the same. The copies in the archive were filtered by row, so the footer's
count is not compared.

Published below https://nemweb.com.au/Data_Archive/Wholesale_Electricity/MMSDM/.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_pipeline.sources.aemo.region_series import build_region_series, refuse_unknown_regions
from compevo_pipeline.sources.aemo.report import STAMP_FORMATS, read_report
from compevo_pipeline.sources.common.base import (
    Clock,
    RawFile,
    find_archive_files,
    wrap_member,
)
from compevo_pipeline.sources.common.nem import (
    HALF_HOUR,
    average_half_hours,
    interval_start_utc,
)
from compevo_pipeline.sources.common.series_frame import OBSERVED
from compevo_pipeline.sources.common.tables import refuse_duplicates, to_number, to_stamp
from compevo_pipeline.sources.common.unpack import unzip

SOURCE = "aemo_mmsdm"
DISPATCH = "DISPATCHREGIONSUM"

_COLUMNS = ("SETTLEMENTDATE", "REGIONID", "TOTALDEMAND")


def read_archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the table inside every monthly zip."""
    for path in find_archive_files(root, "aemo_mmsdm_samples", "*.zip"):
        for member in unzip(path.read_bytes(), path.name):
            yield wrap_member(path, path.parents[1], member, source=SOURCE, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse one month of either table into half-hourly ``AEMO/TOTALDEMAND/<region>`` rows.

    A dispatch half-hour without its six parts is nulled and flagged.

    Returns:
        Rows of ``SERIES_SCHEMA``.

    Raises:
        SchemaDrift: framing, number, timestamp, region or duplicate; names file, line and remedy.
    """
    # AEMO writes the table's name in the file name, in capitals or not.
    if DISPATCH in raw.name.upper():
        table = _average_dispatch(_read(raw, "DISPATCH", [*_COLUMNS, "INTERVENTION"]), raw.name)
    else:
        table = _read(raw, "TRADING", _COLUMNS)
        refuse_duplicates(table, raw.name, ["REGIONID", "SETTLEMENTDATE"])
        table = table.with_columns(pl.lit(OBSERVED).alias("flag"))

    return build_region_series(
        table,
        raw,
        "TOTALDEMAND",
        region="REGIONID",
        start_utc=interval_start_utc(pl.col("SETTLEMENTDATE"), HALF_HOUR),
        value="TOTALDEMAND",
        flag=pl.col("flag"),
    )


def _read(raw: RawFile, group: str, columns: list[str] | tuple[str, ...]) -> pl.DataFrame:
    # These copies were filtered by row, so the footer counts more lines than there are.
    table = read_report(raw, (group, "REGIONSUM"), columns, footer=False)
    table = to_stamp(table, raw.name, "SETTLEMENTDATE", STAMP_FORMATS)
    table = to_number(table, raw.name, ["TOTALDEMAND"])
    refuse_unknown_regions(table, raw.name, "REGIONID")
    return table


def _average_dispatch(table: pl.DataFrame, file_name: str) -> pl.DataFrame:
    refuse_duplicates(table, file_name, ["REGIONID", "SETTLEMENTDATE", "INTERVENTION"])

    # Sorted by INTERVENTION, the last row of an interval is the physical run.
    physical = table.sort("INTERVENTION").unique(
        ["REGIONID", "SETTLEMENTDATE"], keep="last", maintain_order=True
    )
    return average_half_hours(
        physical.sort("REGIONID", "SETTLEMENTDATE"), "SETTLEMENTDATE", "REGIONID", ["TOTALDEMAND"]
    )
