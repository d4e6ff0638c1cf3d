"""A forecast of windows with what it was made of.

What belongs here: these values in the windows' own unit. What does not: making them
(``forecast.forecaster``), keeping them (``forecast.issued``).

Shapes: A agents, N windows, Q quantile levels, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from compevo_core.data.arrays import FloatArray

_AXIS_OF_WINDOWS = {
    "aggregate": 0, "agents": 1, "step_weights": 0, "quantiles": 0, "bases": 1, "levels": 1,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Forecasts in the windows' own unit, and what they were made of."""

    # (N, H) the population's forecast, the weighted sum of the agents' (Eq. 6)
    aggregate: FloatArray
    agents: FloatArray  # (A, N, H) each agent's own forecast, calibrated (decision 08-calibration)
    # (N, A, H) weight of each agent by window and step (Eq. 5), or what the guard of the
    # calibration put in its place; they sum to 1 over the agents
    step_weights: FloatArray
    # (N, Q, H) quantiles at ``quantiles.LEVELS`` from errors of earlier days; NaN for windows with
    # too few of them
    quantiles: FloatArray
    # Ids of the articles each agent read, by agent and window, best match first
    chosen_news: list[list[tuple[str, ...]]]
    # (A, N, H) the forecast that each agent corrects: its mixture of the numeric priors
    bases: FloatArray
    levels: FloatArray  # (A, N, H) the part of each agent's forecast that is its mean known error
    # (N, H) the base that validated best, as it is; None without any prior
    prior: FloatArray | None
    # Number of answers of the text decoder that could not be parsed; the prior stands in for each.
    # 0 for the head
    n_unparsed: int

    @classmethod
    def join(cls, parts: Sequence[tuple[Sequence[int], Self]]) -> Self:
        """Put predictions of parts of the windows together."""
        order = np.argsort(np.concatenate([positions for positions, _ in parts])).tolist()
        made = [prediction for _, prediction in parts]
        priors = [of_block.prior for of_block in made if of_block.prior is not None]
        by_agent = zip(*(of_block.chosen_news for of_block in made), strict=True)
        joined = cls(
            chosen_news=[[choice for part in agent for choice in part] for agent in by_agent],
            prior=np.concatenate(priors) if priors else None,
            n_unparsed=sum(of_block.n_unparsed for of_block in made),
            **{
                name: np.concatenate([getattr(of_block, name) for of_block in made], axis=axis)
                for name, axis in _AXIS_OF_WINDOWS.items()
            },
        )
        return joined.take(order)

    def take(self, windows: Sequence[int]) -> Self:
        """Return the predictions of some windows, in the order given; counts stay as they are."""
        rows = list(windows)
        taken: dict[str, Any] = {
            name: np.take(getattr(self, name), rows, axis=axis)
            for name, axis in _AXIS_OF_WINDOWS.items()
        }
        return dataclasses.replace(
            self,
            chosen_news=[[choices[i] for i in rows] for choices in self.chosen_news],
            prior=None if self.prior is None else self.prior[rows],
            **taken,
        )

    @property
    def weights(self) -> FloatArray:
        """The mean weight of each agent over each window, (N, A)."""
        return np.asarray(self.step_weights.mean(axis=2))

    @property
    def equal(self) -> FloatArray:
        """The plain mean of the agents' forecasts, (N, H)."""
        return np.asarray(self.agents.mean(axis=0))
