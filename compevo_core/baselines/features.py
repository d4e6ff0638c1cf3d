"""What ridge and boosted trees see of a window: its day, the calendar, and yesterday's weather.

What belongs here: turning a view into numbers, with the scales and covariate names of the train
split. What does not: any model.

Everything is in units of the entity's train standard deviation, and forecasts are changes from the
last season, so that a fit carries over to years with another level. A missing covariate is NaN
here; each model says what it does with it.

Shapes: N windows, H horizon, C covariates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from compevo_core.baselines.base import TrainSpace, repeat_last_season, stack_rows
from compevo_core.data.arrays import FloatArray
from compevo_core.data.calendar import Calendar
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import HORIZON, Window, WindowView
from compevo_core.data.window import WindowSet

DAYS_OF_YEAR = 365.25  # the mean length, so that the yearly wave stays in phase over leap years
MIN_COVERAGE = 0.5  # share of train windows that must have a covariate for it to be used

# Temperatures in kelvin: above the first air conditioning adds to demand, below the second heating.
COOLING_ABOVE_K = 293.0
HEATING_BELOW_K = 288.0
TEMPERATURE_KEY = "_temp_k_lag"  # part of the key of every temperature covariate

CALENDAR_NAMES = (
    *(f"weekday_{i}" for i in range(7)),
    "holiday",
    "holiday_before",
    "day_off",
    "day_off_before",
    "into_day_off",
    "out_of_day_off",
    "sin_year",
    "cos_year",
    "sin_half_year",
    "cos_half_year",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpace(TrainSpace):
    """Scales and names fixed on the train split, for changes from the last season.

    Views with weather (True) and views without any (False) have models of their own, which are
    fitted on the same windows.
    """

    covariates: tuple[str, ...]  # the keys that at least half of the train windows have

    @classmethod
    def fit(cls, train: Sequence[Window]) -> Self:
        """Fix names and scales on train windows."""
        counts: dict[str, int] = {}
        for window in train:
            for name in window.view.covariates:
                counts[name] = counts.get(name, 0) + 1

        fewest = MIN_COVERAGE * len(train)
        return cls(
            scaler=Scaler.fit(train),
            entities=tuple(sorted({window.view.entity for window in train})),
            covariates=tuple(sorted(name for name, count in counts.items() if count >= fewest)),
        )

    def extract_weather(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the covariates (N, C), NaN where a view lacks one."""
        # reshape() gives an empty list of views or covariates its two dimensions.
        rows = [[view.covariates.get(name, np.nan) for name in self.covariates] for view in views]
        return np.array(rows, dtype=np.float64).reshape(len(views), len(self.covariates))

    def has_weather(self, view: WindowView) -> bool:
        """Return whether a view has any covariate of the train split."""
        return any(name in view.covariates for name in self.covariates)

    @property
    def routes(self) -> tuple[int, ...]:
        """With weather and without; without alone where no covariate is usual."""
        return (True, False) if self.covariates else (False,)

    def route(self, views: Sequence[WindowView]) -> dict[int, list[int]]:
        """Return the positions of the views with weather (True) and without any (False)."""
        has_weather = [self.has_weather(view) for view in views]
        return {
            kind: [i for i, has in enumerate(has_weather) if has is kind] for kind in (True, False)
        }

    def count_missing(self, views: Sequence[WindowView]) -> tuple[int, int]:
        """Return the number of views without any weather, and of single values others lack."""
        routes = self.route(views)
        weather = self.extract_weather([views[i] for i in routes[True]])
        without = len(routes[False]) if self.covariates else 0
        return without, int(np.isnan(weather).sum())

    def select_train(self, train: WindowSet, route: int) -> Sequence[Window]:
        """Return all train windows."""
        return train

    def compute_hinges(self, weather_NC: FloatArray) -> FloatArray:
        """Return kelvins above and below the two thresholds, (N, 2 x temperatures).

        Demand rises with heat and with cold; a linear map needs one column for each side.
        """
        columns = [i for i, name in enumerate(self.covariates) if TEMPERATURE_KEY in name]
        kelvin = weather_NC[:, columns]
        cooling = np.maximum(kelvin - COOLING_ABOVE_K, 0)
        heating = np.maximum(HEATING_BELOW_K - kelvin, 0)
        return np.concatenate([cooling, heating], axis=1)

    @property
    def change_names(self) -> tuple[str, ...]:
        """Stems of the covariates known for both of the last two days."""
        stems = (name.removesuffix("_lag1") for name in self.covariates if name.endswith("_lag1"))
        return tuple(stem for stem in stems if f"{stem}_lag2" in self.covariates)

    def compute_changes(self, weather_NC: FloatArray) -> FloatArray:
        """Return the change of ``change_names`` over the last two days, (N, names)."""
        # For the trees, which split on one column at a time and cannot subtract two of them.
        yesterday = [self.covariates.index(f"{stem}_lag1") for stem in self.change_names]
        day_before = [self.covariates.index(f"{stem}_lag2") for stem in self.change_names]
        return weather_NC[:, yesterday] - weather_NC[:, day_before]

    def scale_inputs(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the inputs (N, 48), centred and in units of each entity's train deviation."""
        return stack_rows([self.scaler.scale(view.x, view.entity) for view in views])

    def scale_targets(self, windows: Sequence[Window]) -> FloatArray:
        """Return the scaled change of the truth from the last season (N, 48), NaN where masked."""
        return stack_rows(
            [
                (window.y - repeat_last_season(window.view)) / self.scaler.std[window.view.entity]
                for window in windows
            ]
        )

    def unscale(self, views: Sequence[WindowView], output_NH: FloatArray) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit from scaled changes."""
        return stack_rows(
            [
                repeat_last_season(view) + self.scaler.std[view.entity] * row
                for view, row in zip(views, output_NH, strict=True)
            ]
        )


def encode_calendars(views: Sequence[WindowView]) -> FloatArray:
    """Return calendar features (N, len(CALENDAR_NAMES))."""
    rows = [_encode_calendar(view.calendar) for view in views]
    return np.array(rows).reshape(len(views), len(CALENDAR_NAMES))


def summarize_inputs(z_NH: FloatArray) -> FloatArray:
    """Return the shape of each input day (N, 8).

    The columns are mean, extremes, last value, change over the day, and the means of three parts.
    """
    # On a half-hourly day the thirds are night, midday and evening.
    third = HORIZON // 3
    parts = [z_NH[:, i * third : (i + 1) * third].mean(axis=1) for i in range(3)]

    summary = [
        z_NH.mean(axis=1),
        z_NH.min(axis=1),
        z_NH.max(axis=1),
        z_NH[:, -1],
        z_NH[:, -1] - z_NH[:, 0],
    ]
    return np.stack([*summary, *parts], axis=1)


def _encode_calendar(calendar: Calendar) -> list[float]:
    """Return the numbers of ``CALENDAR_NAMES``."""
    weekdays = [float(calendar.target_weekday == i) for i in range(7)]

    # The change into and out of days off matters by itself: the input is a day of the other kind.
    is_off = calendar.target_is_day_off
    was_off = calendar.previous_is_day_off
    flags = [
        bool(calendar.target_holiday),
        bool(calendar.previous_holiday),
        is_off,
        was_off,
        is_off > was_off,
        was_off > is_off,
    ]

    angle = 2 * np.pi * calendar.day_of_year / DAYS_OF_YEAR
    waves = [float(wave(k * angle)) for k in (1, 2) for wave in (np.sin, np.cos)]

    return [*weekdays, *map(float, flags), *waves]
