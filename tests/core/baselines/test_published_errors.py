"""Models of a published forecast's own error: what they learn, what they see, what they refuse."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import BASELINES, fit_baseline, gbm, is_applicable
from compevo_core.baselines.features import TEMPERATURE, PastSpace, PublishedErrorSpace
from compevo_core.data.build import build_windows
from compevo_core.data.schemas import PUBLISHED_SCHEMA, STEP_COVARIATE_SCHEMA
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation import baseline_scores
from compevo_core.evaluation.scopes import Scope
from tests.support import window_samples as samples

MODELS = ("published-error-ridge", "published-error-gbm")
N_DAYS = 90
N_TRAIN = 70
FIRST = samples.from_nem(2025, 6, 1)
UNKNOWN = 14


@pytest.fixture(autouse=True)
def use_small_leaves_and_few_trees(monkeypatch):
    for trees in (gbm.PublishedErrorTrees, gbm.OwnWeatherTrees):
        monkeypatch.setattr(trees, "_rounds", 100)
    monkeypatch.setitem(gbm.SETTINGS, "min_data_in_leaf", 10)


@pytest.fixture(scope="module")
def windows():
    """A forecast whose error of yesterday comes back, and solar power that says nothing."""
    values = samples.make_daily_values(N_DAYS, seed=4)
    rng = np.random.default_rng(1)
    bias = np.zeros(48)
    published, solar = [], []
    for day, truth_H in enumerate(np.array(values).reshape(N_DAYS, 48)):
        # The error by half-hour is a slow walk: yesterday's is the best guess of today's.
        bias = 0.9 * bias + rng.normal(0, 20, 48)
        issued = FIRST + day * samples.DAY - timedelta(hours=7)
        for step in range(48):
            start = FIRST + day * samples.DAY + step * samples.HALF_HOUR
            median = truth_H[step] - bias[step]
            published += [
                ("NSW1", start, median + spread, issued, quantile, "a")
                for quantile, spread in ((0.1, -30.0), (0.5, 0.0), (0.9, 30.0))
            ]
            solar.append(("NSW1", "solar_mw", start, float(step), issued, "a"))

    return build_windows(
        samples.make_operational_spec(date(2025, 6, 3), date(2025, 12, 31), past_evidence=False),
        samples.make_series(values, first=FIRST, series_id="AEMO/OPERATIONAL_DEMAND/NSW1"),
        published=pl.DataFrame(published, schema=PUBLISHED_SCHEMA, orient="row"),
        step_covariates=pl.DataFrame(solar, schema=STEP_COVARIATE_SCHEMA, orient="row"),
    )


def by_lead(windows, unknown_steps):
    chosen = [w for w in windows if w.view.unknown_steps == unknown_steps]
    return WindowSet(chosen, dataset=windows.dataset)


def error(fitted, test):
    return float(np.abs(fitted.predict(test.views()) - test.truth()).mean())


@pytest.mark.parametrize("name", MODELS)
def test_a_recurring_error_is_taken_off(name, windows):
    train, test = windows[: 2 * N_TRAIN], windows[2 * N_TRAIN :]
    published = error(fit_baseline("published", train), by_lead(test, 0))
    fitted = fit_baseline(name, train)
    midnight, five = error(fitted, by_lead(test, 0)), error(fitted, by_lead(test, UNKNOWN))
    assert midnight < five < 0.9 * published


@pytest.mark.parametrize("name", MODELS)
def test_what_train_did_not_have_is_refused(name, windows):
    fitted = fit_baseline(name, by_lead(windows[: 2 * N_TRAIN], 0))
    (view,) = windows[0:1].views()

    with pytest.raises(DataError, match="unknown_steps 3"):
        fitted.predict([replace(view, unknown_steps=3)])
    with pytest.raises(DataError, match="'QLD1'"):
        fitted.predict([replace(view, entity="QLD1")])
    with pytest.raises(DataError, match="no published forecast"):
        fitted.predict([replace(view, published=None)])
    with pytest.raises(DataError, match="with its errors"):
        fit_baseline(name, samples.make_window_set(40))
    assert not is_applicable(name, samples.make_window_set(3)) and is_applicable(name, windows)


def forget_publications(windows, **of):
    """The windows, without the publication where a view has all the given values."""

    def forget(view):
        is_meant = all(getattr(view, name) == value for name, value in of.items())
        return {"published": None} if is_meant else {}

    return samples.change_views(windows, forget)


@pytest.mark.parametrize("name", MODELS)
def test_a_train_day_without_publication_is_skipped(name, windows):
    train, test = windows[: 2 * N_TRAIN], windows[2 * N_TRAIN :]
    day = train[40].view.origin_utc
    without = [window for window in train if window.view.origin_utc != day]
    expected = fit_baseline(name, WindowSet(without, dataset=train.dataset)).predict(test.views())

    fitted = fit_baseline(name, forget_publications(train, origin_utc=day))
    assert np.array_equal(fitted.predict(test.views()), expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_train_without_publications_excludes_the_model(name, windows, monkeypatch):
    chosen = {each: BASELINES[each] for each in ("published", *MODELS)}
    monkeypatch.setattr(baseline_scores, "BASELINES", chosen)
    train, test = windows[: 2 * N_TRAIN], windows[2 * N_TRAIN :]
    one_day = forget_publications(train, origin_utc=train[40].view.origin_utc)
    assert is_applicable(name, test, one_day)
    for lacking in ({}, {"unknown_steps": UNKNOWN}):
        assert not is_applicable(name, test, forget_publications(train, **lacking))
    assert not is_applicable(name, samples.change_views(test, lambda _: {"entity": "QLD1"}), train)

    options = {"experiment": "main", "seeds": 1, "commit": "abc"}
    scopes = [Scope(subset="test", windows=test)]
    scores = baseline_scores.score_baselines(forget_publications(train), scopes, **options)
    assert "published" in scores.forecasts[0] and name not in scores.forecasts[0]


def test_columns_are_changes_and_widths_in_units(windows):
    space = PublishedErrorSpace.fit(windows)
    assert space.quantiles == ("published_q0.1", "published_q0.9")
    assert space.covariates == ("solar_mw",)
    assert space.leads == (0, UNKNOWN)

    spread = space.scaler.std["NSW1"]
    view = by_lead(windows, UNKNOWN)[40].view
    by_step, by_day = space.encode([view])
    steps = {name: column[0] * spread for name, column in by_step.items()}
    assert np.allclose(steps["published_q0.1"], 30.0) and np.allclose(steps["published_q0.9"], 30.0)
    assert np.allclose(steps["solar_mw_change"], 0.0)
    yesterday = view.step_covariates["published_lag1"]
    assert np.allclose(steps["published_change"], view.published - yesterday)

    days = {name: column.item() for name, column in by_day.items()}
    last = view.step_covariates["published_error_lag1"]
    known = 48 - UNKNOWN
    assert days["error_last_known"] * spread == pytest.approx(last[known - 6 : known].mean())
    assert days["published_error_lag1_mean"] * spread == pytest.approx(last[:known].mean())


def give_weather(windows, *, every):
    """Forecast weather that says nothing, in one of ``every`` days."""
    weather = {"temperature_c": np.full(48, 21.0), "temperature_c_lag1": np.full(48, 20.0)}

    def give(view):
        is_meant = (view.origin_utc - FIRST) // samples.DAY % every == 0
        return {"step_covariates": view.step_covariates | weather} if is_meant else {}

    return samples.change_views(windows, give)


@pytest.mark.parametrize("name", MODELS)
def test_a_rarely_known_covariate_is_left_out(name, windows):
    train, test = windows[: 2 * N_TRAIN], windows[2 * N_TRAIN :]
    rare, usual = give_weather(train, every=3), give_weather(train, every=1)
    assert PublishedErrorSpace.fit(rare).weather == ()
    assert PublishedErrorSpace.fit(usual).weather == ("temperature_c",)

    without = fit_baseline(name, train).predict(test.views())
    assert np.array_equal(fit_baseline(name, rare).predict(test.views()), without)
    # Known in train, absent in a view: a forecast all the same.
    assert np.isfinite(fit_baseline(name, usual).predict(test.views())).all()


def test_a_covariate_missing_at_one_lead_is_dropped(windows):
    midnight = give_weather(by_lead(windows, 0), every=1)
    both = WindowSet([*midnight, *by_lead(windows, UNKNOWN)], dataset=windows.dataset)
    assert PublishedErrorSpace.fit(both).weather == ()


OWN_MODELS = ("own-weather-ridge", "own-weather-gbm")
WEATHER_DAYS = 110
WEATHER_TRAIN = 90
SPRING = samples.from_nem(2025, 9, 1)
MW_PER_DEGREE = 40.0


@pytest.fixture(scope="module")
def of_weather():
    """Demand that follows how far a day's temperature lies above 22 degrees, and nothing else.

    Windows of train and of test.
    """
    rng = np.random.default_rng(5)
    wave_H = 4 * np.sin(np.arange(48) / 48 * 2 * np.pi)
    degrees_DH = 24.0 + rng.normal(0, 5, (WEATHER_DAYS, 1)) + wave_H
    warm_DH = np.maximum(degrees_DH - 22.0, 0)
    demand = 1000.0 + MW_PER_DEGREE * warm_DH + rng.normal(0, 5, (WEATHER_DAYS, 48))

    rows = [
        ("NSW1", name, SPRING + (48 * day + step) * samples.HALF_HOUR, value, issued, "a")
        for day in range(WEATHER_DAYS)
        for issued in [SPRING + day * samples.DAY - timedelta(hours=7)]
        for step in range(48)
        for name, value in ((TEMPERATURE, degrees_DH[day, step]), ("solar_mw", 100.0 + step))
    ]
    values, name = demand.ravel().tolist(), "AEMO/OPERATIONAL_DEMAND/NSW1"
    windows = build_windows(
        samples.make_operational_spec(date(2025, 9, 16), date(2026, 3, 31)),
        samples.make_series(values, first=SPRING, series_id=name),
        published=samples.make_published(SPRING, WEATHER_DAYS),
        step_covariates=pl.DataFrame(rows, schema=STEP_COVARIATE_SCHEMA, orient="row"),
    )
    return windows[: 2 * (WEATHER_TRAIN - 15)], windows[2 * (WEATHER_TRAIN - 15) :]


def select_steps(view, *names):
    """The covariates by step of a view whose names begin so."""
    return {key: values for key, values in view.step_covariates.items() if key.startswith(names)}


def change_steps(view, changes, **others):
    return replace(view, step_covariates=view.step_covariates | changes, **others)


def forget_weather(windows):
    kept = ("past", "solar", "published")
    return samples.change_views(
        windows, lambda view: {"step_covariates": select_steps(view, *kept)}
    )


@pytest.mark.parametrize("name", OWN_MODELS)
def test_weather_adds_what_the_past_lacks(name, of_weather):
    train, test = of_weather
    without = error(fit_baseline(name, forget_weather(train)), forget_weather(test))
    fitted = fit_baseline(name, train)
    assert error(fitted, test) < 0.5 * without

    # Weather of another day makes it worse than none.
    swapped = [
        change_steps(view, select_steps(other, TEMPERATURE))
        for view, other in zip(test.views(), test.views()[20:] + test.views()[:20], strict=True)
    ]
    assert np.abs(fitted.predict(swapped) - test.truth()).mean() > without


@pytest.mark.parametrize("name", OWN_MODELS)
def test_unknown_weather_is_the_last_fortnights(name, of_weather):
    train, test = of_weather
    fitted = fit_baseline(name, train)

    usual, unknown = (
        [change_steps(view, {TEMPERATURE: find(view.step_covariates)}) for view in test.views()]
        for find in (lambda known: known[f"{TEMPERATURE}_mean14"], lambda _: np.full(48, np.nan))
    )
    np.testing.assert_array_equal(fitted.predict(unknown), fitted.predict(usual))


def test_an_unseen_heat_moves_the_ridge_by_degrees(of_weather):
    train, test = of_weather

    # A winter: no degree above the threshold, but for a thousandth.
    def cool(view):
        steps = select_steps(view, TEMPERATURE)
        return change_steps(view, {key: np.minimum(steps[key], 22.001) for key in steps})

    cooled = train.with_windows(replace(w, view=cool(w.view)) for w in train)
    fitted = fit_baseline("own-weather-ridge", cooled)
    assert np.abs(fitted.predict(test.views()) - test.truth()).max() < 30 * MW_PER_DEGREE


def test_only_covariates_in_the_unit_are_scaled(of_weather):
    train, _ = of_weather
    space = PublishedErrorSpace.fit(train)
    assert (space.covariates, space.weather) == (("solar_mw",), (TEMPERATURE,))
    view = train.views()[0]
    degrees_NH = PastSpace.fit(train).encode([view])[0][TEMPERATURE]
    np.testing.assert_array_equal(degrees_NH[0], view.step_covariates[TEMPERATURE])


@pytest.mark.parametrize("name", OWN_MODELS)
def test_a_series_model_ignores_published_forecasts(name, of_weather):
    train, test = of_weather
    fitted = fit_baseline(name, train)
    views = []
    for view in test.views():
        steps = {key: value + 50 for key, value in select_steps(view, "solar", "published").items()}
        published = None if view.published is None else view.published + 50
        views.append(change_steps(view, steps, published=published))
    np.testing.assert_array_equal(fitted.predict(views), fitted.predict(test.views()))


def test_trees_on_errors_see_weather_and_past(of_weather):
    train, test = of_weather
    fitted = fit_baseline("published-error-gbm", train)
    before = fitted.predict(test.views())
    for name in (TEMPERATURE, "past_lag7"):
        given = ((view, view.step_covariates[name] + 50) for view in test.views())
        views = [change_steps(view, {name: values}) for view, values in given]
        assert not np.array_equal(fitted.predict(views), before), name


@pytest.mark.parametrize("name", OWN_MODELS)
def test_views_without_a_past_are_refused(name, of_weather):
    train, test = of_weather
    young = samples.make_window_set(split="train")
    assert not is_applicable(name, young)
    with pytest.raises(DataError, match="own past"):
        fit_baseline(name, young)
    bare = [replace(view, step_covariates={}) for view in test.views()]
    with pytest.raises(DataError, match="the last fortnight"):
        fit_baseline(name, train).predict(bare)
