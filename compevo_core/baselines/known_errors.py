"""Known errors as evidence: the level of a forecaster's errors by series and step (decision 42).

What belongs here: the running evidence, what is forgotten between two days, the level that follows
from it, the choice among ways of forgetting. What does not: the errors of agents
(``agents.calibration``, ``training.calibration``) and of baselines (``evaluation.recalibration``).

A forecaster that was fitted in the past errs in one direction where the world has drifted: rooftop
solar lowers midday demand year after year. Its mean error on windows whose truth is known says by
how much. Errors are truth minus forecast, in the scaled units of the train split, so that the
series can lend each other what they know.

Shapes: A forecasters, E series, B windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.errors import DataError

POOLED_WINDOWS = 30.0
"""Windows of its own that a series needs for its own mean error to count as much as that of all
series together: a series without known errors takes over the common drift."""

Form = Literal["none", "mean", "kalman"]
NOT_STARTED = -1
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_MINUTES_PER_DAY = 1440.0


@dataclasses.dataclass(frozen=True)
class LevelRule:
    """How the past counts.

    Attributes:
        form: ``mean``: evidence decays by half in a half-life; ``kalman``: the level is a random
            walk, whose variance grows every day by what gives the filter the same time constant;
            ``none``: the level is zero.
        half_life_days: half-life of the weight of an error.
    """

    form: Form
    half_life_days: float = 90.0


NO_LEVEL = LevelRule("none")
RULE_GRID: tuple[LevelRule, ...] = (
    NO_LEVEL,
    *(LevelRule("mean", days) for days in (30.0, 90.0, 180.0)),
    *(LevelRule("kalman", days) for days in (30.0, 90.0, 180.0)),
)
"""What 'validated' chooses from; of equal ones the first."""


@dataclasses.dataclass
class ErrorEvidence:
    """The weighted sum of known errors, and the sum of their weights, after the last known day.

    Attributes:
        sum_AEH: of errors, truth minus forecast.
        weight_EH: of errors that were known; one that was missing has none.
        minute: origin of the last window, in minutes since 1970; ``NOT_STARTED`` before the first.
    """

    sum_AEH: FloatArray
    weight_EH: FloatArray
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
        """Add the errors of windows, day by day in the order of time.

        Args:
            rule: what is forgotten between two origins.
            minutes: origin of each of B windows; none may lie before the last one added.
            rows: row of each window's series.
            error_ABH: truth minus forecast, NaN where the truth is not known.

        Raises:
            DataError: a window is older than the evidence.
        """
        order = sorted(range(len(minutes)), key=lambda i: minutes[i])
        if order and minutes[order[0]] < self.minute:
            raise DataError(
                "errors are added in the order of time, and a window lies before the last one "
                "added: start over with all windows"
            )

        for i in order:
            if self.minute != NOT_STARTED:
                self._forget(rule, (minutes[i] - self.minute) / _MINUTES_PER_DAY)
            self.minute = minutes[i]

            is_known_H = np.isfinite(error_ABH[:, i]).all(axis=0)
            self.sum_AEH[:, rows[i]] += np.where(is_known_H, error_ABH[:, i], 0.0)
            self.weight_EH[rows[i]] += is_known_H

    def _forget(self, rule: LevelRule, days: float) -> None:
        """Let the weight of all evidence shrink; the mean that it stands for stays."""
        if rule.form == "kalman":
            # The weight is the inverse variance of the level in units of an error's variance; the
            # gain of a filter in its steady state is 1 - 2^(-1 / half-life), as that of the mean.
            gain = 1.0 - 0.5 ** (1.0 / rule.half_life_days)
            kept_EH = 1.0 / (1.0 + self.weight_EH * days * gain**2 / (1.0 - gain))
        else:
            kept_EH = np.full_like(self.weight_EH, 0.5 ** (days / rule.half_life_days))

        self.sum_AEH *= kept_EH
        self.weight_EH *= kept_EH


def find_rows(known: Sequence[str], entities: Sequence[str]) -> list[int]:
    """Return the row of the evidence that each of some series has.

    Args:
        known: series of the train split, in the order of their rows.
        entities: series to look up.

    Raises:
        DataError: a series is none of the train split's.
    """
    row_of = {entity: row for row, entity in enumerate(known)}
    if unknown := sorted(set(entities) - row_of.keys()):
        raise DataError(
            f"no errors are kept for {unknown}, only for the series of the train split, "
            f"{list(known)}; forecast those"
        )
    return [row_of[entity] for entity in entities]


def count_minutes(views: Sequence[WindowView]) -> list[int]:
    """Return the origin of each window in minutes since 1970."""
    return [(view.origin_utc - _EPOCH_UTC) // _MINUTE for view in views]


def estimate_level(
    rule: LevelRule,
    series: int,
    minutes: Sequence[int],
    rows: Sequence[int],
    error_ABH: FloatArray,
) -> FloatArray:
    """Return the level (A, E, H) after the errors of windows, zeros under the rule ``none``."""
    evidence = ErrorEvidence.start(len(error_ABH), series, error_ABH.shape[-1])
    if rule.form != "none":
        evidence.add(rule, minutes, rows, error_ABH)
    return evidence.level()


def split_by_time(views: Sequence[WindowView]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows of the windows before and after the middle of their span.

    A window of the first half whose target reaches into the second belongs to neither: at the
    middle nobody knew its truth.
    """
    middle = sorted({view.origin_utc for view in views})
    middle_utc = middle[len(middle) // 2]
    before = [i for i, view in enumerate(views) if view.end_utc <= middle_utc]
    after = [i for i, view in enumerate(views) if view.origin_utc >= middle_utc]
    return np.array(before, dtype=np.intp), np.array(after, dtype=np.intp)
