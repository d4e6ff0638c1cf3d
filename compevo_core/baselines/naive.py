"""Forecasts without anything fitted: yesterday, the same weekday, and a published forecast."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from compevo_core.baselines.base import (
    Baseline,
    is_published,
    raise_if_held_out,
    raise_if_lacking,
    repeat_last_season,
    stack_published,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.steps import DAY, WEEK
from compevo_core.data.view import WindowView, stack_rows
from compevo_core.data.window import WindowSet


def has_full_week(view: WindowView) -> bool:
    """Return whether the inputs cover seven days, and a step is no longer than that."""
    return view.lookback * view.step >= WEEK >= view.step


class NaiveForecast(Baseline):
    """A baseline without weights."""

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Check the split, as a later one is a mistake; ``seed`` is not used."""
        raise_if_held_out(train, cls.name)
        return cls()

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        return stack_rows([self._forecast(view) for view in views])

    def _forecast(self, view: WindowView) -> FloatArray:
        """Return the forecast (H,) of one view: unless said otherwise, the last season again."""
        return repeat_last_season(view)


class Persistence(NaiveForecast):
    """Repeats yesterday; on coarser grids the last week or year, or the last value of short inputs.

    It is the season that :attr:`Seasons.reference` counts changes from.
    """

    name = "persistence"
    title = "Persistence"


class LastValue(NaiveForecast):
    """Repeats the last value, the best forecast of a random walk."""

    name = "last-value"
    title = "Last value"

    @staticmethod
    def _can_forecast(view: WindowView) -> bool:
        """Return whether it differs from persistence: on days and coarser steps with a season."""
        return view.step >= DAY and view.seasons.reference > 1

    def _forecast(self, view: WindowView) -> FloatArray:
        return np.full(view.horizon, view.x[-1])


class WeeklyPersistence(NaiveForecast):
    """Repeats the last seven days of the input."""

    name = "weekly"
    title = "Weekly persistence"
    _can_forecast = staticmethod(has_full_week)

    def _forecast(self, view: WindowView) -> FloatArray:
        raise_if_lacking([view], has_full_week, "7 days of input")
        return np.resize(view.x[-(WEEK // view.step) :], view.horizon)


class SeasonalMean(NaiveForecast):
    """Repeats the mean of the seasons of the input: seven of them, or as many as it holds.

    A season is a day, on daily grids a week, above them a year.
    """

    name = "seasonal-mean"
    title = "Seasonal mean"
    is_scored = False

    def _forecast(self, view: WindowView) -> FloatArray:
        steps = min(view.seasons.shortest, view.lookback)
        seasons = max(1, min(7, len(view.x) // steps))
        recent = view.x[-seasons * steps :].reshape(seasons, -1)
        return np.resize(recent.mean(axis=0), view.horizon)


class PublishedForecast(NaiveForecast):
    """The median that was public before the origin: AEMO's day-ahead POE50, issued at 17:00."""

    name = "published"
    title = "Published forecast (AEMO POE50)"
    _can_forecast = staticmethod(is_published)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit; DataError if a view has none."""
        # Leaving windows out would score this method on other windows than the rest of its table.
        return stack_published(views)
