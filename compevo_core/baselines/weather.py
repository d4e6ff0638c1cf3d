"""What models see of the weather and of a series' own past: columns by step and by day.

What belongs here: columns that several models share, and the space of models of the series itself,
``own-weather-ridge`` and ``own-weather-gbm``. What does not: any model (``baselines.ridge``,
``baselines.gbm``); how weather and past come into a view (``data.context``).

This model of the series itself does not use what others forecast of it, so its errors differ from
theirs: no published median, and no covariate in the unit of the series, such as the operator's
forecast of rooftop power. It learns how a day differs from the mean of the last fortnight at each
step, since both follow the season. Weather unknown to a view is taken from the last fortnight.

Shapes: N windows, H horizon, B blocks of the horizon.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from compevo_core.baselines.features import (
    PAST_NAMES,
    PAST_REFERENCE,
    LeadSpace,
    describe_leads,
    encode_flags,
    knows_past,
    mean_last_known,
)
from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.context import PAST_MEAN
from compevo_core.data.view import WindowView, stack_by_step
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError

TEMPERATURE = "temperature_c"
COOLING_ABOVE_C = 22.0
HEATING_BELOW_C = 16.0
TRAILING_HOURS = 3.0  # walls and rooms follow the air by hours
SCALES = {
    TEMPERATURE: 5.0,
    "dew_point_c": 5.0,
    "cloud_cover_pct": 50.0,
    "sunshine_share": 0.5,
    "wind_speed_m_s": 3.0,
    "solar_radiation_w_m2": 250.0,
}
"""Divisors of weather in the ridge, which make its columns about as large as the demand columns."""


def encode_weather_steps(
    views: Sequence[WindowView], names: Sequence[str]
) -> dict[str, FloatArray]:
    """Return columns of weather (N, H) in its own units, by name."""
    columns: dict[str, FloatArray] = {}
    for name in names:
        today_NH = read_today(views, name)
        columns[name] = today_NH
        columns[f"{name}_change"] = today_NH - stack_by_step(views, f"{name}_lag1")
        columns[f"{name}_beyond"] = today_NH - stack_by_step(views, f"{name}{PAST_MEAN}")

    if TEMPERATURE in names:
        today_NH = columns[TEMPERATURE]
        columns["cooling"] = np.maximum(today_NH - COOLING_ABOVE_C, 0)
        columns["heating"] = np.maximum(HEATING_BELOW_C - today_NH, 0)
        columns[f"{TEMPERATURE}_trailing"] = _trail(views, today_NH)
    return columns


def encode_weather_days(views: Sequence[WindowView], names: Sequence[str]) -> dict[str, FloatArray]:
    """Return columns of weather (N, 1) that all steps of a window share, by name."""
    columns = {f"{name}_mean": mean_known(read_today(views, name), axis=1) for name in names}
    if TEMPERATURE in names:
        today_NH = read_today(views, TEMPERATURE)
        before_NH = stack_by_step(views, f"{TEMPERATURE}_lag1")
        for day, values_NH in (("", today_NH), ("_before", before_NH)):
            columns[f"{TEMPERATURE}_max{day}"] = values_NH.max(axis=1)
            columns[f"{TEMPERATURE}_min{day}"] = values_NH.min(axis=1)
        columns[f"{TEMPERATURE}_mean_before"] = mean_known(before_NH, axis=1)
    return {name: column_N[:, None] for name, column_N in columns.items()}


def encode_past(
    views: Sequence[WindowView],
    names: Sequence[str],
    reference_NH: FloatArray,
    spread_N1: FloatArray,
) -> dict[str, FloatArray]:
    """Return own values of earlier days (N, H) beyond a reference, by name."""
    return {name: (stack_by_step(views, name) - reference_NH) / spread_N1 for name in names}


def read_today(views: Sequence[WindowView], name: str) -> FloatArray:
    """Return a covariate (N, H), the last fortnight's mean where it was not known."""
    today_NH = stack_by_step(views, name)
    return np.where(np.isfinite(today_NH), today_NH, stack_by_step(views, f"{name}{PAST_MEAN}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSpace(LeadSpace):
    """Scales and names fixed on the train split, for changes from the last fortnight's mean."""

    knows = staticmethod(knows_past)

    @classmethod
    def fit(cls, train: WindowSet) -> Self:
        """Fix names and scales on the train windows that know their past."""
        windows = [window for window in train if knows_past(window.view)]
        if not windows:
            raise DataError(
                f"no train window of {train.dataset} holds the series' own past; use models of it "
                "for a data set whose views hold it (past_evidence)"
            )
        return cls(**(describe_leads(windows) | {"covariates": ()}))

    def stack_references(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the means of the last fortnight (N, H); DataError if a view has none."""
        without = [view for view in views if not knows_past(view)]
        if without:
            raise DataError(
                f"{len(without)} of {len(views)} windows have no value of the last fortnight at "
                f"some step, first {without[0].window_id}; forecast days with a past"
            )
        return stack_by_step(views, PAST_REFERENCE)

    def encode_steps(self, views: Sequence[WindowView]) -> dict[str, FloatArray]:
        """Return the columns (N, H) that differ between the steps of a window, by name."""
        spread_N1 = self.scaler.stack_spreads(views)
        columns = encode_past(views, PAST_NAMES, self.stack_references(views), spread_N1)
        return columns | encode_weather_steps(views, self.weather)

    def encode_days(self, views: Sequence[WindowView]) -> dict[str, FloatArray]:
        """Return the columns (N, 1) that all steps of a window share, by name."""
        spread_N1 = self.scaler.stack_spreads(views)
        reference_NH = self.stack_references(views)
        past = encode_past(views, PAST_NAMES, reference_NH, spread_N1)
        columns = {f"{name}_mean": mean_known(values, axis=1) for name, values in past.items()}
        columns["level"] = (reference_NH / spread_N1).mean(axis=1)
        columns["past_last_known"] = mean_last_known(past[PAST_NAMES[0]])
        days = {name: column_N[:, None] for name, column_N in columns.items()}
        return days | encode_weather_days(views, self.weather) | encode_flags(views)


def average_blocks(values_NH: FloatArray, blocks: int) -> FloatArray:
    """Return means over equal parts of the horizon (N, B); NaN where a part has no value."""
    parts = np.array_split(values_NH, min(blocks, values_NH.shape[1]), axis=1)
    return np.stack([mean_known(part, axis=1) for part in parts], axis=1)


def encode_degree_blocks(views: Sequence[WindowView]) -> list[FloatArray]:
    """Return temperatures of today and yesterday beyond the last fortnight's (N, B), by part.

    Degrees above and below the thresholds have columns of their own, since a linear map needs one
    for each side.
    """
    usual_NH = stack_by_step(views, f"{TEMPERATURE}{PAST_MEAN}")
    before_NH = stack_by_step(views, f"{TEMPERATURE}_lag1")
    parts = []
    for values_NH, blocks in ((read_today(views, TEMPERATURE), 6), (before_NH, 3)):
        beyond = [
            np.maximum(values_NH - COOLING_ABOVE_C, 0) - np.maximum(usual_NH - COOLING_ABOVE_C, 0),
            np.maximum(HEATING_BELOW_C - values_NH, 0) - np.maximum(HEATING_BELOW_C - usual_NH, 0),
        ]
        if blocks == 6:
            beyond.append(values_NH - usual_NH)
        parts += [average_blocks(column_NH / SCALES[TEMPERATURE], blocks) for column_NH in beyond]
    return parts


def _trail(views: Sequence[WindowView], values_NH: FloatArray) -> FloatArray:
    """Return the mean over the hours before and at each step of the day (N, H)."""
    steps = max(1, int(TRAILING_HOURS * 60 / views[0].step_minutes)) if views else 1
    sums_NH = np.cumsum(values_NH, axis=1)
    earlier_NH = np.zeros_like(sums_NH)
    earlier_NH[:, steps:] = sums_NH[:, :-steps]
    counts_H = np.minimum(np.arange(values_NH.shape[1]) + 1, steps)
    return np.asarray((sums_NH - earlier_NH) / counts_H)
