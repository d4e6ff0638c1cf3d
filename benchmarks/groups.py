"""Many series by groups on two workers of Dask: processor seconds a series, and memory.

What belongs here: made-up days of many series, fitted and forecast by a ridge in groups; seconds of
the workers and of the process that asks them, and the most memory of a worker, with all libraries
loaded. What does not: how good the forecasts are (``benchmarks.tables``).
"""

import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
from distributed import Client, LocalCluster

from benchmarks.rows import Benchmark, Row
from compevo_core import Forecaster, GroupedForecaster
from compevo_core.runtime.usage import peak_memory_gigabytes

_DAYS, _HORIZON, _GROUP, _WORKERS = 365, 28, 100, 2


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


def measure(case: str, folder: Path) -> Iterator[Row]:
    """Yield the row of a number of series, on a new cluster."""
    series = int(case)
    # Workers come before the table: a process inherits the most memory of the one that started it.
    with (
        LocalCluster(_WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        ridge = Forecaster("calendar-ridge", horizon=_HORIZON)
        table = make_table(series)

        def read_clock() -> float:
            return time.process_time() + sum(client.run(time.process_time).values())

        # Libraries are loaded before.
        few = GroupedForecaster(ridge, str(folder / "few"), size=1, engine=client)
        few.fit(make_table(8)).predict()
        grouped = GroupedForecaster(ridge, str(folder / case), size=_GROUP, engine=client)
        began = read_clock()
        grouped.fit(table)
        fitted = read_clock()
        grouped.predict()
        cpu = {"fit": fitted - began, "predict": read_clock() - fitted}
        peak = max(client.run(peak_memory_gigabytes).values())
    yield {
        "series": series,
        "rows": table.height,
        "group": _GROUP,
        "workers": _WORKERS,
        **{f"{call}_cpu_seconds_a_series": seconds / series for call, seconds in cpu.items()},
        "worker_peak_memory_mb": round(1000 * peak),
    }


BENCHMARK = Benchmark(
    name="groups",
    cases=("100", "1000", "10000"),
    measure=measure,
    key=("series",),
    libraries=("fugue", "dask"),
)

if __name__ == "__main__":
    BENCHMARK.main()
