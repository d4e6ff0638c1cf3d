"""Published forecasts as they grow: ``python -m benchmarks.frames run --folder DIR``.

What belongs here: a refresh and the reading of a day, by month and in one file, each in a process
of its own. What does not: the store of articles (``benchmarks.store``).

Every half-hour of five regions is forecast 95 times, at three quantiles: 68,400 rows a day, as many
as NEMWeb gives. A step works on some months of them:
    refresh: the next day's rows are merged with what is stored.
    day: the values that a forecast of the newest day needs, those of four weeks, are read.
The ways:
    months: this project's store, which replaces the files of the months that rows fall into.
    one file: read, ``concat``, ``unique`` and ``sort`` of the whole frame, as the store did before;
        for a day, ``polars.scan_parquet`` of that file with the same bound.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from benchmarks.engine_rows import REPO, describe_machine
from compevo_core.data.schemas import PUBLISHED_SCHEMA
from compevo_pipeline.settings import child_environment
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.storage.frame_store import KEYS, FrameStore

RESULTS = REPO / "benchmarks" / "results" / "frames.csv"
MONTHS = (1, 3, 12)
ISSUES = 95
"""How often a half-hour is forecast before it begins."""
NEEDED = timedelta(days=29)
"""How far back the views of a day look."""

_KIND = FrameKind.PUBLISHED
_DATASET = "electricity-operational"
_REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
_QUANTILES = (0.1, 0.5, 0.9)
_FIRST = datetime(2025, 1, 1, tzinfo=UTC)
_HALF_HOUR = timedelta(minutes=30)
_DAYS = 30  # of a month

app = typer.Typer(add_completion=False)


def make_days(first: int, end: int) -> pl.DataFrame:
    """Return the published rows of some days, numbered from the first of 2025 on."""
    day = timedelta(days=1)
    starts = pl.datetime_range(
        _FIRST + first * day, _FIRST + end * day, _HALF_HOUR, closed="left", eager=True
    )
    rows = (
        pl.DataFrame({"start_utc": starts})
        .join(pl.DataFrame({"entity": _REGIONS}), how="cross")
        .join(pl.DataFrame({"quantile": _QUANTILES}), how="cross")
        .join(pl.DataFrame({"lead": range(1, ISSUES + 1)}), how="cross")
    )
    # Values without order, as those of forecasts are: nothing of them is packed away.
    noise = (pl.struct("start_utc", "entity", "quantile", "lead").hash(0) % 10_000_000) / 1000
    rows = rows.with_columns(
        noise.alias("value"),
        (pl.col("start_utc") - pl.col("lead") * _HALF_HOUR).alias("available_at"),
        pl.format("live:aemo_operational/{}", pl.col("start_utc").dt.date()).alias("source"),
    )
    return rows.select(pl.col(name).cast(kind) for name, kind in PUBLISHED_SCHEMA.items())


def refresh_months(folder: Path, rows: pl.DataFrame) -> None:
    """Merge rows into this project's store."""
    FrameStore(folder).write(_DATASET, _KIND, rows)


def refresh_one_file(folder: Path, rows: pl.DataFrame) -> None:
    """Merge rows into one file."""
    path = folder / "one.parquet"
    stored = pl.read_parquet(path) if path.exists() else rows.clear()
    keys = list(KEYS[_KIND])
    merged = pl.concat([stored, rows]).unique(keys, keep="last", maintain_order=True).sort(keys)
    merged.write_parquet(path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def read_day_months(folder: Path, since: datetime) -> None:
    """Read what a day needs from this project's store."""
    FrameStore(folder).read(_DATASET, _KIND, lambda rows: rows.filter(pl.col("start_utc") >= since))


def read_day_one_file(folder: Path, since: datetime) -> None:
    """Read what a day needs from one file."""
    pl.scan_parquet(folder / "one.parquet").filter(pl.col("start_utc") >= since).collect()


REFRESH = {"months": refresh_months, "one file": refresh_one_file}
READ_DAY = {"months": read_day_months, "one file": read_day_one_file}


def prepare(way: str, folder: Path, months: int) -> None:
    """Store months, all at once."""
    REFRESH[way](folder, make_days(0, _DAYS * months))


def find_step(step: str, way: str, folder: Path, months: int) -> Callable[[], None]:
    """Return the call that is timed."""
    end = _DAYS * months
    if step == "refresh":
        return partial(REFRESH[way], folder, make_days(end, end + 1))
    return partial(READ_DAY[way], folder, _FIRST + timedelta(days=end) - NEEDED)


@app.command()
def run(
    months: Annotated[list[int] | None, typer.Option(help="Months that are stored.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the frames are made.")] = None,
    out: Annotated[Path, typer.Option(help="The table.")] = RESULTS,
) -> None:
    """Measure each step, way and size, and write the table."""
    rows = []
    for size in months or MONTHS:
        for way in REFRESH:
            home = Path(tempfile.mkdtemp(prefix="frames-", dir=folder))
            try:
                _call("make", way, home, size)
                for step in ("day", "refresh"):
                    row = {"step": step, "way": way, "months": size}
                    row |= json.loads(_call(step, way, home, size))
                    sys.stdout.write(f"{json.dumps(row)}\n")
                    rows.append(row | {"polars": version("polars")} | describe_machine())
            finally:
                shutil.rmtree(home)
    pl.DataFrame(rows).write_csv(out, float_precision=3)


@app.command()
def measure(step: str, way: str, folder: Path, months: int) -> None:
    """Run one step in this process, and print what it took."""
    if step == "make":
        prepare(way, folder, months)
        return

    call = find_step(step, way, folder, months)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    began, cpu_began = time.perf_counter(), time.process_time()
    call()
    took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu_began}

    files = list(folder.rglob("*.parquet"))
    written = [path for path in files if before.get(path) != path.stat().st_mtime_ns]
    sizes = {
        "written_mb": sum(path.stat().st_size for path in written) / 1e6,
        "disk_mb": sum(path.stat().st_size for path in files) / 1e6,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    sys.stdout.write(json.dumps({"rows": make_days(0, 1).height * _DAYS * months, **took, **sizes}))


def _call(step: str, way: str, folder: Path, months: int) -> str:
    """Run one step in a process of its own; return what it prints."""
    words = ("-m", "benchmarks.frames", "measure", step, way, str(folder), str(months))
    done = subprocess.run(  # noqa: S603 - this interpreter and fixed arguments
        [sys.executable, *words],
        cwd=REPO,
        env=child_environment(1) | {"POLARS_MAX_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    app()
