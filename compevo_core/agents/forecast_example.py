"""One window, prepared for the population to forecast.

What belongs here: the value that goes from ``training.prior`` to the agents. What does not: fitting
priors and scaling (``training.prior``), numbers as tokens (``agents.numeric_inputs``), prompts
(``agents.head_decoder``, ``agents.text_decoder``).

Shapes: A agents, B windows, P priors of the run, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView


@dataclasses.dataclass(frozen=True)
class ForecastExample:
    """A window with the forecasts of the run's priors and, in training, the truth.

    All arrays are in the scaled units of the train split, so that series of any size compare.

    Attributes:
        view: what is known at the forecast origin.
        priors_PH: the forecast of every prior; each agent corrects its own mixture of them, its
            base (decision 2). P is 0 where no agent has a prior: the base is zero then.
        truth_H: the observed values, NaN where missing; None at inference.
    """

    view: WindowView
    priors_PH: FloatArray
    truth_H: FloatArray | None = None

    @property
    def has_whole_truth(self) -> bool:
        """Whether every observed value is known."""
        return self.truth_H is not None and bool(np.isfinite(self.truth_H).all())


def mix_bases(mix_AP: FloatArray, examples: Sequence[ForecastExample]) -> FloatArray:
    """Return the forecast that each agent corrects, scaled, (A, B, H).

    Args:
        mix_AP: each agent's share in the priors.
        examples: B windows.
    """
    priors_BPH = np.stack([example.priors_PH for example in examples])
    base_ABH: FloatArray = np.einsum("ap,bph->abh", mix_AP, priors_BPH)
    return base_ABH
