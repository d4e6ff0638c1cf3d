"""``report/site``: one HTML page from issued forecasts, result rows and run folders.

What belongs here: when the page is written and how the UI shows it. What does not: what it holds
(``compevo_pipeline.site``).
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from compevo_core.report.markdown import format_results
from compevo_pipeline.asset_keys import INFERENCE_2026, REPORT, score_keys
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import OWNERS, code_version
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.site import write_site

CODE = ("compevo_core/report", "compevo_pipeline/site.py")


def build_site_asset(shown: Sequence[dg.AssetKey] = ()) -> dg.AssetsDefinition:
    """Return the asset that writes the page of the run's mode.

    Args:
        shown: what it waits for beside the scores of the built-in data sets.
    """

    @dg.asset(
        key=REPORT,
        deps=[
            *(key for dataset in DATASETS for key in score_keys(dataset)),
            INFERENCE_2026,
            *shown,
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
    def _site(
        context: dg.AssetExecutionContext, workspace: Workspace, clock: dg.ResourceParam[Clock]
    ) -> dg.MaterializeResult[Any]:
        with translate_errors(retry=False):
            page, inputs = write_site(workspace, clock())

        context.log.info(f"report written to {page}")
        address = workspace.settings.report_url
        return dg.MaterializeResult(
            metadata={
                # A browser opens no file from a page of the UI: a link needs an address.
                **({"page": dg.MetadataValue.url(address)} if address else {}),
                "mode": workspace.data_mode.value,
                "path": metadata.link_path(page),
                "bytes": page.stat().st_size,
                "result_rows": inputs.rows.height,
                "results": dg.MetadataValue.md(format_results(inputs)),
            }
        )

    return _site
