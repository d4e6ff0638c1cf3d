"""Live exchange rates over the replay server, from request to stored rows."""

import itertools
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.exchange.source import SDMX_URL, find_newest_publication
from tests.pipeline.sources.exchange.test_exchange import RBA, SDMX
from tests.support.live import LiveHome
from tests.support.nemweb import pack
from tests.support.replay import Answer

FRIDAY_EVENING = datetime(2026, 11, 20, 18, tzinfo=UTC)
CSV = "Date,USD,JPY,GBP,CHF,AUD,CAD,CNY,NZD,SGD,\n2026-11-18,1.1,170,.8,.9,1.6,1.5,7.5,1.9,1.4,\n"
BULK = ("www.ecb.europa.eu", "/stats/eurofxref/eurofxref-hist.zip")
DAYS = ("data-api.ecb.europa.eu", "/" + SDMX_URL.split("/", 3)[3])
TABLE = ("www.rba.gov.au", "/statistics/tables/csv/f11.1-data.csv")


BULK_ANSWER = Answer(body=pack(("eurofxref-hist.csv", CSV)), kind="application/zip", etag='"a"')


def answer_days(seen):
    """The rates of the first two days of the span that is asked for."""
    first = date.fromisoformat(seen.query["startPeriod"][0])
    text = SDMX
    for number, day in enumerate(("2026-11-19", "2026-11-20")):
        text = text.replace(day, f"{first + timedelta(days=number)}")
    return Answer(body=text.encode(), kind="text/csv")


RBA_ANSWER = Answer(body=RBA.encode(), kind="text/csv", etag='"b"')


@pytest.fixture
def home(tmp_path, replay):
    replay.serve({BULK: BULK_ANSWER, DAYS: answer_days, TABLE: RBA_ANSWER})
    return LiveHome(tmp_path, FRIDAY_EVENING)


def test_after_the_whole_history_the_days_since_are_asked_for(home, replay):
    home.ingest("exchange")
    home.wait(days=3)
    home.ingest("exchange")
    (asked,) = [seen for seen in replay.seen if seen.host == DAYS[0]]
    assert asked.query["startPeriod"] == ["2026-11-13"]
    assert asked.query["endPeriod"] == ["2026-11-23"]
    assert asked.query["format"] == ["csvdata"]
    aud = home.series("exchange").filter(pl.col("series_id") == "ECB/AUD")
    assert aud["start_utc"].dt.day().to_list() == [13, 14, 18]


def test_a_backfill_asks_for_its_span_alone(home, replay):
    span = (datetime(2026, 11, 19, tzinfo=UTC), datetime(2026, 11, 20, tzinfo=UTC))
    home.ingest("exchange", only=["exchange"], span=span)
    (asked,) = replay.seen
    assert (asked.host, asked.query["startPeriod"], asked.query["endPeriod"]) == (
        DAYS[0],
        ["2026-11-19"],
        ["2026-11-20"],
    )


def test_a_backfill_of_old_days_hides_none_of_those_since_the_last_refresh(home, replay):
    home.ingest("exchange")
    home.wait(days=60)
    span = (datetime(2019, 11, 19, tzinfo=UTC), datetime(2019, 12, 20, tzinfo=UTC))
    home.ingest("exchange", only=["exchange"], span=span)
    home.ingest("exchange", only=["exchange"])
    assert replay.seen[-1].query["startPeriod"] == ["2026-11-13"]

    home.wait(days=1)
    home.ingest("exchange", only=["exchange"])
    assert replay.seen[-1].query["startPeriod"] == ["2027-01-12"]


def test_a_backfill_from_before_the_last_refresh_up_to_now_needs_no_refresh(home, replay):
    home.ingest("exchange")
    home.wait(days=60)
    months = ("2026-11-10", "2026-12-01", "2027-01-01", "2027-01-19T18:00")
    moments = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in months]
    for span in itertools.pairwise(moments):
        home.ingest("exchange", only=["exchange"], span=span)
    asked = len(replay.seen)
    home.ingest("exchange", only=["exchange"])
    assert len(replay.seen) == asked


@pytest.mark.parametrize(
    ("now", "published"),
    [
        ("2026-11-20T16:59", "2026-11-19T17:00"),
        ("2026-11-20T17:00", "2026-11-20T17:00"),
        ("2026-11-22T23:00", "2026-11-20T17:00"),
        ("2026-11-23T08:00", "2026-11-20T17:00"),
    ],
)
def test_nothing_is_published_at_weekends_or_before_the_evening(now, published):
    moments = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (now, published)]
    assert find_newest_publication(moments[0]) == moments[1]


def test_where_the_rba_refuses_the_ecbs_rates_are_stored_and_the_refusal_is_shown(
    home, replay, caplog
):
    replay.serve({TABLE: Answer(status=403, body=b"<html>Access Denied</html>", kind="text/html")})
    counts = home.ingest("exchange")
    assert "exchange-rba" not in counts
    assert "exchange-rba is left out: SourceBlocked" in caplog.text
    assert home.series("exchange")["series_id"].str.starts_with("ECB/").all()
    (entry,) = home.ledger.list_entries("rba_f11")
    assert entry.note.startswith("SourceBlocked")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(status=404, body=b"No results found.", kind="text/plain"), SourceAbsent),
        (Answer(body=b"KEY,FREQ\n", kind="text/csv"), SchemaDrift),
    ],
)
def test_a_fault_of_the_newest_days_keeps_what_is_stored_and_they_are_asked_for_again_at_once(
    home, replay, answer, expected
):
    home.ingest("exchange")
    before = home.series("exchange")
    home.wait(days=3)
    replay.serve({DAYS: answer})
    with pytest.raises(expected):
        home.ingest("exchange")
    assert home.series("exchange").equals(before)

    replay.serve({DAYS: answer_days})
    assert home.ingest("exchange")["exchange"]["new"] > 0
