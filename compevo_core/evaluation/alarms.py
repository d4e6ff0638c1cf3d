"""Alarms of daily use: errors that drift, and a band that covers too much or too little.

What belongs here: the two tests and their limits. What does not: scores of a day
(``evaluation.issued_scores``), what an alarm does (the asset checks).

Drift is looked for with a self-starting CUSUM chart (Hawkins 1987, The Statistician 36, 299-315):
each day is compared with the mean and deviation of the days before it, so that no long calibration
is needed, and the sums of Page (1954, Biometrika 41, 100-115) tell when errors have grown.

Shapes: D days.
"""

from dataclasses import dataclass
from datetime import date
from math import isfinite, sqrt
from statistics import NormalDist

import numpy as np
import polars as pl
from scipy import stats

from compevo_core.data.arrays import FloatArray
from compevo_core.evaluation.skill import pair_days
from compevo_core.issued import METHOD

ALLOWANCE = 0.5
"""Half of the shift that is to be found soonest, in deviations of a day."""
LIMIT = 11.0
"""A false alarm in about one year in 25, with days as alike as those of 2025 (decision 56)."""
LEARNING_DAYS = 14
"""Days that only make the first mean and deviation."""

BAND = 0.8
COVERAGE_DAYS = 28
COVERAGE_ERROR = 0.05
"""Chance of an alarm on a day whose band is right."""

_LARGEST_SCORE = 4.0  # one day, however bad, is not a drift


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """State of the chart after the last day.

    Attributes:
        n_days: days on the chart.
        sum: the sum after the last day, in deviations of a day.
        since: day on which the sum left zero for the last time; None where it is zero.
        is_alarm: whether the sum is above ``LIMIT``.
    """

    n_days: int
    sum: float
    since: date | None
    is_alarm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of the last days' truths that lay in the band, and what it may be.

    Attributes:
        n_days: days behind it.
        share: the share; None where no day has a band.
        low: smallest share that raises no alarm.
        high: largest share that raises no alarm.
    """

    n_days: int
    share: float | None
    low: float
    high: float

    @property
    def is_alarm(self) -> bool:
        """Whether the share lies outside its limits."""
        return self.share is not None and not self.low <= self.share <= self.high


def find_drift(rows: pl.DataFrame, known_to: str, reference: str) -> Drift:
    """Look for a growth of a population's error, beside a reference's on the same days.

    Only the days of the model that issued last are on the chart: another model is another level.

    Args:
        rows: of ``issued_scores.SCORED_SCHEMA``.
        known_to: which forecasts.
        reference: method whose errors show how hard a day was.
    """
    own = rows.filter((pl.col("known_to") == known_to) & (pl.col("method") == METHOD))
    newest = own.sort("day").tail(1)["artifact_hash"]
    same_model = own.filter(pl.col("artifact_hash").is_in(newest.implode()))
    pairs = pair_days(rows.filter(pl.col("known_to") == known_to), METHOD, reference).join(
        same_model.select("day", "entity"), on=["day", "entity"]
    )

    # Of each series first: a large one would hide the drift of a small one.
    ratio = (pl.col("mae") / pl.col("reference_mae")).log()
    daily = pairs.group_by("day").agg(ratio.mean().alias("ratio")).sort("day")
    finite = daily.filter(pl.col("ratio").is_finite())
    sums = chart_growth(finite["ratio"].to_numpy())
    if not sums.size:
        return Drift(n_days=0, sum=0.0, since=None, is_alarm=False)

    first = int(np.flatnonzero(sums == 0)[-1]) + 1 if (sums == 0).any() else 0
    return Drift(
        n_days=sums.size,
        sum=float(sums[-1]),
        since=finite["day"][first] if sums[-1] > 0 else None,
        is_alarm=bool(sums[-1] > LIMIT),
    )


def chart_growth(values_D: FloatArray) -> FloatArray:
    """Return the upper sum (D,) of a self-starting CUSUM chart.

    Days on which the sum is above the limit are out of control: they do not change the mean and the
    deviation that later days are compared with.
    """
    sums_D = np.zeros(values_D.size)
    count, mean, squares, total = 0, 0.0, 0.0, 0.0

    for day, value in enumerate(values_D):
        if count >= LEARNING_DAYS and squares > 0:
            deviation = sqrt(squares / (count - 1))
            scaled = sqrt(count / (count + 1)) * (value - mean) / deviation
            total = max(0.0, total + _to_normal(scaled, count - 1) - ALLOWANCE)
            sums_D[day] = total
        if total <= LIMIT:
            # Welford's update of mean and sum of squares.
            count += 1
            step = value - mean
            mean += step / count
            squares += step * (value - mean)
    return sums_D


def _to_normal(scaled: float, degrees: int) -> float:
    """Return the standard normal score of a value of Student's t."""
    chance = float(stats.t.cdf(scaled, degrees))
    score = NormalDist().inv_cdf(chance) if 0 < chance < 1 else np.copysign(np.inf, scaled)
    bounded = score if isfinite(score) else np.copysign(_LARGEST_SCORE, scaled)
    return float(np.clip(bounded, -_LARGEST_SCORE, _LARGEST_SCORE))


def measure_coverage(rows: pl.DataFrame, known_to: str) -> Coverage:
    """Return how much of the last days the population's 80 % band covered, and what it may.

    Half-hours and series of a day are alike, so a day counts as one trial: the limits are those of
    a binomial share of as many trials as there are days.

    Args:
        rows: of ``issued_scores.SCORED_SCHEMA``.
        known_to: which forecasts.
    """
    own = rows.filter(
        (pl.col("known_to") == known_to)
        & (pl.col("method") == METHOD)
        & pl.col("coverage_80").is_not_null()
    )
    days = own["day"].unique().sort().tail(COVERAGE_DAYS)
    recent = own.filter(pl.col("day").is_in(days.implode()))
    if not days.len():
        return Coverage(n_days=0, share=None, low=0.0, high=1.0)

    points = recent["n_points"].to_numpy()
    share = float((recent["coverage_80"].to_numpy() * points).sum() / points.sum())
    low, high = stats.binom.interval(1 - COVERAGE_ERROR, days.len(), BAND)
    return Coverage(
        n_days=days.len(), share=share, low=float(low) / days.len(), high=float(high) / days.len()
    )
