"""Groups of series: the numbers of their own Forecasters, lost workers, interruptions, errors."""

import os
import signal
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sklearn.linear_model import Ridge

from compevo_core import Forecaster, GroupedForecaster
from compevo_core.errors import ConfigError, DataError, PackageMissing
from compevo_core.table import groups

DAYS = pd.date_range("2024-01-01", periods=120)
RIDGE = Forecaster("calendar-ridge", horizon=7)


def make_table(count=6):
    """Series of days whose names are numbers, in two countries."""
    rng = np.random.default_rng(0)
    tables = []
    for name in range(count):
        y = 10 + name + DAYS.day_of_week + rng.normal(size=len(DAYS))
        country = "NZ" if name < 2 else "AU"
        tables.append(pd.DataFrame({"unique_id": name, "ds": DAYS, "y": y, "country": country}))
    return pd.concat(tables, ignore_index=True)


TABLE = make_table()
TABLE.loc[0, "country"] = "AU"  # the last value of a series counts
PLAIN = TABLE.drop(columns="country")


def run_plain(forecaster, table, size, call):
    """What Forecasters of the blocks say, one after the other."""
    block = table["unique_id"] // size
    plain = Forecaster(**forecaster.get_params())
    parts = [call(plain.fit(table[block == i]), i) for i in block.unique()]
    return pd.concat(parts, ignore_index=True)


def test_each_group_is_a_forecaster_of_its_series(tmp_path):
    grouped = GroupedForecaster(RIDGE, tmp_path, size=4).fit(PLAIN)
    got = grouped.predict(level=80)
    expected = run_plain(RIDGE, PLAIN, 4, lambda it, _: it.predict(level=80))
    pd.testing.assert_frame_equal(got, expected)
    tested = GroupedForecaster(RIDGE, tmp_path / "other", size=4).backtest(PLAIN, windows=2)
    expected = run_plain(RIDGE, PLAIN, 4, lambda it, _: it.backtest(windows=2))
    pd.testing.assert_frame_equal(tested, expected)

    week = PLAIN[PLAIN["ds"] > DAYS[-8]].assign(ds=lambda t: t["ds"] + pd.Timedelta(days=7))
    moved = GroupedForecaster(RIDGE, tmp_path).predict(pl.from_pandas(week))
    block = week["unique_id"] // 4
    expected = run_plain(RIDGE, PLAIN, 4, lambda it, i: it.predict(week[block == i]))
    pd.testing.assert_frame_equal(moved, expected)
    assert not moved["mean"].equals(got["calendar-ridge"])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("work-")] == []


@pytest.mark.filterwarnings("error:columns that are not read")
def test_values_of_a_column_are_groups_which_new_series_join(tmp_path):
    table = pl.from_pandas(TABLE).with_columns(rain=pl.col("ds").dt.day() % 5)
    forecaster = Forecaster("calendar-ridge", horizon=7, ahead=["rain"])
    grouped = GroupedForecaster(forecaster, tmp_path, by="country").fit(table)
    coming = pl.DataFrame({"ds": pd.date_range(DAYS[-1], periods=8)[1:], "rain": 1})
    new = table.filter(pl.col("unique_id") == 5).with_columns(unique_id=pl.lit(9, pl.Int64))

    of_nz = table.filter(pl.col("unique_id") < 2).drop("country")
    said = r"^group AU \(series 2, 3, 4, 5, 9\): not in the fit: 9;"
    with pytest.warns(UserWarning, match=said):
        got = grouped.predict(new, future=coming)
    plain = Forecaster(**forecaster.get_params())
    expected = plain.fit(of_nz).predict(future=coming)
    assert_frame_equal(got.filter(pl.col("unique_id") < 2), expected)
    plain.fit(table.filter(pl.col("unique_id") >= 2).drop("country"))
    with pytest.warns(UserWarning, match="^not in the fit: 9;"):
        expected = plain.predict(new.drop("country"), future=coming)
    assert_frame_equal(got.filter(pl.col("unique_id") >= 2), expected)

    moved = of_nz.with_columns(country=pl.lit("AU"))
    assert_frame_equal(grouped.predict(moved, future=coming), grouped.predict(future=coming))
    with pytest.raises(DataError, match="series 9 are in no group"):
        grouped.predict(new.with_columns(country=pl.lit("FJ")), future=coming)


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed", reason="needs compevo[groups]")
    options = {"threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **options) as cluster, cluster.get_client() as it:
        yield it


def test_two_workers_say_the_same_after_one_was_killed(client, tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "_POLL_SECONDS", 0.02)
    forecaster, killed = Forecaster(Ridge(alpha=2.0), horizon=7), []
    pids = client.run(os.getpid)

    def kill(line):
        if line.startswith("2/"):
            busy = [worker for worker, tasks in client.processing().items() if tasks]
            killed.append(pids[busy[0]])
            os.kill(killed[0], signal.SIGKILL)

    table = PLAIN[PLAIN["unique_id"] < 4]
    grouped = GroupedForecaster(forecaster, tmp_path, size=1, engine=client)
    grouped.fit(table, on_step=kill)
    assert killed[0] not in client.run(os.getpid).values()
    expected = run_plain(forecaster, table, 1, lambda it, _: it.predict())
    pd.testing.assert_frame_equal(grouped.predict(), expected)
    expected = run_plain(forecaster, table, 1, lambda it, _: it.backtest(windows=1))
    pd.testing.assert_frame_equal(grouped.backtest(windows=1), expected)


def test_what_was_fitted_is_not_fitted_again(tmp_path, spy, monkeypatch):
    grouped = GroupedForecaster(RIDGE, tmp_path, size=2)
    with monkeypatch.context() as patch:
        fits = iter([Forecaster.fit, Forecaster.fit])
        patch.setattr(Forecaster, "fit", lambda self, df: next(fits)(self, df))
        with pytest.raises(StopIteration) as interrupted:
            grouped.fit(PLAIN)
    assert interrupted.value.__notes__ == ["in group 3"]
    with pytest.raises(DataError, match="fit groups in this folder first"):
        grouped.predict()

    fitted, lines = spy(Forecaster, "fit"), []
    grouped.fit(PLAIN, on_step=lines.append)
    assert len(fitted) == 1 and lines == ["1/1 groups"]
    job = {"group": "1", "made": str(tmp_path / "fits")}
    assert groups._run_groups([job], None, "fit", {}) == []
    grouped.fit(PLAIN.assign(y=PLAIN["y"].where(PLAIN["unique_id"] != 3, 5.0)))
    assert len(fitted) == 2 and len([*(tmp_path / "fits").iterdir()]) == 3
    GroupedForecaster(Forecaster("calendar-ridge", horizon=8), tmp_path, size=2).fit(PLAIN)
    assert len(fitted) == 5 and len(grouped.predict()) == 6 * 8


def test_a_group_that_fails_is_named_and_the_others_are_kept(tmp_path, spy):
    short = TABLE[(TABLE["unique_id"] > 1) | (TABLE["ds"] < DAYS[8])]
    grouped = GroupedForecaster(RIDGE, tmp_path, by="country")
    with pytest.raises(DataError, match=r"group NZ \(series 0, 1\): .* too few .*leave them out"):
        grouped.fit(short)
    fitted = spy(Forecaster, "fit")
    assert len(grouped.fit(TABLE).predict()) == 6 * 7
    assert len(fitted) == 1


def test_what_cannot_be_grouped_is_refused(tmp_path, monkeypatch):
    grouped = GroupedForecaster(RIDGE, tmp_path, size=4)
    with pytest.raises(DataError, match="name it by Forecaster"):
        grouped.fit(PLAIN[["ds", "y"]].head(120))
    with pytest.raises(DataError, match=r"group 1 .*column 'unique_id' is empty in 120"):
        grouped.fit(PLAIN.replace({"unique_id": {3: None}}))
    with pytest.raises(DataError, match="series 9 are in no group"):
        grouped.fit(PLAIN).predict(PLAIN.replace({"unique_id": {3: 9}}))
    with pytest.raises(DataError, match="series 0, 1, 2, 3, 4, 5 are in no group"):
        GroupedForecaster(RIDGE, tmp_path, by="land").fit(PLAIN)
    for size in (0, 1.5):
        with pytest.raises(ConfigError, match=f"size = {size}: give a whole number"):
            GroupedForecaster(RIDGE, tmp_path, size=size).fit(PLAIN)
    with pytest.raises(ConfigError, match="totals cross groups"):
        GroupedForecaster(Forecaster(totals={"all": ["*"]}), tmp_path).fit(PLAIN)
    monkeypatch.setitem(sys.modules, "fugue.api", None)
    with pytest.raises(PackageMissing, match=r"compevo\[groups\]"):
        GroupedForecaster(RIDGE, tmp_path / "far", engine="dask").fit(PLAIN)
