"""AEMO MMSDM monthly archives: ``DISPATCHREGIONSUM`` (5-minute) and ``TRADINGREGIONSUM`` (30-minute) demand.

What belongs here: TOTALDEMAND of these two tables. What does not: their other 90 to 130 columns.
Dispatch rows come twice where AEMO intervened (INTERVENTION 0 and 1); the physical run, 1, is kept, and the demand of
both is the same. The copies at hand were filtered by row, so the footer's count is not compared.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_pipeline.sources.aemo.report import STAMP_FORMATS, read_report
from compevo_pipeline.sources.common.base import Clock, RawFile, archive_files, archive_raw, unzip
from compevo_pipeline.sources.common.nem import (
    DEMAND_UNIT,
    DEMAND_VARIABLE,
    HALF_HOUR,
    OBSERVED,
    REGIONS,
    half_hours,
    utc_start,
)
from compevo_pipeline.sources.common.tables import (
    refuse_duplicates,
    refuse_rows,
    series_frame,
    to_number,
    to_stamp,
)

SOURCE = "aemo_mmsdm"
DISPATCH = "DISPATCHREGIONSUM"


def archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the table inside every monthly zip."""
    for path in archive_files(root, "aemo_mmsdm_samples", "*.zip"):
        assert root is not None
        for member in unzip(path.read_bytes(), path.name):
            yield archive_raw(path, root, source=SOURCE, member=member, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse one month of either table into half-hourly ``AEMO/TOTALDEMAND/<region>`` rows of ``SERIES_SCHEMA``.

    A dispatch half-hour without its six parts is nulled and flagged.

    Raises:
        SchemaDrift: framing, number, stamp, region or repeat; names file, line and remedy.
    """
    dispatch = DISPATCH in raw.name.upper()
    columns = ["SETTLEMENTDATE", "REGIONID", "TOTALDEMAND"]
    table = ("DISPATCH", "REGIONSUM") if dispatch else ("TRADING", "REGIONSUM")
    frame = read_report(
        raw, table, [*columns, "INTERVENTION"] if dispatch else columns, footer=False
    )
    frame = to_number(raw, to_stamp(raw, frame, "SETTLEMENTDATE", STAMP_FORMATS), "TOTALDEMAND")
    refuse_rows(
        raw,
        frame,
        ~pl.col("REGIONID").is_in(REGIONS),
        "REGIONID is {REGIONID!r}",
        "extend nem.REGIONS",
    )
    if dispatch:
        refuse_duplicates(raw, frame, ["REGIONID", "SETTLEMENTDATE", "INTERVENTION"])
        physical = frame.sort("INTERVENTION").unique(
            ["REGIONID", "SETTLEMENTDATE"], keep="last", maintain_order=True
        )
        frame = half_hours(
            physical.sort("REGIONID", "SETTLEMENTDATE"),
            "SETTLEMENTDATE",
            "REGIONID",
            ["TOTALDEMAND"],
        )
    else:
        refuse_duplicates(raw, frame, ["REGIONID", "SETTLEMENTDATE"])
        frame = frame.with_columns(pl.lit(OBSERVED).alias("flag"))
    rows = frame.select(
        pl.concat_str(pl.lit("AEMO/TOTALDEMAND/"), pl.col("REGIONID")).alias("series_id"),
        pl.lit(DEMAND_VARIABLE).alias("variable"),
        utc_start(pl.col("SETTLEMENTDATE"), HALF_HOUR).alias("start_utc"),
        pl.col("TOTALDEMAND").alias("value"),
        pl.lit(DEMAND_UNIT).alias("unit"),
        pl.col("flag"),
    )
    return series_frame(raw, rows)
