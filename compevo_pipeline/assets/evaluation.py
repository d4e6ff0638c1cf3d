"""``evaluation/baselines`` and ``evaluation/test``: the population beside simple forecasters, on the same windows.

What belongs here: which methods meet which windows, and where rows go. What does not: scoring (``scoring``), metrics
(``compevo_core``). Baselines are fitted on the train split alone.
"""

from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.panels import write_panels
from compevo_core.evaluation.result_rows import POOLED, evaluate, write_rows
from compevo_core.evaluation.scopes import read_forecasts, test_scopes, write_forecasts
from compevo_core.evaluation.scoring import (
    COMPEVO,
    compare,
    identity,
    load,
    panels,
    predict,
    score_baselines,
)
from compevo_core.report.inputs import keep_config
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.assets.training import GPU_POOL, compevo
from compevo_pipeline.failures import source_failures
from compevo_pipeline.partitions import DATASETS, datasets
from compevo_pipeline.provenance import commit
from compevo_pipeline.resources import Workspace
from compevo_pipeline.settings import Layout
from compevo_pipeline.storage.runs import current

EXPERIMENT = "test"
SHOWN_COLUMNS = (
    "method",
    "subset",
    "n_windows",
    "mae",
    "rmse",
    "mape_pct",
    "wape_pct",
    "mase",
    "unit",
)


class BaselineConfig(dg.Config):
    """How baselines are scored."""

    every: int = Field(
        default=1,
        description="score every n-th origin; the rows' subset says so where n is above 1",
    )
    seeds: int = Field(default=5, description="seeds of the methods that draw random numbers")


class PopulationConfig(dg.Config):
    """How the population is scored."""

    every: int = Field(
        default=1, description="score every n-th origin; give evaluation/baselines the same"
    )
    scopes: int = Field(
        default=0, description="how many of the data set's test scopes to score, in order; 0: all"
    )
    shown: int = Field(
        default=4, description="forecasts drawn in the report for each set of windows"
    )


@dg.asset(
    key=["evaluation", "baselines"],
    deps=[dg.AssetKey(["windows", dataset]) for dataset in DATASETS],
    partitions_def=datasets,
    group_name="evaluation",
    description="Persistence, weekly, calendar ridge, boosted trees and published forecasts on the test split.",
    kinds={"scikitlearn", "csv"},
    owners=show.OWNERS,
)
def baselines(
    context: dg.AssetExecutionContext, config: BaselineConfig, workspace: Workspace
) -> dg.MaterializeResult[Any]:
    """Fits every baseline on train, scores it on every test scope, keeps its forecasts."""
    layout, dataset = workspace.layout, context.partition_key
    with source_failures(retry=False):
        windows = WindowSet.read(layout.windows(dataset))
        scopes = test_scopes(windows, config.every)
        context.log.info(
            f"fitting on {len(windows.split('train'))} windows, seeds 0 to {config.seeds - 1}"
        )
        rows, forecasts = score_baselines(
            windows.split("train"),
            scopes,
            experiment=EXPERIMENT,
            seeds=config.seeds,
            commit=commit(),
        )
        write_forecasts(forecast_file(layout, dataset), list(zip(scopes, forecasts, strict=True)))
        path = layout.results / f"baselines-{dataset}.csv"
        write_rows(path, rows)
    return dg.MaterializeResult(metadata=describe(rows, path))


def forecast_file(layout: Layout, dataset: str) -> Path:
    """Where the baselines' forecasts lie."""
    return layout.root / "forecasts" / f"baselines-{dataset}.parquet"


@dg.asset(
    key=["evaluation", "test"],
    deps=[compevo, baselines],
    partitions_def=datasets,
    group_name="evaluation",
    description="The trained population on the test split, by entity and pooled, with paired tests against baselines.",
    kinds={"pytorch", "csv"},
    owners=show.OWNERS,
    pool=GPU_POOL,
)
def population(
    context: dg.AssetExecutionContext, config: PopulationConfig, workspace: Workspace
) -> dg.MaterializeResult[Any]:
    """Scores the population on every test scope; leaves predictions and forecast panels in its run folder."""
    layout, dataset = workspace.layout, context.partition_key
    rows, paired, shown, made = [], [], [], []
    with source_failures(retry=False):
        windows, run = WindowSet.read(layout.windows(dataset)), current(layout, dataset)
        forecaster, news = load(run, layout.news_pool), NewsPool.read(layout.news_pool)
        for scope in test_scopes(windows, config.every)[: config.scopes or None]:
            rivals = read_forecasts(forecast_file(layout, dataset), scope)
            found = predict(forecaster, scope, context.log)
            about = identity(
                forecaster,
                found,
                experiment=EXPERIMENT,
                method=COMPEVO,
                subset=scope.subset,
                commit=commit(),
            )
            rows.append(evaluate(found.values, scope.windows, about, train=windows.split("train")))
            paired += compare(scope, found.values, rivals)
            shown += panels(scope, found, rivals, news, config.shown)
            made.append((scope, {COMPEVO: found.values}))
        path = layout.results / f"compevo-{dataset}.csv"
        write_rows(path, pl.concat(rows))
        keep_config(layout.results, forecaster.config)
    write_forecasts(run / "predictions.parquet", made)
    write_panels(run / "panels.jsonl", shown)
    pl.DataFrame(paired).write_csv(layout.results / f"paired-{dataset}.csv")
    tests = show.table(pl.DataFrame(paired), rows=20)
    return dg.MaterializeResult(metadata=describe(pl.concat(rows), path) | {"paired_tests": tests})


def describe(rows: pl.DataFrame, path: Path) -> dict[str, Any]:
    """Pooled errors as a table and bars."""
    pooled = rows.filter(pl.col("entity") == POOLED)

    def draw(axes: Any) -> None:
        labels = [
            f"{method}\n{subset}"
            for method, subset in pooled.select("method", "subset").iter_rows()
        ]
        axes.barh(range(len(labels)), pooled["mae"].to_numpy())
        axes.set_yticks(range(len(labels)), labels, fontsize=6)
        axes.set_xlabel(f"MAE, {pooled['unit'][0]}", fontsize=8)

    return {
        "dagster/row_count": rows.height,
        "rows": show.path(path),
        "pooled": show.table(pooled.select(SHOWN_COLUMNS), rows=40),
        "synthetic": bool(rows["synthetic"].any()),
        "plot": show.plot(draw, "Mean absolute error", height=max(2.0, 0.35 * pooled.height)),
    }
