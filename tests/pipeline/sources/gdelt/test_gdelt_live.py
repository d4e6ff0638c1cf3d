"""Live news from GDELT's 15-minute files over the replay server, from request to stored rows."""

import gzip
import hashlib
import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.errors import SourceAbsent, SourceBlocked, SourceTransient
from compevo_pipeline.sources.gdelt import live as gdelt_live
from compevo_pipeline.sources.gdelt.queries import PACKAGED
from tests.pipeline.sources.gdelt.test_parse import row
from tests.support.live import NEWS, LiveHome
from tests.support.nemweb import pack
from tests.support.replay import Answer

HOST = "storage.googleapis.com"
ROOT = "/data.gdeltproject.org"
NOW = datetime(2026, 3, 2, 3, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = (MIDNIGHT, MIDNIGHT + timedelta(hours=1))
STAMP = "%Y%m%d%H%M%S"
TITLE = "Blackout number {} hits the city of Sydney overnight"


def gal_path(slot, offset):
    return (HOST, f"{ROOT}/gdeltv3/gal/{slot + timedelta(minutes=offset):{STAMP}}.gal.json.gz")


def gal(slot, *titles, domain="example.com.au"):
    lines = [
        json.dumps(
            {
                "date": "2026-03-01T20:00:00Z",
                "url": f"https://{domain}/{slot:%H%M}/{number}",
                "domain": domain,
                "title": title,
                "lang": "en",
            }
        )
        for number, title in enumerate(titles)
    ]
    return Answer(body=gzip.compress("\n".join(lines).encode(), mtime=0), kind="application/gzip")


def slots(start=MIDNIGHT, count=4):
    return [start + index * timedelta(minutes=15) for index in range(count)]


def serve_gal(replay, offsets=(1, 2), only=None):
    for number, slot in enumerate(only or slots()):
        for offset in offsets:
            moment = slot + timedelta(minutes=offset)
            replay.serve({gal_path(slot, offset): gal(moment, TITLE.format(f"{number}{offset}"))})


def gkg(slot, title):
    page = f"<PAGE_TITLE>{title}</PAGE_TITLE>"
    address = f"https://gkg.example.com.au/{slot:%H%M}"
    return pack((f"{slot:{STAMP}}.gkg.csv", row(0, page, f"{slot:{STAMP}}", "", address)))


def serve_list(replay, files, *, wrong=()):
    """Serves GDELT's list of files, and the files; of those in ``wrong`` it states another hash."""
    lines = ["1234 cut"]
    for slot, content in files.items():
        name = f"{slot:{STAMP}}.gkg.csv.zip"
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        digest = "0" * 32 if slot in wrong else digest
        lines.append(f"{len(content)} {digest} http://data.gdeltproject.org/gdeltv2/{name}")
        replay.serve(
            {(HOST, f"{ROOT}/gdeltv2/{name}"): Answer(body=content, kind="application/zip")}
        )
    listed = Answer(body="\n".join(lines).encode(), status=206, kind="text/plain", etag='"l"')
    replay.serve({(HOST, f"{ROOT}/gdeltv2/masterfilelist.txt"): listed})


def queries(folder, *changes):
    text = PACKAGED.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    copy = folder / "news.toml"
    copy.write_text(text)
    return copy


@pytest.fixture
def home(tmp_path, replay):
    return LiveHome(tmp_path / "home", NOW)


def ingest(home, span=HOUR):
    return home.ingest(NEWS, only=["gdelt"], span=span)["gdelt"]


def test_a_quarter_hour_without_files_is_asked_for_again_after_growing_pauses_then_never(
    home, replay, monkeypatch
):
    monkeypatch.setattr(
        "compevo_pipeline.sources.common.ledger.ABSENT_PAUSES", [timedelta(hours=1)]
    )
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


def test_a_late_second_file_is_found_without_asking_for_the_first_again(home, replay):
    serve_gal(replay, offsets=(1,))
    ingest(home)
    serve_gal(replay, offsets=(4,))
    home.wait(hours=1)
    before = len(replay.seen)
    assert ingest(home)["new"] == 4
    assert not any("0100.gal" in path[-18:] for path in replay.paths()[before:] if "0001" in path)
    assert home.articles().height == 8


def test_a_day_later_a_quarter_hour_with_one_file_is_asked_for_no_other(home, replay):
    serve_gal(replay, offsets=(1,))
    home.wait(days=2)
    ingest(home)
    states = {entry.state for entry in home.ledger.list_entries(gdelt_live.SLOT_SOURCE)}
    assert states == {"frozen"}


STORY = "Heatwave in Sydney pushes the power grid to its very limit"
FIRST, SECOND, *_ = slots()


def test_only_news_that_concerns_a_data_set_is_kept_and_near_identical_titles_once(home, replay):
    replay.serve(
        {
            gal_path(FIRST, 1): gal(FIRST, STORY, "Blackout hits a quiet suburb of Lagos today"),
            gal_path(FIRST, 2): gal(FIRST, "Council opens a new library", domain="b.com.au"),
            gal_path(SECOND, 1): gal(SECOND, f"{STORY} | The Herald", domain="c.com.au"),
            gal_path(SECOND, 2): gal(SECOND, "Bitcoin slides again", domain="d.example.org"),
        }
    )
    ingest(home, span=(FIRST, SECOND + timedelta(minutes=15)))
    titles = sorted(home.articles()["title"])
    assert titles == [
        "Bitcoin slides again",
        "Blackout hits a quiet suburb of Lagos today",  # of a .com.au site
        STORY,
    ]


def serve_story(replay):
    """Serve a story in the first quarter hour, and another site's copy of it in the second."""
    copies = ((FIRST, STORY, "a.com.au"), (SECOND, f"{STORY} | The Herald", "b.com.au"))
    for slot, title, domain in copies:
        replay.serve({gal_path(slot, minute): gal(slot, title, domain=domain) for minute in (1, 2)})


def ingest_quarter(home, slot):
    return ingest(home, span=(slot, slot + timedelta(minutes=15)))


def test_a_story_that_is_stored_is_not_stored_again_by_a_later_refresh(home, replay):
    serve_story(replay)
    ingest_quarter(home, FIRST)
    before = home.articles()
    assert before["title"].to_list() == [STORY]

    counts = ingest_quarter(home, SECOND)
    assert (counts["new"], counts["told before"]) == (0, 1)
    assert home.articles().equals(before)


def test_an_earlier_version_of_a_story_joins_the_one_that_windows_may_name(home, replay):
    serve_story(replay)
    # A refresh goes from the newest to the oldest.
    ingest_quarter(home, SECOND)
    before = home.articles()
    counts = ingest_quarter(home, FIRST)
    assert (counts["new"], counts["told before"]) == (1, 0)
    after = home.articles()
    assert after.filter(after["article_id"].is_in(before["article_id"].implode())).equals(before)


def test_news_of_a_users_own_data_set_folds_no_other_away(home, replay):
    serve_story(replay)
    ingest_quarter(home, FIRST)
    of_a_user = home.articles().with_columns(
        article_id=pl.lit("f" * 32), source=pl.lit("live:own-demand/news.csv")
    )
    home.workspace.layout.news_database.unlink()
    home.workspace.news_store().upsert_articles(of_a_user)
    assert ingest_quarter(home, SECOND)["new"] == 1


def test_a_refresh_goes_back_from_the_newest_and_stops_at_its_limits(tmp_path, replay, caplog):
    serve_gal(replay, offsets=(0, 1))
    limited = queries(tmp_path, ("most_requests = 1600", "most_requests = 4"))
    home = LiveHome(tmp_path / "home", NOW, {"news_queries": limited})
    ingest(home)
    assert len(replay.seen) == 4
    assert home.articles()["available_at"].min() == slots()[2]
    rest = "2 quarter hours from 2026-03-02 00:00 to 2026-03-02 00:15 are left"
    assert f"(4 requests, 600 MB) are reached, and {rest}; run it again" in caplog.text

    caplog.clear()
    ingest(home)
    assert home.articles().height == 8
    ingest(home)
    assert "are left" not in caplog.text


def test_a_quarter_hour_is_left_alone_until_it_has_settled(home, replay):
    home.clock.now = MIDNIGHT + timedelta(minutes=34)
    serve_gal(replay)
    ingest(home, span=(MIDNIGHT, None))
    assert home.articles()["available_at"].max() == MIDNIGHT + timedelta(minutes=2)


def test_a_gap_is_filled_from_gkg_checked_against_the_list(home, replay):
    gap, *others = slots()
    serve_gal(replay, only=others)
    serve_list(replay, {gap: gkg(gap, "Storm cuts power in Brisbane")})
    home.clock.now = NOW + timedelta(hours=6)
    assert ingest(home)["new"] == 7
    (listed,) = [seen for seen in replay.seen if seen.path.endswith("masterfilelist.txt")]
    assert listed.headers["range"].startswith("bytes=-")
    assert "Storm cuts power in Brisbane" in home.articles()["title"].to_list()


def test_a_file_with_another_hash_is_fetched_once_more_then_set_aside(tmp_path, replay):
    serve_gal(replay)
    files = {slot: gkg(slot, f"Flood in Brisbane, stage {slot:%M}") for slot in slots()[:3]}
    serve_list(replay, files, wrong=[slots()[1]])
    everything = queries(tmp_path, ('gkg = "gaps"', 'gkg = "all"'))
    home = LiveHome(tmp_path / "home", NOW, {"news_queries": everything})
    with pytest.raises(SourceTransient, match=r"set aside .* 20260302001500.gkg.csv.zip"):
        ingest(home)
    assert sum("20260302001500.gkg" in path for path in replay.paths()) == 2
    assert home.articles().height == 8 + 2
    assert home.ledger.get("gdelt_bulk", "20260302004500.gkg.csv.zip").state == "absent"
    assert ingest(home)["files"] == 0
    assert sum("20260302001500.gkg" in path for path in replay.paths()) == 2


@pytest.mark.parametrize("status", [403, 404])
def test_where_nothing_is_found_for_hours_the_run_says_so(home, replay, status):
    denied = Answer(status=status, body=b"<Error>AccessDenied</Error>", kind="application/xml")
    span = (MIDNIGHT, MIDNIGHT + timedelta(hours=2))
    names = {gal_path(slot, offset): denied for slot in slots(count=8) for offset in range(8)}
    replay.serve(names)
    expected = SourceBlocked if status == 403 else SourceAbsent
    with pytest.raises(expected, match="none of 8 quarter hours"):
        ingest(home, span=span)
    assert home.ledger.list_entries("gdelt_bulk") == []
