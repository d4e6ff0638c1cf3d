"""The round of the core, done one adapter at a time by plain PEFT.

What belongs here: the order of a round, its losses and its update on ``PeftPopulation``. What does
not: adapters, prompts and generation (``peft_population``), timing (``cases``).

Losses and optimiser step are those of ``compevo_core.training``; their arithmetic is imported from
the core. A round generates its own samples and then scores the ones that our round sampled, so that
the losses of both ways are comparable number by number.

Shapes: A agents, G samples of an agent, B windows, H horizon, D hidden.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peft_population import PeftPopulation
from benchmarks.world import Replay, World
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.grpo import group_advantages, policy_loss
from compevo_core.agents.objective import (
    diversity_loss,
    own_error_weights,
    prediction_loss,
    pruning_loss,
)
from compevo_core.agents.selection import aggregate_forecasts, forecast_error
from compevo_core.training.update import group_parameters


class PeftRound:
    """Do rounds on a population of PEFT adapters.

    Attributes:
        population: the adapters.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.config = world.config
        self.population = PeftPopulation(world)

    def reset(self) -> None:
        """Take the world's learned tensors as they are now, and a fresh optimiser."""
        population: Any = self.population
        population.reset()

        # The core's own groups: rates and clipping are then the same both ways.
        groups = group_parameters(population, self.config.optim)
        self.optimizer = torch.optim.AdamW(groups, weight_decay=self.config.optim.weight_decay)
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, examples: Sequence[ForecastExample], replay: Replay) -> dict[str, Any]:
        """Do one whole round; return its losses, group rewards and gradient norm."""
        population = self.population
        loss_pred, loss_own = self._train_forecasts(examples)

        # Candidates and groups are generated for their cost; those of the replay are scored.
        population.generate_candidates(replay)
        candidate_AD = population.encode(replay.candidates)
        soft_prompt_AD = self._make_soft_prompts(candidate_AD, replay)
        population.generate_groups(replay, soft_prompt_AD)
        reward_AG = self._score_groups(replay)

        loss_div = self._backward_regularisers(candidate_AD)
        loss_pg = self._backward_policy(replay, soft_prompt_AD, reward_AG)
        grad_norm = self._take_step()
        return {
            "loss_pred": loss_pred,
            "loss_own": loss_own,
            "loss_pg": loss_pg,
            "loss_div": loss_div,
            "grad_norm": grad_norm,
            "group_rewards": reward_AG.tolist(),
        }

    def score_group(
        self,
        agent: int,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        truth_BH: Tensor,
    ) -> Tensor:
        """Return the reward of each logic of one agent, (G,)."""
        values_GBH = self.population.forecast_group(agent, logics, examples)
        return -forecast_error(values_GBH, truth_BH, self.config.objective.metric).mean(-1)

    def _train_forecasts(self, examples: Sequence[ForecastExample]) -> tuple[float, float]:
        """Forecast and add the gradient of the losses, one micro-batch at a time.

        Returns:
            L_pred, and the sum of the agents' own errors.
        """
        objective = self.config.objective
        totals = np.zeros(2)
        size = self.config.run.micro_batch_size
        for start in range(0, len(examples), size):
            part = examples[start : start + size]
            truth_BH = stack_truths(part)
            logics = self.world.logics
            values_ABH = self.population.executor.forecast(logics, part, train=True).values_ABH

            entities = [example.view.entity for example in part]
            weights_BA = self.population.selection.weights(entities)
            forecast_BH = aggregate_forecasts(values_ABH, weights_BA)
            pred = prediction_loss(forecast_BH, truth_BH, objective).sum() / len(examples)
            own_weights = self._weigh_own_errors(part)
            own_AB = prediction_loss(values_ABH, truth_BH, objective, own_weights)
            own = own_AB.sum() / len(examples)

            self.population.make_all_trainable()
            (pred + objective.lambda_own * own).backward()
            totals += [float(pred.detach()), float(own.detach())]
        return float(totals[0]), float(totals[1])

    def _weigh_own_errors(self, examples: Sequence[ForecastExample]) -> Tensor:
        """Return how much each window and step counts in each agent's own error, (A, B, H)."""
        views = [example.view for example in examples]
        seed = self.config.run.seed
        weights = [
            own_error_weights(self.config.population.member(agent), views, seed=seed, agent=agent)
            for agent in range(self.population.agents)
        ]
        return torch.tensor(np.stack(weights), dtype=torch.float32)

    @torch.no_grad()
    def _score_groups(self, replay: Replay) -> Tensor:
        """Return the reward of each agent's sampled logics, (A, G)."""
        truth_BH = stack_truths(replay.reward_examples)
        # The played logic is scored in its group, as the core does.
        rewards = [
            self.score_group(agent, [played, *samples], replay.reward_examples, truth_BH)
            for agent, (played, samples) in enumerate(
                zip(self.world.logics, replay.group_logics, strict=True)
            )
        ]
        return torch.stack(rewards)[:, 1:]

    def _make_soft_prompts(self, candidate_AD: Tensor, replay: Replay) -> Tensor | None:
        if self.config.evolution.update != "three-stage":
            return None

        fusion = self.population.fusion
        return fusion.soft_prompt(fusion(candidate_AD, replay.previous_AD))

    def _backward_regularisers(self, candidate_AD: Tensor) -> float:
        """Add the gradients of diversity and pruning; return the diversity loss."""
        weights = self.config.objective
        self.population.make_all_trainable()

        loss_div = diversity_loss(candidate_AD)
        if weights.lambda_div and loss_div.requires_grad:
            # The policy term goes through the same candidates again.
            (weights.lambda_div * loss_div).backward(retain_graph=True)
        (weights.lambda_prune * pruning_loss(self.population.selection.gates_A)).backward()
        return float(loss_div.detach())

    def _backward_policy(
        self, replay: Replay, soft_prompt_AD: Tensor | None, reward_AG: Tensor
    ) -> float:
        """Add the gradient of the policy term, agent by agent; return the loss."""
        advantage_AG, _ = group_advantages(reward_AG, replay.is_empty_AG)
        leaf_AD = None if soft_prompt_AD is None else soft_prompt_AD.detach().requires_grad_(True)

        total = 0.0
        for agent in range(self.population.agents):
            loss = self._policy_loss(agent, replay, leaf_AD, advantage_AG[agent : agent + 1])
            weight = self.config.objective.lambda_pg / self.population.agents
            (weight * loss).backward()
            total += float(loss.detach()) / self.population.agents

        if soft_prompt_AD is not None and leaf_AD is not None and leaf_AD.grad is not None:
            self.population.make_all_trainable()
            soft_prompt_AD.backward(leaf_AD.grad)
        return total

    def _policy_loss(
        self, agent: int, replay: Replay, leaf_AD: Tensor | None, advantage_1G: Tensor
    ) -> Tensor:
        population = self.population
        population.use_logic_adapter(agent)

        neutral_AD = None if leaf_AD is None else population.fusion.neutral_D.expand_as(leaf_AD)
        with torch.no_grad(), population.model.disable_adapter():
            reference_1GT = population.logp(agent, replay, neutral_AD)

        logp_1GT = population.logp(agent, replay, leaf_AD)
        return policy_loss(
            logp_1GT,
            logp_1GT.detach(),  # before the first update the old policy is the current one
            reference_1GT,
            advantage_1G,
            replay.mask_AGT[agent : agent + 1],
            clip_range=self.config.grpo.clip_range,
            kl_coefficient=self.config.grpo.kl_coefficient,
        ).loss

    def _take_step(self) -> float:
        """Clip each group's gradient and update; return the norm before clipping."""
        max_norm = self.config.optim.max_grad_norm or float("inf")
        norms = [
            float(nn.utils.clip_grad_norm_(group["params"], max_norm))
            for group in self.optimizer.param_groups
        ]
        self.optimizer.step()
        return float(np.hypot.reduce(norms))


def stack_truths(examples: Sequence[ForecastExample]) -> Tensor:
    """Return the scaled truths, (B, H), of the examples that have one."""
    truths = [example.truth_H for example in examples if example.truth_H is not None]
    return torch.tensor(np.stack(truths), dtype=torch.float32)
