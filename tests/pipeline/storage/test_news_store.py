"""Articles and embeddings in DuckDB: upserts, bounds, parallel use."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data.filelock import StoreBusy
from compevo_core.errors import DataError
from compevo_pipeline.storage.news_store import NewsStore
from tests.support.store_workers import FETCHED, START, articles, read_articles, write_articles

HOUR = timedelta(hours=1)


@pytest.fixture
def store(tmp_path):
    return NewsStore(tmp_path / "news.duckdb")


def vectors(n, dimension=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dimension)).astype(np.float32)


def test_articles_are_read_back_equal_in_order_of_availability(store):
    late, early = articles(1, available=START + HOUR), articles(2, available=START)
    report = store.upsert_articles(pl.concat([late, early]))
    assert report.as_dict() == {"rows": 2, "added": 2, "changed": 0, "unchanged": 0}
    assert store.read_articles().equals(pl.concat([early, late]))


def test_upserting_twice_changes_no_byte(store):
    store.upsert_articles(articles(*range(50)))
    ids = articles(*range(50))["article_id"].to_list()
    store.upsert_embeddings("m", ids, vectors(50))
    before = store.path.read_bytes()
    assert store.upsert_articles(articles(*range(50))).unchanged == 50
    assert store.upsert_embeddings("m", ids, vectors(50)).unchanged == 50
    assert store.path.read_bytes() == before


def test_the_version_available_first_stays_and_the_embedding_of_other_text_is_dropped(store):
    store.upsert_articles(articles(1, title="Edited later {}", available=START + HOUR))
    ids = articles(1)["article_id"].to_list()
    store.upsert_embeddings("m", ids, vectors(1))
    assert store.upsert_articles(articles(1, title="First {}", available=START)).changed == 1
    assert store.read_articles()["title"].to_list() == ["First 1"]
    assert store.read_missing_embeddings("m")["article_id"].to_list() == ids
    assert (
        store.upsert_articles(articles(1, title="Third {}", available=START + 2 * HOUR)).unchanged
        == 1
    )
    assert store.read_articles()["title"].to_list() == ["First 1"]


def test_bounds_include_since_and_exclude_until(store):
    store.upsert_articles(pl.concat([articles(n, available=START + n * HOUR) for n in range(4)]))
    chosen = store.read_articles(since=START + HOUR, until=START + 3 * HOUR)
    assert chosen["available_at"].to_list() == [START + HOUR, START + 2 * HOUR]
    with pytest.raises(DataError, match="no time zone"):
        store.read_articles(since=START.replace(tzinfo=None))


def test_embeddings_are_read_back_exactly_and_only_what_is_missing_is_listed(store):
    frame = articles(*range(6))
    ids = frame["article_id"].to_list()
    store.upsert_articles(frame)
    store.upsert_embeddings("m", ids[:4], vectors(6)[:4])
    found, matrix = store.read_embeddings("m")
    order = sorted(range(4), key=lambda i: ids[i])
    assert found == [ids[i] for i in order]
    assert np.array_equal(matrix, vectors(6)[order])
    assert store.read_missing_embeddings("m")["article_id"].to_list() == sorted(ids[4:])
    assert store.read_missing_embeddings("other").height == 6
    assert store.read_embeddings("other")[1].shape == (0, 0)


def test_a_changed_vector_is_replaced_and_counted(store):
    frame = articles(1, 2)
    store.upsert_articles(frame)
    ids = frame["article_id"].to_list()
    first = vectors(2)
    store.upsert_embeddings("m", ids, first)
    second = first.copy()
    second[1] += 1
    assert store.upsert_embeddings("m", ids, second).changed == 1
    found, matrix = store.read_embeddings("m")
    assert np.array_equal(matrix[found.index(ids[1])], second[1])


@pytest.mark.parametrize(
    ("ids", "matrix", "match"),
    [
        (["nobody"], vectors(1), "unknown articles"),
        (["A", "A"], vectors(2), "1 of them distinct"),
        (["A"], vectors(2), "for 1 ids"),
        (["A"], np.array([[1, np.nan, 0, 0]]), "NaN"),
        (["A"], vectors(1, dimension=3), "not 3"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused_and_nothing_is_stored(store, ids, matrix, match):
    frame = articles(1, 2)
    known, other = frame["article_id"].to_list()
    store.upsert_articles(frame)
    store.upsert_embeddings("m", [other], vectors(1))
    with pytest.raises(DataError, match=match):
        store.upsert_embeddings("m", [known if name == "A" else name for name in ids], matrix)
    assert store.read_embeddings("m")[0] == [other]


def test_a_bad_article_frame_changes_nothing(store):
    store.upsert_articles(articles(1))
    bad = articles(2).with_columns(available_at=pl.lit(None, dtype=pl.Datetime("us", "UTC")))
    with pytest.raises(DataError, match="available_at"):
        store.upsert_articles(pl.concat([articles(3), bad]))
    assert store.read_articles().height == 1


def test_reading_before_anything_is_stored_says_what_to_materialize(store):
    with pytest.raises(DataError, match="materialize news/articles"):
        store.read_articles()


def test_text_that_looks_like_sql_is_only_text(store):
    store.upsert_articles(articles(1, title="'); DROP TABLE articles; --{}"))
    assert store.read_articles()["title"].to_list() == ["'); DROP TABLE articles; --1"]


def test_processes_write_and_read_at_once_without_a_lock_error_or_a_lost_row(store):
    store.upsert_articles(articles(*range(5)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=context) as pool:
        writers = [pool.submit(write_articles, str(store.path), worker, 4) for worker in range(3)]
        reader = pool.submit(read_articles, str(store.path), 10)
        assert sorted(future.result(timeout=120) for future in writers) == [0, 1, 2]
        assert reader.result(timeout=120), "the store shrank while it was read"
    assert store.read_articles().height == 60
    assert store.read_embeddings("m")[1].shape == (60, 4)


def test_threads_of_one_process_write_and_read_at_once(store):
    store.upsert_articles(articles(*range(5)))
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write_articles, store.path, worker, 3) for worker in range(3)]
        reader = pool.submit(read_articles, store.path, 10)
        assert sorted(future.result(timeout=60) for future in writers) == [0, 1, 2]
        assert reader.result(timeout=60)
    assert store.read_articles().height == 45


def test_a_foreign_program_that_keeps_the_file_open_ends_in_a_clear_error(store):
    store.upsert_articles(articles(1))
    code = (
        f"import duckdb, sys; c = duckdb.connect({str(store.path)!r}); "
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as foreign:
        assert foreign.stdout is not None
        assert foreign.stdin is not None
        assert foreign.stdout.readline() == "open\n"
        with pytest.raises(StoreBusy, match="another program"):
            NewsStore(store.path, wait_seconds=0.3).read_articles()
        foreign.stdin.close()
    assert store.read_articles().height == 1


def test_a_file_that_is_no_database_is_named(store):
    store.path.write_bytes(b"<html>not a database</html>" * 1000)
    with pytest.raises(DataError, match=r"news\.duckdb cannot be opened"):
        store.read_articles()


def test_equal_availability_keeps_the_version_fetched_first(store):
    twice = pl.concat(
        [articles(1, title="second", fetched=FETCHED + HOUR), articles(1, title="first")]
    )
    assert store.upsert_articles(twice).added == 1
    assert store.read_articles()["title"].to_list() == ["first"]
