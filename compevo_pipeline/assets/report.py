"""``report/site``: one HTML page from issued forecasts, result rows and run folders.

What belongs here: when the page is written and how the UI shows it. What does not: what it holds
(``compevo_pipeline.site``).
"""

from typing import Any

import dagster as dg

from compevo_core.report.markdown import format_results
from compevo_pipeline.asset_keys import INFERENCE_2026, NEXT_DAY, REPORT, SCORED, score_keys
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import OWNERS, code_version
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.site import write_site

CODE = ("compevo_core/report", "compevo_pipeline/site.py")


@dg.asset(
    key=REPORT,
    deps=[
        *(key for dataset in DATASETS for key in score_keys(dataset)),
        INFERENCE_2026,
        NEXT_DAY,
        SCORED,
    ],
    group_name="report",
    description=(
        "The page: tomorrow's forecast, tables, losses, rewards, weights, logics, forecasts "
        "against truth, ablation, leakage check."
    ),
    kinds={"html", "matplotlib"},
    owners=OWNERS,
    code_version=code_version(*CODE),
)
def site(
    context: dg.AssetExecutionContext, workspace: Workspace, clock: dg.ResourceParam[Clock]
) -> dg.MaterializeResult[Any]:
    """Write the page of the run's mode."""
    with translate_errors(retry=False):
        page, inputs = write_site(workspace, clock())

    context.log.info(f"report written to {page}")
    address = workspace.settings.report_url
    return dg.MaterializeResult(
        metadata={
            # A browser opens no file from a page of the UI: a link needs an address.
            **({"page": dg.MetadataValue.url(address)} if address else {}),
            "path": metadata.link_path(page),
            "bytes": page.stat().st_size,
            "result_rows": inputs.rows.height,
            "results": dg.MetadataValue.md(format_results(inputs)),
        }
    )
