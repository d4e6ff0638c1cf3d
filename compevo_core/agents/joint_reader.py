"""Read the news of all agents at once, and pay each logic by what it adds (decision 04-policy).

The population's forecast is ``sum_i w_i (B_i + X_i beta_i)`` (Eq. 6): ``B_i`` is agent i's base and
``X_i`` what its logic retrieves. All ``beta_i`` minimise the error of that sum, plus
``lambda sum_i w_i |beta_i|^2``: one ridge on the columns ``sqrt(w_i) X_i``, whose Gram matrices
add. An agent's part is ``w_i X_i beta_i``; by itself its forecast overshoots.

The reward of a logic is the error of the population without the agent, fitted again, minus the
error with the agent under that logic: the difference reward (Wolpert and Tumer, "Optimal payoff
functions for members of collectives", 2001), with "reads nothing" as the counterfactual (Foerster
et al., "Counterfactual multi-agent policy gradients", 2018).

If agents chose at the same time, all would take the same free niche. So they take turns, and each
chooses given what the others play by then (decision 04-policy).

What belongs here: joint fits, rewards, turns. What does not: records of gains (``agents.logics``),
who writes the logics (``agents.logic_writer``, ``agents.logics``).

Shapes: N windows, A agents, C logics, K columns, H horizon.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.linear_reader import (
    FittedReader,
    LinearFit,
    LinearReader,
    interpolate,
    is_known_enough,
)
from compevo_core.agents.logics import LogicRecords
from compevo_core.agents.objective import draw_own_windows
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.ridge import PENALTIES, SEARCHED, fit_ridge, hold_out_by_kernel
from compevo_core.agents.selection import FitnessSelection, leave_out_idle
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import BoolArray, FloatArray, to_array
from compevo_core.errors import DataError
from compevo_core.runtime.usage import find_blas

_DECIMALS = 3  # of the weights in a fit, as training the gates changes them a little each round


class JointReader:
    """Fits all agents' readings to the error of the population's forecast."""

    def __init__(self, reader: FittedReader, selection: FitnessSelection) -> None:
        self.reader = reader
        self._selection = selection
        self._logics: list[str] = []
        self._weights_NA = np.empty((0, 0))
        self._fits: list[LinearFit] = []

    def settle(self, logics: Sequence[str]) -> None:
        """Fit the logics that all agents play, under their present weights."""
        weights = self._selection.weights([view.entity for view in self.reader.views])
        weights_NA = to_array(weights).astype(np.float64).round(_DECIMALS)
        if self._logics == list(logics) and np.array_equal(self._weights_NA, weights_NA):
            return
        self._logics, self._weights_NA = list(logics), weights_NA
        with find_blas().limit(limits=1):
            self._fits = fit_jointly(self.reader, logics, weights_NA)

    def find(self, agent: int, logic: str) -> LinearFit:
        """Return how an agent reads what the logic that it plays retrieves."""
        if not self._logics or self._logics[agent] != logic:
            raise DataError(
                f"agent {agent} was not fitted under the logic {logic!r}: settle what all agents "
                "play before one of them reads"
            )
        return self._fits[agent]


def fit_jointly(
    reader: FittedReader, logics: Sequence[str], weights_NA: FloatArray
) -> list[LinearFit]:
    """Return the fit of each agent; zero for one without any weight."""
    designs = [reader.design(agent, logic) for agent, logic in enumerate(logics)]
    missed_NH = interpolate(reader.truth_NH - mix(weights_NA, reader.base_ANH))
    scales = map(scale_columns, weights_NA.T, reader.is_own_AN)
    scaled = [scale_N[:, None] * d.x_NK for scale_N, d in zip(scales, designs, strict=True)]
    fit = fit_ridge(np.concatenate(scaled, axis=1), missed_NH, reader.blocks, reader.is_known_N)

    fits, end = [], 0
    for agent, (design, mean) in enumerate(zip(designs, weights_NA.mean(0), strict=True)):
        columns = slice(end, end + design.x_NK.shape[1])
        end = columns.stop
        # An agent without weight adds nothing.
        own = fit.take(columns).scale(1 / np.sqrt(mean) if mean else 0.0)
        fits.append(reader.make_fit(agent, design, own))
    return fits


def scale_columns(weight_N: FloatArray, is_own_N: BoolArray) -> FloatArray:
    """Return the factors (N,) of an agent's columns in a joint fit, ``sqrt(w)`` for one weight."""
    mean = float(weight_N.mean())
    return is_own_N * weight_N / np.sqrt(mean) if mean else np.zeros_like(weight_N)


def mix(weights_NA: FloatArray, values_ANH: FloatArray) -> FloatArray:
    """Return the weighted sum over agents (N, H)."""
    return np.asarray(np.einsum("na,anh->nh", weights_NA, values_ANH))


class LogicScorer:
    """Scores logics by how much their readings lower the errors of some train windows.

    Both errors of a difference belong to the same windows, so that their difficulty cancels.
    """

    def __init__(self, reader: FittedReader, config: RunConfig) -> None:
        """Take a reader of the windows that score, each with a known truth."""
        self.reader = reader
        self.pays_contribution = config.evolution.credit == "contribution"
        self._is_joint = self.pays_contribution and config.news.fit == "joint"

    def score(
        self,
        agent: int,
        logics: Sequence[str],
        played: Sequence[str],
        open_NA: FloatArray,
        is_idle_A: BoolArray,
    ) -> FloatArray:
        """Return by how much each logic of an agent lowers the error of each window, (C, N).

        All others keep the logics that they play; ``open_NA`` are weights before idle agents, which
        add nothing to the others, are left out.
        """
        working = leave_out_idle(torch.from_numpy(open_NA), torch.from_numpy(is_idle_A))
        weights_NA = to_array(working)
        if not self.pays_contribution:
            # Paid by its own error, it is scored as if it were the whole population.
            alone_NA = np.zeros_like(open_NA)
            alone_NA[:, agent] = 1.0
            weights_NA = open_NA = alone_NA
        others = [
            (other, logic)
            for other, logic in enumerate(played)
            if other != agent and weights_NA[:, other].any()
        ]
        missed_NH = interpolate(self.reader.truth_NH - mix(weights_NA, self.reader.base_ANH))

        # What the others leave, then what is left with each of the logics added.
        left_CNH = np.empty((1 + len(logics), *missed_NH.shape))
        if self._is_joint:
            blocks = self.reader.blocks
            gram_NN = np.zeros((len(missed_NH), len(missed_NH)))
            for other, logic in others:
                gram_NN += self._build_gram(other, logic, weights_NA)
            left_CNH[0] = hold_out_by_kernel(gram_NN, missed_NH, blocks)
            for row, logic in enumerate(logics, 1):
                joined_NN = gram_NN + self._build_gram(agent, logic, open_NA)
                left_CNH[row] = hold_out_by_kernel(joined_NN, missed_NH, blocks)
        else:
            for other, logic in others:
                missed_NH = missed_NH - weights_NA[:, [other]] * self._read(other, logic)
            left_CNH[0] = missed_NH
            for row, logic in enumerate(logics, 1):
                left_CNH[row] = missed_NH - open_NA[:, [agent]] * self._read(agent, logic)

        # Steps without a truth were interpolated for the fits, but count in no error.
        known_NH = np.where(np.isfinite(self.reader.truth_NH), 1.0, np.nan)
        before_N, *after_CN = np.nanmean(known_NH * left_CNH**2, axis=2)
        return np.stack([before_N - after_N for after_N in after_CN])

    def _build_gram(self, agent: int, logic: str, weights_NA: FloatArray) -> FloatArray:
        """Return the Gram matrix (N, N) of what an agent reads in a joint fit."""
        scale_N = scale_columns(weights_NA[:, agent], self.reader.is_own_AN[agent])
        x_NK = scale_N[:, None] * self.reader.design(agent, logic).x_NK
        return np.asarray(x_NK @ x_NK.T)

    def _read(self, agent: int, logic: str) -> FloatArray:
        """Return an agent's own held-out readings (N, H)."""
        held_out = self.reader.find(agent, logic).held_out
        nothing_H = np.zeros(self.reader.truth_NH.shape[1])
        return np.stack([held_out.get(view.window_id, nothing_H) for view in self.reader.views])


@dataclasses.dataclass(frozen=True)
class Turns:
    """What the agents play after their turns, and what it earned."""

    logics: list[str]  # of all agents
    records: LogicRecords
    is_idle_A: BoolArray  # agents that add nothing to the others
    gain_AN: FloatArray  # of the logics that they play now, by window
    entities: list[str]  # of the windows
    gain_AC: list[FloatArray]  # mean gains of all scored logics; the first was played before

    def describe(self, n_samples: int) -> dict[str, Any]:
        """Return a round's record of rewards; samples come after the logic that was played."""
        samples = slice(1, 1 + n_samples)
        return {
            "group_rewards": [gain_C[samples].tolist() for gain_C in self.gain_AC],
            "best_response_gap": self.measure_gaps(n_samples).tolist(),
            "news_gains": [float(gain_C[0]) for gain_C in self.gain_AC],
            "rewards": self.gain_AN.mean(1).tolist(),
        }

    def measure_gaps(self, n_samples: int) -> FloatArray:
        """Return by how much each agent's best sample earned more than the played logic, (A,)."""
        samples = slice(1, 1 + n_samples)
        return np.array([(of_C[samples] - of_C[0]).max(initial=0.0) for of_C in self.gain_AC])

    def pay(self, selection: FitnessSelection) -> None:
        """Update the fitness by what the logics earned (Eq. 4), and mark the idle agents."""
        gain_AN = torch.from_numpy(self.gain_AN).float().to(selection.fitness_EA.device)
        selection.update_fitness(gain_AN, self.entities)
        selection.is_idle_A.copy_(torch.from_numpy(self.is_idle_A))


def take_turns(
    scorer: LogicScorer,
    selection: FitnessSelection,
    logics: Sequence[str],
    candidates: Sequence[Sequence[str]],
    records: LogicRecords,
    order: Sequence[int],
) -> Turns:
    """Let each agent in turn choose between the logic that it plays, its candidates and its record.

    ``records`` are not changed: the result has new ones.
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
        with find_blas().limit(limits=1):
            gain_CN = scorer.score(agent, scored, played, open_NA, is_idle_A)
        gain_AC[agent] = gain_CN.mean(1)

        played[agent] = records.add(agent, scored, gain_CN)
        record = records.get(agent, played[agent])
        is_scored = played[agent] in scored
        gain_AN[agent] = gain_CN[scored.index(played[agent])] if is_scored else record.gain
        if scorer.pays_contribution and not selection.config.uniform:
            is_idle_A[agent] = record.lower_bound <= 0
    return Turns(played, records, is_idle_A, gain_AN, entities, gain_AC)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainNews:
    """The news of train windows: how ridges read them for agents, and what logics earn by them."""

    config: RunConfig
    mix_AP: FloatArray  # shares of the base models in each agent's base
    examples: Sequence[ForecastExample]
    retriever: NewsRetriever
    selection: FitnessSelection

    def fit(self) -> LinearReader:
        """Return the fits that agents read by in training: each by itself, or all at once."""
        fitted = self.build_reader(self.examples)
        return JointReader(fitted, self.selection) if self.config.news.fit == "joint" else fitted

    def build_reader(
        self, examples: Sequence[ForecastExample], penalties: FloatArray = PENALTIES
    ) -> FittedReader:
        """Return a reader of all agents that is fitted on some of the windows."""
        members = self.config.population.list_members()
        views = [example.view for example in examples]
        is_own_AN = draw_own_windows(members, views, self.config.run.seed)
        return FittedReader(examples, self.retriever, members, self.mix_AP, is_own_AN, penalties)

    def score(
        self,
        logics: Sequence[str],
        groups: Sequence[Sequence[str]],
        records: LogicRecords,
        rng: np.random.Generator,
    ) -> Turns:
        """Score the new logics of all agents, and their best remembered ones, on some windows."""
        truths = np.stack([each.truth_H for each in self.examples if each.truth_H is not None])
        scored = [self.examples[i] for i in np.flatnonzero(is_known_enough(truths)).tolist()]
        # In the order of time; 0 means all of them.
        count = self.config.grpo.reward_windows
        if 0 < count < len(scored):
            chosen = rng.choice(len(scored), count, replace=False).tolist()
            scored = [scored[i] for i in sorted(chosen)]

        scorer = LogicScorer(self.build_reader(scored, SEARCHED), self.config)
        candidates = [
            [*group, *records.list_best(agent, but=logic)]
            for agent, (group, logic) in enumerate(zip(groups, logics, strict=True))
        ]
        order = rng.permutation(len(logics)).tolist()
        return take_turns(scorer, self.selection, logics, candidates, records, order)

    def compare(self, logics: Sequence[str], candidates: Sequence[Sequence[str]]) -> FloatArray:
        """Return what each agent's candidates gain on the windows while others play, (A, C)."""
        scorer = LogicScorer(self.build_reader(self.examples, SEARCHED), self.config)
        weights = self.selection.open_weights([view.entity for view in scorer.reader.views])
        open_NA, is_idle_A = map(to_array, (weights, self.selection.is_idle_A))
        with find_blas().limit(limits=1):
            gains = [
                scorer.score(agent, of_agent, logics, open_NA, is_idle_A).mean(1)
                for agent, of_agent in enumerate(candidates)
            ]
        return np.stack(gains)
