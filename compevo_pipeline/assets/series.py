"""``series/<dataset>``: four time series as Parquet, with the frames that accompany them.

What belongs here: reading every feed of a data set and storing what it gives. What does not: formats (``sources``),
SQL and files (``storage``), quality rules (``checks``). Nothing is stored until every file of a feed has parsed.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.errors import ConfigError, SourceAbsent
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.failures import source_failures
from compevo_pipeline.feeds import Feed, FeedTable, Kind
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.sources.common.base import Mode

ABOUT = {
    "electricity": (
        "Half-hourly demand of the five NEM regions in MW (three AEMO measures, kept apart), AEMO's day-ahead "
        "forecasts, daily weather, and the published 100-window benchmark."
    ),
    "exchange": "Daily US dollars per Australian dollar: ECB reference rates and the AUD/USD benchmark.",
    "bitcoin": "Daily Bitcoin price in USD and 17 further BitInfoCharts variables.",
    "traffic": "Hourly road occupancy (0 to 1) of Caltrans PeMS sensors.",
}


class IngestConfig(dg.Config):
    """What to read."""

    feeds: list[str] = Field(
        default=[], description="feeds to read; empty: all that exist in the run's mode"
    )


def series_asset(dataset: str) -> dg.AssetsDefinition:
    """The asset of one data set."""

    @dg.asset(
        key=["series", dataset],
        group_name="series",
        description=ABOUT[dataset],
        kinds={"polars", "parquet"},
        owners=show.OWNERS,
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
        with source_failures(attempt=context.retry_number, retry=workspace.data_mode is Mode.LIVE):
            chosen = pick(feeds[dataset], config.feeds, workspace.data_mode)
            found = {
                feed.name: read_feed(context, workspace, feed, dataset, clock) for feed in chosen
            }
        return dg.MaterializeResult(metadata=describe(workspace, dataset, found))

    return _series


def pick(feeds: Sequence[Feed], names: Sequence[str], mode: Mode) -> list[Feed]:
    """The feeds to read in a mode.

    Raises:
        ConfigError: an unknown name.
        SourceAbsent: no feed exists in the mode.
    """
    unknown = sorted(set(names) - {feed.name for feed in feeds})
    if unknown:
        known = ", ".join(feed.name for feed in feeds)
        raise ConfigError(
            f"no feed {', '.join(unknown)}; known: {known}: correct the run configuration"
        )
    found = [feed for feed in feeds if mode in feed.modes and (not names or feed.name in names)]
    if not found:
        known = ", ".join(feed.name for feed in feeds)
        raise SourceAbsent(f"none of the feeds {known} exists in {mode} mode; choose another mode")
    return found


def read_feed(
    context: dg.AssetExecutionContext, workspace: Workspace, feed: Feed, dataset: str, clock: Clock
) -> dict[str, Any]:
    """Parses all files of a feed, then keeps the raw bytes and stores the frames; returns what was found."""
    raws = list(feed.raw_files(workspace.data_mode, workspace.settings.archive, clock))
    frames = {kind: parse(raws) for kind, parse in feed.parsers.items()}
    store, tables = workspace.series_store(), workspace.frame_store()
    for raw in raws:
        store.keep_raw(raw)
    counts: dict[str, Any] = {"files": len(raws), "bytes": sum(len(raw.content) for raw in raws)}
    for kind, frame in frames.items():
        if kind is Kind.SERIES:
            report = store.write(dataset, frame)
            counts |= {"series rows": report.rows, "new": report.added, "changed": report.changed}
        else:
            counts[f"{kind} rows stored"] = tables.write(dataset, kind, frame)
    context.log.info(f"{feed.name}: {counts}")
    return counts


def describe(
    workspace: Workspace, dataset: str, found: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Row counts, a preview, coverage by series and a plot."""
    frame = workspace.series_store().read(dataset)
    coverage = frame.group_by("series_id", "variable", "unit", maintain_order=True).agg(
        pl.len().alias("rows"),
        pl.col("start_utc").min().alias("first"),
        pl.col("start_utc").max().alias("last"),
        (pl.col("flag") != "observed").sum().alias("not observed"),
        pl.col("value").min().alias("lowest"),
        pl.col("value").max().alias("highest"),
    )
    feeds = pl.DataFrame(
        [
            {"feed": name, **{k: f"{v:,}" for k, v in counts.items()}}
            for name, counts in found.items()
        ]
    )
    return {
        "dagster/row_count": frame.height,
        "mode": workspace.data_mode.value,
        "synthetic_rows": int(frame["source"].str.starts_with("sample:").sum()),
        "series": coverage.height,
        "folder": show.path(workspace.layout.series / dataset),
        "feeds": show.table(feeds, rows=20),
        "coverage": show.table(coverage, rows=12),
        "preview": show.table(frame),
        "plot": _plot(frame, dataset),
    }


def _plot(frame: pl.DataFrame, dataset: str) -> dg.MetadataValue[Any]:
    ids = frame["series_id"].unique(maintain_order=True).to_list()[:3]

    def draw(axes: Any) -> None:
        for name in ids:
            part = frame.filter((pl.col("series_id") == name) & pl.col("value").is_not_null()).tail(
                336
            )
            axes.plot(
                part["start_utc"].to_numpy(), part["value"].to_numpy(), linewidth=0.9, label=name
            )
        axes.legend(fontsize=7, frameon=False)
        axes.set_ylabel(frame["unit"][0] if frame.height else "", fontsize=8)
        axes.tick_params(labelsize=7)

    return show.plot(draw, f"{dataset}: the last values of up to three series")


def series_assets() -> list[dg.AssetsDefinition]:
    """The four series assets."""
    return [series_asset(dataset) for dataset in DATASETS]
