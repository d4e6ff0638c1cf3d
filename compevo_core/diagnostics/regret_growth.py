"""Fit how a run's regret grows with its rounds: the exponent b of regret ~ T^b, with an interval.

What belongs here: the fit, its bootstrap, and the summary that a run's ``metrics.json`` holds. What
does not: the regret itself (``diagnostics.regret``), what the exponent means to a reader
(``report.theory_section``).

Theorem B.3.2 says b = 1/2 (Eq. 48), Lemma B.4.1 says b = 1 for debate. An interval below 1 is what
sublinear regret looks like over the rounds of this run; it is no asymptotic bound, and it holds for
this comparator and these data only.

Shapes: A agents, T rounds.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.diagnostics.theory import as_finite_array

MIN_FIT_POINTS = 8  # rounds; a line through fewer says little about an exponent
_BOOTSTRAP_STREAM = 3  # keeps these draws apart from those of training with the same seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowthFit:
    """The exponent of one curve with a bootstrap interval.

    Attributes:
        exponent: b; NaN where no fit is possible.
        low: lower end of the interval; NaN where no interval is possible.
        high: upper end.
        n_used: rounds that the fit used.
        n_left_out: rounds of the burn-in, and rounds whose regret has no logarithm.
        reason: why a number is NaN; empty otherwise.
    """

    exponent: float
    low: float
    high: float
    n_used: int
    n_left_out: int
    reason: str = ""


def fit_growth_exponent(
    regret: npt.ArrayLike,
    *,
    generator: np.random.Generator,
    samples: int = 1000,
    confidence: float = 0.95,
    burn_in: float = 0.1,
) -> GrowthFit:
    """Fit log regret = a + b log T after the burn-in, with a wild block bootstrap of the steps.

    The bootstrap flips the sign of whole blocks of each step's departure from the fitted curve and
    sums again, so that the interval allows for the correlation of cumulative sums and for noise
    that shrinks over the run.

    Args:
        regret: (T,) cumulative regret.
        generator: source of the bootstrap's signs.
        samples: bootstrap paths.
        confidence: share of the paths that the interval covers.
        burn_in: share of the rounds to leave out at the start.

    Raises:
        DataError: a regret is not finite.
    """
    regret_T = as_finite_array("regret", regret, 1)

    # The first rounds show the start, warm-up included, and not the growth.
    first_round = math.floor(burn_in * len(regret_T))
    is_usable_T = _usable_rounds(regret_T, first_round)
    n_used = int(is_usable_T.sum())
    n_left_out = len(regret_T) - n_used

    if n_used < MIN_FIT_POINTS:
        return GrowthFit(
            exponent=math.nan,
            low=math.nan,
            high=math.nan,
            n_used=n_used,
            n_left_out=n_left_out,
            reason=f"fewer than {MIN_FIT_POINTS} rounds with positive regret",
        )

    slope, intercept = _fit_log_line(_round_numbers(regret_T)[is_usable_T], regret_T[is_usable_T])
    exponents = _resample_exponents(regret_T, first_round, slope, intercept, samples, generator)
    if not exponents:
        return GrowthFit(
            exponent=slope,
            low=math.nan,
            high=math.nan,
            n_used=n_used,
            n_left_out=n_left_out,
            reason="no bootstrap path stayed positive",
        )

    tail = (1 - confidence) / 2
    low, high = np.quantile(exponents, [tail, 1 - tail])
    return GrowthFit(
        exponent=slope, low=float(low), high=float(high), n_used=n_used, n_left_out=n_left_out
    )


def summarize_regret_growth(
    regrets: Sequence[Sequence[float] | None], seed: int
) -> dict[str, Any] | None:
    """Fit the regret of each agent and of the agents' mean, as plain values for ``metrics.json``.

    Args:
        regrets: the regret of all agents, (A,), for each of T rounds.
        seed: of the run; the same run gives the same interval.

    Returns:
        ``agents`` and ``mean``, each fit by its field names, null for NaN; None if a round was not
        scored against fixed logics.
    """
    if not regrets or any(row is None for row in regrets):
        return None

    regret_TA = np.asarray(regrets, dtype=np.float64)
    # One generator for all fits: their order is part of the result.
    generator = np.random.default_rng([seed, _BOOTSTRAP_STREAM])
    return {
        "agents": [
            _to_json(fit_growth_exponent(regret_T, generator=generator)) for regret_T in regret_TA.T
        ],
        "mean": _to_json(fit_growth_exponent(regret_TA.mean(axis=1), generator=generator)),
    }


def _round_numbers(regret_T: FloatArray) -> FloatArray:
    return np.arange(1, len(regret_T) + 1, dtype=np.float64)


def _usable_rounds(regret_T: FloatArray, first_round: int) -> npt.NDArray[np.bool_]:
    """Return which rounds lie after the burn-in and have a logarithm."""
    return np.asarray((_round_numbers(regret_T) > first_round) & (regret_T > 0))


def _fit_log_line(rounds: FloatArray, regret: FloatArray) -> tuple[float, float]:
    # A power law is a line in logarithms, with the exponent as its slope.
    slope, intercept = np.polyfit(np.log(rounds), np.log(regret), 1)
    return float(slope), float(intercept)


def _resample_exponents(
    regret_T: FloatArray,
    first_round: int,
    slope: float,
    intercept: float,
    samples: int,
    generator: np.random.Generator,
) -> list[float]:
    """Return the exponents of bootstrap paths that leave enough rounds for a fit."""
    rounds_T = _round_numbers(regret_T)
    # Steps, not sums: the departures of single rounds are what may be treated as noise.
    fitted_step_T = np.diff(math.exp(intercept) * rounds_T**slope, prepend=0.0)
    noise_T = np.diff(regret_T, prepend=0.0) - fitted_step_T

    # Blocks of T^(1/3) rounds keep the short-range correlation, the usual rate for a block length.
    block = math.ceil(len(rounds_T) ** (1 / 3))
    n_blocks = math.ceil(len(rounds_T) / block)

    exponents = []
    for _ in range(samples):
        signs = generator.choice([-1.0, 1.0], size=n_blocks)
        signs_T = np.repeat(signs, block)[: len(rounds_T)]
        path_T = np.cumsum(fitted_step_T + signs_T * noise_T)

        # A path may fall below zero where the regret did not.
        is_usable_T = _usable_rounds(path_T, first_round)
        if is_usable_T.sum() >= MIN_FIT_POINTS:
            exponents.append(_fit_log_line(rounds_T[is_usable_T], path_T[is_usable_T])[0])
    return exponents


def _to_json(fit: GrowthFit) -> dict[str, Any]:
    # JSON has no NaN: the reader finds null and the reason.
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in dataclasses.asdict(fit).items()
    }
