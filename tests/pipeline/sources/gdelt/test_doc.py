"""GDELT DOC answers: articles, notices, refusals, JSON that needs repair."""

import json
from datetime import UTC, datetime

import pytest

from compevo_core.data.news import derive_article_id, validate_articles
from compevo_core.errors import SchemaDrift, SourceRejected, SourceTransient
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer, NewsReport
from compevo_pipeline.sources.gdelt.parse import parse_doc
from tests.support.sources import NOW, raw


def article(**changes):
    entry = {
        "url": "https://www.example.org/a?utm_source=x",
        "url_mobile": "",
        "title": "Grid  operator warns",
        "seendate": "20260218T031500Z",
        "socialimage": "",
        "domain": "example.org",
        "language": "English",
        "sourcecountry": "Australia",
    }
    return entry | changes


def answer(*articles):
    return json.dumps({"articles": list(articles)})


def parse(content):
    return parse_doc(raw("answer.json", content, "gdelt_doc"))


def test_an_article_is_available_when_gdelt_saw_it():
    frame, report = parse(answer(article()))
    row = validate_articles(frame).row(0, named=True)
    assert row["seen_at"] == row["available_at"] == datetime(2026, 2, 18, 3, 15, tzinfo=UTC)
    assert row["published_at"] is None
    assert row["fetched_at"] == NOW
    assert row["title"] == "Grid operator warns"
    assert row["article_id"] == derive_article_id("http://example.org/a")
    assert (row["country"], row["language"], row["domain"]) == (
        "Australia",
        "English",
        "example.org",
    )
    assert report == NewsReport(files=1, records=1, articles=1)


@pytest.mark.parametrize(
    "content",
    ["{}", '{"articles": []}', '{"fetched_at": "2026-03-18T10:50:16Z", "count": 0, "events": []}'],
)
def test_an_empty_answer_is_a_failure_and_not_no_news(content):
    with pytest.raises(EmptyNewsAnswer, match=r"answer.json: .*not 'no news'"):
        parse(content)


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        ("", SourceTransient, "answer.json: an empty body"),
        ("  \n", SourceTransient, "answer.json: an empty body"),
        ("Please limit requests to one every 5 seconds", SourceTransient, "line 1: a throttle"),
        ("<html>Too Many Requests</html>", SourceTransient, "answer.json, line 1: a throttle"),
        ("Queries containing OR'd terms must be in ().", SourceRejected, "again will not help"),
        ('{"timeline": []}', SchemaDrift, "'timeline'.* and no 'articles'"),
        ("[1]", SchemaDrift, "a JSON list"),
        ('{"articles": {}}', SchemaDrift, "'articles' is a dict"),
        ('{"articles": ' + "[" * 100_000, SchemaDrift, r"answer\.json.*nested too deeply"),
    ],
)
def test_what_is_no_article_list_ends_in_its_class(content, error, match):
    with pytest.raises(error, match=match):
        parse(content)


@pytest.mark.parametrize(
    ("broken", "title", "repairs"),
    [
        (r'"title": "a \d road"', r"a \d road", 1),
        ('"title": "one\x02two words"', "onetwo words", 1),
        (r'"title": "tab\\kept \"quoted\" \u00e9 \u00g1"', r'tab\kept "quoted" é \u00g1', 1),
    ],
)
def test_broken_json_is_repaired_and_counted(broken, title, repairs):
    content = answer(article()).replace('"title": "Grid  operator warns"', broken)
    frame, report = parse(content)
    assert frame["title"][0] == title
    assert report.repairs == repairs


def test_a_cut_answer_names_line_and_column():
    content = json.dumps({"articles": [article()]}, indent=1)[:-40]
    with pytest.raises(
        SchemaDrift, match=r"answer.json \(after repair\), line \d+, column \d+: not JSON"
    ):
        parse(content)


def test_a_byte_that_is_not_utf8_is_replaced_and_counted():
    frame, report = parse(answer(article()).encode().replace(b"Grid", b"Gr\xffd"))
    assert frame["title"][0] == "Gr\N{REPLACEMENT CHARACTER}d operator warns"
    assert report.replaced_bytes == 1


def test_untitled_and_unreadable_records_are_counted():
    good = [article(url=f"https://example.org/{number}") for number in range(20)]
    frame, report = parse(answer(*good, article(title=" "), article(seendate="2026-02-18")))
    assert frame.height == 20
    assert (report.records, report.untitled, report.unreadable) == (22, 1, 1)


def test_a_file_of_unreadable_records_is_refused():
    with pytest.raises(
        SchemaDrift, match=r"line 2: not an article with url, seendate and a headline.*2 of 3"
    ):
        parse(answer(article(), article(url="ftp://x/y"), article(url="http://[bad")))


def test_one_address_spelled_twice_is_one_article():
    frame, report = parse(
        answer(article(), article(url="http://example.org/a/", seendate="20260218T020000Z"))
    )
    assert frame["seen_at"].to_list() == [datetime(2026, 2, 18, 2, tzinfo=UTC)]
    assert (report.records, report.articles) == (2, 1)


def test_a_stored_poll_keeps_its_own_fetch_time_and_drops_the_jobs_guesses():
    event = {
        "id": "gdelt-1",
        "category": "conflict",
        "country": "Iran",
        "title": "A headline of four words",
        "url": "https://example.org/b",
        "source_name": "example.org",
        "timestamp": "20260310T061500Z",
        "language": "English",
    }
    poll = {
        "source": "gdelt",
        "fetched_at": "2026-03-10T06:49:28.816810Z",
        "count": 1,
        "events": [event],
    }
    frame, _ = parse(json.dumps(poll))
    row = frame.row(0, named=True)
    assert row["country"] is None
    assert row["fetched_at"] == datetime(2026, 3, 10, 6, 49, 28, 816810, tzinfo=UTC)
    poll["fetched_at"] = "yesterday"
    with pytest.raises(SchemaDrift, match="fetched_at is 'yesterday'"):
        parse(json.dumps(poll))


HOSTILE = {
    "a list": {"title": ["a", "list"]},
    "1 MB": {"title": "a" * 2**20},
    "an address of a megabyte": {"url": "https://example.org/" + "a" * 2**20},
    "an address with an escape": {"url": "https://example.org/\x1b[2J"},
    "a number for an address": {"url": 7},
    "no time": {"seendate": "tomorrow"},
}


@pytest.mark.parametrize("fault", HOSTILE.values(), ids=HOSTILE)
def test_one_bad_article_is_dropped_and_counted_and_the_others_stay(fault):
    good = [article(url=f"https://example.org/{k}") for k in range(12)]
    frame, report = parse(answer(*good, article(**fault)))
    assert (frame.height, report.articles, report.unreadable) == (12, 12, 1)


def test_a_headline_cut_inside_a_character_is_kept_without_the_half():
    frame, report = parse(answer(article(title="Grid \ud83d")))
    assert frame["title"].to_list() == ["Grid \N{REPLACEMENT CHARACTER}"]
    assert report.repairs == 1
