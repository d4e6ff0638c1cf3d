"""Holidays that changed between the windows of a folder and new windows of the same days.

What belongs here: this comparison. What does not: which days are holidays (``data.calendar``), the
files (``data.window``).

Rules of holidays change with releases of the library that knows them, also for days long past. A
window whose calendar changed has another hash, and a model that was trained on it another name.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from compevo_core.data.files import FileSet, read_together
from compevo_core.data.view import WindowView
from compevo_core.data.window import WINDOWS_FILE
from compevo_core.errors import DataError

CHANGE_SCHEMA: dict[str, pl.DataType] = {
    "entity": pl.String(),
    "date": pl.String(),
    "before": pl.String(),  # "" where the day was no holiday
    "after": pl.String(),
}


def find_holiday_changes(folder: Path, views: Iterable[WindowView]) -> pl.DataFrame:
    """Return the target days whose holiday is another one than in the windows of a folder.

    Args:
        folder: windows that were written before; none need be there.
        views: new views.

    Returns:
        Rows of ``CHANGE_SCHEMA``, a row for each entity and day that both have and that differs.
    """
    try:
        stored = read_together(
            folder, _read_holidays, remedy="build the windows", is_verified=False
        )
    except DataError:
        # Nothing was written yet, or by an earlier version: there is nothing to compare with.
        return pl.DataFrame(schema=CHANGE_SCHEMA)

    changes = set()
    for view in views:
        day = view.calendar.target_date.isoformat()
        before, after = stored.get((view.entity, day)), view.calendar.target_holiday
        if before is not None and before != after:
            changes.add((view.entity, day, before, after))
    return pl.DataFrame(sorted(changes), schema=CHANGE_SCHEMA, orient="row")


def _read_holidays(files: FileSet) -> dict[tuple[str, str], str]:
    """Return the holiday of each entity and target day, "" where there is none."""
    rows = pl.read_parquet(files.paths[WINDOWS_FILE], columns=["entity", "calendar"]).iter_rows()
    calendars = [(entity, json.loads(text)) for entity, text in rows]
    return {
        (entity, calendar["target_date"]): calendar["target_holiday"]
        for entity, calendar in calendars
    }
