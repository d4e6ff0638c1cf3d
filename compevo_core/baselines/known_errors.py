"""Known errors as evidence: the level of a forecaster's errors by series and step.

A forecaster that was fitted in the past errs in one direction where the world has drifted: rooftop
solar lowers midday demand year after year. Its mean error on windows whose truth is known says by
how much (decisions 02-priors and 08-calibration). Errors are truth minus forecast, in the scaled
units of the train split, so that the series can lend each other what they know.

Shapes: P forecasters, E series, N windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import DEFAULT_STEPS, Window, WindowView, count_minutes, replay_days
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, LeakageError

POOLED_WINDOWS = 30.0
"""Windows that a series needs for its own mean error to count as much as the mean error of all
series together: a series without known errors takes over the common drift."""

_DIGITS = 9  # of errors: those that differ only in the last bits are equal

Form = Literal["none", "mean", "kalman"]
NOT_STARTED = -1


@dataclasses.dataclass(frozen=True)
class LevelRule:
    """How the past counts."""

    # ``mean``: evidence decays by half in a half-life; ``kalman``: the level is a random walk, and
    # its variance grows daily to give the filter the same time constant; ``none``: it is zero
    form: Form
    half_life_days: float = 90.0  # half-life of the weight of an error


NO_LEVEL = LevelRule("none")
RULE_GRID: tuple[LevelRule, ...] = (
    NO_LEVEL,
    *(LevelRule("mean", days) for days in (30.0, 90.0, 180.0)),
    *(LevelRule("kalman", days) for days in (30.0, 90.0, 180.0)),
)
"""What the levels of recalibrated baselines are chosen from; of equal ones the first."""


def split_by_time(views: Sequence[WindowView]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows of the windows before and after the middle of their span.

    One whose target reaches over the middle is in neither half: its truth was unknown there.
    """
    middle = sorted({view.origin_utc for view in views})
    middle_utc = middle[len(middle) // 2]
    before = [i for i, view in enumerate(views) if view.end_utc <= middle_utc]
    after = [i for i, view in enumerate(views) if view.origin_utc >= middle_utc]
    return np.array(before, dtype=np.intp), np.array(after, dtype=np.intp)


class ErrorLevels:
    """What is added to the forecasts of P fitted forecasters, by series and step.

    It is kept as the weighted sum of scaled errors and the sum of weights after the last known day.
    """

    def __init__(
        self, rule: LevelRule, scaler: Scaler, forecasters: int, horizon: int = DEFAULT_STEPS
    ) -> None:
        self.rule = rule
        self.scaler = scaler
        # Origin of the last window whose errors are known, in minutes since 1970
        self.minute = NOT_STARTED
        self._row_of = {entity: row for row, entity in enumerate(sorted(scaler.mean))}
        self._sum_PEH = np.zeros((forecasters, len(scaler.mean), horizon))
        self.weight_EH = np.zeros((len(scaler.mean), horizon))

    def observe(self, windows: Sequence[Window], forecast_NPH: FloatArray) -> None:
        """Add the errors of forecasts without level, in the windows' units, by time.

        DataError if a window is older than the last one added or of an unknown series, or there is
        not one forecast for each window.
        """
        if not len(windows):
            return
        forecasters, _, horizon = self._sum_PEH.shape
        if forecast_NPH.shape != (len(windows), forecasters, horizon):
            raise DataError(
                f"forecasts of shape {forecast_NPH.shape} for {len(windows)} windows and "
                f"{forecasters} forecasters; forecast every window once"
            )
        if self.rule.form == "none":
            return

        views = [window.view for window in windows]
        rows = self._find_rows(views)  # first, as it raises for a series that train did not have
        minutes = count_minutes(views).tolist()
        if min(minutes) < self.minute:
            raise DataError(
                "a window is earlier than the last one added: add all again, in the order of time"
            )
        truth_N1H = np.stack([window.y for window in windows])[:, None]
        error_NPH = (truth_N1H - forecast_NPH) / self.scaler.stack_spreads(views)[:, None]
        for i in np.argsort(minutes, kind="stable").tolist():
            if self.minute != NOT_STARTED:
                days = (minutes[i] - self.minute) / 1440
                # The weight of all errors shrinks; the mean that they stand for stays.
                decay_EH = np.asarray(0.5 ** (days / self.rule.half_life_days))
                if self.rule.form == "kalman":
                    # The weight is the inverse variance of the level in units of an error's; in a
                    # steady state the filter has the gain of the mean, 1 - 2^(-1 / half-life).
                    gain = 1.0 - 0.5 ** (1.0 / self.rule.half_life_days)
                    decay_EH = 1.0 / (1.0 + self.weight_EH * days * gain**2 / (1.0 - gain))
                self._sum_PEH *= decay_EH
                self.weight_EH *= decay_EH
            self.minute = minutes[i]

            # One that was missing has no weight.
            is_known_H = np.isfinite(error_NPH[i]).all(axis=0)
            self._sum_PEH[:, rows[i]] += np.where(is_known_H, error_NPH[i], 0.0)
            self.weight_EH[rows[i]] += is_known_H

    def estimate(self) -> FloatArray:
        """Return the level (P, E, H), scaled: each series' mean error, drawn to the pooled one.

        A series counts by the weight of its own errors, the mean over all series by
        ``POOLED_WINDOWS``. The level is zero where no series has a known error.
        """
        total_H = self.weight_EH.sum(axis=0)
        pooled_P1H = (self._sum_PEH.sum(axis=1) / np.where(total_H > 0, total_H, 1.0))[:, None]
        drawn_PEH = self._sum_PEH + POOLED_WINDOWS * pooled_P1H
        return np.asarray(drawn_PEH / (self.weight_EH + POOLED_WINDOWS))

    def apply(self, views: Sequence[WindowView], forecast_NPH: FloatArray) -> FloatArray:
        """Return forecasts with the level of their series; DataError if train did not have it."""
        if self.rule.form == "none" or not views:
            return forecast_NPH
        level_NPH = self.estimate()[:, self._find_rows(views)].swapaxes(0, 1)
        return forecast_NPH + level_NPH * self.scaler.stack_spreads(views)[:, None]

    def save(self, file: Path) -> None:
        """Write the errors; the run itself stores the rule and the scaler."""
        tensors = {"sum": self._sum_PEH, "weight": self.weight_EH, "minute": np.array(self.minute)}
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, file)

    def load(self, file: Path) -> None:
        """Read what :meth:`save` wrote."""
        tensors = load_file(file)
        self._sum_PEH, self.weight_EH = tensors["sum"], tensors["weight"]
        self.minute = tensors["minute"].item()

    def _find_rows(self, views: Sequence[WindowView]) -> list[int]:
        if unknown := sorted({view.entity for view in views} - self._row_of.keys()):
            raise DataError(
                f"{unknown} have no errors, only the series of the train split have, "
                f"{list(self._row_of)}; forecast those"
            )
        return [self._row_of[view.entity] for view in views]


def follow_levels(
    rule: LevelRule, scaler: Scaler, windows: Sequence[Window], forecast_NPH: FloatArray
) -> FloatArray:
    """Return forecasts with the level that was known at the origin of each window.

    ``forecast_NPH`` are forecasts without level, in the windows' units. A window's own target and
    later ones never reach its forecast.
    """
    levels = ErrorLevels(rule, scaler, *forecast_NPH.shape[1:])
    followed_NPH = np.empty_like(forecast_NPH)

    for ended, today in replay_days([window.view for window in windows]):
        levels.observe([windows[i] for i in ended], forecast_NPH[ended])
        views = [windows[i].view for i in today]
        followed_NPH[today] = levels.apply(views, forecast_NPH[today])
    return followed_NPH


def fit_known_errors(val: WindowSet, forecast_NH: FloatArray, scaler: Scaler) -> ErrorLevels:
    """Estimate the level of validation forecasts, with the rule that does best there.

    LeakageError for a window of another split; DataError without one forecast for each window.
    """
    others = {view.split for view in val.views()} - {"val"}
    if others:
        raise LeakageError(f"pass split('val') to recalibrate on, not windows of {sorted(others)}")
    if forecast_NH.shape != val.truth().shape:
        raise DataError(
            f"forecasts of shape {forecast_NH.shape} for {len(val)} validation windows; "
            "forecast every window once"
        )

    known = [i for i, window in enumerate(val) if np.isfinite(window.y).any()]
    windows, forecast_NPH = [val[i] for i in known], forecast_NH[known][:, None]
    views = [window.view for window in windows]

    def estimate(rule: LevelRule, rows: npt.NDArray[np.intp]) -> ErrorLevels:
        levels = ErrorLevels(rule, scaler, *forecast_NPH.shape[1:])
        levels.observe([windows[i] for i in rows], forecast_NPH[rows])
        return levels

    first, second = split_by_time(views) if views else np.empty((2, 0), dtype=np.intp)
    if not first.size:
        return estimate(NO_LEVEL, np.arange(len(windows)))

    # The rule whose level of the first half of validation is best on the second.
    later = [views[i] for i in second]
    truth_NH = np.stack([windows[i].y for i in second])
    spread_N = scaler.stack_spreads(later)[:, 0]
    errors = []
    for rule in RULE_GRID:
        levelled_NPH = estimate(rule, first).apply(later, forecast_NPH[second])
        error_N = np.nanmean(np.abs(truth_NH - levelled_NPH[:, 0]), axis=1)
        errors.append(float((error_N / spread_N).mean()))
    return estimate(RULE_GRID[int(np.argmin(np.round(errors, _DIGITS)))], np.arange(len(windows)))
