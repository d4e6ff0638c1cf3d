"""``ablation/variants``: the full method and the paper's five variants under one budget (paper 5.4, Table 3).

What belongs here: training every variant with equal settings, data and seeds, and scoring each on the same windows.
What does not: what a variant changes (``compevo_core.experiments.ablation``).
"""

import gc
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.result_rows import evaluate, write_rows
from compevo_core.evaluation.scopes import test_scopes
from compevo_core.evaluation.scoring import identity, load, predict
from compevo_core.experiments.ablation import VARIANTS, variant
from compevo_core.report.rows import ABLATION
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.assets.evaluation import describe
from compevo_pipeline.assets.news import embeddings
from compevo_pipeline.assets.training import GPU_POOL, TrainConfig, train_job
from compevo_pipeline.failures import source_failures
from compevo_pipeline.partitions import DATASETS, datasets
from compevo_pipeline.provenance import commit
from compevo_pipeline.resources import Launchers, Workspace
from compevo_pipeline.storage.runs import run_name


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

    def chosen(self) -> list[str]:
        """The variants to run.

        Raises:
            ConfigError: an unknown name.
        """
        unknown = sorted(set(self.variants) - set(VARIANTS))
        if unknown:
            known = ", ".join(VARIANTS)
            raise ConfigError(
                f"no variant {', '.join(unknown)}; known: {known}: correct the run config"
            )
        return self.variants or list(VARIANTS)


@dg.asset(
    key=["ablation", "variants"],
    deps=[*(dg.AssetKey(["windows", dataset]) for dataset in DATASETS), embeddings],
    partitions_def=datasets,
    group_name="ablation",
    description="The full method and the paper's five variants, one change each: one budget, one seed.",
    kinds={"pytorch", "csv"},
    owners=show.OWNERS,
    pool=GPU_POOL,
)
def variants(
    context: dg.AssetExecutionContext,
    config: AblationConfig,
    workspace: Workspace,
    launchers: dg.ResourceParam[Launchers],
) -> dg.MaterializeResult[Any]:
    """Trains the variants one after the other in one process, then scores them."""
    layout, dataset = workspace.layout, context.partition_key
    with source_failures(retry=False):
        windows = WindowSet.read(layout.windows(dataset))
        base = config.resolve(workspace.preset)
        jobs = {}
        for name in config.chosen():
            changed = variant(base, name)
            folder = run_name(f"ablation-{dataset}-{name}", changed, windows.hash)
            jobs[name] = train_job(workspace, dataset, changed, folder, resume=config.resume)
        launchers.get(config.launcher, config.processes).launch(context, list(jobs.values()))
        rows = [
            _score(context, config, workspace, windows, name, job.out) for name, job in jobs.items()
        ]
        path = layout.results / f"ablation-{dataset}.csv"
        write_rows(path, pl.concat(rows))
    budget = {
        "rounds": base.run.rounds,
        "batch_windows": base.run.batch_windows,
        "agents": base.population.agents,
    }
    return dg.MaterializeResult(
        metadata=describe(pl.concat(rows), path) | {"budget": show.counts(budget)}
    )


def _score(
    context: dg.AssetExecutionContext,
    config: AblationConfig,
    workspace: Workspace,
    windows: WindowSet,
    name: str,
    run: str,
) -> pl.DataFrame:
    forecaster = load(workspace.layout.root / "runs" / run, workspace.layout.news_pool)
    parts = []
    for scope in test_scopes(windows, config.every)[: config.scopes or None]:
        context.log.info(f"scoring {name}")
        found = predict(forecaster, scope, context.log)
        about = identity(
            forecaster,
            found,
            experiment=ABLATION,
            method=name,
            subset=scope.subset,
            commit=commit(),
        )
        parts.append(evaluate(found.values, scope.windows, about, train=windows.split("train")))
    del forecaster
    gc.collect()  # the next backbone is loaded into the memory of this one
    return pl.concat(parts)
