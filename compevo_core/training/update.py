"""The update of a round: gradients of the joint objective, clipping, optimiser (paper 4.4, Eq. 15).

What belongs here: groups of parameters and their rates, adding the gradients of L_pg, L_div and
L_prune to that of L_pred, taking the steps. What does not: the forecasts and the backward pass of
L_pred (``training.forecast_step``), norms over processes (``training.gradients``), the schedule
(``training.schedule``).

Shapes: A agents, G sampled logics of an agent, D hidden size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compevo_core.agents.grpo import PolicyLoss, group_advantages
from compevo_core.agents.logic_writer import LogicWriter, Proposal
from compevo_core.agents.objective import diversity_loss, pruning_loss, require_finite
from compevo_core.config_sections import OptimConfig
from compevo_core.diagnostics.theory import GradientConflict
from compevo_core.training.gradients import Gradients
from compevo_core.training.model import PopulationModel
from compevo_core.training.policy_step import PolicyStep
from compevo_core.training.round_state import UpdateResult
from compevo_core.training.schedule import EVOLUTION, RunSchedule, set_learning_rates


class JointUpdate:
    """The optimiser of all trainable modules, and the order of its backward passes.

    Attributes:
        optimizer: AdamW with the groups of :func:`group_parameters`.
    """

    def __init__(
        self, model: PopulationModel, writer: LogicWriter | None, schedule: RunSchedule
    ) -> None:
        self.model = model
        self.writer = writer
        self.schedule = schedule
        self.config = model.config
        self.gradients = Gradients(model)
        self.optimizer = torch.optim.AdamW(
            group_parameters(model, self.config.optim), weight_decay=self.config.optim.weight_decay
        )

    def start_round(self, round_number: int) -> None:
        """Set the learning rates of the round and forget the gradients of the last one."""
        set_learning_rates(self.optimizer, self.schedule.factor(round_number))
        self.optimizer.zero_grad(set_to_none=True)

    def apply(
        self, proposal: Proposal | None, reward_AG: Tensor | None, round_number: int
    ) -> UpdateResult:
        """Update all parameters; the gradient of L_pred is in place already.

        Args:
            proposal: the sampled logics of the local agents; None in a round without rewriting,
                which has no policy term and no diversity term.
            reward_AG: rewards of the sampled logics of all agents.
            round_number: which round.

        Raises:
            NonFiniteLoss: a term or a gradient is NaN or infinite; nothing was updated.
        """
        # The order matters: the copy holds L_div's gradient alone only before the policy term.
        loss_div = 0.0
        if proposal is not None:
            loss_div = self._backward_diversity(proposal.candidate_AD, round_number)
        regulariser_grads = self._copy_policy_gradients()

        prunes = self.model.system.competes and self.schedule.stage(round_number) == EVOLUTION
        loss_prune = self._backward_pruning() if prunes else 0.0

        policy_step, n_equal = None, 0
        policy = PolicyLoss(torch.zeros(()), 0.0, 0.0)
        if proposal is not None and reward_AG is not None:
            local_AG = self.model.shards.local(reward_AG)
            advantage_AG, n_equal = group_advantages(local_AG, proposal.is_empty_AG)
            if self.config.grpo.enabled and self.writer is not None:
                policy_step = PolicyStep(self.writer, proposal, advantage_AG, self.config)
                policy = policy_step.backward(round_number)

        # Measured on the whole gradient, before clipping scales it.
        conflict = self._measure_conflict(regulariser_grads, prunes=prunes)
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

    def _measure_conflict(
        self, regulariser_grads: Sequence[Tensor | None], *, prunes: bool
    ) -> GradientConflict:
        """Return Eq. 22 and 23 over all parameters theta.

        Only the copy of L_div's gradient is kept for it. The regularisers reach neither forecast
        adapters nor heads, whose whole gradient is one of the main loss.
        """
        forecasting = [*self.model.adapter_parameters(), *self.model.head_parameters()]

        # The gates have a gradient of L_pred too, so the pruning part is not copied but computed:
        # the derivative of |g| is its sign.
        gates_A = self.model.selection.gates_A
        pruning_grad_A = self.config.objective.lambda_prune * torch.sign(gates_A.detach())
        return self.gradients.conflict(
            [*forecasting, *self.model.policy_parameters(), gates_A],
            [*[None] * len(forecasting), *regulariser_grads, pruning_grad_A if prunes else None],
        )

    def _take_step(self, groups: Sequence[dict[str, Any]], round_number: int) -> float:
        """Clip each group's gradient by its norm and step; return the norm before clipping.

        Parameters without a gradient stay as they are, weight decay included.
        """
        parameters = [group["params"] for group in groups]
        norm = self.gradients.clip(
            parameters,
            self.config.optim.max_grad_norm,
            round_number,
            by_agent=not self.model.system.competes,
        )
        self.optimizer.step()
        return norm

    def _repeat_policy_step(
        self, policy_step: PolicyStep | None, first: PolicyLoss, round_number: int
    ) -> PolicyLoss:
        """Take the other ``grpo.iterations`` on the same samples, of the policy term alone."""
        last = first
        if policy_step is None:
            return last

        # Only what L_pg reaches has a gradient: that of L_pred was spent in the first step.
        for _ in range(1, self.config.grpo.iterations):
            self.optimizer.zero_grad(set_to_none=True)
            last = policy_step.backward(round_number)
            self._take_step(self.optimizer.param_groups, round_number)
        return last


def group_parameters(model: PopulationModel, optim: OptimConfig) -> list[dict[str, Any]]:
    """Return the optimiser's groups of parameters, each with its ``base_lr`` (decision 22).

    Forecasting and policy have a rate each: the forecast is supervised, the policy learns from few
    samples. Heads, and gates with fusion, are groups of their own where they have a rate of their
    own. Each group is clipped by its own norm.
    """
    forecasting: list[nn.Parameter] = model.adapter_parameters()
    heads: list[nn.Parameter] = model.head_parameters()
    gates: list[nn.Parameter] = model.gate_parameters()
    policy: list[nn.Parameter] = model.policy_adapter_parameters()
    fusion: list[nn.Parameter] = model.fusion_parameters()

    groups: list[tuple[list[nn.Parameter], float]] = []
    if optim.head_lr is None:
        forecasting = [*forecasting, *heads]
    elif heads:  # the text decoder has none
        groups.append((heads, optim.head_lr))

    if optim.fusion_lr is None:
        forecasting = [*forecasting, *gates]
        policy = [*policy, *fusion]
    else:
        groups.append(([*gates, *fusion], optim.fusion_lr))

    groups = [(forecasting, optim.forecast_lr), (policy, optim.policy_lr), *groups]
    # Agents that do not compete have no policy and no gates.
    return [{"params": params, "lr": rate, "base_lr": rate} for params, rate in groups if params]
