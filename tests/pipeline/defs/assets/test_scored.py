"""Forecasts issued and scored through Dagster: live, filled in later, and in a refresh."""

import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import polars as pl
import pytest

from compevo_core.data.datasets import ELECTRICITY_OPERATIONAL
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.defs import asset_checks
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.feeds import Feed
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.work.results import read_scored
from tests.support import operational
from tests.support import population as small
from tests.support.deployment import QUIET, deploy, few_feeds, open_home, read_materialization
from tests.support.scored_samples import make_rows
from tests.support.sources import raw
from tests.support.window_samples import from_nem

DAYS = (date(2026, 2, 22), date(2026, 2, 23), date(2026, 2, 24))
CLOCKED = ["issued_at", "scored_at"]
SPEC = ELECTRICITY_OPERATIONAL


@pytest.fixture(scope="module")
def trained(tmp_path_factory, operational_run):
    """The home of a deployment at 17:00 before the first day."""
    home = tmp_path_factory.mktemp("trained")
    operational.make_deployment(home, operational.issue_time(DAYS[0]), operational_run)
    return home


def copy_home(trained, home):
    shutil.copytree(trained, home, dirs_exist_ok=True)
    return deploy(home)


@pytest.fixture(scope="module")
def live(trained, tmp_path_factory):
    """A deployment that was refreshed every day from what had been measured by then."""
    deployment = copy_home(trained, tmp_path_factory.mktemp("live"))
    for day in DAYS:
        operational.store_until(deployment.layout, operational.issue_time(day))
        deployment.materialize("forecast/next_day", partition=day.isoformat())
        deployment.materialize("forecast/scored")
    operational.store_until(deployment.layout, operational.NOW)
    deployment.materialize("forecast/scored")
    return deployment


def read(layout):
    return read_scored(layout, operational.DATASET)


def test_every_issued_day_is_scored(live):
    rows = read(live.layout)
    assert sorted(set(rows["day"])) == list(DAYS)
    # A week before the first days nothing was measured.
    population = {"forecast", "equal", "prior", "member-0"}
    assert population | {"published", "persistence"} <= set(rows["method"])
    assert "weekly" not in set(rows["method"])
    assert live.layout.scored(operational.DATASET).with_suffix(".csv").exists()


def test_scoring_again_shows_tables_and_changes_no_file(live):
    path = live.layout.scored(operational.DATASET)
    before = path.stat().st_mtime_ns
    result = live.materialize("forecast/scored")
    assert path.stat().st_mtime_ns == before

    shown = read_materialization(result).metadata
    assert [shown[name].value for name in ("added", "revised", "waiting_for_truth")] == [0] * 3
    references = {record.data["reference"] for record in shown["skill"].records}
    days = {str(record.data["day"]) for record in shown["last_days"].records}
    assert "best member" in references
    assert "2026-02-24" in days
    assert "MAE of forecast" in shown["errors"].value and shown["mode"].value == "sample"
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert set(checks) == {"drift", "coverage", "news_change", "next_inputs"}
    for check in checks.values():
        assert check.passed and not check.blocking
        assert check.severity is dg.AssetCheckSeverity.WARN


def test_backfilled_days_equal_live_ones(live, trained, tmp_path):
    backfill = copy_home(trained, tmp_path)
    # Everything is stored from the start, and days come in another order.
    operational.store_until(backfill.layout, operational.NOW)
    for day in (DAYS[2], DAYS[0], DAYS[1]):
        backfill.materialize("forecast/next_day", partition=day.isoformat())
    backfill.materialize("forecast/scored")
    assert read(backfill.layout).drop(CLOCKED).equals(read(live.layout).drop(CLOCKED))


def test_a_days_page_lists_its_forecasts(trained, tmp_path):
    deployment = copy_home(trained, tmp_path)
    operational.store_until(deployment.layout, operational.NOW)
    key = "forecast/next_day"
    for known_to in ("midnight", "issue-time"):
        config = {key: {"known_to": known_to}}
        result = deployment.materialize(key, partition=DAYS[0].isoformat(), config=config)

    metadata = read_materialization(result).metadata
    # Instants are no counts.
    assert [column.name for column in metadata["newest_known"].schema.columns] == ["name", "time"]
    shown = metadata["of_this_day"].records
    # Seven hours of the evening before are between them.
    assert [
        tuple(record.data[name] for name in ("known_to", "known_until", "this")) for record in shown
    ] == [("issue-time", "2026-02-21 17:00", True), ("midnight", "2026-02-22 00:00", False)]


def make_feeds(until):
    """Feeds of operational demand that hold what had been measured by an instant."""
    series, published = operational.make_frames()
    known = series.filter(pl.col("start_utc") < until)
    # A file whose bytes are known is not read again.
    day = raw("day.json", until.isoformat(), "made_up", Mode.SAMPLE)
    within = pl.when(pl.col("quantile") == 0.5).then("value").otherwise(pl.lit(600.0))
    published = published.with_columns(within.alias("value"))
    parsers = {FrameKind.SERIES: lambda _: known, FrameKind.PUBLISHED: lambda _: published}
    feed = Feed(name="made-up", read_files=lambda *_: iter([day]), parsers=parsers)
    return {**few_feeds(), operational.DATASET: (feed,)}


@pytest.mark.slow
def test_a_refresh_goes_from_sources_to_report(trained, tmp_path):
    day = DAYS[1]
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    selected = [
        *(f"{group}/{operational.DATASET}" for group in ("series", "windows")),
        "forecast/next_day",
        "forecast/scored",
        "report/site",
    ]

    def refresh(until, of):
        deployment = deploy(tmp_path, feeds=make_feeds(until))
        return deployment.defs.resolve_job_def("refresh").execute_in_process(
            partition_key=of.isoformat(),
            asset_selection=[dg.AssetKey(key.split("/")) for key in selected],
            instance=deployment.instance,
            run_config={"loggers": QUIET},
        )

    layout = Layout(root=tmp_path / "sample")
    NewsStore(layout.news_database).upsert_articles(small.news_pool().articles)
    assert refresh(operational.issue_time(day), day).success
    assert read(layout).is_empty() and (layout.report / "forecast.html").exists()

    # A day later: yesterday's forecast is scored by the run that issues tomorrow's.
    result = refresh(operational.issue_time(DAYS[2]) + timedelta(hours=7), DAYS[2])
    made = [event.asset_key.to_user_string() for event in result.get_asset_materialization_events()]
    order = [made.index(key) for key in selected]
    assert order == sorted(order)
    assert set(read(layout)["day"]) == {day}


def test_alarms_say_what_they_saw():
    errors = [level + i % 3 for level in (100.0, 400.0) for i in range(30)]
    rows = make_rows({"forecast": errors, "published": [100.0] * 60}, coverage=[0.5] * 60)
    drift, coverage = asset_checks.judge_drift(rows), asset_checks.judge_coverage(rows)

    assert not drift.passed and "issue-time" in drift.text
    assert not coverage.passed and "50.0%" in coverage.text


@pytest.mark.parametrize(
    ("now", "day", "until"),
    [
        (from_nem(2026, 2, 23, 16, 59), date(2026, 2, 23), from_nem(2026, 2, 23)),
        (from_nem(2026, 2, 23, 17), date(2026, 2, 24), from_nem(2026, 2, 23, 17)),
    ],
)
def test_the_due_forecast_changes_at_issue_time(now, day, until):
    origin = asset_checks.find_due_origin(SPEC, now)
    assert (origin.day, origin.until) == (day, until)


def test_live_inputs_are_judged_by_need(trained, tmp_path):
    shutil.copytree(trained / "sample", tmp_path / "real")
    workspace = open_home(tmp_path, "live")
    now = operational.issue_time(DAYS[0])
    found = asset_checks.judge_next_inputs(workspace, SPEC, now)
    # Values and publication are of this very hour; the sample's news are of 2018.
    assert found.numbers["values_age_hours"] == 0.0
    assert found.numbers["publication_age_hours"] == 0.0
    assert not found.passed and "2018" in found.text

    assert "NSW1" in asset_checks.judge_next_inputs(workspace, SPEC, now + timedelta(days=1)).text
    assert asset_checks.judge_next_inputs(open_home(tmp_path), SPEC, datetime.now(UTC)).passed
    aside = replace(workspace, mode=Mode.SAMPLE)
    assert not asset_checks.judge_next_inputs(aside, SPEC, now).passed
