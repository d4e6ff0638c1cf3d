"""The report of a deployment: what is on disk, as one page.

What belongs here: gathering result rows, runs and issued forecasts of a workspace and handing them
to :mod:`compevo_core.report`, for the asset and the command line alike. What does not: any number.
"""

from datetime import datetime
from pathlib import Path

from compevo_core.report.forecast_days import read_days
from compevo_core.report.inputs import ReportInputs, read_inputs
from compevo_core.report.page import write_report
from compevo_pipeline.resources import Workspace
from compevo_pipeline.storage.runs import find_current_run, has_current_run


def write_site(workspace: Workspace, now: datetime) -> tuple[Path, ReportInputs]:
    """Write the page of a workspace's mode.

    Args:
        workspace: stores and folders.
        now: moment that the page names as its own, with zone.

    Returns:
        The page and what it shows.

    Raises:
        DataError: a file is torn or of another version.
        CheckpointMismatch: an issued forecast was altered.
    """
    layout = workspace.layout
    # Every data set that has a finished run, not only the one that was trained last.
    runs = [
        find_current_run(layout, dataset)
        for dataset in workspace.registry()
        if has_current_run(layout, dataset)
    ]
    inputs = read_inputs(
        layout.results,
        runs,
        mode=workspace.data_mode.value,
        generated_at=now,
        days=read_days(
            layout.forecasts / "issued", layout.root / "windows", layout.forecasts / "scored"
        ),
    )
    return write_report(inputs, layout.report), inputs
