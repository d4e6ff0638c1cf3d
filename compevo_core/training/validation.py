"""The validation error of the population and of its prior.

What belongs here: measuring both on the same windows. What does not: when to measure, and what
follows from it (``training.loop``).
"""

import dataclasses
from collections.abc import Sequence

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.training.agent_forecasts import (
    aggregate_error,
    forecast_examples,
    mean_errors,
    weigh_examples,
)
from compevo_core.training.model import PopulationModel


@dataclasses.dataclass(frozen=True)
class ValidationErrors:
    """Mean absolute errors in scaled units, mean over windows.

    Attributes:
        aggregate: of the population's forecast.
        prior: of the best of the agents' bases; of the training mean without any prior.
    """

    aggregate: float
    prior: float


def measure_validation(
    model: PopulationModel,
    executor: StrategyExecutor,
    logics: Sequence[str],
    examples: Sequence[ForecastExample],
) -> ValidationErrors:
    """Forecast the examples under the given logics (of all agents) and measure the errors.

    There is no dropout and no gradient, and nothing is drawn: validating changes no later round.
    """
    forecasts = forecast_examples(model, executor, logics, examples)
    weights_BA = weigh_examples(model, examples, forecasts)
    truth_BH = forecasts.truth_BH
    return ValidationErrors(
        aggregate=aggregate_error(forecasts.values_ABH, weights_BA, truth_BH),
        prior=float(mean_errors(forecasts.base_ABH, truth_BH).min()),
    )
