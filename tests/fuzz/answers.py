"""Answers that Hypothesis makes up: any JSON in any place of an article list, any HTTP.

What belongs here: the strategies, and what must hold of every answer. What does not: damaged files
(``tests.fuzz.mutations``).
"""

import json
import re
from collections.abc import Callable, Mapping

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compevo_core.data.news import validate_articles
from compevo_core.errors import CompEvoError, SourceError
from compevo_pipeline.sources.common.http import Answer, classify_answer
from compevo_pipeline.sources.gdelt.parse import parse_doc, parse_gal
from tests.support.sources import raw

UNSTORABLE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
STAMPS = st.sampled_from(["20260218T031500Z", "99991231T235959Z", "00010101T000000Z", ""])
DATES = st.sampled_from(["2026-02-18T03:15:00Z", "9999-12-31T23:59:59-14:00", "0001-01-01", "x"])
ADDRESSES = TEXT.map("https://example.org/{}".format) | st.just("https://[::1")
ARTICLES = st.fixed_dictionaries(
    {
        "url": ADDRESSES | JSON,
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
    assert (
        report["records"] - report["without a title"] - report["unreadable"]
        >= frame.height
        == report["articles"]
    )
    assert not any(UNSTORABLE.search(title) for title in frame["title"])


def check_list(articles):
    check_articles("answer.json", json.dumps({"articles": articles}), "gdelt_doc", parse_doc)


def check_lines(articles):
    content = "".join(json.dumps(article) + "\n" for article in articles)
    check_articles("20260301001600.gal.json", content, "gdelt_bulk", parse_gal)


def check_response(answer):
    """Every HTTP answer has a class, and only a success with bytes may be data."""
    error = classify_answer(answer)
    assert error is None or issubclass(error, SourceError)
    assert error is not None or (200 <= answer.status < 300 and answer.head.strip())


RESPONSES = st.builds(
    Answer,
    status=st.integers(100, 599),
    content_type=st.sampled_from(["application/json", "text/html; charset=x", "", "\x00"]) | TEXT,
    head=st.binary(max_size=60) | st.sampled_from([b"<html>", b" <!DOCTYPE HTML>Just a moment"]),
    html_expected=st.booleans(),
    part_expected=st.booleans(),
)
ANSWERS: Mapping[str, tuple[st.SearchStrategy, Callable[..., None]]] = {
    "answer-article-list": (st.lists(ARTICLES | JSON, min_size=1, max_size=4) | JSON, check_list),
    "answer-article-lines": (st.lists(ARTICLES | JSON, min_size=1, max_size=4), check_lines),
    "answer-http": (RESPONSES, check_response),
}


def check_answers(name, cases):
    """Let Hypothesis look for an answer that breaks a rule.

    Raises:
        Exception: of the smallest answer that does.
    """
    strategy, check = ANSWERS[name]
    bounded = settings(
        max_examples=cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    bounded(given(strategy)(lambda answer: check(answer)))()
