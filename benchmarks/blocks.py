"""A family of blocks of series, run by run: ``python -m benchmarks.blocks --blocks 1,10,100``.

What belongs here: made-up series in a file a block, fitted and forecast by the commands in one
process, and by a run of Dagster a block, as a run launcher would start it; processor seconds and
the most memory. What does not: groups in Python (``benchmarks.groups``).
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from benchmarks.groups import make_table
from benchmarks.rows import REPO, RESULTS, Row, describe_surroundings, write_each

_SERIES, _METHOD, _NAME = 100, "calendar-ridge", "many"
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


def measure(blocks: int, runs: int) -> Row:
    """Return the row of a family: the commands for all blocks, runs for some of them."""
    with tempfile.TemporaryDirectory() as folder:
        root, commands = Path(folder), "compevo_pipeline.cli.main"
        home = {"COMPEVO_HOME": folder, "COMPEVO_MODE": "sample", "PYTHONPATH": str(REPO)}
        (root / _NAME).mkdir()
        for block in range(blocks):
            make_table(_SERIES).write_parquet(root / _NAME / f"{block:03}.parquet")
        row: Row = {"series": _SERIES * blocks, "blocks": blocks}
        pattern = str(root / _NAME / "*.parquet")
        run(os.environ | home, commands, "init", pattern, "--unit", "items", "--horizon", "28")

        for name, words in (("fit", ["--method", _METHOD]), ("forecast", [])):
            cpu, peak = run(os.environ | home, commands, name, _NAME, *words)
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
            run(os.environ | home | instance, *launch, "--partition", f"{_NAME}-{block:03}")
            for block in range(min(runs, blocks))
        ]
        row |= {"runs": len(used), "run_cpu_seconds": sum(cpu for cpu, _ in used) / len(used)}
        row |= {"run_peak_mb": max(peak for _, peak in used)}
    return row | describe_surroundings(("dagster", "polars"))


def main(blocks: str = "1,10,100", runs: int = 10) -> None:
    """Measure families of so many blocks, with at most so many runs each; write the rows."""
    counts = map(int, blocks.split(","))
    write_each((measure(count, runs) for count in counts), RESULTS / "blocks.csv")


if __name__ == "__main__":
    typer.run(main)
