"""``windows/<dataset>``: inputs and targets, aligned with the news published before each origin.

What belongs here: writing the windows that :mod:`compevo_pipeline.work.stored_windows` cuts, and
showing them. What does not: how windows are cut, and where splits are (``compevo_core.data``).
"""

import dagster as dg
import polars as pl

from compevo_core.data.calendar import HOLIDAYS_VERSION
from compevo_core.data.candidates import NewsCutoff
from compevo_core.data.window import FRAME_SCHEMA, WindowSet, read_hash
from compevo_pipeline.defs import definition, metadata
from compevo_pipeline.defs.asset_keys import NEWS_ARTICLES, series_key, windows_key
from compevo_pipeline.defs.definition import Context, Result, WorkspaceParam
from compevo_pipeline.work import stored_windows
from compevo_pipeline.work.deployment import Deployment

_MAX_COVERAGE_ROWS = 40  # traffic has hundreds of sensors


class WindowConfig(definition.LaunchConfig):
    """Which news a window may see."""

    news_cutoff: NewsCutoff = "origin"
    """origin; or horizon-end, which leaks as published prompts do and is marked so"""


@definition.define_by_dataset(
    windows_key,
    deps=[series_key, NEWS_ARTICLES],
    description=(
        "Windows of {dataset}: inputs and targets of its grid, chronological splits, five folds, "
        "a manifest hash."
    ),
    kinds={"polars", "parquet"},
    # Another release of the library may know other holidays: windows are cut again then.
    code=stored_windows.CUTTING_CODE,
    data_release=HOLIDAYS_VERSION,
    freshness_policy=definition.DAILY_REFRESH,
    config=WindowConfig,
)
def build_windows_asset(dataset: str, context: Context, workspace: WorkspaceParam) -> Result:
    """Cut the windows of a data set and write them."""
    config = WindowConfig.read(context)
    folder = workspace.layout.windows(dataset)
    # What was cut from the same things, and what the UI showed of it then.
    block = [dataset] if workspace.registry[dataset].family else None
    of_windows = dg.AssetRecordsFilter(asset_key=context.asset_key, asset_partitions=block)
    before = context.instance.fetch_materializations(of_windows, limit=1).records
    shown = before[0].asset_materialization if before else None
    if shown and stored_windows.are_current(workspace, dataset, config.news_cutoff):
        context.log.info(f"windows of {dataset}: nothing that they are cut from has changed")
        return dg.MaterializeResult(
            metadata=shown.metadata, data_version=dg.DataVersion(read_hash(folder)[:32])
        )

    windows = stored_windows.cut_windows(workspace, dataset, config.news_cutoff)
    stored_windows.write_windows(workspace, windows, config.news_cutoff)

    context.log.info(f"{len(windows)} windows of {dataset}, hash {windows.hash[:16]}")
    return describe_windows(workspace, windows)


def describe_windows(workspace: Deployment, windows: WindowSet) -> Result:
    """Return counts by split and subset, what was left out, a preview and one window drawn."""
    manifest = windows.manifest
    folder = workspace.layout.windows(windows.dataset)
    # The mean number of candidates, and the shares of windows with a choice.
    by_split = manifest.get("news_choice", {})
    choice = [{"split": split, **numbers} for split, numbers in by_split.items()]
    # The number of windows by split, entity and year; 0 where there is none.
    coverage = manifest.get("coverage", {})
    years = sorted({year for split in coverage.values() for row in split.values() for year in row})
    covered = [
        {"split": split, "entity": entity} | {year: by_year.get(year, 0) for year in years}
        for split, by_entity in coverage.items()
        for entity, by_year in by_entity.items()
    ]
    # The truth in the middle of the set, with the forecast published for it.
    window = windows[len(windows) // 2]
    lines: dict[str, list[float]] = {"truth": list(window.y)}
    if window.view.published is not None:
        lines["published forecast"] = list(window.view.published)
    shown = {
        "middle_window": metadata.render_sketch(lines, ends=("first step", "last step")),
        "dagster/row_count": len(windows),
        "dagster/column_schema": metadata.make_column_schema(FRAME_SCHEMA),
        "mode": workspace.data_mode.value,
        "synthetic": bool(manifest.get("synthetic", False)),
        "hash": windows.hash,
        "holidays_version": manifest.get("holidays_version", ""),
        "by_split": metadata.render_counts(manifest["n_by_split"]),
        "coverage": metadata.render_table(pl.DataFrame(covered), rows=_MAX_COVERAGE_ROWS),
        "news_choice": metadata.render_table(pl.DataFrame(choice)),
        "by_subset": metadata.render_counts(manifest["n_by_subset"]),
        "left_out": metadata.render_counts(manifest.get("dropped_origins", {})),
        "masked_targets": manifest["n_masked_targets"],
        "filled_inputs": manifest["n_filled_inputs"],
        "windows_without_articles": manifest.get("n_without_candidates", 0),
        "folder": dg.MetadataValue.path(folder),
        "preview": metadata.render_table(
            pl.DataFrame(
                [
                    {
                        "origin": f"{view.origin_utc:%Y-%m-%d %H:%M}",
                        "entity": view.entity,
                        "split": view.split,
                        "fold": view.fold,
                        "calendar": str(view.calendar)[:80],
                        "covariates": len(view.covariates),
                        "articles": len(view.candidate_ids),
                    }
                    for view in windows.views()[:5]
                ]
            )
        ),
    }
    return dg.MaterializeResult(
        metadata=shown,
        # Equal windows are equal data, whenever they were cut: assets downstream stay fresh.
        data_version=dg.DataVersion(windows.hash[:32]),
    )
