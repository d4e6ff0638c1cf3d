"""Known errors as evidence: the level of a forecaster's errors by series and step.

A forecaster that was fitted in the past errs in one direction where the world has drifted: rooftop
solar lowers midday demand year after year. Its mean error on windows whose truth is known says by
how much (decisions 02-priors and 08-calibration). Errors are truth minus forecast, in the scaled
units of the train split, so that the series can lend each other what they know.

Shapes: A or P forecasters, E series, B or N windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import DEFAULT_STEPS, Window, WindowView, replay_days
from compevo_core.errors import DataError

POOLED_WINDOWS = 30.0
"""Windows that a series needs for its own mean error to count as much as the mean error of all
series together: a series without known errors takes over the common drift."""

Form = Literal["none", "mean", "kalman"]
NOT_STARTED = -1
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)


@dataclasses.dataclass(frozen=True)
class LevelRule:
    """How the past counts."""

    # ``mean``: evidence decays by half in a half-life; ``kalman``: the level is a random walk,
    # whose variance grows every day by what gives the filter the same time constant; ``none``: the
    # level is zero
    form: Form
    half_life_days: float = 90.0  # half-life of the weight of an error


NO_LEVEL = LevelRule("none")
RULE_GRID: tuple[LevelRule, ...] = (
    NO_LEVEL,
    *(LevelRule("mean", days) for days in (30.0, 90.0, 180.0)),
    *(LevelRule("kalman", days) for days in (30.0, 90.0, 180.0)),
)
"""What the levels of recalibrated baselines are chosen from; of equal ones the first."""


@dataclasses.dataclass
class ErrorEvidence:
    """The weighted sum of known errors, and the sum of their weights, after the last known day."""

    sum_AEH: FloatArray  # of errors, truth minus forecast
    weight_EH: FloatArray  # of errors that were known; one that was missing has none
    # Origin of the last window, in minutes since 1970; ``NOT_STARTED`` before the first
    minute: int = NOT_STARTED

    @classmethod
    def start(cls, forecasters: int, series: int, horizon: int) -> Self:
        """Return no evidence."""
        return cls(np.zeros((forecasters, series, horizon)), np.zeros((series, horizon)))

    def level(self) -> FloatArray:
        """Return the level (A, E, H) to add to a forecast: each series' mean, drawn to the pooled.

        A series counts by the weight of its own errors, the mean over all series by
        ``POOLED_WINDOWS``. The level is zero where no series has a known error.
        """
        total_H = self.weight_EH.sum(axis=0)
        safe_H = np.where(total_H > 0, total_H, 1.0)
        pooled_A1H = (self.sum_AEH.sum(axis=1) / safe_H)[:, None]
        return np.asarray(
            (self.sum_AEH + POOLED_WINDOWS * pooled_A1H) / (self.weight_EH + POOLED_WINDOWS)
        )

    def add(
        self,
        rule: LevelRule,
        minutes: Sequence[int],
        rows: Sequence[int],
        error_ABH: FloatArray,
    ) -> None:
        """Add the errors (truth minus forecast, NaN where unknown) of B windows by time.

        ``minutes`` are the origins and ``rows`` the series of the windows; DataError if one is
        older than the evidence.
        """
        order = sorted(range(len(minutes)), key=lambda i: minutes[i])
        if order and minutes[order[0]] < self.minute:
            raise DataError(
                "errors are added in the order of time, and a window is earlier than the last one "
                "added: start over with all windows"
            )

        for i in order:
            if self.minute != NOT_STARTED:
                self._forget(rule, (minutes[i] - self.minute) / 1440)
            self.minute = minutes[i]

            is_known_H = np.isfinite(error_ABH[:, i]).all(axis=0)
            self.sum_AEH[:, rows[i]] += np.where(is_known_H, error_ABH[:, i], 0.0)
            self.weight_EH[rows[i]] += is_known_H

    def _forget(self, rule: LevelRule, days: float) -> None:
        """Let the weight of all evidence shrink; the mean that it stands for stays."""
        if rule.form == "kalman":
            # The weight is the inverse variance of the level in units of an error's variance; in a
            # steady state the filter has the gain of the mean, 1 - 2^(-1 / half-life).
            gain = 1.0 - 0.5 ** (1.0 / rule.half_life_days)
            decay_EH = 1.0 / (1.0 + self.weight_EH * days * gain**2 / (1.0 - gain))
        else:
            decay_EH = np.full_like(self.weight_EH, 0.5 ** (days / rule.half_life_days))

        self.sum_AEH *= decay_EH
        self.weight_EH *= decay_EH


def count_minutes(views: Sequence[WindowView]) -> list[int]:
    """Return the origin of each window in minutes since 1970."""
    return [(view.origin_utc - _EPOCH_UTC) // _MINUTE for view in views]


def split_by_time(views: Sequence[WindowView]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows of the windows before and after the middle of their span.

    A window of the first half whose target reaches into the second belongs to neither: at the
    middle its truth was unknown.
    """
    middle = sorted({view.origin_utc for view in views})
    middle_utc = middle[len(middle) // 2]
    before = [i for i, view in enumerate(views) if view.end_utc <= middle_utc]
    after = [i for i, view in enumerate(views) if view.origin_utc >= middle_utc]
    return np.array(before, dtype=np.intp), np.array(after, dtype=np.intp)


class ErrorLevels:
    """What is added to the forecasts of P fitted forecasters, by series and step.

    Errors are kept in units of the scaler, so that series can lend each other what they know.
    """

    def __init__(
        self,
        rule: LevelRule,
        scaler: Scaler,
        forecasters: int,
        horizon: int = DEFAULT_STEPS,
    ) -> None:
        self.rule = rule
        self.scaler = scaler
        self.evidence = ErrorEvidence.start(forecasters, len(scaler.mean), horizon)
        self._entities = sorted(scaler.mean)

    @property
    def minute(self) -> int:
        """Origin of the last window whose errors are known, in minutes since 1970."""
        return self.evidence.minute

    def observe(self, windows: Sequence[Window], forecast_NPH: FloatArray) -> None:
        """Add the errors of forecasts without level, in the windows' units, to the evidence.

        DataError if a window is older than the evidence or of an unknown series, or there is not
        one forecast for each window.
        """
        if not len(windows):
            return
        forecasters, _, horizon = self.evidence.sum_AEH.shape
        if forecast_NPH.shape != (len(windows), forecasters, horizon):
            raise DataError(
                f"forecasts of shape {forecast_NPH.shape} for {len(windows)} windows and "
                f"{forecasters} forecasters; forecast every window once"
            )
        if self.rule.form == "none":
            return

        views = [window.view for window in windows]
        rows = self._rows(views)  # first, as it raises for a series that train did not have
        truth_N1H = np.stack([window.y for window in windows])[:, None]
        error_NPH = (truth_N1H - forecast_NPH) / self.scaler.stack_spreads(views)[:, None]
        self.evidence.add(self.rule, count_minutes(views), rows, error_NPH.swapaxes(0, 1))

    def apply(self, views: Sequence[WindowView], forecast_NPH: FloatArray) -> FloatArray:
        """Return forecasts with the level of their series; DataError if train did not have it."""
        if self.rule.form == "none" or not views:
            return forecast_NPH
        level_NPH = self.evidence.level()[:, self._rows(views)].swapaxes(0, 1)
        return forecast_NPH + level_NPH * self.scaler.stack_spreads(views)[:, None]

    def save(self, file: Path) -> None:
        """Write the evidence; the run itself stores the rule and the scaler."""
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
        row_of = {entity: row for row, entity in enumerate(self._entities)}
        if unknown := sorted({view.entity for view in views} - row_of.keys()):
            raise DataError(
                f"{unknown} have no errors, only the series of the train split have, "
                f"{self._entities}; forecast those"
            )
        return [row_of[view.entity] for view in views]


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
        if ended:
            levels.observe([windows[i] for i in ended], forecast_NPH[ended])
        if today:
            views = [windows[i].view for i in today]
            followed_NPH[today] = levels.apply(views, forecast_NPH[today])
    return followed_NPH
