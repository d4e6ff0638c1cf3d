"""A user's table as text, and its cells as numbers.

What belongs here: bytes (any separator, a byte-order mark, quoted cells, Parquet) to columns of
text with the number of each row, units, decimal commas and thousands in a cell, and the error that
names row, column and remedy. What does not: stamps (``own.stamps``), what the columns mean.

Row numbers count lines of the file: line 1 is the header of a CSV, row 1 the first of a Parquet.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

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

DecimalMark = Literal[".", ","]

_NUMBER = r"^([+-]?[\d.,'\u00a0\u202f ]*\d(?:[eE][+-]?\d+)?)"
_GROUP = r"['\u00a0\u202f ](\d{3})"  # separates thousands, whatever the decimal mark


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


def raise_if_row(
    table: pl.DataFrame, name: str, column: str, is_bad: pl.Expr, problem: str, remedy: str
) -> None:
    """Refuse a table with a bad row.

    Args:
        table: rows with :data:`LINE`.
        name: the file's name.
        column: the column whose cell is wrong.
        is_bad: true or null on a bad row.
        problem: what is wrong with the cell; the message names the cell before it.
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
        # Stamps as ISO 8601 in UTC where they have a zone: read like stamps of a CSV.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberReport:
    """What was found in a column of numbers: its unit in the cells, cells with one, empty cells."""

    unit: str
    with_unit: int
    empty: int


def read_numbers(
    table: pl.DataFrame, name: str, column: str, decimal: DecimalMark
) -> tuple[pl.Series, NumberReport]:
    """Return a column as numbers, null where a cell is empty.

    Raises:
        DataError: a cell is no number, its thousands do not fit the decimal mark, or cells have
            different units.
    """
    text = pl.col(column).fill_null("").str.strip_chars()
    empty = is_blank(column)
    digits = text.str.extract(_NUMBER, 1)
    parts = table.with_columns(
        digits.str.replace_all(_GROUP, "$1").alias("_digits"),
        pl.when(empty).then(pl.lit("")).otherwise(text.str.replace(_NUMBER, "")).alias("_unit"),
    ).with_columns(pl.col("_unit").str.strip_chars())

    thousands, mark = (r"\,", ".") if decimal == "." else (r"\.", ",")
    # 1,234,567.8: one to three digits, then groups of three; or no group at all.
    fits = rf"^[+-]?(\d{{1,3}}({thousands}\d{{3}})+|\d*)([{mark}]\d+)?([eE][+-]?\d+)?$"
    remedy = "correct the cell, or set decimal in the declaration ('.' or ',')"
    bad_number = ~empty & ~pl.col("_digits").str.contains(fits).fill_null(value=False)
    raise_if_row(parts, name, column, bad_number, f"is no number with {decimal!r} as mark", remedy)

    number = pl.col("_digits").str.replace_all(thousands, "").str.replace(mark, ".", literal=True)
    value = pl.when(empty).then(None).otherwise(number.cast(pl.Float64, strict=False))
    parts = parts.with_columns(value.alias("_value"))
    not_finite = ~empty & ~pl.col("_value").is_finite()
    raise_if_row(parts, name, column, not_finite, "is no finite number", "correct the cell")

    report = _check_units(parts, name, column)
    return parts["_value"], report


def guess_decimal(table: pl.DataFrame, name: str, column: str) -> DecimalMark:
    """Return the decimal mark that all cells of a column fit.

    Raises:
        DataError: both marks fit, and give different numbers.
    """
    digits = pl.col(column).fill_null("").str.strip_chars().str.extract(_NUMBER, 1)
    cells = table.select(LINE, column, digits.alias("_digits")).filter(
        pl.col("_digits").is_not_null()
    )
    text = pl.col("_digits")

    is_comma = text.str.contains(r"\.\d{3},\d") | text.str.contains(r",\d{1,2}$|,\d{4,}$|^-?0,\d")
    is_comma |= text.str.contains(r"\.\d{3}\.\d{3}")
    is_point = text.str.contains(r",\d{3}\.\d|,\d{3},\d{3}")
    is_point |= text.str.contains(r"^[^,]*\.\d{1,2}$|^[^,]*\.\d{4,}$|^-?0\.\d")
    votes = cells.select(is_comma.any().alias("comma"), is_point.any().alias("point")).row(0)
    if votes == (True, False):
        return ","
    if votes != (False, False) or not cells.select(text.str.contains(",").any()).item():
        return "."

    # Every comma is followed by three digits. Where some cells have none, it marks thousands: a
    # file that writes three decimals writes them in every cell.
    if not cells.select(text.str.contains(r",\d{3}$").all()).item():
        return "."
    first = cells.row(0, named=True)
    raise DataError(
        f"{name}, row {first[LINE]}, column {column!r}: {first[column]!r} may be "
        f"{first['_digits'].replace(',', '')} or {first['_digits'].replace(',', '.')}, and so may "
        "every other cell; say which with --decimal . or --decimal ,"
    )


def _check_units(parts: pl.DataFrame, name: str, column: str) -> NumberReport:
    filled = parts.filter(pl.col("_value").is_not_null())
    units = filled.filter(pl.col("_unit") != "")["_unit"].unique(maintain_order=True).to_list()
    if len(units) > 1:
        other = filled.filter(pl.col("_unit") == units[1])
        raise_if_row(
            other,
            name,
            column,
            pl.lit(value=True),
            f"is in {units[1]!r}, rows before it in {units[0]!r}",
            "write all values in one unit",
        )
    with_unit = filled.filter(pl.col("_unit") != "").height
    return NumberReport(
        unit=units[0] if units else "",
        with_unit=with_unit,
        empty=parts.height - filled.height,
    )
