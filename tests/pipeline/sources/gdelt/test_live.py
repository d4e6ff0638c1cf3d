"""GDELT over the replay server: 15-minute files from request to stored rows, and the DOC API."""

import gzip
import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.errors import SourceAbsent, SourceBlocked, SourceTransient
from compevo_pipeline.defs.definition import to_dagster
from compevo_pipeline.errors import Throttled
from compevo_pipeline.sources.common import ledger
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.sources.feeds import make_own_feeds
from compevo_pipeline.sources.gdelt import live as gdelt_live
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.own.declaration import NewsKeys
from compevo_pipeline.work.source_coverage import NEWS
from tests.pipeline.sources.gdelt.test_parse import article, entry, row
from tests.support.live import LiveHome
from tests.support.nemweb import pack
from tests.support.own_tables import declare
from tests.support.replay import Answer, open_live

HOST = "storage.googleapis.com"
ROOT = "/data.gdeltproject.org"
NOW = datetime(2026, 3, 2, 3, tzinfo=UTC)
EVENING = datetime(2026, 3, 1, 20, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = (MIDNIGHT, MIDNIGHT + timedelta(hours=1))
STAMP = "%Y%m%d%H%M%S"
TITLE = "Blackout number {} hits the city of Sydney overnight"
DOC = ("api.gdeltproject.org", "/api/v2/doc/doc")
START = datetime(2026, 3, 1, tzinfo=UTC)
A_DAY = timedelta(days=1)
ASKED_AT = START + timedelta(days=1, hours=5, minutes=7)
THROTTLED = (
    Answer(status=429, body=b"slow down", kind="text/plain"),
    Answer(status=429, headers={"Retry-After": "0"}, kind="text/plain"),
    Answer(body=b"Please limit requests to one every 5 seconds", kind="text/html"),
    Answer(body=b"<!doctype html><p>busy", kind="text/html"),
)


def gal_path(slot, offset):
    return (HOST, f"{ROOT}/gdeltv3/gal/{slot + timedelta(minutes=offset):{STAMP}}.gal.json.gz")


def gal(slot, *titles, domain="example.com.au", published=EVENING):
    date, address = f"{published:%Y-%m-%dT%H:%M:%SZ}", f"https://{domain}/{slot:%H%M}"
    lines = [
        entry(date=date, url=f"{address}/{number}", domain=domain, title=title, desc="")
        for number, title in enumerate(titles)
    ]
    return Answer(body=gzip.compress("\n".join(lines).encode(), mtime=0), kind="application/gzip")


def slots(count=4):
    return [MIDNIGHT + index * timedelta(minutes=15) for index in range(count)]


def serve_gal(replay, offsets=(1, 2), only=None):
    for number, slot in enumerate(only or slots()):
        for offset in offsets:
            moment = slot + timedelta(minutes=offset)
            replay.serve({gal_path(slot, offset): gal(moment, TITLE.format(f"{number}{offset}"))})


def gkg(slot, title):
    page = f"<PAGE_TITLE>{title}</PAGE_TITLE>"
    address = f"https://gkg.example.com.au/{slot:%H%M}"
    return pack((f"{slot:{STAMP}}.gkg.csv", row(0, page, f"{slot:{STAMP}}", "", address)))


def serve_gkg(replay, files, *, damaged=()):
    """Serve GKG files by quarter hour; of those that are damaged a byte is another one."""
    for slot, content in files.items():
        body = bytearray(content)
        body[len(body) // 3] ^= slot in damaged
        address = (HOST, f"{ROOT}/gdeltv2/{slot:{STAMP}}.gkg.csv.zip")
        replay.serve({address: Answer(body=bytes(body), kind="application/zip")})


def queries(folder, old, new):
    text = gdelt.PACKAGED.read_text()
    assert old in text
    copy = folder / "news.toml"
    copy.write_text(text.replace(old, new))
    return copy


@pytest.fixture
def home(tmp_path, replay):
    return LiveHome(tmp_path / "home", NOW)


def ingest(home, span=HOUR):
    return home.ingest(NEWS, only=["gdelt"], span=span)["gdelt"]


def test_an_empty_quarter_hour_is_given_up(home, replay, monkeypatch):
    monkeypatch.setattr(ledger, "ABSENT_PAUSES", [timedelta(hours=1)])
    serve_gal(replay, only=slots()[1:])
    ingest(home)
    home.wait(minutes=30)
    before = len(replay.seen)
    ingest(home)
    assert len(replay.seen) == before

    home.wait(hours=1)
    ingest(home)
    assert len(replay.seen) == before + 8  # every minute of the one quarter hour
    home.wait(days=30)
    ingest(home)
    assert len(replay.seen) == before + 8
    (entry,) = home.ledger.list_entries(gdelt_live.SLOT_SOURCE)
    assert (entry.name, entry.state) == ("20260302000000", "frozen")


def test_a_late_second_file_is_found(home, replay):
    serve_gal(replay, offsets=(1,))
    ingest(home)
    serve_gal(replay, offsets=(4,))
    home.wait(hours=1)
    before = len(replay.seen)
    assert ingest(home)["new"] == 4
    assert not any("0100.gal" in path[-18:] for path in replay.paths()[before:] if "0001" in path)
    assert home.articles().height == 8


def test_one_file_is_enough_a_day_later(home, replay):
    serve_gal(replay, offsets=(1,))
    home.wait(days=2)
    ingest(home)
    states = {entry.state for entry in home.ledger.list_entries(gdelt_live.SLOT_SOURCE)}
    assert states == {"frozen"}


LAGOS = "Blackout hits a quiet suburb of Lagos today"  # of a .com.au site
STORY = "Heatwave in Sydney pushes the power grid to its very limit"
FIRST, SECOND, *_ = slots()


def test_only_news_of_data_sets_is_kept(home, replay):
    replay.serve(
        {
            gal_path(FIRST, 1): gal(FIRST, STORY, LAGOS),
            gal_path(FIRST, 2): gal(FIRST, "Council opens a new library", domain="b.com.au"),
            gal_path(SECOND, 1): gal(SECOND, f"{STORY} | The Herald", domain="c.com.au"),
            gal_path(SECOND, 2): gal(SECOND, "Bitcoin slides again", domain="d.example.org"),
        }
    )
    ingest(home, span=(FIRST, SECOND + timedelta(minutes=15)))
    assert sorted(home.articles()["title"]) == ["Bitcoin slides again", LAGOS, STORY]


def serve_story(replay):
    """Serve a story in the first quarter hour, and another site's copy of it in the second."""
    copies = ((FIRST, STORY, "a.com.au"), (SECOND, f"{STORY} | The Herald", "b.com.au"))
    for slot, title, domain in copies:
        replay.serve({gal_path(slot, minute): gal(slot, title, domain=domain) for minute in (1, 2)})


def ingest_quarter(home, slot):
    return ingest(home, span=(slot, slot + timedelta(minutes=15)))


# A refresh goes from the newest to the oldest: an earlier version joins a story.
@pytest.mark.parametrize(("first", "then", "new"), [(FIRST, SECOND, 0), (SECOND, FIRST, 1)])
def test_a_story_is_stored_once(home, replay, first, then, new):
    serve_story(replay)
    ingest_quarter(home, first)
    before = home.articles()
    (title,) = before["title"]
    assert title.startswith(STORY) and (new or title == STORY)

    counts = ingest_quarter(home, then)
    assert (counts["new"], counts["told before"]) == (new, 1 - new)
    after = home.articles()
    assert after.height == 1 + new
    assert after.filter(after["article_id"].is_in(before["article_id"].implode())).equals(before)


def test_a_users_news_folds_no_other(home, replay):
    serve_story(replay)
    ingest_quarter(home, FIRST)
    of_a_user = home.articles().with_columns(
        article_id=pl.lit("f" * 32), source=pl.lit("live:own-demand/news.csv")
    )
    home.workspace.layout.news_database.unlink()
    home.workspace.news_store().upsert_articles(of_a_user)
    assert ingest_quarter(home, SECOND)["new"] == 1


def test_a_refresh_stops_at_its_limits(tmp_path, replay, caplog):
    serve_gal(replay, offsets=(0, 1))
    limited = queries(tmp_path, "most_requests = 1600", "most_requests = 4")
    home = LiveHome(tmp_path / "home", NOW, {"news_queries": limited})
    ingest(home)
    assert len(replay.seen) == 4
    assert home.articles()["available_at"].min() == slots()[2]
    assert "4 requests" in caplog.text and "2026-03-02 00:15" in caplog.text

    caplog.clear()
    ingest(home)
    assert home.articles().height == 8
    ingest(home)
    assert "are left" not in caplog.text


def test_a_fresh_quarter_hour_is_left_alone(home, replay):
    home.clock.now = MIDNIGHT + timedelta(minutes=34)
    serve_gal(replay)
    ingest(home, span=(MIDNIGHT, None))
    assert home.articles()["available_at"].max() == MIDNIGHT + timedelta(minutes=2)


def test_a_gap_is_filled_from_gkg(home, replay):
    gap, *others = slots()
    serve_gal(replay, only=others)
    serve_gkg(replay, {gap: gkg(gap, "Storm cuts power in Brisbane")})
    home.clock.now = NOW + timedelta(hours=6)
    assert ingest(home)["new"] == 7
    assert "Storm cuts power in Brisbane" in home.articles()["title"].to_list()


def test_a_damaged_file_is_set_aside(tmp_path, replay):
    serve_gal(replay)
    files = {slot: gkg(slot, f"Flood in Brisbane, stage {slot:%M}") for slot in slots()[:3]}
    serve_gkg(replay, files, damaged=[slots()[1]])
    everything = queries(tmp_path, 'gkg = "gaps"', 'gkg = "all"')
    home = LiveHome(tmp_path / "home", NOW, {"news_queries": everything})
    with pytest.raises(SourceTransient, match="20260302001500"):
        ingest(home)

    assert sum("20260302001500.gkg" in path for path in replay.paths()) == 2
    assert home.articles().height == 8 + 2
    assert home.ledger.get("gdelt_bulk", "20260302004500.gkg.csv.zip").state == "absent"
    assert ingest(home)["files"] == 0
    assert sum("20260302001500.gkg" in path for path in replay.paths()) == 2


@pytest.mark.parametrize("status", [403, 404])
def test_hours_without_a_file_are_an_error(home, replay, status):
    denied = Answer(status=status, body=b"<Error>AccessDenied</Error>", kind="application/xml")
    span = (MIDNIGHT, MIDNIGHT + timedelta(hours=2))
    names = {gal_path(slot, offset): denied for slot in slots(count=8) for offset in range(8)}
    replay.serve(names)
    expected = SourceBlocked if status == 403 else SourceAbsent
    with pytest.raises(expected, match="8"):
        ingest(home, span=span)
    assert home.ledger.list_entries("gdelt_bulk") == []


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
            article(at, url=f"https://example.org/{at:{STAMP}}", title=f"Story of {at:%d %H:%M}")
            for at in moments[: gdelt_live.DOC_CAP]
        ]
        body = json.dumps({"articles": articles} if articles else {})
        return Answer(body=body.encode(), kind="application/json")

    return answer


def ask(home, *, now=ASKED_AT, **span):
    """Ask as a refresh does: what came before a failure is stored."""
    live = open_live(home, now=now)
    lookback = timedelta(**span or {"days": 1})
    try:
        return list(gdelt_live.fetch_query(live, "storm", lookback, source="gdelt_doc"))
    finally:
        live.ledger.confirm()


def test_a_cut_answer_is_halved(tmp_path, replay):
    replay.serve({DOC: answer_every(5)})
    files = ask(tmp_path, now=START + A_DAY)
    assert gdelt.parse_all(files)[0].height == 24 * 12
    assert len(files) == 2
    assert {seen.query["maxrecords"][0] for seen in replay.seen} == {"250"}


def test_a_failed_half_is_asked_again(tmp_path, replay):
    fault = Answer(status=500, body=b"busy", kind="text/plain")

    def fail_after_noon(seen):
        is_second = seen.query["startdatetime"] == ["20260301120000"]
        return fault if is_second else answer_every(5)(seen)

    replay.serve({DOC: fail_after_noon})
    with pytest.raises(SourceTransient):
        ask(tmp_path, now=START + A_DAY)

    replay.serve({DOC: answer_every(5)})
    (second,) = ask(tmp_path, now=START + A_DAY)
    assert "20260301120000_20260302000000" in second.name
    asked = len(replay.seen)
    assert ask(tmp_path, now=START + A_DAY) == []
    assert len(replay.seen) == asked


def test_halving_ends_at_a_quarter_hour(tmp_path, replay, monkeypatch):
    monkeypatch.setattr(gdelt_live, "DOC_CAP", 2)
    replay.serve({DOC: answer_every(1)})
    assert len(ask(tmp_path, now=START + timedelta(hours=1), hours=1)) == 4


def test_a_past_day_is_asked_once(tmp_path, replay):
    replay.serve({DOC: answer_every(60)})
    ask(tmp_path)
    spans = [(seen.query["startdatetime"][0], seen.query["enddatetime"][0]) for seen in replay.seen]
    assert spans == [("20260301000000", "20260302000000"), ("20260302000000", "20260302050000")]

    assert ask(tmp_path) == []
    ask(tmp_path, now=ASKED_AT + timedelta(hours=1))
    assert replay.seen[-1].query["enddatetime"] == ["20260302060000"]
    assert len(replay.seen) == 3


def test_an_empty_answer_is_asked_again(tmp_path, replay):
    replay.serve({DOC: Answer(body=b"{}", kind="application/json")})
    assert ask(tmp_path) == []
    ask(tmp_path)
    assert len(replay.seen) == 4


@pytest.mark.parametrize("answer", THROTTLED)
def test_a_throttle_without_a_time_pauses_minutes(tmp_path, replay, answer):
    replay.serve({DOC: answer})
    with pytest.raises(Throttled) as caught:
        ask(tmp_path)

    assert caught.value.retry_after_s == 300
    assert len(replay.seen) == 1
    assert to_dagster(caught.value).seconds_to_wait == 300


def test_a_users_own_query_is_asked(tmp_path, replay):
    replay.serve({DOC: answer_every(600)})
    news = NewsKeys(gdelt="strike sourcecountry:FR", lookback_days=1)
    feed = make_own_feeds(declare().model_copy(update={"news": news}), tmp_path)[-1]
    files = list(feed.fetch_live(open_live(tmp_path, now=ASKED_AT)))
    frame = feed.parsers[FrameKind.ARTICLES](files)
    assert {seen.query["query"][0] for seen in replay.seen} == {"strike sourcecountry:FR"}
    articles = frame[0] if isinstance(frame, tuple) else frame

    assert articles["source"].str.starts_with("live:own-demand/").all()
