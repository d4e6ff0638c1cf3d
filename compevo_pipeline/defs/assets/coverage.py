"""``sources/coverage``: what is stored of every source by month, and which files are missing.

What belongs here: showing the counts as a table and a heat map, the check that warns, how often it
runs. What does not: counting (``compevo_pipeline.work.source_coverage``), fetching what is missing
(``defs.assets.sources``).

It depends on no other asset: when a source fails, everything below it is skipped, and then this is
what somebody looks for.
"""

from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from compevo_pipeline.defs import metadata
from compevo_pipeline.defs.asset_keys import NEM_ZONE, SOURCE_COVERAGE
from compevo_pipeline.defs.dead_runs import watch_dead_runs
from compevo_pipeline.defs.definition import define_asset
from compevo_pipeline.sources.common.base import Clock
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.storage.code_versions import code_version
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.source_coverage import (
    list_troubled,
    measure_coverage,
    pivot_months,
    tabulate_files,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_MONTHS = 12
HOURLY_CRON = "50 * * * *"

_MAX_ROWS = 60
_HEAT_MONTHS = 36
_ROW_INCHES = 0.22


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

    shown: dict[str, Any] = {
        "months": metadata.render_table(pivot_months(counts, SHOWN_MONTHS), rows=_MAX_ROWS),
        "missing_files": metadata.render_table(troubled, rows=_MAX_ROWS),
        "mode": workspace.data_mode.value,
        "dagster/row_count": counts.height,
    }
    if counts.height:
        shown["heat"] = _plot_heat(counts)
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
    executor_def=watch_dead_runs(dg.in_process_executor),
)
hourly_coverage = dg.ScheduleDefinition(
    name="coverage_hourly",
    job=coverage_job,
    cron_schedule=HOURLY_CRON,
    execution_timezone=NEM_ZONE,
    description="What is stored of every source, and which files are missing.",
)


def _plot_heat(counts: pl.DataFrame) -> dg.MetadataValue[Any]:
    """Draw the share that is stored, a row a source and a column a month."""
    months = sorted(set(counts["month"]) - {""})[-_HEAT_MONTHS:]
    recent = counts.filter(pl.col("month").is_in(months))
    sources = recent.select("source", "counted").unique(maintain_order=True).rows()
    shares = {
        (source, counted, month): stored / expected
        for source, counted, month, stored, expected in recent.select(
            "source", "counted", "month", "stored", "expected"
        ).iter_rows()
        if expected
    }
    nothing = float("nan")
    grid = [
        [shares.get((source, counted, month), nothing) for month in months]
        for source, counted in sources
    ]

    def draw(axes: "Axes") -> None:
        image = axes.imshow(grid, vmin=0, vmax=1, cmap="RdYlBu", aspect="auto")
        image.get_cmap().set_bad("white")
        axes.set_yticks(range(len(sources)), [f"{source}, {what}" for source, what in sources])
        every = max(1, len(months) // SHOWN_MONTHS)
        axes.set_xticks(range(0, len(months), every), months[::every], rotation=45)

    height = 1.2 + _ROW_INCHES * len(sources)
    title = "Share that is stored: red none, blue all, white nothing expected"
    return metadata.render_plot(draw, title, width=10.0, height=height)
