"""One window, prepared for the population to forecast.

What belongs here: the value that goes from ``training.prior`` to the agents. What does not: fitting
the prior and scaling (``training.prior``), prompts (``agents.strategy``).

Shapes: H horizon.
"""

import dataclasses

from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import WindowView


@dataclasses.dataclass(frozen=True)
class ForecastExample:
    """A window with the forecast that the agents correct and, in training, the truth.

    Both arrays are in the scaled units of the train split, so that series of any size compare.

    Attributes:
        view: what is known at the forecast origin.
        base_H: the prior's forecast, zeros without a prior; the agents forecast the correction to
            it (decision 2).
        truth_H: the observed values, NaN where missing; None at inference.
    """

    view: WindowView
    base_H: FloatArray
    truth_H: FloatArray | None = None
