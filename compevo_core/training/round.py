"""One training round: forecast, propose, score, diagnose, update (paper 4.1 to 4.4).

What belongs here: the order of a round, the groups of logics and what becomes of them. What does
not: forecasts under the played logics (``training.forecast_step``), the update
(``training.update``), the instruments (``training.diagnose``), the record's keys
(``training.round_record``), batches, validation and checkpoints (``training.loop``).

Every round forecasts and updates the forecasting side. Some rounds rewrite the logics as well
(``training.schedule``).

Where processes share the agents, each works for its local agents. The results are gathered, and
every process computes from all of them what concerns everyone: weights, fusion, gates, the record.

Shapes:
    A agents, G sampled logics of an agent, B windows of the batch, W reward windows, H horizon.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.logic_writer import LogicWriter, Proposal
from compevo_core.agents.objective import LossTerms
from compevo_core.agents.observation import Observation, list_most_read
from compevo_core.agents.prompts import describe_recent
from compevo_core.agents.selection import forecast_error
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.diagnostics.health import measure_health
from compevo_core.diagnostics.regret import RoundRegret
from compevo_core.diagnostics.theory import weight_entropy
from compevo_core.training.diagnose import diagnose_round
from compevo_core.training.forecast_step import ForecastStep
from compevo_core.training.generators import RunGenerators
from compevo_core.training.model import PopulationModel
from compevo_core.training.round_record import RoundResult
from compevo_core.training.round_state import (
    GatheredTexts,
    GroupScores,
    Influence,
    PlayedForecasts,
    Rewriting,
    RoundState,
    UpdateResult,
)
from compevo_core.training.schedule import RunSchedule
from compevo_core.training.update import JointUpdate


class RoundTrainer:
    """Runs rounds on a model; owns the optimiser, not the loop.

    Args:
        model: the population.
        executor: forecasts with it.
        schedule: which rounds rewrite the logics, and the learning rates.
        writer: writes the agents' next logics; the model's own unless given, which may be none.
    """

    def __init__(
        self,
        model: PopulationModel,
        executor: StrategyExecutor,
        schedule: RunSchedule,
        writer: LogicWriter | None = None,
    ) -> None:
        self.model = model
        self.executor = executor
        self.schedule = schedule
        self.config = model.config
        self.shards = model.shards
        self.writer = writer or model.writer()
        self.forecast_step = ForecastStep(model, executor)
        self.update = JointUpdate(model, self.writer, schedule)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of all trainable modules."""
        return self.update.optimizer

    def step(
        self, state: RoundState, examples: Sequence[ForecastExample], generators: RunGenerators
    ) -> RoundResult:
        """Run one training round (paper 4.1 to 4.4) and move ``state`` to the next.

        Args:
            state: what the round before left; changed in place.
            examples: the batch, B windows with their truth.
            generators: where the round draws from.

        Returns:
            what the round measured, the same on every process.

        Raises:
            NonFiniteLoss: a term is NaN or infinite; nothing was updated, ``state`` is as before.
        """
        influence = self._start_round(state.round)

        # 4.1 and 4.2: forecast under the played logics; the backward pass of L_pred is part of it,
        # as the activations of a whole batch would not fit in memory.
        played = self._play(state, examples, generators)

        # 4.3: each agent writes G logics, and each logic is scored by forecasting under it.
        rewriting = None
        if self.writer is not None and self.schedule.rewrites(state.round):
            rewriting = self._rewrite(self.writer, state, played, examples, generators)

        # 4.4: the other terms of the joint loss join the gradient of L_pred, and one step is taken.
        proposal = rewriting.proposal if rewriting else None
        reward_AG = rewriting.group.reward_AG if rewriting else None
        update = self.update.apply(proposal, reward_AG, state.round)

        texts = self._gather_texts(played, rewriting, update)
        regret = self._add_regret(state, rewriting)
        result = self._build_result(state, influence, played, rewriting, texts, update, regret)
        self._advance(state, played, examples, rewriting, texts)
        return result

    def _play(
        self, state: RoundState, examples: Sequence[ForecastExample], generators: RunGenerators
    ) -> PlayedForecasts:
        """Forecast the batch, and leave the gradient of what was forecast in place."""
        return self.forecast_step.run(state.logics, examples, generators.news_rng, state.round)

    def _start_round(self, round_number: int) -> Influence:
        """Prepare the optimiser, and note how much each agent counts.

        The weights come from the fitness of earlier rounds: no agent is weighted by a truth that it
        is about to be scored on.
        """
        self.update.start_round(round_number)

        # Copies: the optimiser changes gates and fusion in place, the end of the round the fitness.
        selection = self.model.selection
        return Influence(
            weights_A=selection.population_weights().detach(),
            fitness_A=selection.population_fitness().clone(),
            gates_A=selection.gates_A.detach().clone(),
            interaction_AA=self.model.interaction_weights(),
        )

    def encode_logics(self, logics: Sequence[str]) -> Tensor:
        """Return the states (A, D) of all agents' logics, which the first rewriting begins from.

        Agents that keep their logics have none, (A, 0).
        """
        if self.writer is None:
            return torch.zeros(len(logics), 0)
        return self.writer.encode_logics(logics)

    def _rewrite(
        self,
        writer: LogicWriter,
        state: RoundState,
        played: PlayedForecasts,
        examples: Sequence[ForecastExample],
        generators: RunGenerators,
    ) -> Rewriting:
        """Let each agent write G logics and score them."""
        # The numpy generator draws the peers and then the reward windows: in another order, a seed
        # would give another run.
        observation = self._observe(state, played, examples, generators.numpy_rng)
        proposal = writer.propose(observation, state.previous_AD, generators.agents)
        picked = self._draw_reward_windows(len(examples), generators.numpy_rng)
        group = self._score_group(state.logics, proposal, played, examples, picked)

        # Appendix B, observed only. Before the update, which changes what the agents forecast.
        diagnostics = diagnose_round(self.model, self.executor, state.logics, group)
        return Rewriting(proposal, group, diagnostics)

    def _observe(
        self,
        state: RoundState,
        played: PlayedForecasts,
        examples: Sequence[ForecastExample],
        rng: np.random.Generator,
    ) -> Observation:
        """Return what the agents know: logics and rewards, their own news, the windows' history."""
        resolve = self.executor.news_retriever.resolve
        headlines: list[list[str]] = [[] for _ in state.logics]
        for agent, windows in zip(self.shards.local_agents, played.news, strict=True):
            headlines[agent] = list_most_read([resolve(ids) for ids in windows])

        return Observation(
            logics=state.logics,
            rewards=played.reward_A.tolist(),
            peers=self._draw_peers(rng),
            headlines=headlines,
            recent=describe_recent([example.view for example in examples]),
        )

    def _score_group(
        self,
        logics: Sequence[str],
        proposal: Proposal,
        played: PlayedForecasts,
        examples: Sequence[ForecastExample],
        picked: Sequence[int],
    ) -> GroupScores:
        """Forecast the reward windows under the played and the sampled logics, without gradient."""
        # All agents and logics are scored on the same windows: rewards of a group are compared with
        # each other, and a hard window would look like a bad logic. The played logic goes with its
        # group: scored in another batch, it could win or lose by the last bit.
        scored = [examples[i] for i in picked]
        candidates = [
            [logic, *samples]
            for logic, samples in zip(self.shards.local(logics), proposal.group_logics, strict=True)
        ]
        local = self.executor.forecast_groups(candidates, scored)
        values_ACWH = self.shards.all_gather(local.values_AGBH, "forecasts")

        truth_WH = played.truth_BH[list(picked)]
        error_ACW = forecast_error(values_ACWH, truth_WH, self.config.objective.metric)
        reward_AC = -error_ACW.mean(-1)
        return GroupScores(
            examples=scored,
            values_AGWH=values_ACWH[:, 1:],
            played_AWH=values_ACWH[:, 0],
            truth_WH=truth_WH,
            reward_AG=reward_AC[:, 1:],
            played_reward_A=reward_AC[:, 0],
            n_unparsed=local.n_unparsed,
            n_cut=local.n_cut,
        )

    def _gather_texts(
        self, played: PlayedForecasts, rewriting: Rewriting | None, update: UpdateResult
    ) -> GatheredTexts:
        """Gather what each process knows of its local agents alone."""
        unique_news = [len({name for window in row for name in window}) for row in played.news]
        n_unparsed, n_cut, n_empty = played.n_unparsed, played.n_cut, 0
        candidates: list[str] = []
        group_logics: list[list[str]] = []
        if rewriting is not None:
            proposal, group = rewriting.proposal, rewriting.group
            candidates = self.shards.all_gather_json(proposal.candidates)
            group_logics = self.shards.all_gather_json(proposal.group_logics)
            n_unparsed += group.n_unparsed
            n_cut += group.n_cut + proposal.n_cut
            n_empty = proposal.n_empty

        counts = [n_empty, n_unparsed, n_cut, update.n_equal_groups]
        totals = [int(total) for total in self.shards.all_reduce_sum(counts)]
        return GatheredTexts(
            candidates, group_logics, self.shards.all_gather_json(unique_news), *totals
        )

    @staticmethod
    def _add_regret(state: RoundState, rewriting: Rewriting | None) -> RoundRegret:
        if rewriting is None:
            return state.regret.without_round()
        measured = rewriting.diagnostics
        return state.regret.add_round(measured.reward_AK, measured.group_gap_A)

    def _build_result(
        self,
        state: RoundState,
        influence: Influence,
        played: PlayedForecasts,
        rewriting: Rewriting | None,
        texts: GatheredTexts,
        update: UpdateResult,
        regret: RoundRegret,
    ) -> RoundResult:
        """Put together what the round measured."""
        # influence holds gates and interaction as they were in the round: the model's are new now.
        loss_pg = update.loss_pg + played.loss_pg
        terms = LossTerms(
            played.loss_pred, played.loss_own, loss_pg, update.loss_div, update.loss_prune
        )
        weights_A = influence.weights_A if played.weights_A is None else played.weights_A
        health = measure_health(played.values_ABH.cpu().numpy(), played.truth_BH.cpu().numpy())

        n_answers = played.reward_AB.numel()
        group = rewriting.group if rewriting else None
        if group is not None:
            n_answers += (group.reward_AG.numel() + len(state.logics)) * len(group.examples)

        return RoundResult(
            round=state.round,
            stage=self.schedule.stage(state.round),
            evolved=rewriting is not None,
            weight_entropy=weight_entropy(weights_A.cpu().numpy()),
            rewards=played.reward_A.tolist(),
            fitness=influence.fitness_A.tolist(),
            weights=weights_A.tolist(),
            gates=influence.gates_A.tolist(),
            error_correlation=health.error_correlation,
            gain_over_best=health.gain_over_best,
            effective_agents=health.effective_agents,
            logics=list(state.logics),
            group_rewards=group.reward_AG.tolist() if group else [],
            interaction=influence.interaction_AA.tolist(),
            candidates=texts.candidates,
            group_logics=texts.group_logics,
            unique_news=texts.unique_news,
            empty_logics=texts.n_empty,
            unread_answers=texts.n_unparsed,
            cut_prompts=texts.n_cut,
            gradient_conflict=update.gradient_conflict,
            gradient_margin=update.gradient_margin,
            equal_groups=texts.n_equal_groups,
            grad_norm=update.grad_norm,
            kl=update.kl,
            clip_fraction=update.clip_fraction,
            regret=regret.regret,
            fixed_rewards=regret.fixed_rewards,
            played_rewards=regret.played_rewards,
            group_regret=regret.group_regret,
            loss=terms.total(self.config.objective) + played.loss_tokens,
            loss_pred=played.loss_pred,
            loss_own=played.loss_own,
            loss_tokens=played.loss_tokens,
            loss_pg=loss_pg,
            loss_div=update.loss_div,
            loss_prune=update.loss_prune,
            best_response_gap=rewriting.diagnostics.best_response_gap if rewriting else [],
            fixed_unread_answers=rewriting.diagnostics.n_fixed_unparsed if rewriting else 0,
            answers=n_answers,
        )

    def _advance(
        self,
        state: RoundState,
        played: PlayedForecasts,
        examples: Sequence[ForecastExample],
        rewriting: Rewriting | None,
        texts: GatheredTexts,
    ) -> None:
        """Update the fitness (Eq. 4) and hand the next logics to the next round."""
        # Only now: this round's weights must not depend on this round's truth (decision 19).
        entities = [example.view.entity for example in examples]
        self.model.selection.update_fitness(played.reward_AB, entities)
        state.rewards = played.reward_A.tolist()
        state.round += 1

        if rewriting is not None:
            state.logics = self._choose_logics(state.logics, rewriting.group, texts.group_logics)
            # Detached: the next round's opponent context is an input to it, and the graph of this
            # round is gone (decision 6).
            state.previous_AD = rewriting.proposal.candidate_AD.detach()

    def _choose_logics(
        self, logics: Sequence[str], group: GroupScores, group_logics: Sequence[Sequence[str]]
    ) -> list[str]:
        """Return what each agent plays next (decision 9).

        The played logic competes with its group. It stands first, so that it stays on ties: where
        all logics forecast alike, nothing speaks for another one.
        """
        if self.config.grpo.carry == "first":
            return [samples[0] for samples in group_logics]  # the ablation: whatever it earned

        reward_AC = torch.cat([group.played_reward_A[:, None], group.reward_AG], 1)
        return [
            [logic, *samples][best]
            for logic, samples, best in zip(
                logics, group_logics, reward_AC.argmax(1).tolist(), strict=True
            )
        ]

    def _draw_peers(self, rng: np.random.Generator) -> list[list[int]]:
        """Draw which other agents' logics each agent is shown."""
        agents = self.config.population.agents
        count = min(self.config.population.exposed_peers, agents - 1)
        if not count:
            return [[] for _ in range(agents)]

        # Sorted, so that the prompt lists peers in one order whatever order they were drawn in.
        others = [[j for j in range(agents) if j != i] for i in range(agents)]
        return [sorted(rng.choice(row, size=count, replace=False).tolist()) for row in others]

    def _draw_reward_windows(self, batch_size: int, rng: np.random.Generator) -> list[int]:
        """Draw the windows that score the sampled logics; ``grpo.reward_windows`` 0 is all."""
        count = self.config.grpo.reward_windows or batch_size
        picked = rng.choice(batch_size, size=min(count, batch_size), replace=False)
        return sorted(picked.tolist())
