"""What the calendar ridge chooses and fits, on windows whose answer is known."""

import json

import numpy as np

from compevo_core.baselines.features import FeatureSpace
from compevo_core.baselines.ridge import CalendarRidge, LinearMap
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from tests.support.window_samples import DAY, from_nem, make_window

FIRST = from_nem(2019, 1, 1)


def make_windows(entity, slope, days, seed):
    """Windows at a level of their own, whose next day changes by ``slope`` times that level."""
    rng = np.random.default_rng(seed)
    out = []
    for day in range(days):
        level = rng.normal(0, 50)
        x = 1000 + level + rng.normal(0, 0.01, 48)
        out.append(
            make_window(
                day,
                origin=FIRST + day * DAY,
                window_id=f"{entity}-{day}",
                entity=entity,
                x=x,
                y=x + slope * level,
            )
        )
    return out


def fit_penalty(windows, folder):
    CalendarRidge.fit(windows).save(folder)
    facts = json.loads((folder / "baseline.json").read_text(encoding="utf-8"))
    return float(facts["penalties"]["False"])


def test_regions_that_answer_in_opposite_ways_get_a_map_of_their_own_of_the_right_size():
    windows = make_windows("NSW1", 0.5, 120, seed=1) + make_windows("SA1", -0.5, 120, seed=2)
    train = WindowSet(windows, dataset="electricity")
    forecast = CalendarRidge.fit(train).predict(train.views())

    change = train.truth() - np.stack([view.x for view in train.views()])
    left = train.truth() - forecast
    assert np.abs(left).mean() < 0.3 * np.abs(change).mean()


def test_of_equally_good_penalties_the_strongest_is_taken(tmp_path):
    # Tomorrow is today: every penalty leaves no error.
    train = WindowSet(make_windows("NSW1", 0.0, 60, seed=3), dataset="electricity")
    assert fit_penalty(train, tmp_path) == 1e6


def test_windows_that_share_steps_do_not_make_a_weak_penalty_look_good(tmp_path):
    # A random walk, cut at every step: neighbours share nearly all of their steps, and
    # nothing can be learnt from them that holds two horizons away.
    steps = 300
    walk = 1000 + np.cumsum(np.random.default_rng(3).normal(0, 1, steps))
    windows = [
        make_window(
            i,
            origin=FIRST + i * DAY,
            window_id=f"walk-{i}",
            dataset="exchange",
            step_minutes=1440,
            x=walk[i : i + 48],
            y=walk[i + 48 : i + 96],
        )
        for i in range(steps - 96)
    ]
    assert fit_penalty(WindowSet(windows, dataset="exchange"), tmp_path) == 1e6


def test_a_missing_covariate_counts_as_its_train_mean_and_a_known_one_by_its_distance_from_it():
    fitted = LinearMap(
        penalty=1.0,
        mean=np.array([290.0, 1.0]),
        spread=np.array([5.0, 2.0]),
        offset=np.zeros(48),
        weights=np.zeros((1, 3, 48)),
    )
    design = fitted.build_design(np.array([[np.nan, 1.0], [300.0, np.nan]]))
    assert design.tolist() == [[0.0, 0.0, 1.0], [2.0, 0.0, 1.0]]


def make_space(*covariates):
    scaler = Scaler(mean={"NSW1": 0.0}, std={"NSW1": 1.0})
    return FeatureSpace(scaler=scaler, entities=("NSW1",), covariates=covariates)


def test_heat_and_cold_have_a_column_each_that_rises_with_them():
    space = make_space("max_temp_k_lag1", "rain_mm_lag1")
    hinges = space.compute_hinges(np.array([[300.0, 9.0], [290.0, 9.0], [280.0, 9.0]]))
    assert hinges.tolist() == [[7.0, 0.0], [0.0, 0.0], [0.0, 8.0]]


def test_a_change_is_yesterday_less_the_day_before():
    space = make_space("max_temp_k_lag1", "max_temp_k_lag2", "rain_mm_lag1")
    assert space.change_names == ("max_temp_k",)
    assert space.compute_changes(np.array([[300.0, 290.0, 1.0]])).tolist() == [[10.0]]
