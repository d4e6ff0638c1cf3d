"""The calibration of the agents' forecasts after training (decision 08-calibration).

What belongs here: the sealed state and applying it. What does not: fitting it
(``training.calibration``), errors that base models know (``baselines.known_errors``).

Shapes: A agents, B windows, H horizon.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import DEFAULT_STEPS


class ErrorCalibration:
    """The calibration of an ensemble; changes no forecast until it is fitted.

    ``blend_AH`` is the share of its correction that each agent keeps, in [0, 1]. Shared are
    ``override_A``, weights in place of the selected ones (zero if unused), and ``best_prior``, the
    agent whose base validated best.
    """

    def __init__(self, agents: int, entities: Sequence[str], horizon: int = DEFAULT_STEPS) -> None:
        self.entities = tuple(entities)
        # Single precision, as models have it.
        self.blend_AH = np.ones((agents, horizon), dtype=np.float32)
        self.override_A = np.zeros(agents, dtype=np.float32)
        self.best_prior = np.array(0)

    def agent_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by agent, by name."""
        return {"blend_AH": self.blend_AH}

    def shared_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that all agents share, by name."""
        return {"best_prior": self.best_prior, "override_A": self.override_A}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by name; what is written into them is in the calibration."""
        return self.agent_state() | self.shared_state()

    def blend(self, values_ABH: FloatArray, base_ABH: FloatArray) -> FloatArray:
        """Return each agent's base with its shrunk correction."""
        blend_A1H = self.blend_AH[:, None]
        blended = base_ABH + blend_A1H * (values_ABH - base_ABH)
        # A full correction is the agent's own forecast to the last bit, none is its base.
        return np.where(blend_A1H == 1.0, values_ABH, blended)

    def weigh(self, weights_BA: FloatArray) -> FloatArray:
        """Return the weights (B, A) of all agents, from selection or fallback."""
        if not self.override_A.any():
            return weights_BA
        return np.broadcast_to(self.override_A.astype(weights_BA.dtype), weights_BA.shape)
