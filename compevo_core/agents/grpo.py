"""Group relative policy optimisation of logic texts (paper 4.3 and D.2; DeepSeekMath, 2024).

Credit rule: a logic is credited with how much better it forecast than its own agent's group, in
standard deviations of that group. Every token of the logic carries that one advantage. A sample
that holds no logic earns nothing and is not part of its group.

What belongs here: advantages, the clipped ratio and the KL term on given log-probabilities. What
does not: sampling and scoring (``agents.logic_writer``, ``agents.strategy``), the backward pass and
the optimiser (``training.update``).

Shapes: A agents, G samples of an agent, T tokens.
"""

import dataclasses

import torch
from torch import Tensor

_FLOOR_SHARE = 1e-4
"""Added to a group's deviation, as a share of the size of its rewards: groups that differ by less
are nearly equal, and must not explode. TRL adds the same number as it is, which drowns the rewards
of this model: they differ by about 1e-4 themselves."""

_SMALLEST_FLOOR = 1e-8  # scaled; squares of smaller differences are lost in float32


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """The policy term of the objective, with gradient, and what to watch while it trains."""

    loss: Tensor
    kl: float
    clip_fraction: float


def group_advantages(reward_AG: Tensor, is_empty_AG: Tensor | None = None) -> tuple[Tensor, int]:
    """Standardise rewards within each agent's group: (R - mean) / (std + 1e-4 mean |R|).

    The group is one agent's own samples on the same windows. Its mean is the baseline, so that an
    agent learns from its better logics even where all of them are worse than its peers'. Dividing
    by the deviation gives every agent the same size of step, however large its errors are. In place
    of an empty sample the agent's present logic is scored, whose reward says nothing about the
    tokens that were sampled (decision 05-logics).

    Returns:
        advantages (A, G), zero where empty, and the number of groups of equal rewards.
    """
    counts_AG = (
        torch.ones_like(reward_AG, dtype=torch.bool) if is_empty_AG is None else ~is_empty_AG
    )
    n_A1 = counts_AG.sum(1, keepdim=True)

    # Over the samples that count; of one sample the deviation is that of an equal group.
    mean_A1 = _sum_where(counts_AG, reward_AG) / n_A1.clamp(min=1)
    centred_AG = torch.where(counts_AG, reward_AG - mean_A1, 0.0)
    variance_A1 = centred_AG.square().sum(1, keepdim=True) / (n_A1 - 1).clamp(min=1)
    scale_A1 = _sum_where(counts_AG, reward_AG.abs()) / n_A1.clamp(min=1)

    # The mean of equal numbers may differ from them in the last bit, and the floor would turn that
    # into a gradient of noise: such a group says nothing and gets exactly zero.
    lowest_A1 = reward_AG.masked_fill(~counts_AG, torch.inf).amin(1, keepdim=True)
    highest_A1 = reward_AG.masked_fill(~counts_AG, -torch.inf).amax(1, keepdim=True)
    is_equal_A1 = lowest_A1 >= highest_A1

    floor_A1 = (_FLOOR_SHARE * scale_A1).clamp(min=_SMALLEST_FLOOR)
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

    The paper prints the plain ratio and lists the clipping range of PPO; the ratio is clipped
    (decision 04-policy). The mean is taken over tokens, then samples, then agents, so that a long
    logic counts no more than a short one. Log-probabilities are under the current policy, the one
    that sampled, and the frozen reference; the last two carry no gradient.
    """
    ratio_AGT = torch.exp(logp_AGT - old_AGT)
    gain_AG1 = advantage_AG[..., None]

    # The minimum clips only what would overshoot; a ratio on the wrong side keeps its gradient.
    clipped_AGT = ratio_AGT.clamp(1.0 - clip_range, 1.0 + clip_range)
    surrogate_AGT = torch.minimum(ratio_AGT * gain_AG1, clipped_AGT * gain_AG1)

    # exp(d) - d - 1 estimates the KL without bias, and is never negative as the plain -d can be.
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


def _sum_where(counts_AG: Tensor, values_AG: Tensor) -> Tensor:
    """Sum the values that count, (A, G) to (A, 1)."""
    return torch.where(counts_AG, values_AG, 0.0).sum(1, keepdim=True)
