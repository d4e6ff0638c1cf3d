"""``series/<dataset>``: the series of each data set as Parquet, with the frames beside them.

What belongs here: reading every feed of a data set and storing what it gives. What does not:
formats (``sources``), SQL and files (``storage``), quality rules (``checks``). Nothing is stored
until every file of a feed has been parsed, so a torn file leaves what was stored as it was.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from compevo_pipeline.asset_keys import series_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import DAILY_REFRESH, OWNERS, code_version
from compevo_pipeline.assets.ingest import IngestConfig, select_feeds
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.feeds import Feed, FeedTable
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.sources.common.base import FrameKind, Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DESCRIPTIONS = {
    "electricity": (
        "Half-hourly demand of the five NEM regions in MW (three AEMO measures, stored apart), "
        "AEMO's day-ahead forecasts, daily weather, and the published 100-window benchmark."
    ),
    "electricity-operational": (
        "Half-hourly operational demand of the five NEM regions in MW from May 2025 on, with "
        "AEMO's day-ahead forecasts of demand and of rooftop solar power."
    ),
    "exchange": (
        "Daily US dollars per Australian dollar: ECB reference rates and the AUD/USD benchmark."
    ),
    "bitcoin": "Daily Bitcoin price in USD and 17 further BitInfoCharts variables.",
    "traffic": "Hourly road occupancy (0 to 1) of Caltrans PeMS sensors.",
}

CODE = (
    "compevo_core/data/series.py",
    "compevo_core/data/faults.py",
    "compevo_pipeline/feeds.py",
    "compevo_pipeline/sources",
    "compevo_pipeline/storage/series_store.py",
    "compevo_pipeline/storage/frame_store.py",
)

_PLOTTED_SERIES = 3
_PLOTTED_VALUES = 336  # a week of half-hours, two weeks of hours, most of a year of days


def build_series_assets() -> list[dg.AssetsDefinition]:
    """Return the series assets, one a data set."""
    return [build_series_asset(dataset) for dataset in DATASETS]


def build_series_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the series asset of one data set."""

    @dg.asset(
        key=series_key(dataset),
        group_name="series",
        description=DESCRIPTIONS[dataset],
        kinds={"polars", "parquet"},
        owners=OWNERS,
        code_version=code_version(*CODE),
        freshness_policy=DAILY_REFRESH,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
    )
    def _series(
        context: dg.AssetExecutionContext,
        config: IngestConfig,
        workspace: Workspace,
        feeds: dg.ResourceParam[FeedTable],
        clock: dg.ResourceParam[Clock],
    ) -> dg.MaterializeResult[Any]:
        # A file on disk does not mend itself: only a live source is worth another try.
        is_live = workspace.data_mode is Mode.LIVE

        with translate_errors(attempt=context.retry_number, retry=is_live):
            selected = select_feeds(feeds[dataset], config.feeds, workspace.data_mode)
            counts_by_feed = {
                feed.name: ingest_feed(context, workspace, feed, dataset, clock)
                for feed in selected
            }

        return dg.MaterializeResult(metadata=_describe(workspace, dataset, counts_by_feed))

    return _series


def ingest_feed(
    context: dg.AssetExecutionContext, workspace: Workspace, feed: Feed, dataset: str, clock: Clock
) -> dict[str, int]:
    """Parse all files of a feed, then keep the raw bytes and store the frames.

    Returns:
        Files, bytes and stored rows by name.
    """
    raw_files = list(feed.read_files(workspace.data_mode, workspace.settings.archive, clock))
    # All parsers run before anything is stored.
    frames = {kind: parse(raw_files) for kind, parse in feed.parsers.items()}

    store = workspace.series_store()
    tables = workspace.frame_store()
    for raw_file in raw_files:
        store.write_raw(raw_file)

    counts = {"files": len(raw_files), "bytes": sum(len(raw.content) for raw in raw_files)}
    for kind, frame in frames.items():
        if kind is FrameKind.SERIES:
            report = store.write(dataset, frame)
            counts |= {"series rows": report.rows, "new": report.added, "changed": report.changed}
        else:
            counts[f"{kind} rows stored"] = tables.write(dataset, kind, frame)

    described = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    context.log.info(f"{feed.name}: {described}")
    return counts


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

    return {
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
