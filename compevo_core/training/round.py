"""One round of the method: forecast, reward, evolve, update (paper 4.1 to 4.4).

What belongs here: the order of a round, its losses and its record. What does not: batches, validation,
checkpoints (``trainer``). Weights of a round come from the fitness before it: no agent is weighted by
a truth it is about to be scored on.
Where processes share the agents, each does the work of its own, tells the others the results (``shards``), and
computes from all of them what concerns everyone: weights, fusion, gates, the record.
Legend: A agents, G logics of an agent, B windows, H horizon, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.grpo import PolicyLoss, group_advantages, policy_loss
from compevo_core.agents.logic_writer import LogicWriter, Observation, Proposal
from compevo_core.agents.objective import LossTerms, diversity_loss, pruning_loss, require_finite
from compevo_core.agents.selection import aggregate, forecast_error, reward
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.config import RunConfig
from compevo_core.diagnostics.regret import RegretBook, fixed_logics
from compevo_core.diagnostics.theory import (
    aggregate_best_response_gap,
    best_response_gap,
    weight_entropy,
)
from compevo_core.lm.population import LOGIC
from compevo_core.training.gradients import Gradients
from compevo_core.training.model import PopulationModel


@dataclasses.dataclass
class RoundState:
    """What a round hands to the next, beside the tensors of the learner; of all agents, on every process."""

    round: int
    logics: list[str]
    rewards: list[float]
    previous_AD: Tensor
    regret: RegretBook


@dataclasses.dataclass
class _Forecasts:
    """Detached results of all agents' strategy execution; ``failures`` are those of this process."""

    values_ABH: Tensor
    truth_BH: Tensor
    pred: float
    tokens: float
    failures: int


class RoundTrainer:
    """Plays rounds on a learner; owns the optimiser, not the loop."""

    def __init__(
        self, learner: PopulationModel, executor: StrategyExecutor, total_rounds: int
    ) -> None:
        self.learner, self.executor, self.total_rounds = learner, executor, total_rounds
        self.shards, self.gradients = learner.shards, Gradients(learner)
        self.config = learner.config
        self.writer: LogicWriter = learner.writer()
        optim = self.config.optim
        self.optimizer = torch.optim.AdamW(
            [
                {"params": learner.forecast_parameters(), "lr": optim.forecast_lr},
                {"params": learner.policy_parameters(), "lr": optim.policy_lr},
            ],
            weight_decay=optim.weight_decay,
        )

    def step(
        self,
        state: RoundState,
        tasks: Sequence[ForecastExample],
        sampling: Sequence[torch.Generator],
        drawing: np.random.Generator,
    ) -> dict[str, Any]:
        """Plays one round in place and returns its record (README, "rounds.jsonl"), the same on every process.

        ``sampling`` is one generator for each own agent, ``drawing`` stands alike on every process.
        """
        metric = self.config.objective.metric
        self._set_rates(state.round)
        self.optimizer.zero_grad(set_to_none=True)
        weights_A = self.learner.selection.weights().detach()
        done = self._forecast(state, tasks)
        reward_A = reward(done.values_ABH, done.truth_BH, metric)
        seen = Observation(state.logics, reward_A.tolist(), self._peers(drawing))
        proposal = self.writer.propose(seen, state.previous_AD, sampling)
        picked = self._reward_windows(len(tasks), drawing)
        own_AGBH, unread = self.executor.forecast_groups(proposal.texts, [tasks[i] for i in picked])
        group_AGBH = self.shards.all_gather(own_AGBH, "forecasts")
        told = self._tell(state, tasks, proposal, done.failures + unread)
        truth_BH, played_ABH = done.truth_BH[picked], done.values_ABH[:, picked]
        group_AG = -forecast_error(group_AGBH, truth_BH, metric).mean(-1)
        record = self._record(state, reward_A, weights_A, group_AG) | told
        gap = aggregate_best_response_gap(
            _host(group_AGBH), _host(played_ABH), _host(weights_A), _host(truth_BH), metric=metric
        )
        own = best_response_gap(_host(group_AG), _host(reward(played_ABH, truth_BH, metric)))
        beside_AK, fixed_unread = self._beside(state.logics, [tasks[i] for i in picked], truth_BH)
        losses, watched = self._update(state, proposal, group_AG, done)
        record |= (
            watched
            | state.regret.add(beside_AK, own)
            | {
                "loss": losses.total(self.config.objective) + done.tokens,
                "loss_pred": losses.pred,
                "loss_tokens": done.tokens,
                "loss_pg": losses.pg,
                "loss_div": losses.div,
                "loss_prune": losses.prune,
                "best_response_gap": gap.tolist(),
                "fixed_unread_answers": fixed_unread,
                "answers": played_ABH.shape[0] * len(tasks) + group_AG.numel() * len(picked),
            }
        )
        self.learner.selection.update(reward_A)
        best = (
            group_AG.argmax(1).tolist()
            if self.config.grpo.carry == "best"
            else [0] * len(state.logics)
        )
        state.logics = [group[i] for group, i in zip(told["group_logics"], best, strict=True)]
        state.rewards = reward_A.tolist()
        state.previous_AD = proposal.candidate_AD.detach()
        state.round += 1
        return record

    def _beside(
        self, logics: Sequence[str], tasks: Sequence[ForecastExample], truth_BH: Tensor
    ) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
        """Rewards (A, 1 + K) of the played logics and their fixed comparators, and how many answers were unreadable.

        All of them are scored together, apart from the group and without dropout, so that the comparison is of like
        with like and that measuring it moves no number of the training.
        """
        if not (count := self.config.run.fixed_logics):
            return np.zeros((len(logics), 0), dtype=np.float32), 0
        groups = [
            [logic, *fixed]
            for logic, fixed in zip(logics, fixed_logics(len(logics), count), strict=True)
        ]
        own_AGBH, unread = self.executor.forecast_groups(self.shards.local(groups), tasks)
        values_AGBH = self.shards.all_gather(own_AGBH, "forecasts")
        rewards_AK = _host(
            -forecast_error(values_AGBH, truth_BH, self.config.objective.metric).mean(-1)
        )
        return rewards_AK, int(self.shards.all_reduce_sum([unread])[0])

    def _forecast(self, state: RoundState, tasks: Sequence[ForecastExample]) -> _Forecasts:
        """Strategy execution and the backward pass of L_pred, a few windows at a time."""
        values, truths, pred, tokens, failures = [], [], 0.0, 0.0, 0
        for start in range(0, len(tasks), self.config.run.micro_windows):
            part = tasks[start : start + self.config.run.micro_windows]
            own_ABH, token_A, unread = self.executor.forecast(
                self.shards.local(state.logics), part, train=True
            )
            value_ABH, all_token_A = (
                self.shards.all_gather(own_ABH, "forecasts"),
                self.shards.all_gather(token_A, "losses"),
            )
            truth_BH = torch.tensor(
                np.stack([t.truth_H for t in part if t.truth_H is not None]),
                dtype=torch.float32,
                device=value_ABH.device,
            )
            require_finite("the forecast", value_ABH.sum((1, 2)), state.round)
            require_finite("the token loss", all_token_A, state.round)
            total = aggregate(value_ABH, self.learner.selection.weights())
            loss = forecast_error(total, truth_BH, self.config.objective.metric).sum() / len(tasks)
            require_finite("L_pred", loss, state.round)
            share = len(part) / len(tasks)
            with self.executor.routing(train=True):
                _backward(loss + share * token_A.sum())
            pred, tokens = (
                pred + float(loss.detach()),
                tokens + share * float(all_token_A.detach().sum()),
            )
            failures += unread
            values.append(value_ABH.detach())
            truths.append(truth_BH)
        return _Forecasts(torch.cat(values, 1), torch.cat(truths), pred, tokens, failures)

    def _update(
        self, state: RoundState, proposal: Proposal, group_AG: Tensor, done: _Forecasts
    ) -> tuple[LossTerms, dict[str, Any]]:
        """Adds the gradients of the other three terms, checks them, and takes the step."""
        weights, gates = self.config.objective, self.learner.selection.gates_A
        policy = self.learner.policy_parameters()
        diversity = diversity_loss(proposal.candidate_AD)
        require_finite("L_div", proposal.candidate_AD.sum(1), state.round)
        if weights.lambda_div and diversity.requires_grad:
            with self.learner.population.using(LOGIC):
                _backward(weights.lambda_div * diversity, retain_graph=True)
        strategy = [None if p.grad is None else p.grad.clone() for p in policy]
        prune = pruning_loss(gates)
        _backward(weights.lambda_prune * prune)
        advantage_AG, equal = group_advantages(group_AG)
        term: PolicyLoss | None = None
        if self.config.grpo.enabled:
            policy_step = _PolicyStep(
                self.writer, proposal, self.shards.local(advantage_AG), self.config
            )
            term = policy_step.backward(state.round)
        strategy_gates = weights.lambda_prune * torch.sign(gates.detach())
        conflict = self.gradients.conflict([*policy, gates], [*strategy, strategy_gates])
        watched = {
            "gradient_conflict": conflict.cosine,
            "gradient_margin": conflict.margin,
            "equal_groups": equal,
            "grad_norm": self._step(self.optimizer.param_groups, state.round),
        }
        pg = 0.0 if term is None else float(term.loss.detach())
        if term is not None:
            for _ in range(1, self.config.grpo.iterations):
                self.optimizer.zero_grad(set_to_none=True)
                term = policy_step.backward(state.round)
                self._step(self.optimizer.param_groups[1:], state.round)
        watched |= {
            "kl": term.kl if term else 0.0,
            "clip_fraction": term.clip_fraction if term else 0.0,
        }
        return LossTerms(done.pred, pg, float(diversity.detach()), float(prune.detach())), watched

    def _step(self, groups: Sequence[dict[str, Any]], round_number: int) -> float:
        """Clips each group's gradient by its norm and updates; parameters without gradient stay. Returns the norm."""
        norm = self.gradients.clip(
            [group["params"] for group in groups], self.config.optim.gradient_clip, round_number
        )
        self.optimizer.step()
        return norm

    def _tell(
        self, state: RoundState, tasks: Sequence[ForecastExample], proposal: Proposal, unread: int
    ) -> dict[str, Any]:
        """The part of the record that each process knows for its own agents, gathered."""
        news = self._unique_news(self.shards.local(state.logics), tasks)
        told = self.shards.all_gather_json(
            list(zip(proposal.candidates, proposal.texts, news, strict=True))
        )
        candidates, texts, counts = ([one[part] for one in told] for part in range(3))
        empty, failures = self.shards.all_reduce_sum([proposal.empty, unread])
        return {
            "candidates": candidates,
            "group_logics": texts,
            "unique_news": counts,
            "empty_logics": int(empty),
            "unread_answers": int(failures),
        }

    def _record(
        self, state: RoundState, reward_A: Tensor, weights_A: Tensor, group_AG: Tensor
    ) -> dict[str, Any]:
        selection = self.learner.selection
        return {
            "round": state.round,
            "weight_entropy": weight_entropy(_host(weights_A)),
            "rewards": reward_A.tolist(),
            "fitness": selection.fitness_A.tolist(),
            "weights": weights_A.tolist(),
            "gates": selection.gates_A.tolist(),
            "logics": list(state.logics),
            "group_rewards": group_AG.tolist(),
            "interaction": self.learner.fusion.interaction().tolist(),
        }

    def _unique_news(self, logics: Sequence[str], tasks: Sequence[ForecastExample]) -> list[int]:
        choices = self.executor.chosen(logics, [t.view for t in tasks])
        return [len({article for window in agent for article in window}) for agent in choices]

    def _peers(self, drawing: np.random.Generator) -> list[list[int]]:
        agents = self.config.population.agents
        count = min(self.config.population.exposed_peers, agents - 1)
        return [
            sorted(
                drawing.choice(
                    [j for j in range(agents) if j != i], size=count, replace=False
                ).tolist()
            )
            if count
            else []
            for i in range(agents)
        ]

    def _reward_windows(self, batch: int, drawing: np.random.Generator) -> list[int]:
        count = self.config.grpo.reward_windows or batch
        return sorted(drawing.choice(batch, size=min(count, batch), replace=False).tolist())

    def _set_rates(self, round_number: int) -> None:
        optim = self.config.optim
        factor = rate_factor(round_number, self.total_rounds, optim.warmup_ratio)
        for group, base in zip(
            self.optimizer.param_groups, (optim.forecast_lr, optim.policy_lr), strict=True
        ):
            group["lr"] = base * factor


def rate_factor(round_number: int, total_rounds: int, warmup_ratio: float) -> float:
    """Share of the learning rate in a round: linear warm-up, then cosine decay to zero (paper D.2)."""
    warmup = max(1, round(warmup_ratio * total_rounds))
    if round_number < warmup:
        return (round_number + 1) / warmup
    done = (round_number - warmup) / max(1, total_rounds - warmup)
    return 0.5 * (1.0 + float(np.cos(np.pi * min(done, 1.0))))


class _PolicyStep:
    """The policy term of one group of samples, for one or more updates on it; one agent at a time in memory.

    ``advantage_AG`` is of this process's own agents, as the samples are.
    """

    def __init__(
        self, writer: LogicWriter, proposal: Proposal, advantage_AG: Tensor, config: RunConfig
    ) -> None:
        self.writer, self.proposal, self.advantage_AG, self.config = (
            writer,
            proposal,
            advantage_AG,
            config,
        )
        self.reference_AGT = writer.reference_logp(proposal)
        self.mask_AGT = proposal.mask_AGT
        self.old_AGT = torch.zeros_like(self.reference_AGT)
        self.calls = 0

    def backward(self, round_number: int) -> PolicyLoss:
        """Adds the gradient of lambda_PG L_pg, averaged over all agents; the first call fixes the old policy.

        Raises:
            NonFiniteLoss: an agent's log-probabilities are NaN or infinite; on every process.
        """
        shards, agents, told = self.writer.shards, self.config.population.agents, []
        soft_AD = self.proposal.soft_AD
        leaf_AD = (
            None
            if soft_AD is None
            else shards.local(soft_AD).detach().requires_grad_(self.calls == 0)
        )
        for row in range(len(shards.local_agents)):
            one = slice(row, row + 1)
            with self.writer.routing(one):
                logp_AGT = self.writer.logp(self.proposal, one, leaf_AD)
                if self.calls == 0:
                    self.old_AGT[one] = logp_AGT.detach()
                term = policy_loss(
                    logp_AGT,
                    self.old_AGT[one],
                    self.reference_AGT[one],
                    self.advantage_AG[one],
                    self.mask_AGT[one],
                    clip=self.config.grpo.clip,
                    kl=self.config.grpo.kl,
                )
                _backward(self.config.objective.lambda_pg / agents * term.loss)
            size = float((logp_AGT.detach() * self.mask_AGT[one]).sum())
            told.append([size, float(term.loss.detach()), term.kl, term.clip_fraction])
        told_AK = shards.all_gather(torch.tensor(told, dtype=torch.float64), "policy terms")
        require_finite("L_pg", told_AK[:, 0], round_number)
        if soft_AD is not None and leaf_AD is not None and leaf_AD.grad is not None:
            self._through_fusion(soft_AD, leaf_AD.grad)
        self.calls += 1
        loss, kl, clipped = told_AK[:, 1:].mean(0)
        return PolicyLoss(loss, float(kl), float(clipped))

    def _through_fusion(self, soft_AD: Tensor, own_gradient_AD: Tensor) -> None:
        """Sends the soft prompts' gradient through the fusion, once; later updates leave the soft prompts alone.

        All agents' gradients are gathered first: every process then gives the shared fusion the same gradient, and
        only its own agents' part reaches its adapters.
        """
        gradient_AD = self.writer.shards.all_gather(own_gradient_AD, "states")
        with self.writer.routing(slice(None)):
            soft_AD.backward(gradient_AD)  # type: ignore[no-untyped-call]


def _backward(loss: Tensor, *, retain_graph: bool = False) -> None:
    loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


def _host(values: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float32)
