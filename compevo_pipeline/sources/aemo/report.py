"""NEMWeb and MMSDM reports: ``C`` (comment), ``I`` (columns) and ``D`` (data) records in one CSV.

What belongs here: the framing, the footer count, columns taken by the names in the ``I`` record, since AEMO adds
columns from one version to the next. What does not: what a table means.
"""

import csv
import re
from collections.abc import Sequence

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile, decode_text, refuse_html
from compevo_pipeline.sources.common.tables import read_rows

STAMP_FORMATS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M")
_FOOTER = re.compile(r'^C,"?END OF REPORT"?,(\d+)$')


def read_report(
    raw: RawFile, table: tuple[str, str], columns: Sequence[str], *, footer: bool = True
) -> pl.DataFrame:
    """Read the one table of a report; the wanted columns as text, plus ``_line``.

    Args:
        raw: the report.
        table: the second and third field of the ``I`` record, such as ``("DEMAND", "HISTORIC")``.
        columns: names that must be in the ``I`` record.
        footer: compare the footer's count with the lines read (off for files somebody filtered by row).

    Raises:
        SchemaDrift: framing, table, columns or footer are not as expected; names file and line.
    """
    refuse_html(raw.content, raw.name)
    lines = decode_text(raw.content, raw.name).rstrip("\n").split("\n")
    if not lines[0].startswith("C,"):
        raise SchemaDrift(
            f"{raw.name}, line 1: not a C record ({lines[0][:60]!r}); is this an AEMO report?"
        )
    _check_footer(raw, lines, footer=footer)
    record = next(csv.reader([lines[1]])) if len(lines) > 1 else []
    if len(record) < 5 or record[0] != "I" or tuple(record[1:3]) != table:
        found = ",".join(record[:4])
        message = (
            f"{raw.name}, line 2: expected the I record of {table[0]},{table[1]}, found {found!r}"
        )
        raise SchemaDrift(
            f"{message}; the report changed or this is another one: extend the parser or remove the file"
        )
    absent = [name for name in columns if name not in record[4:]]
    if absent:
        raise SchemaDrift(
            f"{raw.name}, line 2: no column {', '.join(absent)} in the I record; extend the parser"
        )
    for number, line in enumerate(lines[2:-1], start=3):
        if not line.startswith("D,"):
            raise SchemaDrift(
                f"{raw.name}, line {number}: expected a D record, found {line[:60]!r}; fetch it again"
            )
    names = ["_record", "_table", "_part", "_version", *record[4:]]
    frame = read_rows(raw, "\n".join(lines[2:-1]), names, first_line=3)
    return frame.select(*columns, "_line")


def _check_footer(raw: RawFile, lines: list[str], *, footer: bool) -> None:
    match = _FOOTER.match(lines[-1])
    if match is None:
        where = f"{raw.name}, line {len(lines)}"
        raise SchemaDrift(
            f"{where}: no END OF REPORT record ({lines[-1][:60]!r}); the file is cut, fetch it again"
        )
    if footer and int(match[1]) != len(lines):
        where = f"{raw.name}, line {len(lines)}"
        raise SchemaDrift(
            f"{where}: the footer counts {match[1]} lines, the file has {len(lines)}; fetch it again"
        )
