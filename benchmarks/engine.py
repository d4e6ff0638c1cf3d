"""The engine against the straightforward way, in one run: ``python -m benchmarks.engine``.

What belongs here: which cases are run for how many agents, each in a process of its own, and the table of results,
``benchmarks/results/engine.csv``. What does not: the measuring itself (``cases``), and torch: this process stays
small, because a process inherits the memory high-water mark of the one that started it.

Cases: ``round`` (a whole round, PEFT one adapter at a time as the reference), ``policy`` (the policy step,
TRL's trainer agent by agent as the reference), ``inference`` (independent agents averaged as the
reference), ``memory`` (peak of one round), ``ceiling`` (rows ``matmul-2048``, whose ratio is GFLOP/s, and
``backbone-forward``, whose ratio is the share of that ceiling), ``product`` (rows ``products-N-rows``: N rows through
every frozen layer, torch's own product as the reference). Two rows are derived: ``round-exponent`` (ratio is the
exponent of seconds a round in the number of agents) and ``memory-ratio`` (peak with the most agents over peak with the
fewest). Elsewhere ratio is reference over ours: above 1, ours is faster. ``dtype`` is ours (``backbone.dtype``); every
reference is float32. A row replaces the one of the same case, agents, backbone and dtype; the others stay.
"""

import argparse
import csv
import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compevo_pipeline.settings import child_environment

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results" / "engine.csv"
LIBRARIES = ("torch", "transformers", "peft", "trl")
COLUMNS = (
    "case",
    "agents",
    "backbone",
    "dtype",
    "ours_seconds",
    "reference_seconds",
    "ratio",
    "peak_memory_gb",
    "repeats",
    "threads",
    "machine",
    *LIBRARIES,
    "commit",
)
#: How many agents each case is measured for.
PLAN: dict[str, tuple[int, ...]] = {
    "ceiling": (1,),
    "product": (1,),
    "inference": (1, 3, 10),
    "memory": (1, 10),
    "policy": (1, 3, 10),
    "round": (1, 3, 10),
}
_MARK = "RESULT "  # as in cases.py, which this small process does not import
_LAST_CHARACTERS = 2000

Row = dict[str, Any]
Runner = Callable[[str, int, int, bool, int], list[Row]]


def measure_apart(case: str, agents: int, repeats: int, quick: bool, threads: int) -> list[Row]:
    """Runs one case in a process of its own.

    Raises:
        RuntimeError: the process failed, or printed no result.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.cases",
        case,
        "--agents",
        str(agents),
        "--repeats",
        str(repeats),
    ]
    done = subprocess.run(
        [*command, *(["--quick"] if quick else [])],
        cwd=REPO,
        env=child_environment(threads),
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [
        json.loads(line[len(_MARK) :])
        for line in done.stdout.splitlines()
        if line.startswith(_MARK)
    ]
    if done.returncode or not rows:
        raise RuntimeError(
            f"case {case} with {agents} agents ended with code {done.returncode} and {len(rows)} "
            f"results; run it alone to see why: {' '.join(command)}\n{done.stderr[-_LAST_CHARACTERS:]}"
        )
    return rows


def run(
    cases: Iterable[str],
    agents: Iterable[int] | None,
    repeats: int,
    out: Path,
    *,
    quick: bool = False,
    threads: int = 0,
    runner: Runner = measure_apart,
) -> list[Row]:
    """Measures the cases, writing the table after each; returns all its rows."""
    around = surroundings()
    wanted = None if agents is None else set(agents)
    rows = read(out)
    for case in cases:
        for count in PLAN[case]:
            if wanted is not None and count not in wanted and PLAN[case] != (1,):
                continue
            for result in runner(case, count, repeats, quick, threads):
                sys.stdout.write(json.dumps(result) + "\n")
                sys.stdout.flush()
                rows = merged(rows, [{name: (result | around)[name] for name in COLUMNS}])
            rows = merged(rows, derived(rows, around))
            write(rows, out)
    return rows


def derived(rows: list[Row], around: Row) -> list[Row]:
    """The exponent of seconds a round in agents, and the ratio of peak memories, by backbone and type."""
    out: list[Row] = []
    for backbone, dtype in sorted({(row["backbone"], row["dtype"]) for row in rows}):
        for case, name, value in (
            ("round", "round-exponent", _exponent),
            ("memory", "memory-ratio", _growth),
        ):
            used = sorted(
                (
                    r
                    for r in rows
                    if (r["case"], r["backbone"], r["dtype"]) == (case, backbone, dtype)
                    and r["machine"] == around["machine"]
                ),
                key=lambda r: int(r["agents"]),
            )
            if len(used) > 1:
                last = used[-1]
                out.append(
                    dict.fromkeys(COLUMNS, None)
                    | around
                    | {
                        "case": name,
                        "agents": last["agents"],
                        "backbone": backbone,
                        "dtype": dtype,
                        "ratio": value(used),
                        "repeats": last["repeats"],
                        "threads": last["threads"],
                    }
                )
    return out


def _exponent(rows: list[Row]) -> float:
    """Slope of log seconds over log agents, least squares."""
    x = [math.log(int(r["agents"])) for r in rows]
    y = [math.log(float(r["ours_seconds"])) for r in rows]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - mean_x) ** 2 for a in x
    )


def _growth(rows: list[Row]) -> float:
    return float(rows[-1]["peak_memory_gb"]) / float(rows[0]["peak_memory_gb"])


def surroundings() -> Row:
    """Machine, library versions and commit of this run."""
    return {"machine": machine(), **{name: version(name) for name in LIBRARIES}, "commit": commit()}


def machine() -> str:
    """The processor's name and the cores in sight."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )
    return name or platform.processor() or platform.machine()


def commit() -> str:
    """Short hash of the checked-out commit, with ``-dirty`` where engine or benchmark files differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git(
        "status", "--porcelain", "--untracked-files=no", "--", "compevo_core", "benchmarks/*.py"
    )
    return f"{head}-dirty" if changed else head


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout.strip()


def merged(rows: list[Row], new: list[Row]) -> list[Row]:
    """``rows`` with those of ``new`` in place of the same key's, sorted by key."""

    def key(row: Row) -> tuple[str, str, int, str]:
        return str(row["backbone"]), str(row["case"]), int(row["agents"]), str(row["dtype"])

    table = {key(row): row for row in rows} | {key(row): row for row in new}
    return [table[k] for k in sorted(table)]


def read(path: Path) -> list[Row]:
    """The rows of a table written before; none if there is no file.

    Raises:
        ValueError: the file has other columns.
    """
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        table = csv.DictReader(stream)
        if tuple(table.fieldnames or ()) != COLUMNS:
            raise ValueError(
                f"{path} has columns {table.fieldnames}, not {list(COLUMNS)}: delete it and measure again"
            )
        return list(table)


def write(rows: list[Row], path: Path) -> None:
    """Writes the table; numbers with four significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(
            {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(
        description="Measures the engine against the straightforward way."
    )
    parser.add_argument("--cases", nargs="+", choices=PLAN, default=list(PLAN), help="default: all")
    parser.add_argument(
        "--agents",
        nargs="+",
        type=int,
        help="only these numbers of agents; default: each case's own",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each case; medians are written"
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="threads of torch; 0 = its own choice"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the tiny random backbone; needs --out"
    )
    parser.add_argument("--out", type=Path, default=None, help="the table")
    options = parser.parse_args(arguments)
    if options.quick and options.out is None:
        parser.error(
            "--quick times nothing real: name a table with --out, so that the committed one stays as it is"
        )
    run(
        options.cases,
        options.agents,
        options.repeats,
        options.out or RESULTS,
        quick=options.quick,
        threads=options.threads,
    )


if __name__ == "__main__":
    main()
