"""What a user's table seems to hold: its columns and its clock.

What belongs here: guesses that ``compevo init`` says and the user can overrule. What does not:
reading cells (``compevo_core.table``), what follows from the columns (``own.draft``).
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import polars as pl

from compevo_core.errors import DataError
from compevo_core.table.cells import LINE, TextColumn, is_numeric, refuse_text
from compevo_core.table.text_stamps import FORMATS, are_clock_times, guess_format, read_by_each
from compevo_pipeline.sources.own.frames import PART_OF_DAY
from compevo_pipeline.sources.own.table import JOINED

ALL = "all"  # what `--value` says for every column of numbers
_TIMES = (
    *("ds", "stamp", "timestamp", "datetime", "date_time", "time", "date", "day", "start"),
    *("year", "month", "quarter", "week", "period", "ts", "epoch", "unix"),
)
_VALUES = ("y", "value", "target", "load", "demand", "consumption", "sales", "power")
_LOOKED_AT = 500  # rows, from the top
_FEWEST_NUMBERED = 20  # columns of one name and a number
_LEAST_SERIES = 1.5  # rows a stamp, in the mean, of a table of several series
_LEAST_ROWS = 10  # of a series
_PARTS_OF_DAY = (23, 24, 25, 26, 46, 48, 50, 92, 96, 100, 276, 288, 300)
_MOST_PARTS = 0.95  # share of cells that number parts of a day, where others do not: 2A, 2B
_NAMES_PART = re.compile(r"(?i)hour|period|interval|block|slot|time|\bh[er]\b")
_HOUR = timedelta(hours=1)
_SUNDAY = 7
_CHANGES = (3, 4, 9, 10, 11)  # months in which clocks change somewhere


def guess_time(table: pl.DataFrame, name: str) -> str:
    """Return the column of stamps: one with a likely name first.

    Raises:
        DataError: no column holds stamps, or the first row names no columns.
    """
    columns = _list_columns(table)
    if len(columns) == 1:
        raise DataError(
            f"{name}: its lines are one cell each, the first {columns[0]!r}: separate cells by "
            "a comma, semicolon, tab or |"
        )
    head = table.head(_LOOKED_AT)
    candidates = _list_times(head, name)
    if not candidates:
        for column in (*_list_times(head[1:], name), *_list_times(head[:1], name)):
            # Most often units, or another format: name the row.
            guess_format(TextColumn(table, name, column))
        # Many columns number the steps of a series, as d_1 and so on do.
        parts = [re.fullmatch(r"(.*?)(\d+)", column) for column in columns]
        numbered = Counter(match[1] for match in parts if match)
        for prefix, count in numbered.items():
            if count < _FEWEST_NUMBERED:
                continue
            steps = [m[0] for m in parts if m and m[1] == prefix]
            others = [column for column in columns if column not in steps]
            raise DataError(
                f"{name}: the columns {steps[0]!r} to {steps[-1]!r} seem to be steps of one "
                f"series: write a row for each with its stamp, as polars' unpivot(index={others}) "
                "does, or name the columns of stamps and values with --time and --value"
            )
        raise DataError(
            f"{name}: no column holds stamps in a format that is known; the columns are "
            f"{', '.join(map(repr, columns))}: name the column with --time, and its format with "
            "--time-format, or write stamps as 2024-03-31 02:30, 2024-03, 2024-Q1 or 2024-W13"
        )
    time = min(candidates, key=lambda column: _rank(column, _TIMES))
    if _holds_stamps(TextColumn(pl.DataFrame({LINE: [1], time: [time]}), name, time)):
        raise DataError(
            f"{name}, row 1: {time!r} is a stamp and not a name; write a line of column names"
        )
    return time


def guess_period(table: pl.DataFrame, name: str, time: str) -> str:
    """Return the column with the part of the day of each row, by clock or number; or "".

    Raises:
        DataError: a column's cells say so, and its name does not: it may name series.
    """
    if _LEAST_SERIES * table[time].n_unique() > table.height:
        return ""
    if table[time].str.contains(":").any():
        return ""
    for column in _list_columns(table):
        cells = table[column]
        is_part = cells.n_unique() in _PARTS_OF_DAY
        if are_clock_times(cells) and (is_part or cells.str.contains(":").all()):
            return column
        share = cast(float, cells.str.contains(PART_OF_DAY).mean())
        if is_part and share > _MOST_PARTS and _NAMES_PART.search(column):
            return column
        if is_part and share == 1:
            raise DataError(
                f"{name}: {column!r} may number the parts of the days of {time!r}, or name series; "
                f"give --period {column!r} or --id {column!r}"
            )
    return ""


def guess_series(table: pl.DataFrame, time: Sequence[str], values: Sequence[str]) -> str:
    """Return the column that names each row's series, two as ``store + item``, "" without.

    ``time`` are the columns of stamps, of days and of parts of a day; ``values`` name no series.
    """
    # An hour that comes twice as clocks go back is not a second series.
    if _LEAST_SERIES * table.select(pl.struct(time).n_unique()).item() > table.height:
        return ""
    names = []
    for column in _list_columns(table):
        cells = table[column]
        few = _LEAST_ROWS * cells.n_unique() <= table.height
        if column not in (*time, *values) and not cells.null_count() and few:
            names.append(column)
    # One column, or two that name a series together, as a store and an item do.
    for columns in (*((name,) for name in names), *itertools.combinations(names, 2)):
        if not table.select(pl.struct(*time, *columns).is_duplicated().any()).item():
            return JOINED.join(columns)
    return ""


def list_numbers(table: pl.DataFrame, name: str, others: Sequence[str]) -> list[str]:
    """Return the columns of numbers besides others.

    Raises:
        DataError: there is none.
    """
    columns = [column for column in _list_columns(table) if column not in others]
    texts = [TextColumn(table, name, column) for column in columns]
    numeric = [text.name for text in texts if is_numeric(text)]
    if not numeric:
        refuse_text(texts)
        raise DataError(
            f"{name}: no column of numbers besides {others[0]!r}; write the values as numbers"
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
    unless = ", or --zone UTC if clocks do not change"
    found = ((twice, "comes twice", ""), (skipped, "follows a missing hour", unless))
    for suspects, what, also in found:
        if suspects.height:
            row = suspects.row(0, named=True)
            stamp = f"{row['_wall']:%Y-%m-%d %H:%M}"
            raise DataError(
                f"{times.file}, row {row[LINE]}, column {times.name!r}: {stamp}, a Sunday, "
                f"{what}, as where clocks change; say whose clock it is with --zone, such as "
                f"--zone Europe/Paris{also}"
            )


def _list_columns(table: pl.DataFrame) -> list[str]:
    return [column for column in table.columns if column != LINE]


def _list_times(table: pl.DataFrame, name: str) -> list[str]:
    return [c for c in _list_columns(table) if _holds_stamps(TextColumn(table, name, c))]


def _holds_stamps(column: TextColumn) -> bool:
    filled = column.table.filter(~column.is_blank)
    # A number is a stamp as the month 202401 or the day 20240101, or in a column named like one.
    is_number = column.text.str.contains(r"^\d+(\.\d+)?$")
    is_number &= ~column.text.str.contains(r"^(19|20)\d\d(0[1-9]|1[0-2])(\d{2}(\d{4}(\d{2})?)?)?$")
    is_named = _rank(column.name, _TIMES) < 2 * len(_TIMES)
    if not filled.height or (filled.select(is_number.any()).item() and not is_named):
        return False
    read = read_by_each(filled, column, {form: (form,) for form in FORMATS})
    return any(not stamps.null_count() for stamps in read.iter_columns())


def _rank(column: str, usual: Sequence[str]) -> int:
    """Return the place of a column's name among usual ones, behind them where it is none."""
    words = column.lower().replace(" ", "_")
    places = [i for i, word in enumerate(usual) if words == word]
    places += [len(usual) + i for i, word in enumerate(usual) if word in words.split("_")]
    return min(places, default=2 * len(usual))
