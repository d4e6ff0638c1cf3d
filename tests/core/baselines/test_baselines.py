"""The contract that every baseline keeps, and what each one forecasts."""

import json

import numpy as np
import pytest

import compevo_core.baselines.gbm as gbm
from compevo_core.baselines import BASELINES, Baseline, fit_baseline, is_applicable, load_baseline
from compevo_core.baselines.blend import BLEND_WEIGHTS
from compevo_core.data.build import build_windows
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, ConfigError, DataError
from tests.support.window_samples import (
    DAY,
    from_nem,
    make_covariates,
    make_daily_values,
    make_published,
    make_series,
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
    frame = make_series(make_daily_values(N_DAYS), first=from_nem(2019, 1, 1))
    return build_windows(
        make_spec(published_evidence=True, past_evidence=True),
        frame,
        make_covariates(days),
        None,
        make_published(from_nem(2019, 1, 1), N_DAYS),
    )


@pytest.fixture(scope="module")
def train(windows):
    return windows[:50]


@pytest.mark.parametrize("name", [n for n in BASELINES if n != "weekly"])
def test_a_saved_baseline_forecasts_the_same_bits_after_loading(name, train, windows, tmp_path):
    fitted = fit_baseline(name, train)
    fitted.save(tmp_path)
    loaded = load_baseline(tmp_path)
    assert (loaded.name, isinstance(loaded, Baseline)) == (name, True)
    assert loaded.predict(windows.views()).tobytes() == fitted.predict(windows.views()).tobytes()
    assert not list(tmp_path.glob("*.pkl"))


@pytest.mark.parametrize("name", [n for n in BASELINES if n != "weekly"])
def test_a_forecast_does_not_depend_on_the_batch_it_is_made_in(name, train, windows):
    fitted = fit_baseline(name, train)
    whole = fitted.predict(windows.views())
    alone = np.concatenate([fitted.predict([view]) for view in windows.views()])
    assert np.array_equal(whole, alone)
    assert fitted.predict([]).shape == (0, 48)


def test_the_ridge_uses_windows_with_masked_steps_where_all_have_some():
    masked = [
        make_window(i, y=np.where(np.arange(48) % 7 == i % 7, np.nan, 1000.0 + i))
        for i in range(40)
    ]
    fitted = fit_baseline("calendar-ridge", WindowSet(masked, dataset="electricity"))
    assert np.isfinite(fitted.predict([masked[0].view])).all()
    masked_step = [
        make_window(i, y=np.where(np.arange(48) == 5, np.nan, 1000.0 + i)) for i in range(40)
    ]
    with pytest.raises(DataError, match="known in 0 train windows"):
        fit_baseline("calendar-ridge", WindowSet(masked_step, dataset="electricity"))


def test_the_blend_is_the_weighted_mean_of_its_parts_which_it_also_gives(train, windows):
    views = windows[50:].views()
    blend = fit_baseline("blend", train, seed=3)
    parts = blend.components(views)
    assert set(parts) == set(BLEND_WEIGHTS) and sum(BLEND_WEIGHTS.values()) == 1
    for name, forecast in parts.items():
        assert forecast.tobytes() == fit_baseline(name, train, seed=3).predict(views).tobytes()
    expected = 0.3 * parts["calendar-ridge"] + 0.7 * parts["gbm"]
    np.testing.assert_allclose(blend.predict(views), expected, rtol=1e-12)


def test_a_blend_of_other_weights_is_not_loaded_as_this_one(train, tmp_path):
    fit_baseline("blend", train).save(tmp_path)
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


def test_the_published_forecast_is_handed_on_only_where_every_window_has_one():
    have = make_window(0, published=np.arange(48.0))
    forecaster = fit_baseline("published", make_window_set())
    assert forecaster.predict([have.view])[0].tolist() == list(range(48))
    with pytest.raises(DataError, match="1 of 2 windows have no published"):
        forecaster.predict([have.view, make_window(1).view])
    assert not is_applicable("published", make_window_set())
    assert is_applicable("published", WindowSet([have], dataset="electricity"))


def test_unknown_names_and_incomplete_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no baseline 'arima'; known: persistence"):
        fit_baseline("arima", make_window_set())
    with pytest.raises(CheckpointMismatch, match=r"baseline\.json is missing"):
        load_baseline(tmp_path)
    fit_baseline("persistence", make_window_set()).save(tmp_path)
    with pytest.raises(CheckpointMismatch, match="holds 'persistence', not 'gbm'"):
        BASELINES["gbm"].load(tmp_path)
    assert json.loads((tmp_path / "baseline.json").read_text()) == {"baseline": "persistence"}
