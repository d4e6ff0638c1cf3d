"""GDELT's GKG and GAL files, answers of its DOC API, and which article concerns a data set."""

import gzip
import json
import shutil
from datetime import UTC, datetime

import polars as pl
import pytest

from compevo_core.data.datasets import DATASETS
from compevo_core.data.news import derive_article_id, validate_articles
from compevo_core.errors import ConfigError, SchemaDrift
from compevo_pipeline.sources.common.base import Mode, read_sample_files
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.gdelt.parse import parse_doc
from tests.fuzz.seeds import FILES
from tests.support.nemweb import pack
from tests.support.sources import NOW, clock, raw

GKG_NAME, GAL_NAME = "20260301001500.gkg.csv.zip", "20260301001600.gal.json.gz"
TITLE = "<PAGE_TITLE>Rain &amp; wind &#x2013; again</PAGE_TITLE>"
PUBLISHED = "<PAGE_PRECISEPUBTIMESTAMP>{}</PAGE_PRECISEPUBTIMESTAMP>"
QUERIES = gdelt.read_queries()
HOSTILE = {
    "a list": {"title": ["a", "list"]},
    "1 MB": {"title": "a" * 2**20},
    "an address of a megabyte": {"url": "https://example.org/" + "a" * 2**20},
    "an address with an escape": {"url": "https://example.org/\x1b[2J"},
    "a number for an address": {"url": 7},
    "no time": {"seendate": "tomorrow"},
}


def row(number=0, extras=TITLE, date="20260301001500", translation="", url=None):
    cells = [""] * 27
    url = url or f"https://example.org/{number}"
    cells[:5] = [f"{date}-{number}", date, "1", "example.org", url]
    cells[25], cells[26] = translation, extras
    return "\t".join(cells)


def gkg(*rows):
    packed = pack(("20260301001500.gkg.csv", "\n".join(rows) + "\n"))
    return gdelt.parse_counted(raw(GKG_NAME, packed, "gdelt_bulk"))


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
    packed = gzip.compress("\n".join(lines).encode())
    return gdelt.parse_counted(raw(GAL_NAME, packed, "gdelt_bulk"))


def test_a_gkg_title_is_unescaped():
    frame, report = gkg(row())
    article = validate_articles(frame).row(0, named=True)
    assert article["title"] == "Rain & wind \N{EN DASH} again"
    assert article["available_at"] == datetime(2026, 3, 1, 0, 15, tzinfo=UTC)
    assert article["published_at"] is None
    assert article["language"] == "English"
    assert report["articles"] == 1


@pytest.mark.parametrize(
    ("published", "available"),
    [
        (datetime(2026, 3, 1, 9, tzinfo=UTC), datetime(2026, 3, 1, 9, tzinfo=UTC)),
        (datetime(2026, 2, 28, 9, tzinfo=UTC), datetime(2026, 3, 1, 0, 15, tzinfo=UTC)),
    ],
)
def test_a_publication_time_only_delays(published, available):
    frame, _ = gkg(row(extras=TITLE + PUBLISHED.format(f"{published:%Y%m%d%H%M%S}")))
    assert frame.select("published_at", "available_at").rows() == [(published, available)]


@pytest.mark.parametrize("further", [0, 1, 9])
def test_gkg_columns_are_counted_from_the_start(further):
    cells = row(translation="srclc:fra;eng:Moses").split("\t")
    frame, _ = gkg("\t".join([*cells, *(f"more {n}" for n in range(further))]))
    assert frame["title"].to_list() == ["Rain & wind \N{EN DASH} again"]
    assert frame["language"].to_list() == ["fra"]


def test_a_gal_article_has_the_files_stamp():
    frame, _ = gal(entry())
    article = validate_articles(frame).row(0, named=True)
    assert article["published_at"] == datetime(2026, 3, 1, 0, 5, tzinfo=UTC)
    assert article["seen_at"] == article["available_at"] == datetime(2026, 3, 1, 0, 16, tzinfo=UTC)
    assert (article["body"], article["language"]) == ("A sentence.", "English")


def test_broken_gal_lines_are_repaired_or_counted():
    frame, report = gal(entry() + ",", entry(1).replace("Story", r"Sto\ry \x"))
    assert (frame.height, report["repairs"], report["unreadable"]) == (2, 1, 0)

    lines = [entry(number) for number in range(20)]
    frame, report = gal(*lines, "{broken")
    assert (frame.height, report["unreadable"]) == (20, 1)
    with pytest.raises(SchemaDrift, match=f"{GAL_NAME}, line 1"):
        gal("{broken", entry())


def article(seen=datetime(2026, 2, 18, 3, 15, tzinfo=UTC), **changes):
    entry = {
        "url": "https://www.example.org/a?utm_source=x",
        "url_mobile": "",
        "title": "Grid  operator warns",
        "seendate": f"{seen:%Y%m%dT%H%M%SZ}",
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
    names = ("country", "language", "domain")
    assert [row[name] for name in names] == ["Australia", "English", "example.org"]
    assert +report == {"files": 1, "records": 1, "articles": 1}


@pytest.mark.parametrize(
    ("broken", "title", "repairs", "replaced"),
    [
        (rb"a \d road", r"a \d road", 1, 0),
        (b"one\x02two words", "onetwo words", 1, 0),
        (rb"tab\\kept \"quoted\" \u00e9 \u00g1", r'tab\kept "quoted" é \u00g1', 1, 0),
        (b"Gr\xffd operator warns", "Gr\N{REPLACEMENT CHARACTER}d operator warns", 0, 1),
    ],
)
def test_broken_json_is_repaired_and_counted(broken, title, repairs, replaced):
    frame, report = parse(answer(article()).encode().replace(b"Grid  operator warns", broken))
    assert frame["title"][0] == title
    assert (report["repairs"], report["bytes replaced"]) == (repairs, replaced)


def test_a_file_of_unreadable_records_is_refused():
    with pytest.raises(SchemaDrift, match=r"line 2: .*2 of"):
        parse(answer(article(), article(url="ftp://x/y"), article(url="http://[bad")))


def test_one_address_spelled_twice_is_one_article():
    before = datetime(2026, 2, 18, 2, tzinfo=UTC)
    frame, report = parse(answer(article(), article(before, url="http://example.org/a/")))
    assert frame["seen_at"].to_list() == [before]
    assert (report["records"], report["articles"]) == (2, 1)


def test_a_stored_poll_keeps_its_time():
    poll = json.loads((FILES / "poll.json").read_bytes())
    poll["events"][0]["country"] = "Iran"  # a guess of who polled

    frame, _ = parse(json.dumps(poll))

    assert frame["country"].null_count() == frame.height
    assert frame["fetched_at"].unique().to_list() == [datetime(2026, 3, 10, 6, 20, tzinfo=UTC)]


@pytest.mark.parametrize("fault", HOSTILE.values(), ids=HOSTILE)
def test_one_bad_article_is_counted(fault):
    good = [article(url=f"https://example.org/{k}") for k in range(12)]
    frame, report = parse(answer(*good, article(**fault)))
    assert (frame.height, report["articles"], report["unreadable"]) == (12, 12, 1)


def test_an_article_in_several_files_is_parsed_once():
    polls = {hour: answer(article(seendate=f"20260301T{hour}0000Z")) for hour in ("05", "03", "04")}
    raws = [raw(f"{hour}.json", poll) for hour, poll in polls.items()]
    frame, report = gdelt.parse_all([*raws, raw("e.json", "{}")])
    assert frame["available_at"].to_list() == [datetime(2026, 3, 1, 3, tzinfo=UTC)]
    assert (report["files"], report["empty answers"], report["records"]) == (4, 1, 3)


def test_bulk_files_dropped_into_the_archive_are_read(tmp_path):
    (tmp_path / "gdelt_doc_artlist").mkdir()
    shutil.copy(FILES / "polls.tar.gz", tmp_path / "gdelt_doc_artlist")
    (tmp_path / "gdelt_bulk").mkdir()
    (tmp_path / "gdelt_bulk" / "readme.gif").write_bytes(b"x")
    for file in read_sample_files(gdelt.BULK_SOURCE):
        (tmp_path / "gdelt_bulk" / file.name).write_bytes(file.content)
    files = gdelt.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock)
    bulk = [gdelt.parse_counted(file)[0] for file in files if file.source == "gdelt_bulk"]

    assert [frame.height for frame in bulk] == [10, 9]


def test_every_built_in_data_set_has_a_topic():
    assert {name for topic in QUERIES.topics.values() for name in topic.datasets} == set(DATASETS)


@pytest.mark.parametrize(
    ("title", "changes", "kept"),
    [
        ("Blackout hits Sydney suburbs", {}, True),
        ("Blackout hits suburbs", {"domain": "news.com.au"}, True),
        ("Blackout hits suburbs", {}, False),
        ("Blackout hits Lagos", {"domain": "punch.ng"}, False),
        ("Blackouts hit Sydney suburbs", {}, False),
        ("Council meets", {"domain": "www.AEMO.com.au"}, True),
        ("Council meets", {"domain": "news.com.au"}, False),
        ("Council meets", {"domain": "news.com.au", "body": "After the heatwave, a plan."}, True),
        ("Blackout hits Sydney", {"language": "French"}, False),
        ("Blackout hits Sydney", {"language": None}, True),
        ("Bitcoin slides", {"domain": "punch.ng"}, True),
        ("Crash on the Bay Bridge in Oakland, California", {}, True),
    ],
)
def test_an_article_is_kept_for_word_or_site(title, changes, kept):
    row = {"title": title, "body": "", "domain": "example.org", "language": "English"}
    frame = pl.DataFrame([row | changes]).with_columns(country=pl.lit(None, pl.String))
    assert QUERIES.keep_concerned(frame).height == (1 if kept else 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("days_back = 7", "days_bak = 7", "days_back"),
        ('gkg = "gaps"', 'gkg = "some"', r"fetch.gkg"),
        ('words = ["Bitcoin"', 'words = ["(Bitcoin)"', r"bitcoin\.words"),
        ('country = "US"', 'country = "FR"', "FR"),
        ("[fetch]", "[fetch", "TOML"),
    ],
)
def test_a_wrong_key_names_file_and_topic(tmp_path, old, new, message):
    copy = tmp_path / "mine.toml"
    copy.write_text(gdelt.PACKAGED.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=rf"mine.toml.*{message}"):
        gdelt.read_queries(copy)

    with pytest.raises(ConfigError, match="COMPEVO_NEWS_QUERIES"):
        gdelt.read_queries(tmp_path / "none.toml")
