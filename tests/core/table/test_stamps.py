"""Grids of a table: months and days of a zone, their stamps, what is off them."""

import pickle

import numpy as np
import pandas as pd
import pytest

from compevo_core import Forecaster
from compevo_core.errors import DataError
from compevo_core.table.frames import read_table

RIDGE = "calendar-ridge"


def seasonal(stamps, season):
    """A season on a slope, with noise."""
    t = np.arange(len(stamps))
    noise = np.random.default_rng(0).normal(size=len(t))
    y = 100 + 0.3 * t + 10 * np.sin(2 * np.pi * t / season) + noise
    return pd.DataFrame({"ds": stamps, "y": y})


@pytest.mark.parametrize(
    ("freq", "count", "season", "zone"),
    [
        ("ME", 96, 12, "Europe/Paris"),
        ("QE", 80, 4, None),
        ("YS", 45, 7, None),
        ("D", 150, 7, "America/New_York"),
    ],
)
def test_steps_of_the_calendar_go_on_as_pandas_counts_them(freq, count, season, zone):
    stamps = pd.date_range("2008-01-01", periods=count + 3, freq=freq, tz=zone)
    table = seasonal(stamps[:-3], season)
    fitted = Forecaster(RIDGE, horizon=3, lookback=2 * season).fit(table)
    assert list(fitted.predict()["ds"]) == list(stamps[-3:])
    assert list(fitted.explain()["ds"]) == list(stamps[-3:])
    assert pickle.loads(pickle.dumps(fitted)).predict().equals(fitted.predict())  # noqa: S301 - our own
    assert fitted.plot().axes[0].get_lines()[0].get_xdata()[-1] == stamps[-4].tz_localize(None)

    # What comes after a window changes nothing of its forecast.
    back = fitted.backtest(windows=2)
    assert list(back["ds"]) == list(stamps[-9:-3])
    assert sorted(back["cutoff"].unique()) == [stamps[-9], stamps[-6]]
    late = table["ds"] >= stamps[-6]
    poisoned = Forecaster(RIDGE, horizon=3, lookback=2 * season).backtest(
        table.assign(y=table["y"].where(~late, 1e6)), windows=2
    )
    assert back["mean"].equals(poisoned["mean"])
    assert (back["mean"] - back["y"]).abs().mean() < 4


def test_a_day_without_a_midnight_begins_an_hour_later():
    # Clocks went forward at midnight, on a day of the past and on one that is forecast.
    days = pd.date_range("2007-12-25", "2009-04-25", freq="D").tz_localize(
        "Africa/Cairo", nonexistent="shift_forward"
    )
    assert [day.hour for day in days].count(1) == 2
    fitted = Forecaster(RIDGE, horizon=3, lookback=14).fit(seasonal(days[:-3], 7))
    assert list(fitted.predict()["ds"]) == list(days[-3:])


def test_aliases_periods_and_newer_rows_give_one_grid():
    stamps = pd.date_range("2010-01-01", periods=120, freq="MS")
    table = seasonal(stamps, 12)
    expected = Forecaster(RIDGE, horizon=3).fit(table).predict()
    rows, form = read_table(table, Forecaster(), "MS")
    for freq in ("1mo", "M", "ME", None):
        again, same = read_table(table, Forecaster(), freq)
        assert again.equals(rows) and same == form
    as_periods = table.assign(ds=pd.PeriodIndex(stamps, freq="M"))
    assert Forecaster(RIDGE, horizon=3).fit(as_periods).predict().equals(expected)

    earlier = Forecaster(RIDGE, horizon=3).fit(table.head(118))
    assert earlier.predict(table.tail(2))["ds"].equals(expected["ds"])


@pytest.mark.parametrize(
    ("moved", "freq", "message"),
    [
        (3, None, r"2010-06-04 is off the grid of 1mo, whose stamps are on day 1 of a month"),
        (3, "3mo", r"2010-06-04 is off the grid of 3mo"),
        (0, "3mo", r"2010-02-01 is off the grid of 3mo, whose step begins in 2010-01.*80 such"),
    ],
)
def test_a_stamp_off_the_months_is_named(moved, freq, message):
    stamps = pd.Series(pd.date_range("2010-01-01", periods=120, freq="MS"))
    stamps[5] += pd.Timedelta(days=moved)
    table = seasonal(pd.DatetimeIndex(stamps), 12)
    with pytest.raises(DataError, match=message):
        Forecaster(RIDGE, freq=freq).fit(table)


def test_four_weeks_with_a_gap_are_no_months():
    stamps = pd.date_range("2010-01-01", periods=121, freq="28D").delete(60)
    fitted = Forecaster(RIDGE, horizon=2).fit(seasonal(stamps, 13))
    assert "2 steps of 4w after" in repr(fitted)


def test_values_of_a_zone_are_not_known_before_its_own_midnight():
    """A plan that is known as the day begins in Auckland is too late for that day's forecast."""
    zone = "Pacific/Auckland"
    days = pd.date_range("2022-01-01", periods=200, freq="D", tz=zone)
    rng = np.random.default_rng(1)
    plan = rng.normal(size=200)
    table = pd.DataFrame(
        {"ds": days, "y": 50 + 5 * plan + 0.1 * rng.normal(size=200), "plan": plan}
    )

    def forecast(known):
        made = Forecaster(RIDGE, horizon=1, lookback=14, ahead=["plan"], known_at="known")
        back = made.backtest(table.assign(known=known), windows=3)
        return float((back["mean"] - back["y"]).abs().mean())

    early = forecast(pd.Series(days - pd.Timedelta(minutes=1)).dt.tz_convert("UTC"))
    late = forecast(pd.Series(days + pd.Timedelta(minutes=1)).dt.tz_convert("UTC"))
    assert early < 1 < 2 < late


def test_the_season_of_the_values_and_last_years_value_are_used():
    rng = np.random.default_rng(2)
    cycle = np.tile([5.0, 9, 2, 7, 1, 8, 3, 0, 4, 6], 100) + rng.normal(0, 0.3, 1000)
    hours = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=1000, freq="h"), "y": cycle})
    back = Forecaster("persistence", horizon=20, lookback=40).backtest(hours, windows=2)
    assert (back["mean"] - back["y"]).abs().mean() < 0.6

    # Each day of the year has a value of its own, which no week before it tells.
    year = rng.normal(size=364)
    y = 50 + 5 * np.resize(year, 900) + 0.3 * rng.normal(size=900)
    days = pd.DataFrame({"ds": pd.date_range("2020-01-06", periods=900, freq="D"), "y": y})
    back = Forecaster(RIDGE, horizon=7, lookback=28).backtest(days, windows=2)
    assert (back["mean"] - back["y"]).abs().mean() < 2.5
    late = days["ds"] >= back["cutoff"].max()
    poisoned = Forecaster(RIDGE, horizon=7, lookback=28).backtest(
        days.assign(y=days["y"].where(~late, 1e6)), windows=2
    )
    assert back["mean"].equals(poisoned["mean"])
