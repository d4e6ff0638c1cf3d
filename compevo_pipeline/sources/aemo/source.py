"""All AEMO products: their files by mode, one parser, and precedence between files.

What belongs here: dispatch and precedence. What does not: formats (``aemo.price``,
``aemo.histdemand``, ``aemo.operational``, ``aemo.collected``, ``aemo.mmsdm``), storage. The three
measures of demand stay three series.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import PUBLISHED_SCHEMA, SERIES_SCHEMA
from compevo_core.data.series import validate_series
from compevo_core.errors import ConfigError, SourceAbsent
from compevo_pipeline.sources.aemo import (
    collected,
    histdemand,
    mmsdm,
    operational,
    price,
    sample,
)
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.common.sample_world import SampleWorld

log = logging.getLogger(__name__)

PRODUCTS = (
    price.SOURCE,
    mmsdm.SOURCE,
    collected.SOURCE,
    histdemand.SOURCE,
    operational.SOURCE,
)
"""In order of precedence: AEMO's own monthly file wins over MMSDM, and that over a collection."""

_READ_ARCHIVE = {
    price.SOURCE: price.read_archive,
    mmsdm.SOURCE: mmsdm.read_archive,
    collected.SOURCE: collected.read_archive,
    histdemand.SOURCE: histdemand.read_archive,
    operational.SOURCE: operational.read_archive,
}
_MAKE_SAMPLE = {
    price.SOURCE: sample.make_price_and_demand_months,
    histdemand.SOURCE: sample.make_histdemand_reports,
    operational.SOURCE: sample.make_operational_days,
}
_PARSE = {
    price.SOURCE: price.parse,
    mmsdm.SOURCE: mmsdm.parse,
    collected.SOURCE: collected.parse,
    histdemand.SOURCE: histdemand.parse,
    operational.SOURCE: operational.parse,
}
_MAY_HAVE_GAPS = {
    price.SOURCE: price.parse,
    collected.SOURCE: collected.parse,
    histdemand.SOURCE: histdemand.parse,
}
"""Products whose files are refused for a gap unless a run accepts it."""


def read_files(
    mode: Mode, *, archive: Path | None = None, clock: Clock, products: Sequence[str] = PRODUCTS
) -> Iterator[RawFile]:
    """Yield the files of ``products`` in a mode; the sample mode skips products that it lacks.

    Raises:
        ConfigError: an unknown product.
        SourceAbsent: live mode, or an archive with none of the products; of others the missing one
            is left out with a warning.
    """
    unknown = sorted(set(products) - set(PRODUCTS))
    if unknown:
        raise ConfigError(
            f"unknown AEMO product {', '.join(unknown)}; choose from {', '.join(PRODUCTS)}"
        )

    match mode:
        case Mode.SAMPLE:
            # One world for all products, so that their demand agrees.
            world = SampleWorld()
            for product in products:
                if product in _MAKE_SAMPLE:
                    yield from _MAKE_SAMPLE[product](world, product)
        case Mode.ARCHIVE:
            yield from _read_products(archive, clock, products)
        case Mode.LIVE:
            raise SourceAbsent("live mode fetches AEMO's files (aemo.live); there are none to read")


def _read_products(
    archive: Path | None, clock: Clock, products: Sequence[str]
) -> Iterator[RawFile]:
    """Yield the files of the products that the archive has."""
    absent: list[SourceAbsent] = []
    for product in products:
        try:
            yield from _READ_ARCHIVE[product](archive, clock)
        except SourceAbsent as error:
            absent.append(error)

    if len(absent) == len(products):
        raise absent[0]
    # Once, at the end: the series of the other products are made all the same.
    if absent:
        log.warning("left out: " + "; ".join(map(str, absent)))


def parse(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse one file of any AEMO product into ``SERIES_SCHEMA``.

    Args:
        raw: the file.
        tolerate_gaps: accept rows that the publisher left out.

    Raises:
        ConfigError: the file's source is not AEMO's.
        SourceTransient, SchemaDrift: from the product's parser.
    """
    if raw.source not in _PARSE:
        raise ConfigError(
            f"{raw.name}: source {raw.source!r} is not one of {', '.join(PRODUCTS)}; "
            "use its own parser"
        )
    if tolerate_gaps and raw.source in _MAY_HAVE_GAPS:
        return _MAY_HAVE_GAPS[raw.source](raw, tolerate_gaps=True)
    return _PARSE[raw.source](raw)


def parse_published(raws: Iterable[RawFile]) -> pl.DataFrame:
    """Parse AEMO's day-ahead forecasts into ``PUBLISHED_SCHEMA``; skip other products."""
    frames = [operational.parse_published(raw) for raw in raws if raw.source == operational.SOURCE]
    return pl.concat([pl.DataFrame(schema=PUBLISHED_SCHEMA), *frames])


def parse_all(raws: Iterable[RawFile], *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse many files into one valid series frame with one row an interval.

    Where two files have an interval, a value wins over none, then the product earlier in
    :data:`PRODUCTS`, then the file whose name sorts last; so the result does not depend on the
    order of ``raws``.

    Raises:
        SourceTransient, SchemaDrift: from a parser; nothing is returned then.
    """
    frames = [
        parse(raw, tolerate_gaps=tolerate_gaps).with_columns(
            pl.lit(PRODUCTS.index(raw.source)).alias("_rank")
        )
        for raw in raws
    ]
    if not frames:
        return pl.DataFrame(schema=SERIES_SCHEMA)

    # The label sorts last, so that equal ranks are decided by the name and not by input order.
    precedence = [pl.col("value").is_null(), pl.col("_rank"), pl.col("source")]
    rows = pl.concat(frames).sort(precedence, descending=[False, False, True])
    once = rows.unique(["series_id", "variable", "start_utc"], keep="first", maintain_order=True)
    return validate_series(once.drop("_rank"))
