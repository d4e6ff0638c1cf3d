"""The newest issued forecast of every data set, and what has become known of the days before.

What belongs here: reading issued forecasts and the truths they are held against. What does not:
making either (``compevo_core.issued``, ``data.build``), drawing and wording.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON
from compevo_core.data.window import WindowSet
from compevo_core.issued import FACTS_FILE, IssuedForecast, find_issued, find_newest, read_issued

SKILL_DAYS = 28
"""Days before the newest forecast whose errors are shown."""

Truth = Mapping[tuple[str, datetime], FloatArray]
"""Measured values (H,), NaN where unknown, by series and origin."""


@dataclass(frozen=True, kw_only=True)
class ForecastDay:
    """The newest issued forecast of one data set and the record of the days before it.

    Attributes:
        issued: the newest forecast.
        past: earlier ones that knew as much, newest first; at most ``SKILL_DAYS``.
        truth: what was measured on these days and the newest one's.
    """

    issued: IssuedForecast
    past: Sequence[IssuedForecast] = ()
    truth: Truth = field(default_factory=dict)

    @property
    def before(self) -> IssuedForecast | None:
        """The forecast of the day before; None where none was issued."""
        eve = self.issued.origin - measure_day(self.issued)
        return next((one for one in self.past if one.origin == eve), None)

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


def read_days(issued: Path, windows: Path) -> list[ForecastDay]:
    """Read the newest forecast of every data set and the days before it.

    Args:
        issued: folder of issued forecasts, a folder in it for each data set.
        windows: folder of windows, in which each data set has one too; their truth is used.

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
        past = _read_past(root, newest)
        earliest = min(one.origin for one in (newest, *past)) - measure_day(newest)
        truth = _read_truth(windows / root.name, earliest)
        days.append(ForecastDay(issued=newest, past=past, truth=truth))
    return days


def _read_past(root: Path, newest: IssuedForecast) -> list[IssuedForecast]:
    """Return the forecasts of the days before that knew as much before their day."""
    day = measure_day(newest)
    lead = newest.origin - datetime.fromisoformat(newest.facts["information_until"])

    past = []
    for number in range(1, SKILL_DAYS + 1):
        origin = newest.origin - number * day
        folder = find_issued(root, origin.astimezone(UTC), (origin - lead).astimezone(UTC))
        if (folder / FACTS_FILE).exists():
            past.append(read_issued(folder))
    return past


def _read_truth(folder: Path, earliest: datetime) -> dict[tuple[str, datetime], FloatArray]:
    """Return what windows since an instant hold as their truth; empty where there are none."""
    if not folder.exists():
        return {}
    return {
        (window.view.entity, window.view.origin_utc): window.y
        for window in WindowSet.read(folder)
        if window.view.origin_utc >= earliest
    }
