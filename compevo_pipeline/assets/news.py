"""``news/articles`` and ``news/embeddings``: the DuckDB file, and a vector for each title.

What belongs here: storing articles, embedding those that windows can name. What does not: parsing
(``sources``), SQL and files (``storage``), the news of one data set's windows
(``compevo_pipeline.embedded_news``).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from compevo_core.config import RunConfig
from compevo_pipeline.asset_keys import NEWS_ARTICLES, NEWS_EMBEDDINGS
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import DAILY_REFRESH, DUCKDB_POOL, OWNERS, code_version
from compevo_pipeline.assets.ingest import ingest_chosen, make_ingest_config
from compevo_pipeline.data_versions import hash_news
from compevo_pipeline.embedded_news import embed_nameable
from compevo_pipeline.feeds import Feed, FeedTable
from compevo_pipeline.launch_config import LaunchConfig
from compevo_pipeline.resources import Clock, Workspace

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
    "compevo_core/data/nameable.py",
    "compevo_core/lm/encoder.py",
    "compevo_pipeline/embedded_news.py",
    "compevo_pipeline/storage/embedding_store.py",
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
        read = ingest_chosen(context, launch, workspace, feeds[NEWS], NEWS, clock)
        counts = [{"feed": name, **of_feed} for name, of_feed in read.items()]
        return dg.MaterializeResult(
            metadata=_describe_articles(workspace, pl.DataFrame(counts)),
            data_version=dg.DataVersion(hash_news(workspace)),
        )

    return _articles


def _describe_articles(workspace: Workspace, counts: pl.DataFrame) -> dict[str, Any]:
    store = workspace.news_store()
    by_month = store.count_by_month()
    newest = store.read_newest(metadata.PREVIEW_ROWS)

    def draw(axes: "Axes") -> None:
        axes.bar(by_month["month"].to_numpy(), by_month["articles"].to_numpy(), width=24)
        axes.set_ylabel("articles a month", fontsize=metadata.LABEL_POINTS)
        axes.tick_params(labelsize=metadata.TICK_POINTS)

    return {
        "dagster/row_count": int(by_month["articles"].sum()),
        "dagster/column_schema": metadata.make_column_schema(newest.schema),
        "mode": workspace.data_mode.value,
        "database": metadata.link_path(workspace.layout.news_database),
        "feeds": metadata.render_table(counts, rows=20),
        "newest": metadata.render_table(
            newest.select("available_at", "title", "domain", "language")
        ),
        "plot": metadata.render_plot(draw, "Articles by month of availability"),
    }


def build_embeddings_asset(series: Sequence[dg.AssetKey] = ()) -> dg.AssetsDefinition:
    """Return the asset that embeds titles that windows can name, as far as they are new.

    Args:
        series: those of own data sets that bring articles of their own. The order of the steps of a
            run is that of the inputs of an asset when it is made; later ones change only the graph.
    """

    @dg.asset(
        key=NEWS_EMBEDDINGS,
        deps=[NEWS_ARTICLES, *series],
        group_name="news",
        description="A sentence embedding of every title that some window can name.",
        kinds={"numpy", "huggingface"},
        owners=OWNERS,
        code_version=code_version(*EMBEDDINGS_CODE),
        freshness_policy=DAILY_REFRESH,
        config_schema=EmbeddingConfig.schema_of_launch(),
    )
    def _embeddings(
        context: dg.AssetExecutionContext, workspace: Workspace
    ) -> dg.MaterializeResult[Any]:
        encoder = EmbeddingConfig.read(context).encoder
        name = encoder or RunConfig.preset(workspace.preset_for()).news.encoder
        counts = embed_nameable(workspace, name, log=context.log)
        store = workspace.embedding_store(name)

        return dg.MaterializeResult(
            metadata={
                "dagster/row_count": len(store),
                "articles": counts.articles,
                "nameable_articles": counts.nameable,
                "newly_embedded": counts.embedded,
                "encoder": name,
                "folder": metadata.link_path(store.folder),
            },
            # Vectors of an encoder never change, and which articles a model reads is in its
            # windows: a day of new articles marks no model that has the windows it had.
            data_version=dg.DataVersion(name),
        )

    return _embeddings
