"""The news store as it grows: steps on a made-up archive, each in a process of its own.

What belongs here: the archive, its steps, and how seconds grow with the articles. What does not:
what a step is for (``docs/explanation/benchmarks.md``).

A case is a number of articles and a step; steps of one archive need the earlier ones. Seconds cover
the whole step; look-up and candidates give the mean of several windows, block the mean of several
months. ``exponent`` says how processor seconds grow from the next smaller archive to this one: 1 is
linear, 0 does not grow. Peak memory covers the process of the step with all libraries loaded, which
the step ``none`` has too. Archives take 1.8 GB for a million articles.

Shapes: R articles, D numbers of an embedding.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.rows import Benchmark, Row
from compevo_core.data.news import derive_article_id
from compevo_core.data.news_pool import NewsPool
from compevo_core.runtime.usage import peak_memory_gigabytes
from compevo_pipeline.storage.embedding_store import EmbeddingStore
from compevo_pipeline.storage.news_store import NewsStore, StoredArticles
from tests.support.window_samples import make_articles as make_dated_articles

REPEATED = ("look-up", "candidates", "block")

DIMENSION = 384  # of an embedding of the packaged encoder
ROWS_PER_UPSERT = 50_000  # of articles, and of embeddings that fill an archive
ROWS_PER_APPEND = 512  # as the pipeline embeds
NAMED_BY_A_RUN = 20_000
NAMED_BY_A_WINDOW = 64
WINDOWS = 50
LOOKBACK = timedelta(days=7)
BLOCKS = 5
LONGEST_LOOKBACK = timedelta(days=28)

_FIRST = datetime(2016, 1, 1, tzinfo=UTC)
_YEARS = timedelta(days=3652)
_SEED = 0


Blocks = Iterator[Callable[[], object]]
"""The timed part of a step, block by block; inputs of a block are made before its timing."""


def upsert(folder: Path, rows: int) -> Blocks:
    """Store R articles that came over ten years."""
    store = NewsStore(folder / "news.duckdb")
    for first in range(0, rows, ROWS_PER_UPSERT):
        frame = make_articles(first, min(first + ROWS_PER_UPSERT, rows), rows)
        yield partial(store.upsert_articles, frame)


def append(batch: int, folder: Path, rows: int) -> Blocks:
    """Store R embeddings in batches, each on disk before the next; titles differ, vectors repeat.

    The pipeline's batches have 512 rows; larger ones fill archives where those take too long.
    """
    generator = np.random.default_rng(_SEED)
    vectors = generator.standard_normal((batch, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    store = EmbeddingStore(folder, "benchmark")
    shutil.rmtree(store.folder, ignore_errors=True)
    for first in range(0, rows, len(vectors)):
        titles = [make_title(row) for row in range(first, min(first + len(vectors), rows))]
        yield partial(store.append, titles, vectors[: len(titles)])


def pool(folder: Path, rows: int) -> Blocks:
    """Gather the articles and embeddings that the windows of a run name."""
    ids = [derive_article_id(make_address(row)) for row in _choose(rows, NAMED_BY_A_RUN)]

    def gather() -> NewsPool:
        articles = NewsStore(folder / "news.duckdb").read_named(ids)
        embeddings = EmbeddingStore(folder, "benchmark").read(articles["title"].to_list())
        return NewsPool(articles, embeddings, "benchmark")

    yield gather


def look_up(folder: Path, rows: int) -> Blocks:
    """Read the embeddings of one window's candidates, of many windows in turn."""
    titles = [make_title(row) for row in _choose(rows, WINDOWS * NAMED_BY_A_WINDOW)]
    for first in range(0, len(titles), NAMED_BY_A_WINDOW):
        chosen = titles[first : first + NAMED_BY_A_WINDOW]
        yield lambda chosen=chosen: EmbeddingStore(folder, "benchmark").read(chosen)


def candidates(folder: Path, rows: int) -> Blocks:
    """Read the articles of the week before an origin, of many origins in turn."""
    for day in np.random.default_rng(_SEED).integers(30, _YEARS.days, WINDOWS):
        end = _FIRST + timedelta(days=int(day))
        yield lambda end=end: NewsStore(folder / "news.duckdb").read_articles(end - LOOKBACK, end)


def block(folder: Path, rows: int) -> Blocks:
    """Read the articles that windows of a month need: of the month and of the look-back before."""
    for month in np.random.default_rng(_SEED).integers(2, 120, BLOCKS):
        until = _FIRST + timedelta(days=int(30.4 * month))
        since = until - LONGEST_LOOKBACK - timedelta(days=31)
        span = (since, until)
        yield lambda span=span: StoredArticles(NewsStore(folder / "news.duckdb"), "").read(*span)


STEPS: dict[str, Callable[[Path, int], Blocks]] = {
    "none": lambda folder, rows: iter(()),
    "upsert": upsert,
    "append": partial(append, ROWS_PER_APPEND),
    "fill": partial(append, ROWS_PER_UPSERT),
    "pool": pool,
    "look-up": look_up,
    "candidates": candidates,
    "block": block,
}
"""In the order in which they need each other."""


def make_articles(first: int, end: int, rows: int) -> pl.DataFrame:
    """Return the articles from row ``first`` to ``end`` of an archive of ``rows``."""
    numbers = range(first, end)
    seen = [_FIRST + _YEARS * (row / rows) for row in numbers]
    frame = make_dated_articles(seen, [make_title(row) for row in numbers])
    return frame.with_columns(
        article_id=pl.Series([derive_article_id(make_address(row)) for row in numbers]),
        url=pl.Series([make_address(row) for row in numbers]),
        seen_at="available_at",
    )


def make_address(row: int) -> str:
    """Return an address, which an article's id is derived from."""
    return f"https://example.org/{row % 977}/story-{row}"


def make_title(row: int) -> str:
    """Return a headline of a usual length."""
    return f"Report {row}: demand for power in the eastern states as the weather turns"


def _choose(rows: int, count: int) -> list[int]:
    """Return rows at random; each once where there are enough."""
    generator = np.random.default_rng(_SEED)
    chosen: list[int] = generator.choice(rows, size=count, replace=count > rows).tolist()
    return chosen


def measure(case: str, folder: Path) -> Iterator[Row]:
    """Yield the row of a step."""
    articles, step = case.split("/")
    archive = folder / f"store-{articles}"
    archive.mkdir(parents=True, exist_ok=True)
    times = []
    for run in STEPS[step](archive, int(articles)):
        began = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - began[0], time.process_time() - began[1]))

    seconds, cpu_seconds = np.sum(times, axis=0).tolist() if times else (0.0, 0.0)
    blocks = len(times) if step in REPEATED else 1
    disk_bytes = sum(path.stat().st_size for path in archive.rglob("*") if path.is_file())
    yield {
        "step": step,
        "articles": articles,
        "seconds": seconds / blocks,
        "cpu_seconds": cpu_seconds / blocks,
        "peak_memory_mb": round(1000 * peak_memory_gigabytes()),
        "disk_mb": round(disk_bytes / 1e6),
        "threads": 1,
    }


def add_exponents(rows: list[Row]) -> list[Row]:
    """Return the rows with the growth of their seconds from the step's next smaller size.

    Rows of another machine may be in the same table.
    """
    smaller: dict[tuple[str, str], Row] = {}
    out = []
    for row in sorted(rows, key=lambda row: int(row["articles"])):
        before = smaller.get((row["step"], row["machine"]))
        exponent: float | str = ""
        if before is not None and float(row["cpu_seconds"]):
            ratio = float(row["cpu_seconds"]) / float(before["cpu_seconds"])
            exponent = math.log(ratio) / math.log(int(row["articles"]) / int(before["articles"]))
        out.append(row | {"exponent": exponent})
        smaller[row["step"], row["machine"]] = row
    return out


BENCHMARK = Benchmark(
    name="store",
    cases=[
        f"{articles}/{step}"
        for articles in (10_000, 100_000, 1_000_000, 10_000_000)
        for step in STEPS
        # Batches of the pipeline's size take too long for the largest archive.
        if step != ("append" if articles > 1_000_000 else "fill") or articles == 1_000_000
    ],
    measure=measure,
    key=("articles", "step"),
    libraries=("duckdb", "polars", "numpy"),
    threads=1,
    finish=add_exponents,
)

if __name__ == "__main__":
    BENCHMARK.main()
