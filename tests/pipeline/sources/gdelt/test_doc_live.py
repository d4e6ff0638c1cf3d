"""The DOC API over the replay server: halving, pace, refusals, and a user's own query."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from compevo_core.errors import SchemaDrift, SourceRejected, SourceTransient
from compevo_pipeline.defs.definition import to_dagster
from compevo_pipeline.errors import Throttled
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.sources.feeds import make_own_feeds
from compevo_pipeline.sources.gdelt import live as doc_live
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.gdelt.queries import read_queries
from compevo_pipeline.sources.own.declaration import NewsKeys
from tests.pipeline.sources.gdelt.test_gdelt_live import queries
from tests.support.live import NEWS, LiveHome
from tests.support.own_tables import declare
from tests.support.replay import Answer, open_live

DOC = ("api.gdeltproject.org", "/api/v2/doc/doc")
START = datetime(2026, 3, 1, tzinfo=UTC)
NOW = START + timedelta(days=1, hours=5, minutes=7)
STAMP = "%Y%m%d%H%M%S"


def answer_every(minutes):
    """Answers with one article each so many minutes of the asked span, cut as GDELT does."""

    def answer(seen):
        start, end = (
            datetime.strptime(seen.query[key][0], STAMP).replace(tzinfo=UTC)
            for key in ("startdatetime", "enddatetime")
        )
        count = int((end - start).total_seconds() // 60)
        moments = [start + timedelta(minutes=minute) for minute in range(0, count, minutes)]
        articles = [
            {
                "url": f"https://example.org/{at:{STAMP}}",
                "title": f"Power story of {at:%d %H:%M}",
                "seendate": f"{at:%Y%m%dT%H%M%SZ}",
                "language": "English",
            }
            for at in moments[: doc_live.DOC_CAP]
        ]
        body = json.dumps({"articles": articles} if articles else {})
        return Answer(body=body.encode(), kind="application/json")

    return answer


def ask(home, *, now=NOW, **span):
    live = open_live(home, now=now)
    lookback = timedelta(**span or {"days": 1})
    return list(doc_live.fetch_query(live, "storm", lookback, source="gdelt_doc")), live.ledger


def test_a_cut_answer_is_halved_until_every_article_is_there(tmp_path, replay):
    replay.serve({DOC: answer_every(5)})
    files, _ = ask(tmp_path, now=START + timedelta(days=1))
    assert gdelt.parse_all(files)[0].height == 24 * 12
    assert len(files) == 2
    assert {seen.query["maxrecords"][0] for seen in replay.seen} == {"250"}


def ask_confirmed(home):
    """Ask as a refresh does: what came before a failure is stored."""
    live = open_live(home, now=START + timedelta(days=1))
    files = []
    try:
        files.extend(doc_live.fetch_query(live, "storm", timedelta(days=1), source="gdelt_doc"))
    finally:
        live.ledger.confirm()
    return files


def test_after_a_half_that_failed_the_next_refresh_asks_for_it(tmp_path, replay):
    fault = Answer(status=500, body=b"busy", kind="text/plain")

    def fail_after_noon(seen):
        is_second = seen.query["startdatetime"] == ["20260301120000"]
        return fault if is_second else answer_every(5)(seen)

    replay.serve({DOC: fail_after_noon})
    with pytest.raises(SourceTransient):
        ask_confirmed(tmp_path)

    replay.serve({DOC: answer_every(5)})
    (second,) = ask_confirmed(tmp_path)
    assert "20260301120000_20260302000000" in second.name
    asked = len(replay.seen)
    assert ask_confirmed(tmp_path) == []
    assert len(replay.seen) == asked


def test_halving_ends_at_a_quarter_hour(tmp_path, replay, monkeypatch):
    monkeypatch.setattr(doc_live, "DOC_CAP", 2)
    replay.serve({DOC: answer_every(1)})
    assert len(ask(tmp_path, now=START + timedelta(hours=1), hours=1)[0]) == 4


def test_a_day_that_is_over_is_asked_for_once_and_today_as_far_as_it_is(tmp_path, replay):
    replay.serve({DOC: answer_every(60)})
    _, ledger = ask(tmp_path)
    spans = [(seen.query["startdatetime"][0], seen.query["enddatetime"][0]) for seen in replay.seen]
    assert spans == [("20260301000000", "20260302000000"), ("20260302000000", "20260302050000")]

    ledger.confirm()
    assert ask(tmp_path)[0] == []
    ledger.confirm()
    ask(tmp_path, now=NOW + timedelta(hours=1))
    assert replay.seen[-1].query["enddatetime"] == ["20260302060000"]
    assert len(replay.seen) == 3


def test_an_empty_answer_is_no_answer_and_is_asked_for_again(tmp_path, replay):
    replay.serve({DOC: Answer(body=b"{}", kind="application/json")})
    files, ledger = ask(tmp_path)
    assert files == []
    ledger.confirm()
    ask(tmp_path)
    assert len(replay.seen) == 4


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"Your query was too short or too long.", SourceRejected),
        (b"", SourceTransient),
        (b'{"timeline": []}', SchemaDrift),
    ],
)
def test_each_fault_ends_in_its_class_and_is_not_kept_as_an_answer(
    tmp_path, replay, body, expected
):
    replay.serve({DOC: Answer(body=body, kind="application/json")})
    with pytest.raises(expected):
        ask(tmp_path)
    replay.serve({DOC: answer_every(60)})
    assert len(ask(tmp_path)[0]) == 2


THROTTLED = (
    Answer(status=429, body=b"slow down", kind="text/plain"),
    Answer(status=429, headers={"Retry-After": "0"}, kind="text/plain"),
    Answer(body=b"Please limit requests to one every 5 seconds", kind="text/html"),
    Answer(body=b"<!doctype html><p>busy", kind="text/html"),
)


@pytest.mark.parametrize("answer", THROTTLED)
def test_a_throttle_that_names_no_time_is_a_pause_of_minutes_and_no_step_asks_again(
    tmp_path, replay, answer
):
    replay.serve({DOC: answer})
    with pytest.raises(Throttled) as caught:
        ask(tmp_path)
    assert caught.value.retry_after_s == 300
    assert len(replay.seen) == 1
    # Another process of the home, and another query.
    with pytest.raises(Throttled, match="asked for a pause"):
        ask(tmp_path, days=2)
    assert len(replay.seen) == 1
    assert to_dagster(caught.value).seconds_to_wait == 300


def test_every_topic_is_asked_and_a_throttle_fails_no_other_feed(tmp_path, replay):
    replay.serve({DOC: answer_every(600)})
    home = LiveHome(tmp_path, NOW)
    home.ingest(NEWS, only=["gdelt-doc"])
    asked = {seen.query["query"][0] for seen in replay.seen}
    assert asked == {query for topic in read_queries().topics for query in topic.doc_queries()}
    assert home.articles()["source"].str.starts_with("live:gdelt_doc/").all()


def test_the_api_is_not_asked_where_the_file_of_queries_says_so(tmp_path, replay):
    off = queries(tmp_path, ("doc = true", "doc = false"))
    home = LiveHome(tmp_path / "home", NOW, {"news_queries": off})
    home.ingest(NEWS, only=["gdelt-doc"])
    assert replay.seen == []


def test_a_users_own_query_is_asked_in_the_same_way_and_its_news_is_that_data_sets_alone(
    tmp_path, replay
):
    replay.serve({DOC: answer_every(600)})
    news = NewsKeys(gdelt="strike sourcecountry:FR", lookback_days=1)
    declaration = declare().model_copy(update={"news": news})
    feed = make_own_feeds(declaration, tmp_path)[-1]
    files = list(feed.fetch_live(open_live(tmp_path, now=NOW)))
    frame = feed.parsers[FrameKind.ARTICLES](files)
    assert {seen.query["query"][0] for seen in replay.seen} == {"strike sourcecountry:FR"}
    articles = frame[0] if isinstance(frame, tuple) else frame
    assert articles["source"].str.starts_with("live:own-demand/").all()
