"""Cells to numbers: units in the cell, decimal commas, thousands.

What belongs here: which number a cell is, what its unit says, and what cannot be decided. What does
not: reading the table (``own.table``).
"""

from dataclasses import dataclass
from typing import Literal

import polars as pl

from compevo_core.errors import DataError
from compevo_pipeline.sources.common.tables import LINE
from compevo_pipeline.sources.own.table import is_blank, refuse_row

DecimalMark = Literal[".", ","]

_NUMBER = r"^([+-]?[\d.,'\u00a0\u202f ]*\d(?:[eE][+-]?\d+)?)"
_GROUP = r"['\u00a0\u202f ](\d{3})"  # what stands between thousands, whatever the decimal mark


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
    refuse_row(parts, name, column, bad_number, f"is no number with {decimal!r} as mark", remedy)

    number = pl.col("_digits").str.replace_all(thousands, "").str.replace(mark, ".", literal=True)
    value = pl.when(empty).then(None).otherwise(number.cast(pl.Float64, strict=False))
    parts = parts.with_columns(value.alias("_value"))
    not_finite = ~empty & ~pl.col("_value").is_finite()
    refuse_row(parts, name, column, not_finite, "is no finite number", "correct the cell")

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

    # Every comma stands before three digits. Where some cells have none, it marks thousands: a
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
        refuse_row(
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
