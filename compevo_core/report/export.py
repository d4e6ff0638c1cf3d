"""Result rows in the files of public benchmarks, for their own tools.

What belongs here: the summaries that ``fev.leaderboard`` reads, and the ``all_results.csv`` of a
model as GIFT-Eval's leaderboard takes it. What does not: scoring; a metric that rows do not hold is
left empty, never guessed.

A task is a series of a test set: one row a task and method, the mean over its seeds.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_core.data.datasets import DATASETS
from compevo_core.data.view import DEFAULT_STEPS, count_season_steps
from compevo_core.errors import DataError
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.report.rows import (
    drop_agents,
    drop_sweeps,
    list_test_scopes,
    select_scope,
    select_settings,
)
from compevo_core.report.wording import NAIVE
from compevo_core.runtime.files import write_atomically

FEV, GIFT_EVAL = "fev", "gift-eval"
TARGETS = (FEV, GIFT_EVAL)

FEV_NAIVE = "seasonal_naive"
"""The model that fev measures skill against, unless told otherwise."""

FEV_LAYOUT = "0.10.0"
"""Version of fev whose columns are written; its leaderboard asks every row for one."""

DOMAINS = {"exchange": "Econ/Fin", "bitcoin": "Econ/Fin", "traffic": "Transport"}
"""GIFT-Eval's names; all others are demand, so energy."""

FREQUENCIES = {30: "30T", 60: "H", 1440: "D"}
"""Pandas' names of a step, by minutes, as GIFT-Eval spells them."""

_AVERAGED = (
    *("mae", "mse", "rmse", "mape_pct", "wape_pct", "mase", "wql", "seconds", "train_seconds"),
)


def export_rows(rows: pl.DataFrame, target: str, dataset: str, out: Path) -> list[Path]:
    """Write the rows of one data set for a benchmark's tools.

    Args:
        rows: result rows, as ``report.rows.read_rows`` returns them.
        target: one of :data:`TARGETS`.
        dataset: name of the data set.
        out: folder that gets the files, which are returned.

    Raises:
        DataError: there is no row of a test set.
    """
    frames = [
        frame
        for subset in list_test_scopes(rows, dataset)
        for frame in _average(drop_agents(drop_sweeps(rows)), dataset, subset)
    ]
    if not frames:
        raise DataError(f"no row of a test set of {dataset}: run `compevo evaluate {dataset}`")

    tasks = pl.concat(frames)
    if target == FEV:
        files = {out / f"fev-{dataset}.csv": _to_fev(tasks, dataset)}
    else:
        # One folder a model, as the benchmark's repository has them.
        files = {
            out / str(method) / "all_results.csv": _to_gift_eval(own, dataset)
            for (method,), own in tasks.group_by("method", maintain_order=True)
        }
    for path, frame in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, frame.write_csv)
    return list(files)


def _average(rows: pl.DataFrame, dataset: str, subset: str) -> Iterator[pl.DataFrame]:
    """Yield one frame a method: means over seeds by task."""
    scope = select_scope(rows, dataset, subset)
    # All series together are no task beside the series themselves.
    series = scope.filter(pl.col("entity") != POOLED)
    tasks = series if series["entity"].n_unique() > 1 else scope.filter(pl.col("entity") == POOLED)
    for _, own in tasks.group_by("method", maintain_order=True):
        yield (
            select_settings(own)
            .group_by("method", "subset", "entity", maintain_order=True)
            .agg(*(pl.col(name).mean() for name in _AVERAGED), pl.col("n_windows").first())
        )


def _to_fev(tasks: pl.DataFrame, dataset: str) -> pl.DataFrame:
    """Return one summary a task and model, in fev's columns."""
    is_naive = pl.col("method") == NAIVE
    spec = DATASETS.get(dataset)
    season = count_season_steps(spec.step) if spec else 1
    return tasks.select(
        model_name=pl.when(is_naive).then(pl.lit(FEV_NAIVE)).otherwise(pl.col("method")),
        dataset_path=pl.lit(f"compevo/{dataset}"),
        # A task is told from others by its columns, so the series stands in one of them.
        dataset_config=pl.col("subset") + "/" + pl.col("entity"),
        horizon=pl.lit(spec.horizon_steps if spec else DEFAULT_STEPS),
        num_windows=pl.col("n_windows"),
        seasonality=pl.lit(season),
        eval_metric=pl.lit("MAE"),
        extra_metrics=pl.lit("['MSE', 'RMSE', 'MAPE', 'WAPE', 'MASE', 'WQL']"),
        quantile_levels=pl.lit("[0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95]"),
        min_context_length=pl.lit(spec.lookback_steps if spec else DEFAULT_STEPS),
        max_context_length=pl.lit(spec.lookback_steps if spec else DEFAULT_STEPS),
        id_column=pl.lit("id"),
        timestamp_column=pl.lit("timestamp"),
        target=pl.lit("target"),
        test_error=pl.col("mae"),
        MSE=pl.col("mse"),
        RMSE=pl.col("rmse"),
        MAPE=pl.col("mape_pct") / 100,
        WAPE=pl.col("wape_pct") / 100,
        MASE=pl.col("mase"),
        WQL=pl.col("wql"),
        training_time_s=pl.col("train_seconds"),
        inference_time_s=pl.col("seconds"),
        # A forecast that repeats the past was trained on nothing.
        trained_on_this_dataset=~is_naive,
        num_forecasts=pl.col("n_windows"),
        fev_version=pl.lit(FEV_LAYOUT),
    )


def _to_gift_eval(tasks: pl.DataFrame, dataset: str) -> pl.DataFrame:
    """Return one row a task in the columns of GIFT-Eval's results."""
    step = DATASETS[dataset].step.total_seconds() / 60 if dataset in DATASETS else 0
    frequency = FREQUENCIES.get(int(step), "U")
    share = pl.col("wape_pct") / 100
    missing = pl.lit(None, dtype=pl.Float64())
    metrics = {
        # A point forecast is mean and median in one.
        "MSE[mean]": pl.col("mse"),
        "MSE[0.5]": pl.col("mse"),
        "MAE[0.5]": pl.col("mae"),
        "MASE[0.5]": pl.col("mase"),
        "MAPE[0.5]": pl.col("mape_pct") / 100,
        "sMAPE[0.5]": missing,
        "MSIS": missing,
        "RMSE[mean]": pl.col("rmse"),
        # The mean size of the series is MAE over its share of it.
        "NRMSE[mean]": pl.col("rmse") * share / pl.col("mae"),
        "ND[0.5]": share,
        "mean_weighted_sum_quantile_loss": pl.col("wql"),
    }
    name = pl.lit(f"{dataset}-") + pl.col("subset") + "-" + pl.col("entity")
    return tasks.select(
        (name + f"/{frequency}/short").alias("dataset"),
        pl.col("method").alias("model"),
        *(value.alias(f"eval_metrics/{metric}") for metric, value in metrics.items()),
        pl.lit(DOMAINS.get(dataset, "Energy")).alias("domain"),
        pl.lit(1).alias("num_variates"),
    )
