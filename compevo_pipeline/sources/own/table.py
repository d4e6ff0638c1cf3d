"""A user's file as a table of text.

What belongs here: bytes (any separator, a byte-order mark, quoted cells, Parquet, Arrow, Excel,
JSON) to columns of text with the number of each row. What does not: what a cell is
(``compevo_core.table.cells``, ``text_stamps``), what the columns mean.

Row numbers count lines of the file: line 1 is the header of a CSV, row 1 the first of a Parquet.
"""

import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, time, timedelta
from pathlib import PurePath

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from compevo_core.errors import DataError, SchemaDrift, list_some
from compevo_core.table.cells import LINE, TextColumn, shorten
from compevo_core.table.text_stamps import FORMATS, MONTHS_BY_NAME, read_by_each
from compevo_pipeline.sources.common import decode
from compevo_pipeline.sources.common.tables import read_rows, split_cells

SEPARATORS = (",", ";", "\t", "|")

FIRST_ROW = 2  # line of the first row of a CSV without notes above its column names
JOINED = " + "  # between the names of columns whose cells are read as one
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_PARQUET, _ARROW = b"PAR1", b"ARROW1"
_EXCEL = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # of files that hold tables, not of their names
_PACKED = (b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"Rar!")  # in other ways
_METER_DATA, _REPORT = "100,NEM12", re.compile(r"C,.*\n+I,")  # how files of AEMO begin
_JSON, _JSON_LINES = ".json", (".jsonl", ".ndjson")
# Letters of another script look like this in Windows-1252, and so do stray bytes.
_NO_WORDS = re.compile(r"[À-ÿ]{3}|(?<![A-Za-zÀ-ÿ])[À-ÿ](?![A-Za-zÀ-ÿ])|\N{REPLACEMENT CHARACTER}")
_UNNAMED = "__UNNAMED__"  # what Excel columns without a name are called
_DATE_PARTS = {
    "year": "year|yr|jahr|année|annee|año|anno|ano|jaar",
    "quarter": "quarter|qtr|quartal|trimestre|kwartaal",
    "month": "month|mo|monat|mois|mes|mese|mês|maand",
    "week": "week|wk|woche|semaine|semana|settimana",
    "period": "period",
    "day": "day|dy|tag|jour|día|dia|giorno|dag",
    "day of year": "doy|dayofyear|day_of_year|day of year",
    "hour": "hour|hr|stunde|heure|hora|ora|uur",
    "minute": "minute|minuto|minuut",
}
"""Names of columns in the languages of :data:`MONTHS_BY_NAME`."""
_MONTHS = [re.compile(rf"(?i)(?:{names})[^\W\d]*\.?") for names in MONTHS_BY_NAME.values()]
_HOUR = re.compile(r"(?i)(?:h|he|hr|hour)?[ _.-]*(\d{1,2})(?::00)?")
_FEWEST_STAMPED = 10  # columns that are named by the stamps of a series
_HOURS_OF_A_DAY = ([*range(24)], [*range(1, 25)], [*range(1, 26)])
_MOST_NOTES = 40  # lines at either end that are searched for column names or remarks
_MOST_OTHER_ROWS = 3  # of units below the column names, of totals at the end
_TOTAL = (
    r"(?i)^\W*(grand total|total|sum|summe|gesamt|somme|suma|average|mean|median|max(imum)?|"
    r"min(imum)?|count|std|mittelwert|moyenne)\W*$"
)
_TWO_WORDS = r"[^\W\d]{2,}\W+[^\W\d]{2,}"
_EXCEL_BEGINS = 1899
_SHOWN_COLUMNS = 20


def read_columns(content: bytes, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read columns of a table as text, with :data:`LINE`; ``store + item`` joins two.

    DataError if the file is empty, no table, or lacks a column; SchemaDrift if it is not UTF-8, two
    columns have one name, or a row has another number of cells.
    """
    return select_columns(read_text_table(content, name), name, columns)


def select_columns(table: pl.DataFrame, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """Select columns of a table as text; arguments and errors as of :func:`read_columns`."""
    for joined in columns:
        parts = joined.split(JOINED)
        if joined not in table.columns and {*parts} <= {*table.columns}:
            table = table.with_columns(pl.concat_str(parts, separator=" ").alias(joined))
    there = [column for column in table.columns if column != LINE]
    missing = [column for column in columns if column not in there]
    if missing:
        shown = ", ".join(repr(shorten(column)) for column in there[:_SHOWN_COLUMNS])
        # A line without cells is not a table's: no one who reads the log needs to see it.
        found = f"the columns are {shown}" if len(there) > 1 else "its lines are not cells"
        raise DataError(
            f"{name}: no column {', '.join(map(repr, missing))}; {found}: correct the column's "
            "name, here or in the declaration"
        )
    return table.select(LINE, *dict.fromkeys(columns))


def read_text_table(content: bytes, name: str) -> pl.DataFrame:
    """Read a whole table as text, with :data:`LINE`; errors as of :func:`read_columns`.

    Notes above the line of column names are left out. Year, month and day in columns of their own
    become one column, with hour and minute if there are any, and so do year and month, quarter or
    week. Columns that are the hours of a day, the months of a year or stamps become rows.
    """
    return _join_dates(_stack_steps(_drop_other_rows(_read_cells(content, name))))


def _stack_steps(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose columns are hours, months or stamps with a row for each of them."""
    names = [column for column in table.columns if column != LINE]
    months = {
        column: number
        for number, month in enumerate(_MONTHS, start=1)
        for column in names
        if month.fullmatch(column)
    }
    numbered = [column for column in names if re.search(r"\d", column)]
    hours = {column: int(match[1]) for column in names if (match := _HOUR.fullmatch(column))}
    steps: dict[str, str] = {}
    if sorted(months.values()) == [*range(1, 13)]:
        steps, label = {column: str(number) for column, number in months.items()}, "month"
    elif sorted(hours.values()) in _HOURS_OF_A_DAY:
        steps = {column: str(number) for column, number in hours.items()}
        label = "hour ending" if names[-1].lower().startswith("he") else "hour"
    elif len(numbered) >= _FEWEST_STAMPED <= len(stamps := _find_stamps(numbered)):
        top = table.head(_MOST_NOTES).select(name for name in names if name not in stamps)
        # Where a column holds the stamps, numbers name series.
        dated = [cells.name for cells in top if len(_find_stamps(cells.to_list())) == top.height]
        steps, label = {} if dated else {stamp: stamp for stamp in stamps}, "date"
    if not steps:
        return table

    others = [column for column in table.columns if column not in steps]
    if {label, "value"} & {*others}:
        return table
    rows = table.unpivot([*steps], index=others, variable_name=label, value_name="value")
    return rows.sort(LINE, maintain_order=True).with_columns(pl.col(label).replace_strict(steps))


def _find_stamps(texts: Sequence[str]) -> list[str]:
    """Return the texts that one format reads as stamps, the one that reads most."""
    cells = TextColumn(pl.DataFrame({LINE: 0, "text": texts}), "", "text")
    read = read_by_each(cells, {form: (form,) for form in FORMATS})
    best = max(read.iter_columns(), key=lambda stamps: stamps.count(), default=[None] * len(texts))
    return [text for text, stamp in zip(texts, best, strict=True) if stamp is not None]


def _join_dates(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose columns are parts of a date with one column ``date`` for them."""
    by_part = {
        part: column
        for part, names in _DATE_PARTS.items()
        for column in table.columns
        if column.lower() in names.split("|")
    }
    small, parts = [*by_part], [*by_part.values()]
    if small == ["hour", "minute"]:  # next to dates
        hour, minute = (pl.col(part).str.strip_chars().str.zfill(2) for part in parts)
        return table.with_columns(hour + ":" + minute).drop(parts[1])
    if "date" in map(str.lower, table.columns) or small[:1] != ["year"] or len(parts) < 2:
        return table

    year, second = (pl.col(part).str.strip_chars() for part in parts[:2])
    if small[:3] == ["year", "month", "day"]:
        date = pl.concat_str(parts[:3], separator="-")
        if clock := parts[3:]:
            minutes = pl.col(clock[1]).str.zfill(2) if len(clock) > 1 else pl.lit("00")
            hours = pl.col(clock[0]).str.zfill(2)
            if len(clock) == 1 and (table[clock[0]].str.zfill(2) == "24").any():
                # The hours of a day are numbered from 1.
                number = pl.col(clock[0]).cast(pl.Int64, strict=False) - 1
                hours = number.cast(pl.String).str.zfill(2)
            date = pl.concat_str(date, pl.lit(" "), hours, pl.lit(":"), minutes)
    elif small == ["year", "month"]:
        is_number = second.str.contains(r"^\d+$")
        by_number = pl.concat_str(year, pl.lit("-"), second.str.zfill(2))
        date = (
            pl.when(is_number).then(by_number).otherwise(pl.concat_str(second, pl.lit(" "), year))
        )
    elif small in (["year", "quarter"], ["year", "week"]):
        letter = small[1][0].upper()
        number = second.str.strip_chars_start("QqWw").str.zfill(1 if letter == "Q" else 2)
        date = pl.concat_str(year, pl.lit(f"-{letter}"), number)
    elif small == ["year", "period"] and table[parts[1]].str.contains(r"^[MQ]\d\d$").all():
        date = pl.concat_str(parts)
    elif small == ["year", "day of year"]:
        date = pl.concat_str(year, pl.lit("-"), second.str.zfill(3))
    else:
        return table
    return table.with_columns(date.alias("date")).drop(parts)


def _read_cells(content: bytes, name: str) -> pl.DataFrame:
    if name.endswith(".gz"):
        content, name = decode.gunzip(content, name), name.removesuffix(".gz")
    if name.endswith(".zip"):
        content, name = decode.unzip_only(content, name), name.removesuffix(".zip")
    if content.startswith(_PACKED):
        raise DataError(f"{name} is packed, and not as gzip or zip: unpack it first")
    if content.startswith(_PARQUET) or PurePath(name).suffix == ".parquet":
        return _read_parquet(content, name)
    if content.startswith(_ARROW):
        return _convert_to_text(pl.read_ipc(io.BytesIO(content)), name)
    if content.startswith(_EXCEL):
        return _read_excel(content, name)
    suffix = PurePath(name).suffix
    if suffix in _JSON_LINES or (suffix == _JSON and re.match(rb"\s*\{.*\}\s*\n\s*\{", content)):
        try:
            table = pl.read_ndjson(io.BytesIO(content), infer_schema_length=None)
        except pl.exceptions.PolarsError as error:
            raise DataError(
                f"{name} is not one JSON object a line ({error}); write it again"
            ) from error
        return _convert_to_text(table, name)
    if suffix == _JSON:
        return _read_json(content, name)

    body = _decode(content, name).replace("\r", "\n")
    if body.startswith(_METER_DATA):
        body = _flatten_meter_data(body, name)
    elif _REPORT.match(body):
        body = _flatten_report(body, name)
    # The lines of a whole file take three times its memory: only the ends are looked at.
    notes = _count_notes(body.split("\n", _MOST_NOTES)[:_MOST_NOTES])
    *_, header, body = [*body.split("\n", notes + 1), ""][: notes + 2]
    while header.count('"') % 2 and body:
        # A name over two lines.
        more, _, body = body.partition("\n")
        header, notes = f"{header} {more}", notes + 1
    separator, cells = _split_header(header)
    below = split_cells(body.partition("\n")[0], separator)
    if len(below) == len(cells) + 1 and not below[-1].strip():
        cells.append("")
    if pl.Series([*filter(None, cells)]).is_duplicated().any() and _are_names(["", *below[1:]]):
        # Names over two rows, as of pandas' levels; a third may name the stamps.
        pairs = zip(cells, map(str.strip, below), strict=False)
        cells = [" ".join(dict.fromkeys(filter(None, pair))) for pair in pairs]
        notes, body = notes + 1, body.partition("\n")[2]
        below = split_cells(body.partition("\n")[0], separator)
        cells[0] = cells[0] if any(below[1:]) else below[0].strip()
    body = _leave_out_notes_below(body, separator, len(cells))
    if not header.strip() or not body.strip():
        raise DataError(
            f"{name} has no rows below its header; write a line of column names and one row for "
            "each value"
        )

    if LINE in cells:
        # The reader's own column of line numbers has this name.
        raise DataError(
            f"{name}, line {notes + 1}: rename column {LINE!r}; rows are numbered by that name"
        )

    # What has no name, such as a count of rows, is left out; not stamps, as a DataFrame's index.
    if not cells[0] and _find_stamps([below[0]]) and "index" not in cells:
        cells[0] = "index"
    names = [cell or f"{_UNNAMED}{number}" for number, cell in enumerate(cells)]
    rows = read_rows(body, name, names, first_line=notes + 2, separator=separator, spans_lines=True)
    cells = [cell for cell in cells if cell]
    rows = rows.select(LINE, *cells)
    # Files that were joined have the names again.
    return rows.filter(~pl.all_horizontal(pl.col(cell).str.strip_chars() == cell for cell in cells))


def _drop_other_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows without empty ones, units below the column names, totals and notes at the end."""
    cells = pl.exclude(LINE).str.strip_chars().fill_null("")
    texts = rows.select(cells).with_columns(
        n_filled=pl.sum_horizontal(cells != ""),
        has_digit=pl.any_horizontal(cells.str.contains(r"\d")),
    )
    number, n_rows = pl.int_range(pl.len()), pl.len()
    is_first, is_last = number < _MOST_OTHER_ROWS, number >= n_rows - _MOST_OTHER_ROWS
    first = pl.nth(0)
    # More rows that begin so are of a series with that name.
    is_total = first.str.contains(_TOTAL) & (first.str.contains(_TOTAL).sum() <= _MOST_OTHER_ROWS)
    is_note = (pl.col("n_filled") == 1) & first.str.contains(_TWO_WORDS)
    is_other = (
        (pl.col("n_filled") == 0)
        | (is_first & ~pl.col("has_digit"))
        | (is_last & (is_total | is_note))
    )
    return rows.filter(~texts.select(is_other).to_series())


def _decode(content: bytes, name: str) -> str:
    """Return a text in UTF-8, in UTF-16 with its mark, or in Windows-1252 if that gives words."""
    decode.raise_if_html(content, name)
    if content.startswith(_UTF16_MARKS):
        return content.decode("utf-16", errors="replace")
    try:
        return decode.decode_text(content, name)
    except SchemaDrift:
        text = content.decode("cp1252", errors="replace")
        if _NO_WORDS.search(text):
            raise
        return text


def _flatten_report(body: str, name: str) -> str:
    """Return a report of AEMO as rows below their column names; its lines say which they are.

    DataError if it holds several tables.
    """
    tables = {*re.findall(r"(?m)^I,(\w+,\w*),", body)}
    if len(tables) > 1:
        raise DataError(
            f"{name} holds {len(tables)} tables ({list_some(sorted(tables))}): keep the lines "
            "that begin with I and D of one"
        )
    return re.sub(r"(?m)^(C,.*|[ID],\w+,\w*,\d*,)", "", body)


def _flatten_meter_data(body: str, name: str) -> str:
    """Return meter data of the market's form NEM12, a line a day, as a row a reading.

    DataError if a line is not as the form has it.
    """
    rows: list[str] = []
    units: set[str] = set()
    series, minutes = "", 0
    for number, line in enumerate(body.split("\n"), start=1):
        kind, *cells = line.split(",")
        try:
            if kind == "200":
                series, minutes = f"{cells[0]} {cells[3]}", int(cells[7])
                units.add(cells[6])
            elif kind == "300":
                day = datetime.strptime(cells[0], "%Y%m%d")  # noqa: DTZ007 - of the file's clock
                for at, value in enumerate(cells[1 : 1 + 24 * 60 // minutes]):
                    rows.append(f"{series},{day + at * timedelta(minutes=minutes)},{value}")
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise DataError(
                f"{name}, line {number}: not as in NEM12 ({error}); fetch the file again"
            ) from error
    return "\n".join([f"NMI,stamp,reading ({' or '.join(sorted(units))})", *rows])


def _leave_out_notes_below(body: str, separator: str, n_cells: int) -> str:
    """Return rows without the remarks below them, which an empty line or a cell of words begins.

    The search goes up from the end, to a row with all cells, a quote or a leading digit.
    """
    lines = body.rsplit("\n", _MOST_NOTES)
    end = len(lines)
    for number in range(len(lines) - 1, max(-1, len(lines) - _MOST_NOTES), -1):
        line = lines[number].strip()
        if not line or (separator not in line and len(line.split()) > 2):
            end = number
        elif '"' in line or line[0].isdigit() or line.count(separator) >= n_cells - 1:
            break
    return body if end == len(lines) else "\n".join(lines[:end])


def _split_header(line: str) -> tuple[str, list[str]]:
    """Return the separator that gives most cells, and the cells."""
    by_mark = {mark: split_cells(line, mark) for mark in SEPARATORS}
    separator = max(SEPARATORS, key=lambda mark: len(by_mark[mark]))
    return separator, [cell.strip() for cell in by_mark[separator]]


def _are_names(cells: Sequence[str]) -> bool:
    """Whether cells name several columns: none is a number but many stamps; the ends may lack."""
    if len(cells) > 2 and not cells[-1]:
        cells = cells[:-1]
    numbers = [cell for cell in cells if cell[:1].isdigit()]
    are_stamps = len(numbers) >= _FEWEST_STAMPED and len(_find_stamps(numbers)) == len(numbers)
    is_name = [cell and not cell.startswith(_UNNAMED) for cell in cells]
    return len(cells) > 1 and all(is_name[not cells[0] :]) and (are_stamps or not numbers)


def _count_notes(lines: Sequence[str]) -> int:
    """Return the number of lines above the column names: titles, remarks, empty lines.

    Column names fill a line, none is a number but many may be stamps, and most lines below, with
    the next, have as many cells; no line above does, but a title in a column of its own.
    """
    has_title = not all(_split_header(lines[0])[1])
    n_rows: Counter[int] = Counter()
    filled: set[int] = set()
    for number, line in enumerate(lines):
        if line.startswith(("#", "; ")):
            continue
        separator, names = _split_header(line)
        counts = [len(split_cells(below, separator)) for below in lines[number + 1 :]]
        if _are_names(names) and len(names) not in filled and counts[:1] == [len(names)]:
            n_rows[number] = counts.count(len(names))
        filled.add(sum(map(bool, names)) - has_title)
    return max(n_rows, key=n_rows.__getitem__, default=0)


def _read_parquet(content: bytes, name: str) -> pl.DataFrame:
    try:
        table = pq.read_table(io.BytesIO(content))
    except pa.ArrowException as error:
        raise DataError(f"{name} is not a Parquet file ({error}); write it again") from error
    # polars knows no offset, such as +05:30.
    in_utc = [
        pa.field(field.name, pa.timestamp("us", "UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz
        else field
        for field in table.schema
    ]
    return _convert_to_text(pl.DataFrame(table.cast(pa.schema(in_utc), safe=False)), name)


def _read_excel(content: bytes, name: str) -> pl.DataFrame:
    """Read all sheets with the columns of the first; a column ``sheet`` has names in words."""
    try:
        import fastexcel
    except ImportError as error:
        raise DataError(
            f"{name} is an Excel file, which needs an extra: pip install 'compevo[excel]', or save "
            "it as CSV"
        ) from error

    try:
        book = fastexcel.read_excel(content)
        sheets: list[tuple[str, int, pl.DataFrame]] = []
        for sheet in book.sheet_names:
            tables = (book.load_sheet(sheet, header_row=row) for row in range(_MOST_NOTES))
            # A title above the columns leaves most of them without a name.
            named = (
                (sheet, header_row, table.to_polars())
                for header_row, table in enumerate(itertools.takewhile(lambda t: t.height, tables))
                if _are_names([column.name for column in table.selected_columns])
            )
            sheets += itertools.islice(named, 1)
        sheets = sheets or [("", 0, book.load_sheet(0).to_polars())]
    except fastexcel.FastExcelError as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{name} is not an Excel file that can be read ({reason}); save it as .xlsx or .csv"
        ) from error
    _, header_row, first = sheets[0]
    joined = [(sheet, cells) for sheet, _, cells in sheets if cells.columns == first.columns]
    # Regions, not years, are series of their own.
    are_words = len(joined) > 1 and not all(sheet.isdigit() for sheet, _ in joined)
    texts = []
    for sheet, cells in joined:
        # Excel has no dates and no times: they are midnights, and on the day before its first.
        for column in cells.select(pl.selectors.datetime()):
            if (column.dt.year() == _EXCEL_BEGINS).all():
                cells = cells.with_columns(column.dt.time())
            elif (column.dt.time() == time()).all():
                cells = cells.with_columns(column.dt.date())
        text = _convert_to_text(cells, name).drop(LINE)
        is_named = are_words and "sheet" not in text.columns
        texts.append(text.with_columns(sheet=pl.lit(sheet)) if is_named else text)
    return pl.concat(texts).with_row_index(LINE, offset=header_row + FIRST_ROW)


def _read_json(content: bytes, name: str) -> pl.DataFrame:
    """Read the one table of a text: by row, by column, or rows next to the names of columns."""
    tables = []
    for part in _list_parts(decode.read_json(content, name)):
        if isinstance(part, list) and len(part) > 1 and all(isinstance(row, dict) for row in part):
            tables.append(pl.DataFrame(part, infer_schema_length=None, strict=False))
        if not isinstance(part, dict):
            continue
        rows = part.get("data", part.get("values"))
        if isinstance(part.get("columns"), list) and isinstance(rows, list):
            tables.append(pl.DataFrame(rows, part["columns"], orient="row", strict=False))
            continue
        # pandas writes the cells of each column by row number.
        columns = {
            column: [*cells.values()] if isinstance(cells, dict) else cells
            for column, cells in part.items()
        }
        lengths = {len(cells) if isinstance(cells, list) else 0 for cells in columns.values()}
        if len(lengths) == 1 < len(columns) and max(lengths) > 1:
            tables.append(pl.DataFrame(columns, strict=False))
    if len(tables) != 1:
        raise DataError(
            f'{name} is no list of JSON objects; write [{{"time": "2024-01-01", "value": 1}}, ...]'
        )
    return _convert_to_text(tables[0], name)


def _list_parts(part: object) -> Iterator[object]:
    """Yield a JSON text and the objects and lists in it, but not those in the rows of a table."""
    yield part
    if isinstance(part, dict) or (isinstance(part, list) and len(part) == 1):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _list_parts(inner)


def _convert_to_text(table: pl.DataFrame, name: str) -> pl.DataFrame:
    if not table.height:
        raise DataError(f"{name} has no rows; write it again")
    # Excel has no integers: years, hours and names of series are whole numbers.
    whole = [
        cells.name
        for cells in table.select(pl.selectors.float())
        if (cells.fill_nan(None) % 1 == 0).all()
    ]
    table = table.with_columns(pl.col(whole).cast(pl.Int64, strict=False))

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
