"""The default ``Forecaster`` on tasks of fev-bench, compared with the rows that others published.

What belongs here: these tasks, the scores of fev, a row for each task and model. What does not:
other tables (``benchmarks.tables``). The folder holds ``ETTh1.csv`` and ``ETTh2.csv``
(zhouhaoyi/ETDataset: loads and oil temperature of two transformers), ``NP.csv`` (epftoolbox: prices
of Nord Pool) and, in ``results``, the result files of fev-bench (autogluon/fev at 1bc95fd).

Ours is fitted before the first window and then given newer rows. One mend of medians followed a
first look at these tasks. A task is refused if its seasonal naive forecast does not score as
published: its data differ. The weeks of the transformers (ETT_1W) are left out: before the first
window there are 38 of the 82 that ``Forecaster`` needs for 13 weeks.
"""

import time
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.rows import Benchmark, Row
from benchmarks.tables import (
    OURS,
    Task,
    fit_ours,
    forecast_from,
    list_cutoffs,
    measure_scales,
    melt,
    select_future,
)

NAIVE = "Seasonal Naive"
LEVELS = np.arange(1, 10) / 10
QUANTILES = [f"q{level:g}" for level in LEVELS]


def load_transformers(folder: Path, freq: str) -> pd.DataFrame:
    """Return the means of hours or days."""
    parts = []
    for name in ("ETTh1", "ETTh2"):
        hours = pd.read_csv(folder / f"{name}.csv", index_col="date", parse_dates=True)
        # The first and the last day are not whole.
        means = hours if freq == "h" else hours.resample(freq).mean().iloc[1:-1]
        parts.append(means.add_prefix(f"{name} "))
    return melt(pd.concat(parts, axis=1))


def load_prices(folder: Path) -> pd.DataFrame:
    """Return prices, with load and wind power as forecast the day before."""
    rows = pd.read_csv(folder / "NP.csv", parse_dates=["Date"])
    return rows.set_axis(["ds", "y", "load", "wind"], axis=1).assign(unique_id="NP")


def list_tasks(folder: Path) -> dict[str, Task]:
    """Return the tasks, with series of a folder."""
    load, ahead = partial(load_transformers, folder), ("load", "wind")
    return {
        "ETT_1H": Task("ETT_1H", "h", 168, (24,), 20, partial(load, "h")),
        "ETT_1D": Task("ETT_1D", "D", 28, (7,), 20, partial(load, "D")),
        "epf_np": Task("epf_np", "h", 24, (24,), 20, partial(load_prices, folder), ahead, 1),
    }


def score(task: Task, rows: pd.DataFrame, forecast: pd.DataFrame) -> tuple[float, float]:
    """Return MASE and the scaled quantile loss (SQL), means over windows and series.

    A forecast has ``unique_id``, ``ds``, ``mean`` and ``q0.1`` to ``q0.9``. Errors are divided by
    the error of the seasonal naive forecast before the window.
    """
    parts = []
    for cutoff in list_cutoffs(task, rows):
        window = select_future(task, rows, cutoff)
        scales = measure_scales(task, rows[rows["ds"] < cutoff])
        parts.append(window.assign(scale=window["unique_id"].map(scales)))
    joined = pd.concat(parts).merge(forecast, on=["unique_id", "ds"], how="left")
    if missing := int(joined[["mean", *QUANTILES]].isna().any(axis=1).sum()):
        raise ValueError(f"{task.name}: {missing} of {len(joined)} values are not forecast")

    errors = (joined["y"] - joined["mean"]).abs() / joined["scale"]
    above = joined[QUANTILES].rsub(joined["y"], axis=0)
    losses = 2 * np.maximum(LEVELS * above, (LEVELS - 1) * above)
    return float(errors.mean()), float(losses.mean(axis=1).div(joined["scale"]).mean())


def repeat_season(task: Task, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the last season before each window, again and again, as mean and all quantiles."""
    parts = []
    for cutoff in list_cutoffs(task, rows):
        known = rows[rows["ds"] < cutoff].groupby("unique_id")["y"]
        values = [np.resize(y.to_numpy()[-task.seasons[0] :], task.horizon) for _, y in known]
        future = select_future(task, rows, cutoff)[["unique_id", "ds"]]
        parts.append(future.assign(**dict.fromkeys(["mean", *QUANTILES], np.concatenate(values))))
    return pd.concat(parts)


def measure_ours(task: Task, naive: float) -> Row:
    """Return the row of ours.

    Raises:
        ValueError: the MASE of the seasonal naive forecast is not ``naive``, as published.
    """
    rows = task.load().sort_values(["unique_id", "ds"])
    mase, _ = score(task, rows, repeat_season(task, rows))
    if not np.isclose(mase, naive, rtol=1e-6):
        raise ValueError(f"{task.name}: {NAIVE} has {mase:.7f} here and {naive:.7f} as published")

    began = time.process_time()
    forecaster = fit_ours(task, rows)
    forecast = forecast_from(forecaster, task, rows, list_cutoffs(task, rows))
    seconds = time.process_time() - began
    # Levels of fev that are between those of ours.
    forecast["q0.4"] = (forecast["q0.3"] + forecast["q0.5"]) / 2
    forecast["q0.6"] = (forecast["q0.5"] + forecast["q0.7"]) / 2
    mase, sql = score(task, rows, forecast)
    row = {"task": task.name, "model": OURS, "mase": mase, "sql": sql, "cpu_seconds": seconds}
    return row | {"chosen": forecaster.method_}


def rank(ours: Row, published: pd.DataFrame) -> list[Row]:
    """Return ours and the published rows of its task with their ranks, the least SQL first."""
    table = pd.concat([pd.DataFrame([ours]), published])
    for name in ("mase", "sql"):
        table[f"{name}_rank"] = table[name].rank(method="min").astype(int)
    records = table.sort_values("sql").astype(object).to_dict("records")
    return [{name: value for name, value in row.items() if pd.notna(value)} for row in records]


def summarise(rows: Sequence[Row]) -> str:
    """Return how many published models ours surpasses in the geometric mean over tasks."""
    scores = pd.DataFrame(rows).set_index("model")[["mase", "sql"]].astype(float)
    logs = np.log(scores).groupby(level=0).mean()
    behind = (logs > logs.loc[OURS]).sum()
    return (
        f"{behind['mase']} of {len(logs) - 1} published models have a larger MASE in the geometric "
        f"mean over tasks, {behind['sql']} a larger quantile loss"
    )


def measure(case: str, folder: Path) -> Iterable[Row]:
    """Return the rows of all models on a task."""
    warnings.simplefilter("ignore")
    published = pd.concat(map(pd.read_csv, sorted((folder / "results").glob("*.csv"))))
    published = published.loc[published["task_name"] == case, ["model_name", "MASE", "SQL"]]
    published = published.set_axis(["model", "mase", "sql"], axis=1)
    published = published.assign(task=case, machine="", commit="")
    (naive,) = published.loc[published["model"] == NAIVE, "mase"]
    return rank(measure_ours(list_tasks(folder)[case], naive), published)


BENCHMARK = Benchmark(
    name="fev_tasks",
    cases=[*list_tasks(Path())],
    measure=measure,
    key=("task", "model"),
)

if __name__ == "__main__":
    BENCHMARK.main()
