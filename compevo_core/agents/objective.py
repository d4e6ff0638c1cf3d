"""The joint objective L = L_pred + l_PG L_pg + l_div L_div + l_prune L_prune (paper 4.4, Eq. 15).

What belongs here: its terms, with the policy term (group relative policy optimisation of logics,
paper 4.3 and D.2; DeepSeekMath, 2024), and the check before an update. What does not: the metric
(``agents.selection``), the order of the backward passes (``training.forecast_step``, ``.update``).

Credit rule of a logic: how much better it forecast than its own agent's group, in standard
deviations of that group. Every token of the logic carries that one advantage.

Shapes: A agents, B windows, H horizon, D hidden, G samples of an agent, T tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.selection import forecast_error
from compevo_core.config.sections import MemberConfig, ObjectiveConfig
from compevo_core.data.arrays import BoolArray
from compevo_core.data.view import WindowView
from compevo_core.errors import NonFiniteLoss
from compevo_core.runtime.seeding import derive_seed


def prediction_loss(forecast: Tensor, truth_BH: Tensor, config: ObjectiveConfig) -> Tensor:
    """Return what L_pred minimises on each window, (..., B): the squared error, or Huber's loss."""
    return forecast_error(forecast, truth_BH, config.loss)


def draw_own_windows(
    members: Sequence[MemberConfig], views: Sequence[WindowView], seed: int
) -> BoolArray:
    """Return which windows count in each agent's own error, (A, B): its share of them."""

    def draw(agent: int, member: MemberConfig, view: WindowView) -> bool:
        # Seeded by agent and window, so that the share is the same in every round.
        stream = derive_seed(seed, "own windows", member.seed, agent, view.window_id)
        return bool(np.random.default_rng(stream).random() < member.window_share)

    return np.array(
        [
            [member.window_share == 1.0 or draw(agent, member, view) for view in views]
            for agent, member in enumerate(members)
        ]
    )


def diversity_loss(candidate_AD: Tensor) -> Tensor:
    """Return L_div, the sum of cosine similarities over all pairs of candidates (Eq. 16, C.2).

    It is taken before the fusion, whose exchange it would counteract (decision 03-rounds).
    """
    unit_AD = torch.nn.functional.normalize(candidate_AD, dim=-1)
    return (unit_AD @ unit_AD.T).triu(diagonal=1).sum()


def pruning_loss(gates_A: Tensor) -> Tensor:
    """Return L_prune, the sum of absolute gates (Eq. 17, appendix C.1); no agent is removed."""
    return gates_A.abs().sum()


def joint_loss(terms: Mapping[str, float], config: ObjectiveConfig) -> float:
    """Return the weighted sum that a round minimised (Eq. 15), from the terms of its record."""
    names = ("pred", "own", "pg", "div", "prune")
    return float(sum(getattr(config, f"lambda_{n}") * terms[f"loss_{n}"] for n in names))


def require_finite(name: str, per_agent: Tensor) -> None:
    """Raise NonFiniteLoss if a term, a value for each agent or one for all, is not finite."""
    is_bad = ~torch.isfinite(per_agent.detach())
    if not is_bad.any():
        return

    agents = is_bad.reshape(-1).nonzero().flatten().tolist()
    where = f"agent(s) {agents}" if per_agent.dim() else "the population"
    raise NonFiniteLoss(
        f"{name} is not finite for {where}; nothing was updated. "
        "Lower optim.forecast_lr or optim.policy_lr, or resume from the last checkpoint with "
        "another seed"
    )


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """The policy term of the objective, with gradient, and what to watch while it trains."""

    loss: Tensor
    kl: float
    clip_fraction: float


def group_advantages(reward_AG: Tensor, is_empty_AG: Tensor | None = None) -> tuple[Tensor, int]:
    """Standardise rewards within each agent's group: (R - mean) / (std + 1e-4 mean |R|).

    A group is the samples of one agent on the same windows: it learns from its better logics even
    if all are worse than those its peers wrote. Return the advantages (A, G), zero where a sample
    is empty (decision 05-logics), and the number of groups of equal rewards.
    """
    counts_AG = (
        torch.ones_like(reward_AG, dtype=torch.bool) if is_empty_AG is None else ~is_empty_AG
    )
    n_A1 = counts_AG.sum(1, keepdim=True)

    # Over the samples that are not empty. One sample has no deviation, like an equal group.
    counted_AG = torch.where(counts_AG, reward_AG, 0.0)
    mean_A1 = counted_AG.sum(1, keepdim=True) / n_A1.clamp(min=1)
    scale_A1 = counted_AG.abs().sum(1, keepdim=True) / n_A1.clamp(min=1)
    centred_AG = torch.where(counts_AG, reward_AG - mean_A1, 0.0)
    variance_A1 = centred_AG.square().sum(1, keepdim=True) / (n_A1 - 1).clamp(min=1)

    # The mean of equal numbers may differ from them in the last bit, which the floor would amplify
    # to a noisy gradient: such a group gets exactly zero.
    lowest_A1 = reward_AG.masked_fill(~counts_AG, torch.inf).amin(1, keepdim=True)
    highest_A1 = reward_AG.masked_fill(~counts_AG, -torch.inf).amax(1, keepdim=True)
    is_equal_A1 = lowest_A1 >= highest_A1

    # Nearly equal rewards do not explode. TRL adds the number itself, but rewards here differ by
    # about as much; squares of smaller differences than 1e-8 are lost in float32.
    floor_A1 = (1e-4 * scale_A1).clamp(min=1e-8)
    advantage_AG = centred_AG / (variance_A1.sqrt() + floor_A1)  # of the sample (G - 1), as in TRL
    return torch.where(is_equal_A1, 0.0, advantage_AG), int(is_equal_A1.sum())


def policy_loss(
    logp_AGT: Tensor,
    old_AGT: Tensor,
    reference_AGT: Tensor,
    advantage_AG: Tensor,
    mask_AGT: Tensor,
    *,
    clip_range: float,
    kl_coefficient: float,
) -> PolicyLoss:
    """Return L_pg (Eq. 14) as a loss: minus the clipped surrogate, plus KL to the reference.

    The ratio is clipped (decision 04-policy). The mean is taken over tokens, then samples, then
    agents. Log-probabilities are under the current policy, the one that sampled, and the frozen
    reference; the last two carry no gradient.
    """
    ratio_AGT = torch.exp(logp_AGT - old_AGT)
    gain_AG1 = advantage_AG[..., None]

    # The minimum clips only ratios that overshoot; one on the wrong side keeps its gradient.
    clipped_AGT = ratio_AGT.clamp(1.0 - clip_range, 1.0 + clip_range)
    surrogate_AGT = torch.minimum(ratio_AGT * gain_AG1, clipped_AGT * gain_AG1)

    # exp(d) - d - 1 estimates the KL without bias, and is never negative, unlike -d.
    drift_AGT = reference_AGT - logp_AGT
    kl_AGT = torch.exp(drift_AGT) - drift_AGT - 1.0

    n_tokens_AG = mask_AGT.sum(-1).clamp(min=1)
    token_loss_AGT = (kl_coefficient * kl_AGT - surrogate_AGT) * mask_AGT
    sample_loss_AG = token_loss_AGT.sum(-1) / n_tokens_AG

    with torch.no_grad():
        overshoots_AGT = torch.sign(ratio_AGT - 1.0) == torch.sign(gain_AG1)
        is_clipped_AGT = ((ratio_AGT - 1.0).abs() > clip_range) & overshoots_AGT
        n_tokens = mask_AGT.sum().clamp(min=1)
        kl = float((kl_AGT * mask_AGT).sum() / n_tokens)
        clip_fraction = float((is_clipped_AGT * mask_AGT).sum() / n_tokens)

    return PolicyLoss(sample_loss_AG.mean(), kl, clip_fraction)
