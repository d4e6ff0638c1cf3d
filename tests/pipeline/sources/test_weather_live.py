"""Runs of forecast weather: what is asked, kept, asked again; the key of a paid plan is secret."""

import json
import logging
import traceback
from datetime import UTC, datetime, timedelta

import pytest

from compevo_core.errors import CompEvoError, SourceRejected, SourceTransient
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.weather.forecast import SOURCE, fetch_live, name_run
from tests.support.live import LiveHome
from tests.support.replay import Answer, open_live
from tests.support.weather import ENDPOINT, answer, answer_run, asked_run, make_run

NOW = datetime(2026, 7, 20, 7, 30, tzinfo=UTC)
DAY = timedelta(days=1)
NEWEST = datetime(2026, 7, 19, 18, tzinfo=UTC)
NO_RUN = b"Unexpected error while streaming data: modelRunUnavailable(model: ecmwf_ifs, run: x)"


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
    replay.serve({ENDPOINT: answer})
    assert fetch(tmp_path) == [name_run(NEWEST - i * DAY) for i in (3, 2, 1, 0)]
    query = replay.seen[0].query
    assert query["timezone"] == ["GMT"] and query["wind_speed_unit"] == ["ms"]
    assert query["latitude"][0].split(",")[0] == "-33.87" and query["models"] == ["ecmwf_ifs"]

    assert fetch(tmp_path) == []
    assert len(replay.seen) == 4


def test_a_run_is_not_asked_for_before_it_is_public(replay, tmp_path):
    replay.serve({ENDPOINT: answer})
    early = NEWEST + timedelta(hours=11, minutes=59)
    assert name_run(NEWEST) not in fetch(tmp_path, now=early)
    assert name_run(NEWEST) in fetch(tmp_path, now=NEWEST + timedelta(hours=12))


def test_a_backfill_asks_for_what_is_missing_in_its_span(replay, tmp_path):
    replay.serve({ENDPOINT: answer})
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
    replay.serve({ENDPOINT: spellings})
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
    replay.serve({ENDPOINT: [Answer(body=body, kind="application/json"), answer_run(NEWEST)]})
    span = {"since": NEWEST - timedelta(hours=1)}
    assert fetch(tmp_path, **span) == []
    assert states(tmp_path) == {name_run(NEWEST): EntryState.ABSENT}
    assert fetch(tmp_path, now=NOW + DAY, until=NOW, **span) == [name_run(NEWEST)]


def test_an_answer_that_breaks_off_is_no_run_and_is_fetched_anew(replay, tmp_path):
    # More than the client looks at before it keeps an answer.
    broken = (
        answer_run(NEWEST).body[:-2].ljust(70_000) + b"Unexpected error while streaming data: x"
    )
    replay.serve({ENDPOINT: [Answer(body=broken, kind="application/json"), answer_run(NEWEST)]})
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

    replay.serve({ENDPOINT: refuse_second})
    live = open_live(tmp_path, now=NOW)
    files = fetch_live(live)
    assert next(files).name == name_run(NEWEST - 3 * DAY)
    with pytest.raises(SourceRejected, match="Cannot initialize WeatherVariable"):
        next(files)


DATASET = "electricity-operational"
FREE, PATH = ENDPOINT
HOST = f"customer-{FREE}"
KEY = "canary-Key_0123456789"


def quote(status):
    """Refuses, and quotes the key and the whole address, as servers do."""

    def refuse(seen):
        # The key first: of a long answer only the beginning is told.
        reason = f"{seen.query['apikey']}: {dict(seen.query)}"
        body = json.dumps({"reason": reason, "error": True})
        return Answer(body=body.encode(), status=status, kind="application/json")

    return refuse


@pytest.fixture
def home(tmp_path):
    return LiveHome(tmp_path / "home", NOW, {"open_meteo_key": KEY})


def ingest(home):
    return home.ingest(DATASET, only=["weather-forecast"])


def test_with_a_key_the_customers_host_is_asked_and_without_one_the_free_host(
    home, replay, tmp_path
):
    replay.serve({(HOST, PATH): answer, (FREE, PATH): answer})
    ingest(home)
    assert {(seen.host, *seen.query["apikey"]) for seen in replay.seen} == {(HOST, KEY)}
    asked = len(replay.seen)
    assert ingest(home)["weather-forecast"]["files"] == 0
    assert len(replay.seen) == asked

    ingest(LiveHome(tmp_path / "free", NOW))
    assert {(seen.host, "apikey" in seen.query) for seen in replay.seen[asked:]} == {(FREE, False)}


REFUSALS = (
    (quote(400), SourceRejected),
    (quote(503), SourceTransient),
    (Answer(is_reset=True), SourceTransient),
    (
        Answer(status=302, headers={"Location": f"https://{FREE}{PATH}?apikey={KEY}"}),
        SourceRejected,
    ),
)


def test_the_key_reaches_no_text_log_or_file(home, replay, caplog):
    caplog.set_level(logging.DEBUG)
    replay.serve({(HOST, PATH): answer})
    texts = [repr(home.workspace.settings), str(ingest(home))]
    for reply, expected in REFUSALS:
        home.wait(days=1)
        replay.serve({(HOST, PATH): reply})
        with pytest.raises(expected) as caught:
            ingest(home)
        texts += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
    result = home.materialize(DATASET)
    texts += [str(event) for event in result.all_events]
    texts.append(caplog.text)

    assert [text for text in texts if KEY in text] == []
    assert "apikey" in str(replay.seen[-1].query)
    assert {seen.host for seen in replay.seen if "apikey" in seen.query} == {HOST}
    written = [path for path in home.home.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


def test_a_refused_certificate_names_the_host_and_no_key(home, replay, caplog):
    caplog.set_level(logging.DEBUG)
    replay.bad_certificates.add(HOST)
    with pytest.raises(CompEvoError, match="certificate was refused") as caught:
        ingest(home)
    assert KEY not in "".join(traceback.format_exception(caught.value)) + caplog.text
