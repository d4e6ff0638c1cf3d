"""The update of a round: gradients of the joint objective, clipping, optimiser (paper 4.4, Eq. 15).

What belongs here: adding the gradients of L_pg, L_div and L_prune to that of L_pred, and taking the
steps. What does not: the forecasts and the backward pass of L_pred (``training.round``), norms over
processes (``training.gradients``), rates (``training.schedule``).

Shapes: A agents, G sampled logics of an agent, D hidden size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compevo_core.agents.grpo import PolicyLoss, group_advantages
from compevo_core.agents.logic_writer import LogicWriter, Proposal
from compevo_core.agents.objective import diversity_loss, pruning_loss, require_finite
from compevo_core.diagnostics.theory import GradientConflict
from compevo_core.training.gradients import Gradients
from compevo_core.training.model import PopulationModel
from compevo_core.training.policy_step import PolicyStep
from compevo_core.training.round_state import UpdateResult
from compevo_core.training.schedule import set_learning_rates


class JointUpdate:
    """The optimiser of all trainable modules, and the order of its backward passes.

    Attributes:
        optimizer: AdamW with two groups of parameters: forecasting, then policy.
    """

    def __init__(self, model: PopulationModel, writer: LogicWriter, total_rounds: int) -> None:
        self.model = model
        self.writer = writer
        self.total_rounds = total_rounds
        self.config = model.config
        self.gradients = Gradients(model)

        # Two rates (decision 22): the forecast is supervised, the policy learns from few samples.
        self.optimizer = torch.optim.AdamW(
            [
                {"params": model.forecast_parameters(), "lr": self.config.optim.forecast_lr},
                {"params": model.policy_parameters(), "lr": self.config.optim.policy_lr},
            ],
            weight_decay=self.config.optim.weight_decay,
        )

    def start_round(self, round_number: int) -> None:
        """Set the learning rates of the round and forget the gradients of the last one."""
        set_learning_rates(self.optimizer, self.config.optim, round_number, self.total_rounds)
        self.optimizer.zero_grad(set_to_none=True)

    def apply(self, proposal: Proposal, reward_AG: Tensor, round_number: int) -> UpdateResult:
        """Update all parameters; the gradient of L_pred is in place already.

        Args:
            proposal: the sampled logics of the local agents.
            reward_AG: rewards of the sampled logics of all agents.
            round_number: for messages.

        Raises:
            NonFiniteLoss: a term or a gradient is NaN or infinite; nothing was updated.
        """
        # The order matters: the copy holds L_div's gradient alone only before the policy term.
        loss_div = self._backward_diversity(proposal.candidate_AD, round_number)
        regulariser_grads = self._copy_policy_gradients()
        loss_prune = self._backward_pruning()

        # Advantages need the rewards of one agent's group alone; all are computed on every process
        # because the number of equal groups is part of the record.
        advantage_AG, n_equal = group_advantages(reward_AG)
        policy_step, policy = None, PolicyLoss(torch.zeros(()), 0.0, 0.0)
        if self.config.grpo.enabled:
            local_AG = self.model.shards.local(advantage_AG)
            policy_step = PolicyStep(self.writer, proposal, local_AG, self.config)
            policy = policy_step.backward(round_number)

        # Measured on the whole gradient, before clipping scales it.
        conflict = self._measure_conflict(regulariser_grads)
        grad_norm = self._take_step(self.optimizer.param_groups, round_number)
        last_policy = self._repeat_policy_step(policy_step, policy, round_number)

        return UpdateResult(
            loss_pg=float(policy.loss.detach()),
            loss_div=loss_div,
            loss_prune=loss_prune,
            gradient_conflict=conflict.cosine,
            gradient_margin=conflict.margin,
            n_equal_groups=n_equal,
            grad_norm=grad_norm,
            kl=last_policy.kl,
            clip_fraction=last_policy.clip_fraction,
        )

    def _backward_diversity(self, candidate_AD: Tensor, round_number: int) -> float:
        # Checked by agent, as the loss itself is a sum over pairs that names none.
        loss = diversity_loss(candidate_AD)
        require_finite("L_div", candidate_AD.sum(1), round_number)

        weight = self.config.objective.lambda_div
        if weight and loss.requires_grad:
            # The soft prompts come from the same candidates: L_pg goes through this graph again.
            (weight * loss).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _backward_pruning(self) -> float:
        loss = pruning_loss(self.model.selection.gates_A)
        (self.config.objective.lambda_prune * loss).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _copy_policy_gradients(self) -> list[Tensor | None]:
        # L_pred does not reach the policy's parameters, so that their gradients are now those of
        # L_div alone: the regularisers' part of Eq. 23.
        return [
            None if parameter.grad is None else parameter.grad.clone()
            for parameter in self.model.policy_parameters()
        ]

    def _measure_conflict(self, regulariser_grads: Sequence[Tensor | None]) -> GradientConflict:
        """Return Eq. 23 over what a regulariser reaches: the policy's parameters and the gates."""
        # The gates have a gradient of L_pred too, so the pruning part is not copied but computed:
        # the derivative of |g| is its sign.
        gates_A = self.model.selection.gates_A
        pruning_grad_A = self.config.objective.lambda_prune * torch.sign(gates_A.detach())
        return self.gradients.conflict(
            [*self.model.policy_parameters(), gates_A], [*regulariser_grads, pruning_grad_A]
        )

    def _take_step(self, groups: Sequence[dict[str, Any]], round_number: int) -> float:
        """Clip each group's gradient by its norm and step; return the norm before clipping.

        Parameters without a gradient stay as they are, weight decay included.
        """
        parameters = [group["params"] for group in groups]
        norm = self.gradients.clip(parameters, self.config.optim.max_grad_norm, round_number)
        self.optimizer.step()
        return norm

    def _repeat_policy_step(
        self, policy_step: PolicyStep | None, first: PolicyLoss, round_number: int
    ) -> PolicyLoss:
        """Take the other ``grpo.iterations`` on the same samples, of the policy term alone."""
        last = first
        if policy_step is None:
            return last

        # The forecasting group is left out: its gradient was spent in the first step.
        for _ in range(1, self.config.grpo.iterations):
            self.optimizer.zero_grad(set_to_none=True)
            last = policy_step.backward(round_number)
            self._take_step(self.optimizer.param_groups[1:], round_number)
        return last
