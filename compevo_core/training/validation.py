"""The validation error of the population and of its prior.

What belongs here: measuring both on the same windows. What does not: when to measure, and what
follows from it (``training.trainer``).

Shapes: A agents, B windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.selection import aggregate_forecasts
from compevo_core.agents.strategy import StrategyExecutor
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
    aggregate_errors: list[float] = []
    prior_errors: list[list[float]] = [[] for _ in logics]
    size = model.config.run.micro_batch_size

    # The mean is over windows, not over micro-batches: the last one may be smaller.
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        local = executor.forecast(model.shards.local(logics), part)
        values_ABH = model.shards.all_gather(local.values_ABH, "forecasts")
        base_ABH = model.shards.all_gather(executor.base_forecasts(part), "forecasts")
        weights_BA = model.selection.weights([example.view.entity for example in part])
        mean_BH = aggregate_forecasts(values_ABH, weights_BA)

        aggregate_errors += _mean_absolute_errors(mean_BH, part)
        for errors, base_BH in zip(prior_errors, base_ABH, strict=True):
            errors += _mean_absolute_errors(base_BH, part)

    prior = min(float(np.mean(errors)) for errors in prior_errors)
    return ValidationErrors(float(np.mean(aggregate_errors)), prior)


def _mean_absolute_errors(forecast_BH: Tensor, examples: Sequence[ForecastExample]) -> list[float]:
    # Missing targets are NaN and do not count.
    return [
        float(np.nanmean(np.abs(forecast_H - example.truth_H)))
        for forecast_H, example in zip(forecast_BH.detach().cpu().numpy(), examples, strict=True)
    ]
