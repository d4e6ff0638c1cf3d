"""Delimited text tables of publishers: read as text, converted with checks that name the line.

What belongs here: header and cell-count checks, text to numbers and timestamps, gaps and
duplicates. What does not: what the columns mean (the source modules), the frame contract
(``common.series_frame``).

Every function takes the table (or its text) first, then the file's name for messages, then what to
check. All columns are read as text. A check is vectorised; the line of a fault is looked up only
after a check has found one.
"""

import csv
import io
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum, auto

import polars as pl
from polars.exceptions import PolarsError

from compevo_core.errors import SchemaDrift

LINE = "line"
"""Column that holds a row's line number in its file, counted from 1."""

BLANK = ("",)
"""The ``missing`` of :func:`to_number` for publishers that leave a missing cell empty."""

_FIRST_YEAR = 1900
_LAST_YEAR = 2200
_SHOWN_CHARACTERS = 60
_SHOWN_COLUMNS = 6


class Quoting(Enum):
    """Whether a publisher puts cells in double quotes."""

    NONE = auto()
    """A quote is a character like any other."""

    CELLS = auto()
    """Cells may be quoted, but none holds a line break."""

    LINES = auto()
    """Quoted cells may hold line breaks; line numbers then need a second, slower pass."""


def read_table(
    text: str,
    file_name: str,
    header: Sequence[str],
    *,
    separator: str = ",",
    quoting: Quoting = Quoting.NONE,
) -> pl.DataFrame:
    r"""Read a table whose first line must be ``header``.

    Args:
        text: the whole file with ``\n`` line ends.
        file_name: the file's name, for messages.
        header: the expected columns, in order.
        separator: the cell separator.
        quoting: whether cells may be quoted.

    Returns:
        One text column for each of ``header``, and :data:`LINE`.

    Raises:
        SchemaDrift: another header, no rows, or a row with another number of cells.
    """
    first_line, _, body = text.partition("\n")

    # Checked first: with another header every later message would mislead.
    check_header(split_cells(first_line, separator, quoting), file_name, header)
    return read_rows(body, file_name, header, first_line=2, separator=separator, quoting=quoting)


def read_rows(
    text: str,
    file_name: str,
    columns: Sequence[str],
    *,
    first_line: int = 1,
    separator: str = ",",
    quoting: Quoting = Quoting.NONE,
) -> pl.DataFrame:
    """Read rows without a header; ``first_line`` is the number of their first line in the file.

    Returns:
        One text column for each of ``columns``, and :data:`LINE`.

    Raises:
        SchemaDrift: no rows, or a row with another number of cells.
    """
    lines = text.split("\n")
    # Blank lines at the end do no harm; one between rows is a row without cells.
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise SchemaDrift(f"{file_name}, line {first_line}: no rows; fetch or copy the file again")

    twice = sorted({name for name in columns if list(columns).count(name) > 1})
    if twice:
        raise SchemaDrift(
            f"{file_name}, line 1: the header names {twice[:_SHOWN_COLUMNS]} twice; "
            "fetch the file again"
        )

    # Only the reader without quotes counts the cells of every row by itself.
    if quoting is Quoting.NONE:
        return _split_rows(lines, file_name, columns, first_line, separator)
    return _read_quoted_rows(lines, file_name, columns, first_line, separator, quoting)


def split_cells(line: str, separator: str = ",", quoting: Quoting = Quoting.NONE) -> list[str]:
    """Split one line into its cells; a line that breaks the rules of quoting is one cell."""
    if quoting is Quoting.NONE:
        return line.split(separator)

    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        # A lone carriage return, or a cell of more than 128 KiB: the number of cells is wrong then.
        return [line]


def check_header(cells: Sequence[str], file_name: str, expected: Sequence[str]) -> None:
    """Refuse a first line that is not the known header.

    Raises:
        SchemaDrift: names the columns that are missing and those that are new.
    """
    if list(cells) == list(expected):
        return

    missing = [name for name in expected if name not in cells][:_SHOWN_COLUMNS]
    new = [cell for cell in cells if cell not in expected][:_SHOWN_COLUMNS]
    raise SchemaDrift(
        f"{file_name}, line 1: the header changed: missing {missing}, new {new}, "
        f"{len(cells)} columns where {len(expected)} are expected; compare with the publisher's "
        "format notes, then extend the parser or remove the file"
    )


def to_number(
    table: pl.DataFrame, file_name: str, columns: Sequence[str], *, missing: Sequence[str] = ()
) -> pl.DataFrame:
    """Cast text columns to Float64; cells listed in ``missing`` become null.

    Raises:
        SchemaDrift: another cell is not a finite number.
    """
    numbers = []
    for column in columns:
        text = pl.col(column).str.strip_chars()
        is_missing = text.is_in(list(missing)) if missing else pl.lit(value=False)
        number = text.cast(pl.Float64, strict=False)

        # "nan" and "inf" are numbers to polars, and never to a publisher of measurements.
        is_bad = ~is_missing & ~number.is_finite().fill_null(value=False)
        problem = f"{column} is {{{column}!r}}, not a number"
        refuse_rows(table, file_name, is_bad, problem, "correct the cell or fetch the file again")

        numbers.append(pl.when(is_missing).then(None).otherwise(number).alias(column))

    return table.with_columns(numbers)


def to_stamp(
    table: pl.DataFrame, file_name: str, column: str, formats: Sequence[str]
) -> pl.DataFrame:
    """Parse a text column into naive datetimes in microseconds; the first fitting format is used.

    Raises:
        SchemaDrift: a cell fits none of ``formats`` (an empty one included).
    """
    # Publishers change the spelling inside one file, so each cell tries all formats.
    text = pl.col(column).str.strip_chars()
    stamp = pl.coalesce(
        [text.str.to_datetime(form, strict=False, time_unit="us") for form in formats]
    )

    problem = f"{column} is {{{column}!r}}, not a timestamp like {' or '.join(formats)}"
    remedy = "correct the cell or fetch the file again"
    # polars knows the years 0 and 12000; Python and the calendar of any publisher do not.
    is_year = stamp.dt.year().is_between(_FIRST_YEAR, _LAST_YEAR)
    refuse_rows(table, file_name, ~is_year, problem, remedy)
    return table.with_columns(stamp.alias(column))


def refuse_rows(
    table: pl.DataFrame, file_name: str, is_bad: pl.Expr, problem: str, remedy: str
) -> None:
    """Refuse a table with a bad row.

    Args:
        table: the rows, with :data:`LINE`.
        file_name: the file's name, for messages.
        is_bad: true or null on a bad row.
        problem: what is wrong; ``{column}`` stands for the cell of the first bad row.
        remedy: what the reader of the message should do.

    Raises:
        SchemaDrift: at least one row is bad; names file, line, the problem and the remedy.
    """
    # A check that has no answer did not pass.
    bad = table.filter(is_bad.fill_null(value=True))
    if not bad.height:
        return

    first = bad.row(0, named=True)
    others = f" (and {bad.height - 1} more)" if bad.height > 1 else ""
    raise SchemaDrift(
        f"{file_name}, line {first[LINE]}: {problem.format(**first)}{others}; {remedy}"
    )


def refuse_duplicates(table: pl.DataFrame, file_name: str, keys: Sequence[str]) -> None:
    """Refuse a table with two rows of one key.

    Raises:
        SchemaDrift: names the key and the line of its second row.
    """
    key = ", ".join(f"{name} {{{name}}}" for name in keys)
    refuse_rows(
        table,
        file_name,
        ~pl.struct(*keys).is_first_distinct(),
        f"{key} is a duplicate",
        "remove the duplicate or fetch the file again",
    )


def refuse_gaps(
    table: pl.DataFrame, file_name: str, stamp: str, step: timedelta, *, by: str
) -> None:
    """Refuse a table whose sorted timestamps of one ``by`` are not exactly ``step`` apart.

    Raises:
        SchemaDrift: names the line after the gap.
    """
    # Sorted, because files join regions in any order; the message still names the line in the file.
    steps = table.sort(by, stamp).with_columns(pl.col(stamp).diff().over(by).alias("_step"))

    refuse_rows(
        steps,
        file_name,
        pl.col("_step").is_not_null() & (pl.col("_step") != step),
        f"{stamp} {{{stamp}}} of {{{by}}} comes {{_step}} after the one before it, not {step}",
        "timestamps are missing: fetch the file again, or set tolerate_gaps for this run",
    )


def refuse_irregular_rows(table: pl.DataFrame, file_name: str, stamp: str, step: timedelta) -> None:
    """Refuse a table whose rows, in the order of the file, are not exactly ``step`` apart.

    Raises:
        SchemaDrift: names the first line after a gap or a step back.
    """
    steps = table.with_columns(pl.col(stamp).diff().alias("_step"))
    refuse_rows(
        steps,
        file_name,
        pl.col("_step").is_not_null() & (pl.col("_step") != step),
        f"{stamp} {{{stamp}}} comes {{_step}} after the line before, not {step}",
        "rows are missing or out of order: fetch the file again",
    )


def _split_rows(
    lines: Sequence[str], file_name: str, columns: Sequence[str], first_line: int, separator: str
) -> pl.DataFrame:
    rows = pl.DataFrame({"cells": lines}).with_row_index(LINE, offset=first_line)
    rows = rows.with_columns(pl.col("cells").str.split(separator))

    ragged = rows.filter(pl.col("cells").list.len() != len(columns))
    if ragged.height:
        line = ragged[0, LINE]
        raise _ragged_row(
            file_name, line, len(ragged[0, "cells"]), len(columns), lines[line - first_line]
        )
    return rows.with_columns(pl.col("cells").list.to_struct(fields=list(columns))).unnest("cells")


def _read_quoted_rows(
    lines: Sequence[str],
    file_name: str,
    columns: Sequence[str],
    first_line: int,
    separator: str,
    quoting: Quoting,
) -> pl.DataFrame:
    try:
        table = pl.read_csv(
            io.BytesIO("\n".join(lines).encode()),
            has_header=False,
            separator=separator,
            schema=dict.fromkeys(columns, pl.String),
            empty_string_is_null=False,
        )
    except PolarsError as error:
        raise _find_ragged_row(
            lines, file_name, len(columns), first_line, separator, str(error)
        ) from error

    numbers = _line_numbers(lines, file_name, first_line, separator, quoting)
    if len(numbers) != table.height:
        cause = f"{len(numbers)} records, {table.height} rows"
        raise _find_ragged_row(lines, file_name, len(columns), first_line, separator, cause)

    # polars reads a short row as empty last cells: tell a cut line from a cell left empty.
    may_be_short = quoting is Quoting.CELLS and (table[columns[-1]] == "").any()
    if may_be_short and any(line.count(separator) < len(columns) - 1 for line in lines):
        cause = "a row is short"
        raise _find_ragged_row(lines, file_name, len(columns), first_line, separator, cause)

    return table.with_columns(pl.Series(LINE, numbers, dtype=pl.Int64))


def _line_numbers(
    lines: Sequence[str], file_name: str, first_line: int, separator: str, quoting: Quoting
) -> Sequence[int]:
    if quoting is Quoting.CELLS:
        return range(first_line, first_line + len(lines))

    reader = csv.reader(io.StringIO("\n".join(lines), newline=""), delimiter=separator)
    # The reader knows where a record ended; the next one starts a line later.
    numbers = []
    start = first_line
    try:
        for _ in reader:
            numbers.append(start)
            start = first_line + reader.line_num
    except csv.Error as error:
        raise SchemaDrift(
            f"{file_name}, line {start}: not a row of a table ({error}); fetch the file again"
        ) from error
    return numbers


def _find_ragged_row(
    lines: Sequence[str],
    file_name: str,
    width: int,
    first_line: int,
    separator: str,
    cause: str,
) -> SchemaDrift:
    for number, line in enumerate(lines, start=first_line):
        cells = split_cells(line, separator, Quoting.CELLS)
        if len(cells) != width:
            return _ragged_row(file_name, number, len(cells), width, line)

    return SchemaDrift(
        f"{file_name}: not a table of {width} columns ({cause}); fetch the file again"
    )


def _ragged_row(file_name: str, line: int, cells: int, width: int, text: str) -> SchemaDrift:
    return SchemaDrift(
        f"{file_name}, line {line}: {cells} cells, not {width}; the file is cut or its layout "
        f"changed ({text[:_SHOWN_CHARACTERS]!r}); fetch the file again"
    )
