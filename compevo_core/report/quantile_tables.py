"""How sure each method was: scores of its quantiles as a table and a plot.

What belongs here: selecting and labelling the rows that have quantiles. What does not: computing
scores (``evaluation.quantile_scores``), errors of point forecasts (``report.result_tables``).
"""

from collections.abc import Sequence

import polars as pl
from matplotlib.figure import Figure

from compevo_core.evaluation.quantile_scores import BELOW_COLUMNS
from compevo_core.report.figures import (
    Picture,
    Plot,
    add_legend,
    make_axis,
    make_picture,
)
from compevo_core.report.result_tables import (
    HIGHLIGHTED_METHODS,
    Row,
    common_unit,
    find_lowest,
    label_methods,
)
from compevo_core.report.rows import (
    average_over_seeds,
    drop_agents,
    select_pooled,
    select_scope,
)
from compevo_core.report.tables import Table
from compevo_core.report.theme import MUTED, method_colour
from compevo_core.report.wording import (
    RECALIBRATED,
    format_column,
    format_percent,
    method_name,
    scope_name,
)

NOTE = (
    "Pinball: mean loss of the quantiles at 0.1, 0.5 and 0.9. WQL: twice the pinball losses over "
    "the sum of actual values, mean over nine levels from 0.05 to 0.95. A band is good where it "
    "holds its share of the actual values and is narrow."
)
# More lines than this cannot be told apart.
MOST_LINES = 6


def sureness_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table | None:
    """Return scores of quantiles by method, lowest pinball loss first; None without any."""
    records = _rank_by_pinball(rows, dataset, subset)
    if not records:
        return None

    unit = common_unit(records)
    pinball, wql, width_80, width_95 = (
        [row[name] for row in records]
        for name in ("pinball_10_50_90", "wql", "width_80", "width_95")
    )
    columns = [
        label_methods(records),
        format_column("pinball", pinball),
        format_column("wql", wql),
        [format_percent(row["coverage_80"]) for row in records],
        format_column("width", width_80),
        [format_percent(row["coverage_95"]) for row in records],
        format_column("width", width_95),
    ]
    header = ["Method", "Pinball", "WQL", "In 80 % band", "Width", "In 95 % band", "Width"]
    with_unit = {1, 4, 6}
    return Table(
        header=[f"{t} {unit}" if i in with_unit and unit else t for i, t in enumerate(header)],
        rows=list(zip(*columns, strict=True)),
        caption=f"{_name_scope(records)}: how sure",
        # A narrow band is no merit of its own, so only losses have a best.
        best_cells=find_lowest(list(zip(pinball, wql, strict=True)), columns[1:3]),
        highlighted_rows=frozenset(
            i for i, row in enumerate(records) if row["method"] in HIGHLIGHTED_METHODS
        ),
        notes=[NOTE],
    )


def reliability_picture(rows: pl.DataFrame, dataset: str, subset: str) -> Picture | None:
    """Return the share of actual values below each quantile against its level; None without any."""
    records = _select_lines(rows, dataset, subset)
    if not records:
        return None

    name = _name_scope(records)
    plot = Plot(
        _plot_reliability(records),
        alt=f"Share of actual values below each quantile against its level for {name}; a line "
        "on the diagonal is right, one that is flatter has too narrow bands.",
    )
    caption = f"{name}: are the quantiles what they say? On the dotted line they are."
    return make_picture([plot], caption=caption)


def _select_lines(rows: pl.DataFrame, dataset: str, subset: str) -> list[Row]:
    # A baseline and its recalibrated twin are nearly the same line.
    is_twin = pl.col("method").str.ends_with(RECALIBRATED)
    return _rank_by_pinball(rows.filter(~is_twin), dataset, subset)[:MOST_LINES]


def _rank_by_pinball(rows: pl.DataFrame, dataset: str, subset: str) -> list[Row]:
    chosen = drop_agents(select_scope(select_pooled(rows), dataset, subset))
    known = average_over_seeds(chosen).drop_nulls("pinball_10_50_90")
    return list(known.sort("pinball_10_50_90", "method").iter_rows(named=True))


def _name_scope(records: Sequence[Row]) -> str:
    first = records[0]
    is_made_up = any(row["synthetic"] for row in records)
    return scope_name(first["dataset"], first["subset"], synthetic=is_made_up)


def _plot_reliability(records: Sequence[Row]) -> Figure:
    figure, axis = make_axis(width=4.6, height=4.4)
    axis.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=":")

    for row in records:
        known = [(level, row[name]) for level, name in BELOW_COLUMNS.items()]
        levels, shares = zip(*((x, y) for x, y in known if y is not None), strict=True)
        axis.plot(
            levels,
            shares,
            marker="o",
            markersize=3.5,
            color=method_colour(row["method"]),
            label=method_name(row["method"]),
        )

    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_xlabel("level of the quantile")
    axis.set_ylabel("share of actual values below it")
    add_legend(axis, columns=1)
    return figure
