"""``evaluation/lud/<dataset>``: how much a population's logics changed, as its judges see it.

What belongs here: asking the deployment's judges about the run in use and showing the table. What
does not: the Logic Update Degree itself (``compevo_core.lud``), who the judges are (``judges``).
Verdicts are stored in the run folder, so materializing again asks nobody.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.lm.encoder import load_encoder
from compevo_core.lud.measure import DEFAULT_PAIRS, measure_lud
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.asset_keys import lud_key, model_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import GPU_POOL, OWNERS, code_version
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.judges.judges import build_judges
from compevo_pipeline.launch_config import LaunchConfig
from compevo_pipeline.resources import JudgeEndpoint, Workspace
from compevo_pipeline.storage.runs import find_current_run

CODE = ("compevo_core/lud", "compevo_core/lm/encoder.py")


class LudConfig(LaunchConfig):
    """How the updates of a run are judged."""

    pairs: int = Field(default=DEFAULT_PAIRS, ge=1)
    """updates of an agent that a judge rates, evenly spaced"""
    encoder: str | None = None
    """encoder of the logics; left out: the run's own"""


def build_lud_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the Logic Update Degree of the population of one data set."""

    @dg.asset(
        key=lud_key(dataset),
        deps=[model_key(dataset)],
        group_name="evaluation",
        description=(
            f"Logic Update Degree of every agent of {dataset}: embedding distance of its updates, "
            "and their ratings by the backbone, by a rule for logics with slots and, where one is "
            "set, by an endpoint."
        ),
        kinds={"pytorch", "json"},
        owners=OWNERS,
        code_version=code_version(*CODE),
        pool=GPU_POOL,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
        config_schema=LudConfig.schema_of_launch(),
    )
    def _lud(
        context: dg.AssetExecutionContext, workspace: Workspace, judge_endpoint: JudgeEndpoint
    ) -> dg.MaterializeResult[Any]:
        return _judge(context, dataset, workspace, judge_endpoint)

    return _lud


def _judge(
    context: dg.AssetExecutionContext,
    dataset: str,
    workspace: Workspace,
    judge_endpoint: JudgeEndpoint,
) -> dg.MaterializeResult[Any]:
    """Judge the run in use; write ``lud.json`` and ``lud.csv`` into its folder."""
    from compevo_core.training.artifact import read_config  # torch, only in the step

    config = LudConfig.read(context)
    # The endpoint is a server of others: a transient failure of it is worth another try.
    with translate_errors(attempt=context.retry_number):
        run = find_current_run(workspace.layout, dataset)
        trained = read_config(run)

        judges = build_judges(trained, judge_endpoint.create_judge())
        context.log.info(f"{run.name}: judged by {', '.join(judge.name for judge in judges)}")

        encoder = load_encoder(config.encoder or trained.news.encoder)
        summary = measure_lud(run, judges, encoder, pairs=config.pairs)

    return dg.MaterializeResult(
        metadata={
            **_describe(summary),
            "summary": metadata.link_path(RunFolder(run).lud_summary_file),
        }
    )


def _describe(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of updates and verdicts, and what was asked of the judges."""
    judges = summary["judges"]
    updates = pl.DataFrame(summary["agents"])
    scores = pl.DataFrame(
        [{"judge": judge["name"]} | row for judge in judges for row in judge["agents"]]
    )
    described = {
        **metadata.describe_table(scores),
        "encoder": summary["encoder"],
        "prompt_hash": summary["prompt_hash"],
        "updates": metadata.render_table(updates, rows=updates.height),
        "verdicts": metadata.render_table(scores, rows=scores.height),
        "asked": sum(judge["asked"] for judge in judges),
        "failures": sum(judge["failures"] for judge in judges),
    }

    # One judge alone agrees with nobody.
    agreement = pl.DataFrame(summary["agreement"])
    if agreement.height:
        described["agreement"] = metadata.render_table(agreement)
    return described
