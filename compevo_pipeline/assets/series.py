"""``series/<dataset>``: the series of each data set as Parquet, with the frames beside them.

What belongs here: reading every feed of a data set and storing what it gives. What does not:
formats (``sources``), SQL and files (``storage``), quality rules (``checks``). Nothing is stored
until every file of a feed has been parsed, so a torn file leaves what was stored as it was.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from compevo_pipeline.asset_keys import series_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import DAILY_REFRESH, DUCKDB_POOL, OWNERS, code_version
from compevo_pipeline.assets.ingest import ingest_chosen, make_ingest_config
from compevo_pipeline.data_versions import hash_series
from compevo_pipeline.feeds import Feed, FeedTable
from compevo_pipeline.markdown import escape_markdown
from compevo_pipeline.registry import RegisteredDataset, Registry
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.sketch import render_sketch
from compevo_pipeline.sources.common.base import FrameKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CODE = (
    "compevo_pipeline/admission.py",
    "compevo_core/data/series.py",
    "compevo_core/data/faults.py",
    "compevo_pipeline/feeds.py",
    "compevo_pipeline/own_feeds.py",
    "compevo_pipeline/preparation.py",
    "compevo_pipeline/sources",
    "compevo_pipeline/storage/series_store.py",
    "compevo_pipeline/storage/frame_store.py",
)

_PLOTTED_SERIES = 3
_PLOTTED_VALUES = 336  # a week of half-hours, two weeks of hours, most of a year of days


def build_series_assets(registry: Registry, feeds: FeedTable) -> list[dg.AssetsDefinition]:
    """Return the series assets, one a data set."""
    return [build_series_asset(registry[name], feeds[name]) for name in registry]


def build_series_asset(
    declared: RegisteredDataset, own_feeds: Sequence[Feed]
) -> dg.AssetsDefinition:
    """Return the series asset of one data set.

    Args:
        declared: the data set.
        own_feeds: its feeds, which a launch chooses from.
    """
    dataset = declared.name
    launch = make_ingest_config(own_feeds)
    # News of a data set's own goes into the one news file, whose writers wait for each other.
    writes_news = any(FrameKind.ARTICLES in feed.parsers for feed in declared.feeds)

    @dg.asset(
        key=series_key(dataset),
        group_name="series",
        description=escape_markdown(declared.description),
        kinds={"polars", "parquet"},
        owners=OWNERS,
        code_version=code_version(*CODE),
        freshness_policy=DAILY_REFRESH,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
        pool=DUCKDB_POOL if writes_news else None,
        config_schema=launch.schema_of_launch(),
    )
    def _series(
        context: dg.AssetExecutionContext,
        workspace: Workspace,
        feeds: dg.ResourceParam[FeedTable],
        clock: dg.ResourceParam[Clock],
    ) -> dg.MaterializeResult[Any]:
        counts_by_feed = ingest_chosen(context, launch, workspace, feeds[dataset], dataset, clock)
        return dg.MaterializeResult(
            metadata=_describe(workspace, dataset, counts_by_feed),
            # What is stored, and not that it was read again: equal data keep windows fresh.
            data_version=dg.DataVersion(hash_series(workspace, dataset)),
        )

    return _series


def _describe(
    workspace: Workspace, dataset: str, counts_by_feed: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    frame = workspace.series_store().read(dataset)
    coverage = _summarise_coverage(frame)
    feeds = pl.DataFrame(
        [
            {"feed": name, **{key: f"{count:,}" for key, count in counts.items()}}
            for name, counts in counts_by_feed.items()
        ]
    )

    series_id = frame["series_id"][0] if frame.height else ""
    newest = frame.filter(pl.col("series_id") == series_id)["value"].tail(_PLOTTED_VALUES)
    return {
        "newest": render_sketch({f"{series_id}, last {newest.len()} values": newest.to_list()}),
        **metadata.describe_table(frame),
        "mode": workspace.data_mode.value,
        # Sources of the sample mode mark each row; real data must show 0 here.
        "synthetic_rows": int(frame["source"].str.starts_with("sample:").sum()),
        "series": coverage.height,
        "folder": metadata.link_path(workspace.layout.series / dataset),
        "feeds": metadata.render_table(feeds, rows=20),
        "coverage": metadata.render_table(coverage, rows=12),
        "preview": metadata.render_table(frame),
        "plot": _plot_last_values(frame, dataset),
    }


def _summarise_coverage(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.group_by("series_id", "variable", "unit", maintain_order=True).agg(
        pl.len().alias("rows"),
        pl.col("start_utc").min().alias("first"),
        pl.col("start_utc").max().alias("last"),
        (pl.col("flag") != "observed").sum().alias("not observed"),
        pl.col("value").min().alias("lowest"),
        pl.col("value").max().alias("highest"),
    )


def _plot_last_values(frame: pl.DataFrame, dataset: str) -> dg.MetadataValue[Any]:
    series_ids = frame["series_id"].unique(maintain_order=True).to_list()[:_PLOTTED_SERIES]

    def draw(axes: "Axes") -> None:
        for series_id in series_ids:
            observed = frame.filter(
                (pl.col("series_id") == series_id) & pl.col("value").is_not_null()
            ).tail(_PLOTTED_VALUES)
            axes.plot(
                observed["start_utc"].to_numpy(),
                observed["value"].to_numpy(),
                linewidth=0.9,
                label=series_id,
            )

        axes.legend(fontsize=metadata.TICK_POINTS, frameon=False)
        axes.set_ylabel(frame["unit"][0] if frame.height else "", fontsize=metadata.LABEL_POINTS)
        axes.tick_params(labelsize=metadata.TICK_POINTS)

    return metadata.render_plot(draw, f"{dataset}: the last values of up to three series")
