"""What is embedded, in which order, and the pool that windows get."""

from dataclasses import astuple, replace
from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.lm import encoder as encoders
from compevo_pipeline.storage.embedding_store import EmbeddingStore
from compevo_pipeline.work.embedded_news import embed_nameable, embed_titles, read_news, write_news
from tests.support import population as small
from tests.support.deployment import open_home
from tests.support.live import LOG


@pytest.fixture
def workspace(tmp_path):
    workspace = open_home(tmp_path, preset="tiny")
    workspace.news_store().upsert_articles(small.news_pool().articles)
    return workspace


@pytest.fixture
def batches(monkeypatch):
    """The texts of every call of the encoder, which a text ``stop`` ends."""
    given = []

    class Recording(encoders.HashingEncoder):
        def encode(self, texts):
            if "stop" in texts:
                raise KeyboardInterrupt
            given.append(list(texts))
            return super().encode(texts)

    monkeypatch.setattr(encoders, "load_encoder", lambda name: Recording())
    return given


def test_a_pool_holds_what_views_name(workspace):
    ids = small.article_ids()
    views = small.windows("train", 1).views()
    views = [replace(view, candidate_ids=(ids[4], ids[1])) for view in views]
    pool = read_news(workspace, "hashing", views, log=LOG)
    assert pool.articles["article_id"].to_list() == [ids[1], ids[4]]
    titles = [small.TITLES[1], small.TITLES[4]]
    np.testing.assert_array_equal(pool.embeddings, encoders.HashingEncoder().encode(titles))
    assert len(workspace.embedding_store("hashing")) == 2


def test_an_article_that_is_not_stored_is_named(workspace):
    (view, *_) = small.windows("train", 1).views()
    with pytest.raises(DataError, match="bb"):
        read_news(workspace, "hashing", [replace(view, candidate_ids=("bb",))], log=LOG)


def test_a_training_reads_its_pool(workspace):
    folder = write_news(workspace, "hashing", small.windows("train", 1), log=LOG)
    assert folder == workspace.layout.news_pool("electricity")
    assert set(NewsPool.read(folder).articles["article_id"]) == set(small.article_ids())
    without = WindowSet(small.windows("train", 1, news=False), dataset="electricity")
    assert len(NewsPool.read(write_news(workspace, "hashing", without, log=LOG))) == 0


def test_titles_of_no_window_are_not_embedded(workspace, batches):
    known = small.news_pool().articles
    stamps = ("available_at", "seen_at", "published_at")

    def vary(name, country, days):
        moved = {stamp: pl.col(stamp) - timedelta(days=days) for stamp in stamps}
        return known.with_columns(
            pl.lit(country).alias("country"),
            pl.concat_str(pl.lit(name), pl.col("article_id").str.slice(3)).alias("article_id"),
            pl.concat_str(pl.lit(name), "title").alias("title"),
            **moved,
        )

    for frame in (vary("now", "Australia", 0), vary("old", "Australia", 800)):
        workspace.news_store().upsert_articles(frame)
    assert astuple(embed_nameable(workspace, "hashing", log=LOG)) == (18, 6, 6)
    assert {title for batch in batches for title in batch} == {f"now{t}" for t in small.TITLES}
    assert embed_nameable(workspace, "hashing", log=LOG).newly_embedded == 0


def test_titles_of_one_length_are_embedded_together(tmp_path, batches, monkeypatch):
    monkeypatch.setattr("compevo_pipeline.work.embedded_news.TITLES_PER_BATCH", 2)
    store = EmbeddingStore(tmp_path, "hashing")
    assert embed_titles(store, ["aa", "bbbbbb", "c", "ddddd", "aa"], LOG) == 4
    assert batches == [["bbbbbb", "ddddd"], ["aa", "c"]]
    assert embed_titles(store, ["c"], LOG) == 0 and len(batches) == 2


def test_a_stopped_run_keeps_its_batches(tmp_path, batches, monkeypatch):
    monkeypatch.setattr("compevo_pipeline.work.embedded_news.TITLES_PER_BATCH", 1)
    store = EmbeddingStore(tmp_path, "hashing")
    with pytest.raises(KeyboardInterrupt):
        embed_titles(store, ["longest", "longer", "stop"], LOG)
    assert store.find_missing(["longest", "longer", "stop"]) == ["stop"]
