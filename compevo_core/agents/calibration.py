"""What is added to the agents' forecasts after training: blend, known errors, guard.

See decision 08-calibration.

What belongs here: the sealed state, applying it, moving it on with errors that became known. What
does not: fitting it on validation (``training.calibration``), the arithmetic of known errors
(``baselines.known_errors``).

An agent's forecast becomes base + blend * (forecast - base) + level. The blend is what its
correction has proved to be worth, by step; the level is its mean known error, by series and step.

Shapes:
    A agents, B windows, E series, H horizon.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compevo_core.baselines.known_errors import (
    NOT_STARTED,
    ErrorEvidence,
    Form,
    LevelRule,
    find_rows,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import DEFAULT_STEPS

_FORMS: tuple[Form, ...] = ("none", "mean", "kalman")  # stored by position: append, never reorder


class ErrorCalibration:
    """The calibration of an ensemble; changes no forecast until it is fitted.

    Attributes:
        blend_AH: share of its correction that each agent keeps, in [0, 1], by step.
        level_AEH: what is added to each agent's forecast, by series and step, scaled.
        evidence_AEH: weighted sum of its known errors, from which the level follows.
        weight_EH: shared: weight of the known errors.
        minute: shared: origin of the last window with a known error, in minutes since 1970.
        rule: shared: form of the level as a position in a fixed list, and its half-life in days.
        override_A: shared: weights that replace the selected ones; zero if unused.
        best_prior: shared: the agent whose base validated best.
    """

    AGENT_ARRAYS = ("blend_AH", "level_AEH", "evidence_AEH")
    """Names of the arrays whose first dimension is the agents."""

    SHARED_ARRAYS = ("best_prior", "minute", "override_A", "rule", "weight_EH")
    """Names of the arrays that belong to no agent alone."""

    def __init__(
        self,
        agents: int,
        entities: Sequence[str],
        horizon: int = DEFAULT_STEPS,
    ) -> None:
        self.entities = tuple(entities)
        series = len(self.entities)

        # Single precision, as models have it; sums over years would lose a day in it.
        self.blend_AH = np.ones((agents, horizon), dtype=np.float32)
        self.level_AEH = np.zeros((agents, series, horizon), dtype=np.float32)
        self.evidence_AEH = np.zeros((agents, series, horizon))

        self.weight_EH = np.zeros((series, horizon))
        self.minute = np.array(NOT_STARTED)
        self.rule = np.zeros(2)
        self.override_A = np.zeros(agents, dtype=np.float32)
        self.best_prior = np.array(0)

    def agent_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by agent, by name."""
        return {name: getattr(self, name) for name in self.AGENT_ARRAYS}

    def shared_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that belong to no agent alone, by name."""
        return {name: getattr(self, name) for name in self.SHARED_ARRAYS}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by name."""
        return self.agent_state() | self.shared_state()

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set all arrays to the values of another calibration, by name."""
        for name, array in self.state().items():
            array[...] = arrays[name]

    def __call__(
        self, values_ABH: FloatArray, base_ABH: FloatArray, entities: Sequence[str]
    ) -> FloatArray:
        """Return calibrated forecasts (A, B, H), scaled; DataError for a series not of train."""
        level_ABH = self.level_AEH[:, self.find_rows(entities)]
        return self.blend(values_ABH, base_ABH) + level_ABH

    def blend(self, values_ABH: FloatArray, base_ABH: FloatArray) -> FloatArray:
        """Return each agent's base with the part of its correction that has proved its worth."""
        blend_A1H = self.blend_AH[:, None]
        blended = base_ABH + blend_A1H * (values_ABH - base_ABH)
        # A full correction is the agent's own forecast to the last bit, none is its base.
        return np.where(blend_A1H == 1.0, values_ABH, blended)

    def weigh(self, weights_BA: FloatArray) -> FloatArray:
        """Return the weights (B, A) of all agents: the selection's, or what the guard put there."""
        if not self.override_A.any():
            return weights_BA
        return np.broadcast_to(self.override_A.astype(weights_BA.dtype), weights_BA.shape)

    @property
    def level_rule(self) -> LevelRule:
        """How errors are remembered."""
        form, half_life_days = self.rule.tolist()
        return LevelRule(_FORMS[int(form)], half_life_days)

    def find_rows(self, entities: Sequence[str]) -> list[int]:
        """Return the row of each series; DataError if it is none of the train split's."""
        return find_rows(self.entities, entities)

    def start_levels(self, rule: LevelRule) -> None:
        """Forget all known errors and remember the next ones by a rule."""
        self.rule[:] = _FORMS.index(rule.form), rule.half_life_days
        for array in (self.level_AEH, self.evidence_AEH, self.weight_EH):
            array.fill(0.0)
        self.minute.fill(NOT_STARTED)

    def observe(
        self, minutes: Sequence[int], entities: Sequence[str], error_ABH: FloatArray
    ) -> None:
        """Move the levels on with errors that became known; nothing happens under rule ``none``.

        The error is truth minus blended forecast, scaled, NaN where the truth is not known; minutes
        count from 1970 to each window's origin. DataError if a window lies before the last one
        whose errors are known.
        """
        rule = self.level_rule
        if rule.form == "none":
            return

        evidence = ErrorEvidence(self.evidence_AEH.copy(), self.weight_EH.copy(), int(self.minute))
        evidence.add(rule, minutes, self.find_rows(entities), np.asarray(error_ABH))

        self.evidence_AEH[:] = evidence.sum_AEH
        self.weight_EH[:] = evidence.weight_EH
        self.minute.fill(evidence.minute)
        self.level_AEH[:] = evidence.level()
