"""Rates of the ECB, the RBA and the AUD/USD benchmark, as files and over the replay server."""

from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_pipeline.sources import exchange
from compevo_pipeline.sources.common.base import Mode
from tests.fuzz.seeds import FILES
from tests.support.live import LiveHome
from tests.support.nemweb import pack
from tests.support.replay import Answer
from tests.support.sources import clock, raw

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
def home(tmp_path, replay):
    replay.serve({BULK: BULK_ANSWER, TABLE: RBA_ANSWER})
    return LiveHome(tmp_path, FRIDAY_EVENING)


def test_a_changed_history_brings_new_days(home, replay):
    home.ingest("exchange")
    home.wait(days=1)
    assert home.ingest("exchange")["exchange"]["files"] == 0

    more = f"{CSV}2026-11-19,1.2,170,.8,.9,1.6,1.5,7.5,1.9,1.4,\n"
    replay.serve({BULK: replace(BULK_ANSWER, body=pack(("eurofxref-hist.csv", more)), etag='"c"')})
    home.wait(days=1)
    home.ingest("exchange", only=["exchange"])

    aud = home.series("exchange").filter(pl.col("series_id") == "ECB/AUD")
    assert aud["start_utc"].dt.day().to_list() == [18, 19]
    assert replay.seen[-1].headers["if-none-match"] == '"a"'
    # Every file holds all days: only the newest one is kept.
    assert len(list((home.workspace.layout.raw / "ecb_bulk").glob("*.zip*"))) == 2


def test_a_refusal_of_the_rba_is_shown(home, replay, caplog):
    replay.serve({TABLE: Answer(status=403, body=b"<html>Access Denied</html>", kind="text/html")})
    assert "exchange-rba" not in home.ingest("exchange")
    assert "SourceBlocked" in caplog.text
    assert home.series("exchange")["series_id"].str.starts_with("ECB/").all()
    (entry,) = home.ledger.list_entries("rba_f11")
    assert entry.note.startswith("SourceBlocked")
