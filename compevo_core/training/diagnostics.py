"""Measure in a run what the theorems of the paper's appendix B assume or conclude.

None of these numbers proves a theorem. Each shows, for one finite run, whether an assumption or a
conclusion fails.

Shapes:
    A agents, G logics of a group, K fixed logics, N agents, rounds or known targets, T rounds,
    B windows, H horizon.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from compevo_core.agents.logics import list_seed_logics
from compevo_core.data.arrays import BoolArray, FloatArray
from compevo_core.errors import DataError
from compevo_core.runtime.seeding import derive_seed

MIN_FIT_POINTS = 8  # rounds; a line through fewer says little about an exponent

_CONFIDENCE = 0.95  # share of the bootstrap paths that an interval covers


def as_finite_array(name: str, values: npt.ArrayLike, ndim: int) -> FloatArray:
    """Return the values as a float64 array; DataError if one is not finite, or there are none."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != ndim or array.size == 0 or not np.isfinite(array).all():
        raise DataError(
            f"{name} must be {ndim}-dimensional, not empty and finite; got shape {array.shape} "
            f"with {int((~np.isfinite(array)).sum())} non-finite: score every logic before "
            "measuring"
        )
    return array


def best_response_gap(group_rewards: npt.ArrayLike, played_rewards: npt.ArrayLike) -> FloatArray:
    """Return the reward (A,) that each agent would gain by its best sampled logic instead.

    At an equilibrium of the sampled game every gap is 0 (Theorem B.1.1, Eq. 19); G samples are not
    the whole strategy space, so a gap of 0 proves none. ``group_rewards`` are (A, G),
    ``played_rewards`` (A,).
    """
    group_AG = as_finite_array("group_rewards", group_rewards, 2)
    played_A = as_finite_array("played_rewards", played_rewards, 1)
    # The played logic may beat all samples; then it is the best response.
    return np.asarray(np.maximum(group_AG.max(axis=1) - played_A, 0.0))


def aggregate_best_response_gap(
    group_forecasts: npt.ArrayLike,
    played_forecasts: npt.ArrayLike,
    weights: npt.ArrayLike,
    truth: npt.ArrayLike,
) -> FloatArray:
    """Return the drop (A,) in the aggregate loss if one agent switched to its best sampled logic.

    The forecasts of the others and all weights stay as played. This is the local equilibrium of
    Theorem B.2.1, step 6, for L_pred and sampled logics only. Scaled forecasts are (A, G, B, H) and
    (A, B, H), weights (A,), or (B, A) where they differ by window, the truth (B, H) with NaN.
    """
    group_AGBH = as_finite_array("group_forecasts", group_forecasts, 4)
    played_ABH = as_finite_array("played_forecasts", played_forecasts, 3)
    weight_BA = as_finite_array("weights", np.atleast_2d(weights), 2)
    truth_BH = np.asarray(truth, dtype=np.float64)

    # The aggregate is linear in each forecast, so a switch adds the weighted difference.
    weight_AB1 = weight_BA.T[:, :, None]
    aggregate_BH = (weight_AB1 * played_ABH).sum(axis=0)
    change_AGBH = weight_AB1[:, None] * (group_AGBH - played_ABH[:, None])

    # One mean over all targets. Training averages each window first (agents.selection), which gives
    # another number only where windows miss different numbers of targets.
    played_loss = np.nanmean((aggregate_BH - truth_BH) ** 2)
    switched_loss_AG = np.nanmean((aggregate_BH + change_AGBH - truth_BH) ** 2, axis=(-2, -1))
    return np.asarray(np.maximum(played_loss - switched_loss_AG.min(axis=1), 0.0))


def gradient_conflict(
    main_norm: float, strategy_norm: float, inner_product: float
) -> tuple[float, float]:
    """Return cosine and margin of the main and the regularising gradient (Eq. 22 and 23).

    The margin, the left side of Eq. 23, is positive exactly if a small step along -(main +
    strategy) still lowers the main loss, to first order, for one batch (Theorem B.2.1, step 2). The
    cosine is 0 if a gradient is zero. Processes exchange three numbers instead of gradients.
    """
    numbers = (main_norm, strategy_norm, inner_product)
    if not all(map(math.isfinite, numbers)) or min(main_norm, strategy_norm) < 0:
        raise DataError(
            f"norms {main_norm}, {strategy_norm} and inner product {inner_product} must be finite, "
            "norms >= 0: training diverged; lower optim.forecast_lr or optim.policy_lr"
        )

    scale = main_norm * strategy_norm
    # By rounding, the quotient of two nearly parallel gradients can exceed 1.
    cosine = 0.0 if scale == 0.0 else max(-1.0, min(1.0, inner_product / scale))

    # Times main_norm, the margin is the inner product of the main with the joint gradient: how fast
    # the main loss falls, to first order, along the joint step.
    return cosine, main_norm + strategy_norm * cosine


def weight_entropy(weights: npt.ArrayLike) -> float:
    """Return the entropy of the aggregation weights w (A,) in nats (Eq. 5, Proposition B.5.1).

    It is 0 for a single agent and log A for a plain mean; exp(entropy) is the number of agents that
    count.
    """
    weight_A = as_finite_array("weights", weights, 1)
    total = float(weight_A.sum())
    # The weights come from a float32 softmax.
    if (weight_A < 0).any() or not math.isclose(total, 1.0, abs_tol=1e-4):
        raise DataError(
            f"weights must be >= 0 and sum to 1, got sum {total:.6f}: pass the softmax output"
        )

    from scipy.special import entr

    # entr is -w log w with 0 at w = 0; a weight just above 1 by rounding gives a tiny negative sum.
    # scipy.stats.entropy would normalise the weights first.
    return max(0.0, float(entr(weight_A).sum()))


def assign_fixed_logics(agents: int, count: int, form: str = "free") -> list[list[str]]:
    """Return K fixed logics for each agent, (A, K): its own seed logic and the next ones."""
    seeds = list_seed_logics(form)
    return [[seeds[(agent + k) % len(seeds)] for k in range(count)] for agent in range(agents)]


@dataclasses.dataclass
class RegretTracker:
    """Running sums of rewards over the rounds that rewrote logics, plain for a checkpoint."""

    played: list[float]  # (A,) rewards of the played logics
    fixed: list[list[float]]  # (A, K) rewards of the fixed logics
    group: list[float]  # (A,) best-response gaps

    @classmethod
    def start(cls, agents: int, count: int) -> Self:
        """Start before the first round, for A agents with K fixed logics each."""
        return cls([0.0] * agents, [[0.0] * count for _ in range(agents)], [0.0] * agents)

    def describe(self) -> dict[str, Any]:
        """Return a round's record on regret, by its keys, for a round that scored no logics.

        Regrets are unchanged by such a round. They may be negative, as an agent that adapts can
        beat the best of K fixed logics in hindsight. Theorem B.3.2 states a Bayesian regret of
        O(sqrt T) (Eq. 25 and 48), Lemma B.4.1 a linear one for debate.
        """
        has_fixed = any(map(len, self.fixed))
        # The maximum of sums, not a sum of maxima: a comparator may not switch between rounds.
        regret_A = np.max(self.fixed, axis=1) - self.played if has_fixed else None
        regret = None if regret_A is None else regret_A.tolist()
        return {"regret": regret, "group_regret": list(self.group)}

    def add_round(
        self, reward_AK: npt.NDArray[np.floating[Any]], group_gap_A: npt.NDArray[np.floating[Any]]
    ) -> dict[str, Any]:
        """Add one round to the sums, and return its record on regret by its keys.

        ``reward_AK`` are (A, 1 + K) rewards of the played logic and then of the fixed ones, on the
        same windows; (A, 0) if no fixed logic is scored. ``group_gap_A`` is the reward by which the
        best sampled logic beat the played one: that comparator may switch each round.
        """
        # Every run measures this regret, as it needs no other forecasts than the group's.
        self.group = (np.asarray(self.group) + group_gap_A).tolist()
        if not reward_AK.shape[1]:
            return self.describe()

        # Rewards are float32; thousands of them are summed, so the sums are float64.
        scores_AK = reward_AK.astype(np.float64)
        self.played = (np.asarray(self.played) + scores_AK[:, 0]).tolist()
        self.fixed = (np.asarray(self.fixed) + scores_AK[:, 1:]).tolist()
        return self.describe() | {
            "fixed_rewards": scores_AK[:, 1:].tolist(),
            "played_rewards": scores_AK[:, 0].tolist(),
        }


def fit_growth_exponent(
    regret: npt.ArrayLike, *, generator: np.random.Generator, samples: int = 1000
) -> dict[str, Any]:
    """Fit log regret = a + b log T after the burn-in, with a wild block bootstrap of the steps.

    Theorem B.3.2 says b = 1/2 (Eq. 48), Lemma B.4.1 b = 1 for debate; an interval below 1 is
    sublinear regret in this run. The bootstrap flips the signs of whole blocks of deviations from
    the fitted steps, and sums again. ``regret`` (T,) is cumulative. A number that is missing is
    None, and ``reason`` says why; rounds of the burn-in, or without a logarithm, are left out.
    """
    regret_T = as_finite_array("regret", regret, 1)
    rounds_T = np.arange(1, len(regret_T) + 1, dtype=np.float64)
    # The first tenth of the rounds, warm-up included, does not show the growth.
    is_late_T = rounds_T > math.floor(0.1 * len(regret_T))

    n_used = int((is_late_T & (regret_T > 0)).sum())
    fit: dict[str, Any] = {"exponent": None, "low": None, "high": None}
    fit |= {"n_used": n_used, "n_left_out": len(regret_T) - n_used, "reason": ""}
    if n_used < MIN_FIT_POINTS:
        return fit | {"reason": f"fewer than {MIN_FIT_POINTS} rounds with positive regret"}

    slope, intercept = _fit_log_line(rounds_T, regret_T, is_late_T)
    # Steps, not sums: only deviations of single rounds may be treated as noise.
    fitted_step_T = np.diff(math.exp(intercept) * rounds_T**slope, prepend=0.0)
    noise_T = np.diff(regret_T, prepend=0.0) - fitted_step_T

    # Blocks of T^(1/3) rounds keep the short-range correlation, the usual rate for a block length.
    block = math.ceil(len(rounds_T) ** (1 / 3))
    exponents = []
    for _ in range(samples):
        signs = generator.choice([-1.0, 1.0], size=math.ceil(len(rounds_T) / block))
        signs_T = np.repeat(signs, block)[: len(rounds_T)]
        path_T = np.cumsum(fitted_step_T + signs_T * noise_T)
        # A path may fall below zero where the regret did not.
        if (is_late_T & (path_T > 0)).sum() >= MIN_FIT_POINTS:
            exponents.append(_fit_log_line(rounds_T, path_T, is_late_T)[0])
    if not exponents:
        return fit | {"exponent": slope, "reason": "no bootstrap path stayed positive"}

    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(exponents, [tail, 1 - tail])
    return fit | {"exponent": slope, "low": float(low), "high": float(high)}


def summarize_regret_growth(
    regrets: Sequence[Sequence[float] | None], seed: int
) -> dict[str, Any] | None:
    """Fit the regret of each agent and of the agents' mean, as plain values for ``metrics.json``.

    ``regrets`` are (A,) of T rounds; None if a round was not scored against fixed logics.
    """
    if not regrets or any(row is None for row in regrets):
        return None

    regret_TA = np.asarray(regrets, dtype=np.float64)
    # One generator for all fits: their order is part of the result.
    generator = np.random.default_rng(derive_seed(seed, "regret bootstrap"))
    *agents, mean = (
        fit_growth_exponent(regret_T, generator=generator)
        for regret_T in [*regret_TA.T, regret_TA.mean(axis=1)]
    )
    return {"agents": agents, "mean": mean}


def _fit_log_line(
    rounds_T: FloatArray, regret_T: FloatArray, is_late_T: BoolArray
) -> tuple[float, float]:
    # A power law is a line in logarithms, with the exponent as its slope.
    is_used_T = is_late_T & (regret_T > 0)
    slope, intercept = np.polyfit(np.log(rounds_T[is_used_T]), np.log(regret_T[is_used_T]), 1)
    return float(slope), float(intercept)


def measure_health(values_ABH: npt.ArrayLike, truth_BH: npt.ArrayLike) -> dict[str, float]:
    """Measure how different the agents' errors are, over all known targets, by a record's keys.

    Where A errors of equal size have the mean correlation rho, the mean forecast has the variance
    of A / (1 + (A - 1) rho) independent ones. Forecasts and truth are scaled.
    """
    values = np.asarray(values_ABH, dtype=np.float64)
    truth = np.asarray(truth_BH, dtype=np.float64)
    is_known_BH = np.isfinite(truth)
    error_AN = values[:, is_known_BH] - truth[is_known_BH]
    if not error_AN.size or not np.isfinite(error_AN).all():
        raise DataError(
            f"{error_AN.shape[1]} known targets and {(~np.isfinite(error_AN)).sum()} forecasts of "
            "them that are not finite; measure windows that are known and forecast"
        )

    agents = len(values)
    pairs = [_correlate(*pair_2N) for pair_2N in itertools.combinations(error_AN, 2)]
    correlation = float(np.mean(pairs)) if pairs else 1.0
    # Errors that cancel would otherwise count as more agents than there are.
    effective = agents / (1.0 + (agents - 1) * max(correlation, 0.0))

    best = float(np.abs(error_AN).mean(axis=1).min())
    of_mean = float(np.abs(error_AN.mean(axis=0)).mean())
    gain = 100.0 * (best - of_mean) / best if best > 0 else 0.0

    return {"error_correlation": correlation, "gain_over_best": gain, "effective_agents": effective}


def _correlate(first_N: FloatArray, second_N: FloatArray) -> float:
    # Equal errors correlate fully, even if they do not vary and no correlation is defined.
    if np.array_equal(first_N, second_N):
        return 1.0

    first_N = first_N - first_N.mean()
    second_N = second_N - second_N.mean()
    size = float(np.sqrt((first_N**2).sum() * (second_N**2).sum()))
    # A constant error correlates with no other.
    return float((first_N * second_N).sum()) / size if size > 0 else 0.0
