"""The level of known errors on hand-computed cases and properties."""

from datetime import timedelta

import numpy as np
import pytest

from compevo_core.baselines import known_errors
from compevo_core.data.scaling import Scaler
from compevo_core.errors import DataError
from tests.support import population as small
from tests.support.window_samples import NEW_YEAR, make_window

DAY = 1440
MEAN = known_errors.LevelRule("mean", 1.0)
DRAWN = known_errors.POOLED_WINDOWS / (
    1 + known_errors.POOLED_WINDOWS
)  # towards the mean, of one error


def _errors(*values):
    return np.array(values).reshape(1, len(values), 1)


def estimate_level(rule, series, minutes, rows, error_ABH):
    """Return the level (A, E, H) after the errors of windows."""
    levels = start_levels(rule, series, error_ABH)
    add_errors(levels, minutes, rows, error_ABH)
    return levels.estimate()


def start_levels(rule, series, error_ABH):
    names = [str(row) for row in range(series)]
    scaler = Scaler(mean=dict.fromkeys(names, 0.0), std=dict.fromkeys(names, 1.0))
    return known_errors.ErrorLevels(rule, scaler, len(error_ABH), error_ABH.shape[-1])


def add_errors(levels, minutes, rows, error_ABH):
    """Observe windows whose forecasts of zero have these errors, one forecaster after another."""
    truth = np.zeros(error_ABH.shape[-1])
    windows = [
        make_window(
            origin=NEW_YEAR + timedelta(minutes=at), entity=str(row), y=truth, horizon=len(truth)
        )
        for at, row in zip(minutes, rows, strict=True)
    ]
    levels.observe(windows, -error_ABH.swapaxes(0, 1))


@pytest.mark.parametrize(
    ("minutes", "rows", "errors", "levels"),
    [
        ([0, DAY, 2 * DAY], [0, 0, 0], (4.0, 2.0, 1.0), [(1.0 + 0.5 * 2.0 + 0.25 * 4.0) / 1.75]),
        # Of two series with an error each their mean is 3; the third has none of its own.
        ([0, 0], [0, 1], (0.0, 6.0), [DRAWN * 3.0, 6.0 - DRAWN * 3.0, 3.0]),
        ([0, DAY], [0, 0], (3.0, np.nan), [3.0]),
        ([0], [0], (np.nan,), [0.0]),
    ],
)
def test_levels_decay_and_are_drawn_to_the_mean(minutes, rows, errors, levels):
    found = estimate_level(MEAN, len(levels), minutes, rows, _errors(*errors))
    assert found[0, :, 0] == pytest.approx(levels)


def test_the_kalman_gain_is_the_textbook_filters():
    rule = known_errors.LevelRule("kalman", 10.0)
    gain = 1 - 0.5 ** (1 / 10)
    noise = gain**2 / (1 - gain)
    mean, variance = 5.0, 1.0
    for error in (1.0, -2.0):
        predicted = variance + noise
        share = predicted / (predicted + 1.0)
        mean, variance = mean + share * (error - mean), (1 - share) * predicted
    level = estimate_level(rule, 1, [0, DAY, 2 * DAY], [0] * 3, _errors(5.0, 1.0, -2.0))

    assert level.item() == pytest.approx(mean)


def test_evidence_adds_up_and_older_windows_are_refused():
    error = np.random.default_rng(0).normal(size=(2, 6, 3))
    minutes = [0, 0, DAY, DAY, 3 * DAY, 3 * DAY]
    rows = [0, 1] * 3
    for rule in known_errors.RULE_GRID[1:]:
        once, twice = (start_levels(rule, 2, error) for _ in range(2))
        add_errors(once, minutes, rows, error)
        add_errors(twice, minutes[:3], rows[:3], error[:, :3])
        add_errors(twice, minutes[3:], rows[3:], error[:, 3:])
        assert np.array_equal(once.estimate(), twice.estimate())
        with pytest.raises(DataError, match="order of time"):
            add_errors(twice, [2 * DAY], [0], error[:, :1])


def test_the_halves_of_a_span_share_no_truth():
    views = [make_window(day, window_id=f"w{day}").view for day in range(5)]
    first, second = known_errors.split_by_time(views)
    assert (first.tolist(), second.tolist()) == ([0, 1], [2, 3, 4])

    # Half a day apart, a target reaches over the middle: its window is in neither half.
    origin = views[0].origin_utc
    close = [make_window(0, origin=origin + i * timedelta(hours=12)).view for i in range(4)]
    first, second = known_errors.split_by_time(close)
    assert (first.tolist(), second.tolist()) == ([0], [2, 3])


TRAIN = small.windows("train", 6)
LATER = small.windows("val", 3, first_day=60)
SCALER = Scaler.fit(TRAIN)
RULE = known_errors.LevelRule("mean", 2.0)
HIGH = 40.0


def _one_series(windows):
    return [window for window in windows if window.view.entity == windows[0].view.entity]


def _too_high(windows, by=HIGH):
    """Return forecasts of two forecasters: one too high, one right."""
    truth_NH = np.stack([window.y for window in windows])
    return np.stack([truth_NH + by, truth_NH], axis=1)


def test_levels_are_kept_in_units_of_spread():
    first = _one_series(list(TRAIN))
    other = next(w for w in TRAIN if w.view.entity != first[0].view.entity)
    levels = known_errors.ErrorLevels(RULE, SCALER, 2)
    levels.observe(first, _too_high(first, SCALER.std[first[0].view.entity]))

    lent_H = levels.apply([other.view], np.zeros((1, 2, 48)))[0, 0]
    assert np.allclose(lent_H, -SCALER.std[other.view.entity])


@pytest.mark.parametrize(("unknown", "without"), [(0, 1), (14, 2)])
def test_a_window_gets_the_level_it_knew(unknown, without):
    days = [window.change_view(unknown_steps=unknown) for window in _one_series(list(TRAIN))]
    followed_NPH = known_errors.follow_levels(RULE, SCALER, days, _too_high(days))
    truth_NH = np.stack([window.y for window in days])

    # At the first origin nothing is known, at the second one the error of the first day is; of a
    # view of 17:00 not even that, as the first day ends hours after it was made.
    assert np.allclose(followed_NPH[:without, 0], truth_NH[:without] + HIGH)
    assert np.allclose(followed_NPH[without:, 0], truth_NH[without:])


def test_other_windows_and_unknown_series_are_refused():
    days = list(TRAIN)
    levels = known_errors.ErrorLevels(RULE, SCALER, 2)
    with pytest.raises(DataError, match="every window once"):
        levels.observe(days, _too_high(days)[1:])

    few = Scaler(mean={"X": 0.0}, std={"X": 1.0})
    with pytest.raises(DataError, match="the train split"):
        known_errors.ErrorLevels(RULE, few, 2).observe(days, _too_high(days))
