"""The joint objective L = L_pred + l_PG L_pg + l_div L_div + l_prune L_prune (paper 4.4, Eq. 15 to 17).

What belongs here: the regularising terms and the weighted sum. What does not: L_pred and L_pg themselves.
Legend: A agents, D hidden.
"""

import dataclasses

import torch
from torch import Tensor

from compevo_core.config import ObjectiveConfig
from compevo_core.errors import NonFiniteLoss


def diversity_loss(candidate_AD: Tensor) -> Tensor:
    """Sum of cosine similarities over all pairs of candidate logics (Eq. 16, appendix C.2): (A, D) to a scalar."""
    unit = torch.nn.functional.normalize(candidate_AD, dim=-1)
    return (unit @ unit.T).triu(diagonal=1).sum()


def pruning_loss(gates_A: Tensor) -> Tensor:
    """Sum of absolute gates (Eq. 17)."""
    return gates_A.abs().sum()


@dataclasses.dataclass(frozen=True)
class LossTerms:
    """The four terms of one round, unweighted."""

    pred: float
    pg: float
    div: float
    prune: float

    def total(self, config: ObjectiveConfig) -> float:
        """The weighted sum that the round minimised."""
        return (
            self.pred
            + config.lambda_pg * self.pg
            + config.lambda_div * self.div
            + config.lambda_prune * self.prune
        )


def require_finite(name: str, per_agent: Tensor, round_number: int) -> None:
    """Stops before the update when a term is NaN or infinite, naming the term, the round and the agents.

    Args:
        name: the term, as the message calls it.
        per_agent: one value an agent; a scalar is a term of the whole population.
        round_number: the round it was computed in.

    Raises:
        NonFiniteLoss: at least one entry is not finite.
    """
    wrong = ~torch.isfinite(per_agent.detach())
    if not wrong.any():
        return
    bad = wrong.reshape(-1).nonzero().flatten().tolist()
    where = f"agent(s) {bad}" if per_agent.dim() else "the population"
    raise NonFiniteLoss(
        f"{name} is not finite in round {round_number} for {where}; nothing was updated. "
        "Lower optim.forecast_lr or optim.policy_lr, or resume from the last checkpoint with another seed"
    )
