"""One training round: forecast, propose, score, diagnose, update (paper 4.1 to 4.4).

What belongs here: the order of a round, its first two losses, its record. What does not: the update
(``training.update``), the instruments (``training.diagnose``), batches, validation and checkpoints
(``training.trainer``).

Where processes share the agents, each works for its local agents. The results are gathered, and
every process computes from all of them what concerns everyone: weights, fusion, gates, the record.

Shapes:
    A agents, G sampled logics of an agent, B windows of the batch, W reward windows, H horizon.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.logic_writer import LogicWriter, Observation, Proposal
from compevo_core.agents.objective import LossTerms, require_finite
from compevo_core.agents.selection import aggregate_forecasts, forecast_error, reward
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.diagnostics.regret import RoundRegret
from compevo_core.training.diagnose import diagnose_round
from compevo_core.training.generators import RunGenerators
from compevo_core.training.model import PopulationModel
from compevo_core.training.round_record import RoundResult
from compevo_core.training.round_state import (
    GatheredTexts,
    GroupScores,
    Influence,
    PlayedForecasts,
    RoundDiagnostics,
    RoundState,
    UpdateResult,
)
from compevo_core.training.update import JointUpdate


class RoundTrainer:
    """Runs rounds on a model; owns the optimiser, not the loop.

    Args:
        model: the population.
        executor: forecasts with it.
        total_rounds: rounds of the whole run, for the learning-rate schedule.
        writer: writes the agents' next logics; the model's own unless given.
    """

    def __init__(
        self,
        model: PopulationModel,
        executor: StrategyExecutor,
        total_rounds: int,
        writer: LogicWriter | None = None,
    ) -> None:
        self.model = model
        self.executor = executor
        self.config = model.config
        self.shards = model.shards
        self.writer = writer or model.writer()
        self.update = JointUpdate(model, self.writer, total_rounds)

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
        played = self._forecast(state, examples)

        # 4.3: each agent writes G logics, and each logic is scored by forecasting under it.
        proposal = self._propose(state, played.reward_A, generators)
        group = self._score_group(proposal, played, examples, generators)

        # Appendix B, observed only. Before the update, which changes what the agents forecast.
        diagnostics = diagnose_round(
            self.model, self.executor, state.logics, influence.weights_A, group
        )

        # 4.4: the other terms of the joint loss join the gradient of L_pred, and one step is taken.
        update = self.update.apply(proposal, group.reward_AG, state.round)

        texts = self._gather_texts(state, examples, proposal, played.n_unparsed + group.n_unparsed)
        regret = state.regret.add_round(diagnostics.reward_AK, diagnostics.group_gap_A)
        result = self._build_result(
            state, influence, played, group, texts, update, diagnostics, regret
        )
        self._advance(state, examples, played, proposal, group, texts)
        return result

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
            fitness_A=selection.population_fitness(),
            gates_A=selection.gates_A.detach().clone(),
            interaction_AA=self.model.fusion.interaction_weights().detach(),
        )

    def _forecast(self, state: RoundState, examples: Sequence[ForecastExample]) -> PlayedForecasts:
        """Forecast the batch under the played logics and add the gradient of L_pred (Eq. 7).

        The batch is cut into micro-batches, whose activations are freed one after the other; their
        gradients add up to that of the whole batch.
        """
        values: list[Tensor] = []
        truths: list[Tensor] = []
        loss_pred = 0.0
        loss_tokens = 0.0
        n_unparsed = 0

        for part in _split(examples, self.config.run.micro_batch_size):
            share = len(part) / len(examples)
            local = self.executor.forecast(self.shards.local(state.logics), part, train=True)
            value_ABH = self.shards.all_gather(local.values_ABH, "forecasts")
            token_loss_A = self.shards.all_gather(local.token_loss_A, "losses")
            truth_BH = _stack_truths(part, value_ABH.device)

            # Gathered values: with NaN in one agent every process stops, none waits for the others.
            require_finite("the forecast", value_ABH.sum((1, 2)), state.round)
            require_finite("the token loss", token_loss_A, state.round)
            weights_BA = self.model.selection.weights([one.view.entity for one in part])
            loss = self._prediction_loss(value_ABH, truth_BH, weights_BA, len(examples))
            require_finite("L_pred", loss, state.round)

            # Each process adds the token losses of its own agents: they reach no shared parameter.
            total = loss + share * local.token_loss_A.sum()
            total.backward()  # type: ignore[no-untyped-call]

            loss_pred += float(loss.detach())
            loss_tokens += share * float(token_loss_A.detach().sum())
            n_unparsed += local.n_unparsed
            values.append(value_ABH.detach())
            truths.append(truth_BH)

        values_ABH = torch.cat(values, 1)
        truth_BH = torch.cat(truths)
        reward_A = reward(values_ABH, truth_BH, self.config.objective.metric)
        return PlayedForecasts(values_ABH, truth_BH, reward_A, loss_pred, loss_tokens, n_unparsed)

    def _prediction_loss(
        self, value_ABH: Tensor, truth_BH: Tensor, weights_BA: Tensor, batch_size: int
    ) -> Tensor:
        """Return the share of a micro-batch in L_pred; its gradient reaches agents and gates."""
        aggregate_BH = aggregate_forecasts(value_ABH, weights_BA)
        error_B = forecast_error(aggregate_BH, truth_BH, self.config.objective.metric)
        return error_B.sum() / batch_size

    def _propose(self, state: RoundState, reward_A: Tensor, generators: RunGenerators) -> Proposal:
        """Let each agent write G logics, from its own logic and reward and those of its peers."""
        # The numpy generator draws the peers here and then the reward windows: in another order, a
        # seed would give another run.
        peers = self._draw_peers(generators.numpy_rng)
        observation = Observation(state.logics, reward_A.tolist(), peers)
        return self.writer.propose(observation, state.previous_AD, generators.agents)

    def _score_group(
        self,
        proposal: Proposal,
        played: PlayedForecasts,
        examples: Sequence[ForecastExample],
        generators: RunGenerators,
    ) -> GroupScores:
        """Forecast the reward windows under every sampled logic, without gradient."""
        # All agents and logics are scored on the same windows: rewards of a group are compared with
        # each other, and a hard window would look like a bad logic.
        picked = self._draw_reward_windows(len(examples), generators.numpy_rng)
        scored = [examples[i] for i in picked]
        local = self.executor.forecast_groups(proposal.group_logics, scored)
        values_AGWH = self.shards.all_gather(local.values_AGBH, "forecasts")

        truth_WH = played.truth_BH[picked]
        error_AGW = forecast_error(values_AGWH, truth_WH, self.config.objective.metric)
        return GroupScores(
            examples=scored,
            values_AGWH=values_AGWH,
            played_AWH=played.values_ABH[:, picked],
            truth_WH=truth_WH,
            reward_AG=-error_AGW.mean(-1),
            n_unparsed=local.n_unparsed,
        )

    def _gather_texts(
        self,
        state: RoundState,
        examples: Sequence[ForecastExample],
        proposal: Proposal,
        n_unparsed: int,
    ) -> GatheredTexts:
        """Gather what each process knows of its local agents alone."""
        unique_news = self._count_unique_news(self.shards.local(state.logics), examples)
        rows = self.shards.all_gather_json(
            list(zip(proposal.candidates, proposal.group_logics, unique_news, strict=True))
        )
        n_empty, n_unparsed_in_all = self.shards.all_reduce_sum([proposal.n_empty, n_unparsed])

        return GatheredTexts(
            candidates=[candidate for candidate, _, _ in rows],
            group_logics=[logics for _, logics, _ in rows],
            unique_news=[count for _, _, count in rows],
            n_empty=int(n_empty),
            n_unparsed=int(n_unparsed_in_all),
        )

    def _build_result(
        self,
        state: RoundState,
        influence: Influence,
        played: PlayedForecasts,
        group: GroupScores,
        texts: GatheredTexts,
        update: UpdateResult,
        diagnostics: RoundDiagnostics,
        regret: RoundRegret,
    ) -> RoundResult:
        """Put together what the round measured."""
        # influence holds gates and interaction as they were in the round: the model's are new now.
        terms = LossTerms(played.loss_pred, update.loss_pg, update.loss_div, update.loss_prune)
        agents = len(state.logics)
        n_played = agents * len(played.truth_BH)
        n_sampled = group.reward_AG.numel() * len(group.examples)

        return RoundResult(
            round=state.round,
            weight_entropy=diagnostics.weight_entropy,
            rewards=played.reward_A.tolist(),
            fitness=influence.fitness_A.tolist(),
            weights=influence.weights_A.tolist(),
            gates=influence.gates_A.tolist(),
            logics=list(state.logics),
            group_rewards=group.reward_AG.tolist(),
            interaction=influence.interaction_AA.tolist(),
            candidates=texts.candidates,
            group_logics=texts.group_logics,
            unique_news=texts.unique_news,
            empty_logics=texts.n_empty,
            unread_answers=texts.n_unparsed,
            gradient_conflict=update.gradient_conflict,
            gradient_margin=update.gradient_margin,
            equal_groups=update.n_equal_groups,
            grad_norm=update.grad_norm,
            kl=update.kl,
            clip_fraction=update.clip_fraction,
            regret=regret.regret,
            fixed_rewards=regret.fixed_rewards,
            played_rewards=regret.played_rewards,
            group_regret=regret.group_regret,
            loss=terms.total(self.config.objective) + played.loss_tokens,
            loss_pred=played.loss_pred,
            loss_tokens=played.loss_tokens,
            loss_pg=update.loss_pg,
            loss_div=update.loss_div,
            loss_prune=update.loss_prune,
            best_response_gap=diagnostics.best_response_gap,
            fixed_unread_answers=diagnostics.n_fixed_unparsed,
            answers=n_played + n_sampled,
        )

    def _advance(
        self,
        state: RoundState,
        examples: Sequence[ForecastExample],
        played: PlayedForecasts,
        proposal: Proposal,
        group: GroupScores,
        texts: GatheredTexts,
    ) -> None:
        """Update the fitness (Eq. 4) and hand the next logics to the next round."""
        # Only now: this round's weights must not depend on this round's truth (decision 19).
        metric = self.config.objective.metric
        reward_AB = -forecast_error(played.values_ABH, played.truth_BH, metric)
        self.model.selection.update_fitness(reward_AB, [one.view.entity for one in examples])

        # Decision 9: the best sample is played next; in the ablation the first, whatever it earned.
        carries_best = self.config.grpo.carry == "best"
        carried = group.reward_AG.argmax(1).tolist() if carries_best else [0] * len(state.logics)

        state.logics = [logics[i] for logics, i in zip(texts.group_logics, carried, strict=True)]
        state.rewards = played.reward_A.tolist()
        # Detached: the next round's opponent context is an input to it, and the graph of this round
        # is gone (decision 6).
        state.previous_AD = proposal.candidate_AD.detach()
        state.round += 1

    def _count_unique_news(
        self, logics: Sequence[str], examples: Sequence[ForecastExample]
    ) -> list[int]:
        articles = self.executor.retrieve_news(logics, [example.view for example in examples])
        return [len({article for window in agent for article in window}) for agent in articles]

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


def _split(examples: Sequence[ForecastExample], size: int) -> Iterator[Sequence[ForecastExample]]:
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


def _stack_truths(examples: Sequence[ForecastExample], device: torch.device) -> Tensor:
    truths = [example.truth_H for example in examples if example.truth_H is not None]
    return torch.tensor(np.stack(truths), dtype=torch.float32, device=device)
