"""All AEMO products: their files by mode, one parser for each, and precedence between files.

What belongs here: products, dispatch and precedence. What does not: formats (``parse_tables``,
``parse_operational``), fetching (``live``). The three measures of demand stay three series.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_core.data.series import validate_series
from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.aemo import parse_operational, parse_tables
from compevo_pipeline.sources.aemo.names import REPORTS, read_periods
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile, read_product
from compevo_pipeline.sources.common.tables import check_periods

log = logging.getLogger(__name__)

PRICE = "aemo_price_and_demand"
OPERATIONAL = "aemo_operational_demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product."""

    parse: Callable[..., pl.DataFrame]  # parses a file of it, or several, into `SERIES_SCHEMA`
    is_joint: bool = False  # whether files are parsed at once: it has many small ones
    files: tuple[str, ...]  # patterns of its file names, packed in any way
    folder: str = ""  # its folder in an archive, if not a folder of its name
    may_have_gaps: bool = False  # whether a file with gaps is an error unless a run accepts them


PRODUCTS = {
    PRICE: Product(
        parse=parse_tables.parse_price, files=("PRICE_AND_DEMAND_*",), may_have_gaps=True
    ),
    "aemo_mmsdm": Product(
        parse=parse_tables.parse_mmsdm, files=("*.zip",), folder="aemo_mmsdm_samples"
    ),
    "aemo_totaldemand_half_hourly": Product(
        parse=parse_tables.parse_collected, files=("*.csv.*",), may_have_gaps=True
    ),
    "aemo_histdemand": Product(
        parse=parse_tables.parse_histdemand,
        is_joint=True,
        files=("PUBLIC_HISTDEMAND_*",),
        may_have_gaps=True,
    ),
    # Bundles of day files, and AEMO's reports as downloaded: a zip a half-hour, or zips of zips.
    OPERATIONAL: Product(
        parse=parse_operational.parse_operational,
        is_joint=True,
        files=("*.tar.gz", *(f"{report}_*" for report in REPORTS)),
    ),
}
"""In order of precedence: AEMO's own monthly file wins over MMSDM, and that over a collection."""

_FIRST_SAMPLE_DAY = "2026-02-16.json"  # earlier days belong only to operational demand


def read_files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the files of all products in a mode; the sample mode skips products that it lacks.

    SourceAbsent if an archive has none of the products; a single missing one only warns.
    """
    absent: list[SourceAbsent] = []
    for product in PRODUCTS:
        is_cut = mode is Mode.SAMPLE and product == OPERATIONAL
        first = _FIRST_SAMPLE_DAY if is_cut else ""
        try:
            files = _read_product(product, mode, archive, clock)
            yield from (raw for raw in files if raw.name >= first)
        except SourceAbsent as error:
            absent.append(error)

    if len(absent) == len(PRODUCTS):
        raise absent[0]
    # Once, at the end: the series of the other products are made all the same.
    if absent:
        log.warning("left out: " + "; ".join(map(str, absent)))


def _read_product(
    product: str, mode: Mode, archive: Path | None, clock: Clock
) -> Iterator[RawFile]:
    folder, files = PRODUCTS[product].folder or product, PRODUCTS[product].files
    return read_product(mode, archive, clock, source=product, folder=folder, files=files)


read_operational_files = functools.partial(_read_product, OPERATIONAL)
"""Yields every file of operational demand in a mode, only for the data set of this measure."""


def parse_published(raws: Sequence[RawFile]) -> pl.DataFrame:
    """Parse AEMO's day-ahead forecasts into ``PUBLISHED_SCHEMA``; skip other products."""
    days = [raw for raw in raws if raw.source == OPERATIONAL]
    return check_periods(parse_operational.parse_published(*days), days, read_periods)


def parse_all(raws: Sequence[RawFile], *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse many files into one valid series frame with one row per interval.

    Where two files have an interval, a value wins over none, then the product earlier in
    :data:`PRODUCTS`, then the file whose name sorts last, in whichever order ``raws`` come.
    """
    if not raws:
        return pl.DataFrame(schema=SERIES_SCHEMA)

    frames = []
    for rank, (source, product) in enumerate(PRODUCTS.items()):
        options = {"tolerate_gaps": True} if tolerate_gaps and product.may_have_gaps else {}
        files = [raw for raw in raws if raw.source == source]
        together = [files] if product.is_joint and files else [[raw] for raw in files]
        frames += [
            product.parse(*part, **options).with_columns(_rank=pl.lit(rank)) for part in together
        ]

    # The label sorts last, so that equal ranks are decided by the name and not by input order.
    precedence = [pl.col("value").is_null(), pl.col("_rank"), pl.col("source")]
    rows = check_periods(pl.concat(frames), raws, read_periods).sort(
        precedence, descending=[False, False, True]
    )
    once = rows.unique(["series_id", "variable", "start_utc"], keep="first", maintain_order=True)
    return validate_series(once.drop("_rank"))
