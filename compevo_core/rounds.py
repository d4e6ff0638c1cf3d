"""One round of the method: forecast, reward, evolve, update (paper 4.1 to 4.4).

What belongs here: the order of a round, its losses and its record. What does not: batches, validation,
checkpoints (``trainer``). Weights of a round come from the fitness before it: no agent is weighted by
a truth it is about to be scored on.
Legend: A agents, G logics of an agent, B windows, H horizon, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.answers import Task
from compevo_core.config import RunConfig
from compevo_core.grpo import PolicyLoss, group_advantages, policy_loss
from compevo_core.learner import Learner
from compevo_core.logics import LogicWriter, Observation, Proposal
from compevo_core.objective import LossTerms, diversity_loss, pruning_loss, require_finite
from compevo_core.population import LOGIC
from compevo_core.selection import aggregate, forecast_error, reward
from compevo_core.strategy import StrategyExecutor
from compevo_core.theory import aggregate_best_response_gap, best_response_gap, gradient_conflict_from_products


@dataclasses.dataclass
class RunState:
    """What a round hands to the next, beside the tensors of the learner."""

    round: int
    logics: list[str]
    rewards: list[float]
    previous_AD: Tensor
    regret: list[float]


@dataclasses.dataclass
class _Forecasts:
    """Detached results of strategy execution."""

    values_ABH: Tensor
    truth_BH: Tensor
    pred: float
    tokens: float
    failures: int


class RoundPlayer:
    """Plays rounds on a learner; owns the optimiser, not the loop."""

    def __init__(self, learner: Learner, executor: StrategyExecutor, total_rounds: int) -> None:
        self.learner, self.executor, self.total_rounds = learner, executor, total_rounds
        self.config = learner.config
        self.writer: LogicWriter = learner.writer()
        optim = self.config.optim
        self.optimizer = torch.optim.AdamW([
            {"params": learner.forecast_parameters(), "lr": optim.forecast_lr},
            {"params": learner.policy_parameters(), "lr": optim.policy_lr},
        ], weight_decay=optim.weight_decay)

    def play(self, state: RunState, tasks: Sequence[Task], sampling: Sequence[torch.Generator],
             drawing: np.random.Generator) -> dict[str, Any]:
        """Plays one round in place and returns its record (README, "rounds.jsonl")."""
        metric = self.config.objective.metric
        self._set_rates(state.round)
        self.optimizer.zero_grad(set_to_none=True)
        weights_A = self.learner.selection.weights().detach()
        done = self._forecast(state, tasks)
        reward_A = reward(done.values_ABH, done.truth_BH, metric)
        seen = Observation(state.logics, reward_A.tolist(), self._peers(drawing))
        proposal = self.writer.propose(seen, state.previous_AD, sampling)
        picked = self._reward_windows(len(tasks), drawing)
        group_AGBH, unread = self.executor.forecast_groups(proposal.texts, [tasks[i] for i in picked])
        truth_BH, played_ABH = done.truth_BH[picked], done.values_ABH[:, picked]
        group_AG = -forecast_error(group_AGBH, truth_BH, metric).mean(-1)
        record = self._record(state, reward_A, weights_A, proposal, group_AG)
        gap = aggregate_best_response_gap(_host(group_AGBH), _host(played_ABH), _host(weights_A), _host(truth_BH),
                                          metric=metric)
        own = best_response_gap(_host(group_AG), _host(reward(played_ABH, truth_BH, metric)))
        state.regret = [total + float(step) for total, step in zip(state.regret, own, strict=True)]
        losses, watched = self._update(state, proposal, group_AG, done)
        record |= watched | {
            "loss": losses.total(self.config.objective) + done.tokens, "loss_pred": losses.pred,
            "loss_tokens": done.tokens, "loss_pg": losses.pg, "loss_div": losses.div, "loss_prune": losses.prune,
            "best_response_gap": gap.tolist(), "regret": list(state.regret),
            "unread_answers": done.failures + unread,
            "answers": played_ABH.shape[0] * len(tasks) + group_AG.numel() * len(picked),
            "unique_news": self._unique_news(state.logics, tasks)}
        self.learner.selection.update(reward_A)
        best = group_AG.argmax(1).tolist() if self.config.grpo.carry == "best" else [0] * len(state.logics)
        state.logics = [group[i] for group, i in zip(proposal.texts, best, strict=True)]
        state.rewards = reward_A.tolist()
        state.previous_AD = proposal.candidate_AD.detach()
        state.round += 1
        return record

    def _forecast(self, state: RunState, tasks: Sequence[Task]) -> _Forecasts:
        """Strategy execution and the backward pass of L_pred, a few windows at a time."""
        values, truths, pred, tokens, failures = [], [], 0.0, 0.0, 0
        for start in range(0, len(tasks), self.config.run.micro_windows):
            part = tasks[start:start + self.config.run.micro_windows]
            value_ABH, token_loss, unread = self.executor.forecast(state.logics, part, train=True)
            truth_BH = torch.tensor(np.stack([t.truth_H for t in part if t.truth_H is not None]),
                                    dtype=torch.float32, device=value_ABH.device)
            require_finite("the forecast", value_ABH.sum((1, 2)), state.round)
            total = aggregate(value_ABH, self.learner.selection.weights())
            loss = forecast_error(total, truth_BH, self.config.objective.metric).sum() / len(tasks)
            share = token_loss * (len(part) / len(tasks))
            require_finite("L_pred", loss + share, state.round)
            with self.executor.routing(train=True):
                _backward(loss + share)
            pred, tokens = pred + float(loss.detach()), tokens + float(share.detach())
            failures += unread
            values.append(value_ABH.detach())
            truths.append(truth_BH)
        return _Forecasts(torch.cat(values, 1), torch.cat(truths), pred, tokens, failures)

    def _update(self, state: RunState, proposal: Proposal, group_AG: Tensor, done: _Forecasts
                ) -> tuple[LossTerms, dict[str, Any]]:
        """Adds the gradients of the other three terms, checks them, and takes the step."""
        weights, gates = self.config.objective, self.learner.selection.gates_A
        policy = self.learner.policy_parameters()
        diversity = diversity_loss(proposal.candidate_AD)
        require_finite("L_div", diversity, state.round)
        if weights.lambda_div and diversity.requires_grad:
            with self.learner.population.using(LOGIC):
                _backward(weights.lambda_div * diversity, retain_graph=True)
        strategy = [None if p.grad is None else p.grad.clone() for p in policy]
        prune = pruning_loss(gates)
        _backward(weights.lambda_prune * prune)
        advantage_AG, equal = group_advantages(group_AG)
        term: PolicyLoss | None = None
        if self.config.grpo.enabled:
            policy_step = _PolicyStep(self.writer, proposal, advantage_AG, self.config)
            term = policy_step.backward(state.round)
        strategy_gates = weights.lambda_prune * torch.sign(gates.detach())
        watched = self._conflict([*policy, gates], [*strategy, strategy_gates]) | {"equal_groups": equal}
        watched["grad_norm"] = self._step(self.optimizer.param_groups)
        pg = 0.0 if term is None else float(term.loss.detach())
        if term is not None:
            for _ in range(1, self.config.grpo.iterations):
                self.optimizer.zero_grad(set_to_none=True)
                term = policy_step.backward(state.round)
                self._step(self.optimizer.param_groups[1:])
        watched |= {"kl": term.kl if term else 0.0, "clip_fraction": term.clip_fraction if term else 0.0}
        return LossTerms(done.pred, pg, float(diversity.detach()), float(prune.detach())), watched

    def _step(self, groups: Sequence[dict[str, Any]]) -> float:
        """Clips each group's gradient by its norm and updates; parameters without gradient stay. Returns the norm."""
        limit, norms = self.config.optim.gradient_clip or float("inf"), []
        for group in groups:
            norms.append(float(nn.utils.clip_grad_norm_(group["params"], limit, error_if_nonfinite=True)))
        self.optimizer.step()
        return float(np.hypot.reduce(norms))

    def _conflict(self, parameters: Sequence[nn.Parameter], strategy: Sequence[Tensor | None]) -> dict[str, Any]:
        """The condition of appendix B.2 between main and regularising gradients, before clipping."""
        main_square = strategy_square = inner = 0.0
        for parameter, part in zip(parameters, strategy, strict=True):
            if parameter.grad is None:
                continue
            regular = torch.zeros_like(parameter.grad) if part is None else part
            main = parameter.grad - regular
            main_square += float(main.square().sum())
            strategy_square += float(regular.square().sum())
            inner += float((main * regular).sum())
        found = gradient_conflict_from_products(main_square**0.5, strategy_square**0.5, inner)
        return {"gradient_conflict": found.cosine, "gradient_margin": found.margin}

    def _record(self, state: RunState, reward_A: Tensor, weights_A: Tensor, proposal: Proposal, group_AG: Tensor
                ) -> dict[str, Any]:
        selection = self.learner.selection
        entropy = float(-(weights_A * weights_A.clamp(min=1e-12).log()).sum())
        return {
            "round": state.round, "weight_entropy": entropy, "rewards": reward_A.tolist(),
            "fitness": selection.fitness_A.tolist(), "weights": weights_A.tolist(),
            "gates": selection.gates_A.tolist(), "logics": list(state.logics), "candidates": proposal.candidates,
            "group_rewards": group_AG.tolist(), "group_logics": proposal.texts, "empty_logics": proposal.empty,
            "interaction": self.learner.fusion.interaction().tolist(),
        }

    def _unique_news(self, logics: Sequence[str], tasks: Sequence[Task]) -> list[int]:
        choices = self.executor.chosen(logics, [t.view for t in tasks])
        return [len({article for window in agent for article in window}) for agent in choices]

    def _peers(self, drawing: np.random.Generator) -> list[list[int]]:
        agents = self.config.population.agents
        count = min(self.config.population.exposed_peers, agents - 1)
        return [sorted(drawing.choice([j for j in range(agents) if j != i], size=count, replace=False).tolist())
                if count else [] for i in range(agents)]

    def _reward_windows(self, batch: int, drawing: np.random.Generator) -> list[int]:
        count = self.config.grpo.reward_windows or batch
        return sorted(drawing.choice(batch, size=min(count, batch), replace=False).tolist())

    def _set_rates(self, round_number: int) -> None:
        """Linear warm-up, then cosine decay to zero (paper D.2)."""
        optim = self.config.optim
        warmup = max(1, round(optim.warmup_ratio * self.total_rounds))
        if round_number < warmup:
            factor = (round_number + 1) / warmup
        else:
            done = (round_number - warmup) / max(1, self.total_rounds - warmup)
            factor = 0.5 * (1.0 + float(np.cos(np.pi * min(done, 1.0))))
        for group, base in zip(self.optimizer.param_groups, (optim.forecast_lr, optim.policy_lr), strict=True):
            group["lr"] = base * factor


class _PolicyStep:
    """The policy term of one group of samples, for one or more updates on it; one agent at a time in memory."""

    def __init__(self, writer: LogicWriter, proposal: Proposal, advantage_AG: Tensor, config: RunConfig) -> None:
        self.writer, self.proposal, self.advantage_AG, self.config = writer, proposal, advantage_AG, config
        self.reference_AGT = writer.reference_logp(proposal)
        self.mask_AGT = proposal.mask_AGT
        self.old_AGT = torch.zeros_like(self.reference_AGT)
        self.calls = 0

    def backward(self, round_number: int) -> PolicyLoss:
        """Adds the gradient of lambda_PG L_pg, averaged over agents; the first call fixes the old policy.

        The soft prompts' gradient is collected over the agents and sent through the fusion once; further calls
        leave the soft prompts as they were sampled with.
        """
        grpo, agents = self.config.grpo, self.advantage_AG.shape[0]
        soft_AD = self.proposal.soft_AD
        leaf_AD = None if soft_AD is None else soft_AD.detach().requires_grad_(self.calls == 0)
        loss, kl, clipped = self.advantage_AG.new_zeros(()), 0.0, 0.0
        for agent in range(agents):
            one = slice(agent, agent + 1)
            with self.writer.routing(one):
                logp_AGT = self.writer.logp(self.proposal, one, leaf_AD)
                require_finite("L_pg", (logp_AGT * self.mask_AGT[one]).sum(), round_number)
                if self.calls == 0:
                    self.old_AGT[one] = logp_AGT.detach()
                term = policy_loss(logp_AGT, self.old_AGT[one], self.reference_AGT[one], self.advantage_AG[one],
                                   self.mask_AGT[one], clip=grpo.clip, kl=grpo.kl)
                _backward(self.config.objective.lambda_pg / agents * term.loss)
            loss = loss + term.loss.detach() / agents
            kl, clipped = kl + term.kl / agents, clipped + term.clip_fraction / agents
        if soft_AD is not None and leaf_AD is not None and leaf_AD.grad is not None:
            with self.writer.routing(slice(None)):
                soft_AD.backward(leaf_AD.grad)  # type: ignore[no-untyped-call]
        self.calls += 1
        return PolicyLoss(loss, kl, clipped)


def _backward(loss: Tensor, *, retain_graph: bool = False) -> None:
    loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


def _host(values: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float32)
