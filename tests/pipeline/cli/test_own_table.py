"""A table of one's own from `compevo init` to a forecast."""

import functools
import gzip
from datetime import date, datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest
from typer.testing import CliRunner

from compevo_core import Forecaster
from compevo_core.data.quantiles import LEVELS
from compevo_pipeline.cli.main import app
from compevo_pipeline.sources.own.declaration import make_spec, read_declaration

FIRST = date(2025, 1, 1)


def list_rows(name, first, end):
    values = np.random.default_rng(first).normal(50, 5, end - first)
    return [
        f"{FIRST + timedelta(days=day)},{name},{value:.1f}"
        for day, value in zip(range(first, end), values, strict=True)
    ]


def run_in(folder, *arguments):
    env = {
        "COMPEVO_HOME": str(folder / "home"),
        "COMPEVO_DATASETS": str(folder),
        "COMPEVO_MODE": "sample",
    }
    return CliRunner().invoke(app, list(arguments), env=env)


def test_a_summer_file_that_ends_at_local_midnight_is_told_how_to_go_on_from_there(tmp_path):
    stamps = [datetime(2025, 5, 1) + timedelta(hours=n) for n in range(40 * 24)]  # noqa: DTZ001
    rows = [f"{stamp},{stamp.hour + stamp.day % 5}" for stamp in stamps]
    (tmp_path / "load.csv").write_text("\n".join(["stamp,load_mw", *rows, ""]))
    assert not run_in(tmp_path, "init", str(tmp_path / "load.csv"), "--zone=Europe/Paris").exit_code
    fitted = run_in(tmp_path, "fit", "load", "--method", "persistence")
    assert fitted.exit_code == 0, fitted.output
    forecast = run_in(tmp_path, "forecast", "load")
    assert "Monday 09 June 2025" in forecast.output
    assert "23 hours of this forecast are in the file" in forecast.output
    refused = run_in(tmp_path, "forecast", "load", "--day", "2025-06-10")
    assert "1 h before it is missing, as days begin at 23:00 UTC" in str(refused.exception)
    refused = run_in(tmp_path, "forecast", "load", "--day", "2025-06-12")
    assert "before it is missing" not in str(refused.exception)

    declaration = tmp_path / "load.toml"
    declared = declaration.read_text().replace("# stride = 0", "stride = 1")
    declaration.write_text(declared)
    assert run_in(tmp_path, "fit", "load", "--method", "persistence").exit_code == 0
    forecast = run_in(tmp_path, "forecast", "load")
    assert "Monday 09 June 2025 23:00" in forecast.output
    assert "in the file" not in forecast.output
    # The night's run asks for a day: of the 10th an hour before midnight is missing, no more.
    assert "09 June 2025 23:00" in run_in(tmp_path, "forecast", "load", "--day=2025-06-10").output
    assert (
        "08 June 2025 23:00" not in run_in(tmp_path, "forecast", "load", "--day=2025-06-09").output
    )
    refused = run_in(tmp_path, "forecast", "load", "--day=2025-06-11")
    assert "cannot be forecast for 2025-06-11" in str(refused.exception)


def test_a_series_without_a_past_stops_no_other_and_one_that_ended_is_named(tmp_path):
    file = tmp_path / "shops.csv"

    def write(*series):
        rows = [row for part in series for row in list_rows(*part)]
        file.write_text("\n".join(["day,shop,sold", *rows, ""]))

    run = functools.partial(run_in, tmp_path)
    write(("old", 0, 200), ("young", 0, 200))
    declared = run("init", str(file), "--horizon", "7", "--id", "shop")
    assert declared.exit_code == 0, declared.output
    # The second day: one shop has opened since validation.
    write(("old", 0, 200), ("young", 0, 200), ("new", 170, 200))
    fitted = run("fit", "shops", "--method", "persistence")
    assert fitted.exit_code == 0, fitted.output
    assert "left out: OWN/new, as no whole window of theirs lies in train" in fitted.output

    forecast = run("forecast", "shops")
    assert forecast.exit_code == 0, forecast.exception
    assert "Note: no forecast of new: the model has not learnt them" in forecast.output
    assert "\nold " in forecast.output and "\nyoung" in forecast.output

    assert ", by persistence\n" in forecast.output
    assert "your own files] 01 Jan 2025 to 19 Jul 2025\n" in forecast.output
    audited = run("paper", "audit-news", "shops", "--probe")
    assert "shops has no articles" in str(audited.exception)
    past = run("forecast", "shops", "--day", "2025-03-01")
    assert "28 Feb 2025; the model has seen this day\n" in past.output
    assert "the model was fitted and chosen on values after 2025-03-01" in past.output
    assert "fitted and chosen" not in forecast.output

    # One has closed, and does not hold the other back.
    write(("old", 0, 190), ("young", 0, 200))
    assert run("fit", "shops", "--method", "persistence").exit_code == 0
    forecast = run("forecast", "shops")
    gone = "no forecast of old (ended 2025-07-09 00:00 UTC): the others continue to"
    assert gone in forecast.output
    assert "20 Jul" in forecast.output


def wave(stamps, period):
    steps = np.arange(len(stamps))
    noise = np.random.default_rng(3).normal(0, 3, len(stamps))
    return pd.DataFrame({"ds": stamps, "y": 100 + 20 * np.sin(2 * np.pi * steps / period) + noise})


@pytest.mark.parametrize(
    ("freq", "count", "period", "method"),
    [
        ("h", 1440, 24, "calendar-ridge"),
        ("D", 150, 7, "calendar-ridge"),
        ("D", 400, 7, "calendar-ridge"),
        ("B", 2000, 5, "seasonal-mean"),
        ("MS", 120, 12, "calendar-ridge"),
    ],
)
def test_both_doors_plan_and_forecast_alike(freq, count, period, method, tmp_path):
    table = wave(pd.date_range("2014-01-01", periods=count, freq=freq), period)
    table.to_csv(tmp_path / "wave.csv", index=False)

    fitted = Forecaster(method).fit(table)
    expected = fitted.predict()
    declared = run_in(tmp_path, "init", str(tmp_path / "wave.csv"))
    assert declared.exit_code == 0, declared.output
    assert run_in(tmp_path, "fit", "wave", "--method", method).exit_code == 0
    out = tmp_path / "wave.parquet"
    assert run_in(tmp_path, "forecast", "wave", "--parquet", str(out)).exit_code == 0

    spec, plan = make_spec(read_declaration(tmp_path / "wave.toml")), fitted._fitted.plan
    same = ("lookback_steps", "horizon_steps", "stride_steps", "season_steps", "bounds")
    for name in (*same, "max_fill_steps", "max_filled_inputs"):
        assert getattr(spec, name) == getattr(plan.spec, name), name
    days = [(span.split, span.first_day, span.last_day) for span in plan.spec.spans]
    assert [(span.split, span.first_day, span.last_day) for span in spec.spans] == days
    # What is issued has steps of weekends too.
    issued = pl.read_parquet(out).filter(
        pl.col("start_utc").dt.replace_time_zone(None).is_in(expected["ds"].tolist())
    )
    assert np.array_equal(issued["compevo"], expected["mean"])
    for level in LEVELS:
        band = expected[f"q{level:g}"]
        assert band.notna().all() and np.array_equal(issued[f"{method}-q{level}"], band)


def test_days_that_are_kept_for_a_test_are_neither_learnt_nor_planned_by(tmp_path):
    table = wave(pd.date_range("2024-01-01", periods=400), 7)
    for name, rows in (("whole", table), ("short", table.head(319))):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    kept = run_in(tmp_path, "init", str(tmp_path / "whole.csv"), "--test", "0.2")
    assert kept.exit_code == 0, kept.output
    assert run_in(tmp_path, "init", str(tmp_path / "short.csv")).exit_code == 0
    spec, shorter = (
        make_spec(read_declaration(tmp_path / f"{name}.toml")) for name in ("whole", "short")
    )
    assert spec.spans == shorter.spans and spec.lookback_steps == shorter.lookback_steps

    fit = ("fit", "short", "--method", "persistence")
    assert run_in(tmp_path, *fit).exit_code == 0
    refused = run_in(tmp_path, "evaluate", "short", "--seeds", "1")
    assert "short has no test window" in str(refused.exception)
    assert "compevo init --test 0.2" in str(refused.exception)


ROWS = 150 * 24  # from January 2015 on, over the night in which clocks went forward


@pytest.mark.slow
def test_a_sensor_that_keeps_standard_time_is_declared_trained_forecast_and_scored(
    archive_dir, tmp_path
):
    lines = gzip.decompress((archive_dir / "traffic" / "traffic.csv.gz").read_bytes()).splitlines()
    file = tmp_path / "sensor.csv"
    file.write_bytes(b"\n".join(lines[: ROWS + 1]))

    run = functools.partial(run_in, tmp_path)
    declare = ["init", str(file), "--time", "Date", "--value", "0", "--unit", "share", "--test=0.2"]
    refused = run(*declare, "--zone", "America/Los_Angeles")
    said = str(refused.exception)
    # The remedy that is named is the one that helps.
    assert "'2015-03-08 02:00:00' does not exist in America/Los_Angeles" in said
    assert "compevo init --zone=-08:00" in said

    declared = run(*declare, "--zone=-08:00")
    assert declared.exit_code == 0, declared.output
    assert "3,600 steps of 1h from 2015-01-01 08:00 to 2015-05-31 07:00 UTC" in declared.output
    assert "Etc/GMT+8" in declared.output

    fitted = run("fit", "sensor", "--preset", "tiny")
    assert fitted.exit_code == 0, fitted.output

    forecast = run("forecast", "sensor")
    assert "sensor, Sunday 31 May 2015, share, times in UTC-8" in forecast.output
    assert "80 % band" in forecast.output and "31 May 15:00" in forecast.output

    scored = run("evaluate", "sensor", "--every", "10", "--seeds", "1")
    assert "windows; MAE and RMSE in share" in scored.output
    assert "compevo" in scored.output and "persistence" in scored.output
