"""``ablation/variants``: the full method and the paper's five variants (paper 5.4, Table 3).

What belongs here: training every variant with equal settings, data and seed, and scoring each on
the same windows. What does not: what a variant changes (``compevo_core.experiments.ablation``).
"""

import gc
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.evaluation.scopes import select_test_scopes
from compevo_core.evaluation.scoring import load_population, score_population
from compevo_core.experiments.ablation import VARIANTS, configure_variant
from compevo_core.report.rows import ABLATION as EXPERIMENT
from compevo_pipeline.asset_keys import ABLATION, ALL_WINDOWS, NEWS_EMBEDDINGS
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import GPU_POOL, OWNERS, code_version
from compevo_pipeline.assets.training_config import TrainConfig, prepare_job
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.launchers.kubernetes import PodClient
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.partitions import datasets
from compevo_pipeline.provenance import read_commit
from compevo_pipeline.resources import Launchers, Workspace
from compevo_pipeline.storage.runs import make_run_name

CODE = (
    "compevo_core/agents",
    "compevo_core/data",
    "compevo_core/evaluation",
    "compevo_core/experiments",
    "compevo_core/lm",
    "compevo_core/training",
)


class AblationConfig(TrainConfig):
    """The budget every variant gets, and where it is scored."""

    variants: list[str] = Field(default=[], description="names of variants; empty: all six")
    every: int = Field(
        default=1,
        description="score every n-th origin; the rows' subset says so where n is above 1",
    )
    scopes: int = Field(
        default=1, description="how many of the data set's test scopes to score, in order; 0: all"
    )

    def select_variants(self) -> list[str]:
        """Return the names of the variants to train.

        Raises:
            ConfigError: a name that no variant has.
        """
        unknown = sorted(set(self.variants) - set(VARIANTS))
        if unknown:
            raise ConfigError(
                f"no variant {', '.join(unknown)}; known: {', '.join(VARIANTS)}: correct the run "
                "configuration"
            )

        return self.variants or list(VARIANTS)


@dg.asset(
    key=ABLATION,
    deps=[*ALL_WINDOWS, NEWS_EMBEDDINGS],
    partitions_def=datasets,
    group_name="ablation",
    description=(
        "The full method and the paper's five variants, one change each: one budget, one seed."
    ),
    kinds={"pytorch", "csv"},
    owners=OWNERS,
    code_version=code_version(*CODE),
    pool=GPU_POOL,
)
def variants(
    context: dg.AssetExecutionContext,
    config: AblationConfig,
    workspace: Workspace,
    launchers: dg.ResourceParam[Launchers],
    pod_client: dg.ResourceParam[PodClient],
) -> dg.MaterializeResult[Any]:
    """Train the variants one after the other in one process, then score each."""
    layout = workspace.layout
    dataset = context.partition_key

    with translate_errors(retry=False):
        windows = WindowSet.read(layout.windows(dataset))
        # One process trains all variants: the backbone is loaded and compiled once.
        jobs = _prepare_jobs(config, workspace, windows)
        launcher = launchers.get(config.launcher, config.processes, pod_client)
        launcher.launch(context, list(jobs.values()))

        # Scored only after all are trained: a variant that fails leaves no half table.
        scores = [
            _score_variant(context, config, workspace, windows, name, job)
            for name, job in jobs.items()
        ]
        rows = pl.concat(scores)
        path = layout.results / f"ablation-{dataset}.csv"
        write_rows(path, rows)

    base = config.resolve(workspace.preset)
    budget = {
        "rounds": base.run.rounds,
        "batch_size": base.run.batch_size,
        "agents": base.population.agents,
    }
    return dg.MaterializeResult(
        metadata={
            **metadata.describe_scores(rows, path),
            "budget": metadata.render_counts(budget),
        }
    )


def _prepare_jobs(
    config: AblationConfig, workspace: Workspace, windows: WindowSet
) -> dict[str, TrainJob]:
    """Return the training job of each variant by its name."""
    base = config.resolve(workspace.preset)
    dataset = windows.dataset

    jobs = {}
    for name in config.select_variants():
        changed = configure_variant(base, name)
        run = make_run_name(f"ablation-{dataset}-{name}", changed, windows.hash)
        jobs[name] = prepare_job(workspace, dataset, changed, run, resume=config.resume)
    return jobs


def _score_variant(
    context: dg.AssetExecutionContext,
    config: AblationConfig,
    workspace: Workspace,
    windows: WindowSet,
    name: str,
    job: TrainJob,
) -> pl.DataFrame:
    """Return the result rows of a trained variant."""
    layout = workspace.layout
    forecaster = load_population(job.folder.path, NewsPool.read(layout.news_pool))

    context.log.info(f"scoring {name}")
    scores = score_population(
        forecaster,
        # The first scope alone by default: the paper compares variants on one test set.
        select_test_scopes(windows, config.every)[: config.scopes or None],
        train=windows.split("train"),
        experiment=EXPERIMENT,
        commit=read_commit(),
        log=context.log,
        method=name,
    )

    del forecaster
    gc.collect()  # the next backbone is loaded into the memory of this one
    return scores.rows
