"""``report/site`` and ``report/cleaned``: the pages, and what a run removes at its end.

What belongs here: when the pages are written, how the UI shows it, what was removed, and which of
Dagster's own runs are. What does not: what the pages hold (``work.results``, and a writer that is
passed in), what of the deployment's folders may be removed (``storage.runs``).
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from compevo_pipeline.defs import metadata
from compevo_pipeline.defs.asset_keys import CLEANED, DATASETS, INFERENCE_2026, REPORT, score_keys
from compevo_pipeline.defs.definition import Context, Result, WorkspaceParam, define_asset
from compevo_pipeline.defs.jobs import open_instance
from compevo_pipeline.storage.runs import Removed, clean
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.results import write_forecasts

CODE = ("compevo_core/report", "compevo_core/paper/report", "compevo_pipeline/work/results.py")


def build_site_asset(
    write_research: Callable[[Deployment], Mapping[str, Any]], shown: Sequence[dg.AssetKey] = ()
) -> dg.AssetsDefinition:
    """Return the asset that writes the pages of the run's mode, after ``shown`` and the scores.

    ``write_research`` writes the page of experiments, and returns what the UI shows of it.
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
        code=CODE,
    )
    def _site(context: Context, workspace: WorkspaceParam) -> Result:
        page, research = write_forecasts(workspace), write_research(workspace)

        context.log.info(f"report written to {page}")
        # A browser opens no file from a page of the UI: a link needs an address.
        address = workspace.settings.report_url.rstrip("/")
        link = {"page": dg.MetadataValue.url(f"{address}/{page.name}")} if address else {}
        return dg.MaterializeResult(
            metadata={
                **link,
                "mode": workspace.data_mode.value,
                "path": dg.MetadataValue.path(page),
                "bytes": page.stat().st_size,
                **research,
            }
        )

    return _site


RUN_AGE = timedelta(days=90)  # how long Dagster's record of a run stays, with events and logs
LEAST_FREE_GIB = 5.0  # free space on the disks of both homes, below which the check warns
FREE_SPACE = "free_space"


def clean_dagster(now: datetime, *, dry: bool = False) -> list[Removed]:
    """Do as :func:`remove_old_runs` for the instance of ``DAGSTER_HOME``."""
    with open_instance() as instance:
        return remove_old_runs(instance, now, dry=dry)


def remove_old_runs(
    instance: dg.DagsterInstance, now: datetime, *, dry: bool = False
) -> list[Removed]:
    """Remove Dagster's records of runs that ended long ago; return them.

    A run that made the newest version of an asset stays, so that nothing looks as if it had never
    been made. Of an asset by day, older days look so. With ``dry`` they are listed and stay.
    """
    keys = instance.all_asset_keys()
    # Of a version that was made: `last_run_id` may be a later run that made none.
    records = instance.get_asset_records(keys)
    made = [record.asset_entry.last_materialization_record for record in records]
    newest = {record.run_id for record in made if record is not None}
    old = instance.get_run_records(
        dg.RunsFilter(
            statuses=[
                dg.DagsterRunStatus.SUCCESS,
                dg.DagsterRunStatus.FAILURE,
                dg.DagsterRunStatus.CANCELED,
            ],
            created_before=now - RUN_AGE,
        )
    )

    removed = []
    for record in old:
        run_id = record.dagster_run.run_id
        if run_id in newest:
            continue
        # Local storage keeps a file of events for each run; others have tables.
        events = getattr(instance.event_log_storage, "path_for_shard", None)
        file = Path(events(run_id)) if events else Path(run_id)
        size = file.stat().st_size if file.is_file() else 0
        reason = f"{record.dagster_run.job_name} ended more than {RUN_AGE.days} days ago"
        removed.append(Removed(path=file, size=size, reason=reason))
        if not dry:
            instance.delete_run(run_id)
            instance.compute_log_manager.delete_logs(prefix=[run_id])
            file.unlink(missing_ok=True)
    return removed


@define_asset(
    CLEANED,
    deps=[REPORT],
    description=(
        "What was removed: part files of killed processes, checkpoints of finished runs, runs that "
        "newer ones have taken the place of, unused fits, Dagster's records of old runs."
    ),
    kinds={"python"},
    code=("compevo_pipeline/storage/runs.py",),
    check_specs=[
        dg.AssetCheckSpec(
            FREE_SPACE,
            asset=CLEANED,
            description=f"At least {LEAST_FREE_GIB:g} GiB are free for the deployment's folders.",
        )
    ],
)
def cleaned(context: Context, workspace: WorkspaceParam) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster refuses a parameter with check results
    """Clean the folders of the run's mode."""
    root = workspace.layout.root
    now = workspace.clock()
    removed = [*clean(workspace.layout, now), *remove_old_runs(context.instance, now)]
    # Once Dagster's disk is full, no sensor can record that it looked, so no alert would be sent.
    homes = (root, Path(context.instance.root_directory))
    free, least = min((shutil.disk_usage(home).free / 2**30, home) for home in homes)

    for removal in removed:
        context.log.info(f"removed {shorten(removal.path, root)}: {removal.reason}")
    table = pl.DataFrame(
        [(shorten(removal.path, root), removal.size, removal.reason) for removal in removed],
        schema={"path": pl.String, "bytes": pl.Int64, "reason": pl.String},
        orient="row",
    )
    return dg.MaterializeResult(
        metadata={
            "removed": metadata.render_table(table, rows=50),
            "count": len(removed),
            "bytes": sum(removal.size for removal in removed),
            "free_gib": round(free, 1),
        },
        check_results=[
            dg.AssetCheckResult(
                check_name=FREE_SPACE,
                passed=free >= LEAST_FREE_GIB,
                severity=dg.AssetCheckSeverity.WARN,
                description=f"{free:.1f} GiB are free on the disk of {least}",
            )
        ],
    )


def shorten(path: Path, root: Path) -> str:
    """Return a path as it is below the deployment's folder, or whole."""
    return str(path.relative_to(root) if path.is_relative_to(root) else path)
