"""Faults of AEMO's hosts and files in live mode: each ends in its class."""

from datetime import datetime

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
from tests.support import nemweb
from tests.support.nemweb import ACTUAL, HOST
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
    "404": (Answer(status=404), SourceAbsent),
    "cut-zip": (Answer(body=BODY[:-20]), SourceTransient),
    "empty-zip": (Answer(body=nemweb.pack()), SchemaDrift),
    "member-outside-its-folder": (zipped(TEXT, "../../x.CSV"), SchemaDrift),
    "zip-in-zip-in-zip": (
        Answer(body=nemweb.pack(("a.zip", nemweb.pack(("b.zip", BODY))))),
        SchemaDrift,
    ),
    "page-in-the-zip": (zipped(PAGE.decode()), SchemaDrift),
    "no-end-of-report": (zipped(TEXT.replace("END OF REPORT", "END")), SchemaDrift),
    "an-unknown-region": (zipped(TEXT.replace("NSW1", "WA1")), SchemaDrift),
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
    "empty-folder": (nemweb.listing(ACTUAL, []), SourceAbsent),
    "maintenance": (Answer(body=PAGE, kind="text/html"), SourceAbsent),
    "renamed": (nemweb.listing(ACTUAL, ["PUBLIC_DEMAND_HH_202607190030.zip"]), SchemaDrift),
    "no-stamps": (nemweb.listing(ACTUAL, [f"{aemo_live.ACTUAL_REPORT}_LATEST.zip"]), SchemaDrift),
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
