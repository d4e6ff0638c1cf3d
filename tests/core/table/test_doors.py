"""Strangers' tables and those of benchmarks: stamps and cells as texts, own ends, faults."""

import os
import shutil
import subprocess
import sys
import uuid
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from benchmarks.rows import REPO
from benchmarks.tables import TASKS
from compevo_core import Forecaster
from compevo_core.data.content import describe_faults
from compevo_core.errors import DataError
from compevo_core.table.frames import SERIES, read_table

RIDGE = Forecaster("calendar-ridge", horizon=5)


def make_days(count=240, series=None, start="2024-01-01"):
    """Days with a week and noise; of several series below each other."""
    rng = np.random.default_rng(2)
    stamps = pd.date_range(start, periods=count, freq="D")
    values = 100 + 20 * np.sin(np.arange(count) / 7 * 2 * np.pi) + rng.normal(size=count)
    one = pd.DataFrame({"ds": stamps, "y": values})
    if series is None:
        return one
    return pd.concat([one.assign(unique_id=name) for name in series], ignore_index=True)


@pytest.mark.parametrize(
    ("freq", "label"),
    [
        ("D", "%d.%m.%Y"),
        ("h", "%Y-%m-%d %H:%M:%S UTC"),
        ("h", "%Y-%m-%d %H:%M+00"),
        ("MS", "%Y-%m"),
        ("MS", "%b %Y"),
        ("W-MON", "%G-W%V"),
    ],
)
def test_stamps_are_read_like_file_texts(freq, label):
    stamps = pd.date_range("2001-01-01", periods=300, freq=freq)
    values = 50 + np.sin(np.arange(300)) + np.arange(300) % 7
    table = pd.DataFrame({"ds": stamps.strftime(label), "y": values})
    forecast = Forecaster("last-value", horizon=2).fit(table).predict()
    expected = pd.date_range(stamps[-1], periods=3, freq=freq)[1:]
    assert list(pd.to_datetime(forecast["ds"]).dt.tz_localize(None)) == list(expected)


def test_epoch_seconds_and_comma_numbers_are_read():
    table = make_days()
    seconds = [f"{stamp.timestamp():.0f}" for stamp in table["ds"]]
    values = [f"{value:.2f}".replace(".", ",") for value in table["y"]]
    texts = pd.DataFrame({"ds": seconds, "y": values})
    forecast = clone(RIDGE).fit(texts).predict()
    expected = clone(RIDGE).fit(table.round(2)).predict()
    assert np.allclose(forecast["mean"], expected["mean"])


@pytest.mark.parametrize(
    "write",
    [
        # A spreadsheet counts days, a logger is late, and +05:30 is no zone.
        lambda hours: (hours - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1),
        lambda hours: hours + pd.to_timedelta(np.arange(len(hours)) % 5 - 2, unit="s"),
        lambda hours: pd.to_datetime(hours.strftime("%Y-%m-%dT%H:%M:%S+05:30")),
    ],
)
def test_hours_in_other_forms_are_hours(write):
    hours = pd.date_range("2024-01-01", periods=24 * 40, freq="h")
    table = pd.DataFrame({"ds": write(hours), "y": np.arange(len(hours)) % 24.0})
    first = Forecaster("last-value", horizon=3, freq="1h").fit(table).predict()["ds"][0]
    if first.tzinfo is not None:
        first = first.tz_convert("+05:30").tz_localize(None)
    assert first == hours[-1] + pd.Timedelta(hours=1)


def test_newer_rows_are_looked_at_as_well():
    fitted = clone(RIDGE).fit(make_days())
    newer = make_days(2, start="2024-08-28")
    with warnings.catch_warnings(action="error"):
        fitted.predict(newer)
        fitted.predict(pd.concat([make_days(), newer]))
    with pytest.warns(UserWarning, match=r"the last 2 value.*do not go on from those before"):
        fitted.predict(newer.assign(y=10 * newer["y"]))
    with pytest.warns(UserWarning, match="rows end 2024-07-18, yet the forecast begins at 2024"):
        fitted.predict(make_days(200))
    with pytest.warns(UserWarning, match=r"240 of 240 known values have changed, 1000 times as hi"):
        fitted.predict(make_days().assign(y=1000 * make_days()["y"]))
    with pytest.raises(DataError, match=r"of the table, which are 1d apart.*: sum or"):
        fitted.predict(
            pd.DataFrame({"ds": pd.date_range("2024-08-28", periods=48, freq="h"), "y": 100.0})
        )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.assign(ds=t["ds"].dt.tz_localize("Europe/Paris")), r"tz_localize\(None\)"),
        (lambda t: t.assign(ds=t["ds"] + pd.Timedelta(hours=12)), "3 row.* the first .* 12:00"),
    ],
)
def test_values_known_ahead_at_other_steps_are_refused(spoil, message):
    table = make_days().assign(plan=1.0)
    future = pd.DataFrame({"ds": pd.date_range("2024-08-28", periods=3), "plan": 1.0})
    fitted = clone(RIDGE).set_params(ahead=["plan"], horizon=3).fit(table)
    assert len(fitted.predict(future=future)) == 3
    with pytest.raises(DataError, match=message):
        fitted.predict(future=spoil(future))


def test_a_stamp_between_steps_is_named():
    table = make_days()
    table.loc[100, "ds"] += pd.Timedelta(hours=5)
    with pytest.raises(DataError, match=r"1 row.* 1d apart, the first 2024-04-10 05:00"):
        clone(RIDGE).fit(table)
    other = make_days().assign(unique_id="b", ds=make_days()["ds"] + pd.Timedelta(hours=6))
    with pytest.raises(DataError, match=r"240 row.* between"):
        clone(RIDGE).fit(pd.concat([make_days(series=["a"]), other]))


def test_numbers_with_words_among_them_are_read():
    table = make_days()
    words = table.assign(y=table["y"].astype(object).where(table.index != 7, "n/a"))
    expected = clone(RIDGE).fit(table.assign(y=table["y"].where(table.index != 7))).predict()
    pd.testing.assert_frame_equal(clone(RIDGE).fit(words).predict(), expected)
    stamps = pd.Categorical(table["ds"].astype(str))
    assert len(clone(RIDGE).fit(table.assign(ds=stamps)).predict()) == 5


def test_periods_in_an_index_of_two_levels_are_stamps():
    months = pd.period_range("2015-01", periods=120, freq="M")
    index = pd.MultiIndex.from_product([["a", "b"], months], names=["unique_id", "ds"])
    table = pd.DataFrame({"y": np.arange(240) % 12.0}, index=index)
    forecast = clone(RIDGE).fit(table).predict()
    assert list(forecast["ds"][:2]) == [pd.Timestamp("2025-01-01"), pd.Timestamp("2025-02-01")]
    with pytest.raises(DataError, match="several columns are named 'ds'"):
        clone(RIDGE).fit(make_days().set_index("ds", drop=False))


def test_columns_of_two_levels_are_named_as_over_two_rows():
    wide = make_days(series=["a", "b"]).pivot(index="ds", columns="unique_id", values=["y"])
    with pytest.warns(UserWarning, match="not read: 'y b'"):
        forecast = clone(RIDGE).set_params(value="y a").fit(wide).predict()
    assert list(forecast["mean"]) == list(clone(RIDGE).fit(make_days()).predict()["mean"])


def test_columns_with_gaps_or_without_use_are_named():
    with pytest.warns(UserWarning, match="not read: 'price', 'shop'"):
        clone(RIDGE).fit(make_days().assign(price=1.0, shop="a"))
    table = make_days().assign(plan=np.where(np.arange(240) % 3, 1.0, np.nan))
    with pytest.warns(UserWarning, match="'plan' is empty at 80 of 240 steps that have a value"):
        clone(RIDGE).set_params(ahead=["plan"]).fit(table)


def test_each_series_is_forecast_from_its_own_end():
    table = pd.concat([make_days(series=["a", "b"]), make_days(238, series=["late"])])
    forecast = clone(RIDGE).fit(table).predict()
    first = forecast.groupby("unique_id")["ds"].min()
    assert list(first) == [*pd.to_datetime(["2024-08-28"] * 2), pd.Timestamp("2024-08-26")]

    newer = make_days(1, series=["a"], start="2024-08-28")
    moved = clone(RIDGE).fit(table).predict(newer).groupby("unique_id")["ds"].min()
    assert list(moved) == [pd.Timestamp(f"2024-08-{day}") for day in (29, 28, 26)]


def test_a_late_series_changes_no_other():
    table = pd.concat([make_days(series=["a"]), make_days(238, series=["late"])])
    table["plan"] = 1.0
    fitted = clone(RIDGE).set_params(ahead=["plan"]).fit(table)
    plan = pd.DataFrame({"ds": pd.date_range("2024-08-26", periods=7, freq="D"), "plan": 1.0})
    first = fitted.predict(future=plan).groupby("unique_id")["ds"].min()
    assert list(first) == [pd.Timestamp("2024-08-28"), pd.Timestamp("2024-08-26")]


def test_an_ended_series_holds_back_no_other():
    dead = [f"dead{number}" for number in range(1, 10)]
    table = pd.concat([make_days(900, series=["a", "b"]), make_days(300, series=dead)])
    with pytest.warns(UserWarning, match="no forecast of dead1, .*, dead8 and 1 more: no value"):
        forecast = clone(RIDGE).fit(table).predict()
    assert set(forecast["unique_id"]) == {"a", "b"}
    assert forecast["ds"].min() == make_days(901)["ds"].max()


@pytest.mark.parametrize("method", ["calendar-ridge", "lagged-gbm", "mixture"])
def test_a_new_series_is_forecast_from_others(method):
    table = make_days(900, series=["a", "b"])
    table["y"] *= table["unique_id"].map({"a": 1, "b": 30})
    fitted = clone(RIDGE).set_params(method=method).fit(table)
    days = make_days(905, series=["new"]).assign(y=lambda rows: 5000 + 10 * rows["y"])
    opened = days[780:900]
    with pytest.warns(UserWarning, match="not in the fit: also, new; what was learnt of the oth"):
        late = opened.assign(unique_id="also")
        forecast = fitted.predict(pd.concat([opened, late])).set_index("unique_id")
    assert forecast.loc[["a", "b"]].reset_index().equals(fitted.predict())

    new = forecast.loc["new"]
    assert (
        np.abs(new["mean"].to_numpy() - days["y"].tail(5)).mean() < 20 and new["q0.1"].notna().all()
    )
    assert (new["q0.9"] - new["q0.1"]).between(5, 120).all()
    parts = fitted.explain(opened).query("unique_id == 'new'")
    total = (parts["weight"] * parts["forecast"]).groupby(parts["ds"]).sum()
    assert np.allclose(total, new["mean"])


@pytest.mark.parametrize("reconciliation", ["wls", "mint", "ols", "bottom-up"])
def test_totals_add_up_in_forecast_and_backtest(reconciliation):
    table = pd.concat([make_days(series=[1, 2]), make_days(150, series=[3], start="2024-03-31")])
    totals = {"all": ["*"], "some": ["1", 2]}
    model = clone(RIDGE).set_params(totals=totals, reconciliation=reconciliation).fit(table)
    back = model.backtest(windows=2)
    for made in (model.predict(), model.predict(make_days(1, series=[1, 2, 3])), back):
        by_name = {name: part["mean"].to_numpy() for name, part in made.groupby("unique_id")}
        assert set(by_name) == {"1", "2", "3", "all", "some"}
        np.testing.assert_allclose(by_name["some"], by_name["1"] + by_name["2"])
        np.testing.assert_allclose(by_name["all"], by_name["some"] + by_name["3"])
    parts = back[back["unique_id"].isin(["1", "2", "3"])].groupby("ds")["y"].sum()
    assert np.allclose(back[back["unique_id"] == "all"].set_index("ds")["y"], parts)


def test_fitted_values_are_validations_held_out_forecasts():
    table = make_days(series=["a", "b"])
    values = clone(RIDGE).fit(table).fitted_values()
    assert list(values.columns) == ["unique_id", "ds", "cutoff", "y", "mean"]
    truth = values.merge(table, on=["unique_id", "ds"], suffixes=("", "_table"))
    assert len(truth) == len(values) and np.allclose(truth["y"], truth["y_table"])
    assert (values["ds"] - values["cutoff"]).max() == pd.Timedelta(days=4)
    assert 0.5 < (values["mean"] - values["y"]).abs().mean() < 2

    spoiled = table.assign(y=table["y"].where(table["ds"] <= values["cutoff"].min(), 0.0))
    again = clone(RIDGE).set_params(low=-1e9).fit(spoiled).fitted_values()
    first = values["cutoff"] == values["cutoff"].min()
    assert np.allclose(again["mean"][first], values["mean"][first])


def test_a_forecast_reaches_over_a_long_gap():
    whole = clone(RIDGE).fit(make_days()).predict()

    with pytest.warns(UserWarning, match=r"have the values of the season before, in y \(8\)"):
        forecast = clone(RIDGE).fit(make_days().drop(index=range(220, 228))).predict()

    assert np.abs(forecast["mean"] - whole["mean"]).max() < 3


def test_names_are_uuids_and_seeds_of_numpy():
    names = [uuid.UUID(int=number) for number in (1, 2)]

    made = clone(RIDGE).set_params(seed=np.int64(3)).fit(make_days(series=names)).predict()

    assert set(made["unique_id"]) == {str(name) for name in names}


def test_names_that_are_floats_join_the_table_again():
    table = make_days(series=[1.0, 2.0])
    fitted = clone(RIDGE).fit(table)
    forecast = fitted.predict()
    assert len(table[["unique_id"]].drop_duplicates().merge(forecast, on="unique_id")) == 10
    assert len(fitted.predict(make_days(2, series=[1, 2], start="2024-08-28"))) == 10


def test_odd_values_and_missing_bands_are_warned_of():
    table = make_days(series=range(10))
    table.loc[table["ds"] > "2024-08-17", "y"] = 100.0
    with pytest.warns(UserWarning, match="series 0: 10.*; series 7: 10.* and 2 more"):
        clone(RIDGE).fit(table)

    hours = pd.date_range("2024-01-01", periods=24 * 20, freq="h")
    short = pd.DataFrame({"ds": hours, "y": np.random.default_rng(1).normal(size=len(hours))})
    fitted = Forecaster("last-value", horizon=24).fit(short)
    with pytest.warns(UserWarning, match="no bands of 1"):
        assert fitted.predict()["q0.1"].isna().all()


def test_sparse_sales_add_up_to_what_is_expected():
    rng = np.random.default_rng(5)
    table = make_days(600)
    table["y"] = np.where(rng.random(600) < 0.05, rng.integers(1, 6, 600), 0.0)
    fitted = Forecaster("auto", horizon=14).fit(table)
    forecast = fitted.predict()
    assert forecast["mean"].mean() == pytest.approx(table["y"].mean(), rel=0.5)
    assert fitted.backtest(table, windows=3)["mean"].mean() > 0.05


def test_a_mean_outside_its_band_says_so():
    table = make_days(600)
    table["y"] = np.where(np.arange(600) % 50 == 7, 9.0, 0.0)
    fitted = Forecaster("calendar-ridge", horizon=14).fit(table)
    with pytest.warns(UserWarning, match="is outside") as said:
        forecast = fitted.predict()
    is_inside = forecast["mean"].between(forecast["q0.1"], forecast["q0.9"])
    assert f"the mean of y is outside its 80 % band at {(~is_inside).sum()} step(s)" in str(
        said[0].message
    )


def test_no_forecast_goes_below_zero_without_cause():
    hours = np.arange(24 * 120)
    rng = np.random.default_rng(3)
    sun = np.clip(10 * np.sin(hours / 24 * 2 * np.pi) + rng.normal(size=len(hours)), 0, None)
    stamps = pd.date_range("2024-01-01", periods=len(hours), freq="h")
    table = pd.DataFrame({"ds": stamps, "y": sun})
    forecast = Forecaster("calendar-ridge", horizon=24).fit(table).predict()
    assert forecast.drop(columns="ds").min().min() == 0
    free = Forecaster("calendar-ridge", horizon=24, low=-100).fit(table).predict()
    assert free["q0.025"].min() < 0


def test_a_fit_outlives_its_folder_and_children(tmp_path):
    fitted = clone(RIDGE).fit(make_days())
    loaded = Forecaster.load(fitted.save(tmp_path / "kept"))
    shutil.rmtree(loaded._fitted.folder)
    assert loaded.predict().equals(fitted.predict())

    code = (
        "import os, sys\n"
        "from tests.core.table.test_doors import RIDGE, make_days\n"
        "fitted = RIDGE.fit(make_days())\n"
        "if os.fork() == 0: sys.exit(0)\n"
        "os.wait(); print(len(fitted.predict()))"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=REPO)
    assert done.stdout.strip() == "5"


def test_damaged_folders_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    fitted = clone(RIDGE).fit(make_days())
    kept = fitted.save("~/kept")
    assert kept == tmp_path / "kept"
    assert Forecaster.load(kept).predict().equals(fitted.predict())

    rows = kept / "rows.parquet"
    rows.write_bytes(rows.read_bytes()[:100])
    with pytest.raises(DataError, match="kept is damaged"):
        Forecaster.load("~/kept")


def test_hours_of_a_market_are_forecast():
    days = pd.bdate_range("2024-01-02", periods=120)
    opens = [day + pd.Timedelta("9h30min") for day in days]
    stamps = np.concatenate([pd.date_range(at, periods=13, freq="30min") for at in opens])
    walk = 100 + np.cumsum(np.random.default_rng(1).normal(0, 0.1, len(stamps)))
    table = pd.DataFrame({"ds": stamps, "y": walk})
    forecast = Forecaster("last-value", horizon=13).fit(table).predict()
    assert forecast["ds"].dt.strftime("%H:%M").iloc[0] == "09:30" and len(forecast) == 13


def test_a_split_without_a_window_says_why():
    table = make_days(120)
    table = table[table.index % 20 < 6]
    with pytest.raises(DataError, match=r"no window .*input gap"):
        Forecaster("last-value", horizon=5, lookback=28, freq="1d").fit(table)


FIELD = REPO.parent / "shared" / "field"  # cases of other people, where they are at hand


def make_table(task):
    """A season and noise on the grid of a table; sparse, or zero at night, where that is."""
    rng = np.random.default_rng(len(task.name))
    season = task.seasons[0]
    count = 120 * season if task.freq[-1] in "hn" else 8 * max(season, task.horizon) + 120
    stamps = pd.date_range("2023-01-02", periods=count, freq=task.freq)
    wave = 10 * np.sin(2 * np.pi * np.arange(count) / season)
    values = 100 + wave + rng.normal(0, 1, count)
    if task.name == "intermittent":
        values = np.where(rng.random(count) < 0.2, rng.integers(1, 9, count), 0).astype(float)
    if task.name == "solar":
        values = np.clip(wave * rng.uniform(0.5, 1.5, count), 0, None)
    columns = {name: rng.normal(size=count) for name in task.ahead}
    one = pd.DataFrame({"unique_id": "s", "ds": stamps, "y": values} | columns)
    return pd.concat([one, one.assign(unique_id="t", y=3 * one["y"])])


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_each_kind_of_table_is_forecast(task):
    table = make_table(task)
    rows, form = read_table(table, Forecaster())
    for (name,), part in rows.group_by(SERIES):
        assert describe_faults(str(name), part, form.clock.step) == []

    steps = task.horizon * 7 // 5 if task.freq == "B" else task.horizon
    ends = table["ds"].drop_duplicates().iloc[-task.horizon :]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = Forecaster("seasonal-mean", horizon=steps, ahead=task.ahead)
        fitted.fit(table[~table["ds"].isin(ends)])
        future = table[table["ds"].isin(ends)].drop(columns="y") if task.ahead else None
        forecast = fitted.predict(future=future)
    assert list(forecast[forecast["unique_id"] == "t"]["ds"]) == list(ends)
    assert forecast["mean"].between(forecast["q0.1"], forecast["q0.9"]).all()


@pytest.mark.slow
@pytest.mark.skipif(not FIELD.is_dir(), reason="the cases are not at hand")
@pytest.mark.parametrize("name", ["cases_open", "cases_pass"])
def test_cases_of_other_people_hold(name):
    command = [sys.executable, str(FIELD / f"{name}.py")]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    assert "FAIL" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" ok, 0 failed"), done.stderr[-500:]
