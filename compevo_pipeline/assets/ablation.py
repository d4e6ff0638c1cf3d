"""``ablation/variants/<dataset>``: the full method, five variants (5.4, Table 3) and controls.

What belongs here: training every variant with equal settings, data and seeds, scoring each on the
same windows and pairing it with the full method. What does not: what a variant or control changes
(``compevo_core.experiments``).
"""

import gc
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.config import RunConfig
from compevo_core.data.files import write_atomically
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA, compare_with_reference
from compevo_core.evaluation.configs import write_config
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.evaluation.scopes import select_test_scopes
from compevo_core.evaluation.scoring import PopulationScores, load_population, score_population
from compevo_core.evaluation.seeds import collect_seeds
from compevo_core.experiments.ablation import FULL_METHOD, VARIANTS
from compevo_core.experiments.controls import (
    EXPERIMENTS,
    changes_nothing,
    configure_experiment,
    prepare_windows,
)
from compevo_core.report.rows import ABLATION as EXPERIMENT
from compevo_pipeline.asset_keys import NEWS_EMBEDDINGS, ablation_key, windows_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import GPU_POOL, OWNERS, code_version
from compevo_pipeline.assets.training_config import TrainConfig, prepare_job
from compevo_pipeline.embedded_news import write_news
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.launchers.kubernetes import PodClient
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.provenance import read_commit
from compevo_pipeline.resources import Launchers, Workspace
from compevo_pipeline.settings import Layout
from compevo_pipeline.storage.runs import make_run_name

CODE = (
    "compevo_core/agents",
    "compevo_core/data",
    "compevo_core/evaluation",
    "compevo_core/experiments",
    "compevo_core/lm",
    "compevo_core/training",
)


class Trial(NamedTuple):
    """One training of a variant or control, and the windows of both training and test."""

    name: str
    job: TrainJob
    windows: WindowSet


# The launchpad offers the names and a launch with any other is refused; to a type checker they are
# texts.
if TYPE_CHECKING:
    Variant = str
else:
    Variant = Literal[tuple(EXPERIMENTS)]


class AblationConfig(TrainConfig):
    """The budget every variant gets, and where it is scored."""

    variants: list[Variant] | None = Field(default=None, min_length=1)
    """ablation variants and controls to train; left out: the paper's six variants"""
    seeds: list[int] | None = Field(default=None, min_length=1)
    """seeds that every variant is trained under; left out: run.seed alone"""
    every: int = Field(default=1, ge=1)
    """score every n-th origin; the rows' subset says so where n is above 1"""
    scopes: int | None = Field(default=1, ge=1)
    """how many of the data set's test scopes to score, in order; null: all"""

    def select_variants(self) -> list[str]:
        """Return the names of the variants and controls to train."""
        return list(VARIANTS) if self.variants is None else list(self.variants)

    def select_seeds(self, base: RunConfig) -> list[int]:
        """Return the seeds to train under, each once; ``base`` is what this run resolves to."""
        return [base.run.seed] if self.seeds is None else list(dict.fromkeys(self.seeds))


def build_ablation_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the ablation of one data set."""

    @dg.asset(
        key=ablation_key(dataset),
        deps=[windows_key(dataset), NEWS_EMBEDDINGS],
        group_name="ablation",
        description=(
            f"The full method on {dataset}, the paper's five variants and controls on demand, one "
            "change each: one budget, the same seeds, each paired with the full method by window."
        ),
        kinds={"pytorch", "csv"},
        owners=OWNERS,
        code_version=code_version(*CODE),
        pool=GPU_POOL,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
        config_schema=AblationConfig.schema_of_launch(),
    )
    def _variants(
        context: dg.AssetExecutionContext,
        workspace: Workspace,
        launchers: dg.ResourceParam[Launchers],
        pod_client: dg.ResourceParam[PodClient],
    ) -> dg.MaterializeResult[Any]:
        return _ablate(context, dataset, workspace, launchers, pod_client)

    return _variants


def _ablate(
    context: dg.AssetExecutionContext,
    dataset: str,
    workspace: Workspace,
    launchers: Launchers,
    pod_client: PodClient,
) -> dg.MaterializeResult[Any]:
    """Train the variants one after the other in one process, then score each and pair them."""
    config = AblationConfig.read(context)
    layout = workspace.layout

    with translate_errors(retry=False):
        windows = WindowSet.read(layout.windows(dataset))
        # One process trains all variants: windows are read and priors are fitted once, and so is a
        # supervised stage that several have in common.
        trials = _prepare_trials(context, config, workspace, windows)
        stages = _stages_folder(layout, dataset)
        if not config.resume:
            shutil.rmtree(stages, ignore_errors=True)
        launcher = launchers.get(config.launcher, config.processes, pod_client)
        launcher.launch(context, [trial.job for trial in trials])
        shutil.rmtree(stages, ignore_errors=True)

        # Scored only after all are trained: a variant that fails leaves no half table.
        news = NewsPool.read(trials[0].job.news)
        scores = [_score_trial(context, config, news, trial) for trial in trials]
        rows = pl.concat([scored.rows for scored in scores])
        path = layout.results / f"ablation-{dataset}.csv"
        write_rows(path, rows)
        for trial in trials:
            write_config(layout.results, RunConfig.from_mapping(trial.job.config))

        # Written without any pair too: those of an earlier run would stand below other rows.
        paired = _pair_with_full_method(scores)
        write_atomically(layout.results / f"paired-ablation-{dataset}.csv", paired.write_csv)

    base = config.resolve(workspace.preset_for(dataset))
    budget = {
        "seeds": len(config.select_seeds(base)),
        "rounds": base.run.rounds,
        "batch_size": base.run.batch_size,
        "agents": base.population.agents,
    }
    return dg.MaterializeResult(
        metadata={
            **metadata.describe_scores(rows, path),
            "paired_tests": metadata.render_table(paired, rows=20),
            "budget": metadata.render_counts(budget),
        }
    )


def _prepare_trials(
    context: dg.AssetExecutionContext,
    config: AblationConfig,
    workspace: Workspace,
    windows: WindowSet,
) -> list[Trial]:
    """Return what to train and score under every seed, without what would repeat the full method.

    Raises:
        ConfigError: nothing is left.
    """
    layout = workspace.layout
    dataset = windows.dataset
    base = config.resolve(workspace.preset_for(dataset))
    # Windows with swapped news name the articles of the others.
    news = write_news(workspace, base.news.encoder, windows, log=context.log)

    trials = []
    for name in config.select_variants():
        if changes_nothing(base, name):
            context.log.warning(f"{name} left out: with these settings it is the full method")
            continue

        prepared = prepare_windows(windows, name)
        folder = layout.windows(dataset)
        if prepared is not windows:
            folder = layout.windows(f"{dataset}-{name}")
            prepared.write(folder)

        for seed in config.select_seeds(base):
            changed = configure_experiment(base.with_overrides({"run.seed": seed}), name)
            # The name holds the hash of the configuration, which differs by seed.
            run = make_run_name(f"ablation-{dataset}-{name}", changed, prepared)
            job = prepare_job(workspace, folder, news, changed, run, config)
            # A variant that differs after the supervised stage alone goes on from its end.
            job = replace(job, stages=str(_stages_folder(layout, dataset)))
            trials.append(Trial(name, job, prepared))

    if not trials:
        raise ConfigError(
            "nothing is left to train: every variant named is the full method under these "
            "settings; name others"
        )
    return trials


def _stages_folder(layout: Layout, dataset: str) -> Path:
    """Return where supervised stages are kept until all variants are trained: one a code version.

    A launch that was interrupted goes on with them.
    """
    return layout.stages / f"{dataset}-{code_version(*CODE)}"


def _score_trial(
    context: dg.AssetExecutionContext, config: AblationConfig, news: NewsPool, trial: Trial
) -> PopulationScores:
    """Return the scores of a trained variant under one seed."""
    context.log.info(f"scoring {trial.name}, seed {trial.job.config['run']['seed']}")
    forecaster = load_population(trial.job.folder.path, news)
    scores = score_population(
        forecaster,
        # The first scope alone by default: the paper compares variants on one test set.
        select_test_scopes(trial.windows, config.every)[: config.scopes],
        train=trial.windows.split("train"),
        experiment=EXPERIMENT,
        commit=read_commit(),
        log=context.log,
        method=trial.name,
        parts=False,
    )

    del forecaster
    gc.collect()  # the next backbone is loaded into the memory of this one
    return scores


def _pair_with_full_method(scores: Sequence[PopulationScores]) -> pl.DataFrame:
    """Return the paired tests of every variant with the full method, in each scope."""
    # Windows with swapped news have the ids and truths of the others.
    tests = [
        test
        for scope, forecasts in collect_seeds(scores)
        for test in compare_with_reference(scope, forecasts, FULL_METHOD)
    ]
    return pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")
