"""The validation error of the population and of its prior.

What belongs here: measuring both on the same windows. What does not: when to measure, and what
follows from it (``training.trainer``).

Shapes: A agents, B windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.selection import aggregate_forecasts
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.data.arrays import FloatArray
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
    base_errors: list[list[list[float]]] = []
    size = model.config.run.micro_batch_size

    # The mean is over windows, not over micro-batches: the last one may be smaller.
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        local = executor.forecast(model.shards.local(logics), part)
        values_ABH = model.shards.all_gather(local.values_ABH, "forecasts")
        weights_BA = model.selection.weights([example.view.entity for example in part]).detach()
        mean_BH = aggregate_forecasts(values_ABH, weights_BA).cpu().numpy()

        aggregate_errors += _mean_absolute_errors(mean_BH, part)
        base_ABH = model.shards.all_gather(executor.base_forecasts(part), "forecasts")
        base_errors.append([_mean_absolute_errors(b.cpu().numpy(), part) for b in base_ABH])

    # The best prior: a population that any of them beats has learnt nothing.
    prior_A = np.concatenate(base_errors, 1).mean(1)
    return ValidationErrors(float(np.mean(aggregate_errors)), float(prior_A.min()))


def _mean_absolute_errors(
    forecast_BH: FloatArray, examples: Sequence[ForecastExample]
) -> list[float]:
    # Missing targets are NaN and do not count.
    return [
        float(np.nanmean(np.abs(forecast_H - example.truth_H)))
        for forecast_H, example in zip(forecast_BH, examples, strict=True)
    ]
