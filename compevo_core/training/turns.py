"""Turns of a rewriting: agents are paid by what they read, and choose one after the other.

What belongs here: the windows that score, the order of turns, what each agent plays after its own.
What does not: the rewards (``agents.joint_reader``), records (``agents.logics``), who writes the
logics (``agents.logic_writer``, ``agents.logics``).

Agents that chose at once would all take the niche that is free. So each turn is given what the
others play by then (decision 04-policy).

Shapes: A agents, C logics of an agent, N windows that score.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.joint_reader import JointReader, LogicScorer, Standing
from compevo_core.agents.linear_reader import (
    FittedReader,
    LinearReader,
    is_generalist,
    is_known_enough,
)
from compevo_core.agents.logics import LogicRecords, list_seed_logics
from compevo_core.agents.objective import own_error_weights
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.ridge import PENALTIES, SEARCHED
from compevo_core.agents.selection import FitnessSelection, leave_out_idle
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import BoolArray, FloatArray, to_array
from compevo_core.runtime.usage import find_blas
from compevo_core.training.ensemble import AgentEnsemble
from compevo_core.training.prior import mix_priors

GENERALIST_LOGIC = "Read all news."
"""Stands in for a logic where an agent chooses nothing."""

#: What a rewriting adds to the record of a round that had none, by the keys of ``RoundResult``.
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Turns:
    """What the agents play after their turns, and what it earned."""

    logics: list[str]  # of all agents
    records: LogicRecords
    is_idle_A: BoolArray  # agents that add nothing to the others
    gain_AN: FloatArray  # of the logics that they play now, by window
    entities: list[str]  # of the windows
    gain_AC: list[FloatArray]  # mean gains of all that was scored: first what was played before

    def describe(self, n_samples: int) -> Record:
        """Return a round's record of rewards; samples come after the logic that was played."""
        samples = slice(1, 1 + n_samples)
        return {
            "evolved": True,
            "group_rewards": [gain_C[samples].tolist() for gain_C in self.gain_AC],
            "best_response_gap": self.gaps(n_samples).tolist(),
            "news_gains": [float(gain_C[0]) for gain_C in self.gain_AC],
            "rewards": self.gain_AN.mean(1).tolist(),
        }

    def gaps(self, n_samples: int) -> FloatArray:
        """Return by how much each agent's best sample earned more than what it played (A,)."""
        samples = slice(1, 1 + n_samples)
        return np.array([(of_C[samples] - of_C[0]).max(initial=0.0) for of_C in self.gain_AC])

    def pay(self, selection: FitnessSelection) -> None:
        """Give the agents' fitness what their logics earned (Eq. 4), and idle agents no weight."""
        gain_AN = torch.from_numpy(self.gain_AN).float().to(selection.fitness_EA.device)
        selection.update_fitness(gain_AN, self.entities)
        selection.is_idle_A.copy_(torch.from_numpy(self.is_idle_A))


def score_readings(
    config: RunConfig,
    examples: Sequence[ForecastExample],
    retriever: NewsRetriever,
    selection: FitnessSelection,
    logics: Sequence[str],
    groups: Sequence[Sequence[str]],
    records: LogicRecords,
    rng: np.random.Generator,
) -> Turns:
    """Score the new logics of all agents, and their best remembered ones, on some train windows."""
    truths = np.stack([example.truth_H for example in examples if example.truth_H is not None])
    known = [e for e, is_known in zip(examples, is_known_enough(truths), strict=True) if is_known]
    scored = choose_windows(known, config.grpo.reward_windows, rng)
    scorer = LogicScorer(build_reader(config, scored, retriever, SEARCHED), config)
    candidates = [
        [*group, *records.list_best(agent, but=logic)]
        for agent, (group, logic) in enumerate(zip(groups, logics, strict=True))
    ]
    order = rng.permutation(len(logics)).tolist()
    return take_turns(scorer, selection, logics, candidates, records, order)


def take_turns(
    scorer: LogicScorer,
    selection: FitnessSelection,
    logics: Sequence[str],
    candidates: Sequence[Sequence[str]],
    records: LogicRecords,
    order: Sequence[int],
) -> Turns:
    """Let each agent in turn choose between the logic that it plays, its candidates and its record.

    ``records`` stay as they are.
    """
    entities = [view.entity for view in scorer.reader.views]
    open_NA = to_array(selection.open_weights(entities)).astype(np.float64)
    is_idle_A = to_array(selection.is_idle_A).copy()
    played, records = list(logics), copy.deepcopy(records)
    gain_AN = np.zeros((len(played), len(entities)))
    gain_AC = [np.zeros(1)] * len(played)

    scorer.reader.retriever.embed(logic for of_agent in candidates for logic in of_agent)
    for agent in order:
        scored = [played[agent], *candidates[agent]]
        working = leave_out_idle(torch.from_numpy(open_NA), torch.from_numpy(is_idle_A))
        standing = Standing(played, to_array(working), open_NA)
        with find_blas().limit(limits=1):
            gain_CN = scorer.score(agent, scored, standing)
        gain_AC[agent] = gain_CN.mean(1)

        played[agent] = records.add(agent, scored, gain_CN)
        record = records.get(agent, played[agent])
        is_scored = played[agent] in scored
        gain_AN[agent] = gain_CN[scored.index(played[agent])] if is_scored else record.gain
        if scorer.pays_contribution and not selection.config.uniform:
            is_idle_A[agent] = record.lower_bound <= 0
    return Turns(played, records, is_idle_A, gain_AN, entities, gain_AC)


def list_first_logics(config: RunConfig) -> list[str]:
    """Return the logics that all agents begin with: a seed logic for each that chooses its news."""
    evolution, members = config.evolution, config.population.list_members()
    if evolution.start:
        return list(evolution.start)
    seeds = iter(list_seed_logics(evolution.form))
    return [GENERALIST_LOGIC if is_generalist(member) else next(seeds) for member in members]


def choose_windows(
    examples: Sequence[ForecastExample], count: int, rng: np.random.Generator
) -> list[ForecastExample]:
    """Return the windows that score all logics of a rewriting, in the order of time; 0 = all."""
    if not count or count >= len(examples):
        return list(examples)
    return [examples[i] for i in sorted(rng.choice(len(examples), count, replace=False).tolist())]


def settle(model: AgentEnsemble, logics: Sequence[str]) -> None:
    """Let a model forecast under logics; fit what agents read together, if they do."""
    model.logics = list(logics)
    reader = model.executor.linear_reader
    if isinstance(reader, JointReader):
        reader.settle(logics)


def read_train(
    config: RunConfig,
    examples: Sequence[ForecastExample],
    retriever: NewsRetriever,
    selection: FitnessSelection,
) -> LinearReader:
    """Return what agents read by in training: fits of each, or of all at once if they are joint."""
    fitted = build_reader(config, examples, retriever)
    return JointReader(fitted, selection) if config.news.fit == "joint" else fitted


def build_reader(
    config: RunConfig,
    examples: Sequence[ForecastExample],
    retriever: NewsRetriever,
    penalties: FloatArray = PENALTIES,
) -> FittedReader:
    """Return what fits the readings of all agents on train windows."""
    members = config.population.list_members()
    views = [example.view for example in examples]
    weights_ANH = np.stack(
        [
            own_error_weights(member, views, seed=config.run.seed, agent=agent)
            for agent, member in enumerate(members)
        ]
    )
    mix_AP = mix_priors(config)[1]
    return FittedReader(examples, retriever, members, mix_AP, weights_ANH, penalties)
