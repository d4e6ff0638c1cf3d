"""Forecasts of all agents on windows with a truth, and their errors: for validation, calibration.

What belongs here: collecting the forecasts of every process, the one error that validation and
calibration go by. What does not: when to measure (``training.trainer``), what is fitted to them
(``training.calibration``).

Shapes: A agents, B windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from compevo_core.agents.debate import DebateExecutor
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.data.arrays import FloatArray
from compevo_core.training.model import PopulationModel


@dataclasses.dataclass(frozen=True)
class AgentForecasts:
    """Forecasts of windows whose truth is known, scaled.

    Attributes:
        values_ABH: forecasts of the agents.
        base_ABH: the bases that they correct.
        truth_BH: NaN where missing; every window has a known target.
        weights_BA: how much each agent counts, where its forecast says so; else None.
    """

    values_ABH: FloatArray
    base_ABH: FloatArray
    truth_BH: FloatArray
    weights_BA: FloatArray | None = None

    def blend(self, blend_AH: FloatArray) -> FloatArray:
        """Return the bases with a share of the corrections, (A, B, H)."""
        return self.base_ABH + blend_AH[:, None] * (self.values_ABH - self.base_ABH)

    def select(self, windows: npt.NDArray[np.intp]) -> "AgentForecasts":
        """Return the forecasts of some of the windows."""
        return AgentForecasts(
            self.values_ABH[:, windows], self.base_ABH[:, windows], self.truth_BH[windows]
        )


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

    There is no dropout and no gradient, and nothing is sampled: validating changes no later round.
    """
    forecasts = forecast_examples(model, executor, logics, examples)
    weights_BA = weigh_examples(model, examples, forecasts)
    truth_BH = forecasts.truth_BH
    return ValidationErrors(
        aggregate=aggregate_error(forecasts.values_ABH, weights_BA, truth_BH),
        prior=float(mean_errors(forecasts.base_ABH, truth_BH).min()),
    )


@torch.no_grad()
def forecast_examples(
    model: PopulationModel,
    executor: StrategyExecutor,
    logics: Sequence[str],
    examples: Sequence[ForecastExample],
) -> AgentForecasts:
    """Forecast examples by all agents, without dropout or gradient; nothing is sampled.

    The calibration is not applied. ``run.micro_batch_size`` windows are read at a time. The result
    is the same on every process.
    """
    # Each process forecasts with the agents it holds; what all need is gathered.
    local = model.shards.local(logics)
    size = model.config.run.micro_batch_size
    forecast = executor.debate if isinstance(executor, DebateExecutor) else executor.forecast
    values, bases, weights = [], [], []
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        forecasts = forecast(local, part)
        values.append(model.shards.all_gather(forecasts.values_ABH, "forecasts"))
        if forecasts.weights_BA is not None:
            weights.append(forecasts.weights_BA)
        bases.append(model.shards.all_gather(executor.base_forecasts(part), "forecasts"))

    return AgentForecasts(
        values_ABH=torch.cat(values, 1).cpu().numpy().astype(np.float64),
        base_ABH=torch.cat(bases, 1).cpu().numpy().astype(np.float64),
        truth_BH=np.stack([np.asarray(example.truth_H) for example in examples]),
        weights_BA=torch.cat(weights).cpu().numpy().astype(np.float64) if weights else None,
    )


@torch.no_grad()
def weigh_examples(
    model: PopulationModel, examples: Sequence[ForecastExample], forecasts: AgentForecasts
) -> FloatArray:
    """Return the weights (B, A) of all agents: the forecasts' own, else the selection's."""
    if forecasts.weights_BA is not None:
        return forecasts.weights_BA
    # A debate's verifiers weigh each window by itself; fitness weighs each series.
    weights_BA = model.selection.weights([example.view.entity for example in examples])
    return np.asarray(weights_BA.cpu().numpy().astype(np.float64))


def mean_error(values_BH: FloatArray, truth_BH: FloatArray) -> float:
    """Return the mean absolute error, mean over windows; missing targets do not count."""
    return float(np.nanmean(np.abs(values_BH - truth_BH), axis=1).mean())


def mean_errors(values_ABH: FloatArray, truth_BH: FloatArray) -> FloatArray:
    """Return each agent's mean absolute error (A,)."""
    return np.array([mean_error(values_BH, truth_BH) for values_BH in values_ABH])


def aggregate_error(values_ABH: FloatArray, weights_BA: FloatArray, truth_BH: FloatArray) -> float:
    """Return the mean absolute error of the weighted forecast."""
    return mean_error(np.einsum("abh,ba->bh", values_ABH, weights_BA), truth_BH)
