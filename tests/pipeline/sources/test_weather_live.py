"""Runs of forecast weather from the replay server: what is asked, kept, asked again."""

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest

from compevo_core.errors import SourceRejected, SourceTransient
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.sources.weather.forecast import SOURCE, fetch_live, name_run
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.preparation import ingest_feeds
from tests.support.replay import Answer, open_live
from tests.support.weather import make_run

HOST, PATH = "single-runs-api.open-meteo.com", "/v1/forecast"
NOW = datetime(2026, 7, 20, 7, 30, tzinfo=UTC)
DAY = timedelta(days=1)
NEWEST = datetime(2026, 7, 19, 18, tzinfo=UTC)
NO_RUN = b"Unexpected error while streaming data: modelRunUnavailable(model: ecmwf_ifs, run: x)"


def asked_run(seen):
    return datetime.fromisoformat(seen.query["run"][0]).replace(tzinfo=UTC)


def answer(seen):
    return Answer(body=json.dumps(make_run(asked_run(seen))).encode(), kind="application/json")


def fetch(home, **span):
    live = open_live(home, **{"now": NOW} | span)
    files = list(fetch_live(live))
    live.ledger.confirm()
    return [file.name for file in files]


def states(home):
    return {entry.name: entry.state for entry in open_live(home).ledger.list_entries(SOURCE)}


def test_a_refresh_asks_for_the_public_runs_of_the_last_days_and_a_second_one_for_nothing(
    replay, tmp_path
):
    replay.serve({(HOST, PATH): answer})
    assert fetch(tmp_path) == [name_run(NEWEST - i * DAY) for i in (3, 2, 1, 0)]
    query = replay.seen[0].query
    assert query["timezone"] == ["GMT"] and query["wind_speed_unit"] == ["ms"]
    assert query["latitude"][0].split(",")[0] == "-33.87" and query["models"] == ["ecmwf_ifs"]

    assert fetch(tmp_path) == []
    assert len(replay.seen) == 4


def test_a_run_is_not_asked_for_before_it_is_public(replay, tmp_path):
    replay.serve({(HOST, PATH): answer})
    early = NEWEST + timedelta(hours=11, minutes=59)
    assert name_run(NEWEST) not in fetch(tmp_path, now=early)
    assert name_run(NEWEST) in fetch(tmp_path, now=NEWEST + timedelta(hours=12))


def test_a_backfill_asks_for_what_is_missing_in_its_span(replay, tmp_path):
    replay.serve({(HOST, PATH): answer})
    since, until = datetime(2025, 5, 1, tzinfo=UTC), datetime(2025, 5, 11, tzinfo=UTC)
    assert len(fetch(tmp_path, since=since, until=until - 5 * DAY)) == 5
    assert len(fetch(tmp_path, since=since, until=until)) == 5
    assert len({asked_run(seen) for seen in replay.seen}) == len(replay.seen) == 10


def test_a_run_that_is_not_there_is_absent_in_each_of_its_spellings_and_given_up(replay, tmp_path):
    reason = json.dumps({"error": True, "reason": "The requested model run is not available"})
    spellings = [
        Answer(body=NO_RUN, kind="application/json"),
        Answer(body=reason.encode(), status=400, kind="application/json"),
        Answer(status=404, body=b"{}", kind="application/json"),
    ]
    replay.serve({(HOST, PATH): spellings})
    assert fetch(tmp_path) == []
    assert set(states(tmp_path).values()) == {EntryState.ABSENT}

    # Asked again after a pause, and no more after the last one.
    fetch(tmp_path)
    assert len(replay.seen) == 4
    since = NEWEST - timedelta(hours=1)
    for days in range(1, 60):
        fetch(tmp_path, now=NOW + days * DAY, since=since, until=NEWEST + timedelta(hours=1))
    assert states(tmp_path)[name_run(NEWEST)] is EntryState.FROZEN
    assert len(replay.seen) == 4 + 6


def test_a_run_without_a_value_is_asked_for_again_and_stores_nothing(replay, tmp_path):
    empty = make_run(NEWEST)
    for place in empty:
        place["hourly"] |= {
            name: [None] * len(listed) for name, listed in place["hourly"].items() if name != "time"
        }
        place["hourly_units"] = dict.fromkeys(place["hourly_units"], "undefined")
    body = json.dumps(empty).encode()
    replay.serve({(HOST, PATH): [Answer(body=body, kind="application/json"), answer_newest()]})
    span = {"since": NEWEST - timedelta(hours=1)}
    assert fetch(tmp_path, **span) == []
    assert states(tmp_path) == {name_run(NEWEST): EntryState.ABSENT}
    assert fetch(tmp_path, now=NOW + DAY, until=NOW, **span) == [name_run(NEWEST)]


def answer_newest():
    return Answer(body=json.dumps(make_run(NEWEST)).encode(), kind="application/json")


def test_an_answer_that_breaks_off_is_no_run_and_is_fetched_anew(replay, tmp_path):
    # More than the client looks at before it keeps an answer.
    broken = answer_newest().body[:-2].ljust(70_000) + b"Unexpected error while streaming data: x"
    replay.serve({(HOST, PATH): [Answer(body=broken, kind="application/json"), answer_newest()]})
    span = {"since": NEWEST - timedelta(hours=1)}
    with pytest.raises(SourceTransient, match="broke off"):
        fetch(tmp_path, **span)
    assert states(tmp_path) == {name_run(NEWEST): EntryState.FAILED}
    assert fetch(tmp_path, **span) == [name_run(NEWEST)]


def test_another_refusal_ends_the_fetch_and_the_runs_before_it_are_safe(replay, tmp_path):
    def refuse_second(seen):
        if asked_run(seen) == NEWEST - 2 * DAY:
            body = b'{"error":true,"reason":"Cannot initialize WeatherVariable"}'
            return Answer(body=body, status=400, kind="application/json")
        return answer(seen)

    replay.serve({(HOST, PATH): refuse_second})
    live = open_live(tmp_path, now=NOW)
    files = fetch_live(live)
    assert next(files).name == name_run(NEWEST - 3 * DAY)
    with pytest.raises(SourceRejected, match="Cannot initialize WeatherVariable"):
        next(files)


WEATHER = [feed for feed in default_feeds()["electricity-operational"] if feed.is_optional]


def ingest(home, feeds):
    workspace = Deployment(settings=Settings(home=home, mode=Mode.LIVE))
    return workspace, ingest_feeds(
        workspace,
        feeds,
        "electricity-operational",
        clock=lambda: NOW,
        log=logging.getLogger("test"),
    )


def test_runs_are_stored_as_covariates_by_step_and_a_second_refresh_writes_no_row(replay, tmp_path):
    replay.serve({(HOST, PATH): answer})
    workspace, counts = ingest(tmp_path, WEATHER)
    assert counts["weather-forecast"]["files"] == 4
    folder = workspace.frame_store().folder("electricity-operational", FrameKind.STEP_COVARIATES)
    frame = workspace.frame_store().read("electricity-operational", FrameKind.STEP_COVARIATES)
    assert frame["available_at"].max() == NEWEST + timedelta(hours=12)
    assert frame["source"].str.starts_with("live:open_meteo_runs/").all()

    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    _, again = ingest(tmp_path, WEATHER)
    assert again["weather-forecast"] == {"files": 0}
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert len(replay.seen) == 4
