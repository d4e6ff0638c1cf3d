"""The level of known errors on hand-computed cases and properties."""

from datetime import timedelta

import numpy as np
import pytest

from compevo_core.baselines.known_errors import (
    NO_LEVEL,
    POOLED_WINDOWS,
    RULE_GRID,
    ErrorEvidence,
    LevelRule,
    count_minutes,
    estimate_level,
    split_by_time,
)
from compevo_core.errors import DataError
from tests.support.window_samples import make_window

DAY = 1440
MEAN = LevelRule("mean", 1.0)


def _errors(*values: float) -> np.ndarray:
    return np.array(values).reshape(1, len(values), 1)


def test_the_level_of_one_series_is_the_mean_of_its_errors_each_day_counting_half_of_the_next() -> (
    None
):
    level = estimate_level(MEAN, 1, [0, DAY, 2 * DAY], [0, 0, 0], _errors(4.0, 2.0, 1.0))
    assert level.item() == pytest.approx((1.0 + 0.5 * 2.0 + 0.25 * 4.0) / 1.75)


def test_errors_enter_in_the_order_of_time_whatever_order_they_come_in() -> None:
    sorted_level = estimate_level(MEAN, 1, [0, DAY], [0, 0], _errors(4.0, 1.0))
    assert estimate_level(MEAN, 1, [DAY, 0], [0, 0], _errors(1.0, 4.0)) == sorted_level
    assert sorted_level.item() == pytest.approx((1.0 + 0.5 * 4.0) / 1.5)


def test_a_series_is_drawn_to_the_mean_of_all_and_takes_it_over_without_errors_of_its_own() -> None:
    # Two series with one error each, 0 and 6; the third has none.
    level = estimate_level(MEAN, 3, [0, 0], [0, 1], _errors(0.0, 6.0))[0, :, 0]
    own, pooled = 6.0, 3.0
    assert level[1] == pytest.approx((own + POOLED_WINDOWS * pooled) / (1 + POOLED_WINDOWS))
    assert level[2] == pytest.approx(pooled)


def test_missing_truths_are_no_evidence_and_without_any_the_level_is_zero() -> None:
    level = estimate_level(MEAN, 1, [0, DAY], [0, 0], _errors(3.0, np.nan))
    assert level.item() == pytest.approx(3.0)
    assert estimate_level(MEAN, 1, [0], [0], _errors(np.nan)).item() == 0.0
    assert estimate_level(NO_LEVEL, 1, [0], [0], _errors(3.0)).item() == 0.0


def test_a_kalman_filter_of_the_level_settles_on_the_gain_of_the_mean_with_its_half_life() -> None:
    rng = np.random.default_rng(0)
    error = rng.normal(size=(1, 400, 1))
    levels = [
        estimate_level(LevelRule(form, 20.0), 1, [DAY * i for i in range(400)], [0] * 400, error)
        for form in ("mean", "kalman")
    ]
    assert levels[0] == pytest.approx(levels[1], rel=1e-3)


def test_the_kalman_gain_is_that_of_the_textbook_filter() -> None:
    rule = LevelRule("kalman", 10.0)
    gain = 1 - 0.5 ** (1 / 10)
    noise = gain**2 / (1 - gain)
    mean, variance = 5.0, 1.0
    for error in (1.0, -2.0):
        predicted = variance + noise
        share = predicted / (predicted + 1.0)
        mean, variance = mean + share * (error - mean), (1 - share) * predicted
    level = estimate_level(rule, 1, [0, DAY, 2 * DAY], [0] * 3, _errors(5.0, 1.0, -2.0))
    assert level.item() == pytest.approx(mean)


def test_evidence_of_two_calls_is_that_of_one_and_an_older_window_is_refused() -> None:
    error = np.random.default_rng(0).normal(size=(2, 6, 3))
    minutes = [0, 0, DAY, DAY, 3 * DAY, 3 * DAY]
    rows = [0, 1] * 3
    for rule in RULE_GRID[1:]:
        once, twice = (ErrorEvidence.start(2, 2, 3) for _ in range(2))
        once.add(rule, minutes, rows, error)
        twice.add(rule, minutes[:3], rows[:3], error[:, :3])
        twice.add(rule, minutes[3:], rows[3:], error[:, 3:])
        assert np.array_equal(once.level(), twice.level())
        with pytest.raises(DataError, match="order of time"):
            twice.add(rule, [2 * DAY], [0], error[:, :1])


def test_the_halves_of_a_span_share_no_truth() -> None:
    views = [make_window(day, window_id=f"w{day}").view for day in range(5)]
    first, second = split_by_time(views)
    assert first.tolist() == [0, 1]
    assert second.tolist() == [2, 3, 4]

    # Half a day apart, a target reaches over the middle: its window is in neither half.
    origin = views[0].origin_utc
    close = [make_window(0, origin=origin + i * timedelta(hours=12)).view for i in range(4)]
    first, second = split_by_time(close)
    assert first.tolist() == [0]
    assert second.tolist() == [2, 3]


def test_origins_are_counted_in_minutes() -> None:
    views = [make_window(day).view for day in (0, 1)]
    assert np.diff(count_minutes(views)).tolist() == [DAY]
