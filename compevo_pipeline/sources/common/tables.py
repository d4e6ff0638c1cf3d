"""Comma-separated tables from publishers: read fast with polars, and name the line when something is wrong.

What belongs here: header and field-count checks, text to number, text to stamp, gaps and duplicates, each failing with
file, line and remedy. What does not: what the columns mean.
Everything is read as text first; the line of a fault is looked up only after a vectorised check has found one.
"""

import csv
import io
from collections.abc import Sequence
from datetime import timedelta

import polars as pl
from polars.exceptions import PolarsError

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile, decode_text, refuse_html

LINE = "_line"
"""Name of the helper column that holds each row's 1-based line in the file."""


def read_table(
    raw: RawFile, header: Sequence[str], *, quoted_newlines: bool = False
) -> pl.DataFrame:
    """Read a CSV whose first line must be ``header``; every column is text, plus ``_line``.

    ``quoted_newlines``: cells may hold line breaks; lines are then found by a slower reader.

    Raises:
        SourceTransient: empty file.
        SchemaDrift: a web page, a byte that is not UTF-8, another header, or a row with another number of fields.
    """
    refuse_html(raw.content, raw.name)
    text = decode_text(raw.content, raw.name)
    first = next(csv.reader([text.partition("\n")[0]]), [])
    if first != list(header):
        message = f"{raw.name}, line 1: header is {first}, expected {list(header)}; the publisher changed the format"
        raise SchemaDrift(
            f"{message}, or this is another file: extend the parser or remove the file"
        )
    return read_rows(
        raw, text.partition("\n")[2], header, first_line=2, quoted_newlines=quoted_newlines
    )


def read_rows(
    raw: RawFile,
    body: str,
    columns: Sequence[str],
    *,
    first_line: int,
    quoted_newlines: bool = False,
) -> pl.DataFrame:
    """Read headerless CSV text into text columns plus ``_line``; see :func:`read_table`."""
    body = body.rstrip("\n")
    if not body.strip():
        raise SchemaDrift(
            f"{raw.name}, line {first_line}: no rows after the header; fetch the file again"
        )
    try:
        frame = pl.read_csv(
            io.BytesIO(body.encode()),
            has_header=False,
            schema=dict.fromkeys(columns, pl.String),
            empty_string_is_null=False,
        )
    except PolarsError as error:
        raise _ragged(raw, body, len(columns), first_line, str(error)) from error
    if quoted_newlines:
        lines = pl.Series(LINE, _row_lines(body, first_line), dtype=pl.Int64)
        if len(lines) != frame.height:
            raise _ragged(
                raw, body, len(columns), first_line, f"{len(lines)} records, {frame.height} rows"
            )
        return frame.with_columns(lines)
    if frame.height != body.count("\n") + 1:
        raise _ragged(raw, body, len(columns), first_line, "a quoted cell spans lines")
    frame = frame.with_columns(pl.int_range(first_line, first_line + frame.height).alias(LINE))
    if frame.select(pl.any_horizontal(pl.col(columns[-1]) == "")).to_series().any():
        _refuse_short(raw, body, len(columns), first_line)
    return frame


def refuse_rows(raw: RawFile, frame: pl.DataFrame, bad: pl.Expr, what: str, remedy: str) -> None:
    """Raise on the first row where ``bad`` holds; ``what`` may name columns in braces.

    Raises:
        SchemaDrift: at least one row is bad; names file, line, the cell and the remedy.
    """
    rows = frame.filter(bad.fill_null(value=True))
    if rows.height:
        row = rows.row(0, named=True)
        more = f" (and {rows.height - 1} more)" if rows.height > 1 else ""
        raise SchemaDrift(f"{raw.name}, line {row[LINE]}: {what.format(**row)}{more}; {remedy}")


def to_number(
    raw: RawFile, frame: pl.DataFrame, *columns: str, empty: Sequence[str] = ()
) -> pl.DataFrame:
    """Cast text columns to Float64; a cell listed in ``empty`` becomes null, any other non-number is an error.

    Raises:
        SchemaDrift: text, NaN or infinity where a finite number belongs.
    """
    for column in columns:
        stripped = pl.col(column).str.strip_chars()
        allowed = stripped.is_in(list(empty)) if empty else pl.lit(value=False)
        number = stripped.cast(pl.Float64, strict=False)
        bad = ~allowed & ~number.is_finite().fill_null(value=False)
        cell = "{" + column + "!r}"
        refuse_rows(
            raw,
            frame,
            bad,
            f"{column} is {cell}, not a number",
            "correct the cell or fetch the file again",
        )
        frame = frame.with_columns(pl.when(allowed).then(None).otherwise(number).alias(column))
    return frame


def to_stamp(
    raw: RawFile, frame: pl.DataFrame, column: str, formats: Sequence[str]
) -> pl.DataFrame:
    """Parse a text column into naive datetimes by the first of ``formats`` that fits each cell.

    Raises:
        SchemaDrift: a cell fits none of them (an empty one included).
    """
    text = pl.col(column).str.strip_chars()
    parsed = pl.coalesce(
        [text.str.to_datetime(form, strict=False, time_unit="us") for form in formats]
    )
    frame = frame.with_columns(parsed.alias("_stamp"))
    what = f"{column} is {{{column}!r}}, not a stamp like {' or '.join(formats)}"
    refuse_rows(
        raw, frame, pl.col("_stamp").is_null(), what, "correct the cell or fetch the file again"
    )
    return frame.drop(column).rename({"_stamp": column})


def refuse_duplicates(raw: RawFile, frame: pl.DataFrame, keys: Sequence[str]) -> None:
    """Raise when two rows share ``keys``; names the later line.

    Raises:
        SchemaDrift: a key occurs twice.
    """
    doubled = frame.select(keys).is_duplicated()
    if doubled.any():
        repeats = frame.filter(~pl.struct(keys).is_first_distinct())
        shown = ", ".join(f"{key} {{{key}}}" for key in keys)
        remedy = "remove the repeat or fetch the file again"
        refuse_rows(raw, repeats, pl.lit(value=True), f"{shown} is a repeat", remedy)


def refuse_gaps(raw: RawFile, frame: pl.DataFrame, stamp: str, by: str, step: timedelta) -> None:
    """Raise when consecutive stamps of one ``by`` are not one ``step`` apart; names the line after the gap.

    Raises:
        SchemaDrift: stamps are missing or off the grid.
    """
    ordered = frame.sort(by, stamp).with_columns(pl.col(stamp).diff().over(by).alias("_step"))
    bad = pl.col("_step").is_not_null() & (pl.col("_step") != step)
    what = f"{stamp} {{{stamp}}} of {{{by}}} comes {{_step}} after the one before it, not {step}"
    remedy = "stamps are missing: fetch the file again, or parse it with tolerate_gaps=True"
    refuse_rows(raw, ordered, bad, what, remedy)


def series_frame(raw: RawFile, frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``source`` and ``fetched_at`` of ``raw`` and put the columns in the order of ``SERIES_SCHEMA``."""
    return frame.with_columns(
        pl.lit(raw.label).alias("source"),
        pl.lit(raw.fetched_at).cast(SERIES_SCHEMA["fetched_at"]).alias("fetched_at"),
    ).select(pl.col(name).cast(dtype) for name, dtype in SERIES_SCHEMA.items())


def _row_lines(body: str, first_line: int) -> list[int]:
    reader = csv.reader(io.StringIO(body, newline=""))
    lines, start = [], first_line
    for _ in reader:
        lines.append(start)
        start = first_line + reader.line_num
    return lines


def _ragged(raw: RawFile, body: str, width: int, first_line: int, cause: str) -> SchemaDrift:
    for number, line in enumerate(body.split("\n"), start=first_line):
        if len(next(csv.reader([line]), [])) != width:
            return SchemaDrift(
                f"{raw.name}, line {number}: not {width} fields ({line[:80]!r}); fetch the file again"
            )
    return SchemaDrift(f"{raw.name}: not a table of {width} fields ({cause}); fetch the file again")


def _refuse_short(raw: RawFile, body: str, width: int, first_line: int) -> None:
    """A short row reads as empty last cells; tell a torn line from a cell that was left empty."""
    short = [line for line in body.split("\n") if line.count(",") < width - 1]
    if short:
        raise _ragged(raw, body, width, first_line, "a row is short")
