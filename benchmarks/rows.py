"""What all benchmarks share: cases, each in a process of its own, and their rows.

    python -m benchmarks.NAME [CASE ...] [--folder DIR] [--out FILE]

measures all cases of a benchmark, or those that match a name or a pattern (``'round/*'``). A row
replaces the one of the same key in the table of that name in ``benchmarks/results``; the others
stay. What belongs here: that command, and tables of rows. What does not: what is measured; clocks
(``clock``).
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compevo_pipeline.config.settings import child_environment
from compevo_pipeline.storage.code_versions import read_commit

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"

LIBRARIES = ("torch", "transformers", "peft", "trl")

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """The cases of a module and the table of their rows."""

    name: str  # of the module and of its table
    cases: Sequence[str]
    # Returns the rows of a case; the folder holds or gets what several cases need.
    measure: Callable[[str, Path], Iterable[Row]]
    key: Sequence[str]  # columns that tell rows apart
    libraries: Sequence[str] = ()  # whose versions each row names
    threads: int = 0  # of each process; 0 is the libraries' own choice
    finish: Callable[[list[Row]], list[Row]] = list  # sorts the rows, or derives some from others

    @property
    def path(self) -> Path:
        """The committed table."""
        return RESULTS / f"{self.name}.csv"

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run the command line: measure cases one after the other, and write the table each time.

        A case that fails, as it lacks a package or a file, is named and left out.
        """
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{self.name}")
        parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(self.cases))
        parser.add_argument("--folder", type=Path, help="data that cases read or make")
        parser.add_argument("--out", type=Path, default=self.path, help="the table")
        parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
        given = parser.parse_args(arguments)
        for pattern in given.cases:
            if not any(fnmatchcase(case, pattern) for case in self.cases):
                parser.error(f"no case {pattern}; known: {', '.join(self.cases)}")

        patterns = given.cases or ["*"]
        chosen = [case for case in self.cases if any(fnmatchcase(case, p) for p in patterns)]
        with TemporaryDirectory() as made:
            folder = given.folder or Path(made)
            if given.here:
                for row in self.measure(chosen[0], folder):
                    print_row(row)
            else:
                for case in chosen:
                    self._add(case, folder, given.out)

    def _add(self, case: str, folder: Path, out: Path) -> None:
        """Measure a case in a process of its own, and put its rows into the table."""
        rows = read_rows(out) if out.is_file() else []
        command = (f"benchmarks.{self.name}", case, "--folder", str(folder), "--here")
        try:
            measured = measure_in_process(*command, threads=self.threads)
        except RuntimeError as error:
            sys.stderr.write(f"{case} is left out: {error}\n")
            return
        facts = describe_surroundings(self.libraries)
        # A row may name another machine: a GPU, or none as others published it.
        new = [row | {k: v for k, v in facts.items() if k not in row} for row in measured]
        table = self.finish(merge_rows(rows, new, self.key))
        write_rows(table, out, [*dict.fromkeys(name for row in [*rows, *table] for name in row)])


def merge_rows(rows: list[Row], new: Iterable[Row], key: Sequence[str]) -> list[Row]:
    """Return ``rows`` with each new one in the place of the row of its key, or at the end."""
    table = {tuple(str(_shorten(row[name])) for name in key): row for row in [*rows, *new]}
    return list(table.values())


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
            table.writerow({name: _shorten(value) for name, value in row.items()})


def _shorten(value: Any) -> Any:  # noqa: ANN401 - of a cell
    return f"{value:.4g}" if isinstance(value, float) else value


def measure_in_process(module: str, *arguments: str, threads: int = 0) -> list[Row]:
    """Return the rows that ``python -m module arguments`` prints, and print them here as well.

    Raises:
        RuntimeError: the process failed, or printed no row.
    """
    command = [sys.executable, "-m", module, *arguments]
    path = [str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(  # noqa: S603 - our own command
        command,
        cwd=REPO,
        env=child_environment(threads) | {"PYTHONPATH": os.pathsep.join(path)},
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


def print_row(row: Row) -> None:
    """Print a row as :func:`measure_in_process` reads it."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def describe_surroundings(libraries: Sequence[str]) -> Row:
    """Return machine, commit and library versions of this run."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    machine = next(iter(names), "") or platform.processor() or platform.machine()
    return {"machine": machine, "commit": read_commit()} | {
        name: version(name) for name in libraries
    }
