"""What it costs to begin: definitions, forecaster, one small asset, and the same asset again.

    python -m benchmarks.startup --out benchmarks/results/startup.csv

What belongs here: processes as a user starts them, by their own processor seconds. What does not:
what a training or a forecast takes. ``import dagster`` is timed with them: on a busy machine all
rows grow alike.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.rows import REPO, RESULTS, Row, describe_surroundings, write_rows

_ASSET = ("-m", "dagster", "asset", "materialize", "-m", "compevo_pipeline.definitions")
_SMALL = (*_ASSET, "--select", "series/bitcoin")
WAYS: dict[str, tuple[str, ...]] = {
    "dagster": ("-c", "import dagster"),
    "definitions": ("-c", "import compevo_pipeline.definitions"),
    "forecaster": ("-c", "from compevo_core import CompEvoForecaster"),
    "small asset": _SMALL,
    "small asset again": _SMALL,
}


def measure(command: tuple[str, ...], home: Path) -> Row:
    """Run a command in sample mode with its home in a folder; return what it took."""
    folders = {"COMPEVO_HOME": str(home / "compevo"), "DAGSTER_HOME": str(home)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(  # noqa: S603 - commands of this module
        [sys.executable, *command],
        cwd=REPO,
        env=os.environ | folders | {"COMPEVO_MODE": "sample", "PYTHONPATH": str(REPO)},
        capture_output=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu}


def main(out: Annotated[Path, typer.Option(help="The table.")] = RESULTS / "startup.csv") -> None:
    """Measure every way and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        measure(WAYS["definitions"], Path(folder))  # compiled modules are there from then on
        rows = [{"what": name} | measure(way, Path(folder)) for name, way in WAYS.items()]
    facts = describe_surroundings(())
    write_rows([row | facts for row in rows], out)


if __name__ == "__main__":
    typer.run(main)
