"""Alarms: quiet while nothing changes, loud where errors grow or a band misses."""

from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.evaluation.alarms import (
    LIMIT,
    chart_growth,
    find_drift,
    measure_coverage,
)
from tests.support.scored_samples import FIRST_DAY, make_rows

DAYS = 200


def draw_days(seed: int, shift: float = 0.0, days: int = DAYS, likeness: float = 0.25):
    """Days alike as those of 2025 (lag one: 0.25), with a shift of the second half."""
    noise = np.random.default_rng(seed).normal(size=days)
    values = np.empty(days)
    values[0] = noise[0]
    for day in range(1, days):
        values[day] = likeness * values[day - 1] + np.sqrt(1 - likeness**2) * noise[day]
    values[days // 2 :] += shift
    return values


def test_false_alarms_are_as_rare_as_the_limit_promises() -> None:
    # 40 years: one in 25 has an alarm on average.
    alarms = sum(chart_growth(draw_days(seed, days=365)).max() > LIMIT for seed in range(40))
    assert alarms <= 5


def test_a_growth_by_one_deviation_is_found_within_weeks() -> None:
    delays = []
    for seed in range(20):
        sums = chart_growth(draw_days(seed, shift=1.0))
        late = np.flatnonzero(sums[DAYS // 2 :] > LIMIT)
        delays.append(late[0] if late.size else DAYS)
    assert np.median(delays) < 35


def test_a_smaller_error_and_one_terrible_day_are_no_drift() -> None:
    assert chart_growth(draw_days(1, shift=-3.0))[DAYS // 2 :].max() < LIMIT
    values = draw_days(2)
    values[150] += 100.0
    assert chart_growth(values).max() < LIMIT


def make_errors(log_ratio: np.ndarray, model: str = "m", **options: object) -> pl.DataFrame:
    errors = {"compevo": list(100 * np.exp(log_ratio)), "published": [100.0] * log_ratio.size}
    return make_rows(errors, model=model, **options)  # type: ignore[arg-type]


def test_drift_is_of_the_error_beside_that_of_the_reference() -> None:
    drifted = find_drift(make_errors(0.1 * draw_days(0, shift=2.0)), "issue-time", "published")
    assert drifted.is_alarm and drifted.n_days == DAYS
    assert drifted.since is not None
    assert abs((drifted.since - FIRST_DAY).days - DAYS // 2) < 10

    # Where days are hard for both, nothing has drifted.
    hard = make_errors(0.1 * draw_days(0)).with_columns(
        pl.col("mae")
        * pl.when(pl.col("day") > FIRST_DAY + timedelta(days=100)).then(3.0).otherwise(1)
    )
    assert not find_drift(hard, "issue-time", "published").is_alarm


def test_another_model_starts_another_chart() -> None:
    old = make_errors(0.1 * draw_days(0, shift=2.0))
    new = make_errors(0.1 * draw_days(3, days=30), "n", first_day=FIRST_DAY + timedelta(days=DAYS))
    found = find_drift(pl.concat([old, new]), "issue-time", "published")
    assert (found.n_days, found.is_alarm) == (30, False)


def test_nothing_scored_raises_no_alarm() -> None:
    empty = make_rows({})
    assert find_drift(empty, "midnight", "published").n_days == 0
    assert not measure_coverage(empty, "midnight").is_alarm


@pytest.mark.parametrize(
    ("share", "is_alarm"), [(0.8, False), (0.66, False), (0.6, True), (0.95, True)]
)
def test_the_band_must_cover_what_days_as_trials_allow(share: float, is_alarm: bool) -> None:
    days = 60
    # The first days were far off; they are no longer among the last 28.
    coverage = [0.0] * (days - 28) + [share] * 28
    found = measure_coverage(make_rows({"compevo": [1.0] * days}, coverage=coverage), "issue-time")
    assert (found.n_days, found.share) == (28, pytest.approx(share))
    assert (found.low, found.high) == (18 / 28, 26 / 28)
    assert found.is_alarm is is_alarm
