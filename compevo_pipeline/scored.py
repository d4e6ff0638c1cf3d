"""Scores of issued forecasts on disk: one growing table a data set.

What belongs here: reading the stored truth and the table, writing what changed. What does not: the
scores (``compevo_core.evaluation.issued_scores``), skill and alarms
(``compevo_core.evaluation.skill``, ``alarms``).
"""

from collections.abc import Callable
from datetime import datetime

import polars as pl

from compevo_core.data.chosen_series import grid_chosen
from compevo_core.data.files import write_atomically
from compevo_core.evaluation.issued_scores import SCORED_SCHEMA, ScoredRows, score_issued
from compevo_pipeline.next_day import find_daily_spec
from compevo_pipeline.resources import Workspace
from compevo_pipeline.settings import Layout


def update_scored(workspace: Workspace, dataset: str, clock: Callable[[], datetime]) -> ScoredRows:
    """Score the issued forecasts of a data set whose truth is stored by now.

    The table is written as Parquet and CSV, and only where something changed.

    Raises:
        ConfigError: there is no such data set.
        DataError: nothing of it is stored.
        CheckpointMismatch: an issued forecast was altered since.
    """
    spec = find_daily_spec(workspace, dataset)
    layout = workspace.layout
    path = layout.scored(dataset)

    before = read_scored(layout, dataset)
    truth = grid_chosen(spec, workspace.series_store().read(dataset))
    found = score_issued(layout.issued(dataset), truth, before, scored_at=clock())

    if not path.exists() or not found.rows.equals(before):
        write_atomically(path.with_suffix(".csv"), found.rows.write_csv)
        write_atomically(path, found.rows.write_parquet)
    return found


def read_scored(layout: Layout, dataset: str) -> pl.DataFrame:
    """Return the scores of a data set's issued forecasts; empty where nothing was scored."""
    path = layout.scored(dataset)
    return pl.read_parquet(path) if path.exists() else pl.DataFrame(schema=SCORED_SCHEMA)
