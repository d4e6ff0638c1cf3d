"""``forecast/scored``: how good the issued forecasts were, day by day.

What belongs here: scoring what can be scored, and how it is shown. What does not: the scores
(``compevo_core.evaluation.issued_scores``), skill (``compevo_core.evaluation.skill``), alarms
(``checks.forecast_alarms``).

It has no partitions: every run scores all days that are over by then, also those that were filled
in later, and scores again where the truth was revised.
"""

from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from compevo_core.evaluation.issued_scores import PERSISTENCE, ScoredRows
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.skill import measure_skill
from compevo_core.issued import METHOD, PUBLISHED
from compevo_pipeline.asset_keys import next_day_key, scored_key, series_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import OWNERS, code_version
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.registry import Registry
from compevo_pipeline.resources import Clock, Workspace
from compevo_pipeline.scored import update_scored

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CODE = ("compevo_core/evaluation", "compevo_core/issued.py", "compevo_pipeline/scored.py")

_SHOWN_DAYS = 7
_PLOTTED_DAYS = 60
_SHOWN_ROWS = 40
_PLOTTED_METHODS = {METHOD: "-", PUBLISHED: "--", PERSISTENCE: ":"}


def build_scored_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return an asset for each data set whose windows start with a day."""
    return [build_scored_asset(name) for name in registry if registry[name].spec.starts_with_days]


def build_scored_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the asset of the scores of one data set's forecasts."""

    @dg.asset(
        key=scored_key(dataset),
        deps=[next_day_key(dataset), series_key(dataset)],
        group_name="forecast",
        description=(
            f"Errors, pinball loss and coverage of every issued forecast of {dataset} by day, "
            "series and method, and the skill over the last 7, 28 and 365 days; a revised truth is "
            "scored again."
        ),
        kinds={"polars", "parquet"},
        owners=OWNERS,
        code_version=code_version(*CODE),
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
    )
    def _scored(
        context: dg.AssetExecutionContext, workspace: Workspace, clock: dg.ResourceParam[Clock]
    ) -> dg.MaterializeResult[Any]:
        with translate_errors(retry=False):
            found = update_scored(workspace, dataset, clock)

        context.log.info(
            f"{found.added} rows added, {found.revised} revised; {found.waiting} forecasts wait "
            "for their truth"
        )
        return dg.MaterializeResult(
            metadata=_describe(found)
            | {
                "mode": workspace.data_mode.value,
                "file": metadata.link_path(workspace.layout.scored(dataset)),
            }
        )

    return _scored


def _describe(found: ScoredRows) -> dict[str, Any]:
    rows = found.rows
    skill = measure_skill(rows).filter(pl.col("entity") == POOLED).drop("entity", "last_day")
    revised = rows.filter(pl.col("revision") > 0)

    shown = {
        **metadata.describe_table(rows),
        "days": rows["day"].n_unique(),
        "added": found.added,
        "revised": found.revised,
        "waiting_for_truth": found.waiting,
        "skill": metadata.render_table(skill, rows=_SHOWN_ROWS),
        "last_days": metadata.render_table(_tabulate_days(rows), rows=2 * _SHOWN_DAYS),
        "revisions": metadata.render_table(
            revised.select("day", "entity", "known_to", "method", "mae", "first_mae", "revision"),
            rows=_SHOWN_ROWS,
        ),
    }
    return shown | ({"plot": _plot(rows)} if rows.height else {})


def _pool_days(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the MAE by day and method, mean over series."""
    return rows.group_by("day", "known_to", "method").agg(pl.col("mae").mean()).sort("day")


def _tabulate_days(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the last days, newest first, with the MAE of the methods side by side."""
    shown = _pool_days(rows.filter(pl.col("method").is_in([*_PLOTTED_METHODS, f"{METHOD}-equal"])))
    if shown.is_empty():
        return shown
    wide = shown.pivot("method", index=["day", "known_to"], values="mae")
    return wide.sort("day", "known_to", descending=True)


def _plot(rows: pl.DataFrame) -> dg.MetadataValue[Any]:
    """Draw the MAE of the last days, mean over series, by method and by what was known."""
    pooled = _pool_days(rows)

    def draw(axes: "Axes") -> None:
        for (known_to,), part in pooled.group_by("known_to", maintain_order=True):
            for method, style in _PLOTTED_METHODS.items():
                own = part.filter(pl.col("method") == method).tail(_PLOTTED_DAYS)
                axes.plot(
                    own["day"].to_numpy(),
                    own["mae"].to_numpy(),
                    style,
                    linewidth=1.0,
                    marker=".",
                    label=f"{method}, {known_to}",
                )
        axes.set_ylabel(f"MAE, {rows['unit'][0]}", fontsize=metadata.LABEL_POINTS)
        axes.tick_params(labelsize=metadata.TICK_POINTS)
        axes.legend(fontsize=metadata.TICK_POINTS, frameon=False)

    return metadata.render_plot(draw, "Error by day, mean over series")
