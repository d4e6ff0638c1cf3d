"""Exponential smoothing: the form of a series, its season, and windows of every level."""

from importlib.util import find_spec

import numpy as np
import pytest

from compevo_core.baselines import fit_baseline, smoothing
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from tests.support.window_samples import make_set, make_window

pytestmark = pytest.mark.skipif(find_spec("statsforecast") is None, reason="an optional library")
STEPS = np.arange(96.0)
DAYS = {"step_minutes": 1440, "dataset": "bitcoin"}


def make_days(number, values, **fields):
    return make_window(number, x=values[:48], y=values[48:], **DAYS, **fields)


@pytest.mark.parametrize(
    "values",
    [
        900 + 2.0 * STEPS + 50 * np.sin(2 * np.pi * STEPS / 7),
        # Sales that are zero on every seventh day: no form with a factor fits them.
        np.where(STEPS % 7 == 6, 0.0, 20.0 + 5 * (STEPS % 7)),
    ],
)
def test_a_trend_and_a_week_go_on(values):
    rough = values + np.random.default_rng(0).normal(0, 0.01, 96)
    train = WindowSet([make_days(i, rough) for i in range(2)], dataset="bitcoin")
    fitted = fit_baseline("ets", train)
    # Another level and another place in the week than the form was chosen on, much later.
    moved = make_days(400, np.roll(values, 3) if values.min() == 0 else values + 300, split="test")
    assert np.abs(fitted.predict([moved.view])[0] - moved.y).mean() < 3  # of changes up to 50


def test_a_long_season_is_removed_and_restored():
    wave = 900 + 80 * np.sin(2 * np.pi * STEPS / 48)
    noise = np.random.default_rng(0).normal(0, 1, 144)
    days = np.concatenate([wave, wave[:48]]) + noise
    fields = {"x": days[:96], "y": days[96:], "horizon": 48}
    fitted = smoothing.Ets.fit(make_set([make_window(0, **fields)]))
    view = make_window(5, split="test", **(fields | {"x": days[:96] + 40})).view
    np.testing.assert_allclose(fitted.predict([view])[0], wave[:48] + 40, atol=6)


def test_a_level_continues_and_unknown_series_are_refused():
    level = WindowSet([make_days(0, np.full(96, 7.0))], dataset="bitcoin")
    fitted = smoothing.Ets.fit(level)
    np.testing.assert_allclose(fitted.predict(level.views())[0], 7.0)
    other = make_days(1, STEPS, entity="other", split="test").view
    with pytest.raises(DataError, match="belongs to other"):
        fitted.predict([other])


def test_the_day_of_hourly_data_is_seasonal():
    hours = np.arange(384)
    level = np.random.default_rng(2).normal(0, 6, 384).cumsum()
    values = 1000 + 200 * np.sin(2 * np.pi * hours / 24) + level
    fields = {"step_minutes": 60, "x": values[:336], "y": values[336:]}
    train = make_set([make_window(0, **fields)])
    view = make_window(5, split="test", **fields).view
    forecast_H = smoothing.Ets.fit(train).predict([view])[0]
    # Without a season the last value goes on: 130 away in the mean.
    assert np.abs(forecast_H - values[336:]).mean() < 60


def test_a_lookback_too_short_for_ets_is_refused():
    def make(lookback):
        fields = {"x": rough[:lookback], "y": rough[lookback : lookback + 7], "horizon": 7}
        return WindowSet([make_window(0, **(DAYS | fields))], dataset="bitcoin")

    rough = 50 + 10 * np.sin(2 * np.pi * STEPS / 7) + np.random.default_rng(0).normal(size=96)
    with pytest.raises(DataError, match="12 steps or more"):
        smoothing.Ets.fit(make(11))
    # Two weeks are too few for a damped trend and a week: the forms of the library need more.
    for lookback in (12, 14, 15):
        days = make(lookback)
        forms = {days[0].view.entity: ("AAAD", (0.5, 0.1, 0.1, 0.9))}
        damped = smoothing.Ets(forms)
        assert np.isfinite(damped.predict(days.views())).all()


@pytest.mark.parametrize("method", ["ets", "seasonal-level"])
def test_values_before_the_inputs_are_read(method):
    # A level that moved once, long ago: two weeks of inputs cannot tell it from noise.
    values = np.random.default_rng(3).normal(0, 1, 400)
    shared = {"horizon": 7, **DAYS}
    days = [
        make_window(i, x=values[i : i + 14], y=values[i + 14 : i + 21], past=values[:i], **shared)
        for i in range(0, 350, 7)
    ]
    fitted = fit_baseline(method, WindowSet(days, dataset="bitcoin"))
    later = {"x": np.full(14, 3.0), "y": values[:7], "split": "test", **shared}
    alone, after = (make_window(350, past=past, **later).view for past in (values[:0], values))

    assert fitted.predict([alone])[0].mean() == pytest.approx(3.0, abs=0.1)
    assert fitted.predict([after])[0].mean() < 2.0


def test_the_forms_of_many_series_take_no_longer(monkeypatch):
    read = []

    def note(known_T, season):
        read.append(len(known_T))
        return np.ones(20), np.zeros(1), 1

    monkeypatch.setattr(smoothing, "_take_off_long", note)
    window = make_days(0, STEPS, past=np.ones(2000))
    for series in (1, 100, 5000):
        smoothing.Ets._choose([window], series)
    assert read == [1000, 200, 60]
