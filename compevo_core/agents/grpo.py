"""Group relative policy optimisation of logic texts (paper 4.3 and D.2; DeepSeekMath 2024).

Credit rule: a logic is credited with how much better than its own agent's group it forecast,
in standard deviations of that group; every token of the logic carries that one advantage.
What belongs here: advantages, the clipped ratio and the KL term on given log-probabilities.
What does not: sampling, rewards or optimisation.
Legend: A agents, G samples of an agent, T tokens.
"""

import dataclasses

import torch
from torch import Tensor

_STD_FLOOR = 1e-4


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """The policy term and what to watch while it trains."""

    loss: Tensor
    kl: float
    clip_fraction: float


def group_advantages(reward_AG: Tensor) -> tuple[Tensor, int]:
    """(R - mean) / (std + 1e-4) within each agent's group, and how many groups were all equal.

    The deviation is the sample one (G - 1), as in TRL. Equal rewards give exactly zero.
    """
    centred = reward_AG - reward_AG.mean(1, keepdim=True)
    equal = (reward_AG == reward_AG[:, :1]).all(1)
    advantage = centred / (reward_AG.std(1, keepdim=True) + _STD_FLOOR)
    return torch.where(equal[:, None], 0.0, advantage), int(equal.sum())


def policy_loss(
    logp_AGT: Tensor,
    old_AGT: Tensor,
    reference_AGT: Tensor,
    advantage_AG: Tensor,
    mask_AGT: Tensor,
    *,
    clip: float,
    kl: float,
) -> PolicyLoss:
    """Clipped surrogate minus KL to the frozen reference, mean over tokens, then samples, then agents.

    Args:
        logp_AGT: log-probabilities under the current policy.
        old_AGT: under the policy that sampled; no gradient.
        reference_AGT: under the frozen reference; no gradient.
        advantage_AG: from :func:`group_advantages`.
        mask_AGT: 1 where a token was sampled.
        clip: half-width of the ratio's clip range.
        kl: weight of the estimator exp(d) - d - 1 with d = reference - current.
    """
    ratio = torch.exp(logp_AGT - old_AGT)
    gain = advantage_AG[..., None]
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1.0 - clip, 1.0 + clip) * gain)
    drift = reference_AGT - logp_AGT
    divergence = torch.exp(drift) - drift - 1.0
    tokens = mask_AGT.sum(-1).clamp(min=1)
    per_sample = ((kl * divergence - surrogate) * mask_AGT).sum(-1) / tokens
    with torch.no_grad():
        total = mask_AGT.sum().clamp(min=1)
        clipped = ((ratio - 1.0).abs() > clip) & (torch.sign(ratio - 1.0) == torch.sign(gain))
        watched = (
            float((divergence * mask_AGT).sum() / total),
            float((clipped * mask_AGT).sum() / total),
        )
    return PolicyLoss(per_sample.mean(), *watched)
