"""Theta: equal to the published formula, without the usual shape of a day."""

import numpy as np
import pytest

from compevo_core.baselines.base import ViewForecaster
from compevo_core.baselines.smoothing import Theta
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, LeakageError
from tests.support.window_samples import make_window

WAVE = 80 * np.sin(2 * np.pi * np.arange(48) / 48)
STEPS = np.arange(48.0)


def continue_by_formula(x, alpha):
    """Simple smoothing with a drift of half the trend: Hyndman and Billah, 2003."""
    n = len(x)
    slope = np.polyfit(np.arange(n), x, 1)[0]
    level = x[0]
    for value in x:
        level = alpha * value + (1 - alpha) * level
    drift = STEPS + 1 / alpha - (1 - alpha) ** n / alpha
    return level + slope / 2 * drift


def train_on_waves():
    days = [make_window(i, x=900 + WAVE, y=900 + 10 * i + WAVE) for i in range(4)]
    return Theta.fit(WindowSet(days, dataset="electricity"))


def test_a_forecast_is_that_of_the_published_formula_around_the_usual_shape():
    noise = np.random.default_rng(3).normal(0, 5, 48)
    left = 2.0 * STEPS + noise
    view = make_window(9, x=left + WAVE, split="test").view
    from statsmodels.tsa.forecasting.theta import ThetaModel

    fitted = train_on_waves()

    # The four train days lie at 900, 910, 920 and 930: their shape is 915 plus the wave.
    alpha = ThetaModel(left - 915, period=1, deseasonalize=False).fit(disp=False).params["alpha"]
    expected = continue_by_formula(left - 915, alpha) + 915 + WAVE
    np.testing.assert_allclose(fitted.predict([view])[0], expected, rtol=2e-3)
    assert isinstance(fitted, ViewForecaster)


def test_a_daily_grid_has_no_shape_and_a_level_series_goes_on_as_it_is():
    days = [make_window(i, step_minutes=1440, dataset="bitcoin") for i in range(3)]
    fitted = Theta.fit(WindowSet(days, dataset="bitcoin"))
    level = make_window(5, x=np.full(48, 7.0), step_minutes=1440, dataset="bitcoin").view
    np.testing.assert_allclose(fitted.predict([level])[0], np.full(48, 7.0), atol=1e-6)
    assert fitted.predict([]).shape == (0, 48)


def test_masked_targets_are_left_out_of_the_shape():
    hole = np.where(STEPS < 24, np.nan, 900 + WAVE)
    days = [make_window(0, y=hole), make_window(1, y=900 + WAVE)]
    fitted = Theta.fit(WindowSet(days, dataset="electricity"))
    quiet = make_window(5, x=900 + WAVE, split="test").view
    np.testing.assert_allclose(fitted.predict([quiet])[0], 900 + WAVE, atol=1e-6)


def test_what_was_not_in_train_is_refused():
    with pytest.raises(DataError, match="no train window of SA1 has a value at"):
        train_on_waves().predict([make_window(5, entity="SA1").view])
    with pytest.raises(LeakageError):
        Theta.fit(WindowSet([make_window(0, split="test")], dataset="electricity"))
