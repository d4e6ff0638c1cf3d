"""Models of a series' own past and forecast weather: what they learn, see and refuse."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline, gbm, is_applicable
from compevo_core.baselines.features import PublishedErrorSpace
from compevo_core.baselines.weather import TEMPERATURE, PastSpace
from compevo_core.data.build import build_windows
from compevo_core.data.schemas import STEP_COVARIATE_SCHEMA
from compevo_core.errors import DataError
from tests.support.window_samples import (
    DAY,
    HALF_HOUR,
    from_nem,
    make_operational_spec,
    make_published,
    make_series,
    make_window_set,
)

MODELS = ("own-weather-ridge", "own-weather-gbm")
N_DAYS = 110
N_TRAIN = 90
FIRST = from_nem(2025, 9, 1)
MW_PER_DEGREE = 40.0


@pytest.fixture(autouse=True)
def use_small_leaves_and_few_trees(monkeypatch):
    for trees in (gbm.OwnWeatherTrees, gbm.PublishedErrorTrees):
        monkeypatch.setattr(trees, "_rounds", 100)
    monkeypatch.setitem(gbm.SETTINGS, "min_data_in_leaf", 20)


@pytest.fixture(scope="module")
def windows():
    """Demand that follows how far a day's temperature lies above 22 degrees, and nothing else."""
    rng = np.random.default_rng(5)
    degrees_DH = 24.0 + rng.normal(0, 5, (N_DAYS, 1)) + 4 * np.sin(np.arange(48) / 48 * 2 * np.pi)
    warm_DH = np.maximum(degrees_DH - 22.0, 0)
    demand = 1000.0 + MW_PER_DEGREE * warm_DH + rng.normal(0, 5, (N_DAYS, 48))

    rows = [
        ("NSW1", name, FIRST + (48 * day + step) * HALF_HOUR, value, issued, "a")
        for day in range(N_DAYS)
        for issued in [FIRST + day * DAY - timedelta(hours=7)]
        for step in range(48)
        for name, value in ((TEMPERATURE, degrees_DH[day, step]), ("solar_mw", 100.0 + step))
    ]
    return build_windows(
        make_operational_spec(date(2025, 9, 16), date(2026, 3, 31)),
        make_series(demand.ravel().tolist(), first=FIRST, series_id="AEMO/OPERATIONAL_DEMAND/NSW1"),
        published=make_published(FIRST, N_DAYS),
        step_covariates=pl.DataFrame(rows, schema=STEP_COVARIATE_SCHEMA, orient="row"),
    )


def split(windows):
    return windows[: 2 * (N_TRAIN - 15)], windows[2 * (N_TRAIN - 15) :]


def change_weather(windows, change):
    """Windows with other weather, or without any."""
    return windows.with_windows(
        window.change_view(
            step_covariates={
                name: values
                for name, values in window.view.step_covariates.items()
                if change is not None or TEMPERATURE not in name
            }
            | (change or {})
        )
        for window in windows
    )


def error(name, train, test):
    return float(np.abs(fit_baseline(name, train).predict(test.views()) - test.truth()).mean())


@pytest.mark.parametrize("name", MODELS)
def test_weather_of_the_day_tells_what_its_past_cannot(name, windows):
    train, test = split(windows)
    without = error(name, change_weather(train, None), change_weather(test, None))
    fitted = fit_baseline(name, train)
    assert np.abs(fitted.predict(test.views()) - test.truth()).mean() < 0.5 * without

    # Weather of another day makes it worse than none.
    swapped = [
        replace(
            view,
            step_covariates=other.step_covariates
            | {
                key: values
                for key, values in view.step_covariates.items()
                if TEMPERATURE not in key
            },
        )
        for view, other in zip(test.views(), test.views()[20:] + test.views()[:20], strict=True)
    ]
    assert np.abs(fitted.predict(swapped) - test.truth()).mean() > without


@pytest.mark.parametrize("name", MODELS)
def test_weather_that_was_not_known_is_that_of_the_last_fortnight(name, windows):
    train, test = split(windows)
    fitted = fit_baseline(name, train)

    def forecast(today):
        views = []
        for view in test.views():
            usual_H = view.step_covariates[f"{TEMPERATURE}_mean14"]
            changed = {TEMPERATURE: usual_H if today is None else today}
            views.append(replace(view, step_covariates={**view.step_covariates, **changed}))
        return fitted.predict(views)

    np.testing.assert_array_equal(forecast(np.full(48, np.nan)), forecast(None))


def test_a_heat_that_train_did_not_have_moves_the_ridge_by_degrees_alone(windows):
    train, test = split(windows)
    # A winter: no degree above the threshold, but for a thousandth.
    cool = [
        window.change_view(
            step_covariates={
                key: np.minimum(values, 22.001) if key.startswith(TEMPERATURE) else values
                for key, values in window.view.step_covariates.items()
            }
        )
        for window in train
    ]
    fitted = fit_baseline("own-weather-ridge", train.with_windows(cool))
    assert np.abs(fitted.predict(test.views()) - test.truth()).max() < 30 * MW_PER_DEGREE


def test_only_covariates_in_the_unit_of_the_series_are_scaled_with_it(windows):
    space = PublishedErrorSpace.fit(windows)
    assert (space.covariates, space.weather) == (("solar_mw",), (TEMPERATURE,))
    degrees_NH = PastSpace.fit(windows).encode_steps(windows.views()[:1])[TEMPERATURE]
    np.testing.assert_array_equal(degrees_NH[0], windows.views()[0].step_covariates[TEMPERATURE])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_series_sees_no_forecast_that_others_made_of_it(name, windows):
    train, test = split(windows)
    fitted = fit_baseline(name, train)
    views = [
        replace(
            view,
            published=None if view.published is None else view.published + 50,
            step_covariates={
                key: values + 50 if key.startswith(("solar", "published")) else values
                for key, values in view.step_covariates.items()
            },
        )
        for view in test.views()
    ]
    np.testing.assert_array_equal(fitted.predict(views), fitted.predict(test.views()))


def test_the_trees_of_a_published_error_see_weather_and_past(windows):
    train, test = split(windows)
    fitted = fit_baseline("published-error-gbm", train)
    before = fitted.predict(test.views())
    for name in (TEMPERATURE, "past_lag7"):
        views = [
            replace(
                view,
                step_covariates={**view.step_covariates, name: view.step_covariates[name] + 50},
            )
            for view in test.views()
        ]
        assert not np.array_equal(fitted.predict(views), before), name


@pytest.mark.parametrize("name", MODELS)
def test_views_without_a_past_are_refused(name, windows):
    train, test = split(windows)
    young = make_window_set(split="train")
    assert not is_applicable(name, young)
    with pytest.raises(DataError, match="holds the series' own past"):
        fit_baseline(name, young)
    bare = [replace(view, step_covariates={}) for view in test.views()]
    with pytest.raises(DataError, match="no value of the last fortnight"):
        fit_baseline(name, train).predict(bare)
