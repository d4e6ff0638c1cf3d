"""Covariates that are known ahead, one for each step: what was known counts, and nothing later."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.data.build import build_windows
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.leakage import find_unavailable_step_covariates
from compevo_pipeline.sources.own.declaration import make_spec
from compevo_pipeline.sources.own.frames import parse_ahead
from tests.support.own_tables import declare, parse_rows, wrap

FIRST = datetime(2024, 1, 1)  # noqa: DTZ001 - stamps of the table have no zone
HOUR = timedelta(hours=1)
DAYS = 150
KNOWN_AT = {"known_at": "known_at"}


def declare_ahead(**ahead):
    weather = {"file": "weather.csv", "time": "stamp", "values": ["temperature"], **ahead}
    grid = {"step": "1h", "horizon": 24, "lookback": 168}
    return declare({"grid": grid, "ahead": weather})


def make_temperature():
    rng = np.random.default_rng(1)
    by_day = np.cumsum(rng.normal(size=DAYS)) * 2
    return 10 + np.repeat(by_day, 24) + 5 * np.sin(2 * np.pi * np.arange(24 * DAYS) / 24)


def write_ahead(*, late_error=0.0):
    """Write each hour's forecast as issued at noon of the day before, and a correction at noon."""
    rows = ["stamp,temperature,known_at"]
    for i, value in enumerate(make_temperature()):
        stamp = FIRST + i * HOUR
        midnight = stamp.replace(hour=0)
        rows.append(f"{stamp},{value:.3f},{midnight - 12 * HOUR}")
        rows.append(f"{stamp},{value + late_error:.3f},{midnight + 12 * HOUR}")
    return "\n".join(rows) + "\n"


def make_windows(ahead, **keys):
    """Cut windows of a load that follows the square of the temperature."""
    rng = np.random.default_rng(2)
    temperature = make_temperature()
    load = 500 + 2 * (temperature - 15) ** 2 + rng.normal(size=len(temperature))
    rows = [f"{FIRST + i * HOUR},{value:.2f}" for i, value in enumerate(load)]
    declaration = declare_ahead(**(keys or KNOWN_AT))
    series = parse_rows(rows, declaration)
    frame = None
    if ahead is not None and declaration.ahead is not None:
        raw = wrap(ahead, "weather.csv")
        frame = parse_ahead(raw, declaration, declaration.ahead, ["load_mw"])
    return build_windows(make_spec(declaration), series, step_covariates=frame), frame


def forecast(windows, name):
    return fit_baseline(name, windows.split("train")).predict(windows.split("test").views())


@pytest.mark.parametrize("name", ["calendar-ridge", pytest.param("gbm", marks=pytest.mark.slow)])
def test_models_use_the_forecast_weather_of_each_hour(name):
    with_weather, _ = make_windows(write_ahead())
    without, _ = make_windows(None)
    truth_NH = without.split("test").truth()
    errors = [
        np.abs(forecast(windows, name) - truth_NH).mean() for windows in (with_weather, without)
    ]
    assert errors[0] < 0.5 * errors[1]


def test_what_came_later_changes_no_forecast_and_a_planted_leak_is_found():
    windows, frame = make_windows(write_ahead())
    poisoned, poisoned_frame = make_windows(write_ahead(late_error=50.0))
    assert frame is not None and poisoned_frame is not None
    late = poisoned_frame.filter(pl.col("available_at").dt.hour() == 12)
    assert not late.equals(frame.filter(pl.col("available_at").dt.hour() == 12))

    views = windows.views()
    for view, other in zip(views, poisoned.views(), strict=True):
        assert np.array_equal(
            view.step_covariates["own_temperature"], other.step_covariates["own_temperature"]
        )
    assert find_unavailable_step_covariates(views, frame) == []

    # The same rows, all known a day later: nothing that the views hold was known.
    later = frame.with_columns(pl.col("available_at").dt.offset_by("1d"))
    assert find_unavailable_step_covariates(views[:1], later)[0].kind == "late covariate"


def test_known_from_the_start_is_said_and_measured_values_have_no_way_in():
    text = "stamp,temperature\n" + "".join(
        f"{FIRST + i * HOUR},{value:.3f}\n" for i, value in enumerate(make_temperature())
    )
    windows, _ = make_windows(text, known="start")
    assert all("own_temperature" in view.step_covariates for view in windows.views())
    with pytest.raises(ConfigError, match="give either known_at"):
        declare_ahead()
    with pytest.raises(DataError, match=r"row 3.*comes twice"):
        make_windows("stamp,temperature\n2024-01-01 00:00,1\n2024-01-01 00:00,2\n", known="start")
    with pytest.raises(DataError, match=r"row 2.*off the grid"):
        make_windows("stamp,temperature\n2024-01-01 00:30,1\n2024-01-01 01:30,2\n", known="start")


def test_noise_known_ahead_changes_no_forecast():
    rng = np.random.default_rng(3)
    text = "stamp,temperature\n" + "".join(
        f"{FIRST + i * HOUR},{value:.3f}\n" for i, value in enumerate(rng.normal(size=24 * DAYS))
    )
    noisy, _ = make_windows(text, known="start")
    without, _ = make_windows(None)
    assert np.array_equal(forecast(noisy, "calendar-ridge"), forecast(without, "calendar-ridge"))
