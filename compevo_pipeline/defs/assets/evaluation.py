"""``evaluation/baselines/<dataset>`` and ``evaluation/test/<dataset>``: on the same windows.

What belongs here: which methods are scored on which windows, and where rows are written. What does
not: scoring (``compevo_core.evaluation``). Baselines are fitted on the train split alone.
"""

from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.baselines.shared_fits import SharedFits
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.baseline_scores import score_baselines
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.evaluation.scopes import read_forecasts, select_test_scopes, write_forecasts
from compevo_core.evaluation.score_files import write_population_scores
from compevo_core.evaluation.scoring import (
    COMPEVO,
    compare_seeds,
    load_population,
    score_population,
)
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.defs import metadata
from compevo_pipeline.defs.asset_keys import (
    baselines_key,
    model_key,
    population_test_key,
    windows_key,
)
from compevo_pipeline.defs.definition import GPU_POOL, define_asset
from compevo_pipeline.defs.launch_config import LaunchConfig
from compevo_pipeline.storage.code_versions import code_version, fits_folder, read_commit
from compevo_pipeline.storage.runs import find_current_run
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import find_encoder, read_news

EXPERIMENT = "test"
"""Name of the experiment in the result rows."""

BASELINES_CODE = ("compevo_core/baselines", "compevo_core/evaluation")
POPULATION_CODE = (
    "compevo_core/agents",
    "compevo_core/evaluation",
    "compevo_core/forecast/forecaster.py",
    "compevo_core/lm",
    "compevo_core/data/quantiles.py",
)


class BaselineConfig(LaunchConfig):
    """How baselines are scored."""

    every: int = Field(default=1, ge=1)
    """score every n-th origin; the rows' subset says so where n is above 1"""
    seeds: int = Field(default=5, ge=1)
    """seeds of the methods that draw random numbers"""


class PopulationTestConfig(LaunchConfig):
    """How the population is scored."""

    every: int = Field(default=1, ge=1)
    """score every n-th origin; give evaluation/baselines the same"""
    scopes: int | None = Field(default=None, ge=1)
    """how many of the data set's test scopes to score, in order; left out: all"""
    shown: int = Field(default=4, ge=0)
    """forecasts drawn in the report for each set of windows"""


def build_baselines_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the scores of the baselines of one data set."""

    @define_asset(
        baselines_key(dataset),
        deps=[windows_key(dataset)],
        description=(
            "Persistence, weekly persistence, calendar ridge, boosted trees and published "
            f"forecasts on the test split of {dataset}."
        ),
        kinds={"scikitlearn", "csv"},
        version=code_version(*BASELINES_CODE),
        dataset=dataset,
        config=BaselineConfig,
    )
    def _baselines(
        context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Deployment]
    ) -> dg.MaterializeResult[Any]:
        """Score every baseline, fitted on the train split, and store its forecasts."""
        config = BaselineConfig.read(context)
        layout = workspace.layout

        windows = WindowSet.read(layout.windows(dataset))
        train = windows.split("train")
        scopes = select_test_scopes(windows, config.every)
        context.log.info(f"fitting on {len(train)} windows, seeds 0 to {config.seeds - 1}")

        scores = score_baselines(
            # Only baselines that draw random numbers are fitted under more than one seed.
            train,
            scopes,
            val=windows.split("val"),
            experiment=EXPERIMENT,
            seeds=config.seeds,
            commit=read_commit(),
            # Kept for the leakage check and for training, which ask for the same fits.
            fit=SharedFits(fits_folder(layout)),
        )

        # Stored by window: the population is compared with these very forecasts.
        write_forecasts(
            _forecast_file(layout, dataset), list(zip(scopes, scores.forecasts, strict=True))
        )
        path = layout.results / f"baselines-{dataset}.csv"
        write_rows(path, scores.rows)

        return dg.MaterializeResult(
            metadata={
                **metadata.describe_scores(scores.rows, path),
                "mode": workspace.data_mode.value,
            }
        )

    return _baselines


def build_population_test_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the scores of the population of one data set."""

    @define_asset(
        population_test_key(dataset),
        deps=[model_key(dataset), baselines_key(dataset)],
        description=(
            f"The population trained on {dataset} on its test split, by entity and pooled, with "
            "paired tests against every baseline."
        ),
        kinds={"pytorch", "csv"},
        version=code_version(*POPULATION_CODE),
        pool=GPU_POOL,
        dataset=dataset,
        config=PopulationTestConfig,
    )
    def _population(
        context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Deployment]
    ) -> dg.MaterializeResult[Any]:
        """Score the population; write forecasts and panels into its run folder."""
        config = PopulationTestConfig.read(context)
        layout = workspace.layout

        windows = WindowSet.read(layout.windows(dataset))
        scopes = select_test_scopes(windows, config.every)[: config.scopes]
        stored = _forecast_file(layout, dataset)

        run = find_current_run(layout, dataset)
        news = read_news(workspace, find_encoder(run), windows.views(), log=context.log)
        forecaster = load_population(run, news, fit=SharedFits(fits_folder(layout)))
        # Fails where a window has no stored forecast: paired tests need the same windows.
        baseline_forecasts = [read_forecasts(stored, scope) for scope in scopes]
        scores = score_population(
            forecaster,
            scopes,
            train=windows.split("train"),
            experiment=EXPERIMENT,
            commit=read_commit(),
            log=context.log,
            baseline_forecasts=baseline_forecasts,
            news=news,
            panels_per_scope=config.shown,
        )
        paired_tests = compare_seeds([scores], baseline_forecasts, COMPEVO)
        path = write_population_scores(
            scores,
            paired_tests,
            forecaster.config,
            layout.results,
            RunFolder(run),
            rows_name=f"compevo-{dataset}",
            paired_name=f"paired-{dataset}",
        )

        return dg.MaterializeResult(
            metadata={
                **metadata.describe_scores(scores.rows, path),
                "mode": workspace.data_mode.value,
                "paired_tests": metadata.render_table(paired_tests, rows=20),
                **_describe_regret(scores.regret),
            }
        )

    return _population


def _describe_regret(regret: pl.DataFrame) -> dict[str, Any]:
    """Return what online weights lost, by series; nothing for weights that stay."""
    if not regret.height:
        return {}
    sums = regret.group_by("subset", "entity", "rule", maintain_order=True).agg(
        pl.sum("loss", "best_expert", "best_mixture", "bound").round(0)
    )
    return {"regret": metadata.render_table(sums, rows=20)}


def _forecast_file(layout: Layout, dataset: str) -> Path:
    """Return the file of the baselines' forecasts, which the population is compared with."""
    return layout.forecasts / f"baselines-{dataset}.parquet"
