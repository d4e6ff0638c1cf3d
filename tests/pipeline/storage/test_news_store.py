"""Articles in DuckDB: upserts, bounds, counts, parallel use."""

import itertools
import subprocess
import sys
from datetime import timedelta

import duckdb
import polars as pl
import pytest

from compevo_core.data.news import deduplicate_articles, select_articles
from compevo_core.errors import DataError, StorageError
from compevo_core.runtime.files import StoreBusy
from compevo_pipeline.storage.news_store import NewsStore, StoredArticles, UpsertReport
from tests.support.store_workers import FETCHED, START, articles

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def store(tmp_path):
    return NewsStore(tmp_path / "news.duckdb")


def test_articles_are_read_by_availability(store):
    # Text that looks like SQL is only text.
    title = "'); DROP TABLE news_articles; --{}"
    given = pl.concat([articles(n, title=title, available=START + n * HOUR) for n in range(4)])
    assert store.upsert_articles(given.reverse()) == UpsertReport(added=4, changed=0)
    assert store.read_articles().equals(given)

    # The first bound is in it, and the last is not.
    assert store.read_articles(START + HOUR, START + 3 * HOUR).equals(given[1:3])
    with pytest.raises(DataError, match="zone"):
        store.read_articles(since=START.replace(tzinfo=None))


def test_the_version_available_first_stays(store):
    store.upsert_articles(articles(1, title="Edited later {}", available=START + HOUR))
    assert store.upsert_articles(articles(1, title="First {}", available=START)).changed == 1
    assert store.read_articles()["title"].to_list() == ["First 1"]
    third = articles(1, title="Third {}", available=START + 2 * HOUR)
    assert store.upsert_articles(third) == UpsertReport(added=0, changed=0)
    assert store.read_articles()["title"].to_list() == ["First 1"]

    # Of two that were available at once it is the one fetched first.
    second = articles(2, title="second", fetched=FETCHED + HOUR)
    assert store.upsert_articles(pl.concat([second, articles(2, title="first")])).added == 1
    assert "first" in store.read_articles()["title"]


def test_the_hash_follows_articles(store):
    store.upsert_articles(articles(1, 2, available=START + HOUR))
    before = store.hash_content()
    store.upsert_articles(articles(2, 1, available=START + 2 * HOUR, fetched=FETCHED + HOUR))
    assert store.hash_content() == before  # a later version replaces nothing
    store.upsert_articles(articles(1, available=START))
    replaced = store.hash_content()
    store.upsert_articles(articles(3))

    assert len({before, replaced, store.hash_content()}) == 3
    assert store.hash_content("test") == store.hash_content() != store.hash_content("own-demand")


def test_months_are_counted_and_the_newest_come_first(store):
    months = [START, START + timedelta(days=40), START + timedelta(days=41)]
    store.upsert_articles(pl.concat([articles(n, available=at) for n, at in enumerate(months)]))
    assert store.count_by_month()["articles"].to_list() == [1, 2]
    assert store.read_newest(2)["available_at"].to_list() == months[:0:-1]


def test_a_failed_write_changes_nothing(store):
    store.upsert_articles(articles(1))
    bad = articles(2).with_columns(available_at=pl.lit(None, dtype=pl.Datetime("us", "UTC")))

    with pytest.raises(DataError, match="available_at"):
        store.upsert_articles(pl.concat([articles(3), bad]))
    with pytest.raises(RuntimeError, match="on purpose"), store.writer() as connection:
        connection.execute("DELETE FROM news_articles")
        raise RuntimeError("on purpose")

    assert store.read_articles().height == 1


def test_a_foreign_program_is_named(store):
    store.upsert_articles(articles(1))
    code = (
        f"import duckdb, sys; c = duckdb.connect({str(store.path)!r}); "
        "print('open', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as foreign:
        assert foreign.stdout.readline() == "open\n"
        with pytest.raises(StoreBusy, match=rf"{foreign.pid}, /.*python"):
            NewsStore(store.path, wait_seconds=0.3).read_articles()
        foreign.stdin.close()

    assert store.read_articles().height == 1


def test_a_file_that_is_no_database_is_named(store):
    store.path.write_bytes(b"<html>not a database</html>" * 1000)
    with pytest.raises(DataError, match=r"news\.duckdb"):
        store.read_articles()


@pytest.mark.parametrize("publisher", ["", "test", "own-demand"])
def test_parts_of_time_equal_the_whole(store, publisher):
    # Some titles are printed again, some by a publisher of one's own.
    frames = [articles(n, title="A storm of many {}", available=START + n * DAY) for n in range(90)]
    number = pl.int_range(pl.len())
    again, own = pl.lit("A headline, that many print"), pl.lit("archive:own-demand/articles.csv")
    frame = pl.concat(frames).with_columns(
        title=pl.when(number % 7 == 3).then(again).otherwise("title"),
        source=pl.when(number % 5 == 0).then(own).otherwise("source"),
    )
    # Written in two parts, the later one first, with an id that breaks a tie.
    store.upsert_articles(frame[40:])
    store.upsert_articles(frame[:40])
    whole = deduplicate_articles(select_articles(frame, publisher))
    assert 0 < whole.height < 90

    spans = itertools.pairwise([START + n * DAY for n in (0, 1, 31, 33, 90)])
    stored = StoredArticles(store, publisher)
    assert pl.concat(stored.read(*span) for span in spans).equals(whole)
    assert stored.count() == whole.height


def test_the_lower_id_of_equals_stays(store):
    same = articles(1, 2, 3, title="Heat in all of the states").sort("article_id")
    store.upsert_articles(same)
    (kept,) = StoredArticles(store, "").read(START, START + DAY)["article_id"]
    assert kept == same["article_id"][0]


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


def test_a_full_disk_is_an_error_of_storage(tmp_path, monkeypatch):
    database = NewsStore(tmp_path / "x.duckdb")
    with pytest.raises(StorageError, match="free space"), database.writer():
        raise duckdb.TransactionException("Failed to commit: No space left on device")

    def refuse(*_, **__):
        raise duckdb.IOException("IO Error: Could not write file: File too large")

    monkeypatch.setattr(duckdb, "connect", refuse)
    with pytest.raises(StorageError, match="ulimit -f"), NewsStore(tmp_path / "y.duckdb").writer():
        pass
