"""The newest issued forecast of every data set, and what has become known of the days before.

What belongs here: reading issued forecasts, the truths they are held against, and their scores.
What does not: making any of them (``compevo_core.issued``, ``data.build``), drawing and wording.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.issued_scores import SCORED_SCHEMA, name_known_to
from compevo_core.issued import FACTS_FILE, IssuedForecast, find_issued, find_newest, read_issued

Truth = Mapping[tuple[str, datetime], FloatArray]
"""Measured values (H,), NaN where unknown, by series and origin."""


@dataclass(frozen=True, kw_only=True)
class ForecastDay:
    """The newest issued forecast of one data set and the record of the days before it.

    Attributes:
        issued: the newest forecast.
        before: the forecast of the day before that knew as much; None where none was issued.
        truth: what was measured on both days.
        scores: rows of ``issued_scores.SCORED_SCHEMA`` of all days that are over, of forecasts that
            knew as much.
    """

    issued: IssuedForecast
    before: IssuedForecast | None = None
    truth: Truth = field(default_factory=dict)
    scores: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SCORED_SCHEMA))

    def find_truth(self, issued: IssuedForecast, entity: str) -> FloatArray | None:
        """Return what was measured (H,) on a forecast's day; None where nothing was."""
        return self.truth.get((entity, issued.origin))

    def find_yesterday(self, entity: str) -> FloatArray:
        """Return the values (H,) of the day before, NaN where unknown.

        What was measured since counts, or else what was known when the forecast was issued.
        """
        eve = self.issued.origin - measure_day(self.issued)
        if (entity, eve) in self.truth:
            return self.truth[entity, eve]

        inputs = {str(one["entity"]): one.get("inputs") for one in self.issued.facts["series"]}
        values = inputs[entity] or [None] * HORIZON
        return np.array([np.nan if value is None else value for value in values])


def measure_day(issued: IssuedForecast) -> timedelta:
    """Return the length of what a forecast covers: the next one begins there."""
    starts = issued.starts
    return starts[-1] - starts[0] + (starts[1] - starts[0])


def read_days(issued: Path, windows: Path, scored: Path | None = None) -> list[ForecastDay]:
    """Read the newest forecast of every data set and what is known of the days before it.

    Args:
        issued: folder of issued forecasts, a folder in it for each data set.
        windows: folder of windows, in which each data set has one too; their truth is used.
        scored: folder of the scores of issued forecasts, a Parquet file in it for each data set.

    Raises:
        CheckpointMismatch: a record was altered.
        DataError: a record or the windows are torn.
    """
    days = []
    for root in sorted(path for path in issued.glob("*") if path.is_dir()):
        folder = find_newest(root)
        if folder is None:
            continue

        newest = read_issued(folder)
        earliest = newest.origin - 2 * measure_day(newest)
        days.append(
            ForecastDay(
                issued=newest,
                before=_read_before(root, newest),
                truth=_read_truth(windows / root.name, earliest),
                scores=_read_scores(scored, newest),
            )
        )
    return days


def _read_before(root: Path, newest: IssuedForecast) -> IssuedForecast | None:
    """Return the forecast of the day before that knew as much before its day."""
    lead = newest.origin - datetime.fromisoformat(newest.facts["information_until"])
    origin = newest.origin - measure_day(newest)
    folder = find_issued(root, origin.astimezone(UTC), (origin - lead).astimezone(UTC))
    return read_issued(folder) if (folder / FACTS_FILE).exists() else None


def _read_scores(folder: Path | None, newest: IssuedForecast) -> pl.DataFrame:
    """Return the scores of a data set's forecasts that knew as much; empty where there are none."""
    path = None if folder is None else folder / f"{newest.facts['dataset']}.parquet"
    rows = pl.read_parquet(path) if path and path.exists() else pl.DataFrame(schema=SCORED_SCHEMA)
    return rows.filter(pl.col("known_to") == name_known_to(newest.facts))


def _read_truth(folder: Path, earliest: datetime) -> dict[tuple[str, datetime], FloatArray]:
    """Return what windows since an instant hold as their truth; empty where there are none."""
    if not folder.exists():
        return {}
    return {
        (window.view.entity, window.view.origin_utc): window.y
        for window in WindowSet.read(folder)
        if window.view.origin_utc >= earliest
    }
