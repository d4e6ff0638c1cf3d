"""Read the news of all agents at once, and pay each logic by what it adds (decision 04-policy).

The population's forecast is ``sum_i w_i (B_i + X_i beta_i)`` (Eq. 6): ``B_i`` is agent i's base and
``X_i`` what its logic retrieves. All ``beta_i`` minimise the error of that sum, plus
``lambda sum_i w_i |beta_i|^2``: one ridge on the columns ``sqrt(w_i) X_i``, whose Gram matrices
add. An agent's part is ``w_i X_i beta_i``; by itself its forecast overshoots.

The reward of a logic is the error of the population without the agent, fitted again, minus the
error with the agent under that logic: the difference reward (Wolpert and Tumer, "Optimal payoff
functions for members of collectives", 2001), with "reads nothing" as the counterfactual (Foerster
et al., "Counterfactual multi-agent policy gradients", 2018).

Shapes: N windows, A agents, C logics, K columns, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from compevo_core.agents.linear_reader import (
    FittedReader,
    LinearFit,
    interpolate,
    list_kinds_of_steps,
)
from compevo_core.agents.objective import weigh_own_steps
from compevo_core.agents.ridge import KernelFolds, fit_ridge
from compevo_core.agents.selection import FitnessSelection
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, to_array
from compevo_core.errors import DataError
from compevo_core.runtime.usage import find_blas

_DECIMALS = 3  # of the weights in a fit: adapters train gates, which move them a little each round


class JointReader:
    """Fits all agents' readings to the error of the population's forecast."""

    def __init__(self, reader: FittedReader, selection: FitnessSelection) -> None:
        self.reader = reader
        self._selection = selection
        self._logics: list[str] = []
        self._weights_NA = np.empty((0, 0))
        self._fits: list[LinearFit] = []

    def settle(self, logics: Sequence[str]) -> None:
        """Fit the logics that all agents play, under the weights that they have now."""
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
    held_out_ANH = np.zeros((len(logics), *missed_NH.shape))
    weights_AKH = [np.zeros((d.x_NK.shape[1], missed_NH.shape[1])) for d in designs]

    for steps, share_NA in list_kinds_of_steps(reader.weights_ANH):
        scales = map(scale_columns, weights_NA.T, share_NA.T)
        joined_NK = np.concatenate(
            [scale_N[:, None] * d.x_NK for scale_N, d in zip(scales, designs, strict=True)], axis=1
        )
        fit = fit_ridge(joined_NK, missed_NH[:, steps], reader.blocks, reader.is_known_N)

        end = 0
        for agent, (design, mean) in enumerate(zip(designs, weights_NA.mean(0), strict=True)):
            columns = slice(end, end + design.x_NK.shape[1])
            end = columns.stop
            # Without any weight an agent says nothing.
            own = fit.take(columns).scale(1 / np.sqrt(mean) if mean else 0.0)
            held_out_ANH[agent][:, steps] = own.hold_out(design.x_NK, reader.blocks)
            weights_AKH[agent][:, steps] = own.weights_KH

    fits = []
    for agent, (design, held_out_NH) in enumerate(zip(designs, held_out_ANH, strict=True)):
        member = reader.members[agent]
        own_NH = np.stack(
            [weigh_own_steps(member, view.entity, view.horizon) for view in reader.views]
        )
        held_out = design.list_readings(reader.views, own_NH * held_out_NH)
        fits.append(design.make_fit(weights_AKH[agent], member, held_out=held_out, is_joint=True))
    return fits


def scale_columns(weight_N: FloatArray, share_N: FloatArray) -> FloatArray:
    """Return what an agent's columns are multiplied by in a joint fit, (N,).

    With one weight ``w`` in all windows it is ``sqrt(w)``.
    """
    mean = float(weight_N.mean())
    return share_N * weight_N / np.sqrt(mean) if mean else np.zeros_like(weight_N)


def mix(weights_NA: FloatArray, values_ANH: FloatArray) -> FloatArray:
    """Return the weighted sum over agents (N, H)."""
    return np.asarray(np.einsum("na,anh->nh", weights_NA, values_ANH))


@dataclasses.dataclass(frozen=True, eq=False)
class Standing:
    """What is played when logics are scored, on N windows."""

    logics: list[str]  # of all agents
    weights_NA: FloatArray  # with which they are mixed; zero for an agent that adds nothing
    open_NA: FloatArray  # what each has while it is scored, whether or not it adds something yet


class LogicScorer:
    """Scores logics on some train windows, one agent's after another's, by their readings.

    The features of the other agents are collected once per turn. Rewards are differences of
    errors on the same windows, so that a window's difficulty cancels.
    """

    def __init__(self, reader: FittedReader, config: RunConfig) -> None:
        """Take a reader of the windows that score, each with a known truth."""
        self.reader = reader
        self._is_joint = config.news.fit == "joint"
        self.pays_contribution = config.evolution.credit == "contribution"

    def score(self, agent: int, logics: Sequence[str], standing: Standing) -> FloatArray:
        """Return by how much each logic of an agent lowers the error of each window, (C, N)."""
        if not self.pays_contribution:
            missed_NH = interpolate(self.reader.truth_NH - self.reader.base_ANH[agent])
            left = [missed_NH - self._read(agent, logic) for logic in logics]
            return self._compare(missed_NH, left)

        missed_NH = interpolate(
            self.reader.truth_NH - mix(standing.weights_NA, self.reader.base_ANH)
        )
        others = [
            (other, logic)
            for other, logic in enumerate(standing.logics)
            if other != agent and standing.weights_NA[:, other].any()
        ]
        if self._is_joint:
            return self._score_jointly(agent, logics, standing, others, missed_NH)

        for other, logic in others:
            missed_NH = missed_NH - standing.weights_NA[:, [other]] * self._read(other, logic)
        weight_N1 = standing.open_NA[:, [agent]]
        left = [missed_NH - weight_N1 * self._read(agent, logic) for logic in logics]
        return self._compare(missed_NH, left)

    def _score_jointly(
        self,
        agent: int,
        logics: Sequence[str],
        standing: Standing,
        others: Sequence[tuple[int, str]],
        missed_NH: FloatArray,
    ) -> FloatArray:
        """Return how much adding each logic improves the fit of the others."""
        left_CNH = np.empty((1 + len(logics), *missed_NH.shape))
        for steps, share_NA in list_kinds_of_steps(self.reader.weights_ANH):
            folds = KernelFolds(missed_NH[:, steps], self.reader.blocks)
            others_NN = np.zeros((len(missed_NH), len(missed_NH)))
            for other, logic in others:
                weight_N = standing.weights_NA[:, other]
                others_NN += self._multiply(other, logic, weight_N, share_NA[:, other])

            left_CNH[0][:, steps] = folds.hold_out(others_NN)
            for row, logic in enumerate(logics, 1):
                own_NN = self._multiply(
                    agent, logic, standing.open_NA[:, agent], share_NA[:, agent]
                )
                left_CNH[row][:, steps] = folds.hold_out(others_NN + own_NN)
        return self._compare(left_CNH[0], list(left_CNH[1:]))

    def _multiply(
        self, agent: int, logic: str, weight_N: FloatArray, share_N: FloatArray
    ) -> FloatArray:
        """Return the Gram matrix (N, N) of what an agent reads in a joint fit."""
        design = self.reader.design(agent, logic)
        x_NK = scale_columns(weight_N, share_N)[:, None] * design.x_NK
        return np.asarray(x_NK @ x_NK.T)

    def _read(self, agent: int, logic: str) -> FloatArray:
        """Return an agent's own held-out readings (N, H)."""
        held_out = self.reader.find(agent, logic).held_out
        nothing_H = np.zeros(self.reader.truth_NH.shape[1])
        return np.stack([held_out.get(view.window_id, nothing_H) for view in self.reader.views])

    def _compare(self, without_NH: FloatArray, with_CNH: Sequence[FloatArray]) -> FloatArray:
        # Steps without a truth were interpolated for the fits, and count in no error.
        known_NH = np.where(np.isfinite(self.reader.truth_NH), 1.0, np.nan)
        before_N, *after_CN = (
            np.nanmean(known_NH * left**2, axis=1) for left in (without_NH, *with_CNH)
        )
        return np.stack([before_N - after_N for after_N in after_CN])
