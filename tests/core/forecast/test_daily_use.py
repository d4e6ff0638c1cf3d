"""A population in daily use: weights, priors and quantiles that move on with what became known."""

from pathlib import Path

import numpy as np
import pytest

from compevo_core.data.window import WindowSet
from compevo_core.errors import LeakageError
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.forecast.prediction import Prediction
from tests.core.forecast.test_forecaster import seal_population
from tests.support.population import news_pool, windows

DAYS = windows("test", 12, first_day=70)
DAILY = {
    "selection__online": True,
    "selection__rule": "boa",
    "selection__parts": 4,
    "forecast__prior": "calendar-ridge",
    "forecast__refit_days": 3,
    "forecast__known_errors": "mean",
    "calibration__known_errors": "none",
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("daily")
    seal_population(folder, **DAILY)
    return folder


def _load(folder: Path) -> CompEvoForecaster:
    return CompEvoForecaster.load(folder, news_pool())


@pytest.fixture(scope="module")
def followed(sealed: Path) -> Prediction:
    """The days as a forecaster follows them."""
    return _load(sealed).follow(DAYS)


def _poison(days: WindowSet, first: int) -> WindowSet:
    """The same days with another truth from one on."""
    origins = sorted({view.origin_utc for view in days.views()})
    truth_NH = days.truth()
    is_late = [view.origin_utc >= origins[first] for view in days.views()]
    truth_NH[is_late] *= 3.0
    return days.with_truth(truth_NH)


def test_no_forecast_knows_the_truth_of_its_day_or_of_a_later_one(
    sealed: Path, followed: Prediction
) -> None:
    clean = followed
    poisoned = _load(sealed).follow(_poison(DAYS, 8))
    origins = sorted({view.origin_utc for view in DAYS.views()})
    until = np.array([view.origin_utc <= origins[8] for view in DAYS.views()])

    for name in ("aggregate", "step_weights", "quantiles"):
        assert np.array_equal(
            getattr(clean, name)[until], getattr(poisoned, name)[until], equal_nan=True
        ), name
    assert np.array_equal(clean.agents[:, until], poisoned.agents[:, until])
    # The days after it do know.
    assert not np.allclose(clean.step_weights[~until], poisoned.step_weights[~until])
    assert not np.allclose(clean.bases[:, ~until], poisoned.bases[:, ~until])


def test_following_days_is_forecasting_and_observing_them_one_by_one(
    sealed: Path, followed: Prediction
) -> None:
    forecaster = _load(sealed)
    for start in range(0, len(DAYS), 2):
        day = DAYS[start : start + 2]
        made = forecaster.predict_by_agent(day.views())
        assert np.array_equal(made.aggregate, followed.aggregate[start : start + 2])
        assert np.array_equal(made.step_weights, followed.step_weights[start : start + 2])
        assert np.array_equal(made.quantiles, followed.quantiles[start : start + 2], equal_nan=True)
        forecaster.observe(day)


def test_following_leaves_the_forecaster_as_it_was(sealed: Path, followed: Prediction) -> None:
    forecaster = _load(sealed)
    before = forecaster.predict(DAYS.views())
    assert np.array_equal(forecaster.follow(DAYS).aggregate, followed.aggregate)
    assert np.array_equal(forecaster.predict(DAYS.views()), before)


def test_a_view_of_the_evening_before_does_not_know_the_day_that_is_not_over(sealed: Path) -> None:
    evening = WindowSet(
        [w.change_view(unknown_steps=14, window_id=f"{w.view.window_id}-17") for w in DAYS],
        dataset=DAYS.dataset,
    )
    clean = _load(sealed).follow(evening)
    poisoned = _load(sealed).follow(_poison(evening, 8))
    origins = sorted({view.origin_utc for view in DAYS.views()})
    # Day 9 is forecast at 17:00 of day 8, whose truth is known at its end.
    until = np.array([view.origin_utc <= origins[9] for view in DAYS.views()])
    assert np.array_equal(clean.aggregate[until], poisoned.aggregate[until])
    assert not np.allclose(clean.aggregate[~until], poisoned.aggregate[~until])


def test_priors_are_fitted_anew_after_the_days_that_were_set(sealed: Path) -> None:
    forecaster = _load(sealed)
    first = dict(forecaster.priors.fitted)
    # The last day that they were fitted on is day 39; the next fit is due when day 42 is over.
    forecaster.observe(windows("test", 1, first_day=41))
    assert forecaster.priors.fitted == first
    forecaster.observe(windows("test", 1, first_day=42))
    assert all(forecaster.priors.fitted[key] is not prior for key, prior in first.items())


def test_weights_sum_to_one_and_differ_by_part_of_the_day(followed: Prediction) -> None:
    weights_NAH = followed.step_weights
    assert np.allclose(weights_NAH.sum(axis=1), 1.0)
    last_AH = weights_NAH[-1]
    assert not np.allclose(last_AH[:, :12], last_AH[:, 36:])
    assert np.allclose(last_AH[:, :12], last_AH[:, :1])


def test_a_day_that_was_observed_is_not_forecast_again(sealed: Path) -> None:
    forecaster = _load(sealed)
    forecaster.observe(DAYS)
    with pytest.raises(LeakageError, match="load the model again"):
        forecaster.follow(DAYS)
