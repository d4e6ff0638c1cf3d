"""Live fetching against recorded answers; no test opens a connection."""

import io
import json
import zipfile
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
import responses

from compevo_core.data.series import validate_series
from compevo_core.errors import ConfigError, SourceBlocked, SourceRejected
from compevo_pipeline.sources import live
from compevo_pipeline.sources.bitinfocharts import source as bitinfocharts
from compevo_pipeline.sources.exchange import ecb
from compevo_pipeline.sources.exchange import source as exchange
from compevo_pipeline.sources.gdelt import sample
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.gdelt.file_lists import SAFE_ROOT
from tests.support.replay import open_live

START = datetime(2026, 3, 1, tzinfo=UTC)
STAMP = "%Y%m%d%H%M%S"


@pytest.fixture
def client(replay, tmp_path):
    return open_live(tmp_path).client


@responses.activate
def test_the_ecb_file_is_fetched_and_parsed(client):
    packed = io.BytesIO()
    columns = (
        "Date,USD,JPY,GBP,CHF,AUD,CAD,CNY,NZD,SGD,\n2026-03-02,1.1,170,.8,.9,1.6,1.5,7.5,1.9,1.4,\n"
    )
    with zipfile.ZipFile(packed, "w") as bundle:
        bundle.writestr("eurofxref-hist.csv", columns)
    responses.get(ecb.BULK_URL, body=packed.getvalue(), content_type="application/zip")
    (file,) = live.fetch_exchange(client)
    frame = validate_series(exchange.parse(file))
    assert frame["source"].unique().to_list() == ["live:ecb_bulk/eurofxref-hist.zip"]
    assert frame.height == 9


@responses.activate
def test_chart_pages_are_fetched_one_by_one_and_parsed(client):
    page = '<html>[[new Date("2026/03/01"),5],[new Date("2026/03/02"),1]]</html>'
    responses.get(
        "https://bitinfocharts.com/comparison/price-btc.html", body=page, content_type="text/html"
    )
    (file,) = live.fetch_bitinfocharts(client, ["price"])
    assert bitinfocharts.parse(file)["value"].to_list() == [5.0]


@responses.activate
def test_bot_protection_stops_the_chart_pages_at_the_first(client):
    responses.get(
        "https://bitinfocharts.com/comparison/price-btc.html",
        status=403,
        body="<html>captcha</html>",
    )
    with pytest.raises(SourceBlocked):
        list(live.fetch_bitinfocharts(client, ["price", "tweets"]))
    assert len(responses.calls) == 1


def doc_server(every):
    """Answer with one article each ``every`` minutes of the requested span, cut as GDELT does."""

    def answer(request):
        asked = parse_qs(urlsplit(request.url).query)
        start, end = (
            datetime.strptime(asked[key][0], STAMP).replace(tzinfo=UTC)
            for key in ("startdatetime", "enddatetime")
        )
        stamps = [
            start + timedelta(minutes=minute)
            for minute in range(0, int((end - start).total_seconds() // 60), every)
        ]
        articles = [
            {
                "url": f"https://example.org/{at:{STAMP}}",
                "title": f"Story {at}",
                "seendate": f"{at:%Y%m%dT%H%M%SZ}",
            }
            for at in stamps[: live.DOC_CAP]
        ]
        return (
            200,
            {"Content-Type": "application/json"},
            json.dumps({"articles": articles} if articles else {}),
        )

    responses.add_callback(responses.GET, live.DOC_URL, callback=answer)


@responses.activate
def test_a_cut_answer_is_halved_until_every_article_is_there(client):
    doc_server(every=5)
    files = list(
        live.fetch_gdelt_doc(
            client, "(heatwave OR storm) sourcecountry:AS", START, START + timedelta(days=2)
        )
    )
    frame, report = gdelt.parse_all(files)
    assert frame.height == 2 * 24 * 12
    assert len(files) == 4
    assert report.records == frame.height
    asked = parse_qs(urlsplit(responses.calls[0].request.url).query)
    assert (asked["mode"], asked["maxrecords"], asked["enddatetime"]) == (
        ["artlist"],
        ["250"],
        ["20260303000000"],
    )


@responses.activate
def test_halving_ends_at_a_quarter_hour(client, monkeypatch):
    monkeypatch.setattr(live, "DOC_CAP", 2)
    doc_server(every=1)
    files = list(live.fetch_gdelt_doc(client, "storm", START, START + timedelta(hours=1)))
    assert len(files) == 4


@responses.activate
def test_an_empty_answer_is_yielded_for_the_parser_to_count(client):
    responses.get(live.DOC_URL, body="{}", content_type="application/json")
    files = list(live.fetch_gdelt_doc(client, "storm", START, START + timedelta(hours=1)))
    assert [file.content for file in files] == [b"{}"]


@responses.activate
def test_a_refused_query_is_not_repeated(client):
    responses.get(
        live.DOC_URL, body="Your query was too short or too long.", content_type="text/html"
    )
    with pytest.raises(SourceRejected, match="too short"):
        list(live.fetch_gdelt_doc(client, "x", START, START + timedelta(hours=1)))
    assert len(responses.calls) == 1


@responses.activate
def test_a_quarter_hour_without_a_gkg_file_is_reported_as_absent(client):
    content = dict(sample.make_files())["20260302040000.gkg.csv.zip"]
    responses.get(
        f"{SAFE_ROOT}/gdeltv2/20260301000000.gkg.csv.zip",
        body=content,
        content_type="application/zip",
    )
    responses.get(f"{SAFE_ROOT}/gdeltv2/20260301001500.gkg.csv.zip", status=404)
    fetched = live.fetch_gdelt_gkg(client, START, START + timedelta(minutes=30))
    assert fetched.absent == ["20260301001500.gkg.csv.zip"]
    assert gdelt.parse(fetched.files[0]).height == 9


@responses.activate
def test_gal_files_are_found_at_any_of_their_minutes(client):
    content = dict(sample.make_files())["20260301031600.gal.json.gz"]
    for minute in live.GAL_OFFSETS:
        url = f"{SAFE_ROOT}/gdeltv3/gal/2026030100{minute:02d}00.gal.json.gz"
        responses.get(url, body=content, status=200) if minute in {1, 6} else responses.get(
            url, status=403
        )
    fetched = live.fetch_gdelt_gal(client, START, START + timedelta(minutes=15))
    assert [file.name[10:12] for file in fetched.files] == ["01", "06"]
    assert len(fetched.absent) == 6


@responses.activate
def test_a_host_that_refuses_every_request_is_blocked_and_not_absent(client):
    for minute in live.GAL_OFFSETS:
        responses.get(f"{SAFE_ROOT}/gdeltv3/gal/2026030100{minute:02d}00.gal.json.gz", status=403)
    with pytest.raises(SourceBlocked, match="all 8 requests were refused"):
        live.fetch_gdelt_gal(client, START, START + timedelta(minutes=15))


def test_a_span_without_a_zone_or_backwards_is_refused(client):
    with pytest.raises(ConfigError, match="must be UTC"):
        live.fetch_gdelt_gkg(client, START.replace(tzinfo=None), START)
    with pytest.raises(ConfigError, match="the first before the second"):
        list(live.fetch_gdelt_doc(client, "storm", START, START))
