"""Baselines with their known errors added: what recalibration alone is worth (decision 42).

What belongs here: the level of a baseline's errors on validation, chosen and frozen in the way of
the population's. What does not: the arithmetic (``baselines.known_errors``), the population's
calibration (``training.calibration``).

A population that is better than a baseline as fitted may owe that to the drift it was told of. The
same baseline, told the same, is the fair opponent.

Shapes: N windows, E series, H horizon.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from compevo_core.baselines.error_levels import ErrorLevels
from compevo_core.baselines.known_errors import NO_LEVEL, RULE_GRID, LevelRule, split_by_time
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, LeakageError

RECALIBRATED_BASELINES = ("calendar-ridge", "gbm", "blend")
"""Baselines that are scored a second time with their known errors."""
RECALIBRATED = "-recalibrated"
"""Ends the name of a baseline with its known errors added."""

_DIGITS = 9


@dataclass(frozen=True)
class KnownErrorLevel:
    """What is added to a fitted forecaster, frozen at the end of validation.

    Attributes:
        levels: of the one forecaster.
    """

    levels: ErrorLevels

    @classmethod
    def fit(cls, val: WindowSet, forecast_NH: FloatArray, scaler: Scaler) -> Self:
        """Estimate the level on validation, under the rule that does best as it will be used.

        Args:
            val: windows of the validation split; a window without a known target says nothing.
            forecast_NH: their forecasts in the windows' unit.
            scaler: fitted on train, so that series can lend each other what they know.

        Raises:
            LeakageError: a window is not of the validation split.
            DataError: the forecasts are not those of the windows.
        """
        others = {view.split for view in val.views()} - {"val"}
        if others:
            raise LeakageError(
                f"windows of {sorted(others)} were given to recalibrate on; pass split('val')"
            )
        if forecast_NH.shape != val.truth().shape:
            raise DataError(
                f"forecasts of shape {forecast_NH.shape} for {len(val)} validation windows; "
                "forecast every window once"
            )

        known = [i for i, window in enumerate(val) if np.isfinite(window.y).any()]
        windows = [val[i] for i in known]
        rule = _choose_rule(windows, forecast_NH[known], scaler)
        return cls(_estimate(rule, windows, forecast_NH[known], scaler))

    @property
    def rule(self) -> LevelRule:
        """How errors were remembered."""
        return self.levels.rule

    def apply(self, views: Sequence[WindowView], forecast_NH: FloatArray) -> FloatArray:
        """Return forecasts (N, H) with the level of their series, in the windows' unit."""
        return self.levels.apply(views, forecast_NH[:, None])[:, 0]


def _choose_rule(windows: Sequence[Window], forecast_NH: FloatArray, scaler: Scaler) -> LevelRule:
    """Return the rule whose level of the first half of validation is best on the second."""
    if not windows:
        return NO_LEVEL
    first, second = split_by_time([window.view for window in windows])
    if not first.size:
        return NO_LEVEL

    earlier = [windows[i] for i in first]
    judged = [windows[i] for i in second]
    errors = [
        _scaled_error(
            KnownErrorLevel(_estimate(rule, earlier, forecast_NH[first], scaler)),
            judged,
            forecast_NH[second],
        )
        for rule in RULE_GRID
    ]
    # Rounded: errors that differ in the last bits alone are equal, and of equal rules the first.
    return RULE_GRID[int(np.argmin(np.round(errors, _DIGITS)))]


def _estimate(
    rule: LevelRule, windows: Sequence[Window], forecast_NH: FloatArray, scaler: Scaler
) -> ErrorLevels:
    levels = ErrorLevels(rule, scaler, 1)
    levels.observe(windows, forecast_NH[:, None])
    return levels


def _scaled_error(
    level: KnownErrorLevel, windows: Sequence[Window], forecast_NH: FloatArray
) -> float:
    views = [window.view for window in windows]
    spread_N = np.array([level.levels.scaler.std[view.entity] for view in views])
    truth_NH = np.stack([window.y for window in windows])

    error_NH = np.abs(truth_NH - level.apply(views, forecast_NH))
    return float((np.nanmean(error_NH, axis=1) / spread_N).mean())
