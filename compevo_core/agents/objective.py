"""The joint objective L = L_pred + l_PG L_pg + l_div L_div + l_prune L_prune (paper 4.4, Eq. 15).

What belongs here: the regularising terms, the weighted sum, the check before an update. What does
not: L_pred (``agents.selection``), L_pg (``agents.grpo``), the order of the backward passes
(``training.update``).

Shapes: A agents, D hidden.
"""

import dataclasses

import torch
from torch import Tensor

from compevo_core.config import ObjectiveConfig
from compevo_core.errors import NonFiniteLoss


def diversity_loss(candidate_AD: Tensor) -> Tensor:
    """Return L_div, the sum of cosine similarities over all pairs of candidates (Eq. 16).

    The paper prints it on the final states, and in appendix C.2 on the candidates before mixing.
    The candidates are used (decision 12): agents shall have distinct ideas before they exchange
    them, and a penalty after the fusion would work against the exchange itself.
    """
    unit_AD = torch.nn.functional.normalize(candidate_AD, dim=-1)
    return (unit_AD @ unit_AD.T).triu(diagonal=1).sum()


def pruning_loss(gates_A: Tensor) -> Tensor:
    """Return L_prune, the sum of absolute gates (Eq. 17, appendix C.1).

    It prunes softly: no agent is removed, so a weak one can come back.
    """
    return gates_A.abs().sum()


@dataclasses.dataclass(frozen=True)
class LossTerms:
    """The four terms of one round, unweighted.

    Attributes:
        pred: L_pred (Eq. 7).
        pg: L_pg (Eq. 14).
        div: L_div (Eq. 16).
        prune: L_prune (Eq. 17).
    """

    pred: float
    pg: float
    div: float
    prune: float

    def total(self, config: ObjectiveConfig) -> float:
        """Return the weighted sum that the round minimised (Eq. 15)."""
        return (
            self.pred
            + config.lambda_pg * self.pg
            + config.lambda_div * self.div
            + config.lambda_prune * self.prune
        )


def require_finite(name: str, per_agent: Tensor, round_number: int) -> None:
    """Stop before the update when a term is NaN or infinite.

    One such step would spoil every parameter it reaches, and the optimiser's averages for good.

    Args:
        name: the term, as the message calls it.
        per_agent: one value an agent; a scalar is a term of the whole population.
        round_number: the round it was computed in.

    Raises:
        NonFiniteLoss: at least one entry is not finite; the message names the agents.
    """
    is_bad = ~torch.isfinite(per_agent.detach())
    if not is_bad.any():
        return

    agents = is_bad.reshape(-1).nonzero().flatten().tolist()
    where = f"agent(s) {agents}" if per_agent.dim() else "the population"
    raise NonFiniteLoss(
        f"{name} is not finite in round {round_number} for {where}; nothing was updated. "
        "Lower optim.forecast_lr or optim.policy_lr, or resume from the last checkpoint with "
        "another seed"
    )
