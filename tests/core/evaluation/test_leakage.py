"""Every kind of leak is found where it is planted, and nowhere else."""

from datetime import date

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.data.build import build_windows
from compevo_core.data.datasets import ELECTRICITY
from compevo_core.data.schemas import STEP_COVARIATE_SCHEMA
from compevo_core.evaluation.leakage import (
    find_changed_files,
    find_overlapping_targets,
    find_shared_windows,
    find_training_after,
    find_unavailable_articles,
    find_unavailable_covariates,
    find_unavailable_published,
    find_unavailable_step_covariates,
    hash_folder,
)
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.training.trainer import train
from tests.support import population as small
from tests.support.window_samples import (
    DAY,
    from_nem,
    make_articles,
    make_covariates,
    make_daily_values,
    make_published,
    make_series,
    make_set,
    make_window,
    make_window_set,
)

ORIGIN = from_nem(2019, 3, 1)


def test_late_and_unknown_articles_are_found():
    frame = make_articles([ORIGIN - DAY, ORIGIN, ORIGIN + DAY])
    clean = make_window(0, candidate_ids=("a0",)).view
    dirty = make_window(0, candidate_ids=("a0", "a1", "a2", "a7")).view
    assert find_unavailable_articles([clean], frame) == []
    violations = find_unavailable_articles([dirty], frame)
    assert [v.detail.split()[1] for v in violations] == ["a1", "a2", "a7"]


def test_covariates_of_the_target_day_are_found():
    frame = make_covariates([date(2019, 2, 28), date(2019, 3, 1)])
    clean = make_window(0, covariates={"afternoon_temp_k_lag1": 290.0}).view
    observed = make_window(0, covariates={"afternoon_temp_k_lag0": 291.0}).view
    invented = make_window(0, covariates={"afternoon_temp_k_lag1": 290.5}).view
    assert find_unavailable_covariates([clean], frame) == []
    assert [len(find_unavailable_covariates([v], frame)) for v in (observed, invented)] == [1, 1]


def test_own_values_are_looked_up_a_season_before():
    by_step = {"own_t": np.arange(7.0), "own_t_lag1": np.arange(-7.0, 0.0)}
    grid = {"step_minutes": 1440, "x": np.ones(28), "horizon": 7}
    view = make_window(0, y=np.ones(7), step_covariates=by_step, **grid).view
    rows = {
        "entity": "NSW1",
        "name": "own_t",
        "start_utc": [ORIGIN + day * DAY for day in range(-7, 7)],
        "value": np.arange(-7.0, 7.0),
        "available_at": ORIGIN - DAY,
        "source": "table",
    }
    frame = pl.DataFrame(rows, schema=STEP_COVARIATE_SCHEMA)
    assert find_unavailable_step_covariates([view], frame) == []
    late = frame.with_columns(pl.col("available_at") + 2 * DAY)
    assert len(find_unavailable_step_covariates([view], late)) == 2


def test_a_publication_after_the_origin_is_found():
    frame = make_published(ORIGIN, 1)
    values = np.array([900.0 + i for i in range(48)])
    view = make_window(0, published=values).view
    assert find_unavailable_published([view], frame) == []
    is_noon = pl.col("start_utc") == from_nem(2019, 3, 1, 12)
    available = pl.when(is_noon).then(ORIGIN).otherwise("available_at")
    late = frame.with_columns(available_at=available)
    assert len(find_unavailable_published([view], late)) == 1
    # A value that was published as another quantile is no published median.
    lowest = frame.filter(pl.col("quantile") == 0.1)["value"].to_numpy()

    assert len(find_unavailable_published([make_window(0, published=lowest).view], frame)) == 1


@pytest.mark.parametrize(
    ("days", "series", "kinds"),
    [(0, "TOTALDEMAND", ["no embargo"]), (1, "HISTDEMAND", ["no embargo"]), (2, "HISTDEMAND", [])],
)
def test_splits_within_one_horizon_are_found(days, series, kinds):
    named = {"split": "test", "series_id": f"AEMO/{series}/NSW1"}
    later = make_window(1, origin=ORIGIN + days * DAY, **named)
    found = find_overlapping_targets([make_window(0), later])
    assert [violation.kind for violation in found] == kinds


def test_repeated_windows_or_numbers_are_found():
    train = make_window_set(3)
    renamed = make_window(1, window_id="other", split="test")
    test = make_set([make_window(0, split="test"), renamed, make_window(9, split="test")])
    assert [v.where for v in find_shared_windows(train, test)] == ["w0", "other"]


def test_training_inside_the_inference_period_is_found():
    train = make_window_set(3)
    assert find_training_after(train, from_nem(2026, 1, 1)) == []
    assert [v.where for v in find_training_after(train, ORIGIN + 2 * DAY)] == ["w2"]


def test_an_artifact_that_inference_touched_is_found(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    before = hash_folder(tmp_path)
    assert find_changed_files(before, hash_folder(tmp_path)) == []
    (tmp_path / "a").write_text("9")
    (tmp_path / "b").unlink()
    (tmp_path / "c").write_text("3")
    found = [(v.where, v.detail) for v in find_changed_files(before, hash_folder(tmp_path))]
    assert found == [("a", "altered"), ("b", "removed"), ("c", "added")]


SHIFT_ORIGIN = from_nem(2019, 2, 10)
FIFTY_DAYS = make_series(make_daily_values(50))


def find_moved(predict):
    """Change every value from an origin on; name the earlier windows whose forecast moves."""
    is_later = (pl.col("start_utc") >= SHIFT_ORIGIN) & pl.col("value").is_not_null()
    shifted = FIFTY_DAYS.with_columns(
        value=pl.when(is_later).then(1.5 * pl.col("value") + 1).otherwise(pl.col("value"))
    )
    before, after = (
        [v for v in build_windows(ELECTRICITY, frame).views() if v.origin_utc <= SHIFT_ORIGIN]
        for frame in (FIFTY_DAYS, shifted)
    )
    assert len(before) > 30 and [v.window_id for v in before] == [v.window_id for v in after]

    pairs = zip(before, predict(before), predict(after), strict=True)
    return [view.window_id for view, own, other in pairs if own.tobytes() != other.tobytes()]


@pytest.mark.parametrize("name", ["persistence", "calendar-ridge"])
def test_later_values_change_no_forecast(name):
    windows = build_windows(ELECTRICITY, make_series(make_daily_values(30, 7)))
    assert find_moved(fit_baseline(name, windows).predict) == []


def test_a_forecaster_that_looks_ahead_is_found():
    windows = build_windows(ELECTRICITY, FIFTY_DAYS)
    calls = iter([windows, windows.with_truth(windows.truth() + 1)])

    def cheating(views):
        truth = {w.view.window_id: w.y for w in next(calls)}
        return np.stack([truth[v.window_id] for v in views])

    assert len(find_moved(cheating)) > 30


def poison(windows):
    """Replace the truths that no training may know by noise."""
    is_held_out = np.array([w.view.split in ("test", "inference") for w in windows])
    assert is_held_out.any()
    noise_NH = np.random.default_rng(0).normal(0.0, 1e6, windows.truth().shape)
    return windows.with_truth(np.where(is_held_out[:, None], noise_NH, windows.truth()))


def test_levels_and_blends_come_from_validation_alone(tmp_path):
    short = {"run__rounds": 1, "run__validate_every": 1, "evolution__every": 0}
    known = {"forecast__known_errors": "mean", "forecast__prior_folds": 2}
    config = small.tiny(calibration__blend=True, **short, **known)
    val = small.windows("val", 3, first_day=20)
    test = small.windows("test", 3, first_day=40)

    def train_and_forecast(name, windows):
        run = tmp_path / name
        train(config, windows.split("train"), windows.split("val"), small.news_pool(), run)
        forecaster = CompEvoForecaster.load(run, small.news_pool())
        # With the forecasts of the test windows, which carry the levels.
        return forecaster.artifact_hash, forecaster.predict(windows.split("test").views())

    train_days = small.windows("train", 4)
    whole = make_set([*train_days, *val, *test])
    sealed, before_NH = train_and_forecast("clean", whole)
    again, poisoned_NH = train_and_forecast("poisoned", poison(whole))
    assert sealed == again and np.array_equal(before_NH, poisoned_NH)

    # That the probe would see it: validation does reach levels and forecasts.
    moved = make_set([*train_days, *val.with_truth(val.truth() * 1.5), *test])
    _, after_NH = train_and_forecast("moved", moved)
    assert (after_NH - before_NH).mean() > 0.05 * before_NH.mean()
