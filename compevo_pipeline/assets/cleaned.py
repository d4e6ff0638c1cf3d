"""``report/cleaned``: the last step of a run removes what is of no more use, and says what it was.

What belongs here: the asset. What does not: what may be removed (``storage.cleaning``).
"""

from typing import Any

import dagster as dg
import polars as pl

from compevo_pipeline.asset_keys import CLEANED, REPORT
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import OWNERS, code_version
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.storage.cleaning import clean

_SHOWN = 50


@dg.asset(
    key=CLEANED,
    deps=[REPORT],
    group_name="report",
    description=(
        "What was removed: part files of killed processes, checkpoints of finished runs, runs that "
        "newer ones have taken the place of."
    ),
    kinds={"python"},
    owners=OWNERS,
    code_version=code_version("compevo_pipeline/storage/cleaning.py"),
)
def cleaned(
    context: dg.AssetExecutionContext, workspace: Workspace, clock: dg.ResourceParam[Clock]
) -> dg.MaterializeResult[Any]:
    """Clean the folders of the run's mode."""
    root = workspace.layout.root
    with translate_errors(retry=False):
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
