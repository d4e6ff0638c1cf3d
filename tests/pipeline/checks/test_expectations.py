"""Suites, looks at days, single checks: only this file imports Great Expectations (3 s)."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import numpy as np
import polars as pl
import pytest

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_pipeline.checks.content import find_days_without_news, find_jumps
from compevo_pipeline.checks.expectations import SUITES, run_suites
from compevo_pipeline.defs import asset_checks
from compevo_pipeline.sources.registry import BUILT_IN
from tests.support.window_samples import HALF_HOUR, make_series

START = datetime(2020, 1, 1, tzinfo=UTC)
FIRST = datetime(2025, 5, 1, tzinfo=UTC)


def sound():
    values = [7000.0 + i for i in range(96)]
    return make_series(values, first=START, series_id="AEMO/TOTALDEMAND/NSW1")


def spoil(column, value):
    """Return sound rows with another value in the fourth."""
    changed = pl.when(pl.int_range(pl.len()) == 3).then(pl.lit(value, SERIES_SCHEMA[column]))
    return sound().with_columns(changed.otherwise(column).alias(column))


FAULTS = {
    "schema": spoil("flag", "guessed"),
    "grid": spoil("start_utc", START + timedelta(minutes=100)),
    "units": spoil("unit", "kW"),
    "gaps": sound().filter(pl.int_range(pl.len()) % 10 != 5),
    "duplicates": pl.concat([sound(), sound().head(1)]),
    "ranges": spoil("value", 70_000.0),
}


def test_sound_data_passes_every_suite():
    outcomes = run_suites(sound(), BUILT_IN["electricity"].rules)
    assert [o.name for o in outcomes] == list(SUITES)
    assert all(o.passed and o.numbers["expectations"] for o in outcomes)
    assert not any(o.numbers["broken_rows"] for o in outcomes)


@pytest.mark.slow
def test_no_chart_library_is_imported_by_a_check():
    # In a process of its own: other tests may have imported it here.
    code = (
        "import sys; from tests.pipeline.checks.test_expectations import *; "
        "run_suites(sound(), BUILT_IN['electricity'].rules); sys.exit('altair' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", SUITES)
def test_each_suite_finds_its_fault(name):
    outcomes = run_suites(FAULTS[name], BUILT_IN["electricity"].rules)
    (found,) = [outcome for outcome in outcomes if outcome.name == name]
    assert not found.passed and found.numbers["broken_rows"] == 1
    assert "AEMO/TOTALDEMAND/NSW1" in found.text
    assert name != "ranges" or "70000.0" in found.text


def test_uncollected_stretches_and_weekends_are_no_gaps():
    later = sound().with_columns(pl.col("start_utc") + timedelta(days=90))
    apart = run_suites(pl.concat([sound(), later]), BUILT_IN["electricity"].rules)
    assert all(outcome.passed for outcome in apart)

    named = {"series_id": "ECB/AUD", "variable": "rate_usd_per_aud"}
    rates = make_series([0.7] * 60, first=START, step=timedelta(days=1), **named)
    rates = rates.filter(pl.col("start_utc").dt.weekday() < 6)
    rates = rates.with_columns(unit=pl.lit("USD per AUD"))
    assert all(outcome.passed for outcome in run_suites(rates, BUILT_IN["exchange"].rules))


def run_checks(deployment, *names):
    """Run checks by ``asset/key:check`` without the assets; return the keys that were evaluated."""
    pairs = [name.split(":") for name in names]
    keys = [dg.AssetCheckKey(dg.AssetKey(asset.split("/")), check) for asset, check in pairs]
    selection = dg.AssetSelection.checks(*keys)
    job = dg.define_asset_job("checks", selection, executor_def=dg.in_process_executor)
    defs = dg.Definitions.merge(deployment.defs, dg.Definitions(jobs=[job]))
    result = defs.resolve_job_def("checks").execute_in_process(instance=deployment.instance)
    assert result.get_asset_materialization_events() == []
    passed = [check for check in result.get_asset_check_evaluations() if check.passed]
    return {f"{check.asset_key.to_user_string()}:{check.check_name}" for check in passed}


@pytest.mark.parametrize(
    "name",
    [
        "series/traffic:gaps",
        "series/traffic:data_age",
        "news/articles:has_title",
        "windows/traffic:splits_disjoint",
    ],
)
def test_a_check_runs_alone(sample_home, name):
    assert run_checks(sample_home, name) == {name}


def test_an_unselected_check_is_not_computed(sample_home, monkeypatch):
    def fail(*_):
        raise AssertionError("computed")

    monkeypatch.setattr(asset_checks.content, "find_availability_violations", fail)
    monkeypatch.setattr(asset_checks, "run_suites", fail)
    names = {"windows/traffic:no_shared_windows", "series/traffic:data_age"}
    assert run_checks(sample_home, *names) == names


def demand(days=120, move=None):
    """A double-humped day with noise; ``move`` takes (first day, end day, hours)."""
    hours = np.arange(days * 48) / 2
    if move is not None:
        first, end, by = move
        inside = (hours >= 24 * first) & (hours < 24 * end)
        hours = np.where(inside, hours - by, hours)
    day = hours * 2 * np.pi / 24
    values = 7000 - 900 * np.cos(day) + 500 * np.sin(2 * day)
    values += np.random.default_rng(3).normal(scale=150, size=values.size)
    return make_series(values, first=FIRST, series_id="AEMO/TOTALDEMAND/NSW1")


# Sydney's clocks go back on 6 April and forward on 5 October: from 1 May it is day 157.
CLOCKS = demand(days=200, move=(157, 200, -1))


@pytest.mark.parametrize("lost_day", [None, 7])
def test_a_month_moved_by_an_hour_is_found(lost_day):
    frame = demand(move=(45, 75, 1)).filter(pl.col("start_utc").dt.day().ne_missing(lost_day))
    jumps = find_jumps(frame, HALF_HOUR)
    assert [jump.hours for jump in jumps] == [1, -1]
    for jump, days in zip(jumps, (45, 75), strict=True):
        assert abs(jump.day - date(2025, 5, 1) - timedelta(days=days)) <= timedelta(days=2)


LEVELS = demand().with_columns(pl.col("value") * pl.int_range(pl.len()) / 1000)
NO_JUMPS = {
    "nothing": (demand(), (), 0),
    "a rising level": (LEVELS, (), 0),
    "too short to say": (demand(days=20, move=(10, 20, 1)), (), 0),
    "a change of clocks": (CLOCKS, ("Australia/Sydney",), 0),
    "another zone": (CLOCKS, (), 1),
}


@pytest.mark.parametrize(("frame", "zones", "count"), NO_JUMPS.values(), ids=NO_JUMPS)
def test_what_is_no_jump_is_not_reported(frame, zones, count):
    assert len(find_jumps(frame, HALF_HOUR, zones)) == count


@pytest.mark.parametrize(
    ("days", "each", "lost"),
    [
        ([0, 1, 3, 4, 7], 12, [3, 6, 7]),
        ([0, 1, 20, 21], 12, []),  # weeks that were not collected
        ([0, 2, 4], 2, []),
    ],
)
def test_a_day_without_news_was_lost(days, each, lost):
    dates = [date(2026, 3, 1) + timedelta(days=day) for day in days]
    stored = pl.DataFrame({"group": "gdelt_doc", "day": dates, "articles": each})
    assert find_days_without_news(stored) == [f"gdelt_doc 2026-03-0{day}" for day in lost]
