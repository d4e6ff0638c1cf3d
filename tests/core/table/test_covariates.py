"""Columns beside the values: what each is worth, and when it was known."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from compevo_core import SAMPLE, Forecaster, build_windows
from compevo_core.baselines.features import fit_responses
from compevo_core.config import sections
from compevo_core.errors import CompEvoError, ConfigError, DataError
from compevo_core.evaluation.leakage import (
    find_unavailable_covariates,
    find_unavailable_step_covariates,
)
from tests.support.window_samples import HALF_HOUR, NEW_YEAR, make_window

DAYS, DAY = 90, 24
HOURS = DAYS * DAY
RIDGE = Forecaster("calendar-ridge", horizon=24, lookback=48)
AHEAD = clone(RIDGE).set_params(ahead=["temp"])
PAST = clone(RIDGE).set_params(past=["visitors"])
TINY = Forecaster("compevo", preset="tiny")


def make_table():
    """Two series that follow a temperature at once, and visitors of the day before."""
    rng = np.random.default_rng(0)
    hours = np.arange(HOURS + DAY)
    tables = []
    for name in ("a", "b"):
        temperature = 15 + 4 * rng.normal(size=len(hours)) + np.sin(hours / DAY * 2 * np.pi)
        visitors = np.repeat(rng.normal(size=DAYS + 1), DAY)
        before = np.roll(visitors, DAY)
        y = 50 + temperature + 8 * before + 0.2 * rng.normal(size=len(hours))
        stamps = pd.date_range("2025-01-01", periods=len(hours), freq="h")
        values = {"ds": stamps, "y": y, "temp": temperature, "visitors": visitors}
        tables.append(pd.DataFrame({"unique_id": name} | values))
    return pd.concat(tables, ignore_index=True)


TABLE = make_table()
END = TABLE["ds"].max() - pd.Timedelta(hours=DAY - 1)
KNOWN, LATER = TABLE[TABLE["ds"] < END], TABLE[TABLE["ds"] >= END]
FUTURE = LATER[["unique_id", "ds", "temp"]]


def miss(forecast):
    return float(np.abs(forecast["mean"].to_numpy() - LATER["y"].to_numpy()).mean())


def find_views(fitted):
    fit = fitted._fitted
    windows = build_windows(fit.spec, **fit.list_frames(fit.spec))
    return list(windows.views())


@pytest.fixture(scope="module")
def ahead():
    return clone(AHEAD).fit(KNOWN)


@pytest.fixture(scope="module")
def past():
    return clone(PAST).fit(KNOWN)


def test_columns_are_worth_what_they_say(ahead, past):
    plain = miss(clone(RIDGE).fit(KNOWN).predict())
    assert miss(ahead.predict(future=FUTURE)) < 0.9 * plain
    assert miss(past.predict()) < 0.75 * plain


def test_the_future_may_come_in_three_ways(ahead, tmp_path):
    expected = ahead.predict(future=FUTURE)
    whole = TABLE.assign(y=TABLE["y"].where(TABLE["ds"] < END))
    assert ahead.predict(whole).equals(expected)
    ahead.save(tmp_path / "kept")
    kept = Forecaster.load(tmp_path / "kept")
    assert kept.predict(future=FUTURE).equals(expected) and kept.get_params()["ahead"] == ("temp",)
    assert pickle.loads(pickle.dumps(ahead)).predict(future=FUTURE).equals(expected)  # noqa: S301
    # One temperature for both: a table without names of series.
    shared = ahead.predict(future=FUTURE[FUTURE["unique_id"] == "a"][["ds", "temp"]])
    same = shared["unique_id"] == "a"

    assert shared[same].equals(expected[same]) and not shared[~same].equals(expected[~same])


def test_nothing_that_was_not_known_reaches_a_forecast(ahead, past):
    # What lies behind the target, and what came of the target itself.
    beyond = FUTURE.assign(ds=FUTURE["ds"] + pd.Timedelta(hours=DAY), temp=1e6)
    early = KNOWN.tail(DAY)[["unique_id", "ds", "temp"]]
    truth = pd.concat([early, FUTURE, beyond]).assign(y=1e6)
    assert ahead.predict(future=truth).equals(ahead.predict(future=FUTURE))

    before = clone(PAST).backtest(TABLE, windows=3)
    cutoff = before["cutoff"].max()
    spoilt = TABLE.assign(visitors=TABLE["visitors"].where(TABLE["ds"] < cutoff, 1e6))
    assert clone(PAST).backtest(spoilt, windows=3).equals(before)
    day = TABLE["ds"].between(cutoff - pd.Timedelta(hours=DAY), cutoff, inclusive="left")
    moved = TABLE.assign(visitors=TABLE["visitors"].where(~day, 3.0))
    assert not clone(PAST).backtest(moved, windows=3).equals(before)

    for fitted in (ahead, past):
        frames = fitted._fitted.list_frames(fitted._fitted.spec)
        views = find_views(fitted)
        if "covariates" in frames:
            assert any(view.covariates for view in views)
            assert not find_unavailable_covariates(views, frames["covariates"])
        else:
            assert any(view.step_covariates for view in views)
            assert not find_unavailable_step_covariates(views, frames["step_covariates"])


def test_a_value_counts_from_when_known():
    # Measured: each is known when its hour is over, so no forecast has one of its own hours.
    measured = TABLE.assign(out=TABLE["ds"] + pd.Timedelta(hours=1))
    fitted = clone(AHEAD).set_params(known_at="out").fit(measured[measured["ds"] < END])
    assert not any(np.isfinite(v.step_covariates["own_temp"]).any() for v in find_views(fitted))
    with pytest.raises(DataError, match=r"'temp' ahead, .*2025-04-01"):
        fitted.predict(future=measured[measured["ds"] >= END])
    # Forecast a day before, they are.
    early = TABLE.assign(out=TABLE["ds"].dt.normalize() - pd.Timedelta(hours=1))
    known = clone(AHEAD).set_params(known_at="out").fit(early[early["ds"] < END])
    expected = clone(AHEAD).fit(KNOWN).predict(future=FUTURE)

    assert known.predict(future=early[early["ds"] >= END]).equals(expected)


def test_a_window_reads_forecasts_known_then(tmp_path):
    load = pd.read_csv(SAMPLE / "load.csv", parse_dates=["ds"])
    weather = pd.read_csv(SAMPLE / "weather.csv.gz", parse_dates=["ds", "known_at"])
    model = clone(RIDGE).set_params(horizon=7, ahead=["temperature"], known_at="known_at")
    known_then = model.backtest(load, future=weather, windows=6)
    # What was known later changes nothing, and would have helped.
    later = weather["known_at"] > known_then["cutoff"].max()
    spoilt = weather.assign(temperature=weather["temperature"].where(~later, 99.0))
    pd.testing.assert_frame_equal(model.backtest(load, future=spoilt, windows=6), known_then)
    newest = weather.groupby("ds", as_index=False).last()
    always = newest.assign(known_at=weather["known_at"].min())
    leaking = model.backtest(load, future=always, windows=6)
    errors = [(table["load_mw"] - table["mean"]).abs().mean() for table in (known_then, leaking)]
    assert errors[1] < 0.8 * errors[0]

    # A fit of a past day, its rows and forecasts of a week later, and what was saved agree.
    day = load["ds"].max() - pd.Timedelta(days=6)
    early = weather["known_at"] < day
    past = clone(model).fit(load[load["ds"] < day], future=weather[early])
    past.save(tmp_path)
    assert past.predict()["ds"].min() == day
    expected = past.predict(load, future=weather)
    assert Forecaster.load(tmp_path).update(load, future=weather).predict().equals(expected)
    assert expected["ds"].min() == load["ds"].max() + pd.Timedelta(days=1)
    with pytest.raises(ConfigError, match=r"Forecaster\(ahead="):
        Forecaster(horizon=7).fit(load, future=weather)


@pytest.mark.parametrize(("begins", "answers"), [(0, 1), (208, 0)])
def test_an_answer_is_proved_on_held_out_values(begins, answers):
    # A window each half-hour; the last fifth of 200 begins at the value 208.
    values_T = np.random.default_rng(0).normal(size=296)
    views, targets = [], []
    for i in range(200):
        now_H, before_H = values_T[i + 48 : i + 96], values_T[i : i + 48]
        known = {"own_plan": now_H, "own_plan_lag1": before_H}
        origin = NEW_YEAR + i * HALF_HOUR
        views.append(make_window(i, origin=origin, step_covariates=known).view)
        targets.append((now_H - before_H) * (np.arange(i + 48, i + 96) >= begins))
    assert len(fit_responses(views, ["own_plan"], np.stack(targets))) == answers


@pytest.mark.slow
def test_words_are_read_from_their_stamp(tmp_path):
    stops = [f"plant {i % 7} stops" if i % DAY == 5 else None for i in range(HOURS)]
    words = KNOWN[KNOWN["unique_id"] == "a"][["ds", "y"]].assign(words=stops)
    tiny = Path(sections.__file__).with_name("presets") / "tiny.toml"
    rounds = tiny.read_text().replace("epochs = 1\nrounds = 4", "supervised_rounds = 1\nrounds = 1")
    (tmp_path / "few.toml").write_text(rounds)
    steps = {"horizon": 24, "lookback": 24}
    agents = Forecaster("compevo", preset=str(tmp_path / "few.toml"), text="words", **steps)
    fitted = agents.fit(words.tail(14 * DAY))
    stamp = pd.DataFrame({"ds": [END - pd.Timedelta(minutes=20), END], "words": ["old", "new"]})
    fit = fitted._extend(None, None, stamp)
    population, views, prediction = fitted._forecast(fit, 24)
    titles = dict(fit.articles.select("article_id", "title").iter_rows())
    read = [titles[name] for name in views[0].candidate_ids]
    # Of a week, the newest first; what comes out at the origin is too late.
    assert read[:2] == ["old", "plant 6 stops"] and "new" not in read and len(read) == 8
    assert population.config.backbone.name_or_path == "tiny-random"
    assert len(prediction.agents) == 3
    fitted.save(tmp_path / "kept")

    assert Forecaster.load(tmp_path / "kept").predict().equals(fitted.predict())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.predict(), r"needs 'temp' ahead, .* 2025-04-01 00:00 UTC: .* as future="),
        (lambda f: f.predict(future=FUTURE.head(3)), "not known for 2025-04-01 03:00 UTC"),
        (lambda f: f.predict(future=FUTURE.drop(columns="temp")), r"no column 'temp'.*\(ahead="),
        (lambda f: f.predict(future=FUTURE.assign(temp="warm")), "'warm' is not a number"),
        (lambda f: f.predict(news=FUTURE), r"'calendar-ridge' reads no news.*Forecaster\('auto"),
        (lambda f: clone(RIDGE).fit(KNOWN, news=FUTURE), "reads no news"),
        (lambda f: clone(RIDGE).fit(KNOWN).predict(future=FUTURE), r"Forecaster\(ahead=\[...\]\)"),
        (lambda f: clone(RIDGE).set_params(ahead="temp").fit(KNOWN), r"list of columns, \['temp'"),
        (lambda f: clone(RIDGE).set_params(past=["rain"]).fit(KNOWN), r"'rain'.*\(past=...\)"),
        (lambda f: Forecaster("compevo", preset="tin").fit(KNOWN), "no preset 'tin'; known: "),
        (lambda f: TINY.fit(KNOWN, news=FUTURE), "news needs a column 'title'"),
    ],
)
def test_wrong_calls_name_the_remedy(call, message, ahead):
    with pytest.raises(CompEvoError, match=message):
        call(ahead)
