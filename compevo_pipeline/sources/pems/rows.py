"""Rows of PeMS station files, read in parts: a month of a district is half a gigabyte of text.

What belongs here: the five of some fifty columns that are kept, cut by cut. What does not: the
columns' names (``pems.source``, ``pems.five_minutes``), what they mean (``pems.hours``).
"""

from collections.abc import Iterator, Sequence

import polars as pl

from compevo_pipeline.sources.common.tables import BLANK, LINE, read_rows, to_number, to_stamp

STAMP_FORMAT = "%m/%d/%Y %H:%M:%S"
PART_CHARACTERS = 16 * 2**20
"""Text whose cells are in memory at one time; their strings take some ten times as much."""


def read_station_rows(
    text: str, name: str, columns: Sequence[str], only: Sequence[str] | None = None
) -> pl.DataFrame:
    """Read ``line``, ``stamp``, ``station``, ``pct_observed`` and ``occupancy`` of every row.

    Args:
        text: the whole file.
        name: its name, for messages.
        columns: all of its columns, in order.
        only: stations to keep; all by default.

    Raises:
        SchemaDrift: no rows, a row with another number of cells, or a bad timestamp or number.
    """
    tables = []
    for first_line, part in _cut_at_lines(text):
        table = read_rows(part, name, columns, first_line=first_line)
        # The other columns are split for the cell count alone.
        table = table.select(LINE, "stamp", "station", "pct_observed", "occupancy")
        if only is not None:
            table = table.filter(pl.col("station").is_in(list(only)))

        table = to_stamp(table, name, "stamp", (STAMP_FORMAT,))
        table = to_number(table, name, ["pct_observed", "occupancy"], missing=BLANK)
        # A station stands in thousands of rows: its text is kept once, not as parts of the file.
        tables.append(table.with_columns(pl.col("station").cast(pl.Categorical)))
    return pl.concat(tables)


def _cut_at_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield parts of whole lines, each with the number of its first line."""
    start, line = 0, 1
    while True:
        end = text.find("\n", start + PART_CHARACTERS)
        # What follows the last line end is a part of its own only if it holds a line.
        if end < 0 or not text[end:].strip():
            yield line, text[start:]
            return

        yield line, text[start:end]
        line += text.count("\n", start, end) + 1
        start = end + 1
