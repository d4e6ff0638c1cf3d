"""What a deployment shows of its forecasts: the scores of issued days, and the report page.

What belongs here: reading what is on disk, and writing one table for each data set and one page.
What does not: scores (``compevo_core.evaluation.issued_scores``), skill and alarms
(``compevo_core.evaluation``), the page's content (``compevo_core.report``).
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import polars as pl

from compevo_core.data.build import grid_chosen
from compevo_core.evaluation.issued_scores import SCORED_SCHEMA, ScoredRows, score_issued
from compevo_core.report.inputs import ReportInputs, read_days, read_inputs
from compevo_core.runtime.files import write_atomically
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.storage.runs import find_current_run, has_current_run
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import find_daily_spec


def update_scored(
    deployment: Deployment, dataset: str, clock: Callable[[], datetime]
) -> ScoredRows:
    """Score the issued forecasts of a data set whose truth is stored by now.

    The table is written as Parquet and CSV, and only where something changed.

    Raises:
        ConfigError: there is no such data set.
        DataError: nothing of it is stored.
        CheckpointMismatch: an issued forecast was altered since.
    """
    spec = find_daily_spec(deployment, dataset)
    layout = deployment.layout
    path = layout.scored(dataset)

    before = read_scored(layout, dataset)
    truth = grid_chosen(spec, deployment.series_store().read(dataset))
    found = score_issued(layout.issued(dataset), truth, before, scored_at=clock())

    if not path.exists() or not found.rows.equals(before):
        write_atomically(path.with_suffix(".csv"), found.rows.write_csv)
        write_atomically(path, found.rows.write_parquet)
    return found


def read_scored(layout: Layout, dataset: str) -> pl.DataFrame:
    """Return the scores of a data set's issued forecasts; empty where nothing was scored."""
    path = layout.scored(dataset)
    return pl.read_parquet(path) if path.exists() else pl.DataFrame(schema=SCORED_SCHEMA)


def write_site(deployment: Deployment, now: datetime) -> tuple[Path, ReportInputs]:
    """Write the page of a deployment's mode.

    Args:
        deployment: stores and folders.
        now: moment that the page names as its own, with zone.

    Returns:
        The page and what it shows.

    Raises:
        DataError: a file is torn or of another version.
        CheckpointMismatch: an issued forecast was altered.
    """
    from compevo_core.report.page import write_report

    layout = deployment.layout
    # Every data set that has a finished run, not only the one that was trained last.
    runs = [
        find_current_run(layout, dataset)
        for dataset in deployment.registry
        if has_current_run(layout, dataset)
    ]
    inputs = read_inputs(
        layout.results,
        runs,
        mode=deployment.data_mode.value,
        generated_at=now,
        days=read_days(
            layout.forecasts / "issued", layout.root / "windows", layout.forecasts / "scored"
        ),
    )
    return write_report(inputs, layout.report), inputs
