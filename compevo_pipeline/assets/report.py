"""``report/site``: one static HTML page from result rows and run folders.

What belongs here: gathering what is on disk and handing it to :mod:`compevo_core.report`. What does not: any number.
"""

from typing import Any

import dagster as dg

from compevo_core.report.inputs import read_inputs
from compevo_core.report.markdown import headline_markdown
from compevo_core.report.page import write_report
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.failures import source_failures
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.storage.runs import current, has_run


@dg.asset(
    key=["report", "site"],
    deps=[
        dg.AssetKey(["evaluation", "baselines"]),
        dg.AssetKey(["evaluation", "test"]),
        dg.AssetKey(["evaluation", "lud"]),
        dg.AssetKey(["ablation", "variants"]),
        dg.AssetKey(["leakage", "inference_2026"]),
    ],
    group_name="report",
    description="The page: tables, losses, rewards, weights, logics, forecasts against truth, ablation, leakage check.",
    kinds={"html", "matplotlib"},
    owners=show.OWNERS,
)
def site(
    context: dg.AssetExecutionContext, workspace: Workspace, clock: dg.ResourceParam[Clock]
) -> dg.MaterializeResult[Any]:
    """Writes the page of the run's mode."""
    layout = workspace.layout
    with source_failures(retry=False):
        runs = [current(layout, dataset) for dataset in DATASETS if has_run(layout, dataset)]
        inputs = read_inputs(
            layout.results, runs, mode=workspace.data_mode.value, generated_at=clock()
        )
        page = write_report(inputs, layout.report)
    context.log.info(f"report written to {page}")
    return dg.MaterializeResult(
        metadata={
            "page": dg.MetadataValue.url(page.as_uri()),
            "path": show.path(page),
            "bytes": page.stat().st_size,
            "result_rows": inputs.rows.height,
            "results": dg.MetadataValue.md(headline_markdown(inputs)),
        }
    )
