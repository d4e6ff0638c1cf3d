"""Quantiles of past errors: levels they keep, what they may know, how they adapt."""

from dataclasses import replace

import numpy as np
import pytest

from compevo_core.data import quantiles
from compevo_core.data.quantiles import (
    FEWEST,
    LEVELS,
    MEMORY,
    PUBLISHED_BAND,
    PastErrors,
    _count_independent,
    _read_quantiles,
    estimate_day_quantiles,
    estimate_quantiles,
)
from compevo_core.errors import DataError
from tests.support.window_samples import HALF_HOUR, NEW_YEAR, make_window

RNG = np.random.default_rng(0)
LOW, MEDIAN, HIGH = (LEVELS.index(level) for level in (0.1, 0.5, 0.9))
X = 1000 + np.random.default_rng(9).normal(0, 50, 48)


def days(count, *, first=0, **changes):
    """Return windows of days in a row, all truths zero, so that an error is minus the forecast."""
    kind = sorted(changes)
    return [
        make_window(day, x=X, y=np.zeros(48), **{"window_id": f"{day}|{kind}", **changes})
        for day in range(first, first + count)
    ]


def band(width):
    return dict(zip(PUBLISHED_BAND, (np.full(48, 900.0), np.full(48, 900.0 + width)), strict=True))


def errors_of(windows, error_NH):
    return PastErrors.from_windows(windows, -error_NH)


def last_quantiles(past, window):
    """Return quantiles (Q, H) of one window that is forecast as zero."""
    return estimate_quantiles(past, [window.view], np.zeros((1, 48)))[0]


def test_levels_are_symmetric_and_ascend():
    assert list(LEVELS) == sorted(LEVELS)
    assert np.allclose(np.add(LEVELS, LEVELS[::-1]), 1)


def test_quantiles_of_a_known_distribution_are_right():
    # Uniform errors on [-100, 100]: the quantile at p is 200 p - 100.
    past = errors_of(days(MEMORY), RNG.uniform(-100, 100, (MEMORY, 48)))
    found = last_quantiles(past, make_window(MEMORY, x=X)).mean(axis=1)
    assert found == pytest.approx([200 * level - 100 for level in LEVELS], abs=8)


def test_bands_cover_their_share_despite_growing_errors():
    # Errors of winter, then of a summer three times as wild: the levels follow.
    windows = days(300)
    error_NH = RNG.normal(0, 10, (300, 48)) * np.where(np.arange(300) < 150, 1, 3)[:, None]
    views = [window.view for window in windows]
    found = estimate_quantiles(errors_of(windows, error_NH), views, np.zeros((300, 48)))

    def share_inside(low, high, rows):
        lower, upper = (found[rows, LEVELS.index(level)] for level in (low, high))
        return float(((lower <= error_NH[rows]) & (error_NH[rows] <= upper)).mean())

    for rows in (slice(60, 150), slice(170, 300)):
        assert share_inside(0.1, 0.9, rows) == pytest.approx(0.8, abs=0.03)
        assert share_inside(0.025, 0.975, rows) == pytest.approx(0.95, abs=0.025)
    # Before anything was learnt of the change it was missed: the test would see a look ahead.
    assert share_inside(0.1, 0.9, slice(150, 152)) < 0.5


def test_bands_of_overlapping_windows_fit_the_errors():
    # A forecast of 48 steps at each of 300 steps, as of daily data: each truth is in 48 windows.
    step_error = RNG.normal(0, 10, 348)
    error_NH = np.stack([step_error[first : first + 48] for first in range(300)])
    starts = [NEW_YEAR + step * HALF_HOUR for step in range(300)]
    windows = days(300, origin=starts[0])
    windows = [w.change_view(origin_utc=start) for w, start in zip(windows, starts, strict=True)]
    views = [window.view for window in windows]
    found = estimate_quantiles(errors_of(windows, error_NH), views, np.zeros((300, 48)))[120:]

    width = (found[:, HIGH] - found[:, LOW]).mean(axis=1)
    assert width.min() > 20 and width.max() < 31  # 25.6 of normal errors


def test_windows_count_by_how_alike_they_err():
    wave_N = 10 * np.sin(np.arange(60) / 20)
    noise_N = RNG.normal(0, 10, 60)
    for error_N, least, most in ((noise_N, 40, 60), (wave_N + noise_N, 15, 45), (wave_N, 2, 2.5)):
        error_NH = np.repeat(error_N[:, None], 48, axis=1)
        error_NH[0, :5] = np.nan
        assert least <= _count_independent(error_NH, apart=2.0) <= most
    assert _count_independent(np.zeros((60, 48)), apart=2.0) == 2


def test_crossed_levels_give_no_crossing_quantiles():
    passed = np.array([0.06, 0.05, 0.1, 0.25, 0.2])
    found = _read_quantiles(RNG.uniform(-100, 100, (MEMORY, 48)), passed)
    assert (np.diff(found, axis=0) >= 0).all() and found.shape == (len(LEVELS), 48)


@pytest.mark.parametrize("unknown", [0, 14])
def test_only_errors_of_ended_windows_count(unknown):
    windows = days(40, unknown_steps=unknown)
    error_NH = RNG.normal(0, 10, (40, 48))
    asked = windows[30].view
    # At midnight the day before has ended, at 17:00 it has not.
    n_ended = 30 if unknown == 0 else 29
    assert windows[n_ended - 1].view.end_utc <= asked.information_until
    assert windows[n_ended].view.end_utc > asked.information_until

    poisoned = error_NH.copy()
    poisoned[n_ended:] = 1e9

    def estimate(some, error_NH):
        return last_quantiles(errors_of(some, error_NH), windows[30])

    found = estimate(windows, error_NH)
    assert np.array_equal(found, estimate(windows, poisoned))
    assert np.array_equal(found, estimate(windows[:n_ended], error_NH[:n_ended]))
    # The last error that was known does count.
    poisoned[n_ended - 1] = 1e9
    assert not np.array_equal(found, estimate(windows, poisoned))


def test_views_of_less_knowledge_have_own_errors():
    windows = [*days(30), *days(30, unknown_steps=14)]
    errors = [RNG.normal(0, spread, (30, 48)) for spread in (1, 100)]
    past = errors_of(windows, np.concatenate(errors))
    (later,) = days(1, first=30)
    (later_afternoon,) = days(1, first=31, unknown_steps=14)
    midnight, evening = (np.ptp(last_quantiles(past, w)) for w in (later, later_afternoon))
    assert evening > 20 * midnight


def test_a_forecast_ignores_others_and_past_order():
    windows = days(40) + days(40, entity="SA1")
    forecast_NH = RNG.normal(0, 10, (80, 48))
    past = PastErrors.from_windows(windows, forecast_NH)
    views = [window.view for window in windows]
    together = estimate_quantiles(past, views, forecast_NH)

    mixed = RNG.permutation(80)
    shuffled = PastErrors.from_windows([windows[i] for i in mixed], forecast_NH[mixed])
    for row in (0, FEWEST - 1, 20, 39, 41, 79):
        alone = estimate_quantiles(shuffled, [views[row]], forecast_NH[row : row + 1])
        assert np.array_equal(alone[0], together[row], equal_nan=True)


def test_bands_widen_where_the_publisher_is_unsure():
    windows = [w.change_view(step_covariates=band(100.0)) for w in days(MEMORY)]
    past = errors_of(windows, RNG.normal(0, 10, (MEMORY, 48)))
    asked = [make_window(MEMORY, x=X, step_covariates=band(one)) for one in (100.0, 400.0)]
    sure, unsure = (np.ptp(last_quantiles(past, window)) for window in asked)
    assert unsure == pytest.approx(2 * sure)  # the root of four

    # A day without a published band: the errors in megawatts, as they are.
    assert np.ptp(last_quantiles(past, make_window(MEMORY, x=X))) == pytest.approx(sure, rel=0.2)


def test_a_short_past_borrows_scaled_errors():
    windows = days(MEMORY) + days(FEWEST - 1, first=MEMORY - FEWEST + 1, entity="SA1")
    error_NH = RNG.normal(0, 10, (len(windows), 48))
    past = errors_of(windows, error_NH)
    own = last_quantiles(past, make_window(MEMORY, x=X, entity="NSW1"))
    calm = last_quantiles(past, make_window(MEMORY, x=1000 + (X - 1000) / 5, entity="SA1"))
    assert np.ptp(calm) == pytest.approx(np.ptp(own) / 5, rel=0.2)

    # With one window more it has quantiles of its own.
    (more,) = days(1, first=MEMORY, entity="SA1")
    past = errors_of([*windows, more], np.concatenate([error_NH, RNG.normal(0, 10, (1, 48))]))
    calm = last_quantiles(past, make_window(MEMORY + 1, x=1000 + (X - 1000) / 5, entity="SA1"))
    assert np.ptp(calm) > np.ptp(own) / 2


def test_borrowed_errors_are_computed_once_an_instant(spy):
    calls = spy(quantiles, "_pool_series")
    past = errors_of(days(FEWEST), RNG.normal(0, 10, (FEWEST, 48)))
    views = [
        make_window(FEWEST, x=spread * X, window_id=name, entity=name).view
        for spread, name in enumerate("abc", start=1)
    ]
    found = estimate_quantiles(past, views, np.zeros((3, 48)))
    assert len(calls) == 1
    alone = [estimate_quantiles(past, [view], np.zeros((1, 48)))[0] for view in views]

    assert np.array_equal(found, alone)
    assert np.allclose(found[2], 3 * found[0])


def test_without_a_past_there_are_no_quantiles():
    few = errors_of(days(FEWEST - 1), RNG.normal(0, 10, (FEWEST - 1, 48)))
    none = errors_of([], np.zeros((0, 48)))
    for past in (few, none):
        assert np.isnan(last_quantiles(past, make_window(MEMORY, x=X))).all()


def test_missing_truths_are_no_errors():
    truth = np.zeros(48)
    truth[10:20] = np.nan
    windows = [replace(window, y=truth) for window in days(MEMORY)]
    error_H = np.where(np.arange(48) < 15, 5.0, 9.0)
    past = errors_of(windows, np.tile(error_H, (MEMORY, 1)))
    # Steps in the middle of the gap have no error: the nearest one speaks for them.
    assert (last_quantiles(past, make_window(MEMORY, x=X)) == error_H).all()

    windows[::2] = days(MEMORY)[::2]
    past = errors_of(windows, np.full((MEMORY, 48), 5.0))
    assert (last_quantiles(past, make_window(MEMORY, x=X)) == 5.0).all()
    nothing = [replace(window, y=np.full(48, np.nan)) for window in windows]
    assert len(errors_of(nothing, np.zeros((MEMORY, 48)))) == 0


def test_repeated_and_unknown_forecasts_are_refused():
    windows = days(20)
    with pytest.raises(DataError, match="every window once"):
        errors_of(windows[:2], np.zeros((1, 48)))
    with pytest.raises(DataError, match="21 windows, 20"):
        errors_of([*windows, windows[-1]], np.zeros((21, 48)))
    past = errors_of(windows, RNG.normal(0, 10, (20, 48)))
    with pytest.raises(DataError, match="for every step"):
        estimate_quantiles(past, [make_window(20).view], np.full((1, 48), np.nan))


def test_daily_mean_and_peak_have_own_bands():
    # Half of an error is the day's, half the step's: neither quantity errs like a step.
    windows = days(400)
    error_NH = RNG.normal(0, 50, (400, 1)) + RNG.normal(0, 50, (400, 48))
    forecast_NH = np.zeros((400, 48))
    forecast_NH[:, 30] = 60.0
    views = [window.view for window in windows]
    past = replace(errors_of(windows, error_NH), forecast_NH=forecast_NH)
    found = estimate_day_quantiles(past, views, forecast_NH)
    truth_NH = forecast_NH + error_NH

    by_step = estimate_quantiles(past, views, forecast_NH)
    for name, truth_N in (("mean", truth_NH.mean(axis=1)), ("peak", truth_NH.max(axis=1))):
        inside = (found[name][:, LOW] <= truth_N) & (truth_N <= found[name][:, HIGH])
        assert 0.75 < inside[MEMORY:].mean() < 0.85, name
        assert np.isnan(found[name][: FEWEST - 1]).all()
    width = (found["mean"][:, HIGH] - found["mean"][:, LOW])[MEMORY:].mean()
    assert width < 0.8 * (by_step[MEMORY:, HIGH] - by_step[MEMORY:, LOW]).mean()


def test_a_day_has_the_errors_of_days_like_it():
    # Every other day is forecast higher, and errs ten times as far.
    high_N1 = np.arange(2 * MEMORY)[:, None] % 2
    forecast_NH = np.broadcast_to(100.0 * high_N1, (2 * MEMORY, 48))
    windows = [replace(w, y=y) for w, y in zip(days(2 * MEMORY), forecast_NH, strict=True)]
    error_N1 = RNG.normal(0, 1 + 9 * high_N1)
    past = PastErrors.from_windows(windows, forecast_NH)
    past = replace(past, error_NH=np.broadcast_to(error_N1, forecast_NH.shape))

    views = [make_window(2 * MEMORY, x=X).view] * 2
    found = estimate_day_quantiles(past, views, np.array([np.zeros(48), np.full(48, 100.0)]))

    for name in ("mean", "peak"):
        low, high = np.ptp(found[name][:, [LOW, HIGH]], axis=1)
        assert 5 < high / low < 20, name


def test_gapped_windows_still_give_a_daily_band():
    # Every window lacks a quarter of its steps, at another place.
    gaps = [np.where((np.arange(48) + 7 * day) % 48 < 12, np.nan, 0.0) for day in range(MEMORY)]
    windows = [replace(w, y=gap) for w, gap in zip(days(MEMORY), gaps, strict=True)]
    error_N1 = RNG.normal(0, 10, (MEMORY, 1))
    past = errors_of(windows, np.broadcast_to(error_N1, (MEMORY, 48)))
    band = estimate_day_quantiles(past, [make_window(MEMORY, x=X).view], np.zeros((1, 48)))
    expected = np.quantile(error_N1, LEVELS, method="weibull")
    assert np.allclose(band["mean"], expected) and np.allclose(band["peak"], expected)


def test_the_day_knows_only_ended_windows():
    windows, later = days(30), days(30, first=30)
    error_NH = RNG.normal(0, 10, (30, 48))
    view, at = windows[-1].view, np.zeros((1, 48))
    known = estimate_day_quantiles(errors_of(windows, error_NH), [view], at)
    more = errors_of([*windows, *later], np.concatenate([error_NH, np.full((30, 48), 1e6)]))
    assert np.array_equal(estimate_day_quantiles(more, [view], at)["mean"], known["mean"])
    own = errors_of(windows[:-1], error_NH[:-1])
    assert np.array_equal(estimate_day_quantiles(own, [view], at)["peak"], known["peak"])


def add_learnt(past):
    """Return the errors as they were, and as those that a forecast has learnt from."""
    return past, replace(past, is_learnt=True)


def test_a_corrected_forecast_lies_in_its_band():
    # It was too low on every past day, by 20 to 40, and has learnt from these days since.
    past, learnt = add_learnt(errors_of(days(MEMORY), RNG.uniform(20, 40, (MEMORY, 48))))
    window = make_window(MEMORY, x=X)

    assert last_quantiles(past, window)[LOW].min() > 0  # as long as it has not, its errors go on
    found_QH = last_quantiles(learnt, window)
    assert (found_QH[LOW] < -30).all() and (found_QH[HIGH] > 30).all()
    for name in ("mean", "peak"):
        view, zero = [window.view], np.zeros((1, 48))
        before_Q, day_Q = (estimate_day_quantiles(p, view, zero)[name][0] for p in (past, learnt))
        assert before_Q[LOW] > 0 and day_Q[LOW] < 0 < day_Q[HIGH]


def test_learnt_errors_move_no_mean():
    # Too low on most days, and too much so for the errors' own median to be the forecast.
    past = errors_of(days(MEMORY), RNG.normal(5, 10, (MEMORY, 1)) + RNG.normal(0, 9, (MEMORY, 48)))
    view, at = [make_window(MEMORY, x=X).view], np.full((1, 48), 70.0)

    plain, learnt = (estimate_day_quantiles(errors, view, at) for errors in add_learnt(past))

    assert plain["mean"][0, MEDIAN] > 72
    assert learnt["mean"][0, MEDIAN] == pytest.approx(70.0)
    np.testing.assert_allclose(np.diff(learnt["mean"]), np.diff(plain["mean"]))


def test_learnt_errors_keep_their_skew():
    error_NH = np.exp(RNG.normal(0, 1, (FEWEST, 48))) - 1
    past = errors_of(days(FEWEST), error_NH)
    window = make_window(FEWEST, x=X)
    plain_QH, wide_QH = (last_quantiles(errors, window) for errors in add_learnt(past))
    assert (wide_QH[-1] > -2 * wide_QH[0]).mean() > 0.9
    assert (np.ptp(wide_QH[[LOW, HIGH]], axis=0) >= np.ptp(plain_QH[[LOW, HIGH]], axis=0)).all()


@pytest.mark.parametrize(
    ("some", "each", "is_moved"),
    [([10.0, -10.0], FEWEST, False), ([-4.0, 20.0, 4.0, 12.0], 1, True)],
)
def test_a_median_that_has_not_helped_moves_nothing(some, each, is_moved):
    # Errors that change their sign as soon as they make a median, then errors mostly above zero.
    error_N = np.resize(np.repeat(some, each), MEMORY)
    past = errors_of(days(MEMORY), np.repeat(error_N[:, None], 48, axis=1))
    window = make_window(MEMORY, x=X)
    before_H, found_H = (last_quantiles(errors, window)[MEDIAN] for errors in add_learnt(past))
    assert (before_H > 0).all() and np.array_equal(found_H, before_H * is_moved)
