"""Damaged files and made-up answers: each is read, or refused with an error that names it.

    python -m pytest tests/fuzz --hypothesis-profile campaign

Hypothesis damages one valid file of every parser (``tests.fuzz.seeds``), and makes up article lists
and HTTP. What belongs here: how, and what must hold. What does not: damage with one known answer
(``tests/pipeline/sources/test_damaged_files.py``).
"""

import gzip
import json
import re
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compevo_core.data.news import validate_articles
from compevo_core.errors import CompEvoError, SourceError
from compevo_pipeline.sources.common.http import Answer, classify_answer
from compevo_pipeline.sources.gdelt.parse import parse_bulk, parse_doc
from tests.fuzz.seeds import make_seeds
from tests.support.nemweb import pack, unzip_all
from tests.support.sources import raw

QUICK = {"max_examples": 40, "derandomize": True}
settings.register_profile("campaign", max_examples=100_000)
FUZZ = settings(
    **(QUICK if settings.get_current_profile_name() != "campaign" else {}),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

PLACES = [
    re.compile(pattern)
    for pattern in (rb"", rb".", rb"\d+(?:\.\d+)?", rb"[^,\t\n\r\"]+", rb'"[^"\\]*"', rb"[^\n]+\n?")
]
"""Anywhere, a byte, a number, a cell, a text, a line."""
TOKENS = list(
    chain(
        (b"", b"\x00", b"\x1b[2J", b'"', b"'", b",", b"\t", b"\n", b"\r\n"),
        rb"\ { } [ ] null true NaN inf -0 1e999 -1e-999".split(),
        (b"9" * 400, b"9" * 5000, b"0x10"),
        (
            b"2065-01-01",
            b"0000-00-00",
            b"9999-12-31 23:59:59",
            b"1970/01/01",
            b"2020-02-30",
            b"24:00",
        ),
        b"0001-01-01T00:00:00+14:00 9999-12-31T23:59:59-14:00 20269999T999999Z".split(),
        (b"99991231T235959Z",),
        (b"\\ud83d", b"\\udc00", b"\\u0000", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xed\xa0\xbd"),
        ("\u202e".encode(), "é".encode(), "\u2028".encode(), "٣".encode()),
        (b"[" * 3000, b'{"a":' * 3000),
        b"<html> <!-- %s {value} http://[ https:// https://a:99999/ https://[::1 D, I, C,".split(),
        (b"&#55357;", b"&#0;", b"&#x110000;"),
    )
)


def damage(data, content):
    """Cut, take out, repeat, move, or replace by a piece of the same file or a token, in places."""
    for _ in range(data.draw(st.integers(1, 3))):
        pattern, starts = data.draw(st.sampled_from(PLACES)), st.integers(0, len(content))
        place, piece = (pattern.search(content, data.draw(starts)) for _ in range(2))
        if place and piece:
            end = data.draw(st.sampled_from([place.start(), place.end(), len(content)]))
            new = data.draw(st.just(piece[0]) | st.sampled_from(TOKENS) | st.binary(max_size=2))
            content = content[: place.start()] + new + content[end:]
    return content


def damage_file(data, content):
    """Damage a file outside or inside its packing."""
    if data.draw(st.integers(0, 4)):
        if content.startswith(b"\x1f\x8b"):
            return gzip.compress(damage(data, gzip.decompress(content)), 1)
        if content.startswith(b"PK"):
            return pack(*((name, damage(data, member)) for name, member in unzip_all(content)))
    return damage(data, content)


@pytest.mark.parametrize("name", make_seeds())
def test_a_damaged_file_is_read_or_refused(name):
    seed = make_seeds()[name]
    seed.parse(seed.raw)  # undamaged, it is read: else nothing would be tested

    @FUZZ
    @given(st.data())
    def check(data):
        damaged = replace(seed.raw, content=damage_file(data, seed.raw.content))
        try:
            seed.parse(damaged)
        except CompEvoError as error:
            assert damaged.name in str(error)

    check()


UNSTORABLE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
STAMPS = st.sampled_from(["20260218T031500Z", "99991231T235959Z", "00010101T000000Z", ""])
DATES = st.sampled_from(["2026-02-18T03:15:00Z", "9999-12-31T23:59:59-14:00", "0001-01-01", "x"])
ARTICLES = st.fixed_dictionaries(
    {
        "url": TEXT.map("https://example.org/{}".format) | st.just("https://[::1") | JSON,
        "title": TEXT | JSON,
        "seendate": STAMPS | JSON,
        "date": DATES | JSON,
    },
    optional={"domain": JSON, "language": JSON, "lang": JSON, "sourcecountry": JSON, "desc": JSON},
)


def check_articles(name, content, source, parse):
    """An answer gives valid, clean articles, or an error that names it."""
    try:
        frame, report = parse(raw(name, content, source))
    except CompEvoError as error:
        assert name in str(error)
        return
    validate_articles(frame)
    # Nothing disappears uncounted; two records may be of one address.
    read = report["records"] - report["without a title"] - report["unreadable"]
    assert read >= frame.height == report["articles"]
    assert not any(UNSTORABLE.search(title) for title in frame["title"])


@FUZZ
@given(st.lists(ARTICLES | JSON, min_size=1, max_size=4) | JSON)
def test_a_made_up_answer_has_its_class(articles):
    content = json.dumps({"articles": articles})
    check_articles("answer.json", content, "gdelt_doc", parse_doc)


@FUZZ
@given(st.lists(ARTICLES | JSON, min_size=1, max_size=4))
def test_made_up_lines_have_their_class(articles):
    content = "".join(json.dumps(article) + "\n" for article in articles)
    check_articles("20260301001600.gal.json", content, "gdelt_bulk", parse_bulk)


@FUZZ
@given(
    st.builds(
        Answer,
        status=st.integers(100, 599),
        content_type=st.sampled_from(["application/json", "text/html; charset=x", ""]) | TEXT,
        head=st.binary(max_size=60)
        | st.sampled_from([b"<html>", b" <!DOCTYPE HTML>Just a moment"]),
        html_expected=st.booleans(),
    )
)
def test_only_a_success_with_bytes_is_data(answer):
    error = classify_answer(answer)

    assert error is None or issubclass(error, SourceError)
    assert error is not None or (200 <= answer.status < 300 and answer.head.strip())
