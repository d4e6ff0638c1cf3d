"""Half-hourly TOTALDEMAND of two regions that others collected from AEMO's monthly files.

What belongs here: the two spellings that these collections (New South Wales, South Australia) use.
What does not: any other region or measure.

The values are AEMO's, to the cent, except South Australia after 2021-10-01, whose collector
averaged the six 5-minute rows (as :mod:`compevo_pipeline.sources.common.nem` does). They join
``AEMO/TOTALDEMAND/<region>``; AEMO's own file wins where both have an interval.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo.region_series import build_region_series, refuse_unknown_regions
from compevo_pipeline.sources.common.base import (
    Clock,
    RawFile,
    find_archive_files,
    read_archive_file,
    wrap_member,
)
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.nem import HALF_HOUR, interval_start_utc
from compevo_pipeline.sources.common.tables import (
    Quoting,
    read_table,
    refuse_duplicates,
    refuse_gaps,
    split_cells,
    to_number,
    to_stamp,
)
from compevo_pipeline.sources.common.unpack import unzip

SOURCE = "aemo_totaldemand_half_hourly"
FOLDER = "aemo_totaldemand_half_hourly"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Columns of one collection.

    Attributes:
        header: all columns, in order.
        stamp: column of interval ends.
        value: column of demand.
        region: the region, as a constant or as the column ``REGIONID``.
        formats: formats of the timestamps.
    """

    header: tuple[str, ...]
    stamp: str
    value: str
    region: pl.Expr
    formats: tuple[str, ...]


_LAYOUTS = (
    _Layout(
        header=("DATETIME", "TOTALDEMAND", "REGIONID"),
        stamp="DATETIME",
        value="TOTALDEMAND",
        region=pl.col("REGIONID"),
        formats=("%d/%m/%Y %H:%M",),  # the day comes first
    ),
    _Layout(
        header=("datetime", "load_act"),
        stamp="datetime",
        value="load_act",
        region=pl.lit("SA1"),  # the file holds one region and has no column for it
        formats=("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"),
    ),
)


def read_archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the two collections."""
    for path in find_archive_files(root, FOLDER, "*.csv.*"):
        if path.suffix == ".zip":
            for member in unzip(path.read_bytes(), path.name):
                yield wrap_member(path, path.parents[1], member, source=SOURCE, clock=clock)
        else:
            yield read_archive_file(path, path.parents[1], source=SOURCE, clock=clock)


def parse(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse one collection into ``AEMO/TOTALDEMAND/<region>`` rows of ``SERIES_SCHEMA``.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: unknown header, or a number, timestamp, region, duplicate or gap; names file,
            line and remedy.
    """
    text = read_text(raw.content, raw.name)
    layout = _find_layout(text, raw.name)

    table = read_table(text, raw.name, layout.header, quoting=Quoting.CELLS)
    table = to_stamp(table, raw.name, layout.stamp, layout.formats)
    table = to_number(table, raw.name, [layout.value])

    table = table.with_columns(layout.region.alias("region"))
    refuse_unknown_regions(table, raw.name, "region")
    refuse_duplicates(table, raw.name, ["region", layout.stamp])
    if not tolerate_gaps:
        refuse_gaps(table, raw.name, layout.stamp, HALF_HOUR, by="region")

    return build_region_series(
        table,
        raw,
        "TOTALDEMAND",
        region="region",
        start_utc=interval_start_utc(pl.col(layout.stamp), HALF_HOUR),
        value=layout.value,
    )


def _find_layout(text: str, file_name: str) -> _Layout:
    header = text.partition("\n")[0]
    cells = split_cells(header, quoting=Quoting.CELLS)

    # Two columns tell the collections apart; read_table compares the rest and names what changed.
    for layout in _LAYOUTS:
        if tuple(cells[:2]) == layout.header[:2]:
            return layout

    known = " or ".join(",".join(layout.header) for layout in _LAYOUTS)
    raise SchemaDrift(
        f"{file_name}, line 1: the header is {header[:200]!r}, expected {known}; extend _LAYOUTS"
    )
