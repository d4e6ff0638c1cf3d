"""One training round: forecast, propose, score, diagnose, update (paper 4.1 to 4.4).

Where processes share the agents, each works for its local agents. The results are gathered, and
every process computes weights, fusion, gates and the record from all of them.

Shapes:
    A agents, G sampled logics of an agent, K fixed logics of an agent, B windows of the batch,
    C candidates, W reward windows: those that score logics, H horizon, D hidden size.
"""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from compevo_core.agents.debate import DebateExecutor
from compevo_core.agents.decoders import BatchForecasts, ForecastExample
from compevo_core.agents.joint_reader import Turns
from compevo_core.agents.linear_reader import FittedReader
from compevo_core.agents.logic_writer import LogicWriter, Proposal
from compevo_core.agents.logics import LogicRecords
from compevo_core.agents.objective import joint_loss
from compevo_core.agents.observation import list_best_unread, list_most_read, observe, sample_peers
from compevo_core.agents.prompts import Observation, describe_recent
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.selection import FitnessSelection, forecast_error
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.config.sections import MOST_ARTICLES
from compevo_core.data.arrays import FloatArray, to_array
from compevo_core.training import diagnostics
from compevo_core.training.forecast_step import (
    DebateStep,
    ForecastStep,
    PlayedForecasts,
    stack_truths,
)
from compevo_core.training.model import PopulationModel
from compevo_core.training.round_record import RoundResult
from compevo_core.training.schedule import RunGenerators, RunSchedule
from compevo_core.training.update import JointUpdate

_Record = dict[str, Any]
"""What a step of the round adds to the record, by the keys of :class:`RoundResult`."""

_NO_REWRITING: _Record = {"evolved": False, "group_rewards": [], "best_response_gap": []}


@dataclasses.dataclass
class RoundState:
    """What all agents carry between rounds besides the model's tensors, equal on every process."""

    round: int  # number of the next round, from 0
    logics: list[str]  # (A,) logic that each agent forecasts under in that round, l_i
    rewards: list[float]  # (A,) rewards of the round before; zeros at the start
    # Candidate representations of the last rewriting, for the opponent context (Eq. 9)
    previous_AD: Tensor
    regret: diagnostics.RegretTracker  # running sums of rewards, over the rounds that rewrote
    # Gains of the logics that each agent has tried
    records: LogicRecords = dataclasses.field(default_factory=LogicRecords)
    # Lowest validation error so far, scaled; infinite before the first validation
    best_error: float = math.inf
    train_seconds: float = 0.0  # time of all rounds so far


@dataclasses.dataclass(frozen=True)
class _Rewriting:
    """The results of rewriting the logics, before they change the state of the run."""

    proposal: Proposal  # of this process's agents
    reward_AG: Tensor  # of the samples
    reward_AK: npt.NDArray[np.float32]  # of the played and the K fixed logics; (A, 0) without
    group_gap_A: FloatArray  # reward by which the best sample beat the played logic
    record: _Record
    logics: list[str]  # that all agents play next
    records: LogicRecords
    turns: Turns | None = None  # where agents are paid for what they read
    n_unparsed: int = 0  # answers of this process's agents that could not be read
    n_cut: int = 0  # prompts of this process's agents that were too long


class RoundTrainer:
    """Runs rounds on a model; owns the optimiser, not the loop.

    ``writer`` writes the agents' next logics; it defaults to the writer of the model, which may
    have none. Logics are scored on ``train_examples`` if a round has too few windows.
    """

    def __init__(
        self,
        model: PopulationModel,
        executor: StrategyExecutor,
        schedule: RunSchedule,
        writer: LogicWriter | None = None,
        train_examples: Sequence[ForecastExample] = (),
    ) -> None:
        self.model = model
        self.train_examples = train_examples
        self.executor = model.executor = executor
        self.schedule = schedule
        self.config = model.config
        self.shards = model.shards
        self.writer = writer or model.writer()
        self.unread_reader: FittedReader | None = None

        if self.config.evolution.unread and train_examples and self.writer is not None:
            retriever = executor.news_retriever
            everything = NewsRetriever(retriever.pool, retriever.encoder, MOST_ARTICLES)
            news = model.read_news(train_examples, everything)
            self.unread_reader = news.build_reader(train_examples)

        self.forecast_step = ForecastStep(model, executor)
        if isinstance(executor, DebateExecutor):
            self.forecast_step = DebateStep(model, executor, schedule)
        self.update = JointUpdate(model, self.writer, schedule)

    def step(
        self, state: RoundState, examples: Sequence[ForecastExample], generators: RunGenerators
    ) -> RoundResult:
        """Run one training round (paper 4.1 to 4.4) and move ``state`` to the next, in place.

        The result is the same on every process. NonFiniteLoss if a term is not finite; then nothing
        was updated, and ``state`` is unchanged.
        """
        self.update.start_round(state.round)
        self.model.settle(state.logics)
        record = describe_start(state, self.model.selection)
        record["stage"] = self.schedule.stage(state.round)
        record["interaction"] = self.model.interaction_weights().tolist()

        # 4.1 and 4.2: forecast under the played logics; the backward pass of L_pred is part of it,
        # as the activations of a whole batch would not fit in memory.
        played = self.forecast_step.run(state.logics, examples, generators, state.round)
        record |= {
            "rewards": played.reward_AB.mean(-1).tolist(),
            "loss_pred": played.loss_pred,
            "loss_own": played.loss_own,
            "loss_tokens": played.loss_tokens,
            "answers": played.reward_AB.numel(),
            **diagnostics.measure_health(to_array(played.values_ABH), to_array(played.truth_BH)),
        }
        if played.weights_A is not None:
            record["weights"] = played.weights_A.tolist()
            record["weight_entropy"] = diagnostics.weight_entropy(to_array(played.weights_A))
        if self.config.pays_for_readings:
            # Only a rewriting gives rewards. Parts that add up are not comparable forecasts.
            record["rewards"] = list(state.rewards)
            record |= dict.fromkeys(("error_correlation", "gain_over_best", "effective_agents"))

        # 4.3: each agent writes G logics, and each logic is scored by forecasting under it.
        rewriting = None
        if self.writer is not None and self.schedule.rewrites(state.round):
            # The numpy generator samples the peers first and then the reward windows.
            rng = generators.numpy_rng
            observed = self._observe(state.logics, record["rewards"], played, examples, rng)
            written = self.writer.propose(observed, state.previous_AD, generators.agents)
            # Agents that read everything keep their logic, and nothing that they wrote is credited:
            # no logic chooses their news, and its conditions would take some away.
            members = self.config.population.list_members()
            for row, agent in enumerate(self.shards.local_agents):
                if members[agent].reads == "everything":
                    group = written.group_logics[row]
                    group[:] = [state.logics[agent]] * len(group)
                    written.is_empty_AG[row] = True
                    written.mask_AGT[row] = 0
            if self.config.pays_for_readings:
                rewriting = self._score_readings(state, written, rng)
            else:
                rewriting = self._score_forecasts(state, played, written, examples, rng)
        record |= rewriting.record if rewriting else _NO_REWRITING

        # 4.4: the other terms of the joint loss join the gradient of L_pred, and one step is taken.
        proposal = rewriting.proposal if rewriting else None
        reward_AG = rewriting.reward_AG if rewriting else None
        record |= self.update.apply(proposal, reward_AG, state.round)
        record["loss_pg"] += played.loss_pg
        record["loss"] = joint_loss(record, self.config.objective) + played.loss_tokens
        record["gradient"] = self.forecast_step.chosen_gradient

        # After the update, which may stop the round and must then leave the state as it was.
        if rewriting:
            record |= state.regret.add_round(rewriting.reward_AK, rewriting.group_gap_A)
        else:
            record |= state.regret.describe()
        record |= self._gather_texts(played, rewriting, record["equal_groups"])
        result = RoundResult(**record)

        # Only now, as the weights of a round must not depend on its truth (decision 03-rounds).
        if not self.config.pays_for_readings:
            entities = [example.view.entity for example in examples]
            self.model.selection.update_fitness(played.reward_AB, entities)
        elif rewriting and rewriting.turns:
            rewriting.turns.pay(self.model.selection)
        state.rewards = result.rewards
        state.round += 1
        if rewriting:
            state.logics, state.records = rewriting.logics, rewriting.records
            # Detached, as it is only an input of the next round (decision 03-rounds).
            state.previous_AD = rewriting.proposal.candidate_AD.detach()
        return result

    def _score_readings(
        self, state: RoundState, proposal: Proposal, rng: np.random.Generator
    ) -> _Rewriting:
        """Score the logics of all agents, on every process, by what ridges read."""
        config, agents = self.config, self.config.population.agents
        groups = self.shards.all_gather_json(proposal.group_logics)
        news = self.model.read_news(self.train_examples, self.executor.news_retriever)
        turns = news.score(state.logics, groups, state.records, rng)
        size = config.grpo.group_size
        record = turns.describe(size)
        reward_AG = torch.tensor(record["group_rewards"], dtype=torch.float32)
        return _Rewriting(
            proposal=proposal,
            reward_AG=reward_AG.to(self.model.device),
            reward_AK=np.zeros((agents, 0), dtype=np.float32),
            group_gap_A=turns.measure_gaps(size),
            record=record,
            logics=turns.logics,
            records=turns.records,
            turns=turns,
        )

    def _score_forecasts(
        self,
        state: RoundState,
        played: PlayedForecasts,
        proposal: Proposal,
        examples: Sequence[ForecastExample],
        rng: np.random.Generator,
    ) -> _Rewriting:
        """Score the logics by each agent's forecasts under them."""
        # The same windows for all agents and logics: a hard window would look like a bad logic.
        count = self.config.grpo.reward_windows or len(examples)
        pool = examples if count <= len(examples) else self.train_examples or examples
        rows = sorted(rng.choice(len(pool), min(count, len(pool)), replace=False).tolist())
        scored = [pool[i] for i in rows]
        truth_WH = stack_truths(scored, played.truth_BH.device)
        keeps_records = self.config.grpo.carry == "record"
        best = [state.records.list_best(a, but=logic) for a, logic in enumerate(state.logics)]
        # Forecasts of all agents form one tensor, so the played logic fills up shorter lists. It is
        # scored in the same batch as its rivals, as the batch can change the last bit.
        most = max(map(len, best))
        candidates = [
            [logic, *samples, *earlier, *[logic] * (most - len(earlier))]
            for logic, samples, earlier in zip(
                self.shards.local(state.logics),
                proposal.group_logics,
                self.shards.local(best),
                strict=True,
            )
        ]
        # Columns are the played logic, its G samples, remembered logics, what fills up, and with
        # records last the forecast of the played logic without news.
        group, reward_ACW = self._score(candidates, scored, truth_WH, adds_no_news=keeps_records)
        samples = slice(1, 1 + self.config.grpo.group_size)
        mean_AC = reward_ACW.mean(-1)
        reward_AG = mean_AC[:, samples]

        # Appendix B: measured before the update, which changes the forecasts.
        aggregate_gap_A = diagnostics.aggregate_best_response_gap(
            to_array(group.values_ABH[:, samples]),
            to_array(group.values_ABH[:, 0]),
            to_array(self.model.selection.weights([example.view.entity for example in scored])),
            to_array(truth_WH),
        )
        reward_AC = to_array(mean_AC)
        reward_AK, n_unparsed = self._score_fixed_logics(state.logics, scored, truth_WH)
        record = {
            "group_rewards": reward_AG.tolist(),
            "best_response_gap": aggregate_gap_A.tolist(),
            "fixed_unread_answers": n_unparsed,
            "answers": played.reward_AB.numel() + reward_ACW.numel(),
        }
        everyone = self.shards.all_gather_json(candidates)
        records = copy.deepcopy(state.records)
        if keeps_records:
            record["news_gains"] = (mean_AC[:, 0] - mean_AC[:, -1]).tolist()
            by_window_ACW = reward_ACW.cpu().double().numpy()
            gain_ACW = by_window_ACW[:, :-1] - by_window_ACW[:, -1:]
            scored_A = enumerate(zip(everyone, gain_ACW, strict=True))
            logics = [records.add(agent, *gains) for agent, gains in scored_A]
        else:
            logics = self.choose_logics(everyone, mean_AC)
        return _Rewriting(
            proposal=proposal,
            reward_AG=reward_AG,
            reward_AK=reward_AK,
            group_gap_A=diagnostics.best_response_gap(reward_AC[:, samples], reward_AC[:, 0]),
            record=record,
            logics=logics,
            records=records,
            n_unparsed=group.n_unparsed,
            n_cut=group.n_cut,
        )

    def _observe(
        self,
        logics: Sequence[str],
        rewards: Sequence[float],
        played: PlayedForecasts,
        examples: Sequence[ForecastExample],
        rng: np.random.Generator,
    ) -> list[Observation]:
        """Return what each agent knows: logics and rewards, its news, the windows' history."""
        population, resolve = self.config.population, self.executor.news_retriever.resolve
        peers = sample_peers(population.agents, population.exposed_peers, rng)
        recent = describe_recent([example.view for example in examples])
        observed = observe(logics, rewards, peers, recent=recent)
        for row, agent in enumerate(self.shards.local_agents):
            headlines = list_most_read([resolve(ids) for ids in played.news[row]])
            observed[agent] = dataclasses.replace(observed[agent], headlines=headlines)
        if self.unread_reader is None:
            return observed

        # Drawn for all agents, so that the generator stays equal on all processes.
        seeds = rng.integers(2**63, size=len(logics))
        for row, agent in enumerate(self.shards.local_agents):
            unread = list_best_unread(
                self.unread_reader,
                agent,
                examples,
                played.news[row],
                played.values_ABH[agent],
                np.random.default_rng(seeds[agent]),
                self.config.evolution.unread,
            )
            observed[agent] = dataclasses.replace(observed[agent], unread=unread)
        return observed

    def _score(
        self,
        candidates: Sequence[Sequence[str]],
        examples: Sequence[ForecastExample],
        truth_WH: Tensor,
        *,
        adds_no_news: bool = False,
    ) -> tuple[BatchForecasts, Tensor]:
        """Forecast windows under the candidates of the local agents, without gradient.

        Forecasts cover all agents, (A, C, W, H), their counts of this process's; with them come
        the rewards (A, C, W).
        """
        local = self.executor.forecast_groups(candidates, examples, adds_no_news=adds_no_news)
        values_ACWH = self.shards.all_gather(local.values_ABH, "forecasts")
        forecasts = dataclasses.replace(local, values_ABH=values_ACWH)
        return forecasts, -forecast_error(values_ACWH, truth_WH)

    def _score_fixed_logics(
        self, logics: Sequence[str], examples: Sequence[ForecastExample], truth_WH: Tensor
    ) -> tuple[npt.NDArray[np.float32], int]:
        """Return rewards (A, 1 + K) of the played logics and of their fixed comparators (B.3).

        All are forecast together, before the update and apart from the sampled group, so that this
        changes no number of the training. The rewards are (A, 0) if ``run.fixed_logics`` is 0; the
        second value counts unreadable answers.
        """
        count = self.config.run.fixed_logics
        if not count:
            return np.zeros((len(logics), 0), dtype=np.float32), 0

        # The played logic is scored again: another batch can change the last bit, and equal logics
        # must have equal rewards.
        form = self.config.evolution.form
        comparators = diagnostics.assign_fixed_logics(len(logics), count, form)
        candidates = [[logic, *fixed] for logic, fixed in zip(logics, comparators, strict=True)]
        forecasts, reward_ACW = self._score(self.shards.local(candidates), examples, truth_WH)
        n_unparsed = int(self.shards.all_reduce_sum([forecasts.n_unparsed])[0])
        return to_array(reward_ACW.mean(-1)), n_unparsed

    def _gather_texts(
        self, played: PlayedForecasts, rewriting: _Rewriting | None, n_equal_groups: int
    ) -> _Record:
        """Gather the texts and counts that only the process of an agent has."""
        unique_news = [len({name for window in row for name in window}) for row in played.news]
        n_unparsed, n_cut, n_empty = played.n_unparsed, played.n_cut, 0
        record: _Record = {"candidates": [], "group_logics": []}
        if rewriting is not None:
            proposal = rewriting.proposal
            record["candidates"] = self.shards.all_gather_json(proposal.candidates)
            record["group_logics"] = self.shards.all_gather_json(proposal.group_logics)
            n_unparsed += rewriting.n_unparsed
            n_cut += rewriting.n_cut + proposal.n_cut
            n_empty = proposal.n_empty

        counts = self.shards.all_reduce_sum([n_empty, n_unparsed, n_cut, n_equal_groups])
        names = ("empty_logics", "unread_answers", "cut_prompts", "equal_groups")
        record |= {name: int(count) for name, count in zip(names, counts, strict=True)}
        record["unique_news"] = self.shards.all_gather_json(unique_news)
        return record

    def choose_logics(self, candidates: Sequence[Sequence[str]], reward_AC: Tensor) -> list[str]:
        """Return each agent's best logic; the played one is first, and stays on ties."""
        best_A = reward_AC.argmax(1).tolist()
        return [row[best] for row, best in zip(candidates, best_A, strict=True)]


def describe_start(state: RoundState, selection: FitnessSelection) -> dict[str, Any]:
    """Return the part of a round's record that precedes its truth, above all the weights."""
    weights_A = selection.population_weights().detach()
    return {
        "round": state.round,
        "logics": list(state.logics),
        "weights": weights_A.tolist(),
        "weight_entropy": diagnostics.weight_entropy(to_array(weights_A)),
        "fitness": selection.fitness_EA.mean(0).tolist(),  # over series
        "gates": selection.gates_A.tolist(),
    }
