"""``sources/coverage``: what is stored of every source by month, and which files are missing.

What belongs here: showing the counts as a table, the check that warns, how often it runs. What
does not: counting (``work.source_coverage``), fetching what is missing (``defs.assets.sources``).

It depends on no other asset: when a source fails, everything below it is skipped, and then this is
what somebody looks for.
"""

from typing import Any

import dagster as dg

from compevo_pipeline.defs import metadata
from compevo_pipeline.defs.asset_keys import SOURCE_COVERAGE
from compevo_pipeline.defs.definition import define_asset
from compevo_pipeline.sources.common.base import Clock
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.common.nem import NEM_ZONE
from compevo_pipeline.storage.code_versions import code_version
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.source_coverage import (
    list_troubled,
    measure_coverage,
    pivot_months,
    tabulate_files,
)

SHOWN_MONTHS = 12
HOURLY_CRON = "50 * * * *"

_MAX_ROWS = 60


@define_asset(
    SOURCE_COVERAGE,
    description=(
        "How much of each month is stored, by source: values of the grid, days of news and "
        "forecasts, files that were asked for; and which files were absent or failed. The job "
        "`backfill` fetches what is missing."
    ),
    kinds={"polars"},
    version=code_version("compevo_pipeline/work/source_coverage.py"),
)
def coverage(
    workspace: dg.ResourceParam[Deployment], clock: dg.ResourceParam[Clock]
) -> dg.MaterializeResult[Any]:
    """Count slots by source and month."""
    counts = measure_coverage(workspace, clock().date())
    troubled = tabulate_files(list_troubled(workspace))

    shown = {
        "months": metadata.render_table(pivot_months(counts, SHOWN_MONTHS), rows=_MAX_ROWS),
        "missing_files": metadata.render_table(troubled, rows=_MAX_ROWS),
        "mode": workspace.data_mode.value,
        "dagster/row_count": counts.height,
    }
    return dg.MaterializeResult(metadata=shown)


@dg.asset_check(
    asset=SOURCE_COVERAGE,
    name="no_failed_file",
    description="No file that was asked for last failed; absent ones are asked for again.",
)
def check_coverage(workspace: dg.ResourceParam[Deployment]) -> dg.AssetCheckResult:
    """Warn where asking for a file failed and nothing has come since."""
    troubled = list_troubled(workspace)
    failed = [entry for entry in troubled if entry.state is EntryState.FAILED]
    return dg.AssetCheckResult(
        passed=not failed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "failed": len(failed),
            "absent": sum(entry.state is EntryState.ABSENT for entry in troubled),
            "files": metadata.render_table(tabulate_files(failed), rows=_MAX_ROWS),
        },
    )


coverage_job = dg.define_asset_job(
    "coverage",
    dg.AssetSelection.assets(SOURCE_COVERAGE),
    description="Counts what is stored of every source by month; takes seconds.",
    tags={"compevo/job": "coverage"},
)
hourly_coverage = dg.ScheduleDefinition(
    name="coverage_hourly",
    job=coverage_job,
    cron_schedule=HOURLY_CRON,
    execution_timezone=NEM_ZONE,
    description="What is stored of every source, and which files are missing.",
)
