"""Delimited text tables of publishers: read as text, converted with checks that name the line.

What belongs here: header and cell-count checks, text to numbers and timestamps, gaps and
duplicates, the last step to rows of ``SERIES_SCHEMA``, and whether rows are within the periods that
the name of their file states. What does not: what columns and names mean (the source modules).

Every function takes the table (or its text) first, then the file's name for messages, then what to
check, and raises ``SchemaDrift``, which names file, line, problem and remedy. A check is
vectorised; the line of a fault is looked up only after a check has found one.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_core.data.steps import MONTH, shift
from compevo_core.errors import SchemaDrift
from compevo_core.table import cells
from compevo_core.table.text_stamps import parse_stamp
from compevo_pipeline.sources.common.base import RawFile

OBSERVED = "observed"
MISSING = "missing"

LINE = cells.LINE  # column that holds a row's line number in its file, counted from 1
# Columns of a table of files: the number of each row's file, its name, label and time
FILE, NAME, SOURCE, _FETCHED = "_file", "_name", "_source", "_fetched_at"
BLANK = ("",)  # the `missing` of `to_number` for publishers that leave a missing cell empty
_START_UTC, _VALUE = pl.col("start_utc"), pl.col("value")
_FIRST_YEAR = 1900
PART_CHARACTERS = 16 * 2**20  # of a table that are split into cells at a time
_SHOWN_CHARACTERS = 60
_SHOWN_COLUMNS = 6


def stack_files(raws: Sequence[RawFile], read: Callable[[RawFile], pl.DataFrame]) -> pl.DataFrame:
    """Stack the tables of one or more files, so that they are converted and checked at once.

    Each row keeps its line number and knows its file: messages name it, and keys may come again.
    """
    return pl.concat(
        [
            read(raw).with_columns(
                pl.lit(number).alias(FILE),
                pl.lit(raw.name).alias(NAME),
                pl.lit(raw.label).alias(SOURCE),
                pl.lit(raw.fetched_at).alias(_FETCHED),
            )
            for number, raw in enumerate(raws)
        ],
        how="vertical_relaxed",  # line numbers of quoted rows have another type
    )


def read_table(
    text: str, file_name: str, header: Sequence[str], *, spans_lines: bool = False
) -> pl.DataFrame:
    r"""Read a table whose first line must be ``header``, as columns of text and :data:`LINE`.

    ``text`` is the whole file with ``\n`` line ends.
    """
    first_line, _, body = text.partition("\n")
    cells = split_cells(first_line)

    # Checked first: with another header every later message would mislead.
    if cells != list(header):
        missing = [name for name in header if name not in cells][:_SHOWN_COLUMNS]
        new = [cell for cell in cells if cell not in header][:_SHOWN_COLUMNS]
        is_moved = not (missing or new)
        what = f"another order, {cells[:2]} ..." if is_moved else f"missing {missing}, new {new}"
        raise SchemaDrift(
            f"{file_name}, line 1: the header changed: {what}, {len(cells)} columns where "
            f"{len(header)} are expected; compare with the publisher's format notes, then extend "
            "the parser or remove the file"
        )
    return read_rows(body, file_name, header, first_line=2, spans_lines=spans_lines)


def read_rows(
    text: str,
    file_name: str,
    columns: Sequence[str],
    *,
    first_line: int = 1,
    separator: str = ",",
    spans_lines: bool = False,
) -> pl.DataFrame:
    """Read rows without a header; ``first_line`` is the number of their first line in the file.

    Cells may be quoted. Only with ``spans_lines`` may they hold line breaks, and lines be blank.
    Each of ``columns`` is a column of text; :data:`LINE` is added.
    """
    # Blank lines at the end do no harm; one between rows is a row without cells.
    end = text.find("\n", len(text.rstrip()))
    text = text if end < 0 else text[:end]
    if not text.strip():
        raise SchemaDrift(f"{file_name}, line {first_line}: no rows; fetch or copy the file again")

    twice = sorted({name for name in columns if list(columns).count(name) > 1})
    if twice:
        raise SchemaDrift(
            f"{file_name}, line 1: the header names {twice[:_SHOWN_COLUMNS]} twice; "
            "rename one or fetch the file again"
        )

    if '"' in text:
        lines = text.split("\n")
        return _read_quoted_rows(lines, file_name, columns, first_line, separator, spans_lines)

    parts: list[pl.DataFrame] = []
    for line, part in cut_at_lines(text, first_line):
        lines = part.split("\n")
        rows = pl.DataFrame({"cells": lines}).with_row_index(LINE, offset=line)
        if spans_lines:
            rows = rows.filter(pl.col("cells").str.strip_chars() != "")
        rows = rows.with_columns(pl.col("cells").str.split(separator))

        ragged = rows.filter(pl.col("cells").list.len() != len(columns))
        if ragged.height:
            number, cells = ragged.row(0)
            said = lines[number - line]
            raise _ragged_row(file_name, number, len(cells), len(columns), said)
        struct = pl.col("cells").list.to_struct(fields=list(columns))
        parts.append(rows.with_columns(struct).unnest("cells"))
    return pl.concat(parts)


def cut_at_lines(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """Yield parts of whole lines, each with the number of its first line.

    Lines and lists of cells take some ten times the memory of the text.
    """
    start, line = 0, first_line
    while True:
        end = text.find("\n", start + PART_CHARACTERS)
        # What follows the last line end is a part of its own only if it holds a line.
        if end < 0 or not text[end:].strip():
            yield line, text[start:]
            return

        yield line, text[start:end]
        line += text.count("\n", start, end) + 1
        start = end + 1


def split_cells(line: str, separator: str = ",") -> list[str]:
    """Split one line into its cells; a line that breaks the rules of quoting is one cell."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        # A lone carriage return, or a cell of more than 128 KiB: the number of cells is wrong then.
        return [line]


def to_number(
    table: pl.DataFrame, file_name: str, columns: Sequence[str], *, missing: Sequence[str] = ()
) -> pl.DataFrame:
    """Cast text columns to Float64; cells listed in ``missing`` become null."""
    numbers = []
    for column in columns:
        text = pl.col(column).str.strip_chars()
        is_missing = text.is_in(list(missing)) if missing else pl.lit(value=False)
        number = text.cast(pl.Float64, strict=False)

        # "nan" and "inf" are numbers to polars, and never to a publisher of measurements.
        is_bad = ~is_missing & ~number.is_finite().fill_null(value=False)
        problem = f"{column} is {{{column}!r}}, not a number"
        raise_if_rows(table, file_name, is_bad, problem, "correct the cell or fetch the file again")

        numbers.append(pl.when(is_missing).then(None).otherwise(number).alias(column))

    return table.with_columns(numbers)


def to_stamp(
    table: pl.DataFrame, file_name: str, column: str, formats: Sequence[str]
) -> pl.DataFrame:
    """Parse a text column into naive datetimes (us); the first fitting format is used."""
    stamp = parse_stamp(pl.col(column).str.strip_chars(), formats, _FIRST_YEAR)
    problem = f"{column} is {{{column}!r}}, not a timestamp like {' or '.join(formats)}"
    remedy = "correct the cell or fetch the file again"
    raise_if_rows(table, file_name, stamp.is_null(), problem, remedy)
    return table.with_columns(stamp.alias(column))


def raise_if_rows(
    table: pl.DataFrame, file_name: str, is_bad: pl.Expr, problem: str, remedy: str
) -> None:
    """Reject a table with a bad row.

    A row is bad where ``is_bad`` is true or null. In ``problem``, ``{column}`` is replaced by the
    cell of the first one; ``remedy`` says what the reader of the message should do.
    """
    # A check that has no answer did not pass.
    bad = table.filter(is_bad.fill_null(value=True))
    if not bad.height:
        return

    first = bad.row(0, named=True)
    others = f" (and {bad.height - 1} more)" if bad.height > 1 else ""
    name = first.get(NAME, file_name)
    raise SchemaDrift(f"{name}, line {first[LINE]}: {problem.format(**first)}{others}; {remedy}")


def raise_if_duplicates(table: pl.DataFrame, file_name: str, keys: Sequence[str]) -> None:
    """Raise :class:`SchemaDrift`, with key and line, at the second row of a key."""
    key = ", ".join(f"{name} {{{name}}}" for name in keys)
    of_file = [FILE] if FILE in table.columns else []
    raise_if_rows(
        table,
        file_name,
        ~pl.struct(*of_file, *keys).is_first_distinct(),
        f"{key} is a duplicate",
        "remove the duplicate or fetch the file again",
    )


def raise_if_gaps(
    table: pl.DataFrame, file_name: str, stamp: str, step: timedelta, *, by: str | None = None
) -> None:
    """Reject a table whose timestamps are not exactly ``step`` apart.

    Without ``by`` the rows must be in order. With it, the column that identifies the series, each
    series is sorted first: files join regions in any order.
    """
    if by is None:
        steps = table.with_columns(pl.col(stamp).diff().alias("_step"))
        series, remedy = "", "rows are missing or out of order: fetch the file again"
    else:
        steps = table.sort(by, stamp).with_columns(pl.col(stamp).diff().over(by).alias("_step"))
        series = f" of {{{by}}}"
        remedy = "timestamps are missing: fetch the file again, or set tolerate_gaps for this run"

    raise_if_rows(
        steps,
        file_name,
        pl.col("_step").is_not_null() & (pl.col("_step") != step),
        f"{stamp} {{{stamp}}}{series} comes {{_step}} after the one before it, not {step}",
        remedy,
    )


def build_series_frame(
    table: pl.DataFrame,
    raw: RawFile,
    *,
    series_id: pl.Expr,
    variable: pl.Expr | str,
    unit: pl.Expr | str,
    start_utc: pl.Expr = _START_UTC,
    value: pl.Expr = _VALUE,
    flag: pl.Expr | str | None = None,
) -> pl.DataFrame:
    """Select the columns of ``SERIES_SCHEMA``; a text is a value here, not a column's name.

    Without a ``flag`` a null is missing and any other value observed.
    """
    # In the order of SERIES_SCHEMA: frames of several files are stacked by position.
    columns = {
        "series_id": series_id,
        "variable": variable,
        "start_utc": start_utc,
        "value": value,
        "unit": unit,
        "flag": flag_missing(value) if flag is None else flag,
        "source": raw.label,
        "fetched_at": pl.lit(raw.fetched_at),
    }
    if FILE in table.columns:
        columns |= {"source": pl.col(SOURCE), "fetched_at": pl.col(_FETCHED)}

    return table.select(
        **{name: pl.lit(cell) if isinstance(cell, str) else cell for name, cell in columns.items()}
    ).cast(pl.Schema(SERIES_SCHEMA))


def flag_missing(value: pl.Expr) -> pl.Expr:
    """Flag a null as missing and any other value as observed."""
    return pl.when(value.is_null()).then(pl.lit(MISSING)).otherwise(pl.lit(OBSERVED))


def _read_quoted_rows(
    lines: Sequence[str],
    file_name: str,
    columns: Sequence[str],
    first_line: int,
    separator: str,
    spans_lines: bool,
) -> pl.DataFrame:
    # Not polars' reader: it counts no lines, and reads a short row as empty last cells.
    reader = csv.reader([f"{line}\n" for line in lines], delimiter=separator)
    rows: list[list[str]] = []
    numbers: list[int] = []
    start = 0
    try:
        for cells in reader:
            is_broken = reader.line_num > start + 1 and not spans_lines
            if spans_lines and not "".join(cells).strip() and len(cells) < 2:
                start = reader.line_num
                continue
            if len(cells) != len(columns) or is_broken:
                raise _ragged_row(
                    file_name, first_line + start, len(cells), len(columns), lines[start]
                )
            rows.append(cells)
            numbers.append(first_line + start)
            # The reader knows where a record ended; the next one starts a line later.
            start = reader.line_num
    except csv.Error as error:
        raise SchemaDrift(
            f"{file_name}, line {first_line + start}: not a row of a table ({error}); "
            "fetch the file again"
        ) from error

    cells_by_column = zip(columns, zip(*rows, strict=True), strict=True)
    table = pl.DataFrame([pl.Series(name, cells, pl.String) for name, cells in cells_by_column])
    return table.with_columns(pl.Series(LINE, numbers, dtype=pl.Int64))


def _ragged_row(file_name: str, line: int, cells: int, width: int, text: str) -> SchemaDrift:
    return SchemaDrift(
        f"{file_name}, line {line}: {cells} cells, not {width}; the file is cut or its layout "
        f"changed ({text[:_SHOWN_CHARACTERS]!r}); correct the line or fetch the file again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Time and entity that the rows of a file may have."""

    first: datetime  # earliest time, in UTC
    end: datetime  # the time from which on rows are beyond it, in UTC
    entity: str = ""  # the one region, station or currency; empty for any
    column: str = "start_utc"  # the rows' time
    most_beyond: float = 0.0  # share of rows that may be outside


ReadPeriods = Callable[[RawFile], Sequence[Period]]
"""Returns the periods that a file's name states, all of which must hold; none if it states none."""


def expect_month(year: int, month: int, zone: ZoneInfo, entity: str = "") -> Period:
    """Return the expected period of a month on a clock; ValueError if there is no such month."""
    first = datetime(year, month, 1, tzinfo=zone)
    end = shift(first, 1, MONTH)
    return Period(first=first.astimezone(UTC), end=end.astimezone(UTC), entity=entity)


def check_periods(rows: pl.DataFrame, raws: Sequence[RawFile], read: ReadPeriods) -> pl.DataFrame:
    """Return rows of files; all must be within the periods that the names of their files state.

    A publisher who puts another month, region or day under a name would change known values of
    another time, so such a file is rejected as a whole. The ``source`` of ``rows`` is the label of
    their file. SchemaDrift names the first file with rows outside, one of them, and the remedy.
    """
    periods = [{"source": raw.label} | asdict(period) for raw in raws for period in read(raw)]
    if not periods:
        return rows
    expected = pl.DataFrame(periods).unique(maintain_order=True)
    for (column,), of_column in expected.partition_by("column", as_dict=True).items():
        # A name states when its forecasts were known; its series have no such time.
        if column in rows.columns:
            _validate_rows(rows, of_column, str(column))
    return rows


def _validate_rows(rows: pl.DataFrame, expected: pl.DataFrame, column: str) -> None:
    # "AEMO/TOTALDEMAND/NSW1" belongs to NSW1; an article has no place.
    names = [name for name in ("entity", "series_id") if name in rows.columns][:1]
    held = rows.select(
        "source", pl.col(column).alias("at"), *(pl.col(n).alias("of") for n in names)
    )
    within = pl.col("at").is_between("first", "end", closed="left").fill_null(value=True)
    if names:
        is_of = pl.col("of").str.split("/").list.last() == pl.col("entity")
        within &= (pl.col("entity") == "") | is_of

    pairs = held.join(expected, on="source", how="inner", maintain_order="left")
    pairs = pairs.with_columns(pl.len().over("source").alias("rows"), (~within).alias("is_beyond"))
    beyond = pairs.filter("is_beyond").with_columns(pl.len().over("source").alias("beyond"))
    beyond = beyond.filter(pl.col("beyond") > pl.col("most_beyond") * pl.col("rows"))
    if not beyond.height:
        return

    first = beyond.row(0, named=True)
    whose = f"{first['entity']} from " if first["entity"] else "from "
    place = f"{first['of']} at " if names else ""
    raise SchemaDrift(
        f"{first['source']}: its name allows rows {whose}{first['first']:%Y-%m-%d %H:%M} to "
        f"{first['end']:%Y-%m-%d %H:%M} UTC, but {first['beyond']} of {first['rows']} rows are "
        f"not, the first {place}{first['at']:%Y-%m-%d %H:%M}; fetch it again, or look at what "
        "the publisher put under this name. Nothing was stored."
    )
