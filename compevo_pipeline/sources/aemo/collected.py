"""Half-hourly TOTALDEMAND that others collected from AEMO's monthly files: New South Wales and South Australia.

What belongs here: the two spellings these collections use. What does not: any other region or measure.
The values are AEMO's, to the cent, except South Australia after 2021-10-01, whose collector averaged the six 5-minute
rows (as :mod:`.nem` does). They join ``AEMO/TOTALDEMAND/<region>``; AEMO's own file wins where both exist.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import Clock, RawFile, archive_files, archive_raw, unzip
from compevo_pipeline.sources.common.nem import (
    DEMAND_UNIT,
    DEMAND_VARIABLE,
    HALF_HOUR,
    OBSERVED,
    REGIONS,
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

SOURCE = "aemo_totaldemand_half_hourly"
FOLDER = "aemo_totaldemand_half_hourly"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How one collection spells its columns; ``region`` is a column, or a constant where it has none."""

    header: tuple[str, ...]
    stamp: str
    value: str
    region_column: str | None
    region: str
    formats: tuple[str, ...]


_LAYOUTS = (
    _Layout(
        header=("DATETIME", "TOTALDEMAND", "REGIONID"),
        stamp="DATETIME",
        value="TOTALDEMAND",
        region_column="REGIONID",
        region="",
        formats=("%d/%m/%Y %H:%M",),
    ),
    _Layout(
        header=("datetime", "load_act"),
        stamp="datetime",
        value="load_act",
        region_column=None,
        region="SA1",
        formats=("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"),
    ),
)


def archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the two collections."""
    for path in archive_files(root, FOLDER, "*.csv.*"):
        assert root is not None
        if path.suffix == ".zip":
            for member in unzip(path.read_bytes(), path.name):
                yield archive_raw(path, root, source=SOURCE, member=member, clock=clock)
        else:
            yield archive_raw(path, root, source=SOURCE, member=None, clock=clock)


def parse(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse one collection into ``AEMO/TOTALDEMAND/<region>`` rows of ``SERIES_SCHEMA``.

    Raises:
        SchemaDrift: unknown header, or a number, stamp, region, repeat or gap; names file, line and remedy.
    """
    layout = _layout(raw)
    frame = read_table(raw, layout.header)
    frame = to_number(raw, to_stamp(raw, frame, layout.stamp, layout.formats), layout.value)
    region = pl.col(layout.region_column) if layout.region_column else pl.lit(layout.region)
    frame = frame.with_columns(region.alias("_region"))
    refuse_rows(
        raw, frame, ~pl.col("_region").is_in(REGIONS), "region is {_region!r}", "extend nem.REGIONS"
    )
    refuse_duplicates(raw, frame, ["_region", layout.stamp])
    if not tolerate_gaps:
        refuse_gaps(raw, frame, layout.stamp, "_region", HALF_HOUR)
    rows = frame.select(
        pl.concat_str(pl.lit("AEMO/TOTALDEMAND/"), pl.col("_region")).alias("series_id"),
        pl.lit(DEMAND_VARIABLE).alias("variable"),
        utc_start(pl.col(layout.stamp), HALF_HOUR).alias("start_utc"),
        pl.col(layout.value).alias("value"),
        pl.lit(DEMAND_UNIT).alias("unit"),
        pl.lit(OBSERVED).alias("flag"),
    )
    return series_frame(raw, rows)


def _layout(raw: RawFile) -> _Layout:
    head = raw.content[:200].decode("utf-8", errors="replace").lstrip("\ufeff").partition("\n")[0]
    cells = tuple(cell.strip().strip('"') for cell in head.split(","))
    for layout in _LAYOUTS:
        if cells[:2] == layout.header[:2]:
            return layout
    known = " or ".join(",".join(layout.header) for layout in _LAYOUTS)
    raise SchemaDrift(
        f"{raw.name}, line 1: header is {head.strip()!r}, expected {known}; extend _LAYOUTS"
    )
