"""Bars of pooled errors: methods side by side, ablation variants side by side.

What belongs here: drawing numbers that stand in rows.
What does not: differences or tests computed here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from compevo_core.report.figures import ACCENT, INK, axes
from compevo_core.report.rows import in_scope, over_seeds, pooled
from compevo_core.report.wording import method_name, number

Row = Mapping[str, Any]


def methods(rows: pl.DataFrame, dataset: str, subset: str) -> Figure:
    """Pooled MAE of every method in one scope, best on top."""
    return _bars(
        over_seeds(in_scope(pooled(rows), dataset, subset)).drop_nulls("mae").sort("mae").to_dicts()
    )


def ablation(rows: pl.DataFrame, dataset: str) -> Figure:
    """Pooled MAE of each ablation variant, best on top."""
    chosen = pooled(rows, ablation=True).filter(pl.col("dataset") == dataset)
    return _bars(over_seeds(chosen).drop_nulls("mae").sort("mae").to_dicts())


def _bars(records: Sequence[Row]) -> Figure:
    figure, (axis,) = axes(1, 1, width=8.2, height=0.75 + 0.3 * max(len(records), 1))
    places = list(range(len(records)))
    colours = [ACCENT if row["method"] == "compevo" else "#b9c3cf" for row in records]
    axis.barh(places, [row["mae"] for row in records], color=colours, height=0.62)
    low = [row["mae"] - row["mae_low"] for row in records]
    high = [row["mae_high"] - row["mae"] for row in records]
    if any(row["seeds"] > 1 for row in records):
        axis.errorbar(
            [row["mae"] for row in records],
            places,
            xerr=[low, high],
            fmt="none",
            ecolor=INK,
            elinewidth=1,
            capsize=3,
        )
    for place, row in zip(places, records, strict=True):
        axis.annotate(
            number(row["mae"]),
            (row["mae_high"], place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=INK,
            fontsize=9,
        )
    axis.set_yticks(places, [method_name(row["method"]) for row in records])
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.grid(visible=False, axis="y")
    units = {row["unit"] for row in records}
    axis.set_xlabel(f"MAE, {units.pop()}" if len(units) == 1 else "MAE")
    return figure
