"""``report/site``: one static HTML page from result rows and run folders.

What belongs here: gathering what is on disk and handing it to :mod:`compevo_core.report`. What does
not: any number.
"""

from typing import Any

import dagster as dg

from compevo_core.report.forecast_days import read_days
from compevo_core.report.inputs import read_inputs
from compevo_core.report.markdown import format_results
from compevo_core.report.page import write_report
from compevo_pipeline.asset_keys import INFERENCE_2026, REPORT, score_keys
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import OWNERS, code_version
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.storage.runs import find_current_run, has_current_run

CODE = ("compevo_core/report",)


@dg.asset(
    key=REPORT,
    deps=[*(key for dataset in DATASETS for key in score_keys(dataset)), INFERENCE_2026],
    group_name="report",
    description=(
        "The page: tables, losses, rewards, weights, logics, forecasts against truth, ablation, "
        "leakage check."
    ),
    kinds={"html", "matplotlib"},
    owners=OWNERS,
    code_version=code_version(*CODE),
)
def site(
    context: dg.AssetExecutionContext, workspace: Workspace, clock: dg.ResourceParam[Clock]
) -> dg.MaterializeResult[Any]:
    """Write the page of the run's mode."""
    layout = workspace.layout

    with translate_errors(retry=False):
        # Every data set that has a finished run, not only the one of this run's partition.
        runs = [
            find_current_run(layout, dataset)
            for dataset in DATASETS
            if has_current_run(layout, dataset)
        ]
        inputs = read_inputs(
            layout.results,
            runs,
            mode=workspace.data_mode.value,
            generated_at=clock(),
            days=read_days(layout.forecasts / "issued", layout.root / "windows"),
        )
        page = write_report(inputs, layout.report)

    context.log.info(f"report written to {page}")
    return dg.MaterializeResult(
        metadata={
            # A file address: the UI links it, and a browser on this machine opens it.
            "page": dg.MetadataValue.url(page.as_uri()),
            "path": metadata.link_path(page),
            "bytes": page.stat().st_size,
            "result_rows": inputs.rows.height,
            "results": dg.MetadataValue.md(format_results(inputs)),
        }
    )
