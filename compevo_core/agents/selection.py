"""Reward, long-term fitness, gated softmax weights and aggregation (paper 4.2, Eq. 3 to 7, B.5).

What belongs here: the arithmetic of selection, differentiable in gates and forecasts. What does
not: where forecasts come from (``agents.strategy``), when fitness is updated (``training.round``).

Shapes:
    A agents, B windows, H horizon, E fitness scopes (one for each series, or one for all).
    Forecasts may have more dimensions in front.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from compevo_core.config.run import RunConfig
from compevo_core.config.sections import SelectionConfig
from compevo_core.errors import DataError


def forecast_error(forecast: Tensor, truth_BH: Tensor, loss: str = "mse") -> Tensor:
    """Return the mean squared error of each window, the paper's L_metric (Eq. 3 and 7).

    Scaled forecasts (..., B, H) and truth (B, H) give (..., B); ``loss`` may also be "huber". NaN
    targets have no error and no gradient. DataError if a window has no known target.
    """
    is_known_BH = torch.isfinite(truth_BH)
    if not is_known_BH.any(dim=-1).all():
        raise DataError("a window has no known target; leave it out of training")

    # NaN times a zero mask is NaN, also in the gradient: replace the missing targets first.
    gap = torch.where(is_known_BH, forecast - truth_BH.nan_to_num(), 0.0)
    cost = gap.square()
    if loss == "huber":
        cost = nn.functional.huber_loss(gap, torch.zeros_like(gap), reduction="none")
    return cost.sum(-1) / is_known_BH.sum(-1)


def reward(forecast_ABH: Tensor, truth_BH: Tensor) -> Tensor:
    """Return R_i = -L_metric (Eq. 3), averaged over the round's windows: (A, B, H) to (A,)."""
    return -forecast_error(forecast_ABH, truth_BH).mean(-1)


class FitnessSelection(nn.Module):
    """Learnable gates g_i and the running fitness M_i of every agent.

    ``gates_A`` start at 1 and ``fitness_EA`` at 0, so that the first round weighs agents equally.
    If ``config.scope`` is "series", fitness is kept for each of ``entities``. Idle agents, which
    add nothing to the others (``pays_contribution``), have weight 0.
    """

    fitness_EA: Tensor
    is_idle_A: Tensor

    def __init__(
        self,
        agents: int,
        config: SelectionConfig,
        entities: Sequence[str] = (),
        *,
        pays_contribution: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.entities = tuple(entities) if config.scope == "series" else ()
        if config.scope == "series" and not self.entities:
            raise DataError("fitness by series needs the names of the series; pass entities")

        self.gates_A = nn.Parameter(torch.ones(agents))
        self.register_buffer("fitness_EA", torch.zeros(len(self.entities) or 1, agents))
        idle_A = torch.zeros(agents, dtype=torch.bool)
        self.register_buffer("is_idle_A", idle_A, persistent=pays_contribution)

    @classmethod
    def for_run(cls, config: RunConfig, entities: Sequence[str]) -> Self:
        """Return the weighting of a run's agents before its first round."""
        pays_contribution = config.evolution.credit == "contribution"
        agents = config.population.agents
        return cls(agents, config.selection, entities, pays_contribution=pays_contribution)

    def weights(self, entities: Sequence[str]) -> Tensor:
        """Return the weights (B, A), softmax(g * M / tau) by window (Eq. 5), with gradient.

        DataError if fitness is kept by series, and there is none for one of ``entities``.
        """
        return leave_out_idle(self.open_weights(entities), self.is_idle_A)

    def open_weights(self, entities: Sequence[str]) -> Tensor:
        """Return the weights (B, A) that agents would have if none of them were idle."""
        return self._weigh_scopes()[self._scope_rows(entities)]

    def population_weights(self) -> Tensor:
        """Return the weights (A,) of a round's record, with gradient: their mean over series."""
        return leave_out_idle(self._weigh_scopes(), self.is_idle_A).mean(0)

    @torch.no_grad()
    def update_fitness(self, reward_AB: Tensor, entities: Sequence[str]) -> None:
        """Set M <- beta M + (1 - beta) R (Eq. 4), R the mean over the windows of a scope.

        Gradients reach the gates, never earlier rounds. A series without a window in the round
        keeps its fitness.
        """
        beta = self.config.ema
        rows = self._scope_rows(entities)
        for row in sorted(set(rows)):
            is_in_scope = [i for i, other in enumerate(rows) if other == row]
            reward_A = reward_AB[:, is_in_scope].mean(-1)
            self.fitness_EA[row].mul_(beta).add_((1.0 - beta) * reward_A)

    def fitness(self, entities: Sequence[str]) -> Tensor:
        """Return the fitness (B, A) that weighs each of B series."""
        return self.fitness_EA[self._scope_rows(entities)]

    def _weigh_scopes(self) -> Tensor:
        """Return the weights (E, A) of every scope, idle or not."""
        if self.config.uniform:
            return torch.full_like(self.fitness_EA, 1.0 / self.fitness_EA.shape[1])
        return weigh_fitness(self.fitness_EA, self.gates_A, self.config)

    def _scope_rows(self, entities: Sequence[str]) -> list[int]:
        """Return the row of ``fitness_EA`` that each window belongs to."""
        if not self.entities:
            return [0] * len(entities)

        row_of = {entity: row for row, entity in enumerate(self.entities)}
        if unknown := sorted(set(entities) - row_of.keys()):
            raise DataError(
                f"no fitness for {unknown}: it is kept for {list(self.entities)}, the series of "
                "the train split; forecast these, or train with selection.scope = 'all'"
            )
        return [row_of[entity] for entity in entities]


def leave_out_idle(weights: Tensor, is_idle_A: Tensor) -> Tensor:
    """Return weights (..., A) that are 0 for idle agents; unchanged if all or none are idle."""
    if not is_idle_A.any() or is_idle_A.all():
        return weights
    working = weights.masked_fill(is_idle_A, 0.0)
    return working / working.sum(-1, keepdim=True)


def weigh_fitness(fitness_EA: Tensor, gates_A: Tensor, config: SelectionConfig) -> Tensor:
    """Return the weights (E, A) of fitness and gates: softmax(g * M / tau) (Eq. 5)."""
    # While all scaled errors are small compared with tau, even a perfect agent gets little more
    # weight than the others. The spread gives a unit that adapts (decision 10-fitness).
    if config.units == "spread":
        mean_E1 = fitness_EA.mean(1, keepdim=True)
        spread_E1 = fitness_EA.std(1, keepdim=True, unbiased=False)
        # Smaller differences of errors are chance, and dividing by them would let chance pick a
        # winner. Before the first round all fitness is 0, and the floor must not be.
        floor_E1 = (1e-3 * mean_E1.abs()).clamp(min=torch.finfo(fitness_EA.dtype).tiny)
        fitness_EA = (fitness_EA - mean_E1) / torch.maximum(spread_E1, floor_E1)

    # Fitness is negative, like rewards: under the printed rule, a gate that the L1 term shrinks
    # raises the weight of its agent (decision 10-fitness).
    return torch.softmax(gates_A * fitness_EA / config.temperature, dim=1)


def aggregate_forecasts(values_ABH: Tensor, weights_BA: Tensor) -> Tensor:
    """Return the population's forecast, sum_i w_i Y_i (Eq. 6): (A, B, H) and (B, A) to (B, H)."""
    return torch.einsum("abh,ba->bh", values_ABH, weights_BA)
