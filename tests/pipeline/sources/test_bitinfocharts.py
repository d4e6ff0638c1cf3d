"""Bitcoin's long table and chart pages, as files and over the replay server."""

import contextlib
import os
from datetime import UTC, date, datetime

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SourceBlocked
from compevo_pipeline.sources import bitinfocharts
from compevo_pipeline.sources.common.base import Mode
from tests.support.live import LiveHome
from tests.support.replay import Answer
from tests.support.sources import clock, raw

PAGE = """<html><body><script>
d = new Dygraph(x,[[new Date("2020/01/01"),null],[new Date("2020/01/02"),1.5e3],
[new Date("2020/01/03"),1600],[new Date("2020/01/04"),12]], {labels:["Date"]});
</script></body></html>"""
NOW = datetime(2026, 11, 20, 8, tzinfo=UTC)
POINTS = '[new Date("2026/11/18"),{0}],[new Date("2026/11/19"),{1}],[new Date("2026/11/20"),9]'
CHALLENGE = Answer(status=403, body=b"<html><title>Just a moment...</title>", kind="text/html")


def test_a_page_gives_every_finished_day():
    frame = validate_series(bitinfocharts.parse(raw("bitcoin-transactions.html", PAGE)))
    assert frame["series_id"].unique().to_list() == ["BITINFOCHARTS/transactions"]
    assert frame["start_utc"].dt.date().to_list() == [date(2020, 1, d) for d in (1, 2, 3)]
    assert frame["value"].to_list() == [None, 1500.0, 1600.0]


def test_a_page_in_the_archive_is_read(tmp_path):
    (tmp_path / "bitcoin").mkdir()
    (tmp_path / "bitcoin" / "price-btc.html").write_text(PAGE)
    (file,) = bitinfocharts.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock)
    assert bitinfocharts.parse(file)["series_id"].unique().to_list() == ["BITINFOCHARTS/price"]


def page(old=5, new=6):
    return f"<!doctype html><script>d([{POINTS.format(old, new)}])</script>".encode()


def path(slug):
    return ("bitinfocharts.com", f"/comparison/{slug}-btc.html")


@pytest.fixture
def home(tmp_path, replay):
    answer = Answer(body=page(), kind="text/html")
    replay.serve({path(slug): answer for slug in bitinfocharts.METRICS})
    archive = tmp_path / "archive"
    (archive / "bitcoin").mkdir(parents=True)
    return LiveHome(tmp_path / "home", NOW, {"archive": archive})


def save(home, name, content, at=NOW):
    saved = home.settings["archive"] / "bitcoin" / name
    saved.write_bytes(content)
    os.utime(saved, (at.timestamp(), at.timestamp()))


def test_a_page_is_asked_once_a_day(home, replay):
    home.ingest("bitcoin")
    assert len(replay.seen) == 18
    assert home.ingest("bitcoin")["bitinfocharts"]["files"] == 0
    assert len(replay.seen) == 18

    home.wait(days=1)
    counts = home.ingest("bitcoin")["bitinfocharts"]
    assert all(seen.is_conditional for seen in replay.seen[18:])
    assert (counts["new"], counts["changed"]) == (0, 0)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (403, "<title>Just a moment...</title>"),
        (200, "<title>Login</title>"),
        (200, "<p>Back soon"),
    ],
)
def test_a_wall_ends_the_asking(home, replay, status, text):
    slugs = list(bitinfocharts.METRICS)
    wall = Answer(status=status, body=f"<html>{text}</html>".encode(), kind="text/html")
    replay.serve({path(slugs[2]): [wall, Answer(body=page(), kind="text/html")]})
    with pytest.raises(SourceBlocked, match="COMPEVO_ARCHIVE"):
        home.ingest("bitcoin")
    assert replay.paths() == [path(slug)[1] for slug in slugs[:3]]
    stored = set(home.series("bitcoin")["series_id"])
    assert stored == {f"BITINFOCHARTS/{bitinfocharts.METRICS[slug].id}" for slug in slugs[:2]}

    home.ingest("bitcoin")
    assert replay.paths()[3:] == [path(slug)[1] for slug in slugs[2:]]
    assert home.series("bitcoin")["series_id"].n_unique() == 18


def test_saved_pages_replace_blocked_ones(home, replay):
    replay.serve({path(slug): CHALLENGE for slug in bitinfocharts.METRICS})
    save(home, "price-btc.html", page())
    assert home.ingest("bitcoin")["bitinfocharts"]["new"] == 2
    assert set(home.series("bitcoin")["source"]) == {"archive:bitinfocharts/price-btc.html"}
    with pytest.raises(SourceBlocked):
        home.ingest("bitcoin")

    save(home, "price-btc.html", page(new=7), at=NOW.replace(hour=9))
    assert home.ingest("bitcoin")["bitinfocharts"]["changed"] == 1


@pytest.mark.parametrize("others", [0, 2])
def test_an_unreadable_page_is_named(home, replay, caplog, others):
    replay.serve({path(slug): CHALLENGE for slug in bitinfocharts.METRICS})
    save(home, "price-btc.html", b"<html>saved too early</html>")
    for slug in ("size", "tweets")[:others]:
        save(home, f"{slug}-btc.html", page())
    for _ in range(2):
        caplog.clear()
        with contextlib.suppress(SourceBlocked):
            home.ingest("bitcoin")
        assert "price-btc.html" in caplog.text


def test_an_older_page_replaces_nothing(home):
    save(home, "price-btc.html", page(old=1, new=2), at=NOW.replace(day=19))
    home.ingest("bitcoin")
    price = home.series("bitcoin").filter(pl.col("variable") == "price_usd")
    assert price["value"].to_list() == [5.0, 6.0]
