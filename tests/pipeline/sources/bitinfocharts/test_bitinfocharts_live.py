"""Live chart pages over the replay server, from request to stored rows."""

import contextlib
import os
from datetime import UTC, datetime

import polars as pl
import pytest

from compevo_core.errors import SourceBlocked
from compevo_pipeline.sources.bitinfocharts.source import METRICS
from tests.support.live import LiveHome
from tests.support.replay import Answer

NOW = datetime(2026, 11, 20, 8, tzinfo=UTC)
HOST = "bitinfocharts.com"
POINTS = '[new Date("2026/11/18"),{0}],[new Date("2026/11/19"),{1}],[new Date("2026/11/20"),9]'
CHALLENGE = Answer(
    status=403, body=b"<html><title>Just a moment...</title></html>", kind="text/html"
)


def page(old=5, new=6):
    return f"<!doctype html><script>d([{POINTS.format(old, new)}])</script>".encode()


def path(slug):
    return (HOST, f"/comparison/{slug}-btc.html")


@pytest.fixture
def home(tmp_path, replay):
    answer = Answer(body=page(), kind="text/html")
    replay.serve({path(slug): answer for slug in METRICS})
    archive = tmp_path / "archive"
    (archive / "bitcoin").mkdir(parents=True)
    return LiveHome(tmp_path / "home", NOW, {"archive": archive})


def save(home, name, content, at=NOW):
    saved = home.settings["archive"] / "bitcoin" / name
    saved.write_bytes(content)
    os.utime(saved, (at.timestamp(), at.timestamp()))


def test_a_page_is_asked_for_once_a_day_and_under_conditions_the_next(home, replay):
    home.ingest("bitcoin")
    assert len(replay.seen) == 18
    assert home.ingest("bitcoin")["bitinfocharts"]["files"] == 0
    assert len(replay.seen) == 18

    home.wait(days=1)
    counts = home.ingest("bitcoin")["bitinfocharts"]
    assert all(seen.is_conditional for seen in replay.seen[18:])
    assert (counts["new"], counts["changed"]) == (0, 0)


@pytest.mark.parametrize(
    "wall",
    [
        CHALLENGE,
        Answer(body=b"<html><title>Login</title>", kind="text/html"),
        Answer(body=b"<html><p>We will be back soon</html>", kind="text/html"),
    ],
)
def test_at_a_wall_no_further_page_is_asked_for_and_what_came_is_stored(home, replay, wall):
    slugs = list(METRICS)
    replay.serve({path(slugs[2]): wall})
    with pytest.raises(SourceBlocked, match=r"not circumvented.*folder bitcoin of COMPEVO_ARCHIVE"):
        home.ingest("bitcoin")
    assert replay.paths() == [path(slug)[1] for slug in slugs[:3]]
    stored = set(home.series("bitcoin")["series_id"])
    assert stored == {f"BITINFOCHARTS/{METRICS[slug].id}" for slug in slugs[:2]}


def test_after_a_wall_the_missing_pages_are_asked_for_again(home, replay):
    slugs = list(METRICS)
    replay.serve({path(slugs[2]): [CHALLENGE, Answer(body=page(), kind="text/html")]})
    with pytest.raises(SourceBlocked):
        home.ingest("bitcoin")
    home.ingest("bitcoin")
    assert replay.paths()[3:] == [path(slug)[1] for slug in slugs[2:]]
    assert home.series("bitcoin")["series_id"].n_unique() == 18


def test_pages_saved_by_hand_take_the_place_of_blocked_ones_and_are_read_once(home, replay):
    replay.serve({path(slug): CHALLENGE for slug in METRICS})
    save(home, "price-btc.html", page())
    assert home.ingest("bitcoin")["bitinfocharts"]["new"] == 2
    assert home.series("bitcoin")["source"].unique().to_list() == [
        "archive:bitinfocharts/price-btc.html"
    ]
    with pytest.raises(SourceBlocked):
        home.ingest("bitcoin")

    save(home, "price-btc.html", page(new=7), at=NOW.replace(hour=9))
    assert home.ingest("bitcoin")["bitinfocharts"]["changed"] == 1


@pytest.mark.parametrize("others", [0, 2])
def test_a_saved_page_that_cannot_be_read_is_named_by_every_run(home, replay, caplog, others):
    replay.serve({path(slug): CHALLENGE for slug in METRICS})
    save(home, "price-btc.html", b"<html>saved too early</html>")
    for slug in ("size", "tweets")[:others]:
        save(home, f"{slug}-btc.html", page())
    for _ in range(2):
        caplog.clear()
        with contextlib.suppress(SourceBlocked):
            home.ingest("bitcoin")
        assert "price-btc.html: no chart data in the page" in caplog.text


def test_a_page_saved_earlier_takes_the_place_of_no_newer_value(home):
    save(home, "price-btc.html", page(old=1, new=2), at=NOW.replace(day=19))
    home.ingest("bitcoin")
    price = home.series("bitcoin").filter(pl.col("variable") == "price_usd")
    assert price["value"].to_list() == [5.0, 6.0]
