"""The table of articles: no index, keys in its place, and the table of earlier versions."""

import itertools
from datetime import timedelta

import duckdb
import polars as pl
import pytest

from compevo_core.data.news import deduplicate_articles, select_articles
from compevo_pipeline.storage.news_store import NewsStore
from tests.support.store_workers import START, articles

DAY = timedelta(days=1)
STAMPS = ("published_at", "seen_at", "available_at", "fetched_at")
EARLIER_TABLE = """
CREATE TABLE articles (
    article_id VARCHAR PRIMARY KEY, url VARCHAR NOT NULL, title VARCHAR NOT NULL, body VARCHAR,
    domain VARCHAR, language VARCHAR, country VARCHAR, published_at TIMESTAMP, seen_at TIMESTAMP,
    available_at TIMESTAMP NOT NULL, fetched_at TIMESTAMP NOT NULL, source VARCHAR NOT NULL
)
"""


@pytest.fixture
def store(tmp_path):
    return NewsStore(tmp_path / "news.duckdb")


def make_archive():
    """Three months of articles; some titles are printed again, some by a publisher of one's own."""
    frames = [
        articles(n, title="One storm of many {}", available=START + n * DAY) for n in range(90)
    ]
    return pl.concat(frames).with_columns(
        pl.when(pl.int_range(pl.len()) % 7 == 3)
        .then(pl.lit("A headline, that many print"))
        .otherwise("title")
        .alias("title"),
        pl.when(pl.int_range(pl.len()) % 5 == 0)
        .then(pl.lit("archive:own-demand/articles.csv"))
        .otherwise("source")
        .alias("source"),
    )


def write_earlier_table(path, frame):
    with duckdb.connect(path) as connection:
        connection.execute(EARLIER_TABLE)
        stored = frame.with_columns(pl.col(STAMPS).dt.replace_time_zone(None)).sample(
            fraction=1, shuffle=True, seed=1
        )
        connection.register("stored", stored)
        connection.execute("INSERT INTO articles BY NAME SELECT * FROM stored")


@pytest.mark.parametrize("first_use", ["read", "write"])
def test_the_table_of_an_earlier_version_is_taken_over_without_loss(store, first_use):
    frame = make_archive()
    write_earlier_table(store.path, frame)
    if first_use == "write":
        assert store.upsert_articles(frame).unchanged == frame.height
    assert store.read_articles().equals(frame)

    newer = articles(1000, available=START + 100 * DAY)
    assert store.upsert_articles(pl.concat([frame, newer])).added == 1
    with duckdb.connect(store.path, read_only=True) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        assert tables == [("news_articles",)]
        assert connection.execute("SELECT * FROM duckdb_indexes()").fetchall() == []


def test_a_take_over_that_fails_leaves_the_earlier_table(store, monkeypatch):
    write_earlier_table(store.path, make_archive())
    monkeypatch.setattr("compevo_pipeline.storage.news_sql.DROP_EARLIER_TABLE", "SELECT error('x')")
    with pytest.raises(duckdb.Error):
        store.read_articles()
    monkeypatch.undo()
    assert store.read_articles().equals(make_archive())


@pytest.mark.parametrize("publisher", ["", "test", "own-demand"])
def test_parts_of_time_hold_what_removing_duplicates_from_all_articles_keeps(store, publisher):
    frame = make_archive()
    # Written in two parts, the later one first, with an id that breaks a tie.
    store.upsert_articles(frame[40:])
    store.upsert_articles(frame[:40])
    whole = deduplicate_articles(select_articles(frame, publisher))
    assert 0 < whole.height < 90

    bounds = [START + n * DAY for n in (0, 1, 31, 33, 90)]
    parts = [
        store.read_first_printed(since, until, publisher)
        for since, until in itertools.pairwise(bounds)
    ]
    assert pl.concat(parts).equals(whole)
    assert store.count_titles(publisher) == whole.height


def test_of_articles_that_come_at_once_with_one_title_the_lower_id_stays(store):
    same = articles(1, 2, 3, title="Heat in all of the states").sort("article_id")
    store.upsert_articles(same)
    (kept,) = store.read_first_printed(START, START + DAY, "")["article_id"]
    assert kept == same["article_id"][0]


def test_an_earlier_version_takes_the_place_of_a_later_one_once(store):
    store.upsert_articles(articles(1, 2, 3, available=START + DAY))
    assert store.upsert_articles(articles(2, 4, available=START)).as_dict() == {
        "rows": 2, "added": 1, "changed": 1, "unchanged": 0
    }  # fmt: skip
    assert store.read_articles().height == 4
    assert store.read_repeated().is_empty()


def test_articles_that_are_stored_twice_are_found(store):
    store.upsert_articles(articles(1, 2))
    with duckdb.connect(store.path) as connection:
        connection.execute("INSERT INTO news_articles SELECT * FROM news_articles LIMIT 1")
    assert store.read_repeated().height == 2


def test_keys_are_the_ones_that_stores_hold(store):
    # Other keys would not find what is stored: a new rule needs a new table.
    frame = articles(1, title="Heat: power, and WATER! {}")
    store.upsert_articles(frame)
    with duckdb.connect(store.path, read_only=True) as connection:
        (row,) = connection.execute("SELECT id_key, title_key FROM news_articles").fetchall()
        (expected,) = connection.execute(
            "SELECT md5_number_lower($id), md5_number_lower('heat power and water 1|English')",
            {"id": frame["article_id"][0]},
        ).fetchall()
    assert row == expected
