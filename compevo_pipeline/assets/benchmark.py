"""``benchmark/methods/<dataset>``: one partition a method and seed.

What belongs here: which partitions there are, and running one of them. What does not: the runs and
their files (``benchmark_runs``), methods and budgets (``compevo_core.benchmark``).

A launch of many partitions is a run each: a cluster works on them side by side, and one that broke
is launched again alone. All of them write into one file of rows, under a lock.
"""

from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field

from compevo_core.baselines.shared_fits import SharedFits
from compevo_core.baselines.zero_shot import PREFIX
from compevo_core.benchmark.budgets import BUDGETS, STANDARD, find_budget
from compevo_core.benchmark.table import METHODS, find_method
from compevo_core.errors import ConfigError
from compevo_pipeline.asset_keys import NEWS_EMBEDDINGS, benchmark_key, windows_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import GPU_POOL, OWNERS, code_version, fits_folder
from compevo_pipeline.benchmark_runs import BenchmarkData
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.launch_config import LaunchConfig
from compevo_pipeline.resources import Workspace

CODE = (
    "compevo_core/agents",
    "compevo_core/baselines",
    "compevo_core/benchmark",
    "compevo_core/evaluation",
    "compevo_core/lm",
    "compevo_core/mechanism",
    "compevo_core/networks",
    "compevo_core/news_aware",
    "compevo_core/training",
)

ZERO_SHOT = "zero-shot"
_SEED = "-seed"

benchmark_runs = dg.StaticPartitionsDefinition(
    [
        *(
            f"{name}{_SEED}{seed}"
            for name, method in METHODS.items()
            for seed in range(method.seeds)
        ),
        f"{ZERO_SHOT}{_SEED}0",
    ]
)
"""A method and a seed each; the pretrained model of ``zero-shot`` is named by the launch."""

# The launchpad offers the names; to a type checker they are texts.
if TYPE_CHECKING:
    BudgetName = str
else:
    BudgetName = Literal[tuple(BUDGETS)]


class BenchmarkConfig(LaunchConfig):
    """What a fit may spend, and where it is scored."""

    budget: BudgetName = STANDARD.name
    """what a fit may spend; rows name it"""
    every: int = Field(default=1, ge=1)
    """score every n-th origin; the rows' subset says so where n is above 1"""
    scopes: int | None = Field(default=None, ge=1)
    """how many of the data set's test scopes to score, in order; left out: all"""
    zero_shot_model: str | None = None
    """folder or hub id of a pretrained model of time series, for the partition zero-shot"""


def build_benchmark_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the benchmark of one data set."""

    @dg.asset(
        key=benchmark_key(dataset),
        deps=[windows_key(dataset), NEWS_EMBEDDINGS],
        partitions_def=benchmark_runs,
        group_name="benchmark",
        description=(
            f"Every method of the comparison on the test split of {dataset}, one method and seed a "
            "partition, under one budget."
        ),
        kinds={"pytorch", "csv"},
        owners=OWNERS,
        code_version=code_version(*CODE),
        pool=GPU_POOL,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
        config_schema=BenchmarkConfig.schema_of_launch(),
    )
    def _methods(
        context: dg.AssetExecutionContext, workspace: Workspace
    ) -> dg.MaterializeResult[Any]:
        return _run_partition(context, dataset, workspace)

    return _methods


def _run_partition(
    context: dg.AssetExecutionContext, dataset: str, workspace: Workspace
) -> dg.MaterializeResult[Any]:
    """Fit and score one method with one seed."""
    config = BenchmarkConfig.read(context)
    name, _, seed = context.partition_key.rpartition(_SEED)

    with translate_errors(retry=False):
        method = find_method(_name_method(name, config))
        data = BenchmarkData.read(
            workspace,
            dataset,
            every=config.every,
            scopes=config.scopes,
            fit=SharedFits(fits_folder(workspace.layout)),
        )
        if not data.can_run(method):
            context.log.info(f"{method.name} cannot forecast these windows: it has no rows")
            return dg.MaterializeResult(metadata={"dagster/row_count": 0})

        inputs = data.prepare(workspace, method, find_budget(config.budget))
        rows = data.run(method, inputs, int(seed))

    return dg.MaterializeResult(metadata=metadata.describe_scores(rows, data.rows))


def _name_method(name: str, config: BenchmarkConfig) -> str:
    if name != ZERO_SHOT:
        return name
    if config.zero_shot_model is None:
        raise ConfigError(
            "the partition zero-shot needs the folder or hub id of a pretrained model of time "
            "series: give zero_shot_model in the launch"
        )
    return f"{PREFIX}{config.zero_shot_model}"
