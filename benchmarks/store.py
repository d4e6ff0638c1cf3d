"""The news store as it grows: ``python -m benchmarks.store run --folder DIR``.

What belongs here: running each step for each size in a process of its own, and how seconds grow
with the articles. What does not: the steps (``store_steps``).

    upsert: articles into the database, in batches of 50,000.
    append: embeddings of 384 numbers into their files, in batches of 512, each on disk before the
        next.
    fill: the same in batches of 50,000, for sizes that take too long otherwise.
    pool: articles and embeddings of the 20,000 articles that a run's windows name.
    look-up: embeddings of the 64 candidates of one window, in a store that was just opened.
    candidates: the articles of the week before an origin, from the database.
    block: the articles that windows of one month are cut with, each title once.

Seconds are of the whole step, for look-up and candidates of one window, the mean of 50, and for
block of one month, the mean of 5. ``exponent`` is
that of the processor's seconds from the next smaller archive to this one: 1 is linear, 0 does not
grow. Peak memory is that of the step's process with all libraries loaded,
which the step ``none`` has too.
"""

import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.engine_rows import REPO, Row, describe_machine, write_rows
from compevo_pipeline.config.settings import child_environment

RESULTS = REPO / "benchmarks" / "results" / "store.csv"
STEPS = ("none", "upsert", "append", "pool", "look-up", "candidates", "block")
REPEATED = ("look-up", "candidates", "block")
SIZES = (10_000, 100_000, 1_000_000)
LIBRARIES = ("duckdb", "polars", "numpy")
COLUMNS = (
    *("step", "articles", "seconds", "cpu_seconds", "exponent", "peak_memory_mb", "disk_mb"),
    *("threads", "machine", *LIBRARIES, "commit"),
)

app = typer.Typer(add_completion=False)


@app.command("run")
def main(
    articles: Annotated[
        list[int] | None, typer.Option(help="Number of articles; may be given more than once.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where archives are made, 1.8 GB for a million articles.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The table.")] = RESULTS,
    threads: Annotated[int, typer.Option(help="Threads of each process.")] = 1,
    steps: Annotated[
        list[str] | None, typer.Option("--step", help="Only this step; in the order they need.")
    ] = None,
) -> None:
    """Measure every step for every size, and remove the archives again."""
    surroundings = {
        "threads": threads,
        **describe_machine(),
        **{name: version(name) for name in LIBRARIES},
    }
    rows: list[Row] = []
    for size in sorted(articles or SIZES):
        archive = Path(tempfile.mkdtemp(prefix=f"store-{size}-", dir=folder))
        try:
            for step in steps or STEPS:
                measured = _measure_in_subprocess(step, archive, size, threads)
                sys.stdout.write(f"{json.dumps(measured)}\n")
                sys.stdout.flush()
                rows.append(measured | surroundings)
        finally:
            shutil.rmtree(archive)
        write_rows(add_exponents(rows), out, COLUMNS)


@app.command()
def measure(step: str, archive: Path, articles: int) -> None:
    """Run one step in this process, and print what it took."""
    # Imported here: the process that starts the others stays small, as they inherit its peak.
    from benchmarks.store_steps import STEPS as CALLS
    from benchmarks.store_steps import Stopwatch

    watch = Stopwatch()
    if step != "none":
        CALLS[step](archive, articles, watch)
    blocks = watch.blocks if step in REPEATED else 1
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    disk_mb = sum(path.stat().st_size for path in archive.rglob("*") if path.is_file()) / 1e6
    row = {
        "step": step,
        "articles": articles,
        "seconds": watch.seconds / blocks,
        "cpu_seconds": watch.cpu_seconds / blocks,
        "peak_memory_mb": round(peak_mb),
        "disk_mb": round(disk_mb),
    }
    sys.stdout.write(json.dumps(row))


def add_exponents(rows: list[Row]) -> list[Row]:
    """Return the rows with the growth of their seconds from the next smaller size of the step."""
    seconds = {(row["step"], row["articles"]): float(row["cpu_seconds"]) for row in rows}
    return [
        row | {"exponent": _find_exponent(seconds, str(row["step"]), int(row["articles"]))}
        for row in rows
    ]


def _find_exponent(seconds: dict[tuple[str, int], float], step: str, articles: int) -> float | str:
    smaller = [size for name, size in seconds if name == step and size < articles]
    if not smaller or not seconds[step, articles]:
        return ""
    before = max(smaller)
    ratio = seconds[step, articles] / seconds[step, before]
    return math.log(ratio) / math.log(articles / before)


def _measure_in_subprocess(step: str, archive: Path, articles: int, threads: int) -> Row:
    """Run one step in a process of its own.

    Raises:
        RuntimeError: it failed.
    """
    words = ("-m", "benchmarks.store", "measure", step, str(archive), str(articles))
    done = subprocess.run(  # noqa: S603 - this interpreter and fixed arguments
        [sys.executable, *words],
        cwd=REPO,
        env=child_environment(threads),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"step {step} with {articles} articles ended with code {done.returncode}: "
            f"{done.stderr[-2000:]}"
        )
    row: Row = json.loads(done.stdout)
    return row


if __name__ == "__main__":
    app()
