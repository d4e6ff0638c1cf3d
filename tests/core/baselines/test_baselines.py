"""The contract that every baseline keeps, and what each one forecasts."""

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import compevo_core.baselines.gbm as gbm
from compevo_core import baselines
from compevo_core.baselines import (
    BASELINES,
    PRIORS,
    Baseline,
    SharedFits,
    fit_baseline,
    is_applicable,
    load_baseline,
    register,
)
from compevo_core.baselines.base import repeat_last_season
from compevo_core.baselines.features import FeatureSpace, fit_responses
from compevo_core.baselines.gbm import BLEND_WEIGHTS
from compevo_core.baselines.ridge import CalendarRidge, LinearMap
from compevo_core.baselines.smoothing import Theta
from compevo_core.data.build import build_windows
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, ConfigError, DataError, LeakageError
from compevo_core.report.tables import method_name
from compevo_core.table.forecaster import Forecaster
from compevo_pipeline.work.methods import configure_chosen
from tests.support.population import windows as make_days
from tests.support.window_samples import (
    DAY,
    NEW_YEAR,
    NOW,
    from_nem,
    make_covariates,
    make_daily_values,
    make_published,
    make_series,
    make_set,
    make_spec,
    make_window,
    make_window_set,
)

N_DAYS = 60


@pytest.fixture(autouse=True)
def use_few_rounds(monkeypatch):
    monkeypatch.setattr(gbm.BoostedTrees, "_rounds", 30)
    monkeypatch.setitem(gbm.SETTINGS, "min_data_in_leaf", 10)


@pytest.fixture(scope="module")
def windows():
    days = [from_nem(2019, 1, 1, 12).date() + i * DAY for i in range(-3, N_DAYS)]
    return build_windows(
        make_spec(published_evidence=True, past_evidence=True),
        make_series(make_daily_values(N_DAYS), first=NEW_YEAR),
        make_covariates(days),
        published=make_published(NEW_YEAR, N_DAYS),
    )


@pytest.fixture(scope="module")
def train(windows):
    return windows[:50]


@pytest.mark.parametrize("name", [n for n in PRIORS if n not in ("weekly", "double-season")])
def test_a_forecast_depends_on_no_folder_and_no_batch(name, train, windows, tmp_path):
    if name == "ets":
        pytest.importorskip("statsforecast")
    fitted, views = fit_baseline(name, train), windows.views()
    fitted.save(tmp_path)
    loaded, whole = load_baseline(tmp_path), fitted.predict(views)
    assert (loaded.name, isinstance(loaded, Baseline)) == (name, True)
    assert loaded.predict(views).tobytes() == whole.tobytes()
    assert not list(tmp_path.glob("*.pkl"))
    assert np.array_equal(whole, np.concatenate([fitted.predict([view]) for view in views]))
    assert fitted.predict([]).shape == (0, 48)


@pytest.mark.parametrize("split", ["test", "inference"])
@pytest.mark.parametrize("name", PRIORS)
def test_no_held_out_window_enters_a_fit(name, split):
    days = make_set([make_window(0), make_window(1, split=split)])
    with pytest.raises(LeakageError, match=f"1 window.*{split}"):
        fit_baseline(name, days)


def test_the_ridge_repeats_the_season_of_unknown_steps():
    def fit(fewest):
        known_from = np.where(np.arange(48) == 5, 40 - fewest, 0)
        truths = [np.where(i < known_from, np.nan, 1000.0 + i) for i in range(40)]
        windows = [make_window(i, y=truth) for i, truth in enumerate(truths)]
        ridge = fit_baseline("calendar-ridge", make_set(windows))
        return ridge.predict([windows[0].view])[0], repeat_last_season(windows[0].view)

    forecast_H, last_H = fit(0)
    assert forecast_H[5] == last_H[5] and (np.delete(forecast_H != last_H, 5)).all()
    with pytest.raises(DataError, match="3 train windows"):
        fit(3)


def test_the_blend_is_its_parts_weighted_mean(train, windows, tmp_path):
    views = windows[50:].views()
    blend = fit_baseline("blend", train, seed=3)
    parts = {name: fit_baseline(name, train, seed=3).predict(views) for name in BLEND_WEIGHTS}
    assert sum(BLEND_WEIGHTS.values()) == 1
    expected = 0.3 * parts["calendar-ridge"] + 0.7 * parts["gbm"]
    np.testing.assert_allclose(blend.predict(views), expected, rtol=1e-12)

    # One that was saved with other weights is not loaded.
    blend.save(tmp_path)
    facts = json.loads((tmp_path / "baseline.json").read_text())
    facts["weights"]["gbm"] = 0.5
    (tmp_path / "baseline.json").write_text(json.dumps(facts))
    with pytest.raises(CheckpointMismatch, match="fit it again"):
        load_baseline(tmp_path)


def test_persistence_repeats_the_season_of_the_grid():
    x = np.arange(48.0)
    views = [make_window(0, x=x, step_minutes=minutes).view for minutes in (30, 60, 1440)]
    half_hours, hours, days = fit_baseline("persistence", make_window_set()).predict(views)
    assert half_hours.tolist() == x.tolist()
    assert hours.tolist() == [*x[24:], *x[24:]]
    assert set(days) == {47.0}


def test_weekly_persistence_needs_a_week_of_input():
    x = np.arange(48.0)
    weekly = fit_baseline("weekly", make_window_set())
    daily = make_window(0, x=x, step_minutes=1440)
    assert weekly.predict([daily.view])[0].tolist() == np.tile(x[-7:], 7)[:48].tolist()
    with pytest.raises(DataError, match="7 days of input"):
        weekly.predict([make_window(0).view])
    assert not is_applicable("weekly", make_window_set())


def test_last_value_joins_where_persistence_is_weekly():
    long = {"x": np.arange(77.0), "step_minutes": 1440}
    for days, is_other in ((make_window_set(**long), True), (make_window_set(), False)):
        assert is_applicable("last-value", days) == is_other
        # Whole seasons that cover the horizon of 48 steps, or all inputs.
        assert FeatureSpace.fit(days).scale_recent(days.views()).shape[1] == 48 + is_other
    assert not is_applicable("last-value", make_window_set(step_minutes=1440))


def test_published_forecasts_need_every_window():
    have = make_window(0, published=np.arange(48.0))
    forecaster = fit_baseline("published", make_window_set())
    assert forecaster.predict([have.view])[0].tolist() == list(range(48))
    with pytest.raises(DataError, match="1 of 2"):
        forecaster.predict([have.view, make_window(1).view])
    assert not is_applicable("published", make_window_set())
    assert is_applicable("published", make_set([have]))


def test_unknown_names_and_incomplete_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'arima'.*last-value"):
        fit_baseline("arima", make_window_set())
    with pytest.raises(CheckpointMismatch, match=r"baseline\.json is missing"):
        load_baseline(tmp_path)
    fit_baseline("persistence", make_window_set()).save(tmp_path)
    with pytest.raises(CheckpointMismatch, match="'persistence', not 'gbm'"):
        BASELINES["gbm"].load(tmp_path)
    assert json.loads((tmp_path / "baseline.json").read_text()) == {"baseline": "persistence"}


def test_the_how_to_class_is_a_method_everywhere(request):
    repository = Path(__file__).parents[3]
    page = (repository / "docs/how-to/add-a-baseline.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    request.addfinalizer(lambda: [names.pop("usual-day", None) for names in (BASELINES, PRIORS)])
    exec(compile(code, "add-a-baseline.md", "exec"), defined := {})  # noqa: S102 - our own page
    with pytest.raises(ConfigError, match="usual-day"):
        register(defined["UsualDay"])

    hours = [NOW + timedelta(hours=i) for i in range(24 * 40)]
    table = pl.DataFrame({"ds": hours, "y": [hour.hour + 1.0 for hour in hours]})
    forecast = Forecaster("usual-day", horizon=24, lookback=48).fit(table).predict()
    assert forecast["mean"].to_list() == [stamp.hour + 1.0 for stamp in forecast["ds"]]
    with pytest.raises(ConfigError, match=r"known: .*usual-day"):
        configure_chosen("unusual-day", {})
    assert "usual-day" in BASELINES and method_name("usual-day") == "Usual day"
    assert code.count("\n") <= 40


def make_windows(entity, slope, days, seed):
    """Windows at a level of their own, whose next day changes by ``slope`` times that level."""
    rng = np.random.default_rng(seed)
    out = []
    for day in range(days):
        level = rng.normal(0, 50)
        x = 1000 + level + rng.normal(0, 0.01, 48)
        names = {"window_id": f"{entity}-{day}", "entity": entity}
        origin = NEW_YEAR + day * DAY
        out.append(make_window(day, origin=origin, x=x, y=x + slope * level, **names))
    return out


def fit_penalty(windows, folder):
    CalendarRidge.fit(windows).save(folder)
    facts = json.loads((folder / "baseline.json").read_text(encoding="utf-8"))
    return float(facts["penalties"]["False"])


def test_regions_that_answer_oppositely_get_own_maps():
    windows = make_windows("NSW1", 0.5, 120, seed=1) + make_windows("SA1", -0.5, 120, seed=2)
    train = make_set(windows)
    forecast = CalendarRidge.fit(train).predict(train.views())

    change = train.truth() - np.stack([view.x for view in train.views()])
    left = train.truth() - forecast
    assert np.abs(left).mean() < 0.3 * np.abs(change).mean()


def test_of_equally_good_penalties_the_strongest_is_taken(tmp_path):
    # Tomorrow is today: every penalty leaves no error.
    train = make_set(make_windows("NSW1", 0.0, 60, seed=3))
    assert fit_penalty(train, tmp_path) == 1e6


def test_overlapping_windows_choose_no_weak_penalty(tmp_path):
    # A random walk, cut at every step: neighbours share nearly all of their steps, and
    # nothing can be learnt from them that holds two horizons away.
    steps = 300
    walk = 1000 + np.cumsum(np.random.default_rng(3).normal(0, 1, steps))
    daily = {"dataset": "exchange", "step_minutes": 1440}
    windows = [
        make_window(
            i, origin=NEW_YEAR + i * DAY, x=walk[i : i + 48], y=walk[i + 48 : i + 96], **daily
        )
        for i in range(steps - 96)
    ]
    assert fit_penalty(WindowSet(windows, dataset="exchange"), tmp_path) == 1e6


def test_a_missing_covariate_counts_as_its_mean():
    numbers = {"mean": np.array([290.0, 1.0]), "spread": np.array([5.0, 2.0])}
    weights = {"offset": np.zeros(48), "weights": np.zeros((1, 3, 48))}
    fitted = LinearMap(penalty=1.0, **numbers, **weights)
    design = fitted.build_design(np.array([[np.nan, 1.0], [300.0, np.nan]]))
    assert design.tolist() == [[0.0, 0.0, 1.0], [2.0, 0.0, 1.0]]


def make_space(*covariates):
    scaler = Scaler(mean={"NSW1": 0.0}, std={"NSW1": 1.0})
    return FeatureSpace(scaler=scaler, entities=("NSW1",), covariates=covariates)


def test_heat_and_cold_have_rising_columns():
    space = make_space("max_temp_k_lag1", "rain_mm_lag1")
    hinges = space.compute_hinges(np.array([[300.0, 9.0], [290.0, 9.0], [280.0, 9.0]]))
    assert hinges.tolist() == [[7.0, 0.0], [0.0, 0.0], [0.0, 8.0]]


def test_a_change_is_yesterday_less_the_day_before():
    space = make_space("max_temp_k_lag1", "max_temp_k_lag2", "rain_mm_lag1")
    assert space.compute_changes(np.array([[300.0, 290.0, 1.0]])) == {"max_temp_k_change": [[10.0]]}


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
    return Theta.fit(make_set(days))


def test_theta_follows_the_published_formula():
    noise = np.random.default_rng(3).normal(0, 5, 48)
    left = 2.0 * STEPS + noise
    view = make_window(9, x=left + WAVE, split="test").view
    from statsmodels.tsa.forecasting.theta import ThetaModel

    fitted = train_on_waves()

    # The four train days lie at 900, 910, 920 and 930: their shape is 915 plus the wave.
    alpha = ThetaModel(left - 915, period=1, deseasonalize=False).fit(disp=False).params["alpha"]
    expected = continue_by_formula(left - 915, alpha) + 915 + WAVE
    np.testing.assert_allclose(fitted.predict([view])[0], expected, rtol=2e-3)


def test_a_daily_grid_has_no_shape():
    days = [make_window(i, step_minutes=1440, dataset="bitcoin") for i in range(3)]
    fitted = Theta.fit(WindowSet(days, dataset="bitcoin"))
    level = make_window(5, x=np.full(48, 7.0), step_minutes=1440, dataset="bitcoin").view
    np.testing.assert_allclose(fitted.predict([level])[0], np.full(48, 7.0), atol=1e-6)


def test_masked_targets_are_left_out_of_the_shape():
    hole = np.where(STEPS < 24, np.nan, 900 + WAVE)
    days = [make_window(0, y=hole), make_window(1, y=900 + WAVE)]
    fitted = Theta.fit(make_set(days))
    quiet = make_window(5, x=900 + WAVE, split="test").view
    np.testing.assert_allclose(fitted.predict([quiet])[0], 900 + WAVE, atol=1e-6)


def test_what_was_not_in_train_is_refused():
    with pytest.raises(DataError, match="belongs to SA1"):
        train_on_waves().predict([make_window(5, entity="SA1").view])
    half = {"x": np.ones(12), "y": np.ones(12), "horizon": 12}
    fitted = Theta.fit(make_set([make_window(i, **half) for i in range(2)]))
    day = make_window(5).view
    later = make_window(5, origin=day.origin_utc + 24 * day.step, **half).view
    with pytest.raises(DataError, match="of NSW1 has a value at 07:00"):
        fitted.predict([later])


TRAIN = make_days("train", 20)


@pytest.fixture
def fitted(spy):
    """The calls that really fitted, in order."""
    return spy(baselines, "fit_baseline")


def list_fits(calls):
    return [(name, options["seed"]) for (name, _), options in calls]


def test_equal_windows_and_seeds_are_fitted_once(fitted):
    fit = SharedFits()
    same = fit("persistence", TRAIN)
    assert fit("persistence", make_days("train", 20)) is same
    fit("persistence", make_days("train", 21))
    fit("persistence", TRAIN, seed=1)
    assert list_fits(fitted) == [("persistence", 0), ("persistence", 0), ("persistence", 1)]


def test_a_blend_reuses_parts_others_asked_for(fitted):
    fit = SharedFits()
    fit("gbm", TRAIN)
    blend = fit("blend", TRAIN)
    expected = fit_baseline("blend", TRAIN).predict(TRAIN.views())
    assert sorted(list_fits(fitted)) == [("calendar-ridge", 0), ("gbm", 0)]
    assert np.array_equal(blend.predict(TRAIN.views()), expected)


def test_another_process_reads_what_the_first_one_kept(fitted, tmp_path):
    first = SharedFits(tmp_path)("calendar-ridge", TRAIN)
    second = SharedFits(tmp_path)("calendar-ridge", TRAIN)
    assert list_fits(fitted) == [("calendar-ridge", 0)]
    assert np.array_equal(first.predict(TRAIN.views()), second.predict(TRAIN.views()))

    # An interrupted fit is made again.
    next(tmp_path.rglob("baseline.json")).unlink()
    SharedFits(tmp_path)("calendar-ridge", TRAIN)
    assert len(fitted) == 2


def test_answers_are_learnt_where_everything_is_known():
    rng = np.random.default_rng(0)
    now_NH, before_NH, noise_NH = rng.normal(size=(3, 40, 48))
    now_NH[:2, 5] = np.nan
    windows = [
        make_window(i, step_covariates={"own_t": now_H, "own_t_lag1": before_H})
        for i, (now_H, before_H) in enumerate(zip(now_NH, before_NH, strict=True))
    ]
    views = [window.view for window in windows]
    change_NH = 2 * np.nan_to_num(now_NH - before_NH) + 0.1 * noise_NH
    (answer,) = fit_responses(views, ["own_t"], change_NH)
    assert answer.apply([]).shape == (0, 48)

    # What changed while the covariate was unknown teaches nothing; the mean stays.
    elsewhere_NH = change_NH.copy()
    elsewhere_NH[:2, 5] += [50, -50]
    (same,) = fit_responses(views, ["own_t"], elsewhere_NH)
    np.testing.assert_allclose(same.weights, answer.weights, rtol=1e-9)

    change_NH[0, 7] = np.nan
    (masked,) = fit_responses(views, ["own_t"], change_NH)
    assert np.allclose(np.array(masked.weights)[:, 0], 2, atol=0.4)
