"""Many series by groups on two workers of Dask: ``python -m benchmarks.groups``.

What belongs here: made-up days of many series, fitted and forecast by a ridge in groups; processor
seconds a series of the workers and of the process that asks them, and the most memory of a worker,
with all libraries loaded. What does not: how good the forecasts are (``benchmarks.tables``).
"""

import tempfile
import time
from datetime import date, timedelta

import numpy as np
import polars as pl
import typer
from distributed import Client, LocalCluster

from benchmarks.rows import (
    RESULTS,
    Row,
    describe_surroundings,
    measure_in_process,
    print_row,
    write_rows,
)
from compevo_core import Forecaster, GroupedForecaster
from compevo_core.runtime.usage import peak_memory_gigabytes

_SIZES, _DAYS, _HORIZON, _GROUP, _WORKERS = (100, 1_000, 10_000), 365, 28, 100, 2


def make_table(series: int) -> pl.DataFrame:
    """Return days of series with a week, each at its own level."""
    rng = np.random.default_rng(0)
    days = [date(2024, 1, 1) + timedelta(days=day) for day in range(_DAYS)]
    week = np.arange(_DAYS) % 7
    parts = [
        {"unique_id": f"s{i:05}", "ds": days, "y": 10 + i % 50 + week + rng.normal(size=_DAYS)}
        for i in range(series)
    ]
    return pl.concat(map(pl.DataFrame, parts))


def measure(series: int) -> Row:
    """Return the row of a number of series, on a new cluster."""
    # Workers come before the table: a process inherits the most memory of the one that started it.
    with (
        LocalCluster(_WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        ridge = Forecaster("calendar-ridge", horizon=_HORIZON)
        grouped = GroupedForecaster(ridge, folder, size=_GROUP, engine=client)
        table = make_table(series)

        def read_clock() -> float:
            return time.process_time() + sum(client.run(time.process_time).values())

        # Libraries are loaded before.
        GroupedForecaster(ridge, f"{folder}/few", size=1, engine=client).fit(
            make_table(8)
        ).predict()
        began = read_clock()
        grouped.fit(table)
        fitted = read_clock()
        grouped.predict()
        cpu = {"fit": fitted - began, "predict": read_clock() - fitted}
        peak = max(client.run(peak_memory_gigabytes).values())
    return {
        "series": series,
        "rows": table.height,
        "group": _GROUP,
        "workers": _WORKERS,
        **{f"{call}_cpu_seconds_a_series": seconds / series for call, seconds in cpu.items()},
        "worker_peak_memory_mb": round(1000 * peak),
    }


def main(series: int = 0) -> None:
    """Measure a number of series, or each in a process of its own, and write the rows."""
    if series:
        print_row(measure(series) | describe_surroundings(("fugue", "dask")))
        return
    sizes = [["--series", str(size)] for size in _SIZES]
    rows = [measure_in_process("benchmarks.groups", *size, environment={}) for size in sizes]
    write_rows([row for (row,) in rows], RESULTS / "groups.csv")


if __name__ == "__main__":
    typer.run(main)
