"""The forecasts of a debate's round: two turns or more, verifiers, and PPO on their errors.

Every round trains the forecasts of each turn by their own errors, as in the other systems, and the
verifiers by the errors of the last turn. Rounds in which another system would rewrite its logics
(``evolution.every``) also try forecasts around these, show them to the other agents, and credit
each forecast with what it led to. The arithmetic is in ``agents.debate``.

Shapes: A agents, B windows, T turns, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from compevo_core.agents.debate import (
    DebateExecutor,
    discount_rewards,
    find_better,
    log_density,
    standardise_advantages,
    weigh_by_score,
)
from compevo_core.agents.decoders import VALUE, VERIFIER, AgentReadings, ForecastExample
from compevo_core.agents.objective import policy_loss, prediction_loss, require_finite
from compevo_core.agents.selection import aggregate_forecasts, forecast_error
from compevo_core.training.forecast_step import ForecastStep, PlayedForecasts
from compevo_core.training.model import PopulationModel
from compevo_core.training.schedule import RunGenerators, RunSchedule


@dataclasses.dataclass(frozen=True)
class Turn:
    """What the agents said in one turn of a tried debate, without gradient."""

    readings: AgentReadings  # what each agent had read; from the second turn on also of the others
    tried_ABH: Tensor  # the forecasts that were tried
    mean_ABH: Tensor  # the forecasts that they were drawn around
    reward_AB: Tensor  # minus their errors


class DebateStep(ForecastStep):
    """Forecasts a batch in a debate; its agents keep their logics."""

    def __init__(
        self, model: PopulationModel, executor: DebateExecutor, schedule: RunSchedule
    ) -> None:
        super().__init__(model, executor)
        self.schedule = schedule
        self.debate_executor = executor
        self._agents = [slice(row, row + 1) for row in range(self.config.population.agents)]

    def run(
        self,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        generators: RunGenerators,
        round_number: int,
    ) -> PlayedForecasts:
        """Train all turns; return the last one's forecasts, weighed by the verifiers."""
        # Agents read the same news in all turns.
        first = self.executor.read(logics, examples)
        turns = [self.forecast_batch(first, generators.news_rng, round_number)]
        readings: AgentReadings = first
        for _ in range(self.config.debate.revisions):
            readings = self.debate_executor.exchange(readings, turns[-1].values_ABH)
            turns.append(self.forecast_batch(readings, generators.news_rng, round_number))
        last = turns[-1]

        # Verifiers judge the last turn, which is what the population forecasts.
        logit_AB = self._train_verifiers(readings, last, round_number)
        weights_BA = weigh_by_score(logit_AB)
        loss_pg = 0.0
        # A policy step takes the place of rewriting logics, within the same budget.
        if self.schedule.rewrites(round_number):
            tried = self._try(first, turns[0], generators.numpy_rng)
            loss_pg = self._train_policy(tried, round_number)

        aggregate_BH = aggregate_forecasts(last.values_ABH, weights_BA)
        # The same loss as other systems record, for curves on one axis.
        loss_B = prediction_loss(aggregate_BH, last.truth_BH, self.config.objective)
        return dataclasses.replace(
            last,
            loss_pred=float(loss_B.mean()),
            loss_own=sum(turn.loss_own for turn in turns),
            n_unparsed=sum(turn.n_unparsed for turn in turns),
            n_cut=sum(turn.n_cut for turn in turns),
            loss_pg=loss_pg,
            weights_A=weights_BA.mean(0),
        )

    def _train_verifiers(
        self, readings: AgentReadings, last: PlayedForecasts, round_number: int
    ) -> Tensor:
        """Add the gradient of the verifiers' loss; return their logits (A, B) before the step."""
        logits = []
        error_AB = -last.reward_AB
        for agent in self._agents:
            logit_1B = self.debate_executor.judge(
                VERIFIER, readings[agent], base_ABH=last.values_ABH[agent], agents=agent
            )
            # Agent by agent, as the activations of all may not fit in memory.
            loss = binary_cross_entropy_with_logits(logit_1B, find_better(error_AB)[agent])
            require_finite("the verifier's loss", loss, round_number)
            (self.config.debate.verifier_weight * loss).backward()  # type: ignore[no-untyped-call]
            logits.append(logit_1B.detach())

        return torch.cat(logits)

    @torch.no_grad()
    def _try(
        self, readings: AgentReadings, first: PlayedForecasts, rng: np.random.Generator
    ) -> list[Turn]:
        """Let the agents debate with forecasts drawn around their own."""
        debate = self.config.debate
        mean_ABH = first.values_ABH
        turns: list[Turn] = []
        for number in range(debate.revisions + 1):
            if number:
                readings = self.debate_executor.exchange(readings, turns[-1].tried_ABH)
                mean_ABH = self.executor.forecast(readings).values_ABH

            # Drawn by numpy, so that the forecasts that are tried are the same on every device.
            draws = rng.standard_normal(mean_ABH.shape)
            noise_ABH = torch.tensor(draws, dtype=mean_ABH.dtype, device=mean_ABH.device)
            tried_ABH = mean_ABH + debate.exploration * noise_ABH
            reward_AB = -forecast_error(tried_ABH, first.truth_BH)
            turns.append(Turn(readings, tried_ABH, mean_ABH, reward_AB))
        return turns

    def _train_policy(self, turns: Sequence[Turn], round_number: int) -> float:
        """Add the gradient of policy and value in all turns; return the policy's loss."""
        rewards_TAB = torch.stack([turn.reward_AB for turn in turns])
        # Rewards of all turns are needed first, as early forecasts led to the later ones.
        returns_TAB = discount_rewards(rewards_TAB, self.config.debate.discount)

        lambda_pg = self.config.objective.lambda_pg
        total = 0.0
        for turn, return_AB in zip(turns, returns_TAB, strict=True):
            values = []
            for agent in self._agents:
                # The value learns from the return; the advantage uses it as it was before.
                value_1B = self.debate_executor.judge(VALUE, turn.readings[agent], agents=agent)
                loss = (value_1B - return_AB[agent]).square().mean()
                require_finite("the value's loss", loss, round_number)
                (lambda_pg * self.config.debate.value_weight * loss).backward()
                values.append(value_1B.detach())

            advantage_AB = standardise_advantages(return_AB, torch.cat(values))
            for agent in self._agents:
                # Without dropout, as the forecasts were drawn without it.
                mean_1BH = self.executor.forecast(
                    turn.readings[agent], train=True, drops_units=False, agents=agent
                ).values_ABH
                # There is one draw for each window: windows are the samples, of one "token" each.
                tried_1BH = turn.tried_ABH[agent]
                deviation = self.config.debate.exploration
                logp_1B1 = log_density(tried_1BH, mean_1BH, deviation)[..., None]
                require_finite("L_pg", logp_1B1.sum(), round_number)
                loss = policy_loss(
                    logp_1B1,
                    log_density(tried_1BH, turn.mean_ABH[agent], deviation)[..., None],
                    logp_1B1.detach(),  # no reference: its KL is zero
                    advantage_AB[agent],
                    torch.ones_like(logp_1B1),
                    clip_range=self.config.grpo.clip_range,
                    kl_coefficient=0.0,
                ).loss
                (lambda_pg * loss).backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
        return total / (len(turns) * len(self._agents))
