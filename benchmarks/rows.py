"""Rows of ``benchmarks/results``, and processes that measure one.

What belongs here: what all benchmarks share. What does not: what they measure, and torch: a process
inherits the memory high-water mark of the one that started it.
"""

import csv
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compevo_pipeline.storage.code_versions import read_commit

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"

LIBRARIES = ("torch", "transformers", "peft", "trl")

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write_rows(rows: list[Row], path: Path, columns: Sequence[str] = ()) -> None:
    """Write a table of these or all columns, numbers with four significant digits."""
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, columns, lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        for row in rows:
            table.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


def measure_in_process(module: str, *arguments: str, environment: Mapping[str, str]) -> list[Row]:
    """Return the rows that ``python -m module arguments`` prints, and print them here as well.

    Raises:
        RuntimeError: the process failed, or printed no row.
    """
    command = [sys.executable, "-m", module, *arguments]
    path = [str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]

    done = subprocess.run(  # noqa: S603 - our own command
        command,
        cwd=REPO,
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )

    # TRL prints a dict of Python of its own.
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or not rows:
        raise RuntimeError(
            f"{' '.join(command)} ended with code {done.returncode} and {len(rows)} rows; run it "
            f"by itself to see why\n{done.stderr[-2000:]}"
        )
    for row in rows:
        print_row(row)
    return rows


def write_each(rows: Iterable[Row], path: Path) -> None:
    """Print each row as it comes, and write the table so far."""
    written: list[Row] = []
    for row in rows:
        print_row(row)
        written.append(row)
        write_rows(written, path)


def print_row(row: Row) -> None:
    """Print a row as :func:`measure_in_process` reads it."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def measure_seconds(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the wall-clock and processor seconds that a call took, and its result."""
    began, cpu_began = time.perf_counter(), time.process_time()
    out = call()
    return time.perf_counter() - began, time.process_time() - cpu_began, out


def describe_surroundings(libraries: Sequence[str] = LIBRARIES) -> Row:
    """Return machine, commit and library versions of this run."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    machine = next(iter(names), "") or platform.processor() or platform.machine()
    return {"machine": machine, "commit": read_commit()} | {
        name: version(name) for name in libraries
    }
