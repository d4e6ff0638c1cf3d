"""Forecasts of all agents on windows with a truth, and their errors: for validation, calibration.

What belongs here: collecting the forecasts of every process, the one error that validation and
calibration go by. What does not: when to measure (``training.loop``), what is fitted to them
(``training.calibration``).

Shapes: A agents, B windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from compevo_core.agents.forecast_example import ForecastExample
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

    def take(self, windows: npt.NDArray[np.intp]) -> "AgentForecasts":
        """Return the forecasts of some of the windows."""
        return AgentForecasts(
            self.values_ABH[:, windows], self.base_ABH[:, windows], self.truth_BH[windows]
        )


@torch.no_grad()
def forecast_examples(
    model: PopulationModel,
    executor: StrategyExecutor,
    logics: Sequence[str],
    examples: Sequence[ForecastExample],
) -> AgentForecasts:
    """Forecast examples by all agents, without dropout or gradient; nothing is drawn.

    Args:
        model: the population, whose calibration is not applied.
        executor: forecasts with it.
        logics: (A,) logics of all agents.
        examples: windows with their truth; ``run.micro_batch_size`` of them are read at a time.

    Returns:
        the same on every process.
    """
    # Each process forecasts with the agents it holds; what all need is gathered.
    local = model.shards.local(logics)
    size = model.config.run.micro_batch_size
    values, bases, weights = [], [], []
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        made = executor.execute(local, part)
        values.append(model.shards.all_gather(made.values_ABH, "forecasts"))
        if made.weights_BA is not None:
            weights.append(made.weights_BA)
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
