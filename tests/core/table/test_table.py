"""A table in, a table out: forms, clocks, what a forecast knows, keeping it, wrong calls."""

import pickle
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from compevo_core import (
    DATASETS,
    CompEvoForecaster,
    Forecaster,
    NewsPool,
    WindowSet,
    build_windows,
    fit_baseline,
    train,
)
from compevo_core.data import steps
from compevo_core.data.build import build_views
from compevo_core.errors import CompEvoError, ConfigError, DataError
from compevo_core.table import forecaster
from compevo_core.table.frames import read_table
from tests.core.training.test_ensemble import TRAIN, members, train_members
from tests.support.population import windows

HOURS = 24 * 90


def hourly(zone=None, series=("a", "b")):
    """Two series with a day, a level and noise, each hour from the first of January on."""
    rng = np.random.default_rng(0)
    stamps = pd.date_range("2025-01-01", periods=HOURS, freq="h", tz=zone)
    shape = 10 + 3 * np.sin(2 * np.pi * np.arange(HOURS) / 24)
    tables = []
    for i, name in enumerate(series):
        y = shape * 10**i + 0.3 * rng.normal(size=HOURS)
        tables.append(pd.DataFrame({"unique_id": name, "ds": stamps, "y": y}))
    return pd.concat(tables, ignore_index=True)


TABLE = hourly()
ONE = TABLE[TABLE["unique_id"] == "a"]
DAYS = pd.date_range("2024-01-01", periods=300)
DAILY = TABLE.groupby("unique_id").head(300).assign(ds=DAYS.tolist() * 2)
RIDGE = Forecaster("calendar-ridge", horizon=24, lookback=48)


@pytest.fixture(scope="module")
def fitted():
    return clone(RIDGE).fit(TABLE)


def spoil(table, cutoff):
    """The table with another future: what was not known may change no forecast."""
    return table.assign(y=table["y"].where(table["ds"] < cutoff, 1e6))


def test_the_forecast_follows_the_tables_form(fitted):
    forecast = fitted.predict()
    assert isinstance(forecast, pd.DataFrame)
    assert tuple(forecast.columns[:3]) == ("unique_id", "ds", "mean")
    of_a = forecast[forecast["unique_id"] == "a"]
    last = TABLE["ds"].max()
    assert list(of_a["ds"]) == list(pd.date_range(last, periods=25, freq="h")[1:])
    truth = 10 + 3 * np.sin(2 * np.pi * np.arange(HOURS, HOURS + 24) / 24)

    assert np.abs(of_a["mean"] - truth).mean() < 0.25
    assert (forecast["q0.1"] < forecast["q0.9"]).all()
    assert len(fitted.predict(horizon=3)) == 6


@pytest.mark.parametrize(
    "kind", ["renamed", "two columns", "index", "polars", "arrow", "texts", "seconds"]
)
def test_any_names_and_kinds_forecast_alike(kind, fitted):
    expected = clone(RIDGE).fit(ONE).predict()["mean"].to_numpy()
    one = ONE[["ds", "y"]]
    if kind == "renamed":
        table = ONE.rename(columns={"unique_id": "site", "ds": "when", "y": "load"})
        got = clone(RIDGE).set_params(series="site", time="when", value="load").fit(table).predict()
        assert tuple(got.columns[:3]) == ("site", "when", "mean")
    elif kind == "two columns":
        got = clone(RIDGE).fit(one.rename(columns={"ds": "at", "y": "mw"})).predict()
        assert tuple(got.columns[:2]) == ("at", "mean")
    elif kind == "index":
        got = clone(RIDGE).fit(one.set_index("ds")["y"]).predict()
    elif kind == "polars":
        got = clone(RIDGE).fit(pl.from_pandas(one).cast({"ds": pl.Datetime("ms")})).predict()
        assert isinstance(got, pl.DataFrame) and got["ds"].dtype == pl.Datetime("ms")
    elif kind == "arrow":
        got = clone(RIDGE).fit(pl.from_pandas(one).to_arrow()).predict()
    elif kind == "seconds":
        seconds = (one["ds"] - pd.Timestamp("1970-01-01")) // pd.Timedelta("1s")
        got = clone(RIDGE).fit(one.assign(ds=seconds)).predict()
    else:
        got = clone(RIDGE).fit(one.assign(ds=one["ds"].dt.strftime("%Y-%m-%d %H:%M"))).predict()

    np.testing.assert_allclose(np.asarray(got["mean"]), expected, rtol=1e-9)


def test_local_time_is_kept_and_begins_the_days(fitted):
    got = clone(RIDGE).fit(hourly("Australia/Sydney")).predict()
    assert str(got["ds"].dt.tz) == "Australia/Sydney"
    assert got["ds"].iloc[0] == pd.Timestamp("2025-04-01", tz="Australia/Sydney")


def test_only_newer_rows_move_the_forecast(fitted):
    day = TABLE.groupby("unique_id").tail(24).assign(ds=lambda t: t["ds"] + pd.Timedelta(days=1))
    moved = fitted.predict(day)
    assert moved["ds"].min() == TABLE["ds"].max() + pd.Timedelta(hours=25)
    assert fitted.predict()["ds"].min() == TABLE["ds"].max() + pd.Timedelta(hours=1)

    # What is learnt of many newer days is not learnt into the fit.
    expected = fitted.predict()
    many = TABLE.assign(ds=TABLE["ds"] + pd.Timedelta(days=90), y=2 * TABLE["y"])
    assert not fitted.predict(many)["mean"].equals(expected["mean"])
    pd.testing.assert_frame_equal(fitted.predict(), expected)

    lines = []
    before = fitted.backtest(windows=3, on_step=lines.append)
    assert lines[0].startswith("fitting calendar-ridge on all")
    assert lines[-1].startswith("3/3 windows forecast") and len(lines) == 4
    poisoned = clone(RIDGE).backtest(spoil(TABLE, before["cutoff"].max()), windows=3)
    known = before["cutoff"] <= before["cutoff"].max()
    for column in ("mean", "q0.1", "q0.9"):
        assert np.array_equal(before[column][known], poisoned[column][known]), column
    assert before["cutoff"].nunique() == 3 and len(before) == 2 * 3 * 24
    assert not np.array_equal(before["y"], poisoned["y"])


def test_without_newer_rows_no_windows_are_cut(fitted, monkeypatch):
    expected = fitted.predict()
    monkeypatch.setattr(forecaster.build, "build_windows", lambda *_, **__: pytest.fail("cut"))
    monkeypatch.setattr(WindowSet, "read", lambda *_: pytest.fail("read"))
    pd.testing.assert_frame_equal(fitted.predict(), expected)


def test_a_backtest_has_all_its_windows(monkeypatch):
    monkeypatch.setattr(steps, "_ENOUGH_WINDOWS", 20)
    tested = Forecaster("persistence", horizon=7).backtest(DAILY, windows=3)
    assert list(tested["cutoff"].unique()) == [DAYS[-i] for i in (21, 14, 7)]
    assert len(tested) == 2 * 3 * 7


def test_a_backtest_over_weekends_has_all_its_windows():
    table = ONE.head(400).assign(ds=pd.bdate_range("2024-01-01", periods=400))
    for horizon, step in ((1, None), (1, 7), (5, None), (7, 1)):
        tested = Forecaster("last-value", horizon=horizon).backtest(table, windows=6, step=step)
        assert tested["cutoff"].nunique() == 6 and tested["y"].notna().all()
        assert tested["ds"].max() == table["ds"].max()


def test_business_days_are_forecast_on_business_days():
    days = pd.date_range("2023-01-01", periods=500)
    table = ONE.head(500).assign(ds=days)
    # Weekends and Easter are left out: more than a quarter of the steps.
    table = table[(days.day_of_week < 5) & ~days.isin(pd.date_range("2024-03-29", "2024-04-01"))]
    chosen = Forecaster(horizon=np.int64(5), freq="B").fit(table)
    assert chosen.choice_.windows > 50
    forecast = chosen.predict()

    assert forecast.drop(columns="q0.025").notna().all(axis=None)
    assert forecast["ds"].tolist() == list(pd.bdate_range("2024-05-15", "2024-05-17"))
    assert chosen.backtest(windows=2)["y"].notna().all()
    assert len(chosen.plot().axes[0].lines[1].get_xdata()) == 3


def test_a_forecast_begins_with_the_tables_values():
    days = pd.bdate_range("2024-01-01", "2024-06-28")
    table = pd.DataFrame({"ds": days, "y": np.arange(len(days)) % 5 + 10.0})
    fitted = Forecaster("seasonal-mean", horizon=5).fit(table)
    assert list(fitted.predict()["ds"]) == list(pd.bdate_range("2024-07-01", "2024-07-05"))

    # On a weekend it is known that nothing is missing, on Tuesday that Monday's value is.
    fit = fitted._fitted
    for day, is_known in (("2024-06-30", True), ("2024-07-01", True), ("2024-07-02", False)):
        origin = pd.Timestamp(day, tz="UTC").to_pydatetime()
        built = build_views(fit.spec, **fit.list_frames(fit.spec), origin_utc=origin)
        assert bool(built.views) == is_known
    assert fitted.predict(table.tail(1).assign(ds=pd.Timestamp("2024-07-01"))).shape[0] == 4


@pytest.mark.parametrize("freq", ["D", "W"])
def test_a_random_walk_keeps_its_last_value(freq):
    stamps = pd.date_range("2015-01-05", periods=400, freq=freq)
    walk = np.random.default_rng(3).normal(size=400).cumsum()
    fitted = Forecaster(horizon=8).fit(pd.DataFrame({"ds": stamps, "y": walk}))
    errors = {score.name: score.mae for score in fitted.choice_.scores}
    assert errors["last-value"] < 0.9 * errors["persistence"]
    last = Forecaster("last-value", horizon=8).fit(pd.DataFrame({"ds": stamps, "y": walk}))
    assert np.allclose(last.predict()["mean"], walk[-1])


@pytest.mark.parametrize(("months", "horizon"), [(120, 12), (72, 6)])
def test_a_few_monthly_years_suffice_for_bands(months, horizon):
    stamps = pd.date_range("2008-01-01", periods=months, freq="MS")
    table = pd.DataFrame({"ds": stamps, "y": np.arange(months) + 10.0 * (stamps.month == 12)})
    forecast = Forecaster("calendar-ridge", horizon=horizon).fit(table).predict()
    assert forecast.notna().all(axis=None)


@pytest.mark.parametrize(
    ("freq", "rows", "horizon"),
    [("1min", 2000, 62), ("5min", 1000, 62), ("15min", 200, 12), ("1h", 100, 6), ("1h", 168, 10)],
)
def test_days_of_a_fine_grid_suffice(freq, rows, horizon):
    starts = pd.date_range("2024-03-01 07:00", periods=rows, freq=freq)
    table = pd.DataFrame({"ds": starts, "y": np.arange(rows) % 24.0})

    forecast = Forecaster().fit(table).predict()

    assert len(forecast) == horizon


@pytest.mark.parametrize("params", [{"horizon": 48}, {"horizon": 24, "lookback": 48}])
@pytest.mark.parametrize("freq", ["30min", "6h", "1D", "MS"])
def test_the_rows_asked_for_suffice(freq, params):
    def fit(rows):
        starts = pd.date_range("1990-01-01", periods=rows, freq=freq)
        return Forecaster("last-value", **params).fit(pd.DataFrame({"ds": starts, "y": 1.0}))

    with pytest.raises(DataError, match="too few") as refused:
        fit(60)

    asked_for = re.search(r"give ([\d,]+) or more", str(refused.value))
    assert fit(int(asked_for[1].replace(",", ""))).method_ == "last-value"


def test_business_day_covariates_are_learnt_from():
    days = pd.bdate_range("2022-01-03", periods=400)
    level = np.random.default_rng(0).normal(size=400)
    table = pd.DataFrame({"ds": days, "y": 50 + 8 * level, "x": level})
    chosen = Forecaster("calendar-ridge", horizon=7, ahead=["x"]).fit(table[:-5])
    forecast = chosen.predict(future=table[["ds", "x"]].tail(5))
    assert len(forecast) == 5
    assert abs(forecast["mean"].to_numpy() - table["y"].tail(5)).mean() < 2


@pytest.mark.parametrize("kind", ["short horizons far apart", "opening hours"])
def test_times_without_target_end_no_choice(kind, monkeypatch):
    # An hour ahead every eight hours; shops that are closed at night.
    monkeypatch.setattr(steps, "_ENOUGH_WINDOWS", 200)
    table, horizon = TABLE, 1
    if kind == "opening hours":
        table, horizon = TABLE[TABLE["ds"].dt.hour.between(8, 17)], 24
    chosen = Forecaster(horizon=horizon, lookback=168).fit(table)
    assert {"lagged-gbm", "calendar-ridge"} <= {score.name for score in chosen.choice_.scores}
    assert Forecaster("theta", horizon=horizon, lookback=168).fit(table).method_ == "theta"
    forecast = chosen.predict()

    assert np.isfinite(forecast["q0.9"]).all()
    assert set(forecast["ds"].dt.hour) <= set(table["ds"].dt.hour)


def test_methods_are_chosen_for_very_many_series(monkeypatch):
    monkeypatch.setattr(steps, "_ENOUGH_WINDOWS", 4)
    chosen = Forecaster(horizon=7).fit(DAILY)
    assert chosen.choice_.windows >= 2 * 4


def test_it_is_kept_by_folder_pickle_and_clone(fitted, tmp_path):
    expected = fitted.predict()
    fitted.save(tmp_path / "kept")
    for again in (Forecaster.load(tmp_path / "kept"), pickle.loads(pickle.dumps(fitted))):  # noqa: S301 - our own
        pd.testing.assert_frame_equal(again.predict(), expected)
        assert again.get_params() == fitted.get_params() and repr(again) == repr(fitted)
    assert not list((tmp_path / "kept").rglob("*.pkl"))
    (settings,) = (tmp_path / "kept").rglob("config.json")
    settings.write_text(settings.read_text()[:100])
    with pytest.raises(
        CompEvoError, match=r"config.json: not readable as JSON .*; restore it or train"
    ):
        Forecaster.load(tmp_path / "kept").predict()
    assert repr(clone(fitted)) == "Forecaster(method='calendar-ridge', horizon=24, lookback=48)"


def test_members_add_up_and_are_described():
    mixed = Forecaster("mixture", horizon=24, lookback=48).fit(ONE)
    assert mixed._fitted.model.priors.fit_baseline is fit_baseline  # what was tried is forgotten
    parts, forecast = mixed.explain(), mixed.predict()
    total = (parts["weight"] * parts["forecast"]).groupby(parts["ds"]).sum()
    np.testing.assert_allclose(total.to_numpy(), forecast["mean"].to_numpy(), rtol=1e-9)
    assert mixed.choice_ is not None and "<table" in mixed._repr_html_()
    assert "mixture for 1 series, 24 steps of 1h after 2025-04-01" in repr(mixed)
    assert mixed.plot().axes[0].get_title().startswith("a: mixture")


def test_levels_between_kept_ones_are_interpolated(fitted):
    kept, between = fitted.predict(level=[80, 90]), fitted.predict(level=85)
    for side in ("lo", "hi"):
        name = f"calendar-ridge-{side}"
        edges = kept[f"{name}-80"], kept[f"{name}-90"]
        np.testing.assert_allclose(between[f"{name}-85"], sum(edges) / 2)


def test_a_backtest_compares_methods_on_equal_windows():
    days = pd.DataFrame({"ds": DAYS, "y": np.arange(300.0) % 9})
    model = Forecaster("last-value", horizon=7, freq=pd.offsets.Day())
    both = model.backtest(days, windows=5, step=2, methods=["last-value", "persistence"])
    single = model.backtest(days, windows=5, step=2, methods="persistence")
    assert single.columns[-1] == both.columns[-1]
    assert list(both.columns) == ["ds", "cutoff", "y", "last-value", "persistence"]
    assert list(both["cutoff"].unique()) == list(pd.date_range("2024-10-12", periods=5, freq="2D"))
    assert both.groupby("cutoff").size().tolist() == [7] * 5

    one = model.backtest(days, windows=5, step=2)
    np.testing.assert_array_equal(one["mean"], both["last-value"])
    before = days.set_index("ds")["y"].shift(1)
    assert (both["last-value"] == both["cutoff"].map(before)).all()


def test_repeated_rows_are_one_and_conflicts_refused():
    again = pd.concat([TABLE, TABLE[5:6]])
    assert clone(RIDGE).fit(again).predict().equals(clone(RIDGE).fit(TABLE).predict())

    days = pd.DataFrame({"ds": DAYS, "y": np.arange(300.0)})
    with pytest.raises(DataError, match="the first 2024-01-06"):
        Forecaster(horizon=7).fit(pd.concat([days, days[5:6].assign(y=0)]))


def test_a_backtest_with_levels_is_what_utilsforecast_evaluates():
    evaluation = pytest.importorskip("utilsforecast.evaluation")
    losses = pytest.importorskip("utilsforecast.losses")
    one = ONE[["ds", "y"]]
    table = clone(RIDGE).backtest(one, windows=3, level=[80, 95])
    assert list(table.columns[:4]) == ["unique_id", "ds", "cutoff", "y"]
    plain = clone(RIDGE).set_params(freq=pd.Timedelta("1h")).backtest(one, windows=3)
    assert np.array_equal(table["calendar-ridge-lo-95"], plain["q0.025"])
    assert np.array_equal(table["calendar-ridge-hi-80"], plain["q0.9"])
    assert "calendar-ridge-hi-80" in clone(RIDGE).fit(one).predict(level=80)
    measures = [losses.mae, losses.coverage, losses.scaled_crps]
    scores = evaluation.evaluate(table, measures, level=[80, 95]).set_index("metric")
    error = (table["y"] - table["calendar-ridge"]).abs()
    by_cutoff = error.groupby(table["cutoff"]).mean()
    assert scores.loc["mae"]["calendar-ridge"].tolist() == pytest.approx(by_cutoff.tolist())
    covered = scores.loc["coverage_level80"]["calendar-ridge"].mean()
    low, high = (table[f"calendar-ridge-{side}-80"] for side in ("lo", "hi"))

    assert covered == pytest.approx(table["y"].between(low, high).mean()) and 0.5 < covered < 1


PARIS = hourly("Europe/Paris")["ds"] + pd.Timedelta(days=250)
AUTUMN = TABLE.assign(ds=PARIS.dt.tz_localize(None))
"""Clocks go back, and the zone is not said."""


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.rename(columns={"y": "load"}), r"no column 'y'; .* Forecaster\(value"),
        (TABLE.drop(columns="unique_id"), r"rows share a stamp.*Forecaster\(series"),
        (AUTUMN, r"4 rows share a stamp, the first 2025-10-26 02:00.*df\['ds'\].dt.tz_localize"),
        (TABLE.assign(y="x"), "row 1, column 'y': 'x' is not a number"),
        (TABLE.assign(ds="soon"), "row 1, column 'ds': 'soon' is not a stamp"),
        (TABLE.groupby("unique_id").head(40), "too few for a look-back of 48 and a horizon of 24"),
        (pd.concat([ONE, ONE["y"]], axis=1), "several columns are named 'y'"),
        (TABLE["y"].to_numpy(), "the table is a ndarray; give a pandas or polars DataFrame"),
        (TABLE.head(0), "no rows"),
        (TABLE.replace({"unique_id": {"a": " "}}), r"column 'unique_id' is empty in \d+ row"),
        (TABLE.assign(y=TABLE["y"].where(TABLE.index != 3, -1.8e308)), "infinite or beyond 1e"),
        (TABLE.assign(y="2e123"), "row 1, column 'y': '2e123' is infinite or beyond 1e"),
        (ONE.assign(unique_id=[("a", 1)] * HOURS), "values of several kinds.*convert it to text"),
        (
            ONE.assign(ds=pd.to_timedelta(range(HOURS), unit="D")),
            "column 'ds' holds Duration.*not stamps; convert it",
        ),
    ],
)
def test_an_unreadable_table_is_refused_with_remedies(table, message):
    with pytest.raises(DataError, match=message):
        clone(RIDGE).fit(table)


def test_wrong_calls_end_in_a_sentence(fitted, tmp_path):
    (tmp_path / "file").touch()
    single, tail = ONE[["ds", "y"]], TABLE.groupby("unique_id").tail(5)
    named = clone(RIDGE).set_params(value="mean")
    tables = {
        r"call fit\(df\) first": lambda: Forecaster().predict(),
        "the rows name no series: give them the column 'unique_id": lambda: fitted.predict(single),
        "is a file or holds other files; name a new": lambda: fitted.save(tmp_path / "file"),
        "'mean' is the name of a result": lambda: named.backtest(
            TABLE.rename(columns={"y": "mean"}), windows=1
        ),
        "holds no forecaster": lambda: Forecaster.load(tmp_path),
        "'y' is the column of values": lambda: Forecaster(ahead=["y"]).fit(TABLE),
        "'sum' has no part 'c'; the series are a, b": lambda: Forecaster(
            totals={"sum": ["a", "c"]}
        ).fit(TABLE),
        "'a' is a series of its own; ren": lambda: Forecaster(totals={"a": ["b"]}).fit(TABLE),
        "rows are 1d apart and freq says 1w": lambda: Forecaster(freq="1w").fit(DAILY),
        "no rows are 1h apart.*but 1d or more": lambda: Forecaster(freq="1h").fit(DAILY),
        "has room for 42 windows": lambda: Forecaster(horizon=7).backtest(DAILY, windows=43),
        "series b, c were not fitted": lambda: (
            clone(RIDGE).fit(single).predict(TABLE.replace({"unique_id": {"a": "c"}}))
        ),
        # Read as UTC, they would be hours from the stamps of the fit without a word.
        "have a zone and the stamps of the fit none: .*tz_localize": lambda: fitted.predict(
            TABLE.assign(ds=TABLE["ds"].dt.tz_localize("UTC"))
        ),
        "after midnight UTC": lambda: fitted.predict(
            tail.assign(ds=tail["ds"] + pd.Timedelta(hours=5))
        ),
    }
    for given in ("ahead", "past", "static"):
        tables[rf"'due' holds Datetime.*Forecaster\({given}="] = lambda given=given: Forecaster(
            **{given: ["due"]}
        ).fit(TABLE.assign(due=TABLE["ds"]))
    settings = {
        "totals = {'sum': 'a'}: give lists": lambda: Forecaster(totals={"sum": "a"}).fit(TABLE),
        r"totals = \['sum'\]: give lists of": lambda: Forecaster(totals=["sum"]).fit(TABLE),
        "reconciliation = 'best': give wls, mint, ols, bottom": lambda: Forecaster(
            reconciliation="best"
        ).fit(TABLE),
        r"value = \['y'\]: give a text": lambda: Forecaster(value=["y"]).fit(TABLE),
        "past = None: give a list of columns": lambda: Forecaster(past=None).fit(TABLE),
        "lookback = 1000000: .* to 100,000": lambda: Forecaster(lookback=10**6).fit(TABLE),
        "24 steps were": lambda: fitted.predict(horizon=48),
        r"level = \[99\]": lambda: fitted.predict(level=[80, 99]),
        r"level = \['80'\]: give numbers": lambda: fitted.predict(level="80"),
        r"level = \[0.8\]: give numbers from 1": lambda: fitted.predict(level=0.8),
        "horizon = 2.5: give a whole number": lambda: fitted.predict(horizon=2.5),
        "horizon = '3': give a whole number": lambda: fitted.predict(horizon="3"),
        "horizon = 0: give a whole number": lambda: fitted.predict(horizon=0),
        "windows = None: give a whole number": lambda: fitted.backtest(windows=None),
        "every 24 steps": lambda: fitted.backtest(step=7),
        "freq: '7' is not a step; write 5min": lambda: Forecaster(freq=7).fit(TABLE),
        "freq: '7x' is not a step; write 5min": lambda: Forecaster(freq="7x").fit(TABLE),
        "freq: .* is not a step": lambda: Forecaster(freq=pd.Timedelta("90s")).fit(TABLE),
        "low = 'none': give a number": lambda: Forecaster(low="none").fit(TABLE),
        "low = nan: give a number": lambda: Forecaster(low=np.nan).fit(TABLE),
        r"backtest\(methods=\[...\]\)": lambda: Forecaster(["ets", "theta"]).fit(TABLE),
        "method is the class Forecaster": lambda: Forecaster(Forecaster).fit(TABLE),
        "'ridge'; known: ": lambda: Forecaster("ridge").fit(TABLE),
        r"horizons; .*method, horizon": lambda: Forecaster().set_params(horizons=3),
    }
    for kind, calls in ((DataError, tables), (ConfigError, settings)):
        for message, call in calls.items():
            with pytest.raises(kind, match=message):
                call()


def test_wrong_windows_and_runs_are_refused(tmp_path):
    population = train_members(tmp_path / "run", members("persistence"))
    held, electricity = windows("val", 2, first_day=30), DATASETS["electricity"]
    dictionary, other = {"rounds": 2}, tmp_path / "other"
    calls = {
        r"a WindowSet .*views\(\)": lambda: population.predict(held),
        "a DataFrame was given": lambda: population.predict_by_agent(TABLE),
        "a ndarray was given": lambda: fit_baseline("calendar-ridge", TRAIN).predict(np.ones(3)),
        "nope; .* a training run": lambda: CompEvoForecaster.load("nope"),
        "nope; .* WindowSet.write": lambda: WindowSet.read("nope"),
        "nope; .* NewsPool.write": lambda: NewsPool.read("nope"),
        "news is a str: .* NewsPool.read": lambda: CompEvoForecaster.load(tmp_path / "run", "x"),
        "'electricty'; known: electricity": lambda: DATASETS["electricty"],
        "is a dict: .* RunConfig": lambda: train(dictionary, TRAIN, held, None, other),
        "series is a DataFrame": lambda: build_windows(electricity, TABLE),
    }
    for message, call in calls.items():
        with pytest.raises(CompEvoError, match=message):
            call()

    assert repr(held) == "WindowSet of electricity: 4 val" and "persistence" in repr(population)


METHOD = "calendar-ridge"


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
def test_calendar_steps_follow_pandas(freq, count, season, zone):
    stamps = pd.date_range("2008-01-01", periods=count + 3, freq=freq, tz=zone)
    table = seasonal(stamps[:-3], season)
    fitted = Forecaster(METHOD, horizon=3, lookback=2 * season).fit(table)
    assert list(fitted.predict()["ds"]) == list(stamps[-3:])
    assert list(fitted.explain()["ds"]) == list(stamps[-3:])
    assert pickle.loads(pickle.dumps(fitted)).predict().equals(fitted.predict())  # noqa: S301 - our own
    assert fitted.plot().axes[0].get_lines()[0].get_xdata()[-1] == stamps[-4].tz_localize(None)

    # What comes after a window changes nothing of its forecast.
    back = fitted.backtest(windows=2)
    assert list(back["ds"]) == list(stamps[-9:-3])
    assert sorted(back["cutoff"].unique()) == [stamps[-9], stamps[-6]]
    poisoned = clone(fitted).backtest(spoil(table, stamps[-6]), windows=2)
    assert back["mean"].equals(poisoned["mean"])
    assert (back["mean"] - back["y"]).abs().mean() < 4


@pytest.mark.parametrize(("freq", "expected"), [("BME", "ME"), ("BMS", "MS")])
def test_working_days_of_a_month_are_its_last_or_first(freq, expected):
    stamps = pd.date_range("2010-01-01", periods=96, freq=freq)
    fitted = Forecaster(METHOD, horizon=3).fit(seasonal(stamps, 12))
    after = pd.date_range("2018-01-01", periods=3, freq=expected)
    assert list(fitted.predict()["ds"]) == list(after)


def test_codes_of_missing_values_are_read_as_missing():
    table = ONE[["ds", "y"]].reset_index(drop=True)
    holes, codes = table.copy(), table.copy()
    holes.loc[::40, "y"] = np.nan
    codes.loc[::40, "y"] = -9999.0
    with pytest.warns(UserWarning, match=r"column 'y': \d+ value\(s\) are read as missing: -9999"):
        forecast = clone(RIDGE).fit(codes).predict()
    assert forecast.equals(clone(RIDGE).fit(holes).predict())


def test_whole_years_may_be_floats():
    years = seasonal(pd.date_range("1960-01-01", periods=60, freq="YS"), 5)
    fitted = Forecaster(METHOD, horizon=3).fit(years.assign(ds=years["ds"].dt.year * 1.0))
    assert list(fitted.predict()["ds"].dt.year) == [2020, 2021, 2022]


def test_a_day_without_midnight_begins_later():
    # Clocks went forward at midnight, on a day of the past and on one that is forecast.
    days = pd.date_range("2007-12-25", "2009-04-25", freq="D")
    days = days.tz_localize("Africa/Cairo", nonexistent="shift_forward")
    assert [day.hour for day in days].count(1) == 2
    fitted = Forecaster(METHOD, horizon=3, lookback=14).fit(seasonal(days[:-3], 7))
    assert list(fitted.predict()["ds"]) == list(days[-3:])


def test_aliases_periods_and_newer_rows_give_one_grid():
    stamps = pd.date_range("2010-01-01", periods=120, freq="MS")
    table = seasonal(stamps, 12)
    expected = Forecaster(METHOD, horizon=3).fit(table).predict()
    rows, form = read_table(table, Forecaster(), "MS")
    for freq in ("1mo", "M", "ME", "monthly", None):
        again, same = read_table(table, Forecaster(), freq)
        assert again.equals(rows) and same == form
    as_periods = table.assign(ds=pd.PeriodIndex(stamps, freq="M"))
    assert Forecaster(METHOD, horizon=3).fit(as_periods).predict().equals(expected)

    earlier = Forecaster(METHOD, horizon=3).fit(table.head(118))
    assert earlier.predict(table.tail(2))["ds"].equals(expected["ds"])


@pytest.mark.parametrize(
    ("usual", "moved", "freq", "message"),
    [
        ("MS", 3, None, r"2010-06-04 is off the grid of 1mo, whose stamps are on day 1 of a month"),
        ("MS", 0, "3mo", r"rows are 1mo apart and freq says 3mo"),
        ("QS", 0, "1mo", r"no rows are 1mo apart, as freq says, but 90d or more"),
        ("QS", 30, None, r"2011-05-01 is off the grid of 3mo, whose step begins in 2010-01"),
    ],
)
def test_a_stamp_off_the_months_is_named(usual, moved, freq, message):
    stamps = pd.Series(pd.date_range("2010-01-01", periods=120, freq=usual))
    stamps[5] += pd.Timedelta(days=moved)
    table = seasonal(pd.DatetimeIndex(stamps), 12)
    with pytest.raises(DataError, match=message):
        Forecaster(METHOD, freq=freq).fit(table)


def test_four_weeks_with_a_gap_are_no_months():
    stamps = pd.date_range("2010-01-01", periods=121, freq="28D").delete(60)
    fitted = Forecaster(METHOD, horizon=2).fit(seasonal(stamps, 13))
    assert "2 steps of 4w after" in repr(fitted)
    retail = stamps[0] + pd.to_timedelta(np.cumsum([4, 4, 5] * 40), unit="W")
    with pytest.raises(DataError, match=r"34% of the stamps are not .* steps of 4w apart"):
        Forecaster(METHOD).fit(seasonal(retail, 12))


def test_zoned_values_wait_for_their_midnight():
    """A plan that is known as the day begins in Auckland is too late for that day's forecast."""
    zone = "Pacific/Auckland"
    days = pd.date_range("2022-01-01", periods=200, freq="D", tz=zone)
    rng = np.random.default_rng(1)
    plan = rng.normal(size=200)
    y = 50 + 5 * plan + 0.1 * rng.normal(size=200)
    table = pd.DataFrame({"ds": days, "y": y, "plan": plan})

    def forecast(known):
        made = Forecaster(METHOD, horizon=1, lookback=14, ahead=["plan"], known_at="known")
        back = made.backtest(table.assign(known=known), windows=3)
        return float((back["mean"] - back["y"]).abs().mean())

    early = forecast(pd.Series(days - pd.Timedelta(minutes=1)).dt.tz_convert("UTC"))
    late = forecast(pd.Series(days + pd.Timedelta(minutes=1)).dt.tz_convert("UTC"))
    assert early < 1 < 2 < late


def test_seasons_and_last_years_values_are_used():
    rng = np.random.default_rng(2)
    cycle = np.tile([5.0, 9, 2, 7, 1, 8, 3, 0, 4, 6], 100) + rng.normal(0, 0.3, 1000)
    hours = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=1000, freq="h"), "y": cycle})
    back = Forecaster("persistence", horizon=20, lookback=40).backtest(hours, windows=2)
    assert (back["mean"] - back["y"]).abs().mean() < 0.6

    # Each day of the year has a value of its own, which no week before it tells.
    year = rng.normal(size=364)
    y = 50 + 5 * np.resize(year, 900) + 0.3 * rng.normal(size=900)
    days = pd.DataFrame({"ds": pd.date_range("2020-01-06", periods=900, freq="D"), "y": y})
    model = Forecaster(METHOD, horizon=7, lookback=28)
    back = model.backtest(days, windows=2)
    assert (back["mean"] - back["y"]).abs().mean() < 2.5
    poisoned = model.backtest(spoil(days, back["cutoff"].max()), windows=2)
    assert back["mean"].equals(poisoned["mean"])
