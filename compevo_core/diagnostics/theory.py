"""Instruments for the paper's theory (appendix B): what a run does, beside what a theorem says it may do.

What belongs here: pure functions on arrays, called once a round or once a run.
What does not: the update itself, the monotone weighting rule (``selection``), plots. None of these numbers proves a
theorem: each says, for one finite run, whether what a theorem assumes or concludes is seen to fail.
Shapes: A agents, G group, K fixed logics, T rounds, B batch, H horizon.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError

MIN_FIT_POINTS = 8


def _finite(name: str, values: npt.ArrayLike, ndim: int) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != ndim or array.size == 0 or not np.isfinite(array).all():
        raise DataError(
            f"{name} must be {ndim}-dimensional, not empty and finite; got shape {array.shape} with "
            f"{int((~np.isfinite(array)).sum())} non-finite: score every logic before measuring"
        )
    return array


def best_response_gap(group_rewards: npt.ArrayLike, played_rewards: npt.ArrayLike) -> FloatArray:
    """Most reward each agent could gain by playing one of its own sampled logics instead.

    ``group_rewards`` (A, G), ``played_rewards`` (A,) -> (A,) >= 0 in reward units; playing on is always allowed.
    Watches Theorem B.1.1 (existence of a BNE) and its best-response definition: at an equilibrium of the sampled game
    every gap is 0. Does not prove one: G samples are not the strategy space Pi_i, and one batch is not an expectation.
    R_i (eq. 3) is agent i's own error, so the others are held fixed by definition; for the payoff that couples agents
    see ``aggregate_best_response_gap``.
    """
    group_ag, played_a = (
        _finite("group_rewards", group_rewards, 2),
        _finite("played_rewards", played_rewards, 1),
    )
    if len(group_ag) != len(played_a):
        raise DataError(
            f"{len(group_ag)} groups but {len(played_a)} played rewards: give one of each per agent"
        )
    return np.asarray(np.maximum(group_ag.max(axis=1) - played_a, 0.0))


def _masked_loss(forecast: FloatArray, truth_bh: FloatArray, metric: str) -> FloatArray:
    error = forecast - truth_bh
    cost = error**2 if metric == "mse" else np.abs(error)
    return np.asarray(np.nanmean(cost, axis=(-2, -1)))


def aggregate_best_response_gap(
    group_forecasts: npt.ArrayLike,
    played_forecasts: npt.ArrayLike,
    weights: npt.ArrayLike,
    truth: npt.ArrayLike,
    *,
    metric: str = "mse",
) -> FloatArray:
    """Exact drop in the aggregate loss L_pred if agent i alone switched to the best logic of its group.

    ``group_forecasts`` (A, G, B, H), ``played_forecasts`` (A, B, H), ``weights`` (A,), ``truth`` (B, H) with NaN where
    masked -> (A,) >= 0 in units of the metric. Others' forecasts and all weights stay as played.
    Watches the local equilibrium of Theorem B.2.1 step 6 (no unilateral update lowers L_total), for L_pred alone.
    Does not prove it: only sampled logics are tried, the regularisers are left out, and weights would move later.
    """
    if metric not in ("mse", "mae"):
        raise DataError(f"metric {metric!r} is not 'mse' or 'mae': use the metric of the objective")
    group_agbh = _finite("group_forecasts", group_forecasts, 4)
    played_abh, w_a = (
        _finite("played_forecasts", played_forecasts, 3),
        _finite("weights", weights, 1),
    )
    truth_bh = np.asarray(truth, dtype=np.float64)
    a, _, b, h = group_agbh.shape
    if played_abh.shape != (a, b, h) or w_a.shape != (a,) or truth_bh.shape != (b, h):
        raise DataError(
            f"shapes disagree: group {group_agbh.shape}, played {played_abh.shape}, weights {w_a.shape}, "
            f"truth {truth_bh.shape}; expected (A, G, B, H), (A, B, H), (A,), (B, H)"
        )
    if np.isnan(truth_bh).all():
        raise DataError(
            "every target value is masked: there is no loss to measure; skip this batch"
        )
    aggregate_bh = np.einsum("a,abh->bh", w_a, played_abh)
    switched_agbh = aggregate_bh + w_a[:, None, None, None] * (group_agbh - played_abh[:, None])
    played_loss = _masked_loss(aggregate_bh, truth_bh, metric)
    return np.asarray(
        np.maximum(played_loss - _masked_loss(switched_agbh, truth_bh, metric).min(axis=1), 0.0)
    )


def regret_of_sums(played_sums: npt.ArrayLike, fixed_sums: npt.ArrayLike) -> FloatArray:
    """Regret from running sums: ``played_sums`` (N,), ``fixed_sums`` (N, K) -> (N,) = max_k fixed - played."""
    played_n, fixed_nk = (
        _finite("played_sums", played_sums, 1),
        _finite("fixed_sums", fixed_sums, 2),
    )
    if len(played_n) != len(fixed_nk):
        raise DataError(
            f"{len(played_n)} played rewards but fixed logics scored for {len(fixed_nk)}: score all"
        )
    return np.asarray(fixed_nk.max(axis=1) - played_n)


def cumulative_regret(played_rewards: npt.ArrayLike, fixed_rewards: npt.ArrayLike) -> FloatArray:
    """Regret against the best fixed logic in hindsight: max_k sum_s r_k(s) - sum_s r_played(s).

    ``played_rewards`` (T,), ``fixed_rewards`` (T, K): column k is ONE logic scored on every round's batch -> (T,).
    May be negative: an agent that adapts can beat every fixed logic.
    Watches Theorem B.3.2 (Bayesian regret O(sqrt T)) and, against it, Lemma B.4.1 (linear regret of debate).
    Does not prove either: the comparator is the best of K logics, not the BNE value V*, and rewards drift as the
    forecast adapters learn.
    """
    played_t, fixed_tk = (
        _finite("played_rewards", played_rewards, 1),
        _finite("fixed_rewards", fixed_rewards, 2),
    )
    return regret_of_sums(np.cumsum(played_t), np.cumsum(fixed_tk, axis=0))


def cumulative_group_regret(
    played_rewards: npt.ArrayLike, group_rewards: npt.ArrayLike
) -> FloatArray:
    """Regret against each round's best sampled logic: sum_s (max_g r_g(s) - r_played(s)), never falling.

    ``played_rewards`` (T,), ``group_rewards`` (T, G), groups may hold other logics every round -> (T,).
    A stronger comparator than Theorem B.3.2's fixed one (it may switch every round), so it can grow linearly where
    ``cumulative_regret`` does not; it is what can be measured without scoring old logics again.
    """
    group_tg = _finite("group_rewards", group_rewards, 2)
    return np.asarray(np.cumsum(best_response_gap(group_tg, played_rewards)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowthFit:
    """Exponent b of regret ~ T^b with a bootstrap interval; NaN, with a reason, where no fit is possible."""

    exponent: float
    low: float
    high: float
    n_used: int
    n_left_out: int
    reason: str = ""


def _log_fit(rounds: FloatArray, regret: FloatArray) -> tuple[float, float]:
    slope, intercept = np.polyfit(np.log(rounds), np.log(regret), 1)
    return float(slope), float(intercept)


def _resampled_exponents(
    regret_t: FloatArray,
    keep_from: int,
    fit: tuple[float, float],
    samples: int,
    generator: np.random.Generator,
) -> list[float]:
    rounds = np.arange(1, len(regret_t) + 1, dtype=np.float64)
    mean_step = np.diff(math.exp(fit[1]) * rounds ** fit[0], prepend=0.0)
    noise = np.diff(regret_t, prepend=0.0) - mean_step
    block = math.ceil(len(rounds) ** (1 / 3))
    blocks = math.ceil(len(rounds) / block)
    exponents = []
    for _ in range(samples):
        signs = np.repeat(generator.choice([-1.0, 1.0], size=blocks), block)[: len(rounds)]
        path = np.cumsum(mean_step + signs * noise)
        usable = (rounds > keep_from) & (path > 0)
        if usable.sum() >= MIN_FIT_POINTS:
            exponents.append(_log_fit(rounds[usable], path[usable])[0])
    return exponents


def fit_growth_exponent(
    regret: npt.ArrayLike,
    *,
    generator: np.random.Generator,
    samples: int = 1000,
    confidence: float = 0.95,
    burn_in: float = 0.1,
) -> GrowthFit:
    """Fits log regret = a + b log T after the burn-in, with a wild block bootstrap of the round-by-round steps.

    ``regret`` (T,) cumulative. Rounds with regret <= 0 have no logarithm: they are left out and counted. The bootstrap
    flips the sign of whole blocks (length T^(1/3)) of each step's departure from the fitted curve and sums again, so
    the interval knows that cumulative sums are correlated and that noise may shrink.
    Watches Theorem B.3.2: b = 1/2 is its rate, b = 1 is Lemma B.4.1's. An interval below 1 is what sublinear regret
    looks like over this many rounds; it is no asymptotic bound, and holds for this comparator and these data only.
    """
    regret_t = _finite("regret", regret, 1)
    rounds = np.arange(1, len(regret_t) + 1, dtype=np.float64)
    keep_from = math.floor(burn_in * len(regret_t))
    usable = (rounds > keep_from) & (regret_t > 0)
    used, left_out = int(usable.sum()), int((~usable).sum())
    nan = float("nan")
    if used < MIN_FIT_POINTS:
        return GrowthFit(
            exponent=nan,
            low=nan,
            high=nan,
            n_used=used,
            n_left_out=left_out,
            reason=f"fewer than {MIN_FIT_POINTS} rounds with positive regret",
        )
    fit = _log_fit(rounds[usable], regret_t[usable])
    exponents = _resampled_exponents(regret_t, keep_from, fit, samples, generator)
    if not exponents:
        return GrowthFit(
            exponent=fit[0],
            low=nan,
            high=nan,
            n_used=used,
            n_left_out=left_out,
            reason="no bootstrap path stayed positive",
        )
    tail = (1 - confidence) / 2
    low, high = np.quantile(exponents, [tail, 1 - tail])
    return GrowthFit(
        exponent=fit[0], low=float(low), high=float(high), n_used=used, n_left_out=left_out
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientConflict:
    """Main and regularising gradients against each other: norms, cosine, and whether eq. 23g holds."""

    main_norm: float
    strategy_norm: float
    cosine: float
    margin: float
    holds: bool


def gradient_conflict_from_products(
    main_norm: float, strategy_norm: float, inner: float
) -> GradientConflict:
    """Condition eq. 23g, ||main|| > -||strategy|| cos, from the two norms and the inner product.

    ``main`` is the gradient of L_pred + lambda_PG L_pg, ``strategy`` that of the diversity and pruning terms, weights
    included. ``margin`` = ||main|| + ||strategy|| cos; ``holds`` is margin > 0, which is the same as: a small step
    along -(main + strategy) still lowers the main loss. A zero vector has cosine 0.
    Watches Theorem B.2.1 step 2, case 2. Does not prove stability: it is first order, at one point, for one batch.
    """
    if (
        not all(map(math.isfinite, (main_norm, strategy_norm, inner)))
        or main_norm < 0
        or strategy_norm < 0
    ):
        raise DataError(
            f"norms {main_norm}, {strategy_norm} and inner product {inner} must be finite, norms >= 0: "
            "look for a non-finite loss before this"
        )
    scale = main_norm * strategy_norm
    cosine = max(-1.0, min(1.0, inner / scale)) if scale > 0 else 0.0
    margin = main_norm + strategy_norm * cosine
    return GradientConflict(
        main_norm=main_norm,
        strategy_norm=strategy_norm,
        cosine=cosine,
        margin=margin,
        holds=margin > 0,
    )


def gradient_conflict(main: npt.ArrayLike, strategy: npt.ArrayLike) -> GradientConflict:
    """``gradient_conflict_from_products`` of two gradient vectors of equal length (P,)."""
    main_p, strategy_p = _finite("main", main, 1), _finite("strategy", strategy, 1)
    if main_p.shape != strategy_p.shape:
        raise DataError(
            f"gradients of {main_p.size} and {strategy_p.size} parameters: flatten the same parameters"
        )
    return gradient_conflict_from_products(
        float(np.linalg.norm(main_p)), float(np.linalg.norm(strategy_p)), float(main_p @ strategy_p)
    )


def gradient_norm(gradients: Iterable[npt.ArrayLike]) -> float:
    """Euclidean norm of all gradients together: how far from stationary this point is.

    Watches Theorem B.2.1's conclusion, grad L_total = 0, and its Lyapunov step. A small norm on one batch does not show
    convergence, nor tell a minimum from a saddle. The theorem's step-size assumption is not met as printed either:
    eta_0 / sqrt(t) is not square summable; the run's warm-up and cosine decay end at zero instead.
    """
    return math.sqrt(
        sum(float(np.square(np.asarray(g, dtype=np.float64)).sum()) for g in gradients)
    )


def weight_entropy(weights: npt.ArrayLike) -> float:
    """Entropy of the aggregation weights w (A,), in nats: 0 is one agent alone, log A is a plain mean.

    Watches soft selection (Proposition B.5.1, eq. 5): falling entropy is selection at work, exp(entropy) the number of
    agents that count. Says nothing on whether the agents that count are the right ones.
    """
    w_a = _finite("weights", weights, 1)
    if (w_a < 0).any() or not math.isclose(float(w_a.sum()), 1.0, abs_tol=1e-4):
        raise DataError(
            f"weights must be >= 0 and sum to 1, got sum {w_a.sum():.6f}: pass the softmax output"
        )
    positive = w_a[w_a > 0]
    return max(0.0, float(-(positive * np.log(positive)).sum()))
