"""A user's table as text: any separator, a byte-order mark, cells in quotes, Parquet.

What belongs here: bytes -> columns of text with the number of each row, and the error that names
row, column and remedy. What does not: numbers (``own.numbers``), stamps (``own.stamps``), what the
columns mean.

Row numbers are those of the file: line 1 is the header of a CSV, row 1 the first row of a Parquet.
"""

import io
from collections.abc import Sequence
from pathlib import PurePath

import polars as pl
from polars.exceptions import PolarsError

from compevo_core.errors import DataError
from compevo_pipeline.sources.common.tables import LINE, Quoting, read_rows, split_cells

SEPARATORS = (",", ";", "\t", "|")
BLANKS = ("", "na", "n/a", "nan", "null", "none", "-", "--", "#n/a")
"""Cells that say that there is no value, in small letters."""

_BOM = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_PARQUET = b"PAR1"
_SHOWN_CHARACTERS = 60
_SHOWN_COLUMNS = 20


def read_columns(content: bytes, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read columns of a table as text, with :data:`LINE`.

    Args:
        content: the file's bytes.
        name: the file's name, for messages and to tell Parquet by.
        columns: the columns to read; a missing one is an error that lists those there are.

    Raises:
        DataError: the file is empty, no table, or lacks a column.
        SchemaDrift: a row has another number of cells.
    """
    table = read_text_table(content, name)
    there = [column for column in table.columns if column != LINE]
    missing = [column for column in columns if column not in there]
    if missing:
        shown = ", ".join(repr(_shorten(column)) for column in there[:_SHOWN_COLUMNS])
        raise DataError(
            f"{name}: no column {', '.join(map(repr, missing))}; the columns are {shown}: correct "
            "the column's name in the declaration"
        )
    return table.select(LINE, *dict.fromkeys(columns))


def read_text_table(content: bytes, name: str) -> pl.DataFrame:
    """Read a whole table as text, with :data:`LINE`; see :func:`read_columns` for the errors."""
    if content.startswith(_PARQUET) or PurePath(name).suffix == ".parquet":
        return _read_parquet(content, name)

    text = _decode(content, name)
    header, _, body = text.partition("\n")
    if not header.strip() or not body.strip():
        raise DataError(
            f"{name} has no rows below its header; write a line of column names and one row for "
            "each value"
        )

    separator = find_separator(header)
    cells = [cell.strip() for cell in split_cells(header, separator, Quoting.CELLS)]
    twice = sorted({cell for cell in cells if cells.count(cell) > 1})
    if twice:
        raise DataError(f"{name}, line 1: column {twice[0]!r} comes twice; rename one")
    if LINE in cells:
        # The reader's own column of line numbers has this name.
        raise DataError(f"{name}, line 1: rename column {LINE!r}; rows are numbered by that name")

    quoting = Quoting.LINES if '"' in body else Quoting.NONE
    return read_rows(body, name, cells, first_line=2, separator=separator, quoting=quoting)


def find_separator(header: str) -> str:
    """Return the separator that gives a header most cells."""
    counts = {mark: len(split_cells(header, mark, Quoting.CELLS)) for mark in SEPARATORS}
    return max(SEPARATORS, key=lambda mark: counts[mark])


def is_blank(column: str) -> pl.Expr:
    """Return the expression of "this cell says that there is no value"."""
    return pl.col(column).fill_null("").str.strip_chars().str.to_lowercase().is_in(list(BLANKS))


def refuse_row(
    table: pl.DataFrame, name: str, column: str, is_bad: pl.Expr, problem: str, remedy: str
) -> None:
    """Refuse a table with a bad row.

    Args:
        table: rows with :data:`LINE`.
        name: the file's name.
        column: the column whose cell is wrong.
        is_bad: true or null on a bad row.
        problem: what is wrong with the cell, which stands in front of it.
        remedy: what to do.

    Raises:
        DataError: names file, row, column, cell, problem and remedy.
    """
    bad = table.filter(is_bad.fill_null(value=True))
    if not bad.height:
        return

    cell = _shorten(str(bad[column][0]))
    others = f" (and {bad.height - 1:,} more rows)" if bad.height > 1 else ""
    raise DataError(
        f"{name}, row {bad[LINE][0]}, column {column!r}: {cell!r} {problem}{others}; {remedy}"
    )


def _decode(content: bytes, name: str) -> str:
    if content.startswith(_UTF16_MARKS):
        raise DataError(f"{name} is UTF-16; save it as CSV in UTF-8")
    try:
        text = content.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{name}, row {line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as "
            "CSV in UTF-8"
        ) from error

    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_parquet(content: bytes, name: str) -> pl.DataFrame:
    try:
        table = pl.read_parquet(io.BytesIO(content))
    except PolarsError as error:
        raise DataError(f"{name} is no Parquet file ({error}); write it again") from error
    if not table.height:
        raise DataError(f"{name} has no rows; write it again")

    as_text = [
        # Stamps as ISO 8601 in UTC where they have a zone: read like those of a CSV.
        pl.col(column).dt.convert_time_zone("UTC").dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ")
        if isinstance(kind, pl.Datetime) and kind.time_zone
        else pl.col(column).dt.strftime("%Y-%m-%dT%H:%M:%S%.f")
        if isinstance(kind, pl.Datetime)
        else pl.col(column).cast(pl.String)
        for column, kind in table.schema.items()
        if not kind.is_nested()
    ]
    return table.select(as_text).with_row_index(LINE, offset=1)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
