"""The update of a round: the joint objective's gradients, clipping, optimiser (4.3, 4.4, Eq. 15).

The gradient of L_pred is in place already (``training.forecast_step``).

Shapes:
    A agents (of this process, unless noted), G sampled logics of an agent, T tokens, D hidden size,
    K values of a policy term or sums of a parameter.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compevo_core.agents import objective
from compevo_core.agents.logic_writer import LogicWriter, Proposal
from compevo_core.config.sections import OptimConfig
from compevo_core.lora.adapters import NORM_FLOOR, Optimizer, clip_each
from compevo_core.training.diagnostics import gradient_conflict
from compevo_core.training.model import PopulationModel
from compevo_core.training.schedule import EVOLUTION, RunSchedule


class JointUpdate:
    """The optimiser of all trainable modules, and the order of its backward passes."""

    def __init__(
        self, model: PopulationModel, writer: LogicWriter | None, schedule: RunSchedule
    ) -> None:
        self.model = model
        self.writer = writer
        self.schedule = schedule
        self.config = model.config
        self.gradients = Gradients(model)
        self.optimizer = Optimizer(
            group_parameters(model, self.config.optim), weight_decay=self.config.optim.weight_decay
        )

    def start_round(self, round_number: int) -> None:
        """Set the learning rates of the round and forget the gradients of the last one."""
        factor = self.schedule.factor(round_number)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        self.optimizer.zero_grad(set_to_none=True)

    def apply(
        self, proposal: Proposal | None, reward_AG: Tensor | None, round_number: int
    ) -> dict[str, Any]:
        """Update all parameters; the gradient of L_pred is in place already.

        ``proposal`` covers the local agents, ``reward_AG`` all; both are None in a round without
        rewriting. In the returned part of the round's record ``equal_groups`` counts local agents.
        NonFiniteLoss if a term or a gradient is not finite; then nothing was updated.
        """
        loss_div = 0.0
        if proposal is not None:
            # Checked by agent, as the loss is a sum over pairs.
            diversity = objective.diversity_loss(proposal.candidate_AD)
            objective.require_finite("L_div", proposal.candidate_AD.sum(1))
            weight = self.config.objective.lambda_div
            if weight and diversity.requires_grad:
                # The soft prompts come from the same candidates: L_pg goes through it again.
                (weight * diversity).backward(retain_graph=True)  # type: ignore[no-untyped-call]
            loss_div = float(diversity.detach())
        # L_pred does not reach the parameters of the policy, so at this point their gradients come
        # only from L_div, the regularisers' part of Eq. 23.
        policy_parameters = self.model.policy_parameters()
        regularising = {p: p.grad.clone() for p in policy_parameters if p.grad is not None}

        prunes = self.model.competes and self.schedule.stage(round_number) == EVOLUTION
        loss_prune = 0.0
        if prunes:
            loss = objective.pruning_loss(self.model.selection.gates_A)
            (self.config.objective.lambda_prune * loss).backward()  # type: ignore[no-untyped-call]
            loss_prune = float(loss.detach())

        policy_step, n_equal = None, 0
        policy = objective.PolicyLoss(torch.zeros(()), 0.0, 0.0)
        if proposal is not None and reward_AG is not None:
            local_AG = self.model.shards.local(reward_AG)
            advantage_AG, n_equal = objective.group_advantages(local_AG, proposal.is_empty_AG)
            if self.config.grpo.enabled and self.writer is not None:
                policy_step = PolicyStep(self.writer, proposal, advantage_AG)
                policy = policy_step.backward()

        # Eq. 22 and 23 over all parameters, before clipping. The regularisers do not reach forecast
        # adapters and heads. The gates have a gradient of L_pred too, so the pruning part is
        # computed: the derivative of |g| is its sign.
        forecasting = [*self.model.adapter_parameters(), *self.model.head_parameters()]
        gates_A = self.model.selection.gates_A
        if prunes:
            sign_A = torch.sign(gates_A.detach())
            regularising[gates_A] = self.config.objective.lambda_prune * sign_A
        parameters = [*forecasting, *policy_parameters, gates_A]
        cosine, margin = self.gradients.conflict(parameters, regularising)
        grad_norm = self._take_step()
        last_policy = policy
        if policy_step is not None:
            # On the same samples; only L_pg has a gradient.
            for _ in range(1, self.config.grpo.iterations):
                self.optimizer.zero_grad(set_to_none=True)
                last_policy = policy_step.backward()
                self._take_step()

        return {
            "loss_pg": float(policy.loss.detach()),
            "loss_div": loss_div,
            "loss_prune": loss_prune,
            "gradient_conflict": cosine,
            "gradient_margin": margin,
            "equal_groups": n_equal,
            "grad_norm": grad_norm,
            "kl": last_policy.kl,
            "clip_fraction": last_policy.clip_fraction,
        }

    def _take_step(self) -> float:
        """Clip each group's gradient by its norm and step; return the norm before clipping.

        Parameters without a gradient stay as they are, weight decay included.
        """
        norm = self.gradients.clip(
            [group["params"] for group in self.optimizer.param_groups],
            self.config.optim.max_grad_norm,
            by_agent=not self.model.competes,
        )
        self.optimizer.step()
        return norm


def group_parameters(model: PopulationModel, optim: OptimConfig) -> list[dict[str, Any]]:
    """Return the optimiser's groups of parameters, each with its ``base_lr`` (decision 04-policy).

    Forecasting and policy have separate rates; gates and fusion may share a third one.
    """
    gates, fusion = model.gate_parameters(), model.fusion_parameters()
    forecasting = [*model.adapter_parameters(), *model.head_parameters()]
    policy = list(model.policy_adapter_parameters())
    groups = [(forecasting, optim.forecast_lr), (policy, optim.policy_lr)]
    if optim.fusion_lr is None:
        forecasting += gates
        policy += fusion
    else:
        groups.append(([*gates, *fusion], optim.fusion_lr))

    # Agents that do not compete have no policy and no gates.
    return [{"params": params, "lr": rate, "base_lr": rate} for params, rate in groups if params]


class PolicyStep:
    """The policy term L_pg of one group of samples (Eq. 14), for one or more updates on it.

    Agents are scored one after the other, as memory may hold the activations of only one.
    """

    def __init__(self, writer: LogicWriter, proposal: Proposal, advantage_AG: Tensor) -> None:
        self.writer = writer
        self.config = writer.config
        self.shards = writer.shards
        self.proposal = proposal
        self.advantage_AG = advantage_AG

        # The frozen reference is scored once for all updates (decision 04-policy).
        self.reference_AGT = writer.reference_logp(proposal)
        self.old_AGT = torch.zeros_like(self.reference_AGT)
        self._updates = 0

    def backward(self) -> objective.PolicyLoss:
        """Add the gradient of lambda_PG L_pg; return loss and statistics, means over all agents.

        The first call fixes the old policy: it precedes any update, so that all ratios are 1.
        Log-probabilities that are not finite stop every process.
        """
        # The local soft prompts are a leaf that collects their gradient, so that the backward pass
        # through the shared fusion runs only once, with the gradients of all agents. It runs at the
        # first update only, which frees its graph.
        fused_AD = self.proposal.soft_prompt_AD
        soft_prompt_AD: Tensor | None = None
        if fused_AD is not None:
            local_AD: Tensor = self.shards.local(fused_AD)
            soft_prompt_AD = local_AD.detach().requires_grad_(self._updates == 0)
        terms = [
            self._backward_agent(row, soft_prompt_AD)
            for row in range(len(self.shards.local_agents))
        ]
        terms_AK = self.shards.all_gather(torch.tensor(terms, dtype=torch.float64), "policy terms")
        # Checked instead of the loss, as clipping can hide an infinite ratio.
        objective.require_finite("L_pg", terms_AK[:, 0])

        # Gathered first, so that the shared fusion gets the same gradient on every process; only
        # local rows reach adapters.
        if fused_AD is not None and soft_prompt_AD is not None and soft_prompt_AD.grad is not None:
            gradient_AD = self.shards.all_gather(soft_prompt_AD.grad, "states")
            fused_AD.backward(gradient_AD)  # type: ignore[no-untyped-call]

        self._updates += 1
        loss, kl, clip_fraction = terms_AK[:, 1:].mean(0)
        return objective.PolicyLoss(loss, float(kl), float(clip_fraction))

    def _backward_agent(self, row: int, soft_prompt_AD: Tensor | None) -> list[float]:
        """Add a local agent's gradient; return its summed log-probability, loss, KL, clip share."""
        agent = slice(row, row + 1)
        mask_AGT = self.proposal.mask_AGT[agent]
        logp_AGT = self.writer.logp(self.proposal, agent, soft_prompt_AD)
        if self._updates == 0:
            self.old_AGT[agent] = logp_AGT.detach()

        term = objective.policy_loss(
            logp_AGT,
            self.old_AGT[agent],
            self.reference_AGT[agent],
            self.advantage_AG[agent],
            mask_AGT,
            clip_range=self.config.grpo.clip_range,
            kl_coefficient=self.config.grpo.kl_coefficient,
        )
        # Divided by all agents: the mean must not depend on shards.
        weight = self.config.objective.lambda_pg / self.config.population.agents
        (weight * term.loss).backward()  # type: ignore[no-untyped-call]

        total_logp = float((logp_AGT.detach() * mask_AGT).sum())
        return [total_logp, float(term.loss.detach()), term.kl, term.clip_fraction]


class Gradients:
    """Measures and clips the gradients of a model whose agents may be spread over processes.

    Processes with different agents exchange one sum of squares for each agent, never a gradient.
    """

    def __init__(self, model: PopulationModel) -> None:
        self.shards = model.shards
        self.device = model.backbone.device
        self._shared = {id(parameter) for parameter in model.shared_parameters()}

    def clip(
        self, groups: Sequence[Sequence[nn.Parameter]], max_norm: float, *, by_agent: bool = False
    ) -> float:
        """Scale the gradient of each group down to a norm of at most ``max_norm``; 0 = no limit.

        With ``by_agent`` each agent is clipped by its own norm. Return the Euclidean norm of all
        groups before clipping. NonFiniteLoss on every process if a gradient is NaN or infinite.
        """
        # Each group is clipped at its own norm (decision 04-policy): a large gradient of forecasts
        # must not shrink the step of the policy.
        norms = []
        for group in groups:
            gradients = [(p, p.grad) for p in group if p.grad is not None]
            self.shards.unify_gradients(gradient for _, gradient in gradients)
            squares = ((parameter, [gradient.square()]) for parameter, gradient in gradients)
            square_A, shared_square = self._sum_by_agent(squares, 1)
            objective.require_finite("the gradient", square_A[:, 0])
            objective.require_finite("the gradient of gates and fusion", shared_square[0])

            # Shared parameters count once, as their gradient is the same on every process.
            norm = float(square_A.sum() + shared_square[0]) ** 0.5
            norms.append(norm)
            if not max_norm:
                continue

            if by_agent:
                norm_A = self.shards.local(square_A[:, 0]).sqrt()
                clip_each((gradient for _, gradient in gradients), norm_A, max_norm)
            else:
                scale = min(1.0, max_norm / (norm + NORM_FLOOR))
                for _, gradient in gradients:
                    gradient.mul_(scale)
        return math.sqrt(sum(norm * norm for norm in norms))

    def conflict(
        self, parameters: Sequence[nn.Parameter], regularising: Mapping[nn.Parameter, Tensor]
    ) -> tuple[float, float]:
        """Return cosine and margin of appendix B.2 (Eq. 22 and 23). Call it before clipping.

        ``parameters`` have the whole gradient in ``.grad``; ``regularising`` is the part of it that
        comes from L_div and L_prune, if any.
        """

        def multiply() -> Iterator[tuple[nn.Parameter, list[Tensor]]]:
            for parameter in parameters:
                if parameter.grad is not None and parameter in regularising:
                    part = regularising[parameter]
                    main = parameter.grad - part
                    yield parameter, [main.square(), part.square(), main * part]
                elif parameter.grad is not None:
                    yield parameter, [parameter.grad.square()]  # the other sums get zero from it

        # One after the other: the products of all parameters may not fit in memory.
        sums_AK, shared_K = self._sum_by_agent(multiply(), 3)
        main, regulariser, inner_product = (sums_AK.sum(0) + shared_K).tolist()
        return gradient_conflict(main**0.5, regulariser**0.5, inner_product)

    def _sum_by_agent(
        self, terms: Iterable[tuple[nn.Parameter, Sequence[Tensor]]], count: int
    ) -> tuple[Tensor, Tensor]:
        """Sum ``count`` tensors per parameter: by agent (A, K), and over shared parameters (K,)."""
        # float64: in a float32 sum of millions of squares small ones would be lost.
        local_AK = torch.zeros(
            len(self.shards.local_agents), count, dtype=torch.float64, device=self.device
        )
        shared_K = torch.zeros(count, dtype=torch.float64, device=self.device)

        for parameter, values in terms:
            for k, value in enumerate(values):
                # Parameters of agents are stacked: their first dimension is the agent.
                if id(parameter) in self._shared:
                    shared_K[k] += value.sum()
                else:
                    local_AK[:, k] += value.flatten(1).sum(1)
        return self.shards.all_gather(local_AK, "norms"), shared_K
