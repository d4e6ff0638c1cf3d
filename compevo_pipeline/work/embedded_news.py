"""Embedding stored articles, and the news pool of a set of windows.

What belongs here: which titles are embedded, in which order, and gathering what windows name. What
does not: encoders (``compevo_core.lm.encoder``), files (``storage``), Dagster (``defs.assets``).

``news/embeddings`` embeds ahead what windows can name. Reading a pool embeds what is still missing:
an article that came since, or in the demo all that the step's own windows name.

Shapes: N titles, D embedding size.
"""

import contextlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from compevo_core.config.run import RunConfig
from compevo_core.data.candidates import Span, find_news_spans, is_within, select_nameable
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.runtime.usage import Steps
from compevo_core.training.run_folder import RunFolder, verify_manifest
from compevo_pipeline.storage.embedding_store import EmbeddingStore
from compevo_pipeline.work.deployment import Deployment

TITLES_PER_BATCH = 512  # embedded and stored together; a run that is killed keeps them


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingCounts:
    """Counts of stored articles."""

    articles: int  # all of them
    nameable_articles: int  # those that a window of some data set can name
    newly_embedded: int  # titles of those that were embedded now


def embed_nameable(deployment: Deployment, encoder: str, *, log: logging.Logger) -> EmbeddingCounts:
    """Embed the title of every article that a window of some data set can name.

    Articles are read month by month, so that memory does not grow with the archive.
    """
    specs = [declared.spec for declared in deployment.registry.whole.values()]  # blocks read none
    spans = {}
    for spec in specs:
        values: Span | None = None
        # The stamps of the first and the last stored value, if the split plan needs them.
        if not spec.spans:
            with contextlib.suppress(DataError):  # a training embeds what its windows name
                stamps = deployment.series_store().read(spec.name)["start_utc"]
                values = stamps.min(), stamps.max()  # type: ignore[assignment]  # of instants
        spans[spec.name] = find_news_spans(spec, values)
    store = deployment.news_store()
    embeddings = deployment.embedding_store(encoder)

    nameable = 0
    missing: list[str] = []
    for since, until in store.list_months():
        if not any(first < until and since < end for each in spans.values() for first, end in each):
            continue
        stored = store.read_articles(since, until)
        chosen = [
            select_nameable(spec, stored.filter(is_within(spans[spec.name]))) for spec in specs
        ]
        titles = pl.concat(chosen).unique("article_id", maintain_order=True)["title"].to_list()
        nameable += len(titles)
        missing += embeddings.find_missing(titles)

    embedded = embed_titles(embeddings, missing, log)
    return EmbeddingCounts(
        articles=int(store.count_by_month()["articles"].sum()),
        nameable_articles=nameable,
        newly_embedded=embedded,
    )


def read_news(
    deployment: Deployment, encoder: str, views: Iterable[WindowView], *, log: logging.Logger
) -> NewsPool | None:
    """Return a pool of exactly the articles that views name; None without an encoder.

    DataError if a view names an article that is not stored.
    """
    if not encoder:
        return None
    named = {name for view in views for name in view.candidate_ids}
    articles = deployment.news_store().read_named(named)
    if articles.height < len(named):
        unknown = named - set(articles["article_id"].to_list())
        raise DataError(
            f"{len(unknown)} article(s) that windows name are not stored, first {min(unknown)}; "
            "materialize news/articles, then the windows"
        )

    embeddings = deployment.embedding_store(encoder)
    titles = articles["title"].to_list()
    embed_titles(embeddings, titles, log)
    return NewsPool(articles, embeddings.read(titles), encoder)


def find_encoder(run: Path) -> str:
    """Return the encoder with which the model of a run finds its news; empty if it reads none."""
    folder = RunFolder(run)
    verify_manifest(folder.model)
    settings = json.loads(folder.model_config_file.read_text(encoding="utf-8"))
    return RunConfig.from_mapping(settings).encoder


def write_news(
    deployment: Deployment,
    encoder: str,
    windows: WindowSet,
    *,
    log: logging.Logger,
    to_test: bool = False,
) -> Path | None:
    """Write the pool of a data set's windows for a training; return its folder, if it needs one.

    With ``to_test`` the windows after the test split are left out, which are not scored with it.
    """
    views = list_views_to_test(windows) if to_test else windows.views()
    pool = read_news(deployment, encoder, views, log=log)
    if pool is None:
        return None
    folder = deployment.layout.news_pool(windows.dataset)
    pool.write(folder)
    return folder


def list_views_to_test(windows: WindowSet) -> list[WindowView]:
    """Return the views of train, validation and test."""
    return [view for view in windows.views() if view.split != "inference"]


def embed_titles(embeddings: EmbeddingStore, titles: Sequence[str], log: logging.Logger) -> int:
    """Embed the titles that have no embedding yet, batch by batch; return their number."""
    missing = embeddings.find_missing(titles)
    if not missing:
        return 0

    # torch: only if something is embedded.
    from compevo_core.lm.encoder import load_encoder, use_all_cores

    encoder = load_encoder(embeddings.encoder)
    # A batch takes as long as its longest title: titles of one length are embedded together.
    missing.sort(key=len, reverse=True)
    starts = range(0, len(missing), TITLES_PER_BATCH)
    batches = [missing[start : start + TITLES_PER_BATCH] for start in starts]
    steps = Steps([sum(map(len, batch)) for batch in batches], log.info)

    for batch in batches:
        steps.begin(
            f"embedding {len(batch):,} of {len(missing):,} titles with {embeddings.encoder}"
        )
        with use_all_cores():
            vectors = encoder.encode(batch)
        embeddings.append(batch, vectors)
    return len(missing)
