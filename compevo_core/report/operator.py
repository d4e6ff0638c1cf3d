"""The operator's table: a publisher's forecast by month, series and half-hour, beside every method.

What belongs here: pooling rows of ``evaluation.operator_scores`` into tables and a chart. What does
not: scoring, markup (``templates/forecast.html``).
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast.explain import choose_decimals
from compevo_core.forecast.issued import METHOD, PUBLISHED
from compevo_core.report.charts import TimeLine, draw_chart
from compevo_core.report.figures import ACCENT, method_colour
from compevo_core.report.tables import MISSING, Table, format_percent, method_name, tabulate

_NAMES = {METHOD: "forecast", PUBLISHED: "published"}


def view_operator(rows: pl.DataFrame) -> Mapping[str, Any] | None:
    """Return the tables and the chart of a data set; None where nobody publishes a forecast.

    Of forecasts that knew to different instants those that knew least are shown; the file has all.
    """
    if rows.filter(method=PUBLISHED).is_empty():
        return None
    # Before midnight comes before midnight in the order of the names, too.
    known_to = rows["known_to"].min()
    shown = rows.filter(known_to=known_to)
    return {
        "known_to": known_to,
        "months": month_table(shown),
        "methods": score_table(shown),
        "chart": _chart_clock(shown),
    }


def pool(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return means over points of rows that are alike in some columns and the method."""
    weight, banded = pl.col("n_points"), pl.col("n_banded")

    def mean(name: str, weight: pl.Expr) -> pl.Expr:
        return ((pl.col(name) * weight).sum() / weight.sum()).fill_nan(None).alias(name)

    return (
        rows.group_by(*by, "method")
        .agg(
            *(mean(name, weight) for name in ("mae", "bias")),
            *(mean(name, banded) for name in ("coverage_80", "width_80")),
            weight.sum(),
            pl.col("unit").first(),
        )
        .sort(*by, "mae", "method")
    )


def month_table(rows: pl.DataFrame) -> Table:
    """Return the published forecast beside the issued one, by month and series."""
    each = pool(rows, "month", "entity")
    together = pool(rows, "month").with_columns(entity=pl.lit(POOLED)).select(each.columns)
    keys = ["month", "entity"]
    sides = pl.concat([each, together])

    pairs = (
        sides.filter(method=PUBLISHED)
        .join(sides.filter(method=METHOD), on=keys, suffix="_own")
        .sort("month", pl.col("entity") == POOLED, "entity")
        .to_dicts()
    )
    decimals = choose_decimals([row["mae"] for row in pairs])
    unit = pairs[0]["unit"] if pairs else ""

    return tabulate(
        pairs,
        {
            "month": lambda row: row["month"],
            "series": lambda row: row["entity"],
            f"published: MAE, {unit}": lambda row: f"{row['mae']:,.{decimals}f}",
            "bias": lambda row: f"{row['bias']:+,.{decimals}f}",
            "in its 80 % band": lambda row: format_percent(row["coverage_80"]),
            f"forecast: MAE, {unit}": lambda row: f"{row['mae_own']:,.{decimals}f}",
            "its bias": lambda row: f"{row['bias_own']:+,.{decimals}f}",
            "in the forecast's band": lambda row: format_percent(row["coverage_80_own"]),
            "points": lambda row: f"{row['n_points']:,}",
        },
        caption="By month and series",
        text_columns=(0, 1),
        highlighted={i for i, row in enumerate(pairs) if row["entity"] == POOLED},
    )


def score_table(rows: pl.DataFrame) -> Table:
    """Return every method over all months and series."""
    records = pool(rows).to_dicts()
    decimals = choose_decimals([row["mae"] for row in records])
    unit = records[0]["unit"]

    return tabulate(
        records,
        {
            "method": lambda row: _NAMES.get(row["method"], method_name(row["method"])),
            f"MAE, {unit}": lambda row: f"{row['mae']:,.{decimals}f}",
            f"bias, {unit}": lambda row: f"{row['bias']:+,.{decimals}f}",
            "in its 80 % band": lambda row: format_percent(row["coverage_80"]),
            f"width of the band, {unit}": lambda row: (
                MISSING if row["width_80"] is None else f"{row['width_80']:,.{decimals}f}"
            ),
            "points": lambda row: f"{row['n_points']:,}",
        },
        caption="All methods",
        highlighted={i for i, row in enumerate(records) if row["method"] == METHOD},
    )


def _chart_clock(rows: pl.DataFrame) -> Mapping[str, Any] | None:
    """Return the error by time of the day; None where steps are days."""
    by_time = pool(rows.filter(pl.col("at").str.contains(":")), "at")
    if by_time.is_empty():
        return None
    styles: dict[str, dict[str, Any]] = {
        PUBLISHED: {"colour": method_colour(PUBLISHED), "dash": "6 4"},
        METHOD: {"colour": ACCENT, "width": 2.4},
    }
    day = datetime(2000, 1, 1)  # noqa: DTZ001 - a time of any day

    lines = []
    for method, style in styles.items():
        part = by_time.filter(method=method)
        times = [
            day + timedelta(hours=int(at[:2]), minutes=int(at[3:])) for at in part["at"].to_list()
        ]
        lines.append(
            TimeLine(name=_NAMES[method], times=times, values=part["mae"].to_list(), **style)
        )

    step = lines[0].times[1] - lines[0].times[0]
    unit = str(rows["unit"][0])
    chart = draw_chart(
        lines,
        f"Mean absolute error in {unit} by time of the day, over all months and series.",
        step=step,
        decimals=choose_decimals(by_time["mae"].to_list()),
        clock="%H:%M",
        is_clock=True,
    )
    return {"drawing": chart, "legend": lines, "unit": unit}
