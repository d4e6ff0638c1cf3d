"""The usual week, deviations from it, and days that surprise, of the member and of the ridge."""

import numpy as np
import pytest

from compevo_core.baselines import fit_baseline, is_applicable, load_baseline
from compevo_core.baselines.features import measure_surprise, split_weeks
from compevo_core.errors import CheckpointMismatch, DataError
from tests.support.window_samples import make_set, make_window

HOURS, DAYS = 24, 420
WEEK = np.array([0.0, 40, 40, 40, 30, -60, -90])
SHAPE = 100 * np.sin(2 * np.pi * np.arange(HOURS) / HOURS)


def make_windows(level_D, first=14, last=None, split="train", growth=0.0, is_known=True):
    """Return a window a day of a load with a week, a day and a level."""
    values = (1000 + (np.resize(WEEK, len(level_D)) + level_D)[:, None] + SHAPE).ravel()
    values += np.random.default_rng(1).normal(0, 2, len(values))
    values *= np.exp(growth * np.arange(len(values)) / len(values))

    def make(day):
        start = day * HOURS
        facts = {"step_minutes": 60, "horizon": HOURS, "split": split}
        y = values[start : start + HOURS] if is_known else np.full(HOURS, np.nan)
        return make_window(day, x=values[start - 14 * HOURS : start], y=y, **facts)

    return make_set([make(day) for day in range(first, last or len(level_D))])


def wander(days=DAYS):
    """Return a level that follows the day before."""
    noise = np.random.default_rng(0).normal(0, 20, days)
    for day in range(1, days):
        noise[day] += 0.8 * noise[day - 1]
    return noise


def find_errors(name, train, test):
    return np.abs(fit_baseline(name, train).predict(test.views()) - test.truth()).mean(axis=1)


def test_a_week_goes_on_and_deviations_fade(tmp_path):
    level_D = wander()
    train, test = make_windows(level_D, last=350), make_windows(level_D, 350, split="test")
    errors = {name: find_errors(name, train, test).mean() for name in ("weekly", "persistence")}
    own = find_errors("double-season", train, test).mean()
    # The new part of a day's level, 20 of standard deviation, errs by 16.
    assert own < 20 and own < 0.7 * min(errors.values())

    fitted = fit_baseline("double-season", train)
    fitted.save(tmp_path)
    again = load_baseline(tmp_path).predict(test.views())
    np.testing.assert_array_equal(again, fitted.predict(test.views()))


@pytest.mark.parametrize("name", ["double-season", "calendar-ridge"])
def test_the_day_after_a_surprise_does_not_hang_on_it(name):
    level_D, rng = wander(910), np.random.default_rng(100)
    low = np.flatnonzero(rng.random(910) < 0.03)
    level_D[low] -= rng.uniform(80, 260, len(low))
    train, test = make_windows(level_D, last=700), make_windows(level_D, 700, split="test")
    after = [day - 699 for day in low if 700 <= day < 909 and day + 1 not in low]
    # Without columns of its own, such a day pulls the next one down by 75.
    assert find_errors(name, train, test)[after].mean() < 55


def test_a_surprise_is_a_jump_and_not_a_level():
    days = np.zeros((14, HOURS))
    days[:, 0] = np.arange(14) % 3
    calm = measure_surprise(days)
    days[-5:] += 100.0  # a heat wave that began four days ago
    assert calm.tolist() == measure_surprise(days).tolist() == [0.0, 0.0]
    days[-1] -= 150.0
    near, far = measure_surprise(days)
    assert 0.9 < far < near < 1.0

    usual_W, left_DS = split_weeks(np.repeat([10.0, 20.0], 7 * HOURS), HOURS)
    assert usual_W == pytest.approx((0.7 * 10 + 20) / 1.7)
    assert left_DS[0] == pytest.approx(10 - usual_W[0]) and left_DS.shape == (14, HOURS)


def test_logarithms_are_taken_where_a_week_grows_with_the_level():
    level_D = np.zeros(DAYS)
    train = make_windows(level_D, last=350, growth=9.0)
    test = make_windows(level_D, 350, split="test", growth=9.0)
    share = find_errors("double-season", train, test) / test.truth().mean(axis=1)
    assert share.mean() < 0.005


def test_short_inputs_and_series_without_a_target_are_left_out():
    windows = make_windows(np.zeros(DAYS), last=60)
    assert is_applicable("double-season", windows)
    short = make_set([w.change_view(x=w.view.x[HOURS:]) for w in windows])
    days = make_set([make_window(0, step_minutes=1440)])
    assert not is_applicable("double-season", short) and not is_applicable("double-season", days)

    with pytest.raises(DataError, match="measured target"):
        fit_baseline("double-season", make_windows(np.zeros(DAYS), last=60, is_known=False))


def test_a_ridge_of_other_columns_is_not_used():
    windows = make_windows(np.zeros(DAYS), last=60)
    fitted = fit_baseline("calendar-ridge", windows)
    short = windows[0].change_view(x=windows[0].view.x[HOURS:])
    with pytest.raises(CheckpointMismatch, match="fit it again"):
        fitted.predict([short.view])
