"""Reward, long-term fitness, gated softmax weights and aggregation (paper 4.2, Proposition B.5.1).

What belongs here: the arithmetic of selection, differentiable in gates and forecasts.
What does not: where forecasts come from, or when fitness is updated (``trainer``).
Legend: A agents, B windows, H horizon.
"""

import torch
from torch import Tensor, nn

from compevo_core.config import SelectionConfig
from compevo_core.errors import DataError


def forecast_error(forecast: Tensor, truth_BH: Tensor, metric: str) -> Tensor:
    """L_metric per window: forecast (..., B, H) and truth (B, H) in scaled units to (..., B).

    Targets that are NaN are masked and do not count; a window without a target is an error.
    """
    known = torch.isfinite(truth_BH)
    if not known.any(dim=-1).all():
        raise DataError("a window has no known target; leave it out of training")
    gap = torch.where(known, forecast - truth_BH.nan_to_num(), 0.0)
    size = gap.square() if metric == "mse" else gap.abs()
    return size.sum(-1) / known.sum(-1)


def reward(forecast_ABH: Tensor, truth_BH: Tensor, metric: str) -> Tensor:
    """R_i = -L_metric (Eq. 3), averaged over the round's windows: (A, B, H) to (A,)."""
    return -forecast_error(forecast_ABH, truth_BH, metric).mean(-1)


class FitnessSelection(nn.Module):
    """Learnable gates g_i and the running fitness M_i of every agent."""

    fitness_A: Tensor

    def __init__(self, agents: int, config: SelectionConfig) -> None:
        super().__init__()
        self.config = config
        self.gates_A = nn.Parameter(torch.ones(agents))
        self.register_buffer("fitness_A", torch.zeros(agents))

    def weights(self) -> Tensor:
        """Weights w = softmax(g * M / tau) (Eq. 5), (A,); uniform when the ablation says so."""
        if self.config.uniform:
            return torch.full_like(self.fitness_A, 1.0 / self.fitness_A.numel())
        fitness = self.fitness_A
        if self.config.fitness_shift == "min":
            fitness = fitness - fitness.min()
        return torch.softmax(self.gates_A * fitness / self.config.temperature, dim=0)

    @torch.no_grad()
    def update(self, reward_A: Tensor) -> None:
        """M <- beta M + (1 - beta) R (Eq. 4)."""
        beta = self.config.ema
        self.fitness_A.mul_(beta).add_((1.0 - beta) * reward_A)


def aggregate(forecast_ABH: Tensor, weights_A: Tensor) -> Tensor:
    """The population's forecast, sum_i w_i Y_i (Eq. 6): (A, B, H) and (A,) to (B, H)."""
    return torch.einsum("abh,a->bh", forecast_ABH, weights_A)
