"""An embedding belongs to the text it was made of."""

from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from compevo_pipeline.storage.news_store import NewsStore
from tests.support.store_workers import START, articles


@pytest.mark.parametrize("changed", ["title", "body"])
def test_an_earlier_version_with_another_text_drops_the_embedding(tmp_path, changed):
    store = NewsStore(tmp_path / "news.duckdb")
    store.upsert_articles(articles(1, available=START + timedelta(hours=1)))
    ids = articles(1)["article_id"].to_list()
    store.upsert_embeddings("m", ids, np.ones((1, 4), dtype=np.float32))

    same_text = articles(1, available=START + timedelta(minutes=30))
    store.upsert_articles(same_text)
    assert store.read_embeddings("m")[0] == ids

    other_text = articles(1).with_columns(pl.lit("Another text").alias(changed))
    assert store.upsert_articles(other_text).changed == 1
    assert store.read_embeddings("m")[0] == []
