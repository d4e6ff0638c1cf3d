"""Windows with other forecast weather: what is replaced, and what stays."""

from datetime import timedelta

import numpy as np
import pytest

from compevo_core.errors import ConfigError
from compevo_core.paper.changes import DISTANCE, change_weather
from tests.support.window_samples import make_window_set

DAY = timedelta(days=1)
N_DAYS = 12
OTHERS = ("past_lag1", "past_mean14", "published_error_lag1", "rooftop_mw", "rooftop_mw_mean14")
WEATHER = ("temperature_c", "temperature_c_lag1", "temperature_c_mean14")


@pytest.fixture(scope="module")
def windows():
    """One window a day, whose covariates by step are all the number of its day."""
    given = make_window_set(N_DAYS)
    first = given[0].view.origin_utc
    return given.with_windows(
        window.change_view(
            origin_utc=first + i * DAY,
            step_covariates={name: np.full(48, float(i)) for name in (*OTHERS, *WEATHER)},
        )
        for i, window in enumerate(given)
    )


def test_without_weather_all_else_stays(windows):
    for before, after in zip(windows, change_weather(windows, "none"), strict=True):
        assert set(after.view.step_covariates) == set(OTHERS)
        assert after.y.tobytes() == before.y.tobytes()
    assert change_weather(windows, "own") is windows


def test_weather_of_another_day_comes_from_before_and_no_other(windows):
    changed = change_weather(windows, "nine-days-before")
    for day, view in enumerate(changed.views()):
        lent = view.step_covariates
        assert all((lent[name] == day).all() for name in OTHERS)
        if day < DISTANCE / DAY:
            assert not set(lent) & set(WEATHER)
        else:
            assert all((lent[name] == day - 9).all() for name in WEATHER)
    with pytest.raises(ConfigError, match="no weather 'tomorrow'"):
        change_weather(windows, "tomorrow")
