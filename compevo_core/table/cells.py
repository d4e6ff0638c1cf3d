"""Cells of a table of text: numbers, units, decimal commas, thousands; the error that names one.

What belongs here: a column of text with its row numbers, its cells as numbers. What does not:
stamps (``table.text_stamps``), files (the pipeline), what the columns mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from compevo_core.errors import DataError

LINE = "line"
"""The column that holds a row's number in its file or table, counted from 1."""
_WORDS = ("na", "n/a", "n/e", "n.a.", "nan", "nat", "<na>", "null", "(null)", "nil", "none")
_SIGNS = ("", "?", "-", "--", ":", ".", "..", "\\n", "#n/a", "#nv", "#null!", "#value!", "#div/0!")
BLANKS = ("missing", "unavailable", "unknown", "no data", *_WORDS, *_SIGNS)
"""Cells that say that there is no value, in small letters."""

MOST = 1e100
"""What a value may be, of either sign: squares must be numbers, too."""
DecimalMark = Literal[".", ","]

_SHOWN_CHARACTERS = 60
_THOUSANDS = r"'\u2019\u00a0\u2009\u202f "  # separate groups of digits with either mark
_DIGITS = rf"[\d.,{_THOUSANDS}]*\d"
_NUMBER = rf"^([+-]?{_DIGITS}(?:[eE][+-]?\d+)?)"
_UNIT = r"^[\p{L}°%‰€$£¥µ][^\d+^:-]*[23]?$"  # kWh/m2; not the rest of 1/2, 01:00 or 1.5D+03
_CURRENCY = r"\s*[$€£¥]\s*"
_NEGATIVE = (
    rf"^(?:({_DIGITS})\s*[-\u2212]|[-\u2212]\s*({_DIGITS})|\((?:{_CURRENCY})?({_DIGITS})\))$"
)
# Of statistics: estimated, provisional, revised.
_FLAGS = ["*", "†", "‡", "b", "c", "e", "f", "p", "r", "s", "u", "(p)", "(e)", "(r)"]
_WHOLE = rf"{_NUMBER}\s*(?:$|{_UNIT[1:]})"
_GROUP = rf"[{_THOUSANDS}](\d{{3}})"


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of a file's table, which has :data:`LINE` too: all that names a cell in an error."""

    table: pl.DataFrame
    file: str
    name: str

    @property
    def text(self) -> pl.Expr:
        """The cells without space around them; an empty one is ""."""
        return pl.col(self.name).fill_null("").str.strip_chars()

    @property
    def number(self) -> pl.Expr:
        """The cells as text, without a currency, and a bookkeeper's 3.25- or (3.25) as -3.25."""
        return self.text.str.replace(rf"^([+-]?){_CURRENCY}", "$1").str.replace(
            _NEGATIVE, "-$1$2$3"
        )

    @property
    def is_blank(self) -> pl.Expr:
        """Whether a cell says that there is no value."""
        return self.text.str.to_lowercase().is_in(list(BLANKS))

    def add(self, **columns: pl.Expr) -> "TextColumn":
        """Return the column of a table that has further columns."""
        return replace(self, table=self.table.with_columns(**columns))

    def raise_if(self, is_bad: pl.Expr, problem: str, remedy: str) -> None:
        """Raise :class:`DataError`, which names the first cell, where a row is bad (true or null).

        ``problem`` follows the cell in the message.
        """
        bad = self.table.filter(is_bad.fill_null(value=True))
        if not bad.height:
            return

        cell = shorten(str(bad[self.name][0]))
        others = f" (and {bad.height - 1:,} more rows)" if bad.height > 1 else ""
        raise DataError(
            f"{self.file}, row {bad[LINE][0]}, column {self.name!r}: {cell!r} {problem}{others}; "
            f"{remedy}"
        )


def number_rows(cells: pl.Series) -> TextColumn:
    """Return texts of a user's DataFrame as a column, its rows counted from 1."""
    return TextColumn(cells.to_frame().with_row_index(LINE, 1), "the table", cells.name)


def read_names(column: pl.Series) -> pl.Series:
    """Return names of series as texts; 1.0 and 1 are one name. DataError for lists."""
    if column.dtype.is_nested():
        raise DataError(f"column {column.name!r} holds lists: give texts or numbers as names")
    if column.dtype.is_float() and (column % 1 == 0).all():
        column = column.cast(pl.Int64)
    return column.cast(pl.String)


def shorten(text: str) -> str:
    """Return a text, cut where it is too long for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberReport:
    """What was found in a column of numbers: its unit in the cells, cells with one, empty cells."""

    unit: str
    with_unit: int
    empty: int


def read_numbers(column: TextColumn, decimal: DecimalMark) -> tuple[pl.Series, NumberReport]:
    """Return a column as numbers, null where a cell is empty."""
    empty = column.is_blank
    unit = pl.when(empty).then(pl.lit("")).otherwise(column.number.str.replace(_NUMBER, ""))
    parts = column.add(
        _digits=column.number.str.extract(_NUMBER, 1).str.replace_all(_GROUP, "$1"),
        _unit=unit.str.strip_chars(),
    )

    is_flag = pl.col("_unit").is_in(_FLAGS) & (pl.col("_unit") == "").any()
    parts = parts.add(_unit=pl.when(~is_flag).then("_unit").otherwise(pl.lit("")))

    thousands, mark = (r"\,", ".") if decimal == "." else (r"\.", ",")
    # 1,234,567.8: one to three digits, then groups of three; or no group at all.
    fits, fits_other = (
        rf"^[+-]?(\d{{1,3}}({group}\d{{3}})+|\d*)([{point}]\d+)?([eE][+-]?\d+)?$"
        for group, point in ((thousands, mark), (rf"\{mark}", thousands[1:]))
    )
    remedy = "correct the cell"
    if parts.table.select((empty | pl.col("_digits").str.contains(fits_other)).all()).item():
        remedy = f"give --decimal {thousands[1:]} (decimal in the declaration)"
    is_good = pl.col("_digits").str.contains(fits) & pl.col("_unit").str.contains(f"^$|{_UNIT}")
    bad_number = ~empty & ~is_good.fill_null(value=False)
    parts.raise_if(bad_number, f"is not a number with {decimal!r} as mark", remedy)

    number = pl.col("_digits").str.replace_all(thousands, "").str.replace(mark, ".", literal=True)
    value = pl.when(empty).then(None).otherwise(number.cast(pl.Float64, strict=False))
    parts = parts.add(_value=value)
    is_beyond = ~empty & ~(pl.col("_value").abs() <= MOST)
    parts.raise_if(
        is_beyond, f"is infinite or beyond {MOST:g}", "correct the cell or leave it empty"
    )

    filled = parts.table.filter(pl.col("_value").is_not_null())
    with_unit = filled.filter(pl.col("_unit") != "")
    units = with_unit["_unit"].unique(maintain_order=True).to_list()
    if len(units) > 1:
        replace(parts, table=filled).raise_if(
            pl.col("_unit") == units[1],
            f"is in {units[1]!r}, rows before it in {units[0]!r}",
            "write all values in one unit",
        )
    if 0 < with_unit.height < filled.height:
        replace(parts, table=filled).raise_if(
            pl.col("_unit") != "",
            f"has a unit, and {filled.height - with_unit.height:,} other cells have none",
            "write it in all cells or in none",
        )
    return parts.table["_value"], NumberReport(
        unit=units[0] if units else "",
        with_unit=with_unit.height,
        empty=parts.table.height - filled.height,
    )


def is_numeric(column: TextColumn) -> bool:
    """Whether every cell that is not empty begins like a number, and one is a number and a unit."""
    begins, is_whole = (column.number.str.contains(form) for form in (_NUMBER, _WHOLE))
    return all(column.table.filter(~column.is_blank).select(begins.all(), _=is_whole.any()).row(0))


def refuse_text(columns: Sequence[TextColumn]) -> None:
    """Raise :class:`DataError` where a column mixes numbers with other cells; it names one."""

    def count(column: TextColumn) -> int:
        return int(column.table.select(column.number.str.contains(_NUMBER).sum()).item())

    likeliest = max(columns, key=count, default=None)
    if likeliest and count(likeliest):
        likeliest.raise_if(
            ~(likeliest.number.str.contains(_NUMBER) | likeliest.is_blank),
            "is not a number",
            "correct the cell or leave it empty"
            + (", or name the column of values with --value" if len(columns) > 1 else ""),
        )


def guess_decimal(column: TextColumn) -> DecimalMark:
    """Return the decimal mark that all cells of a column fit.

    DataError if both marks fit, and give different numbers.
    """
    text = pl.col("_digits")
    parts = column.add(_digits=column.number.str.extract(_NUMBER, 1))
    cells = parts.table.filter(text.is_not_null())

    is_comma = text.str.contains(r"\.\d{3},\d") | text.str.contains(r",\d{1,2}$|,\d{4,}$|^-?0,\d")
    is_comma |= text.str.contains(r"\.\d{3}\.\d{3}")
    is_point = text.str.contains(r",\d{3}\.\d|,\d{3},\d{3}")
    is_point |= text.str.contains(r"^[^,]*\.\d{1,2}$|^[^,]*\.\d{4,}$|^-?0\.\d")
    votes = cells.select(is_comma.any().alias("comma"), is_point.any().alias("point")).row(0)
    if votes == (True, False):
        return ","
    if votes != (False, False):
        return "."

    # Every mark is followed by three digits. Where some cells have none, it marks thousands: a
    # file that writes three decimals writes them in every cell.
    if not cells.select(text.str.contains(",").any()).item():
        is_marked = text.str.contains(r"\.")
        are_groups = text.str.contains(r"^[+-]?\d{1,3}(\.\d{3})?$").all()
        are_thousands = are_groups & is_marked.any() & ~is_marked.all()
        return "," if cells.select(are_thousands).item() else "."
    if not cells.select(text.str.contains(r",\d{3}$").all()).item():
        return "."
    first = cells.row(0, named=True)
    raise DataError(
        f"{column.file}, row {first[LINE]}, column {column.name!r}: {first[column.name]!r} may be "
        f"{first['_digits'].replace(',', '')} or {first['_digits'].replace(',', '.')}, and so may "
        "every other cell; say which with --decimal . or --decimal ,"
    )
