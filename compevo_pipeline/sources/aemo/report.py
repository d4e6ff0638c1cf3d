"""NEMWeb and MMSDM reports: ``C`` (comment), ``I`` (columns) and ``D`` (data) records in one CSV.

What belongs here: the framing, the footer's line count, and columns taken by the names in the ``I``
record, since AEMO adds columns from one version to the next. What does not: what a table means.

Reports are listed at https://nemweb.com.au/Reports/Current/.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.nem import NEM_OFFSET
from compevo_pipeline.sources.common.tables import LINE, Quoting, read_rows, split_cells

STAMP_FORMATS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M")

_FRAME_COLUMNS = ("_record", "_table", "_part", "_version")
_FOOTER = re.compile(r'^C,"?END OF REPORT"?,(\d{1,12})$')
_SHOWN_CHARACTERS = 60


def read_report(
    raw: RawFile, table: tuple[str, str], columns: Sequence[str], *, footer: bool = True
) -> pl.DataFrame:
    """Read the one table of a report.

    Args:
        raw: the report.
        table: the second and third cell of the ``I`` record, such as ``("DEMAND", "HISTORIC")``.
        columns: names that must be in the ``I`` record.
        footer: whether to compare the footer's count with the lines read (not for files that
            somebody filtered by row).

    Returns:
        The wanted columns as text, and the line number of each row.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: framing, table, columns or footer are not as expected; names file and line.
    """
    lines = read_text(raw.content, raw.name).rstrip("\n").split("\n")
    if not lines[0].startswith("C,"):
        raise SchemaDrift(
            f"{raw.name}, line 1: not a C record ({lines[0][:_SHOWN_CHARACTERS]!r}); "
            "check whether this is an AEMO report"
        )

    _check_footer(lines, raw.name, is_count_checked=footer)
    published = _read_column_names(lines, raw.name, table, columns)

    # A second I record would start another table, whose columns are others.
    for number, line in enumerate(lines[2:-1], start=3):
        if not line.startswith("D,"):
            raise SchemaDrift(
                f"{raw.name}, line {number}: expected a D record, found "
                f"{line[:_SHOWN_CHARACTERS]!r}; fetch the file again"
            )

    rows = read_rows(
        "\n".join(lines[2:-1]),
        raw.name,
        [*_FRAME_COLUMNS, *published],
        first_line=3,
        quoting=Quoting.CELLS,
    )
    return rows.select(*columns, LINE)


def read_created(raw: RawFile) -> datetime:
    """Return when AEMO made a report: date and time in its first record, NEM time, as UTC.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: the first record has no such stamp.
    """
    first_line = read_text(raw.content, raw.name).partition("\n")[0]
    record = split_cells(first_line, quoting=Quoting.CELLS)
    stamp = " ".join(record[5:7])
    try:
        created = datetime.strptime(stamp, STAMP_FORMATS[0])  # noqa: DTZ007 - NEM time, as published
        return (created - NEM_OFFSET).replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise SchemaDrift(
            f"{raw.name}, line 1: {stamp[:_SHOWN_CHARACTERS]!r} is no date and time of creation; "
            "fetch the file again, or extend the parser if the C record changed"
        ) from error


def _read_column_names(
    lines: Sequence[str], file_name: str, table: tuple[str, str], wanted: Sequence[str]
) -> list[str]:
    """Return the column names of the ``I`` record in line 2."""
    record = split_cells(lines[1], quoting=Quoting.CELLS) if len(lines) > 1 else []
    # Four cells frame the record, so a table with one column has five.
    if len(record) < 5 or record[0] != "I" or tuple(record[1:3]) != table:
        raise SchemaDrift(
            f"{file_name}, line 2: expected the I record of {table[0]},{table[1]}, found "
            f"{','.join(record[:4])!r}; the report changed or this is another one: "
            "extend the parser or remove the file"
        )

    published = record[len(_FRAME_COLUMNS) :]
    absent = [name for name in wanted if name not in published]
    if absent:
        raise SchemaDrift(
            f"{file_name}, line 2: no column {', '.join(absent)} in the I record; extend the parser"
        )
    return published


def _check_footer(lines: Sequence[str], file_name: str, *, is_count_checked: bool) -> None:
    match = _FOOTER.match(lines[-1])
    if match is None:
        raise SchemaDrift(
            f"{file_name}, line {len(lines)}: no END OF REPORT record "
            f"({lines[-1][:_SHOWN_CHARACTERS]!r}); the file is cut, fetch it again"
        )

    if is_count_checked and int(match[1]) != len(lines):
        raise SchemaDrift(
            f"{file_name}, line {len(lines)}: the footer counts {match[1]} lines, "
            f"the file has {len(lines)}; fetch it again"
        )
