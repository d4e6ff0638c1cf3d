"""The joint objective L = L_pred + l_PG L_pg + l_div L_div + l_prune L_prune (paper 4.4, Eq. 15).

What belongs here: what L_pred minimises, the agents' own errors, the regularising terms, the
weighted sum, the check before an update. What does not: the metric itself (``agents.selection``),
L_pg (``agents.grpo``), the order of the backward passes (``training.forecast_step``,
``training.update``).

Shapes: A agents, B windows, H horizon, D hidden.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.selection import forecast_error
from compevo_core.config.sections import MemberConfig, ObjectiveConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView, find_horizon
from compevo_core.errors import NonFiniteLoss
from compevo_core.runtime.seeding import derive_seed

_OUTSIDE_WEIGHT = 0.25
"""Weight of series and steps that are not an agent's own: it stays a forecaster of everything, as
the aggregate uses its whole forecast."""


def prediction_loss(
    forecast: Tensor,
    truth_BH: Tensor,
    config: ObjectiveConfig,
    weights: Tensor | None = None,
) -> Tensor:
    """Return what L_pred minimises on each window, (..., B): the metric, or Huber's loss.

    The mean is over the known steps of the scaled truth; weights have every window and step.
    """
    if config.loss == "metric" and weights is None:
        return forecast_error(forecast, truth_BH, config.metric)

    # NaN times a zero weight is NaN, also in the gradient: replace the missing targets first.
    is_known_BH = torch.isfinite(truth_BH)
    gap = torch.where(is_known_BH, forecast - truth_BH.nan_to_num(), 0.0)
    cost = _cost(gap, config)
    if weights is not None:
        cost = cost * weights

    # By the number of known steps, not by the sum of weights: a window outside an agent's own
    # series shall count less, and would count fully if its equal weights were divided out.
    return cost.sum(-1) / is_known_BH.sum(-1)


def _cost(gap: Tensor, config: ObjectiveConfig) -> Tensor:
    if config.loss == "huber":
        zero = torch.zeros_like(gap)
        return torch.nn.functional.huber_loss(gap, zero, reduction="none", delta=config.huber_delta)
    return gap.square() if config.metric == "mse" else gap.abs()


def own_error_weights(
    member: MemberConfig, views: Sequence[WindowView], *, seed: int, agent: int
) -> FloatArray:
    """Return how much every window and step counts in an agent's own error, (B, H).

    1 in its own series and steps, a quarter outside, 0 in a window that is not of its share.
    """
    horizon = find_horizon(views)
    step_H = np.full(horizon, _OUTSIDE_WEIGHT)
    step_H[member.find_own_steps(horizon)] = 1.0

    is_own_B = [not member.entities or view.entity in member.entities for view in views]
    weight_B = np.where(is_own_B, 1.0, _OUTSIDE_WEIGHT)
    if member.window_share < 1.0:
        # Sampled by the window's name: a property of agent and window, the same in every round.
        for b, view in enumerate(views):
            stream = derive_seed(seed, "own windows", member.seed, agent, view.window_id)
            weight_B[b] *= np.random.default_rng(stream).random() < member.window_share

    # Outside in both ways is still a quarter: the smaller of the two, not their product.
    return np.asarray(np.minimum(weight_B[:, None], step_H))


def diversity_loss(candidate_AD: Tensor) -> Tensor:
    """Return L_div, the sum of cosine similarities over all pairs of candidates (Eq. 16).

    The paper prints it on the final states, and in appendix C.2 on the candidates before mixing.
    The candidates are used (decision 03-rounds): agents shall have distinct ideas before they
    exchange them, and a penalty after the fusion would work against the exchange itself.
    """
    unit_AD = torch.nn.functional.normalize(candidate_AD, dim=-1)
    return (unit_AD @ unit_AD.T).triu(diagonal=1).sum()


def pruning_loss(gates_A: Tensor) -> Tensor:
    """Return L_prune, the sum of absolute gates (Eq. 17, appendix C.1).

    It prunes softly: no agent is removed, so a weak one can come back.
    """
    return gates_A.abs().sum()


def joint_loss(terms: Mapping[str, float], config: ObjectiveConfig) -> float:
    """Return the weighted sum that a round minimised (Eq. 15), of terms by their record's keys."""
    return (
        config.lambda_pred * terms["loss_pred"]
        + config.lambda_own * terms["loss_own"]
        + config.lambda_pg * terms["loss_pg"]
        + config.lambda_div * terms["loss_div"]
        + config.lambda_prune * terms["loss_prune"]
    )


def require_finite(name: str, per_agent: Tensor, round_number: int) -> None:
    """Raise NonFiniteLoss if a term, a value for each agent or one for all, is not finite.

    One such step would spoil every parameter it reaches, and the optimiser's averages for good.
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
