"""Delimited text without quoting, of any width, with or without a header, split so that a complaint names its line.

What belongs here: splitting a publisher's plain table into text columns, and turning those columns into numbers and
times. What does not: any publisher's column names, CSV with quoted cells (``tables``), unpacking (``base``).
Used by PeMS, the exchange-rate tables and BitInfoCharts, none of which quotes a cell.
"""

from collections.abc import Sequence
from datetime import timedelta

import polars as pl

from compevo_core.errors import SchemaDrift

LINE = "line"
"""Column that holds the line number of a row in its file, counted from 1."""


def split_table(
    text: str, name: str, columns: Sequence[str], *, separator: str = ",", header: bool
) -> pl.DataFrame:
    r"""Split ``text`` into string columns plus :data:`LINE`.

    Args:
        text: the whole file with ``\n`` line ends.
        name: the file's name, for messages.
        columns: expected columns, in order; with ``header`` the first line must say exactly this.
        separator: the cell separator; cells are not quoted.
        header: whether the first line is a header.

    Raises:
        SchemaDrift: the header changed, there are no rows, a line is blank or has too few or too many cells.
    """
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if header:
        check_header(lines[0].split(separator) if lines else [], columns, name)
    body = lines[1:] if header else lines
    if not body:
        message = f"{name}: no rows; fetch or copy the file again"
        raise SchemaDrift(message)
    cells = pl.DataFrame({"cells": body}).with_row_index(LINE, offset=2 if header else 1)
    cells = cells.with_columns(pl.col("cells").str.split(separator))
    ragged = cells.filter(pl.col("cells").list.len() != len(columns))
    if ragged.height:
        line, found = ragged[0, LINE], len(ragged[0, "cells"])
        message = f"{name}, line {line}: {found} cells, not {len(columns)}; the file is cut or its layout changed"
        raise SchemaDrift(message)
    return cells.with_columns(pl.col("cells").list.to_struct(fields=list(columns))).unnest("cells")


def check_header(found: Sequence[str], expected: Sequence[str], name: str) -> None:
    """Refuse a first line that is not the known header.

    Raises:
        SchemaDrift: names what is missing and what is new.
    """
    if list(found) == list(expected):
        return
    missing = [cell for cell in expected if cell not in found]
    extra = [cell for cell in found if cell not in expected]
    message = (
        f"{name}, line 1: the header changed: missing {missing[:6]}, new {extra[:6]}, "
        f"{len(found)} columns where {len(expected)} are expected; compare with the publisher's format notes"
    )
    raise SchemaDrift(message)


def to_number(
    frame: pl.DataFrame, column: str, name: str, missing: Sequence[str] = ("",)
) -> pl.DataFrame:
    """Turn a text column into float64; cells in ``missing`` become null.

    Raises:
        SchemaDrift: a cell is not a finite number; names its line.
    """
    text = pl.col(column).str.strip_chars()
    present = ~text.is_in(list(missing))
    number = pl.when(present).then(text).cast(pl.Float64, strict=False)
    result = frame.with_columns(
        number.alias(column), text.alias("_text"), present.alias("_present")
    )
    bad = result.filter(pl.col("_present") & ~pl.col(column).is_finite().fill_null(value=False))
    if bad.height:
        message = (
            f"{name}, line {bad[0, LINE]}, column {column!r}: {bad[0, '_text']!r} is not a number "
            f"({bad.height} such cells); fetch the file again or correct the cell"
        )
        raise SchemaDrift(message)
    return result.drop("_text", "_present")


def to_stamp(frame: pl.DataFrame, column: str, formats: Sequence[str], name: str) -> pl.DataFrame:
    """Turn a text column into naive microsecond datetimes; the first of ``formats`` that fits a cell is used.

    Raises:
        SchemaDrift: a cell fits no format; names its line.
    """
    text = pl.col(column).str.strip_chars()
    tries = [text.str.to_datetime(form, time_unit="us", strict=False) for form in formats]
    result = frame.with_columns(pl.coalesce(tries).alias("_stamp"))
    bad = result.filter(pl.col("_stamp").is_null())
    if bad.height:
        message = (
            f"{name}, line {bad[0, LINE]}, column {column!r}: {bad[0, column]!r} is not a time like {formats[0]}; "
            "check the file's layout"
        )
        raise SchemaDrift(message)
    return result.drop(column).rename({"_stamp": column})


def refuse_duplicates(frame: pl.DataFrame, keys: Sequence[str], name: str) -> None:
    """Refuse a table that gives one key twice.

    Raises:
        SchemaDrift: names the line that repeats and the key.
    """
    again = frame.filter(~pl.struct(*keys).is_first_distinct())
    if again.height:
        key = ", ".join(str(again[0, column]) for column in keys)
        message = (
            f"{name}, line {again[0, LINE]}: {key} was given before ({again.height} repeated rows); "
            "fetch the file again or remove the repeats"
        )
        raise SchemaDrift(message)


def require_regular(frame: pl.DataFrame, column: str, step: timedelta, name: str) -> None:
    """Refuse a table, known to be complete, whose stamps are not exactly ``step`` apart.

    Raises:
        SchemaDrift: names the first line after a gap or a step back.
    """
    uneven = frame.with_columns(_step=pl.col(column).diff()).filter(pl.col("_step") != step)
    if uneven.height:
        message = (
            f"{name}, line {uneven[0, LINE]}: {uneven[0, column]} comes {uneven[0, '_step']} after the line before, "
            f"not {step}; rows are missing or out of order ({uneven.height} places); fetch the file again"
        )
        raise SchemaDrift(message)
