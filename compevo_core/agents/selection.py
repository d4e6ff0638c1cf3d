"""Reward, long-term fitness, gated softmax weights and aggregation (paper 4.2, Eq. 3 to 7, B.5).

What belongs here: the arithmetic of selection, differentiable in gates and forecasts. What does
not: where forecasts come from (``agents.strategy``), when fitness is updated (``training.round``).

Shapes: A agents, B windows, H horizon; forecasts may have more dimensions in front.
"""

import torch
from torch import Tensor, nn

from compevo_core.config import SelectionConfig
from compevo_core.errors import DataError


def forecast_error(forecast: Tensor, truth_BH: Tensor, metric: str) -> Tensor:
    """Return L_metric of each window (Eq. 3 and 7): (..., B, H) and (B, H) to (..., B).

    Args:
        forecast: in scaled units, so that agents, regions and data sets compare (decision 7).
        truth_BH: in scaled units; NaN targets are masked, do not count and carry no gradient.
        metric: ``mse`` or ``mae``.

    Raises:
        DataError: a window has no known target.
    """
    is_known_BH = torch.isfinite(truth_BH)
    if not is_known_BH.any(dim=-1).all():
        raise DataError("a window has no known target; leave it out of training")

    # NaN times a zero mask is NaN, also in the gradient: replace the missing targets first.
    gap = torch.where(is_known_BH, forecast - truth_BH.nan_to_num(), 0.0)
    cost = gap.square() if metric == "mse" else gap.abs()
    return cost.sum(-1) / is_known_BH.sum(-1)


def reward(forecast_ABH: Tensor, truth_BH: Tensor, metric: str) -> Tensor:
    """Return R_i = -L_metric (Eq. 3), averaged over the round's windows: (A, B, H) to (A,)."""
    return -forecast_error(forecast_ABH, truth_BH, metric).mean(-1)


class FitnessSelection(nn.Module):
    """Learnable gates g_i and the running fitness M_i of every agent.

    Attributes:
        gates_A: start at 1, so that the weights are a plain softmax of the fitness at first.
        fitness_A: starts at 0 for all agents, so that the first round weighs them equally.
    """

    fitness_A: Tensor

    def __init__(self, agents: int, config: SelectionConfig) -> None:
        super().__init__()
        self.config = config
        self.gates_A = nn.Parameter(torch.ones(agents))
        self.register_buffer("fitness_A", torch.zeros(agents))

    def weights(self) -> Tensor:
        """Return the aggregation weights w = softmax(g * M / tau) (Eq. 5), (A,), with gradient.

        A weight never falls as its agent's fitness rises while the gates are not negative
        (Proposition B.5.1).
        """
        if self.config.uniform:
            return torch.full_like(self.fitness_A, 1.0 / self.fitness_A.numel())

        # Rewards, and so fitness, are negative: under the printed rule a gate that the L1 term
        # shrinks raises its agent's weight. "min" makes fitness >= 0, so that it lowers the weight,
        # as the text of the paper says (decisions 8 and 24).
        fitness_A = self.fitness_A
        if self.config.fitness_shift == "min":
            fitness_A = fitness_A - fitness_A.min()

        return torch.softmax(self.gates_A * fitness_A / self.config.temperature, dim=0)

    @torch.no_grad()
    def update_fitness(self, reward_A: Tensor) -> None:
        """Set M <- beta M + (1 - beta) R (Eq. 4).

        Fitness is data to the softmax: gradients reach the gates, never earlier rounds.
        """
        beta = self.config.ema
        self.fitness_A.mul_(beta).add_((1.0 - beta) * reward_A)


def aggregate_forecasts(forecast_ABH: Tensor, weights_A: Tensor) -> Tensor:
    """Return the population's forecast, sum_i w_i Y_i (Eq. 6): (A, B, H) and (A,) to (B, H)."""
    return torch.einsum("abh,a->bh", forecast_ABH, weights_A)
