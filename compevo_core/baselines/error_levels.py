"""The levels of forecasters' known errors in the unit of a data set's series (decision 48).

What belongs here: taking note of the errors of windows, adding their levels to forecasts, the
levels as they were at each origin, their file. What does not: the arithmetic
(``baselines.known_errors``), the errors of agents (``agents.calibration``).

Shapes: P forecasters, E series, N windows, H horizon.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from compevo_core.baselines.known_errors import (
    ErrorEvidence,
    LevelRule,
    count_minutes,
    find_rows,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.replay import replay_days
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import HORIZON, Window, WindowView
from compevo_core.errors import DataError


class ErrorLevels:
    """What is added to the forecasts of fitted forecasters, by series and step.

    Args:
        rule: how errors are remembered; under ``none`` nothing is ever added.
        scaler: fitted on train, so that series can lend each other what they know.
        forecasters: number of forecasters P.
    """

    def __init__(self, rule: LevelRule, scaler: Scaler, forecasters: int) -> None:
        self.rule = rule
        self.scaler = scaler
        self.evidence = ErrorEvidence.start(forecasters, len(scaler.mean), HORIZON)
        self._entities = sorted(scaler.mean)

    @property
    def minute(self) -> int:
        """Origin of the last window whose errors are known, in minutes since 1970."""
        return self.evidence.minute

    def observe(self, windows: Sequence[Window], forecast_NPH: FloatArray) -> None:
        """Take note of errors; nothing happens under the rule ``none``.

        Args:
            windows: their truth is known, in part at least.
            forecast_NPH: forecasts without level, in the windows' units.

        Raises:
            DataError: a window lies before the last one whose errors are known, is of a series
                that train did not have, or the forecasts are not those of the windows.
        """
        if forecast_NPH.shape != (len(windows), len(self.evidence.sum_AEH), HORIZON):
            raise DataError(
                f"forecasts of shape {forecast_NPH.shape} for {len(windows)} windows and "
                f"{len(self.evidence.sum_AEH)} forecasters; forecast every window once"
            )
        if self.rule.form == "none" or not len(windows):
            return

        views = [window.view for window in windows]
        rows = self._rows(views)  # first, as it refuses a series that train did not have
        truth_N1H = np.stack([window.y for window in windows])[:, None]
        error_NPH = (truth_N1H - forecast_NPH) / self._spread(views)
        self.evidence.add(self.rule, count_minutes(views), rows, error_NPH.swapaxes(0, 1))

    def apply(self, views: Sequence[WindowView], forecast_NPH: FloatArray) -> FloatArray:
        """Return forecasts with the level of their series, in the views' units.

        Raises:
            DataError: a view is of a series that train did not have.
        """
        if self.rule.form == "none" or not views:
            return forecast_NPH
        level_NPH = self.evidence.level()[:, self._rows(views)].swapaxes(0, 1)
        return np.asarray(forecast_NPH + level_NPH * self._spread(views))

    def save(self, file: Path) -> None:
        """Write the evidence; rule and scaler are the run's."""
        tensors = {
            "sum": self.evidence.sum_AEH,
            "weight": self.evidence.weight_EH,
            "minute": np.array(self.evidence.minute),
        }
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, file)

    def load(self, file: Path) -> None:
        """Read what :meth:`save` wrote."""
        tensors = load_file(file)
        self.evidence = ErrorEvidence(tensors["sum"], tensors["weight"], tensors["minute"].item())

    def _rows(self, views: Sequence[WindowView]) -> list[int]:
        return find_rows(self._entities, [view.entity for view in views])

    def _spread(self, views: Sequence[WindowView]) -> FloatArray:
        return np.array([self.scaler.std[view.entity] for view in views])[:, None, None]


def follow_levels(
    rule: LevelRule, scaler: Scaler, windows: Sequence[Window], forecast_NPH: FloatArray
) -> FloatArray:
    """Return forecasts with the level that was known at the origin of each window.

    Args:
        rule: how errors are remembered.
        scaler: fitted on train.
        windows: with their truth; a window's own target and later ones never reach its forecast.
        forecast_NPH: forecasts without level, in the windows' units.
    """
    levels = ErrorLevels(rule, scaler, forecast_NPH.shape[1])
    followed_NPH = np.empty_like(forecast_NPH)

    def forecast(today: list[int]) -> None:
        views = [windows[i].view for i in today]
        followed_NPH[today] = levels.apply(views, forecast_NPH[today])

    def observe(ended: list[int]) -> None:
        levels.observe([windows[i] for i in ended], forecast_NPH[ended])

    replay_days([window.view for window in windows], forecast, observe)
    return followed_NPH
