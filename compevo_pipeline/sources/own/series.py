"""A user's series: from the declared table to ``SERIES_SCHEMA``, with counts of what was repaired.

What belongs here: stamps to interval starts, duplicates, rows off the grid, empty cells. What does
not: what a cell is (``own.numbers``, ``own.stamps``), gaps between rows (``data.series``).

What can be decided is repaired and counted: equal duplicates, another order of rows, units in
cells. What cannot is refused with its row.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Self

import polars as pl

from compevo_core.data.series import resample_to_step
from compevo_core.errors import DataError
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.series_frame import MISSING, OBSERVED, build_series_frame
from compevo_pipeline.sources.common.tables import LINE
from compevo_pipeline.sources.own.clocks import find_standard_offset
from compevo_pipeline.sources.own.declaration import DAY, Declaration, read_step
from compevo_pipeline.sources.own.numbers import read_numbers
from compevo_pipeline.sources.own.spec import (
    SERIES_PREFIX,
    make_label,
    name_variable,
)
from compevo_pipeline.sources.own.stamps import read_stamps, to_wall_clock
from compevo_pipeline.sources.own.table import read_columns, refuse_row

_START = "_start"
_VALUE = "_value"
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """Counts of what was repaired or left empty while a table was read.

    Attributes:
        rows: rows of the table, once for each column of values.
        empty_cells: cells without a value.
        cells_with_unit: cells whose unit was cut off.
        out_of_order: rows that came after a later one.
        equal_duplicates: rows that repeat another, stamp and value.
        joined_duplicates: rows that lost to another value of their stamp, as declared.
        repeated_hours: rows in an hour that comes twice.
    """

    rows: int = 0
    empty_cells: int = 0
    cells_with_unit: int = 0
    out_of_order: int = 0
    equal_duplicates: int = 0
    joined_duplicates: int = 0
    repeated_hours: int = 0

    def __add__(self, other: Self) -> Self:
        """Add count by count."""
        return type(self)(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    def describe(self) -> str:
        """Return the counts that are not zero, in words."""
        counts = [
            f"{count:,} {name.replace('_', ' ')}" for name, count in asdict(self).items() if count
        ]
        return ", ".join(counts)


def parse(raws: Sequence[RawFile], declaration: Declaration) -> pl.DataFrame:
    """Parse the table of values into ``SERIES_SCHEMA``; see :func:`parse_counted`."""
    return parse_counted(raws[0], declaration)[0]


def parse_counted(raw: RawFile, declaration: Declaration) -> tuple[pl.DataFrame, Repairs]:
    """Parse the table of values, and count what was repaired.

    Raises:
        DataError: a cell that is no stamp or number, a stamp off the grid, a stamp with two values;
            names file, row, column and remedy.
    """
    keys = declaration.series
    table = read_columns(raw.content, raw.name, [keys.time, *keys.values, *filter(None, [keys.id])])
    stamps, found = read_stamps(
        table,
        raw.name,
        keys.time,
        zone=keys.time_zone,
        time_format=keys.time_format,
        by=keys.id,
        repeated_hour=keys.repeated_hour,
    )
    starts = _find_starts(table, stamps, raw.name, declaration)
    entities = _name_entities(table, raw.name, declaration)
    repairs = Repairs(repeated_hours=found.repeated)

    frames = []
    for column, entity in entities:
        values, cells = read_numbers(table, raw.name, column, keys.decimal)
        repairs += Repairs(
            rows=table.height, empty_cells=cells.empty, cells_with_unit=cells.with_unit
        )
        rows = table.with_columns(starts.alias(_START), values.alias(_VALUE), entity)
        rows, joined = _join_duplicates(rows, raw.name, column, keys.duplicates)
        repairs += joined
        frames.append(_build_frame(rows, raw, declaration))
    return pl.concat(frames), repairs


def _name_entities(
    table: pl.DataFrame, name: str, declaration: Declaration
) -> list[tuple[str, pl.Expr]]:
    """Return each column of values with the expression of its series' name."""
    keys = declaration.series
    if keys.id:
        refuse_row(
            table, name, keys.id, pl.col(keys.id).is_null(), "names no series", "fill the cell"
        )
        texts = table[keys.id].unique(maintain_order=True).to_list()
    else:
        texts = list(keys.values)

    labels = {text: make_label(text) for text in texts}
    if "" in labels.values() or len(set(labels.values())) < len(labels):
        raise DataError(
            f"{name}: the names {', '.join(map(repr, texts[:4]))} ... are not told apart by their "
            "letters and digits; rename the columns or series"
        )
    if keys.id:
        entity = pl.col(keys.id).replace_strict(labels)
        return [(keys.values[0], entity.alias("_entity"))]
    return [(column, pl.lit(labels[column]).alias("_entity")) for column in keys.values]


def _find_starts(
    table: pl.DataFrame, stamps: pl.Series, name: str, declaration: Declaration
) -> pl.Series:
    """Return the start of each interval in UTC, on the clock without daylight saving for days."""
    keys = declaration.series
    step = read_step(declaration.grid.step)
    offset = find_standard_offset(keys.time_zone)

    if step >= DAY:
        # A day keeps its date: midnights of a clock with daylight saving are not a day apart.
        days = to_wall_clock(stamps, keys.time_zone).dt.truncate("1d")
        starts = (days - offset).dt.replace_time_zone("UTC")
        return starts - DAY if keys.stamps == "end" else starts

    starts = stamps - _find_row_distance(stamps, step) if keys.stamps == "end" else stamps
    clock = (starts + offset).dt.replace_time_zone(None)
    rows = table.with_columns(starts.alias(_START), (clock - _EPOCH).alias("_since"))
    distance = _find_row_distance(stamps, step)
    refuse_row(
        rows,
        name,
        keys.time,
        pl.col("_since").dt.total_microseconds() % (distance // timedelta(microseconds=1)) != 0,
        f"is off the grid of {distance}",
        "correct the stamp, or set grid.step in the declaration to a length that all stamps fit",
    )
    return starts


def _find_row_distance(stamps: pl.Series, step: timedelta) -> timedelta:
    """Return the distance of most rows, where it divides the step: finer rows are averaged."""
    distances = stamps.unique().sort().diff().drop_nulls()
    common = distances.mode().min() if len(distances) else step
    if isinstance(common, timedelta) and common < step and not step % common:
        return common
    return step


def _join_duplicates(
    rows: pl.DataFrame, name: str, column: str, rule: str
) -> tuple[pl.DataFrame, Repairs]:
    """Return one row a stamp and series, in order.

    Raises:
        DataError: two rows of one stamp have different values and the rule is to refuse them.
    """
    key = ["_entity", _START]
    out_of_order = int(rows.select(_count_disorder(rows)).item())
    # The same value twice is the same row twice; an empty cell gives way to a value.
    distinct = rows.unique([*key, _VALUE], keep="first", maintain_order=True)
    has_value = pl.col(_VALUE).is_not_null().any().over(key)
    distinct = distinct.filter(pl.col(_VALUE).is_not_null() | ~has_value)
    equal = rows.height - distinct.height

    other = pl.col(_VALUE).first().over(key)
    first_row = pl.col(LINE).first().over(key)
    marked = distinct.with_columns(other.alias("_other"), first_row.alias("_first"))
    contradicting = marked.filter(pl.col(_VALUE) != pl.col("_other"))
    if contradicting.height and rule == "refuse":
        row = contradicting.row(0, named=True)
        raise DataError(
            f"{name}, row {row[LINE]}, column {column!r}: the stamp of row {row['_first']} again, "
            f"with {row[_VALUE]:g} where that has {row['_other']:g}"
            f" ({contradicting.height:,} such rows); remove one, or set duplicates in the "
            "declaration to first, last or mean"
        )

    value = {"last": pl.col(_VALUE).last(), "mean": pl.col(_VALUE).mean()}.get(
        rule, pl.col(_VALUE).first()
    )
    joined = distinct.group_by(key, maintain_order=True).agg(value, pl.col(LINE).first())
    repairs = Repairs(
        out_of_order=out_of_order,
        equal_duplicates=equal,
        joined_duplicates=distinct.height - joined.height,
    )
    return joined.sort(key), repairs


def _count_disorder(rows: pl.DataFrame) -> pl.Expr:
    start = pl.col(_START)
    # A file whose newest row comes first is in order as well.
    is_descending = rows[_START][0] > rows[_START][-1]
    ordered = start.reverse() if is_descending else start
    entity = pl.col("_entity").reverse() if is_descending else pl.col("_entity")
    return (ordered < ordered.cum_max().over(entity)).sum()


def _build_frame(rows: pl.DataFrame, raw: RawFile, declaration: Declaration) -> pl.DataFrame:
    is_known = pl.col(_VALUE).is_not_null()
    frame = build_series_frame(
        rows,
        raw,
        series_id=pl.concat_str(pl.lit(f"{SERIES_PREFIX}/"), pl.col("_entity")),
        variable=name_variable(declaration),
        start_utc=pl.col(_START),
        value=pl.col(_VALUE),
        unit=declaration.series.unit,
        flag=pl.when(is_known).then(pl.lit(OBSERVED)).otherwise(pl.lit(MISSING)),
    )
    step = read_step(declaration.grid.step)
    offset = find_standard_offset(declaration.series.time_zone)
    # Steps begin at midnight of the clock, which need not be one of UTC.
    averaged = [
        resample_to_step(part.with_columns(pl.col("start_utc") + offset), step)
        for part in frame.partition_by("series_id", maintain_order=True)
    ]
    return pl.concat(averaged).with_columns(pl.col("start_utc") - offset)
