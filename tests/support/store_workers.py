"""What the storage tests run in processes of their own; no test lives here."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.news import derive_article_id
from compevo_pipeline.storage.news_store import NewsStore
from tests.support.window_samples import HALF_HOUR, make_articles, make_series

START = datetime(2020, 1, 1, tzinfo=UTC)
FETCHED = datetime(2020, 2, 1, tzinfo=UTC)


def series(
    series_id="AEMO/TOTALDEMAND/NSW1",
    first=0,
    values=(1.0, 2.0, 3.0),
    fetched=FETCHED,
    source="archive:test",
):
    begin = START + first * HALF_HOUR
    frame = make_series(values, first=begin, series_id=series_id, source=source)
    return frame.with_columns(fetched_at=pl.lit(fetched, pl.Datetime("us", "UTC")))


def articles(*numbers, title="Heatwave {}", available=START, fetched=FETCHED):
    urls = [f"https://example.org/{n}" for n in numbers]
    frame = make_articles([available] * len(numbers), [title.format(n) for n in numbers])
    return frame.with_columns(
        article_id=pl.Series([derive_article_id(url) for url in urls], dtype=pl.String),
        url=pl.Series(urls, dtype=pl.String),
        country=pl.lit(None, pl.String),
        published_at=pl.lit(None, frame.schema["published_at"]),
        seen_at="available_at",
        fetched_at=pl.lit(fetched, frame.schema["fetched_at"]),
        source=pl.lit("archive:test"),
    )


def write_articles(path, worker, times):
    store = NewsStore(Path(path))
    for turn in range(times):
        frame = articles(*range((worker * times + turn) * 5, (worker * times + turn) * 5 + 5))
        store.upsert_articles(frame)
    return worker


def make_vectors(titles):
    """Return a vector (4,) for each title that nothing but the title decides."""
    seeds = [int.from_bytes(title.encode()[-8:], "little") for title in titles]
    return np.array([np.random.default_rng(s).standard_normal(4) for s in seeds], np.float32)


def read_articles(path, times):
    store = NewsStore(Path(path))
    heights = [store.read_articles().height for _ in range(times)]
    assert all(height % 5 == 0 for height in heights), f"a reader saw half a write: {heights}"
    return sorted(heights) == heights
