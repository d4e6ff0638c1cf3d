"""The rows of ``benchmarks/results/engine.csv``: reading, writing, merging and deriving them.

What belongs here: the columns, the key of a row, rows computed from others, and what a row says of
its machine. What does not: measuring (``cases``), running the cases (``engine``), and torch: the
process that imports this stays small.
"""

import csv
import math
import platform
import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compevo_core.runtime.files import write_atomically

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results" / "engine.csv"

MEASURED = ("compevo_core", "compevo_pipeline", "benchmarks/*.py")
"""What a row's commit must hold unchanged."""
LIBRARIES = ("torch", "transformers", "peft", "trl")
COLUMNS = (
    "case",
    "agents",
    "backbone",
    "dtype",
    "reference",
    "ours_seconds",
    "reference_seconds",
    "ratio",
    "tokens",
    "peak_memory_gb",
    "state_gb",
    "repeats",
    "threads",
    "machine",
    *LIBRARIES,
    "commit",
)

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table written before; none if there is no file.

    Raises:
        ValueError: the file has other columns.
    """
    if not path.is_file():
        return []

    with path.open(encoding="utf-8", newline="") as stream:
        table = csv.DictReader(stream)
        if tuple(table.fieldnames or ()) != COLUMNS:
            raise ValueError(
                f"{path} has columns {table.fieldnames}, not {list(COLUMNS)}: delete it and "
                "measure again"
            )
        return list(table)


def write_rows(rows: list[Row], path: Path, columns: Sequence[str] = COLUMNS) -> None:
    """Write a table, numbers with four significant digits."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, columns, lineterminator="\n", extrasaction="ignore")
            table.writeheader()
            table.writerows(
                {
                    name: f"{value:.4g}" if isinstance(value, float) else value
                    for name, value in row.items()
                }
                for row in rows
            )

    write_atomically(path, write)


def merge_rows(rows: list[Row], new: list[Row]) -> list[Row]:
    """Return ``rows`` with those of ``new`` in place of the same key's, sorted by key."""

    def key(row: Row) -> tuple[str, str, int, str]:
        return str(row["backbone"]), str(row["case"]), int(row["agents"]), str(row["dtype"])

    table = {key(row): row for row in rows} | {key(row): row for row in new}
    return [table[each] for each in sorted(table)]


def derive_rows(rows: list[Row], surroundings: Row) -> list[Row]:
    """Derive the growth of seconds and of memory with the agents, by backbone and type."""
    derivations: tuple[tuple[str, str, Callable[[list[Row]], float]], ...] = (
        ("round", "round-exponent", fit_exponent),
        ("memory-joint", "memory-joint-ratio", _divide_peaks),
        ("memory-by-agent", "memory-by-agent-ratio", _divide_peaks),
    )

    out: list[Row] = []
    for backbone, dtype in sorted({(row["backbone"], row["dtype"]) for row in rows}):
        for case, name, derive in derivations:
            measured = [
                row
                for row in rows
                if (row["case"], row["backbone"], row["dtype"]) == (case, backbone, dtype)
                # Rows of another machine may stand in the same table.
                and row["machine"] == surroundings["machine"]
            ]
            measured.sort(key=lambda row: int(row["agents"]))
            if len(measured) > 1:
                out.append(_derived_row(name, derive(measured), measured[-1], surroundings))
    return out


def fit_exponent(rows: list[Row]) -> float:
    """Return the slope of log seconds over log agents by least squares."""
    x = [math.log(int(row["agents"])) for row in rows]
    y = [math.log(float(row["ours_seconds"])) for row in rows]
    mean_x = sum(x) / len(x)
    mean_y = sum(y) / len(y)

    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def describe_surroundings() -> Row:
    """Return machine, library versions and commit of this run."""
    return describe_machine() | {name: version(name) for name in LIBRARIES}


def describe_machine() -> Row:
    """Return machine and commit of this run."""
    return {"machine": _processor_name(), "commit": _describe_commit()}


def _divide_peaks(rows: list[Row]) -> float:
    """Divide the peak with the most agents by that with the fewest, both without their state."""
    fewest, *_, most = (float(row["peak_memory_gb"]) - float(row["state_gb"]) for row in rows)
    return most / fewest


def _derived_row(name: str, ratio: float, last: Row, surroundings: Row) -> Row:
    """Build a derived row; ``last`` is the measured row with the most agents."""
    shared = ("agents", "backbone", "dtype", "repeats", "threads")
    row: Row = dict.fromkeys(COLUMNS, None) | surroundings
    return row | {column: last[column] for column in shared} | {"case": name, "ratio": ratio}


def _processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


def _describe_commit() -> str:
    """Return the short hash of HEAD, with ``-dirty`` where what was measured differs from it."""
    head = _run_git("rev-parse", "--short", "HEAD")
    changed = _run_git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED)
    return f"{head}-dirty" if changed else head


def _run_git(*arguments: str) -> str:
    return subprocess.run(  # noqa: S603 - fixed arguments
        ["git", *arguments],  # noqa: S607 - the git of the path
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
