"""Faults of AEMO's hosts and files in live mode: each ends in its class."""

from datetime import UTC, date, datetime, timedelta

import pytest

from compevo_core.errors import (
    SchemaDrift,
    SourceAbsent,
    SourceBlocked,
    SourceRejected,
    SourceTransient,
)
from compevo_pipeline.sources.aemo import live as aemo_live
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.common.nem import REGIONS
from tests.support import nemweb
from tests.support.nemweb import ACTUAL, HOST, PRICES
from tests.support.replay import Answer, open_live

DAY = datetime(2026, 7, 19)  # noqa: DTZ001 - NEM time
NAME, BODY = nemweb.actual(DAY)
STEM = NAME.removesuffix(".zip")
TEXT = nemweb.zipfile.ZipFile(nemweb.io.BytesIO(BODY)).read(f"{STEM}.CSV").decode()
PAGE = b"<html><head><title>AEMO</title></head><body>maintenance</body></html>"
CAPTCHA = b"<html><body>Access Denied</body></html>"


def zipped(text, name=f"{STEM}.CSV"):
    return Answer(body=nemweb.pack((name, text)))


FILES = {
    "page-with-200": (Answer(body=PAGE, kind="text/html"), SchemaDrift),
    "access-denied-with-200": (Answer(body=CAPTCHA, kind="text/html"), SourceBlocked),
    "403": (Answer(status=403), SourceBlocked),
    "404": (Answer(status=404), SourceAbsent),
    "500": (Answer(status=500), SourceTransient),
    "cut-zip": (Answer(body=BODY[:-20]), SourceTransient),
    "damaged-zip": (Answer(body=BODY[:60] + b"\0" * 40 + BODY[100:]), SourceTransient),
    "empty-zip": (Answer(body=nemweb.pack()), SchemaDrift),
    "csv-as-zip": (Answer(body=TEXT.encode()), SchemaDrift),
    "member-outside-its-folder": (zipped(TEXT, "../../x.CSV"), SchemaDrift),
    "absolute-member": (zipped(TEXT, "/etc/x.CSV"), SchemaDrift),
    "zip-in-zip-in-zip": (
        Answer(body=nemweb.pack(("a.zip", nemweb.pack(("b.zip", BODY))))),
        SchemaDrift,
    ),
    "page-in-the-zip": (zipped(PAGE.decode()), SchemaDrift),
    "no-end-of-report": (zipped(TEXT.replace("END OF REPORT", "END")), SchemaDrift),
    "fewer-lines-than-counted": (zipped(TEXT.replace('REPORT",8', 'REPORT",9')), SchemaDrift),
    "a-line-lost": (
        zipped("".join(TEXT.splitlines(keepends=True)[:3] + TEXT.splitlines(keepends=True)[4:])),
        SchemaDrift,
    ),
    "another-table": (zipped(TEXT.replace(",ACTUAL,3", ",OTHER,3")), SchemaDrift),
    "a-column-renamed": (zipped(TEXT.replace("INTERVAL_DATETIME", "INTERVAL")), SchemaDrift),
    "an-unknown-region": (zipped(TEXT.replace("NSW1", "WA1")), SchemaDrift),
    "words-for-numbers": (zipped(TEXT.replace("8000.0", "unknown")), SchemaDrift),
    "infinity": (zipped(TEXT.replace("8000.0", "inf")), SchemaDrift),
    "a-day-that-is-none": (zipped(TEXT.replace("2026/07/19 00:00:00", "2026/07/32")), SchemaDrift),
    "not-utf-8": (zipped(TEXT.encode().replace(b"NSW1", b"NSW\xff")), SchemaDrift),
    "empty-csv": (zipped(""), SourceTransient),
}
"""What a listed half-hour is -> what a refresh with nothing else ends in."""


@pytest.mark.parametrize(("answer", "error"), FILES.values(), ids=FILES)
def test_a_half_hour_that_is_none_ends_in_its_class(replay, tmp_path, answer, error):
    nemweb.serve_day(replay, count=0)
    replay.serve({(HOST, f"/Reports/Current/{ACTUAL}/"): nemweb.listing(ACTUAL, [NAME])})
    replay.serve({(HOST, f"/Reports/CURRENT/{ACTUAL}/{NAME}"): answer})
    live = open_live(tmp_path)
    came = []
    with pytest.raises(error) as caught:
        came.extend(aemo_live.fetch_operational(live))
        actuals = [raw for raw in came if "ACTUAL" in raw.name.upper()]
        aemo.parse_all(actuals or came)
    assert type(caught.value) is error


LISTINGS = {
    "404": (Answer(status=404), SourceAbsent),
    "403": (Answer(status=403), SourceBlocked),
    "500": (Answer(status=500), SourceTransient),
    "empty-answer": (Answer(kind="text/html"), SourceTransient),
    "empty-folder": (nemweb.listing(ACTUAL, []), SourceAbsent),
    "maintenance": (Answer(body=PAGE, kind="text/html"), SourceAbsent),
    "access-denied": (Answer(body=CAPTCHA, kind="text/html"), SourceBlocked),
    "renamed": (nemweb.listing(ACTUAL, ["PUBLIC_DEMAND_HH_202607190030.zip"]), SchemaDrift),
    "no-stamps": (nemweb.listing(ACTUAL, [f"{aemo_live.ACTUAL_REPORT}_LATEST.zip"]), SchemaDrift),
    "a-day-that-is-none": (
        nemweb.listing(ACTUAL, [f"{aemo_live.ACTUAL_REPORT}_20269999.zip"]),
        SchemaDrift,
    ),
    "days-at-the-ends-of-time": (
        nemweb.listing(
            ACTUAL, [f"{aemo_live.ACTUAL_REPORT}_{day}.zip" for day in ("00010101", "99991231")]
        ),
        SchemaDrift,
    ),
    "a-link-that-is-no-address": (
        Answer(
            body=f'<a href="https://[/{aemo_live.ACTUAL_REPORT}_202607190030.zip">'.encode(),
            kind="text/html",
        ),
        SourceRejected,
    ),
}


@pytest.mark.parametrize(("answer", "error"), LISTINGS.values(), ids=LISTINGS)
def test_a_listing_that_is_none_ends_in_its_class(replay, tmp_path, answer, error):
    nemweb.serve_day(replay, count=0)
    for part in ("Current", "CURRENT"):
        replay.serve({(HOST, f"/Reports/{part}/{ACTUAL}/"): answer})
    with pytest.raises(error):
        list(aemo_live.fetch_operational(open_live(tmp_path)))


def test_a_link_off_the_host_is_not_followed(replay, tmp_path):
    nemweb.serve_day(replay, count=0)
    page = f'<A HREF="https://files.example/{NAME}">{NAME}</A>'.encode()
    replay.serve({(HOST, f"/Reports/Current/{ACTUAL}/"): Answer(body=page, kind="text/html")})
    with pytest.raises(Exception, match=r"files\.example is not a host"):
        list(aemo_live.fetch_operational(open_live(tmp_path)))
    assert {seen.host for seen in replay.seen} == {HOST}


def month(**changes):
    text = nemweb.price_month(date(2026, 7, 1), "NSW1", days=1)[1].decode()
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


LINES = month().splitlines(keepends=True)
MONTHS = {
    "page": (Answer(body=PAGE, kind="text/csv"), SchemaDrift),
    "cut-in-a-row": (Answer(body=month()[:-9].encode()), SchemaDrift),
    "a-row-lost": (Answer(body="".join(LINES[:50] + LINES[51:]).encode()), SchemaDrift),
    "a-row-twice": (Answer(body="".join(LINES[:50] + LINES[49:]).encode()), SchemaDrift),
    "a-column-more": (Answer(body=month(PERIODTYPE="PERIODTYPE,EXTRA").encode()), SchemaDrift),
    "header-alone": (Answer(body=LINES[0].encode()), SchemaDrift),
}


@pytest.mark.parametrize(("answer", "error"), MONTHS.values(), ids=MONTHS)
def test_a_month_that_is_none_ends_in_its_class(replay, tmp_path, answer, error):
    paths = [nemweb.price_month(date(2026, 7, 1), region)[0] for region in REGIONS]
    replay.serve({(PRICES, path): answer for path in paths})
    now = datetime(2026, 7, 20, tzinfo=UTC) + timedelta(hours=7)
    with pytest.raises(error):
        aemo.parse_all(list(aemo_live.fetch_price_and_demand(open_live(tmp_path, now=now))))
