"""GKG and GAL files, and the lists of them."""

import gzip
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compevo_core.data.news import validate_articles
from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer
from compevo_pipeline.sources.common.decode import decode_line_lossy, decode_lossy
from compevo_pipeline.sources.gdelt import parse as bulk
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.gdelt.live import SAFE_ROOT, parse_list, verify_file
from tests.support.nemweb import pack
from tests.support.sources import raw

GKG_NAME, GAL_NAME = "20260301001500.gkg.csv.zip", "20260301001600.gal.json.gz"
TITLE = "<PAGE_TITLE>Rain &amp; wind &#x2013; again</PAGE_TITLE>"
PUBLISHED = "<PAGE_PRECISEPUBTIMESTAMP>{}</PAGE_PRECISEPUBTIMESTAMP>"


def row(number=0, extras=TITLE, date="20260301001500", translation="", url=None):
    cells = [""] * 27
    cells[:5] = [
        f"{date}-{number}",
        date,
        "1",
        "example.org",
        url or f"https://example.org/{number}",
    ]
    cells[25], cells[26] = translation, extras
    return "\t".join(cells)


def zipped(text, member="20260301001500.gkg.csv"):
    return pack((member, text))


def gkg(*rows):
    return gdelt.parse_counted(raw(GKG_NAME, zipped("\n".join(rows) + "\n"), "gdelt_bulk"))


def entry(number=0, **changes):
    entry = {
        "date": "2026-03-01T00:05:00.000Z",
        "url": f"https://example.org/{number}",
        "domain": "example.org",
        "outletName": "Example",
        "title": f"Story {number}",
        "desc": "A sentence.",
        "lang": "en",
    }
    return json.dumps(entry | changes)


def gal(*lines):
    return gdelt.parse_counted(
        raw(GAL_NAME, gzip.compress("\n".join(lines).encode()), "gdelt_bulk")
    )


def test_a_gkg_title_is_unescaped_and_its_time_is_the_batch():
    frame, report = gkg(row())
    article = validate_articles(frame).row(0, named=True)
    assert article["title"] == "Rain & wind \N{EN DASH} again"
    assert article["available_at"] == datetime(2026, 3, 1, 0, 15, tzinfo=UTC)
    assert article["published_at"] is None
    assert article["language"] == "English"
    assert report.articles == 1


@pytest.mark.parametrize(
    ("published", "available"),
    [
        (datetime(2026, 3, 1, 9, tzinfo=UTC), datetime(2026, 3, 1, 9, tzinfo=UTC)),
        (datetime(2026, 2, 28, 9, tzinfo=UTC), datetime(2026, 3, 1, 0, 15, tzinfo=UTC)),
    ],
)
def test_a_publication_time_delays_availability_and_never_advances_it(published, available):
    frame, _ = gkg(row(extras=TITLE + PUBLISHED.format(f"{published:%Y%m%d%H%M%S}")))
    assert frame.select("published_at", "available_at").rows() == [(published, available)]


def test_gkg_rows_are_split_on_newlines_only():
    frame, report = gkg(row(extras=TITLE.replace("again", "a\x0bb\u2028c")), row(1))
    assert report.records == 2
    assert frame["title"].to_list()[0].endswith("a b c")


@pytest.mark.parametrize("further", [0, 1, 9])
def test_columns_of_a_gkg_row_are_counted_from_its_start(further):
    cells = row(translation="srclc:fra;eng:Moses").split("\t")
    frame, _ = gkg("\t".join([*cells, *(f"more {n}" for n in range(further))]))
    assert frame["title"].to_list() == ["Rain & wind \N{EN DASH} again"]
    assert frame["language"].to_list() == ["fra"]


@given(
    st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\xe2\x82", b"\xff", b"\xef\xbb\xbf"]))
)
def test_rows_of_parts_are_the_rows_of_the_whole(pieces):
    whole = b"".join(pieces)
    text, replaced = decode_lossy(whole)
    expected = [(line, row) for line, row in enumerate(text.split("\n"), 1) if row]
    found = [
        (line, *decode_line_lossy(content)) for line, content in bulk._number_rows(iter(pieces))
    ]
    assert [(line, row) for line, row, _ in found] == expected
    assert sum(count for *_, count in found) == replaced


def test_untitled_gkg_rows_are_counted():
    frame, report = gkg(row(), row(1, extras=PUBLISHED.format("20260301000000")))
    assert (frame.height, report.untitled) == (1, 1)


def test_a_gkg_zip_with_two_files_or_a_path_outside_or_torn_is_refused():
    with pytest.raises(SchemaDrift, match="holds 2 files"):
        gdelt.parse(raw(GKG_NAME, pack(("first.csv", row()), ("second.csv", row()))))
    with pytest.raises(SchemaDrift, match="outside its folder"):
        gdelt.parse(raw(GKG_NAME, zipped(row(), "../../x.csv")))
    with pytest.raises(SourceTransient, match="damaged or truncated"):
        gdelt.parse(raw(GKG_NAME, zipped(row())[:-30]))


def test_a_gal_article_is_seen_at_the_files_stamp_not_at_its_own_date():
    frame, _ = gal(entry())
    article = validate_articles(frame).row(0, named=True)
    assert article["published_at"] == datetime(2026, 3, 1, 0, 5, tzinfo=UTC)
    assert article["seen_at"] == article["available_at"] == datetime(2026, 3, 1, 0, 16, tzinfo=UTC)
    assert (article["body"], article["language"]) == ("A sentence.", "English")


def test_a_gal_line_with_a_trailing_comma_or_a_bad_escape_is_read():
    frame, report = gal(entry() + ",", entry(1).replace("Story", r"Sto\ry \x"))
    assert frame.height == 2
    assert report.repairs == 1


def test_a_broken_gal_line_among_many_is_counted_and_many_are_refused():
    lines = [entry(number) for number in range(20)]
    frame, report = gal(*lines, "{broken")
    assert (frame.height, report.unreadable) == (20, 1)
    with pytest.raises(SchemaDrift, match=rf"{GAL_NAME}, line 1: not a GAL article"):
        gal("{broken", entry())


def test_a_truncated_gal_file_is_transient_and_an_empty_one_is_a_failure():
    packed = gzip.compress(b"\n".join(entry(number).encode() for number in range(50)))
    with pytest.raises(SourceTransient, match=rf"{GAL_NAME}: the gzip stream is truncated"):
        gdelt.parse(raw(GAL_NAME, packed[:-40]))
    with pytest.raises(EmptyNewsAnswer, match="no line in it"):
        gal("")


def test_a_file_without_a_stamp_in_its_name_is_refused():
    with pytest.raises(SchemaDrift, match="named YYYYMMDDHHMMSS"):
        gdelt.parse(raw("latest.gal.json", entry()))
    with pytest.raises(SchemaDrift, match=r"notes.txt: not a DOC answer"):
        gdelt.parse(raw("notes.txt", "x"))


LIST = b"""297 a1b2c3d4e5f60718293a4b5c6d7e8f90 http://data.gdeltproject.org/gdeltv2/20150218230000.export.CSV.zip
3 900150983cd24fb0d6963f7d28e17f72 http://data.gdeltproject.org/gdeltv2/20150218230000.gkg.csv.zip

10768507 http://data.gdeltproject.org/gdeltv2/20150218231500.gkg.csv.zip
"""


def test_a_file_list_is_rewritten_to_a_safe_host_without_its_malformed_lines():
    files = parse_list(LIST, "masterfilelist.txt")
    gkg_file = "20150218230000.gkg.csv.zip"
    assert list(files) == ["20150218230000.export.CSV.zip", gkg_file]
    assert files[gkg_file].url == f"{SAFE_ROOT}/gdeltv2/{gkg_file}"

    verify_file(raw(gkg_file, b"abc"), files[gkg_file])
    for damaged in (b"abd", b"ab"):
        with pytest.raises(SourceTransient, match=r"fetch it once more"):
            verify_file(raw(gkg_file, damaged), files[gkg_file])
