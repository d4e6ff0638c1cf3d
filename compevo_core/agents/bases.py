"""Members that forecast their own base: a population without a language model.

What belongs here: what forecasts by members, as a contract, and the members that forecast their
base, with their weights. What does not: agents that read (``agents.strategy``), fitting priors
(``training.prior``), weights (``agents.selection``), levels of known errors
(``agents.calibration``).

Shapes: A members, B windows, P priors of the run, H horizon.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from compevo_core.agents.decoders import BatchForecasts, ForecastExample, mix_bases
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView

if TYPE_CHECKING:
    from torch import Tensor


class Executor(Protocol):
    """What forecasts by the members of a population."""

    def retrieve_news(
        self, logics: Sequence[str], views: Sequence[WindowView]
    ) -> list[list[tuple[str, ...]]]:
        """Return the ids of the articles that each member reads, by member, then by window."""

    def base_forecasts(self, examples: Sequence[ForecastExample]) -> "Tensor | FloatArray":
        """Return the scaled base of each member, (A, B, H)."""

    def play(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Return every member's forecasts as they are scored and issued, without gradient."""


class BaseExecutor:
    """Forecasts each window by each member's mixture of the priors, and reads nothing."""

    def __init__(self, mix_AP: FloatArray) -> None:
        self.mix_AP = mix_AP

    def retrieve_news(
        self, logics: Sequence[str], views: Sequence[WindowView]
    ) -> list[list[tuple[str, ...]]]:
        """Return no article, by member, then by window."""
        return [[()] * len(views) for _ in logics]

    def base_forecasts(self, examples: Sequence[ForecastExample]) -> FloatArray:
        """Return the scaled base of each member, (A, B, H)."""
        # Float64, unlike what a language model corrects: one member is its prior to the last digit.
        return mix_bases(self.mix_AP, examples)

    def play(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Return the bases as the members' forecasts."""
        return BatchForecasts(self.base_forecasts(examples), np.zeros(len(logics)))


class EqualFitness:
    """What :class:`agents.selection.FitnessSelection` is before any round: all members alike."""

    def __init__(self, members: int, entities: Sequence[str] = ()) -> None:
        self.gates_A = np.ones(members, dtype=np.float32)
        self.fitness_EA = np.zeros((len(entities) or 1, members), dtype=np.float32)

    def weights(self, entities: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the weights (B, A), in single precision as a softmax gives them."""
        members = len(self.gates_A)
        return np.full((len(entities), members), 1.0 / members, dtype=np.float32)

    def fitness(self, entities: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the fitness (B, A)."""
        return np.zeros((len(entities), len(self.gates_A)), dtype=np.float32)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by their stored names."""
        return {"gates_A": self.gates_A, "fitness_EA": self.fitness_EA}
