"""Measure in a run what the theorems of the paper's appendix B assume or conclude.

What belongs here: pure functions on arrays, called once a round or once a run. What does not: the
update itself (``training.round``), running sums over a run (``diagnostics.regret``), the growth of
regret (``diagnostics.regret_growth``), the monotone weighting rule (``agents.selection``), plots.

None of these numbers proves a theorem. Each says, for one finite run, whether what a theorem
assumes or concludes is observed to fail.

Shapes: A agents, G logics of a group, K fixed logics, N agents or rounds, B windows, H horizon.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError

_WEIGHT_SUM_TOLERANCE = 1e-4  # the weights come from a float32 softmax


def as_finite_array(name: str, values: npt.ArrayLike, ndim: int) -> FloatArray:
    """Return the values as a float64 array, checked.

    A missing value would turn into a wrong gap or regret without a trace, so it is refused.

    Raises:
        DataError: another number of dimensions, no value, or a value that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)

    if array.ndim != ndim or array.size == 0 or not np.isfinite(array).all():
        raise DataError(
            f"{name} must be {ndim}-dimensional, not empty and finite; got shape {array.shape} "
            f"with {int((~np.isfinite(array)).sum())} non-finite: score every logic before "
            "measuring"
        )

    return array


def best_response_gap(group_rewards: npt.ArrayLike, played_rewards: npt.ArrayLike) -> FloatArray:
    """Return the most reward each agent could gain by playing one of its sampled logics instead.

    Observes Theorem B.1.1 (a Bayesian Nash equilibrium exists) through the best response (Eq. 19):
    at an equilibrium of the sampled game every gap is 0. It proves none: G samples are not the
    strategy space Pi_i, and one batch is not an expectation. The reward (Eq. 3) is an agent's own
    error, so what the others play does not enter; :func:`aggregate_best_response_gap` measures the
    payoff that couples the agents.

    Args:
        group_rewards: (A, G).
        played_rewards: (A,).

    Returns:
        (A,), at least 0 because playing on is always allowed, in reward units.

    Raises:
        DataError: the arrays hold different numbers of agents, or a value is not finite.
    """
    group_AG = as_finite_array("group_rewards", group_rewards, 2)
    played_A = as_finite_array("played_rewards", played_rewards, 1)
    if len(group_AG) != len(played_A):
        raise DataError(
            f"{len(group_AG)} groups but {len(played_A)} played rewards: give one of each per agent"
        )

    # The played logic may beat all samples: the best response is then to play it on.
    return np.asarray(np.maximum(group_AG.max(axis=1) - played_A, 0.0))


def aggregate_best_response_gap(
    group_forecasts: npt.ArrayLike,
    played_forecasts: npt.ArrayLike,
    weights: npt.ArrayLike,
    truth: npt.ArrayLike,
    *,
    metric: str = "mse",
) -> FloatArray:
    """Return the drop in the aggregate loss if one agent alone switched to its best sampled logic.

    The drop is exact: the forecasts of the others and all weights stay as played. Observes the
    local equilibrium of Theorem B.2.1, step 6 (no unilateral update lowers L_total), for L_pred
    alone. It proves none: only sampled logics are tried, the regularisers are left out, and the
    weights would move later.

    Args:
        group_forecasts: (A, G, B, H).
        played_forecasts: (A, B, H).
        weights: (A,), or (B, A) where they differ by window.
        truth: (B, H), NaN where a target is missing.
        metric: ``mse`` or ``mae``, as in the objective.

    Returns:
        (A,), at least 0, in units of the metric.

    Raises:
        DataError: the shapes disagree, a forecast is not finite, or every target is missing.
    """
    if metric not in ("mse", "mae"):
        raise DataError(f"metric {metric!r} is not 'mse' or 'mae': use the metric of the objective")
    group_AGBH = as_finite_array("group_forecasts", group_forecasts, 4)
    played_ABH = as_finite_array("played_forecasts", played_forecasts, 3)
    weight_BA = as_finite_array("weights", np.atleast_2d(weights), 2)
    truth_BH = np.asarray(truth, dtype=np.float64)
    _require_matching_shapes(group_AGBH, played_ABH, weight_BA, truth_BH)

    # The aggregate is linear in each forecast, so a switch adds the weighted difference.
    weight_AB1 = weight_BA.T[:, :, None]
    aggregate_BH = (weight_AB1 * played_ABH).sum(axis=0)
    change_AGBH = weight_AB1[:, None] * (group_AGBH - played_ABH[:, None])

    played_loss = _masked_loss(aggregate_BH, truth_BH, metric)
    switched_loss_AG = _masked_loss(aggregate_BH + change_AGBH, truth_BH, metric)
    return np.asarray(np.maximum(played_loss - switched_loss_AG.min(axis=1), 0.0))


def regret_of_sums(played_sums: npt.ArrayLike, fixed_sums: npt.ArrayLike) -> FloatArray:
    """Return the regret against the best fixed logic in hindsight, from running sums of rewards.

    Hindsight means that the best logic is chosen after summing: max_k sum_s r_k(s) minus the sum of
    the played rewards. It may be negative, as an agent that adapts can beat every fixed logic.

    Observes Theorem B.3.2 (Bayesian regret O(sqrt T), Eq. 25 and 48) and, against it, Lemma B.4.1
    (linear regret of debate). It proves neither: the comparator is the best of K logics, not the
    equilibrium's value V*, and rewards drift as the forecast adapters learn.

    Args:
        played_sums: (N,), one row an agent (or a round of one agent).
        fixed_sums: (N, K), column k the sum of ONE logic's rewards on the same windows.

    Returns:
        (N,).

    Raises:
        DataError: the arrays differ in N, or a value is not finite.
    """
    played_N = as_finite_array("played_sums", played_sums, 1)
    fixed_NK = as_finite_array("fixed_sums", fixed_sums, 2)
    if len(played_N) != len(fixed_NK):
        raise DataError(
            f"{len(played_N)} played rewards but fixed logics scored for {len(fixed_NK)}: score all"
        )

    # The maximum of sums, not a sum of maxima: a fixed comparator may not switch between rounds.
    return np.asarray(fixed_NK.max(axis=1) - played_N)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientConflict:
    """How the gradients of the main and of the regularising terms stand to each other (B.2).

    Attributes:
        main_norm: norm of the gradient of L_pred + lambda_PG L_pg.
        strategy_norm: norm of the gradient of the weighted diversity and pruning terms.
        cosine: of the angle between them; 0 if one of them is zero.
        margin: main_norm + strategy_norm * cosine.
        holds: whether the margin is positive, which is Eq. 23.
    """

    main_norm: float
    strategy_norm: float
    cosine: float
    margin: float
    holds: bool


def gradient_conflict(
    main_norm: float, strategy_norm: float, inner_product: float
) -> GradientConflict:
    """Check the condition ||main|| > -||strategy|| cos of Theorem B.2.1, step 2 (Eq. 22 and 23).

    It holds exactly if a small step along -(main + strategy) still lowers the main loss. It does
    not prove stability: it is first order, at one point, for one batch. Norms and inner product are
    enough, so that processes exchange three numbers instead of gradients.

    Raises:
        DataError: a number is not finite, or a norm is negative.
    """
    numbers = (main_norm, strategy_norm, inner_product)
    if not all(map(math.isfinite, numbers)) or min(main_norm, strategy_norm) < 0:
        raise DataError(
            f"norms {main_norm}, {strategy_norm} and inner product {inner_product} must be finite, "
            "norms >= 0: check the loss before measuring"
        )

    scale = main_norm * strategy_norm
    # Rounding can carry the quotient of two nearly parallel gradients just past 1.
    cosine = 0.0 if scale == 0.0 else max(-1.0, min(1.0, inner_product / scale))

    # Times main_norm, this is the inner product of the main with the joint gradient: how fast the
    # main loss falls, to first order, along the joint step.
    margin = main_norm + strategy_norm * cosine
    return GradientConflict(
        main_norm=main_norm,
        strategy_norm=strategy_norm,
        cosine=cosine,
        margin=margin,
        holds=margin > 0,
    )


def gradient_norm(gradients: Iterable[npt.ArrayLike]) -> float:
    """Return the Euclidean norm of all gradients together: how far from stationary this point is.

    Observes the conclusion of Theorem B.2.1, grad L_total = 0 (Eq. 21), and its Lyapunov step. A
    small norm on one batch shows no convergence, nor tells a minimum from a saddle. The theorem's
    step-size assumption does not hold as printed either: eta_0 / sqrt(t) is not square summable.
    The run's warm-up and cosine decay ends at zero instead.
    """
    # Summed in float64: in float32 the squares of small gradients vanish next to large ones.
    return math.sqrt(
        sum(float(np.square(np.asarray(g, dtype=np.float64)).sum()) for g in gradients)
    )


def weight_entropy(weights: npt.ArrayLike) -> float:
    """Return the entropy of the aggregation weights w (A,) in nats.

    0 is one agent alone, log A a plain mean, exp(entropy) the number of agents that count. Observes
    soft selection (Eq. 5, Proposition B.5.1): falling entropy is selection at work. It says nothing
    on whether the agents that count are the right ones.

    Raises:
        DataError: the weights are not a distribution.
    """
    weight_A = as_finite_array("weights", weights, 1)
    total = float(weight_A.sum())
    if (weight_A < 0).any() or not math.isclose(total, 1.0, abs_tol=_WEIGHT_SUM_TOLERANCE):
        raise DataError(
            f"weights must be >= 0 and sum to 1, got sum {total:.6f}: pass the softmax output"
        )

    # entr is -w log w with 0 at w = 0; a weight just above 1 by rounding gives a tiny negative sum.
    # scipy.stats.entropy would divide by the sum first and measure other weights than were used.
    return max(0.0, float(entr(weight_A).sum()))


def _require_matching_shapes(
    group_AGBH: FloatArray, played_ABH: FloatArray, weight_BA: FloatArray, truth_BH: FloatArray
) -> None:
    agents, _, windows, horizon = group_AGBH.shape
    if (
        played_ABH.shape != (agents, windows, horizon)
        or weight_BA.shape not in ((1, agents), (windows, agents))
        or truth_BH.shape != (windows, horizon)
    ):
        raise DataError(
            f"shapes disagree: group {group_AGBH.shape}, played {played_ABH.shape}, weights "
            f"{weight_BA.shape}, truth {truth_BH.shape}; expected (A, G, B, H), (A, B, H), (A,) or "
            "(B, A), (B, H)"
        )

    if np.isnan(truth_BH).all():
        raise DataError(
            "every target value is masked: there is no loss to measure; skip this batch"
        )


def _masked_loss(forecast: FloatArray, truth_BH: FloatArray, metric: str) -> FloatArray:
    """Return the mean loss over the known targets, (..., B, H) to (...)."""
    # One mean over all targets. Training averages each window first (agents.selection), which gives
    # another number only where windows miss different numbers of targets.
    error = forecast - truth_BH
    cost = error**2 if metric == "mse" else np.abs(error)
    return np.asarray(np.nanmean(cost, axis=(-2, -1)))
