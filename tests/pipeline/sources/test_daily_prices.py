"""Prices of Bitcoin and exchange rates, as files and over the replay server."""

import contextlib
import os
from dataclasses import replace
from datetime import UTC, date, datetime

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SourceBlocked
from compevo_pipeline.sources import bitinfocharts, exchange
from compevo_pipeline.sources.common.base import Mode
from tests.fuzz.seeds import FILES
from tests.support.live import LiveHome
from tests.support.nemweb import pack
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
    [(403, "<title>Just a moment...</title>"), (200, "<title>Login</title>"), (200, "<p>Soon")],
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


ECB = """Date,USD,JPY,GBP,CHF,AUD,CAD,CNY,NZD,SGD,
2020-01-03,1.10,120,0.85,1.08,1.60,1.45,N/A,1.66,1.50,
2020-01-02,1.12,N/A,0.86,1.09,1.61,1.46,N/A,1.67,1.51,
2020-01-01,1.11,121,0.84,1.07,1.59,1.44,N/A,1.65,1.49,
"""
N2F = """,Time,AUD/USD,AUGDP,AUUN,AUIR,USAGDP,USAUN,USAIR
0,1/1/2018,0.7799,540342,5.5,1.5,20328.5,4,1.41
1,1/2/2018,0.786099868,540342,5.5,1.5,20328.5,4,1.41
2,1/3/2018,,540342,5.5,1.5,20328.5,4,1.41
"""
RBA = (FILES / "f11.1-data.csv").read_text()
FRIDAY_EVENING = datetime(2026, 11, 20, 18, tzinfo=UTC)
CSV = "Date,USD,JPY,GBP,CHF,AUD,CAD,CNY,NZD,SGD,\n2026-11-18,1.1,170,.8,.9,1.6,1.5,7.5,1.9,1.4,\n"
BULK = ("www.ecb.europa.eu", "/stats/eurofxref/eurofxref-hist.zip")
TABLE = ("www.rba.gov.au", "/statistics/tables/csv/f11.1-data.csv")
BULK_ANSWER = Answer(body=pack(("eurofxref-hist.csv", CSV)), kind="application/zip", etag='"a"')
RBA_ANSWER = Answer(body=RBA.encode(), kind="text/csv", etag='"b"')


def select_series(frame, series_id):
    return frame.filter(pl.col("series_id") == series_id).sort("start_utc")


def values(frame, series_id):
    return select_series(frame, series_id)["value"].to_list()


def test_a_rate_becomes_dollars_for_one_unit():
    frame = validate_series(exchange.parse(raw("eurofxref-hist.csv", ECB, "ecb_bulk")))
    assert values(frame, "ECB/AUD") == pytest.approx([1.11 / 1.59, 1.12 / 1.61, 1.10 / 1.60])
    assert values(frame, "ECB/EUR") == [1.11, 1.12, 1.10]

    # A day without a rate is missing; a currency without any is no series.
    yen = select_series(frame, "ECB/JPY")
    assert yen["variable"].unique().to_list() == ["rate_usd_per_jpy"]
    assert yen["flag"].to_list() == ["observed", "missing", "observed"]
    assert select_series(frame, "ECB/CNY").is_empty()


def test_interpolated_values_are_nulled():
    frame = validate_series(exchange.parse(raw("aud.csv", N2F, "n2f_exchange")))
    assert frame["flag"].to_list() == ["observed", "nulled:interpolated", "missing"]
    assert frame["value"].to_list() == [0.7799, None, None]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_rba_table_becomes_dollars_for_one_unit(mark):
    content = mark + RBA.replace("\n", "\r\n").encode()
    frame = validate_series(exchange.parse(raw("f11.1-data.csv", content, "rba_f11")))
    assert values(frame, "RBA/AUD") == [0.65, None, 0.66]
    assert values(frame, "RBA/JPY") == pytest.approx([0.65 / 97.5, None, 0.66 / 98.0])
    assert values(frame, "RBA/GBP") == pytest.approx([0.65 / 0.508, None, 0.66 / 0.51])
    assert frame["series_id"].n_unique() == 8


def test_files_saved_by_hand_are_read(tmp_path):
    folder = tmp_path / "exchange_rate"
    folder.mkdir()
    (folder / "f11.1-data.csv").write_text(RBA)
    (folder / exchange.N2F_FILE).write_text("x")
    _, benchmark, saved = exchange.read_files(Mode.ARCHIVE, tmp_path, clock=clock)
    assert benchmark.source == "n2f_exchange"
    assert values(exchange.parse(saved), "RBA/AUD")[0] == 0.65


@pytest.fixture
def rates_home(tmp_path, replay):
    replay.serve({BULK: BULK_ANSWER, TABLE: RBA_ANSWER})
    return LiveHome(tmp_path, FRIDAY_EVENING)


def test_a_changed_history_brings_new_days(rates_home, replay):
    rates_home.ingest("exchange")
    rates_home.wait(days=1)
    assert rates_home.ingest("exchange")["exchange"]["files"] == 0

    more = f"{CSV}2026-11-19,1.2,170,.8,.9,1.6,1.5,7.5,1.9,1.4,\n"
    replay.serve({BULK: replace(BULK_ANSWER, body=pack(("eurofxref-hist.csv", more)), etag='"c"')})
    rates_home.wait(days=1)
    rates_home.ingest("exchange", only=["exchange"])

    aud = rates_home.series("exchange").filter(pl.col("series_id") == "ECB/AUD")
    assert aud["start_utc"].dt.day().to_list() == [18, 19]
    assert replay.seen[-1].headers["if-none-match"] == '"a"'
    # Every file holds all days: only the newest one is kept.
    assert len(list((rates_home.workspace.layout.raw / "ecb_bulk").glob("*.zip*"))) == 2


def test_a_refusal_of_the_rba_is_shown(rates_home, replay, caplog):
    replay.serve({TABLE: Answer(status=403, body=b"<html>Access Denied</html>", kind="text/html")})
    assert "exchange-rba" not in rates_home.ingest("exchange")
    assert "SourceBlocked" in caplog.text
    assert rates_home.series("exchange")["series_id"].str.starts_with("ECB/").all()
    (entry,) = rates_home.ledger.list_entries("rba_f11")
    assert entry.note.startswith("SourceBlocked")
