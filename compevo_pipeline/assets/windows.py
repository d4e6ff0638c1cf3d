"""``windows/<dataset>``: 48 values in, 48 out, aligned with the news that was out before each origin.

What belongs here: handing stored frames to :func:`compevo_core.data.build.build_windows` and writing what it returns.
What does not: how windows are cut, where splits lie.
"""

from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.data.build import build_windows
from compevo_core.data.datasets import DATASETS as SPECS
from compevo_core.data.news import dedupe
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.failures import source_failures
from compevo_pipeline.feeds import Kind
from compevo_pipeline.partitions import DATASETS
from compevo_pipeline.resources import Workspace

ARTICLES = dg.AssetKey(["news", "articles"])


class WindowConfig(dg.Config):
    """How windows meet the news."""

    news_cutoff: str = Field(
        default="origin",
        description="origin; or horizon-end, which leaks as published prompts do and is marked so",
    )


def windows_asset(dataset: str) -> dg.AssetsDefinition:
    """The asset of one data set."""

    @dg.asset(
        key=["windows", dataset],
        deps=[dg.AssetKey(["series", dataset]), ARTICLES],
        group_name="windows",
        description=f"Windows of {dataset}: 48 steps in, 48 out, chronological splits, five folds, a manifest hash.",
        kinds={"polars", "parquet"},
        owners=show.OWNERS,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
    )
    def _windows(
        context: dg.AssetExecutionContext, config: WindowConfig, workspace: Workspace
    ) -> dg.MaterializeResult[Any]:
        with source_failures(retry=False):
            found = cut(workspace, dataset, config.news_cutoff)
            found.write(workspace.layout.windows(dataset))
        context.log.info(f"{len(found)} windows of {dataset}, hash {found.hash[:16]}")
        return dg.MaterializeResult(
            metadata=describe(workspace, found), data_version=dg.DataVersion(found.hash[:32])
        )

    return _windows


def cut(workspace: Workspace, dataset: str, news_cutoff: str) -> WindowSet:
    """Builds the windows of a data set from what is stored."""
    if news_cutoff not in ("origin", "horizon-end"):
        raise ConfigError(
            f"news_cutoff {news_cutoff!r} is neither 'origin' nor 'horizon-end'; correct the run config"
        )
    tables = workspace.frame_store()
    return build_windows(
        SPECS[dataset],
        workspace.series_store().read(dataset),
        covariates=tables.read(dataset, Kind.COVARIATES),
        articles=dedupe(workspace.news_store().read_articles()),
        published=tables.read(dataset, Kind.PUBLISHED),
        benchmark=tables.read(dataset, Kind.BENCHMARK),
        news_cutoff=news_cutoff,  # type: ignore[arg-type]  # checked just above
    )


def describe(workspace: Workspace, found: WindowSet) -> dict[str, Any]:
    """Counts by split and subset, what was left out, a preview and one window drawn."""
    manifest = found.manifest
    views = found.views()
    preview = pl.DataFrame(
        [
            {
                "origin": f"{v.origin_utc:%Y-%m-%d %H:%M}",
                "entity": v.entity,
                "split": v.split,
                "fold": v.fold,
                "calendar": str(v.calendar)[:80],
                "covariates": len(v.covariates),
                "articles": len(v.candidate_ids),
            }
            for v in views[:5]
        ]
    )
    return {
        "dagster/row_count": len(found),
        "mode": workspace.data_mode.value,
        "synthetic": bool(manifest.get("synthetic", False)),
        "hash": found.hash,
        "by_split": show.counts(manifest["n_by_split"]),
        "by_subset": show.counts(manifest["n_by_subset"]),
        "left_out": show.counts(manifest.get("dropped_origins", {})),
        "masked_targets": manifest["n_masked_targets"],
        "filled_inputs": manifest["n_filled_inputs"],
        "windows_without_articles": manifest.get("n_without_candidates", 0),
        "folder": show.path(workspace.layout.windows(found.dataset)),
        "preview": show.table(preview),
        "plot": _plot(found),
    }


def _plot(found: WindowSet) -> dg.MetadataValue[Any]:
    window = found[len(found) // 2]

    def draw(axes: Any) -> None:
        axes.plot(range(-len(window.view.x), 0), window.view.x, label="input")
        axes.plot(range(len(window.y)), window.y, label="truth")
        if window.view.published is not None:
            axes.plot(
                range(len(window.y)),
                window.view.published,
                "--",
                linewidth=0.9,
                label="published forecast",
            )
        axes.axvline(0, color="grey", linewidth=0.7)
        axes.set_xlabel("steps from the origin", fontsize=8)
        axes.set_ylabel(window.view.unit, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7, frameon=False)

    return show.plot(
        draw, f"{window.view.entity}, origin {window.view.origin_utc:%Y-%m-%d %H:%M} UTC"
    )


def windows_assets() -> list[dg.AssetsDefinition]:
    """The four windows assets."""
    return [windows_asset(dataset) for dataset in DATASETS]
