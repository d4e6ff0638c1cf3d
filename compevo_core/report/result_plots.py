"""Bar charts of pooled errors: methods side by side, ablation variants side by side.

What belongs here: drawing numbers that stand in result rows. What does not: differences or tests
computed from them (``evaluation.significance``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compevo_core.report.figures import make_axis
from compevo_core.report.result_tables import label_methods
from compevo_core.report.rows import (
    average_over_seeds,
    drop_agents,
    list_scopes,
    select_pooled,
    select_scope,
)
from compevo_core.report.theme import ACCENT, INK, OTHER_BARS
from compevo_core.report.wording import format_number

Row = Mapping[str, Any]


def plot_methods(rows: pl.DataFrame, dataset: str, subset: str) -> Figure:
    """Draw the pooled MAE of every method in one scope, best on top."""
    return _plot_mae(drop_agents(select_scope(select_pooled(rows), dataset, subset)))


def plot_ablation(rows: pl.DataFrame, dataset: str) -> Figure:
    """Draw the pooled MAE of each ablation variant on the first scope, best on top."""
    chosen = select_pooled(rows, ablation=True).filter(pl.col("dataset") == dataset)
    _, first = list_scopes(chosen)[0]
    return _plot_mae(select_scope(chosen, dataset, first))


def _plot_mae(rows: pl.DataFrame) -> Figure:
    records = average_over_seeds(rows).drop_nulls("mae").sort("mae").to_dicts()
    figure, axis = make_axis(width=6.4, height=0.75 + 0.28 * max(len(records), 1))
    places = list(range(len(records)))

    colours = [ACCENT if row["method"] == "compevo" else OTHER_BARS for row in records]
    axis.barh(places, [row["mae"] for row in records], color=colours, height=0.62)
    if any(row["seeds"] > 1 for row in records):
        _draw_seed_ranges(axis, places, records)
    _write_values(axis, places, records)

    axis.set_yticks(places, label_methods(records))
    axis.invert_yaxis()
    # Room for the numbers to the right of the longest bar; bars start at zero to be comparable.
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.grid(visible=False, axis="y")

    units = {row["unit"] for row in records}
    axis.set_xlabel(f"MAE, {units.pop()}" if len(units) == 1 else "MAE")
    return figure


def _draw_seed_ranges(axis: Axes, places: Sequence[int], records: Sequence[Row]) -> None:
    """Draw a whisker from the lowest to the highest MAE over the seeds."""
    below = [row["mae"] - row["mae_low"] for row in records]
    above = [row["mae_high"] - row["mae"] for row in records]
    axis.errorbar(
        [row["mae"] for row in records],
        places,
        xerr=[below, above],
        fmt="none",
        ecolor=INK,
        elinewidth=1,
        capsize=3,
    )


def _write_values(axis: Axes, places: Sequence[int], records: Sequence[Row]) -> None:
    for place, row in zip(places, records, strict=True):
        # Anchored at the end of the whisker, not of the bar, so that neither hides the number.
        axis.annotate(
            format_number(row["mae"]),
            (row["mae_high"], place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=INK,
            fontsize=9,
        )
