"""Rules that weigh experts by their known errors: the state of one set of weights.

What belongs here: what a rule remembers, how an error changes it, the weights that follow, the
regret that it promises. What does not: which errors are known when (``online.selection``), regret
as it came out (``online.regret``).

``boa`` and ``ml-poly`` see the slope of the mixture's absolute error in place of the experts' own
losses. What they promise then holds against every fixed mixture of the experts, not only against
the best one.

Shapes: A experts, h steps of a part of the day.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from compevo_core.config_sections import SelectionConfig
from compevo_core.data.arrays import FloatArray

_TINY = float(np.finfo(np.float64).tiny)


class RuleState(Protocol):
    """What a rule knows of A experts."""

    def weights(self) -> FloatArray:
        """Return the weights (A,), which sum to 1."""

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Take note of one forecast whose truth is known at all h steps.

        Args:
            experts_Ah: what the experts forecast.
            mixture_h: what was forecast by their mixture.
            truth_h: finite.
        """


class EqualState:
    """All experts alike, whatever they forecast."""

    def __init__(self, experts: int) -> None:
        self._experts = experts

    def weights(self) -> FloatArray:
        """Return 1 / A for each."""
        return np.full(self._experts, 1.0 / self._experts)

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Learn nothing."""


class InverseState:
    """Weights in inverse proportion to the decayed mean squared error (Bates and Granger 1969).

    Args:
        experts: their number A.
        half_life_days: half-life of an error's weight, in observed days.
    """

    def __init__(self, experts: int, half_life_days: float) -> None:
        self._kept = 0.5 ** (1.0 / half_life_days)
        self._sum_A = np.zeros(experts)

    def weights(self) -> FloatArray:
        """Return weights that are equal before the first error."""
        inverse_A = 1.0 / np.maximum(self._sum_A, _TINY)
        return np.asarray(inverse_A / inverse_A.sum())

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Add a day's mean squared errors to what is left of earlier ones."""
        self._sum_A = self._kept * self._sum_A + ((experts_Ah - truth_h) ** 2).mean(axis=1)


class BoaState:
    """Bernstein online aggregation, a learning rate for each expert (Wintenberger 2017)."""

    def __init__(self, experts: int) -> None:
        self._range = 0.0  # largest excess loss so far: the rule adapts to the unit of the errors
        self._squares_A = np.zeros(experts)
        self._gain_A = np.zeros(experts)  # sum of r - rate * r^2, whatever the rate was then

    def weights(self) -> FloatArray:
        """Return weights proportional to rate * exp(rate * gain)."""
        rate_A = self._rates()
        score_A = rate_A * self._gain_A + np.log(rate_A)
        weight_A = np.exp(score_A - score_A.max())
        return np.asarray(weight_A / weight_A.sum())

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Add the excess losses of the mixture over each expert."""
        excess_A = find_excess(experts_Ah, mixture_h, truth_h)
        self._range = max(self._range, float(np.abs(excess_A).max()))
        self._gain_A = self._gain_A + excess_A - self._rates() * excess_A**2
        self._squares_A = self._squares_A + excess_A**2

    def _rates(self) -> FloatArray:
        if self._range == 0.0:
            return np.ones_like(self._gain_A)
        log_experts = math.log(max(2, len(self._gain_A)))
        second_order_A = np.sqrt(log_experts / (self._range**2 + self._squares_A))
        return np.minimum(1.0 / (2.0 * self._range), second_order_A)


class MlPolyState:
    """Polynomially weighted averages, a learning rate for each expert (Gaillard et al. 2014)."""

    def __init__(self, experts: int) -> None:
        self._range = 0.0
        self._squares_A = np.zeros(experts)
        self._regret_A = np.zeros(experts)

    def weights(self) -> FloatArray:
        """Return weights proportional to rate * positive part of the regret."""
        pull_A = np.maximum(self._regret_A, 0.0)
        if not pull_A.any():
            return np.full(len(pull_A), 1.0 / len(pull_A))
        weight_A = pull_A / (self._range**2 + self._squares_A)
        return np.asarray(weight_A / weight_A.sum())

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Add the excess losses of the mixture over each expert."""
        excess_A = find_excess(experts_Ah, mixture_h, truth_h)
        self._range = max(self._range, float(np.abs(excess_A).max()))
        self._regret_A = self._regret_A + excess_A
        self._squares_A = self._squares_A + excess_A**2


def find_excess(experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> FloatArray:
    """Return the excess loss of a mixture over each expert (A,), linearised at the mixture.

    With the slope of the absolute error, sign(mixture - truth), an expert that lies on the other
    side of the truth gains by it.
    """
    slope_h = np.sign(mixture_h - truth_h)
    return np.asarray((slope_h * (mixture_h - experts_Ah)).mean(axis=1))


def build_state(config: SelectionConfig, experts: int, paper: Callable[[], RuleState]) -> RuleState:
    """Return the state of a rule that has seen nothing.

    Args:
        config: ``rule`` and its settings.
        experts: their number A.
        paper: makes the state of the paper's rule, which begins with what training learnt.
    """
    if config.rule == "paper":
        return paper()
    if config.rule == "inverse":
        return InverseState(experts, config.half_life_days)
    if config.rule == "boa":
        return BoaState(experts)
    return MlPolyState(experts) if config.rule == "ml-poly" else EqualState(experts)
