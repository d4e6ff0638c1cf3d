"""What the campaign disturbs: small pieces of real work, and a reading of its end as lines."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.schemas import STEP_COVARIATE_SCHEMA
from compevo_core.data.window import WindowSet
from compevo_core.forecast.issued import FACTS_FILE, read_issued, write_issued
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.storage.embedding_store import EmbeddingStore
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import SeriesStore
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import ingest_dataset
from tests.support.issued_samples import ORIGIN, make_issued
from tests.support.population import tiny, windows
from tests.support.store_workers import articles, series
from tests.support.tiny_run import MEASURED, read_hash, read_records, train_days

MODEL = "campaign"


@dataclass(frozen=True)
class Work:
    """Work that can be done again, and its end as sorted lines."""

    do: Callable[[Path], None]
    read: Callable[[Path], Iterator[str]]


def write_series(home):
    """Write four months of six series, month by month."""
    for month in range(4):
        frames = [
            series(f"AEMO/TOTALDEMAND/R{n:02d}", month * 480, np.arange(480.0) + n)
            for n in range(6)
        ]
        SeriesStore(home).write("electricity", pl.concat(frames))


def read_series(home):
    rows = SeriesStore(home).read("electricity").select("series_id", "start_utc", "value")
    yield from map(repr, rows.iter_rows())


def upsert_articles(home):
    for first in range(0, 2000, 400):
        NewsStore(home / "news.duckdb").upsert_articles(articles(*range(first, first + 500)))


def read_articles(home):
    yield from NewsStore(home / "news.duckdb").read_articles()["article_id"].to_list()


def embed(home):
    """Store articles, and the embeddings of titles that have none, in batches."""
    news = NewsStore(home / "news.duckdb")
    news.upsert_articles(articles(*range(500)))
    store = EmbeddingStore(home / "embeddings", MODEL)
    missing = sorted(store.find_missing(news.read_articles()["title"].to_list()))
    for first in range(0, len(missing), 100):
        titles = missing[first : first + 100]
        numbers = [int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) for name in titles]
        vectors = np.stack([np.random.default_rng(n).normal(size=32) for n in numbers])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        store.append(titles, vectors.astype(np.float32))


def read_embeddings(home):
    titles = sorted(NewsStore(home / "news.duckdb").read_articles()["title"].to_list())
    matrix = EmbeddingStore(home / "embeddings", MODEL).read(titles)
    for name, row in zip(titles, matrix, strict=True):
        yield f"{name} {hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest()[:16]}"


def write_windows(home):
    """Write windows that grow by days, as a refresh does."""
    for days in (10, 20, 30, 40):
        windows("train", days).write(home / "windows")


def read_windows(home):
    """Yield the hash, and how many files the folder shows."""
    yield WindowSet.read(home / "windows").hash
    yield f"{len(list((home / 'windows').glob('[!.]*')))} files"


def write_frames(home):
    """Merge covariates by step of twenty days around the end of a month, five at a time."""
    for first in range(0, 20, 5):
        days = [datetime(2026, 1, 20, tzinfo=UTC) + timedelta(days=first + n) for n in range(5)]
        rows = [(f"R{n}", "t", d, 1.0 * n, d, "x") for d in days for n in range(200)]
        frame = pl.DataFrame(rows, schema=STEP_COVARIATE_SCHEMA, orient="row")
        SeriesStore(home).write_frame("electricity", FrameKind.STEP_COVARIATES, frame)


def read_frames(home):
    frame = SeriesStore(home).read_frame("electricity", FrameKind.STEP_COVARIATES)
    if frame is not None:
        yield from map(repr, frame.iter_rows())


def issue(home):
    for day in range(15):
        write_issued(home / "issued", make_issued(origin=ORIGIN + timedelta(days=day)))


def read_issues(home):
    for facts in sorted((home / "issued").rglob(FACTS_FILE)):
        yield f"{facts.parent.relative_to(home)} {read_issued(facts.parent).hash}"


def train_population(home):
    config = tiny(run__supervised_epochs=1, run__rounds=4, run__validate_every=2)
    train_days(config, home / "run", days=2, val_days=2)


def read_training(home):
    """Yield the model's hash, each round's record and the summary, without what is measured."""
    folder = RunFolder(home / "run")
    yield read_hash(folder.path)
    measured = MEASURED | {"peak_memory_gb"}
    summary = {k: v for k, v in folder.read_metrics().items() if k not in measured}
    yield from (json.dumps(one, sort_keys=True) for one in (*read_records(folder.path), summary))


def ingest(home, *, days):
    """Store a data set's files by a clock that is wrong by so many days."""
    shift = timedelta(days=days)
    workspace = Deployment(
        settings=Settings(home=home, mode=Mode.SAMPLE), clock=lambda: datetime.now(UTC) + shift
    )
    ingest_dataset(workspace, "exchange", log=logging.getLogger("faults"))


def read_ingested(home):
    store = Deployment(settings=Settings(home=home, mode=Mode.SAMPLE)).series_store()
    rows = store.read("exchange").select("series_id", "variable", "start_utc", "value")
    yield from map(repr, rows.iter_rows())


WORKS = {
    "training": Work(train_population, read_training),
    "series write": Work(write_series, read_series),
    "article upsert": Work(upsert_articles, read_articles),
    "embedding": Work(embed, read_embeddings),
    "window write": Work(write_windows, read_windows),
    "frame write": Work(write_frames, read_frames),
    "forecast issue": Work(issue, read_issues),
}
