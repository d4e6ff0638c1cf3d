"""``report/site`` and ``report/cleaned``: the page, and what a run removes at its end.

What belongs here: when the page is written, how the UI shows it, and what was removed. What does
not: what the page holds (``work.results``), what may be removed (``storage.runs``).
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
import polars as pl

from compevo_core.report.markdown import format_results
from compevo_pipeline.defs import metadata
from compevo_pipeline.defs.asset_keys import CLEANED, DATASETS, INFERENCE_2026, REPORT, score_keys
from compevo_pipeline.defs.definition import define_asset
from compevo_pipeline.sources.common.base import Clock
from compevo_pipeline.storage.code_versions import code_version
from compevo_pipeline.storage.runs import clean
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.results import write_site

CODE = ("compevo_core/report", "compevo_pipeline/work/results.py")


def build_site_asset(shown: Sequence[dg.AssetKey] = ()) -> dg.AssetsDefinition:
    """Return the asset that writes the page of the run's mode.

    Args:
        shown: what it waits for beside the scores of the built-in data sets.
    """

    @define_asset(
        REPORT,
        deps=[
            *(key for dataset in DATASETS for key in score_keys(dataset)),
            INFERENCE_2026,
            *shown,
        ],
        description=(
            "Two pages: tomorrow's forecast with weights and errors of late; and the experiments, "
            "from results and training to ablation and leakage check."
        ),
        kinds={"html", "matplotlib"},
        version=code_version(*CODE),
    )
    def _site(
        context: dg.AssetExecutionContext,
        workspace: dg.ResourceParam[Deployment],
        clock: dg.ResourceParam[Clock],
    ) -> dg.MaterializeResult[Any]:
        page, inputs = write_site(workspace, clock())

        context.log.info(f"report written to {page}")
        address = workspace.settings.report_url
        return dg.MaterializeResult(
            metadata={
                # A browser opens no file from a page of the UI: a link needs an address.
                **(
                    {"page": dg.MetadataValue.url(f"{address.rstrip('/')}/{page.name}")}
                    if address
                    else {}
                ),
                "mode": workspace.data_mode.value,
                "path": metadata.link_path(page),
                "bytes": page.stat().st_size,
                "result_rows": inputs.rows.height,
                "results": dg.MetadataValue.md(format_results(inputs)),
            }
        )

    return _site


_SHOWN = 50


@define_asset(
    CLEANED,
    deps=[REPORT],
    description=(
        "What was removed: part files of killed processes, checkpoints of finished runs, runs that "
        "newer ones have taken the place of."
    ),
    kinds={"python"},
    version=code_version("compevo_pipeline/storage/runs.py"),
)
def cleaned(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Deployment],
    clock: dg.ResourceParam[Clock],
) -> dg.MaterializeResult[Any]:
    """Clean the folders of the run's mode."""
    root = workspace.layout.root
    removed = clean(workspace.layout, clock())

    for one in removed:
        context.log.info(f"removed {one.path.relative_to(root)}: {one.reason}")
    table = pl.DataFrame(
        [(str(one.path.relative_to(root)), one.size, one.reason) for one in removed],
        schema={"path": pl.String, "bytes": pl.Int64, "reason": pl.String},
        orient="row",
    )
    return dg.MaterializeResult(
        metadata={
            "removed": metadata.render_table(table, rows=_SHOWN),
            "count": len(removed),
            "bytes": sum(one.size for one in removed),
        }
    )
