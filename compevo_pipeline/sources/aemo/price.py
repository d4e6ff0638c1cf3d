"""AEMO aggregated price and demand: ``PRICE_AND_DEMAND_YYYYMM_REGION.csv``, 30-minute to 2021-09 and 5-minute after.

What belongs here: this one CSV, in its quoted and bare, CRLF and LF spellings. What does not: fetching it.
One file gives two series: ``AEMO/TOTALDEMAND/<region>`` in MW and ``AEMO/RRP/<region>`` in AUD/MWh, both half-hourly.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import Clock, RawFile, archive_files, archive_raw
from compevo_pipeline.sources.common.nem import (
    DEMAND_UNIT,
    DEMAND_VARIABLE,
    FIVE_MINUTES,
    HALF_HOUR,
    OBSERVED,
    PRICE_UNIT,
    PRICE_VARIABLE,
    REGIONS,
    half_hours,
    utc_start,
)
from compevo_pipeline.sources.common.tables import (
    read_table,
    refuse_duplicates,
    refuse_gaps,
    refuse_rows,
    series_frame,
    to_number,
    to_stamp,
)

SOURCE = "aemo_price_and_demand"
HEADER = ("REGION", "SETTLEMENTDATE", "TOTALDEMAND", "RRP", "PERIODTYPE")
STAMP_FORMATS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M")


def archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield every month at hand, by region and month."""
    for path in archive_files(root, "aemo_price_and_demand", "*/PRICE_AND_DEMAND_*.csv*"):
        assert root is not None
        yield archive_raw(path, root, source=SOURCE, member=None, clock=clock)


def parse(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse one month into half-hourly demand and price rows of ``SERIES_SCHEMA``.

    Args:
        raw: the published CSV.
        tolerate_gaps: keep a file whose stamps have holes; half-hours without six parts are nulled and flagged.

    Raises:
        SchemaDrift: header, number, stamp, region, repeat or gap; names file, line and remedy.
    """
    frame = read_table(raw, HEADER)
    frame = to_number(
        raw, to_stamp(raw, frame, "SETTLEMENTDATE", STAMP_FORMATS), "TOTALDEMAND", "RRP"
    )
    known = pl.col("REGION").is_in(REGIONS)
    refuse_rows(raw, frame, ~known, "REGION is {REGION!r}", f"expected one of {', '.join(REGIONS)}")
    refuse_duplicates(raw, frame, ["REGION", "SETTLEMENTDATE"])
    minute = frame["SETTLEMENTDATE"].dt.minute()
    step = HALF_HOUR if minute.is_in([0, 30]).all() else FIVE_MINUTES
    if not tolerate_gaps:
        refuse_gaps(raw, frame, "SETTLEMENTDATE", "REGION", step)
    if step == FIVE_MINUTES:
        frame = half_hours(frame, "SETTLEMENTDATE", "REGION", ["TOTALDEMAND", "RRP"])
    else:
        frame = frame.with_columns(pl.lit(OBSERVED).alias("flag"))
    return pl.concat(
        [
            _one(raw, frame, "TOTALDEMAND", DEMAND_VARIABLE, DEMAND_UNIT),
            _one(raw, frame, "RRP", PRICE_VARIABLE, PRICE_UNIT),
        ]
    )


def _one(raw: RawFile, frame: pl.DataFrame, column: str, variable: str, unit: str) -> pl.DataFrame:
    rows = frame.select(
        pl.concat_str(pl.lit(f"AEMO/{column}/"), pl.col("REGION")).alias("series_id"),
        pl.lit(variable).alias("variable"),
        utc_start(pl.col("SETTLEMENTDATE"), HALF_HOUR).alias("start_utc"),
        pl.col(column).alias("value"),
        pl.lit(unit).alias("unit"),
        pl.col("flag"),
    )
    if (
        rows["start_utc"].is_duplicated().any()
        and rows.select("series_id", "start_utc").is_duplicated().any()
    ):
        raise SchemaDrift(
            f"{raw.name}: 30- and 5-minute rows are mixed in one file; split it by month"
        )
    return series_frame(raw, rows)
