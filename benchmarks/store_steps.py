"""The steps of the news store on a made-up archive: what ``benchmarks.store`` times.

What belongs here: the archive and one function a step, each run in a process of its own. What does
not: growth exponents, the table (``benchmarks.store``).

Shapes: R articles, D numbers of an embedding.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.news_pool import NewsPool
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_pipeline.storage.embedding_store import EmbeddingStore
from compevo_pipeline.storage.news_store import NewsStore

DIMENSION = 384
"""Numbers of an embedding of the packaged encoder."""

ROWS_PER_UPSERT = 50_000
ROWS_PER_APPEND = 512  # as the pipeline embeds
ROWS_PER_FILL = 50_000
NAMED_BY_A_RUN = 20_000
NAMED_BY_A_WINDOW = 64
WINDOWS = 50
LOOKBACK = timedelta(days=7)
BLOCKS = 5
LONGEST_LOOKBACK = timedelta(days=28)

_FIRST = datetime(2016, 1, 1, tzinfo=UTC)
_YEARS = timedelta(days=3652)
_SEED = 0


class Stopwatch:
    """Adds up what blocks take: seconds on the wall, and of the processor.

    Whoever else uses the machine makes the first longer, and the second hardly.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.blocks = 0

    @contextmanager
    def run(self) -> Iterator[None]:
        """Time a block."""
        began, cpu_began = time.perf_counter(), time.process_time()
        yield
        self.seconds += time.perf_counter() - began
        self.cpu_seconds += time.process_time() - cpu_began
        self.blocks += 1


def upsert(folder: Path, rows: int, watch: Stopwatch) -> None:
    """Store R articles that came over ten years."""
    store = NewsStore(folder / "news.duckdb")
    for first in range(0, rows, ROWS_PER_UPSERT):
        frame = make_articles(first, min(first + ROWS_PER_UPSERT, rows), rows)
        with watch.run():
            store.upsert_articles(frame)


def append(folder: Path, rows: int, watch: Stopwatch) -> None:
    """Store R embeddings in the batches that they are made in."""
    store = EmbeddingStore(folder, "benchmark")
    generator = np.random.default_rng(_SEED)
    for first in range(0, rows, ROWS_PER_APPEND):
        titles = [make_title(row) for row in range(first, min(first + ROWS_PER_APPEND, rows))]
        vectors = generator.standard_normal((len(titles), DIMENSION), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

        with watch.run():
            store.append(titles, vectors)


def fill(folder: Path, rows: int, watch: Stopwatch) -> None:
    """Store R embeddings in large batches, all of one vector, where 512 at a time take too long."""
    store = EmbeddingStore(folder, "benchmark")
    vectors = np.full((ROWS_PER_FILL, DIMENSION), DIMENSION**-0.5, dtype=np.float32)
    for first in range(0, rows, ROWS_PER_FILL):
        titles = [make_title(row) for row in range(first, min(first + ROWS_PER_FILL, rows))]
        with watch.run():
            store.append(titles, vectors[: len(titles)])


def pool(folder: Path, rows: int, watch: Stopwatch) -> None:
    """Gather the articles and embeddings that the windows of a run name."""
    ids = [make_id(row) for row in _choose(rows, NAMED_BY_A_RUN)]
    with watch.run():
        articles = NewsStore(folder / "news.duckdb").read_named(ids)
        titles = articles["title"].to_list()
        NewsPool(articles, EmbeddingStore(folder, "benchmark").read(titles), "benchmark")


def look_up(folder: Path, rows: int, watch: Stopwatch) -> None:
    """Read the embeddings of one window's candidates, of many windows in turn."""
    titles = [make_title(row) for row in _choose(rows, WINDOWS * NAMED_BY_A_WINDOW)]
    for first in range(0, len(titles), NAMED_BY_A_WINDOW):
        with watch.run():
            EmbeddingStore(folder, "benchmark").read(titles[first : first + NAMED_BY_A_WINDOW])


def candidates(folder: Path, rows: int, watch: Stopwatch) -> None:
    """Read the articles of the week before an origin, of many origins in turn."""
    for day in np.random.default_rng(_SEED).integers(30, _YEARS.days, WINDOWS):
        origin = _FIRST + timedelta(days=int(day))
        with watch.run():
            NewsStore(folder / "news.duckdb").read_articles(origin - LOOKBACK, origin)


def block(folder: Path, rows: int, watch: Stopwatch) -> None:
    """Read what windows of a month are cut with: its articles and those of the look-back before."""
    for month in np.random.default_rng(_SEED).integers(2, 120, BLOCKS):
        until = _FIRST + timedelta(days=int(30.4 * month))
        since = until - LONGEST_LOOKBACK - timedelta(days=31)
        with watch.run():
            NewsStore(folder / "news.duckdb").read_first_printed(since, until, "")


STEPS: dict[str, Callable[[Path, int, Stopwatch], None]] = {
    "upsert": upsert,
    "append": append,
    "fill": fill,
    "pool": pool,
    "look-up": look_up,
    "candidates": candidates,
    "block": block,
}
"""In the order in which they need each other."""


def make_articles(first: int, end: int, rows: int) -> pl.DataFrame:
    """Return the articles from row ``first`` to ``end`` of an archive of ``rows``."""
    numbers = range(first, end)
    seen = pl.Series([_FIRST + _YEARS * (row / rows) for row in numbers])
    columns = {
        "article_id": [make_id(row) for row in numbers],
        "url": [f"https://news.example/{row % 977}/story-{row}" for row in numbers],
        "title": [make_title(row) for row in numbers],
        "body": [""] * len(numbers),
        "domain": ["news.example"] * len(numbers),
        "language": ["English"] * len(numbers),
        "country": ["Australia"] * len(numbers),
        "published_at": seen,
        "seen_at": seen,
        "available_at": seen,
        "fetched_at": seen,
        "source": ["sample:benchmark"] * len(numbers),
    }
    return pl.DataFrame(columns, schema=ARTICLE_SCHEMA)


def make_id(row: int) -> str:
    """Return 32 hex digits without order, as hashes of addresses are."""
    # A product with an odd number visits every 64-bit value once.
    mixed = (row * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % 2**64
    return f"{mixed:016x}{mixed ^ 0xA5A5A5A5A5A5A5A5:016x}"


def make_title(row: int) -> str:
    """Return a headline of a usual length."""
    return f"Report {row}: demand for power in the eastern states as the weather turns"


def _choose(rows: int, count: int) -> list[int]:
    """Return rows at random; each once where there are enough."""
    generator = np.random.default_rng(_SEED)
    chosen: list[int] = generator.choice(rows, size=count, replace=count > rows).tolist()
    return chosen
