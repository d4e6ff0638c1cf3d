"""What a user's table seems to hold: columns, clock, and values that look wrong.

What belongs here: guesses that ``compevo init`` says and the user can overrule. What does not:
reading cells (``own.table``, ``own.stamps``), what follows from the columns (``own.draft``).
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

import polars as pl

from compevo_core.errors import DataError
from compevo_pipeline.sources.common.tables import LINE
from compevo_pipeline.sources.own.stamps import FORMATS, parse_walls, spell
from compevo_pipeline.sources.own.table import TextColumn, is_numeric

ALL = "all"  # what `--value` says for every column of numbers
_TIMES = ("ds", "stamp", "timestamp", "datetime", "date_time", "time", "date", "day", "start")
_VALUES = ("y", "value", "target", "load", "demand", "consumption", "sales", "power")
_LOOKED_AT = 500  # rows, from the top
_FIRST_YEAR = 1900
_LEAST_SERIES = 1.5  # rows a stamp, in the mean, of a table of several series
_LEAST_ROWS = 10  # of a series
_PART_OF_DAY = r"^\d{1,3}(:\d\d)?$"  # 1 to 50 half-hours where clocks go back
_PARTS_OF_DAY = (23, 24, 25, 46, 48, 50, 92, 96, 100)
_HOUR = timedelta(hours=1)
_SUNDAY = 7
_CHANGES = (3, 4, 9, 10, 11)  # months in which clocks change somewhere
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FAR, _FAR_AGAIN = 10.0, 20.0  # spreads of the middle nine tenths, and half, from the middle


def guess_time(table: pl.DataFrame, name: str) -> str:
    """Return the column of stamps: one with a likely name first.

    Raises:
        DataError: no column holds stamps, or the first row names no columns.
    """
    head = table.head(_LOOKED_AT)
    candidates = [c for c in _list_columns(table) if _holds_stamps(TextColumn(head, name, c))]
    if not candidates:
        raise DataError(
            f"{name}: no column holds stamps in a format that is known; the columns are "
            f"{', '.join(map(repr, _list_columns(table)))}: name the column with --time, and its "
            "format with --time-format"
        )
    time = min(candidates, key=lambda column: _rank(column, _TIMES))
    if _holds_stamps(TextColumn(pl.DataFrame({LINE: [1], time: [time]}), name, time)):
        raise DataError(
            f"{name}, row 1: {time!r} is a stamp and not a name; write a line of column names"
        )
    return time


def guess_series(table: pl.DataFrame, name: str, time: str) -> str:
    """Return the column that names each row's series, "" without; DataError for parts of days."""
    # An hour that comes twice as clocks go back is not a second series.
    if _LEAST_SERIES * table[time].n_unique() > table.height:
        return ""
    for column in _list_columns(table):
        cells = table[column]
        if column == time or cells.null_count() or _LEAST_ROWS * cells.n_unique() > table.height:
            continue
        if not table.select(pl.struct(time, column).is_duplicated().any()).item():
            are_parts = cells.str.contains(_PART_OF_DAY) & ~table[time].str.contains(":")
            if cells.n_unique() in _PARTS_OF_DAY and are_parts.all():
                raise DataError(
                    f"{name}: {column!r} numbers the parts of the days of {time!r}; write both as "
                    "one column of stamps, such as 2024-03-31 13:30, or give --id for its series"
                )
            return column
    return ""


def list_numbers(table: pl.DataFrame, name: str, others: Sequence[str]) -> list[str]:
    """Return the columns of numbers beside others.

    Raises:
        DataError: there is none.
    """
    columns = [column for column in _list_columns(table) if column not in others]
    numeric = [column for column in columns if is_numeric(TextColumn(table, name, column))]
    if not numeric:
        raise DataError(
            f"{name}: no column of numbers beside {others[0]!r}; name the column of values with "
            "--value"
        )
    return numeric


def guess_value(columns: Sequence[str]) -> str:
    """Return the likeliest column of values: one with a usual name, or the first."""
    return min(columns, key=lambda column: _rank(column, _VALUES))


def refuse_changing_clock(times: TextColumn, walls: pl.Series, by: str) -> None:
    """Raise DataError where an hour of a Sunday comes twice or is missing, as clocks change.

    ``walls`` are the stamps as they are written, without an offset.
    """
    series = pl.col(by) if by else pl.lit("")
    rows = times.table.select(LINE, series.alias("_series"), walls.alias("_wall"))
    moved = rows.sort("_series", "_wall", LINE).with_columns(
        pl.col("_wall").diff().over("_series").alias("_distance"),
        pl.len().over("_series", "_wall").alias("_times"),
    )
    step = moved.filter(pl.col("_distance") > timedelta(0))["_distance"].mode().min()
    if not isinstance(step, timedelta) or step > _HOUR:
        return

    is_change = (
        (pl.col("_wall").dt.weekday() == _SUNDAY)
        & (pl.col("_wall").dt.hour() <= 4)
        & pl.col("_wall").dt.month().is_in(_CHANGES)
    )
    twice = moved.filter(is_change & (pl.col("_times") == 2)).sort(LINE)
    skipped = moved.filter(is_change & (pl.col("_distance") == step + _HOUR)).sort(LINE)
    for suspects, what in ((twice, "comes twice"), (skipped, "follows a missing hour")):
        if suspects.height:
            row = suspects.row(0, named=True)
            stamp = f"{row['_wall']:%Y-%m-%d %H:%M}"
            raise DataError(
                f"{times.file}, row {row[LINE]}, column {times.name!r}: {stamp}, a Sunday, "
                f"{what}, as where clocks change; say whose clock it is with --zone, such as "
                "--zone Europe/Paris, or --zone UTC if clocks do not change"
            )


def describe_odd_values(part: pl.DataFrame) -> str:
    """Return a warning about values of one series that are far from all others, or all equal."""
    known = part.drop_nulls("value").sort("start_utc")
    name, values = part["series_id"][0], known["value"]
    if values.n_unique() < 2:
        return f"all values of {name} are equal, so there is nothing to forecast"

    low, below, middle, above, high = (cast(float, values.quantile(q)) for q in _QUANTILES)
    distance = (pl.col("value") - middle).abs()
    # Where most values are one, as zeros are at night, nothing is far from them. A filler comes
    # again and again, and may be more than a tenth of all.
    is_far = distance > (_FAR * (high - low) or math.inf)
    is_far |= (distance > (_FAR_AGAIN * (above - below) or math.inf)) & (pl.len().over("value") > 2)
    far = known.filter(is_far)
    if not far.height:
        return ""
    first = far.row(0, named=True)
    stamp = cast(datetime, first["start_utc"])
    return (
        f"{name}: {far.height:,} value(s) are far from the others, first {first['value']:,.10g} at "
        f"{stamp:%Y-%m-%d %H:%M} UTC, where half of all lie between {below:,g} and {above:,g}; if "
        "they are not measurements, empty their cells"
    )


def _list_columns(table: pl.DataFrame) -> list[str]:
    return [column for column in table.columns if column != LINE]


def _holds_stamps(column: TextColumn) -> bool:
    filled = column.table.filter(~column.is_blank)
    # An offset at the end belongs to no format; 20240101 may be a number as well as a day.
    spelled = spell(column)
    text = spelled.str.replace(r"(:\d{2}(?:\.\d+)?)\s*(Z|[+-]\d{2}:?\d{2})$", "$1")
    looks_dated = spelled.str.contains(r"\d[-/.: ]\d|^(19|20)\d{6}")
    if not filled.height or not filled.select(looks_dated.all()).item():
        return False
    parsed = filled.select(
        parse_walls(text, (form,), _FIRST_YEAR).is_not_null().all().alias(form) for form in FORMATS
    )
    return bool(parsed.select(pl.any_horizontal(pl.all())).item())


def _rank(column: str, usual: Sequence[str]) -> int:
    """Return the place of a column's name among usual ones, behind them where it is none."""
    words = column.lower().replace(" ", "_")
    places = [i for i, word in enumerate(usual) if words == word]
    places += [len(usual) + i for i, word in enumerate(usual) if word in words.split("_")]
    return min(places, default=2 * len(usual))
