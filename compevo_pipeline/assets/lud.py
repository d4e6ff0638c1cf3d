"""``evaluation/lud``: how much the logics of a trained population really changed, in the words of its judges.

What belongs here: asking the deployment's judges about the run in use and showing the table. What does not: LUD itself
(``compevo_core.lud.measure``), who the judges are (``judges``). Verdicts are kept in the run folder: materializing again
asks nothing.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.lm.encoder import load_encoder
from compevo_core.lud.measure import DEFAULT_PAIRS, SUMMARY_FILE, measure_lud
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.assets.training import GPU_POOL, compevo
from compevo_pipeline.failures import source_failures
from compevo_pipeline.judges.judges import judges_of
from compevo_pipeline.partitions import datasets
from compevo_pipeline.resources import Workspace
from compevo_pipeline.storage.runs import current


class LudConfig(dg.Config):
    """How the updates of a run are judged."""

    pairs: int = Field(
        default=DEFAULT_PAIRS,
        ge=1,
        description="updates of an agent that a judge sees, evenly spaced",
    )
    encoder: str = Field(default="", description="encoder of the logics; empty: the run's own")


@dg.asset(
    key=["evaluation", "lud"],
    deps=[compevo],
    partitions_def=datasets,
    group_name="evaluation",
    description="Logic Update Degree of every agent: embedding updates, judged by the backbone and by an endpoint.",
    kinds={"pytorch", "json"},
    owners=show.OWNERS,
    pool=GPU_POOL,
)
def lud(
    context: dg.AssetExecutionContext, config: LudConfig, workspace: Workspace
) -> dg.MaterializeResult[Any]:
    """Judges the run in use; leaves ``lud.json`` and ``lud.csv`` in its folder."""
    from compevo_core.training.artifact import read_config  # torch, only in the step

    with source_failures(attempt=context.retry_number):
        run = current(workspace.layout, context.partition_key)
        trained = read_config(run)
        judges = judges_of(workspace.settings.judge, trained.backbone)
        context.log.info(f"{run.name}: judged by {', '.join(judge.name for judge in judges)}")
        encoder = load_encoder(config.encoder or trained.news.encoder)
        found = measure_lud(run, judges, encoder, pairs=config.pairs)
    return dg.MaterializeResult(
        metadata=_describe(found) | {"summary": show.path(run / SUMMARY_FILE)}
    )


def _describe(found: Mapping[str, Any]) -> dict[str, Any]:
    updates = pl.DataFrame(found["agents"])
    scores = [
        {"judge": judge["name"]} | row for judge in found["judges"] for row in judge["agents"]
    ]
    agreement = pl.DataFrame(found["agreement"])
    return {
        "encoder": found["encoder"],
        "prompt_hash": found["prompt_hash"],
        "updates": show.table(updates, rows=updates.height),
        "verdicts": show.table(pl.DataFrame(scores), rows=len(scores)),
        "asked": sum(judge["asked"] for judge in found["judges"]),
        "failures": sum(judge["failures"] for judge in found["judges"]),
        **({"agreement": show.table(agreement)} if agreement.height else {}),
    }
