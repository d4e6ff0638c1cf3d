"""Whether a population is more than one agent repeated: do its errors differ, does its mean help?

What belongs here: figures of a population's forecasts on windows whose truth is known. What does
not: making forecasts (``training.round``, ``forecaster``), the paper's guarantees
(``diagnostics.theory``).

Where A errors of equal size have the mean correlation rho, the mean forecast has the variance of
A / (1 + (A - 1) rho) independent ones: ten copies of one agent are worth one.

Shapes: A agents, B windows, H horizon, N known targets of all windows.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationHealth:
    """How much the agents of a population differ, and what it is worth.

    Attributes:
        error_correlation: mean correlation of the errors of two agents; 1 for agents that forecast
            alike, and for a lone agent.
        gain_over_best: by how much the error of the plain mean lies below that of the best agent,
            in percent of the latter (mean absolute errors); negative where the best agent alone is
            better.
        effective_agents: number of agents with unrelated errors whose mean would be as good, from 1
            to A.
    """

    error_correlation: float
    gain_over_best: float
    effective_agents: float


def measure_health(values_ABH: npt.ArrayLike, truth_BH: npt.ArrayLike) -> PopulationHealth:
    """Measure how different the agents' errors are, over all known targets at once.

    Args:
        values_ABH: forecasts of each agent, in scaled units, so that all series count alike.
        truth_BH: in the same units; NaN targets do not count.

    Raises:
        DataError: the shapes disagree, a forecast is not finite, or no target is known.
    """
    values = np.asarray(values_ABH, dtype=np.float64)
    truth = np.asarray(truth_BH, dtype=np.float64)
    if values.ndim != 3 or values.shape[1:] != truth.shape or not len(values):
        raise DataError(
            f"forecasts of shape {values.shape} for truths of shape {truth.shape}; give (A, B, H) "
            "and (B, H)"
        )

    is_known_BH = np.isfinite(truth)
    error_AN = values[:, is_known_BH] - truth[is_known_BH]
    if not error_AN.size or not np.isfinite(error_AN).all():
        raise DataError(
            f"{error_AN.shape[1]} known targets and {(~np.isfinite(error_AN)).sum()} forecasts of "
            "them that are not finite; measure windows that are known and forecast"
        )

    agents = len(values)
    correlation = _mean_correlation(error_AN)
    # Errors that cancel would count as more agents than there are, up to infinitely many.
    effective = agents / (1.0 + (agents - 1) * max(correlation, 0.0))

    best = float(np.abs(error_AN).mean(axis=1).min())
    of_mean = float(np.abs(error_AN.mean(axis=0)).mean())
    gain = 100.0 * (best - of_mean) / best if best > 0 else 0.0

    return PopulationHealth(
        error_correlation=correlation, gain_over_best=gain, effective_agents=effective
    )


def _mean_correlation(error_AN: FloatArray) -> float:
    """Return the mean correlation of two agents' errors, 1 for a lone agent."""
    agents = len(error_AN)
    pairs = [
        _correlation(error_AN[i], error_AN[j]) for i in range(agents) for j in range(i + 1, agents)
    ]
    return float(np.mean(pairs)) if pairs else 1.0


def _correlation(first_N: FloatArray, second_N: FloatArray) -> float:
    # Equal errors are one agent twice, also where they do not vary and no correlation is defined.
    if np.array_equal(first_N, second_N):
        return 1.0

    first_N = first_N - first_N.mean()
    second_N = second_N - second_N.mean()
    size = float(np.sqrt((first_N**2).sum() * (second_N**2).sum()))
    # An error that is the same everywhere says nothing on how the other one varies.
    return float((first_N * second_N).sum()) / size if size > 0 else 0.0
