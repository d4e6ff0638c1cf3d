"""A table of one's own from `compevo init` to a forecast."""

import functools
import gzip
import json
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest

from compevo_core import Forecaster
from compevo_core.data.quantiles import LEVELS
from compevo_core.errors import CompEvoError
from compevo_pipeline.sources.own.declaration import make_spec, read_declaration
from tests.core.table.test_categories import make_shops
from tests.support.commands import invoke


def list_rows(name, first, end):
    values = np.random.default_rng(first).normal(50, 5, end - first)
    days = pd.date_range("2025-01-01", periods=end)[first:]
    return [f"{day:%Y-%m-%d},{name},{v:.1f}" for day, v in zip(days, values, strict=True)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPEVO_DATASETS", str(tmp_path))
    return functools.partial(invoke, home=tmp_path / "home")


def refuse(run, *words):
    with pytest.raises(CompEvoError) as refused:
        run(*words)
    return str(refused.value)


def test_a_summer_file_ends_at_local_midnight(run, tmp_path):
    stamps = [datetime(2025, 5, 1) + timedelta(hours=n) for n in range(40 * 24)]  # noqa: DTZ001
    rows = [f"{stamp},{stamp.hour + stamp.day % 5}" for stamp in stamps]
    file, declaration = tmp_path / "load.csv", tmp_path / "load.toml"

    # An hour less: the newest day is in the file, as far as that reaches.
    file.write_text("\n".join(["stamp,load_mw", *rows[:-1], ""]))
    run("init", file, "--zone=Europe/Paris")
    run("fit", "load", "--method", "persistence")
    assert "23 hours of this forecast are in the file" in run("forecast", "load")
    refused = refuse(run, "forecast", "load", "--day", "2025-06-10")
    assert "1 h before" in refused and "22:00 UTC" in refused
    assert "1 h before" not in refuse(run, "forecast", "load", "--day", "2025-06-12")

    file.write_text("\n".join(["stamp,load_mw", *rows, ""]))
    run("fit", "load", "--method", "persistence")
    page = tmp_path / "load.html"
    forecast = run("forecast", "load", "--page", page)
    assert "Tuesday 10 June 2025 to Wednesday 11 June 2025" in forecast
    assert "in the file" not in forecast
    assert "data <b>01 May 2025 to 09 Jun 2025" in page.read_text()

    declaration.write_text(declaration.read_text().replace("# stride = 0", "stride = 1"))
    file.write_text("\n".join(["stamp,load_mw", *rows, "2025-06-10 00:00:00,5", ""]))
    run("fit", "load", "--method", "persistence")
    assert "10 June 2025 01:00" in run("forecast", "load")
    assert "2025-06-11" in refuse(run, "forecast", "load", "--day=2025-06-11")


def test_new_and_ended_series_stop_no_other(run, tmp_path):
    file = tmp_path / "shops.csv"

    def write(*series):
        rows = [row for part in series for row in list_rows(*part)]
        file.write_text("\n".join(["day,shop,sold", *rows, ""]))

    write(("old", 0, 200), ("young", 0, 200))
    run("init", file, "--horizon", "7", "--id", "shop")
    # The second day: one shop has opened since validation.
    write(("old", 0, 200), ("young", 0, 200), ("new", 170, 200), ("newer", 140, 200))
    assert "left out: OWN/new" in run("fit", "shops", "--method", "persistence")

    forecast = run("forecast", "shops")
    assert "no forecast of new (2025-06-20" in forecast
    assert "not in the fit: newer; what was learnt of the other series" in forecast
    assert "\nnewer " in forecast
    assert "\nold " in forecast and "\nyoung" in forecast

    assert "persistence" in forecast and "19 Jul 2025" in forecast
    assert "articles" in refuse(run, "paper", "audit-news", "shops", "--probe")
    past = run("forecast", "shops", "--day", "2025-03-01")
    assert "28 Feb 2025" in past
    assert ("has seen" in past, "has seen" in forecast) == (True, False)

    # One has closed, and does not hold the other back.
    write(("old", 0, 190), ("young", 0, 200))
    run("fit", "shops", "--method", "persistence")
    forecast = run("forecast", "shops")
    assert "old (ended 2025-07-09" in forecast and "20 Jul" in forecast


def wave(stamps, period):
    steps = np.arange(len(stamps))
    noise = np.random.default_rng(3).normal(0, 3, len(stamps))
    return pd.DataFrame({"ds": stamps, "y": 100 + 20 * np.sin(2 * np.pi * steps / period) + noise})


@pytest.mark.parametrize(
    ("freq", "count", "period", "method"),
    [
        ("h", 1440, 24, "calendar-ridge"),
        pytest.param("D", 150, 7, "calendar-ridge", marks=pytest.mark.slow),
        pytest.param("D", 400, 7, "calendar-ridge", marks=pytest.mark.slow),
        pytest.param("B", 2000, 5, "seasonal-mean", marks=pytest.mark.slow),
        ("MS", 120, 12, "calendar-ridge"),
    ],
)
def test_both_doors_plan_and_forecast_alike(freq, count, period, method, run, tmp_path):
    table = wave(pd.date_range("2014-01-01", periods=count, freq=freq), period)
    table.to_csv(tmp_path / "wave.csv", index=False)

    fitted = Forecaster(method).fit(table)
    expected = fitted.predict()
    run("init", tmp_path / "wave.csv")
    held, out = tmp_path / "held.parquet", tmp_path / "wave.parquet"
    run("fit", "wave", "--method", method, "--fitted", held)
    run("forecast", "wave", "--parquet", out)

    spec, planned = make_spec(read_declaration(tmp_path / "wave.toml")), fitted._fitted.spec
    same = ("lookback_steps", "horizon_steps", "stride_steps", "season_steps", "bounds")
    for name in (*same, "max_fill_steps", "max_filled_inputs"):
        assert getattr(spec, name) == getattr(planned, name), name
    days = [(span.split, span.first_day, span.last_day) for span in planned.spans]
    assert [(span.split, span.first_day, span.last_day) for span in spec.spans] == days
    # What is issued has steps of weekends too.
    start = pl.col("start_utc").dt.replace_time_zone(None)
    issued = pl.read_parquet(out).filter(start.is_in(expected["ds"].tolist()))
    assert np.array_equal(issued["compevo"], expected["mean"])
    for level in LEVELS:
        band = expected[f"q{level:g}"]
        assert band.notna().all() and np.array_equal(issued[f"{method}-q{level}"], band)
    values = fitted.fitted_values()
    known = pl.read_parquet(held).filter(start.is_in(values["ds"].tolist()))
    assert np.array_equal(known["mean"], values["mean"])
    assert np.array_equal(known["value"], values["y"])


def test_test_days_are_neither_learnt_nor_planned_by(run, tmp_path):
    table = wave(pd.date_range("2024-01-01", periods=400), 7)
    for name, rows in (("whole", table), ("short", table.head(319))):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    run("init", tmp_path / "whole.csv", "--test", "0.2")
    run("init", tmp_path / "short.csv")
    files = (tmp_path / f"{name}.toml" for name in ("whole", "short"))
    spec, shorter = (make_spec(read_declaration(file)) for file in files)
    assert spec.spans == shorter.spans and spec.lookback_steps == shorter.lookback_steps

    run("fit", "short", "--method", "persistence")
    assert "init --test 0.2" in refuse(run, "evaluate", "short", "--seeds", "1")


def test_a_forecast_without_bands_says_why(run, tmp_path):
    wave(pd.date_range("2024-01-01", periods=24 * 40, freq="h"), 24).to_csv(tmp_path / "wave.csv")
    run("init", tmp_path / "wave.csv", "--value", "y")
    run("fit", "wave", "--method", "persistence")
    assert "no bands of 1 series: they need the errors of 14 windows" in run("forecast", "wave")


def test_long_names_and_sparse_sales_are_forecast(run, tmp_path):
    days = pd.date_range("2024-01-01", periods=300)
    sold = np.random.default_rng(3).poisson(0.1, 300)
    shops = [pd.DataFrame({"day": days, "shop": name * 200, "sold": sold}) for name in ("a", "銷")]
    pd.concat(shops).to_csv(tmp_path / "shops.csv", index=False)
    run("init", tmp_path / "shops.csv", "--horizon", "14")
    run("fit", "shops", "--method", "seasonal-mean")

    issued = json.loads(run("forecast", "shops", "--json"))
    assert not any("no bands" in note for note in issued["notes"])
    rows = pl.DataFrame(issued["rows"])
    assert rows["entity"].str.len_chars().to_list() == [200] * 28
    first = datetime.fromisoformat(rows["start_utc"][0].rstrip("Z"))
    explained = run("explain", f"{first:%Y-%m-%d}", rows["entity"][0], "shops")
    assert "mean of the 14 steps" in explained
    # The likeliest value is none, and what is expected is not.
    assert rows["compevo"].mean() == pytest.approx(0.1, abs=0.05)


@pytest.mark.slow
def test_a_sensor_in_standard_time_is_scored(archive_dir, run, tmp_path):
    # From January 2015 on, over the night in which clocks went forward.
    lines = gzip.decompress((archive_dir / "traffic" / "traffic.csv.gz").read_bytes()).splitlines()
    file = tmp_path / "sensor.csv"
    file.write_bytes(b"\n".join(lines[: 150 * 24 + 1]))

    declare = ["init", file, "--time", "Date", "--value", "0", "--unit", "share", "--test=0.2"]
    said = refuse(run, *declare, "--zone", "America/Los_Angeles")
    # The remedy that is named is the one that helps.
    assert "2015-03-08 02:00:00" in said and "America/Los_Angeles" in said
    assert "compevo init --zone=-08:00" in said

    declared = run(*declare, "--zone=-08:00")
    assert "3,600 steps" in declared and "2015-05-31 07:00" in declared
    assert "Etc/GMT+8" in declared

    run("fit", "sensor", "--preset", "tiny")
    forecast = run("forecast", "sensor")
    assert "31 May 2015" in forecast and "UTC-8" in forecast
    assert "80 % band" in forecast and "31 May 15:00" in forecast

    scored = run("evaluate", "sensor", "--every", "10", "--seeds", "1")
    assert "RMSE in share" in scored
    assert "compevo" in scored and "persistence" in scored


def test_words_and_kinds_of_shops_are_learnt(run, tmp_path):
    before, later = make_shops()
    every = pd.concat([before, later])
    every[["unique_id", "ds", "promo"]].to_csv(tmp_path / "promo.csv", index=False)
    before.drop(columns="promo").to_csv(tmp_path / "shops.csv", index=False)
    options = ("--id", "unique_id", "--static", "kind", "--ahead", tmp_path / "promo.csv")
    run("init", tmp_path / "shops.csv", "--horizon", "7", *options)
    assert 'static = ["kind"]' in (tmp_path / "shops.toml").read_text()
    run("fit", "shops", "--method", "lagged-gbm")

    rows = pl.DataFrame(json.loads(run("forecast", "shops", "--json"))["rows"])
    truth = later.sort_values(["unique_id", "ds"])["y"].to_numpy()
    assert np.abs(rows.sort("entity", "start_utc")["lagged-gbm"].to_numpy() - truth).mean() < 2
