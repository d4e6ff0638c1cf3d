"""``news/articles`` and ``news/embeddings``: the DuckDB file, and the folder that training reads.

What belongs here: storing articles, embedding those that are new, exporting the pool. What does
not: parsing (``sources``), SQL (``storage``). Both assets write the one DuckDB file, so both run
in the pool ``duckdb``, whose limit is one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from compevo_core.config import RunConfig
from compevo_pipeline.asset_keys import NEWS_ARTICLES, NEWS_EMBEDDINGS
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import DAILY_REFRESH, DUCKDB_POOL, OWNERS, code_version
from compevo_pipeline.assets.ingest import make_ingest_config, select_feeds
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.feeds import Feed, FeedTable
from compevo_pipeline.launch_config import LaunchConfig
from compevo_pipeline.preparation import ingest_feeds, write_news_pool
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.sources.common.base import Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEWS = "news"
"""Name of the news feeds in the feed table."""

ARTICLES_CODE = (
    "compevo_pipeline/admission.py",
    "compevo_core/data/news.py",
    "compevo_pipeline/feeds.py",
    "compevo_pipeline/preparation.py",
    "compevo_pipeline/sources",
    "compevo_pipeline/storage/news_store.py",
)
EMBEDDINGS_CODE = (
    "compevo_core/data/news_pool.py",
    "compevo_core/lm/encoder.py",
    "compevo_pipeline/preparation.py",
    "compevo_pipeline/storage/news_store.py",
)


class EmbeddingConfig(LaunchConfig):
    """Which encoder embeds the articles."""

    encoder: str | None = None
    """packaged:minilm, hashing, a folder or a hub id; left out: the training preset's"""


def build_articles_asset(own_feeds: Sequence[Feed]) -> dg.AssetsDefinition:
    """Return the asset that reads every news feed and stores what is new.

    Args:
        own_feeds: the feeds, which a launch chooses from.
    """
    launch = make_ingest_config(own_feeds)

    @dg.asset(
        key=NEWS_ARTICLES,
        group_name="news",
        description=(
            "Articles with the time from which each was available; one row an article, however "
            "many feeds carried it."
        ),
        kinds={"duckdb"},
        owners=OWNERS,
        code_version=code_version(*ARTICLES_CODE),
        freshness_policy=DAILY_REFRESH,
        pool=DUCKDB_POOL,
        config_schema=launch.schema_of_launch(),
    )
    def _articles(
        context: dg.AssetExecutionContext,
        workspace: Workspace,
        feeds: dg.ResourceParam[FeedTable],
        clock: dg.ResourceParam[Clock],
    ) -> dg.MaterializeResult[Any]:
        # A file on disk does not mend itself: only a live source is worth another try.
        is_live = workspace.data_mode is Mode.LIVE

        with translate_errors(attempt=context.retry_number, retry=is_live):
            config = launch.read(context)
            selected = select_feeds(feeds[NEWS], config.feeds, workspace.data_mode)
            read = ingest_feeds(
                workspace, selected, NEWS, clock=clock, log=context.log, span=config.read_span()
            )
            counts = [{"feed": name, **of_feed} for name, of_feed in read.items()]

        stored = workspace.news_store().read_articles()
        return dg.MaterializeResult(
            metadata=_describe_articles(workspace, stored, pl.DataFrame(counts))
        )

    return _articles


def _describe_articles(
    workspace: Workspace, stored: pl.DataFrame, counts: pl.DataFrame
) -> dict[str, Any]:
    month = pl.col("available_at").dt.truncate("1mo").alias("month")
    by_month = stored.group_by(month).len().sort("month")
    newest = stored.sort("available_at", descending=True)

    def draw(axes: "Axes") -> None:
        axes.bar(by_month["month"].to_numpy(), by_month["len"].to_numpy(), width=24)
        axes.set_ylabel("articles a month", fontsize=metadata.LABEL_POINTS)
        axes.tick_params(labelsize=metadata.TICK_POINTS)

    return {
        **metadata.describe_table(stored),
        "mode": workspace.data_mode.value,
        "database": metadata.link_path(workspace.layout.news_database),
        "feeds": metadata.render_table(counts, rows=20),
        "newest": metadata.render_table(
            newest.select("available_at", "title", "domain", "language")
        ),
        "plot": metadata.render_plot(draw, "Articles by month of availability"),
    }


def build_embeddings_asset(series: Sequence[dg.AssetKey] = ()) -> dg.AssetsDefinition:
    """Return the asset that embeds the articles that its encoder has not embedded yet.

    Args:
        series: those of own data sets that bring articles of their own. The order of the steps of a
            run is that of the inputs of an asset when it is made; later ones change only the graph.
    """

    @dg.asset(
        key=NEWS_EMBEDDINGS,
        deps=[NEWS_ARTICLES, *series],
        group_name="news",
        description=(
            "One sentence embedding an article, in the folder of articles that models read."
        ),
        kinds={"duckdb", "huggingface"},
        owners=OWNERS,
        code_version=code_version(*EMBEDDINGS_CODE),
        freshness_policy=DAILY_REFRESH,
        pool=DUCKDB_POOL,
        config_schema=EmbeddingConfig.schema_of_launch(),
    )
    def _embeddings(
        context: dg.AssetExecutionContext, workspace: Workspace
    ) -> dg.MaterializeResult[Any]:
        encoder = EmbeddingConfig.read(context).encoder
        name = encoder or RunConfig.preset(workspace.preset_for()).news.encoder
        pool, newly_embedded = write_news_pool(workspace, name, log=context.log)

        return dg.MaterializeResult(
            metadata={
                **metadata.describe_table(pool.articles),
                "newly_embedded": newly_embedded,
                "encoder": name,
                "dimensions": int(pool.embeddings.shape[1]) if len(pool) else 0,
                "folder": metadata.link_path(workspace.layout.news_pool),
            }
        )

    return _embeddings
