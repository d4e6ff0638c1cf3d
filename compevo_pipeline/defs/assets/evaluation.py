"""``evaluation/baselines`` and ``evaluation/test``: scores.

What belongs here: which methods are scored on which windows, where rows are written. What does not:
scoring (``compevo_core.evaluation``). Baselines are fitted only on the train split.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.evaluation import scoring
from compevo_core.evaluation.baseline_scores import BaselineScores, score_baselines
from compevo_core.evaluation.result_rows import write_rows, write_tables
from compevo_core.evaluation.scopes import (
    Scope,
    read_forecasts,
    select_test_scopes,
    write_forecasts,
)
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.runtime.files import write_atomically
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs import definition, metadata
from compevo_pipeline.defs.definition import Context, Result, WorkspaceParam
from compevo_pipeline.storage.code_versions import read_commit
from compevo_pipeline.storage.runs import find_current_run
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import find_encoder, list_views_to_test, read_news
from compevo_pipeline.work.stored_windows import read_windows

EXPERIMENT = "test"  # name of the experiment in the result rows
BASELINES_CODE = ("compevo_core/baselines", "compevo_core/evaluation")
POPULATION_CODE = (
    "compevo_core/agents",
    "compevo_core/evaluation",
    "compevo_core/forecast/forecaster.py",
    "compevo_core/lm",
    "compevo_core/lora",
    "compevo_core/data/quantiles.py",
)
AUDIT_CODE = ("compevo_core/paper/news_audit.py", "compevo_core/paper/changes.py")

NewsAudit = Callable[..., None]  # what news adds to forecasts, as ``paper.assets.audit_news``


class BaselineConfig(definition.LaunchConfig):
    """How many origins and seeds are scored."""

    every: int = Field(default=1, ge=1)
    """score every n-th origin; the rows' subset says so where n is above 1"""
    seeds: int = Field(default=5, ge=1)
    """seeds of the baselines that draw random numbers"""


class PopulationTestConfig(definition.LaunchConfig):
    """How the population is scored."""

    every: int = Field(default=1, ge=1)
    """score every n-th origin; give evaluation/baselines the same"""
    scopes: int | None = Field(default=None, ge=1)
    """how many of the data set's test scopes to score, in order; left out: all"""
    shown: int = Field(default=4, ge=0)
    """forecasts drawn in the report for each set of windows"""
    audits_news: bool = False
    """also forecast validation and test without news, with other days' and irrelevant news"""


@definition.define_by_dataset(
    keys.baselines_key,
    deps=[keys.windows_key],
    description=(
        "Persistence, weekly persistence, calendar ridge, boosted trees and published forecasts "
        "on the test split of {dataset}."
    ),
    kinds={"scikitlearn", "csv"},
    code=BASELINES_CODE,
    config=BaselineConfig,
)
def build_baselines_asset(dataset: str, context: Context, workspace: WorkspaceParam) -> Result:
    """Score every baseline, fitted on the train split, and store its forecasts."""
    config = BaselineConfig.read(context)
    layout = workspace.layout

    windows = read_windows(layout, dataset)
    scopes = select_test_scopes(windows, config.every)
    context.log.info(
        f"fitting on {len(windows.split('train'))} windows, seeds 0 to {config.seeds - 1}"
    )
    scores = fit_and_score(workspace, windows, scopes, EXPERIMENT, config.seeds)

    # Stored by window: the population is compared with these very forecasts.
    write_forecasts(
        _forecast_file(layout, dataset), list(zip(scopes, scores.forecasts, strict=True))
    )
    path = layout.results / f"baselines-{dataset}.csv"
    write_rows(path, scores.rows)
    return dg.MaterializeResult(
        metadata={**metadata.describe_scores(scores.rows, path), "mode": workspace.data_mode.value}
    )


@definition.define_by_dataset(
    keys.population_test_key,
    deps=[keys.model_key, keys.baselines_key],
    description=(
        "The model trained on {dataset} on its test split, by entity and pooled, with paired "
        "tests against every baseline."
    ),
    kinds={"pytorch", "csv"},
    code=(*POPULATION_CODE, *AUDIT_CODE),
    pool=definition.GPU_POOL,
    config=PopulationTestConfig,
)
def build_population_test_asset(
    dataset: str,
    context: Context,
    workspace: WorkspaceParam,
    audit_news: dg.ResourceParam[NewsAudit],
) -> Result:
    """Score the population; write forecasts and panels into its run folder."""
    config = PopulationTestConfig.read(context)
    layout = workspace.layout

    windows = read_windows(layout, dataset)
    scopes = select_test_scopes(windows, config.every)[: config.scopes]
    run = find_current_run(layout, dataset)
    views = list_views_to_test(windows)
    forecaster, news = load_current(context, workspace, run, views)
    # Fails where a window has no stored forecast: paired tests need the same windows.
    stored = _forecast_file(layout, dataset)
    baseline_forecasts = [read_forecasts(stored, scope) for scope in scopes]
    method = scoring.name_rows(forecaster)
    scores = scoring.score_population(
        forecaster,
        scopes,
        train=windows.split("train"),
        experiment=EXPERIMENT,
        commit=read_commit(),
        log=context.log,
        method=method,
        baseline_forecasts=baseline_forecasts,
        news=news,
        panels_per_scope=config.shown,
    )
    paired_tests = scoring.compare_seeds([scores], baseline_forecasts, method)
    # Rows first: they took the time, and a report without panels is still right.
    rows_name, configs = f"compevo-{dataset}", [forecaster.config]
    path = write_tables(
        scores.rows, paired_tests, configs, layout.results, rows_name, f"paired-{dataset}"
    )
    scoring.write_run_forecasts(scores, RunFolder(run))

    if config.audits_news and news is not None:
        audit_news(windows, news, forecaster, layout, log=context.log, every=config.every)

    shown = {
        **metadata.describe_scores(scores.rows, path),
        "mode": workspace.data_mode.value,
        # As many columns as a page shows.
        "paired_tests": metadata.render_table(
            paired_tests.select(
                "subset", "method_b", "n", "mean_difference", "interval_low", "interval_high"
            ),
            rows=20,
        ),
    }
    # What online weights lost, by series; nothing for weights that stay.
    if scores.regret.height:
        regret_file = layout.results / scoring.REGRET_FOLDER / f"{rows_name}.csv"
        write_atomically(regret_file, scores.regret.write_csv)
        sums = scores.regret.group_by("subset", "entity", "rule", maintain_order=True).agg(
            pl.sum("loss", "best_expert", "best_mixture", "bound").round(0)
        )
        shown["regret"] = metadata.render_table(sums, rows=20)
    return dg.MaterializeResult(metadata=shown)


def fit_and_score(
    workspace: Deployment, windows: WindowSet, scopes: Sequence[Scope], experiment: str, seeds: int
) -> BaselineScores:
    """Score all baselines, fitted on the train split; equal fits are read back."""
    return score_baselines(
        # Only baselines that draw random numbers are fitted under more than one seed.
        windows.split("train"),
        scopes,
        val=windows.split("val"),
        experiment=experiment,
        seeds=seeds,
        commit=read_commit(),
        # Every asset and every training that asks for the same fits reads them back.
        fit=workspace.shared_fits(),
    )


def load_current(
    context: Context, workspace: Deployment, run: Path, views: Iterable[WindowView]
) -> tuple[CompEvoForecaster, NewsPool | None]:
    """Return the model of a run and the news that it may read for some views."""
    news = read_news(workspace, find_encoder(run), views, log=context.log)
    return CompEvoForecaster.load(run, news, fit=workspace.shared_fits()), news


def _forecast_file(layout: Layout, dataset: str) -> Path:
    """Return the file of the baselines' forecasts, which the population is compared with."""
    return layout.forecasts / f"baselines-{dataset}.parquet"
