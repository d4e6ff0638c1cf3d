"""All AEMO sources behind one door: their files by mode, one parser, and which file wins where two hold an interval.

What belongs here: dispatch and precedence. What does not: formats (``aemo_price``, ``aemo_histdemand``,
``aemo_operational``, ``aemo_collected``, ``aemo_mmsdm``) or storage. The three measures stay three series.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import PUBLISHED_SCHEMA, SERIES_SCHEMA
from compevo_core.data.series import validate_series
from compevo_core.errors import ConfigError, SourceAbsent
from compevo_pipeline.sources.aemo import collected as aemo_collected
from compevo_pipeline.sources.aemo import histdemand as aemo_histdemand
from compevo_pipeline.sources.aemo import mmsdm as aemo_mmsdm
from compevo_pipeline.sources.aemo import operational as aemo_operational
from compevo_pipeline.sources.aemo import price as aemo_price
from compevo_pipeline.sources.aemo import sample as aemo_sample
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.common.sample_world import SampleWorld

_ARCHIVES = {
    aemo_price.SOURCE: aemo_price.archive,
    aemo_mmsdm.SOURCE: aemo_mmsdm.archive,
    aemo_collected.SOURCE: aemo_collected.archive,
    aemo_histdemand.SOURCE: aemo_histdemand.archive,
    aemo_operational.SOURCE: aemo_operational.archive,
}
_SAMPLES = {
    aemo_price.SOURCE: aemo_sample.price_and_demand,
    aemo_histdemand.SOURCE: aemo_sample.histdemand,
    aemo_operational.SOURCE: aemo_sample.operational,
}
_PARSERS = {
    aemo_price.SOURCE: aemo_price.parse,
    aemo_mmsdm.SOURCE: aemo_mmsdm.parse,
    aemo_collected.SOURCE: aemo_collected.parse,
    aemo_histdemand.SOURCE: aemo_histdemand.parse,
    aemo_operational.SOURCE: aemo_operational.parse,
}
KINDS = tuple(_ARCHIVES)
"""The products, in order of precedence: AEMO's own monthly file wins over MMSDM, and that over a collection."""
REPORT_NAME = "PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH"


def raw_files(
    mode: Mode, *, archive: Path | None = None, clock: Clock, kinds: Sequence[str] = KINDS
) -> Iterator[RawFile]:
    """Yield the files of ``kinds`` in a mode; a kind that the sample mode does not have is left out there.

    Raises:
        ConfigError: an unknown kind.
        SourceAbsent: live mode, which is fetched elsewhere, or an archive without the kind's folder.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ConfigError(
            f"unknown AEMO product {', '.join(unknown)}; choose from {', '.join(KINDS)}"
        )
    match mode:
        case Mode.SAMPLE:
            world = SampleWorld()
            for kind in kinds:
                if kind in _SAMPLES:
                    yield from _SAMPLES[kind](world, kind)
        case Mode.ARCHIVE:
            for kind in kinds:
                yield from _ARCHIVES[kind](archive, clock)
        case Mode.LIVE:
            raise SourceAbsent(
                "aemo.raw_files reads files only; fetch live files first and hand them to aemo.parse"
            )


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse one file of any AEMO product into ``SERIES_SCHEMA``.

    Raises:
        ConfigError: the file's source is not AEMO's.
        SourceTransient, SchemaDrift: from the product's parser.
    """
    if raw.source not in _PARSERS:
        raise ConfigError(
            f"{raw.name}: source {raw.source!r} is not one of {', '.join(KINDS)}; use its own parser"
        )
    if raw.source == aemo_operational.SOURCE and raw.name.upper().startswith(REPORT_NAME):
        return aemo_operational.parse_report(raw)
    return _PARSERS[raw.source](raw)


def parse_published(raws: Iterable[RawFile]) -> pl.DataFrame:
    """Parse AEMO's day-ahead forecasts in ``raws`` into ``PUBLISHED_SCHEMA``; files without forecasts are passed by."""
    days = [
        raw for raw in raws if raw.source == aemo_operational.SOURCE and raw.name.endswith(".json")
    ]
    frames = [aemo_operational.parse_published(raw) for raw in days]
    return pl.concat([pl.DataFrame(schema=PUBLISHED_SCHEMA), *frames])


def parse_all(raws: Iterable[RawFile]) -> pl.DataFrame:
    """Parse many files into one valid series frame with one row an interval.

    Where two files hold an interval, a value wins over none, then the product earlier in ``KINDS``, then the file
    whose name sorts last; so the result does not depend on the order of ``raws``.

    Raises:
        SourceTransient, SchemaDrift: from a parser; nothing is returned then.
    """
    ranked = [
        parse(raw).with_columns(pl.lit(KINDS.index(raw.source)).alias("_rank")) for raw in raws
    ]
    if not ranked:
        return pl.DataFrame(schema=SERIES_SCHEMA)
    order = [pl.col("value").is_null(), pl.col("_rank"), pl.col("source")]
    rows = pl.concat(ranked).sort(order, descending=[False, False, True])
    once = rows.unique(["series_id", "variable", "start_utc"], keep="first", maintain_order=True)
    return validate_series(once.drop("_rank"))
