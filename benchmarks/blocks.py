"""A family of blocks of series, fitted and forecast by commands, and by a run of Dagster a block.

What belongs here: made-up series in a file a block; processor seconds and the most memory of the
commands in one process, and of runs as a run launcher would start them. What does not: groups in
Python (``benchmarks.groups``).
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.groups import make_table
from benchmarks.rows import REPO, Benchmark, Row
from compevo_pipeline.config.settings import PROCESS_VARIABLES

_SERIES, _METHOD, _NAME = 100, "calendar-ridge", "many"
_RUNS = 5  # at most
_SELECTED = ("series", "windows", "models/compevo", "forecast/next_day")
_CONFIG = (
    f"ops: {{models__compevo__{_NAME}: {{config: {{method: {_METHOD}, launcher: inline}}}}}}\n"
)


def run(environment: dict[str, str], *command: str) -> tuple[float, int]:
    """Return processor seconds and the most memory, in MB, of a process.

    Raises:
        RuntimeError: it failed.
    """
    whole = [sys.executable, "-m", *command]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(whole, env=environment, stdout=output, stderr=output)  # noqa: S603 - our own commands
        _, status, used = os.wait4(process.pid, 0)
        if status:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)}:\n{output.read().decode()[-2000:]}")
    return used.ru_utime + used.ru_stime, round(used.ru_maxrss / 1024)


def measure(case: str, folder: Path) -> Iterator[Row]:
    """Yield the row of a family: the commands for all blocks, runs for some of them."""
    blocks, root, commands = int(case), folder / case, "compevo_pipeline.cli.main"
    # A user's commands keep no freed memory, as trainings and the other benchmarks do.
    plain = {name: value for name, value in os.environ.items() if name not in PROCESS_VARIABLES}
    home = plain | {"COMPEVO_HOME": str(root), "COMPEVO_MODE": "sample", "PYTHONPATH": str(REPO)}
    (root / _NAME).mkdir(parents=True)
    for block in range(blocks):
        make_table(_SERIES).write_parquet(root / _NAME / f"{block:03}.parquet")
    row: Row = {"series": _SERIES * blocks, "blocks": blocks}
    pattern = str(root / _NAME / "*.parquet")
    run(home, commands, "init", pattern, "--unit", "items", "--horizon", "28")

    for name, words in (("fit", ["--method", _METHOD]), ("forecast", [])):
        cpu, peak = run(home, commands, name, _NAME, *words)
        row |= {f"{name}_cpu_ms_a_series": 1000 * cpu / row["series"], f"{name}_peak_mb": peak}

    # Of blocks that nothing has read yet, as at another night.
    (root / "config.yaml").write_text(_CONFIG, encoding="utf-8")
    (root / "dagster").mkdir()
    instance = {"COMPEVO_HOME": str(root / "again"), "DAGSTER_HOME": str(root / "dagster")}
    instance |= {"COMPEVO_DATASETS": str(root / "datasets")}
    selected = " or ".join(f'key:"{key}/{_NAME}"' for key in _SELECTED)
    launch = ["dagster", "asset", "materialize", "-m", "compevo_pipeline.definitions"]
    launch += ["--select", selected, "--config", str(root / "config.yaml")]
    used = [
        run(home | instance, *launch, "--partition", f"{_NAME}-{block:03}")
        for block in range(min(_RUNS, blocks))
    ]
    row |= {"runs": len(used), "run_cpu_seconds": sum(cpu for cpu, _ in used) / len(used)}
    yield row | {"run_peak_mb": max(peak for _, peak in used)}


BENCHMARK = Benchmark(
    name="blocks",
    cases=("1", "10", "100"),
    measure=measure,
    key=("blocks",),
    libraries=("dagster", "polars"),
)

if __name__ == "__main__":
    BENCHMARK.main()
