"""The backward pass of the policy term L_pg (paper 4.3, Eq. 14; details D.2).

What belongs here: one group of sampled logics, from log-probabilities to gradients of adapters and
fusion. What does not: the loss itself (``agents.grpo``), rewards (``training.round``), the
optimiser (``training.update``).

Shapes:
    A agents (of this process, unless noted), G sampled logics of an agent, T tokens, D hidden size,
    K values of a policy term.
"""

import torch
from torch import Tensor

from compevo_core.agents.grpo import PolicyLoss, policy_loss
from compevo_core.agents.logic_writer import LogicWriter, Proposal
from compevo_core.agents.objective import require_finite
from compevo_core.config import RunConfig


class PolicyStep:
    """The policy term of one group of samples, for one or more updates on it.

    Agents are scored one after the other: log-probabilities need the activations of whole texts,
    and those of one agent at a time are what fits in memory.

    Args:
        writer: scores the samples under the current policy.
        proposal: the samples.
        advantage_AG: group-relative advantages of the local agents.
        config: the run's settings.
    """

    def __init__(
        self, writer: LogicWriter, proposal: Proposal, advantage_AG: Tensor, config: RunConfig
    ) -> None:
        self.writer = writer
        self.shards = writer.shards
        self.proposal = proposal
        self.advantage_AG = advantage_AG
        self.config = config

        # The reference is frozen: scored once, for all updates on these samples (decision 21).
        self.reference_AGT = writer.reference_logp(proposal)
        self.old_AGT = torch.zeros_like(self.reference_AGT)
        self._updates = 0

    def backward(self, round_number: int) -> PolicyLoss:
        """Add the gradient of lambda_PG L_pg, averaged over all agents.

        The first call fixes the old policy: it runs before any update, so the policy that it scores
        is the one that sampled, and all ratios are 1.

        Returns:
            loss and statistics, mean over all agents of all processes.

        Raises:
            NonFiniteLoss: log-probabilities of an agent are NaN or infinite; on every process.
        """
        soft_prompt_AD = self._detach_soft_prompts()
        terms = [
            self._backward_agent(row, soft_prompt_AD)
            for row in range(len(self.shards.local_agents))
        ]
        terms_AK = self.shards.all_gather(torch.tensor(terms, dtype=torch.float64), "policy terms")
        # By the log-probabilities, not the loss: clipping can hide an infinite ratio.
        require_finite("L_pg", terms_AK[:, 0], round_number)

        fused_AD = self.proposal.soft_prompt_AD
        if fused_AD is not None and soft_prompt_AD is not None and soft_prompt_AD.grad is not None:
            self._backward_fusion(fused_AD, soft_prompt_AD.grad)

        self._updates += 1
        loss, kl, clip_fraction = terms_AK[:, 1:].mean(0)
        return PolicyLoss(loss, float(kl), float(clip_fraction))

    def _detach_soft_prompts(self) -> Tensor | None:
        """Return the local soft prompts as a leaf of its own, which collects their gradient.

        Each agent's backward pass would otherwise run through the fusion that all agents share. It
        is run through once, with the gradients of all agents, and only at the first update: the
        fusion's graph is gone after it.
        """
        if self.proposal.soft_prompt_AD is None:
            return None

        local_AD: Tensor = self.shards.local(self.proposal.soft_prompt_AD)
        return local_AD.detach().requires_grad_(self._updates == 0)

    def _backward_agent(self, row: int, soft_prompt_AD: Tensor | None) -> list[float]:
        """Add one local agent's gradient.

        Returns:
            sum of log-probabilities (only to check that it is finite), loss, KL, clip fraction.
        """
        agent = slice(row, row + 1)
        mask_AGT = self.proposal.mask_AGT[agent]
        logp_AGT = self.writer.logp(self.proposal, agent, soft_prompt_AD)
        if self._updates == 0:
            self.old_AGT[agent] = logp_AGT.detach()

        term = policy_loss(
            logp_AGT,
            self.old_AGT[agent],
            self.reference_AGT[agent],
            self.advantage_AG[agent],
            mask_AGT,
            clip_range=self.config.grpo.clip_range,
            kl_coefficient=self.config.grpo.kl_coefficient,
        )
        # Divided by all agents, not by those of this process: the mean must not depend on shards.
        weight = self.config.objective.lambda_pg / self.config.population.agents
        (weight * term.loss).backward()  # type: ignore[no-untyped-call]

        total_logp = float((logp_AGT.detach() * mask_AGT).sum())
        return [total_logp, float(term.loss.detach()), term.kl, term.clip_fraction]

    def _backward_fusion(self, fused_AD: Tensor, local_gradient_AD: Tensor) -> None:
        """Send the gradient of the soft prompts through the fusion and the candidates' adapters.

        The gradients of all agents are gathered first. Every process then gives the shared fusion
        the same gradient, and only its local rows reach adapters.
        """
        gradient_AD = self.shards.all_gather(local_gradient_AD, "states")
        fused_AD.backward(gradient_AD)  # type: ignore[no-untyped-call]
