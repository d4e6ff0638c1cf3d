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

from compevo_core.baselines.known_errors import (
    NO_LEVEL,
    RULE_GRID,
    LevelRule,
    count_minutes,
    estimate_level,
    split_by_time,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet, WindowView
from compevo_core.errors import DataError, LeakageError

RECALIBRATED_BASELINES = ("calendar-ridge", "gbm", "blend")
"""Baselines that are scored a second time with their known errors."""


@dataclass(frozen=True)
class KnownErrorLevel:
    """What is added to a fitted forecaster, frozen at the end of validation.

    Attributes:
        scaler: fitted on train.
        rule: how errors were remembered.
        level_EH: what is added to a forecast of each of the scaler's series, scaled.
    """

    scaler: Scaler
    rule: LevelRule
    level_EH: FloatArray

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
        views = [val[i].view for i in known]
        error_NH = np.reshape(
            [(val[i].y - forecast_NH[i]) / scaler.std[val[i].view.entity] for i in known],
            (len(known), forecast_NH.shape[1]),
        )

        rule = _choose_rule(views, error_NH, scaler)
        return cls(scaler, rule, _estimate(rule, views, error_NH, scaler))

    def apply(self, views: Sequence[WindowView], forecast_NH: FloatArray) -> FloatArray:
        """Return forecasts (N, H) with the level of their series, in the windows' unit."""
        added = [
            self.level_EH[row] * self.scaler.std[view.entity]
            for view, row in zip(views, _find_rows(views, self.scaler), strict=True)
        ]
        return forecast_NH + np.reshape(added, forecast_NH.shape)


def _choose_rule(views: Sequence[WindowView], error_NH: FloatArray, scaler: Scaler) -> LevelRule:
    """Return the rule whose level of the first half of validation is best on the second."""
    first, second = split_by_time(views) if views else (np.array([], int), np.array([], int))
    if not first.size:
        return NO_LEVEL

    earlier = [views[i] for i in first]
    rows = _find_rows([views[i] for i in second], scaler)
    errors = []
    for rule in RULE_GRID:
        level_EH = _estimate(rule, earlier, error_NH[first], scaler)
        left_NH = error_NH[second] - level_EH[rows]
        errors.append(float(np.nanmean(np.abs(left_NH), axis=1).mean()))
    return RULE_GRID[int(np.argmin(errors))]


def _estimate(
    rule: LevelRule, views: Sequence[WindowView], error_NH: FloatArray, scaler: Scaler
) -> FloatArray:
    level_AEH = estimate_level(
        rule,
        len(scaler.mean),
        count_minutes(views),
        _find_rows(views, scaler),
        error_NH[None],
    )
    return np.asarray(level_AEH[0])


def _find_rows(views: Sequence[WindowView], scaler: Scaler) -> list[int]:
    row_of = {entity: row for row, entity in enumerate(sorted(scaler.mean))}
    return [row_of[view.entity] for view in views]
