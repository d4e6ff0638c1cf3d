"""AEMO aggregated price and demand: ``PRICE_AND_DEMAND_YYYYMM_REGION.csv``.

What belongs here: this one CSV, in its quoted and bare, CRLF and LF spellings. What does not:
fetching it.

The files are 30-minute until 2021-09 and 5-minute after. One file gives two half-hourly series:
``AEMO/TOTALDEMAND/<region>`` in MW and ``AEMO/RRP/<region>`` (regional reference price) in AUD/MWh.

Published at
``https://aemo.com.au/aemo/data/nem/priceanddemand/PRICE_AND_DEMAND_{YYYYMM}_{REGION}.csv``.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_pipeline.sources.aemo.region_series import build_region_series, refuse_unknown_regions
from compevo_pipeline.sources.aemo.report import STAMP_FORMATS
from compevo_pipeline.sources.common.base import (
    Clock,
    RawFile,
    read_downloads,
)
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.nem import (
    FIVE_MINUTES,
    HALF_HOUR,
    PRICE_UNIT,
    PRICE_VARIABLE,
    average_half_hours,
    interval_start_utc,
)
from compevo_pipeline.sources.common.series_frame import OBSERVED
from compevo_pipeline.sources.common.tables import (
    Quoting,
    read_table,
    refuse_duplicates,
    refuse_gaps,
    to_number,
    to_stamp,
)

SOURCE = "aemo_price_and_demand"
FOLDER = "aemo_price_and_demand"
FILES = ("PRICE_AND_DEMAND_*",)
HEADER = ("REGION", "SETTLEMENTDATE", "TOTALDEMAND", "RRP", "PERIODTYPE")


def read_archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield every month in the archive, by region and month."""
    yield from read_downloads(root, FOLDER, FILES, source=SOURCE, clock=clock)


def parse(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse one month into half-hourly demand and price rows of ``SERIES_SCHEMA``.

    Args:
        raw: the published CSV.
        tolerate_gaps: accept missing timestamps; half-hours without six parts are nulled and
            flagged.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: header, number, timestamp, region, duplicate or gap; names file, line and
            remedy.
    """
    table = read_table(read_text(raw.content, raw.name), raw.name, HEADER, quoting=Quoting.CELLS)
    table = to_stamp(table, raw.name, "SETTLEMENTDATE", STAMP_FORMATS)
    table = to_number(table, raw.name, ["TOTALDEMAND", "RRP"])
    refuse_unknown_regions(table, raw.name, "REGION")
    refuse_duplicates(table, raw.name, ["REGION", "SETTLEMENTDATE"])

    # The step is read from the file: AEMO changed it in October 2021 without changing the name.
    minutes = table["SETTLEMENTDATE"].dt.minute()
    step = HALF_HOUR if minutes.is_in([0, 30]).all() else FIVE_MINUTES
    if not tolerate_gaps:
        refuse_gaps(table, raw.name, "SETTLEMENTDATE", step, by="REGION")

    # The last half-hour of a month that still grows is incomplete: averaging nulls and flags it.
    if step == FIVE_MINUTES:
        table = average_half_hours(table, "SETTLEMENTDATE", "REGION", ["TOTALDEMAND", "RRP"])
    else:
        table = table.with_columns(pl.lit(OBSERVED).alias("flag"))

    start_utc = interval_start_utc(pl.col("SETTLEMENTDATE"), HALF_HOUR)
    demand = build_region_series(
        table,
        raw,
        "TOTALDEMAND",
        region="REGION",
        start_utc=start_utc,
        value="TOTALDEMAND",
        flag=pl.col("flag"),
    )
    price = build_region_series(
        table,
        raw,
        "RRP",
        region="REGION",
        start_utc=start_utc,
        value="RRP",
        flag=pl.col("flag"),
        variable=PRICE_VARIABLE,
        unit=PRICE_UNIT,
    )
    return pl.concat([demand, price])
