"""The file of queries: which article concerns a data set."""

import polars as pl
import pytest

from compevo_core.data.datasets import DATASETS
from compevo_core.errors import ConfigError
from compevo_pipeline.sources.gdelt.source import PACKAGED, read_queries

QUERIES = read_queries()


def article(title, **changes):
    row = {"title": title, "body": "", "domain": "example.org", "language": "English"}
    return pl.DataFrame(
        [{**row, "country": None, **changes}], schema_overrides={"country": pl.String}
    )


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
    found = QUERIES.keep_concerned(article(title, **changes))
    assert found.height == (1 if kept else 0)


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
    copy.write_text(PACKAGED.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=rf"mine.toml.*{message}"):
        read_queries(copy)

    with pytest.raises(ConfigError, match="COMPEVO_NEWS_QUERIES"):
        read_queries(tmp_path / "none.toml")
