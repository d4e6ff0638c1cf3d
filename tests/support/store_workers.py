"""What the storage tests run in processes of their own; no test lives here."""

from datetime import UTC, datetime

import numpy as np
import polars as pl

from compevo_core.data.news import derive_article_id
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


def make_vectors(titles):
    """Return a vector (4,) for each title that nothing but the title decides."""
    seeds = [int.from_bytes(title.encode()[-8:], "little") for title in titles]
    return np.array([np.random.default_rng(s).standard_normal(4) for s in seeds], np.float32)
