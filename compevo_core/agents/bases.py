"""Members that forecast their own base: a population without a language model.

What belongs here: what forecasts by members, as a contract, and the members that forecast their
base. What does not: agents that read (``agents.strategy``), fitting priors (``training.prior``),
weights (``agents.selection``), levels of known errors (``agents.calibration``).

Shapes: A members, B windows, P priors of the run, H horizon.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from compevo_core.agents.decoders import BatchForecasts, ForecastExample, mix_bases
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView


class Executor(Protocol):
    """What forecasts by the members of a population."""

    def retrieve_news(
        self, logics: Sequence[str], views: Sequence[WindowView]
    ) -> list[list[tuple[str, ...]]]:
        """Return the ids of the articles that each member reads, by member, then by window."""

    def base_forecasts(self, examples: Sequence[ForecastExample]) -> Tensor:
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

    def base_forecasts(self, examples: Sequence[ForecastExample]) -> Tensor:
        """Return the scaled base of each member, (A, B, H)."""
        # Float64, unlike what a language model corrects: one member is its prior to the last digit.
        return torch.from_numpy(mix_bases(self.mix_AP, examples))

    def play(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Return the bases as the members' forecasts."""
        return BatchForecasts(self.base_forecasts(examples), torch.zeros(len(logics)))
