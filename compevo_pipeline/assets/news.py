"""``news/articles`` and ``news/embeddings``: the DuckDB file, and the pool folder that training reads.

What belongs here: ingest, embedding what is new, exporting the pool. What does not: parsing (``sources``), SQL
(``storage``). Both write the one DuckDB file, so both run in the pool ``duckdb``, whose limit is one.
"""

from typing import Any

import dagster as dg
import numpy as np
import polars as pl
from pydantic import Field

from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.assets.series import IngestConfig, pick
from compevo_pipeline.failures import source_failures
from compevo_pipeline.feeds import FeedTable, Kind
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.sources.common.base import Mode

DUCKDB_POOL = "duckdb"
NEWS = "news"
BATCH = 512
"""Titles encoded between two progress lines."""


class EmbeddingConfig(dg.Config):
    """Which encoder embeds the articles."""

    encoder: str = Field(
        default="",
        description="packaged:minilm, hashing, a folder or a hub id; empty: the training preset's",
    )


@dg.asset(
    key=["news", "articles"],
    group_name="news",
    description="Articles with the time from which each was available; one row an article, however often it was seen.",
    kinds={"duckdb"},
    owners=show.OWNERS,
    pool=DUCKDB_POOL,
)
def articles(
    context: dg.AssetExecutionContext,
    config: IngestConfig,
    workspace: Workspace,
    feeds: dg.ResourceParam[FeedTable],
    clock: dg.ResourceParam[Clock],
) -> dg.MaterializeResult[Any]:
    """Reads every news feed, stores what is new."""
    store, series_store = workspace.news_store(), workspace.series_store()
    found: list[dict[str, Any]] = []
    with source_failures(attempt=context.retry_number, retry=workspace.data_mode is Mode.LIVE):
        for feed in pick(feeds[NEWS], config.feeds, workspace.data_mode):
            raws = list(feed.raw_files(workspace.data_mode, workspace.settings.archive, clock))
            frame = feed.parsers[Kind.ARTICLES](raws)
            for raw in raws:
                series_store.keep_raw(raw)
            report = store.upsert_articles(frame)
            context.log.info(
                f"{feed.name}: {len(raws)} files, {frame.height} articles, {report.added} new"
            )
            found.append(
                {
                    "feed": feed.name,
                    "files": len(raws),
                    "articles": frame.height,
                    "new": report.added,
                    "changed": report.changed,
                }
            )
    stored = store.read_articles()
    return dg.MaterializeResult(metadata=_describe(workspace, stored, pl.DataFrame(found)))


def _describe(workspace: Workspace, stored: pl.DataFrame, found: pl.DataFrame) -> dict[str, Any]:
    months = (
        stored.group_by(pl.col("available_at").dt.truncate("1mo").alias("month"))
        .len()
        .sort("month")
    )

    def draw(axes: Any) -> None:
        axes.bar(months["month"].to_numpy(), months["len"].to_numpy(), width=24)
        axes.set_ylabel("articles a month", fontsize=8)
        axes.tick_params(labelsize=7)

    newest = stored.sort("available_at", descending=True).select(
        "available_at", "title", "domain", "language"
    )
    return {
        "dagster/row_count": stored.height,
        "mode": workspace.data_mode.value,
        "database": show.path(workspace.layout.news_database),
        "feeds": show.table(found, rows=20),
        "newest": show.table(newest),
        "plot": show.plot(draw, "Articles by month of availability"),
    }


@dg.asset(
    key=["news", "embeddings"],
    deps=[articles],
    group_name="news",
    description="One sentence embedding an article, and the folder of articles and embeddings that models read.",
    kinds={"duckdb", "huggingface"},
    owners=show.OWNERS,
    pool=DUCKDB_POOL,
)
def embeddings(
    context: dg.AssetExecutionContext, config: EmbeddingConfig, workspace: Workspace
) -> dg.MaterializeResult[Any]:
    """Embeds the articles that have no embedding of this encoder yet, then exports the pool."""
    from compevo_core.lm.encoder import load_encoder

    name = config.encoder or RunConfig.preset(workspace.preset).news.encoder
    store = workspace.news_store()
    missing = store.missing_embeddings(name)
    if missing.height:
        encoder = load_encoder(name)
        texts, ids = missing["title"].fill_null("").to_list(), missing["article_id"].to_list()
        for start in range(0, len(ids), BATCH):
            vectors = encoder.encode(texts[start : start + BATCH])
            store.upsert_embeddings(name, ids[start : start + BATCH], vectors)
            context.log.info(
                f"embedded {min(start + BATCH, len(ids))} of {len(ids)} articles with {name}"
            )
    pool = _pool(store.read_articles(), *store.read_embeddings(name), name)
    pool.write(workspace.layout.news_pool)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(pool),
            "newly_embedded": missing.height,
            "encoder": name,
            "dimensions": int(pool.embeddings.shape[1]) if len(pool) else 0,
            "folder": show.path(workspace.layout.news_pool),
        }
    )


def _pool(
    stored: pl.DataFrame, ids: list[str], matrix: "np.ndarray[Any, np.dtype[np.float32]]", name: str
) -> NewsPool:
    """Articles and embeddings in one order."""
    order = pl.DataFrame(
        {"article_id": ids, "_row": np.arange(len(ids))},
        schema={"article_id": pl.String(), "_row": pl.Int64()},
    )
    joined = stored.sort("available_at", "article_id").join(order, on="article_id", how="inner")
    rows = joined["_row"].to_numpy()
    return NewsPool(joined.drop("_row"), matrix[rows], name)
