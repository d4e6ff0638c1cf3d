"""The tables of the stores and of GKG parsers: rows of three files to Markdown.

What belongs here: which columns are shown, and in which units. What does not: measuring (``store``,
``gkg``), writing the document (``table``).
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from compevo_core.report.tables import markdown_table

STORE_MARKERS = (
    "<!-- store: made by `make readme` from benchmarks/results/store.csv -->",
    "<!-- end of store -->",
)
FRAMES_MARKERS = (
    "<!-- frames: made by `make readme` from benchmarks/results/frames.csv -->",
    "<!-- end of frames -->",
)
GKG_MARKERS = (
    "<!-- gkg: made by `make readme` from benchmarks/results/gkg.csv -->",
    "<!-- end of gkg -->",
)

Row = dict[str, str]

STORE_HEADER = ("step", "articles", "seconds", "processor's", "exponent", "peak MB", "disk MB")
FRAMES_HEADER = ("step", "way", "months", "rows", "seconds", "processor's", "MB written", "peak MB")
GKG_HEADER = ("way", "files", "MB", "articles", "MB/s", "articles/s", "peak MB")


def read_table(path: Path) -> list[Row]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def format_store(rows: Sequence[Row]) -> str:
    """Return the steps of the store, each by size, and what they were measured on."""
    order = list(dict.fromkeys(row["step"] for row in rows))
    shown = sorted(rows, key=lambda row: (order.index(row["step"]), int(row["articles"])))
    cells = [
        (
            row["step"],
            f"{int(row['articles']):,}",
            _format_seconds(row["seconds"]),
            _format_seconds(row["cpu_seconds"]),
            f"{float(row['exponent']):.2f}" if row["exponent"] else "",
            row["peak_memory_mb"],
            row["disk_mb"],
        )
        for row in shown
        if row["step"] != "none"
    ]
    table = markdown_table(STORE_HEADER, cells, align="lrrrrrr")
    first = rows[0]
    return (
        f"{table}\n\nOn {first['machine']}, {first['threads']} thread; duckdb {first['duckdb']}, "
        f"polars {first['polars']}, numpy {first['numpy']}."
    )


def format_frames(rows: Sequence[Row]) -> str:
    """Return the steps of published forecasts, each by way and size."""
    cells = [
        (
            row["step"],
            row["way"],
            row["months"],
            f"{int(row['rows']):,}",
            _format_seconds(row["seconds"]),
            _format_seconds(row["cpu_seconds"]),
            f"{float(row['written_mb']):.1f}",
            f"{float(row['peak_memory_mb']):,.0f}",
        )
        for row in sorted(rows, key=lambda row: (row["step"], row["way"], int(row["months"])))
    ]
    table = markdown_table(FRAMES_HEADER, cells, align="llrrrrrr")
    return f"{table}\n\nOn {rows[0]['machine']}, 1 thread; polars {rows[0]['polars']}."


def format_gkg(rows: Sequence[Row]) -> str:
    """Return the ways of reading GKG files."""
    cells = [
        (
            f"{row['way']} {row['version']}",
            row["files"],
            f"{float(row['unpacked_mb']):.0f}",
            f"{int(row['rows']):,}",
            f"{float(row['mb_per_cpu_second']):.0f}",
            f"{float(row['rows_per_cpu_second']):,.0f}",
            row["peak_memory_mb"],
        )
        for row in rows
    ]
    table = markdown_table(GKG_HEADER, cells, align="lrrrrrr")
    return f"{table}\n\nOn {rows[0]['machine']}; MB unpacked, seconds of the processor."


def _format_seconds(text: str) -> str:
    seconds = float(text)
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.3g} s"
