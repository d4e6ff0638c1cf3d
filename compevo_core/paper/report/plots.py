"""Plots of result rows and of forecast windows.

What belongs here: bars, lines and panels of numbers that are in result rows and panels, and the
text that says what each plot shows. What does not: plots of one training run
(``paper.report.run_sections``); smoothing, fitting or testing numbers.

Every plot has one axis; the page arranges them.
"""

import textwrap
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, timedelta, timezone
from functools import partial
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from compevo_core.data.steps import shift
from compevo_core.evaluation.metrics import BELOW_COLUMNS
from compevo_core.evaluation.scopes import ForecastPanel
from compevo_core.paper.report.figures import (
    MARKED,
    THEME,
    Line,
    Picture,
    Plot,
    Style,
    get_figure,
    method_style,
    plot_lines,
    set_clock,
)
from compevo_core.paper.report.result_tables import (
    HIGHLIGHTED_METHOD,
    label_methods,
    name_records,
    rank_by_pinball,
)
from compevo_core.paper.report.rows import (
    average_over_seeds,
    common_unit,
    list_scopes,
    select_methods,
    select_pooled,
    select_scope,
)
from compevo_core.paper.report.summaries import ResultSummary
from compevo_core.report.charts import ACCENT, GREEN, GRID, HISTORY, INK, MUTED, OTHER_BARS, RED
from compevo_core.report.tables import (
    RECALIBRATED,
    Row,
    format_number,
    join_items,
    method_name,
    scope_name,
)

# The market's clock has no daylight saving, and its day is what a reader of demand expects.
NEM_TIME = timezone(timedelta(hours=10), "UTC+10")
# More lines of reliability than this cannot be distinguished.
MOST_LINES = 6
_VERDICT_COLOURS = {"better": GREEN, "worse": RED}


def show_methods(rows: pl.DataFrame, dataset: str, subset: str) -> Picture | None:
    """Return bars of the pooled MAE of every method in one scope; None below two methods."""
    chosen = select_methods(rows, dataset, subset)
    # One bar compares nothing.
    if chosen.get_column("mae").drop_nulls().len() < 2:
        return None
    return _show_bars(chosen, name_records(chosen.to_dicts()), "method")


def show_verdicts(summaries: Sequence[ResultSummary]) -> Picture:
    """Return the differences to each rival with their intervals, a plot a test set."""
    plots = []
    for summary in summaries:
        outcomes = Counter(rival.outcome for rival in summary.rivals)
        counts = join_items([f"{name} for {n}" for name, n in outcomes.items()])
        alt = f"Difference of CompEvo's error to each method's in percent for {summary.scope}: "
        size = (5.2, 1.0 + 0.2 * len(summary.rivals))
        if summary.rivals:
            plots.append(Plot(partial(_fill_verdicts, summary), f"{alt}{counts}.", size))
    return Picture(plots, columns=2)


def _fill_verdicts(summary: ResultSummary, axis: Axes) -> None:
    rivals = summary.rivals
    for place, rival in enumerate(rivals):
        colour = _VERDICT_COLOURS.get(rival.outcome, MUTED)
        # Without a comparison by window the mark is hollow: the mean alone says nothing of chance.
        fill = "white" if rival.test is None else colour
        axis.plot(100 * rival.difference, place, "o", color=colour, markerfacecolor=fill, zorder=3)
        if rival.bounds is not None:
            axis.plot([100 * end for end in rival.bounds], [place, place], color=colour)

    axis.axvline(0.0, color=INK, linewidth=0.8)
    axis.set_yticks(range(len(rivals)), [method_name(rival.row["method"]) for rival in rivals])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")

    # Small differences and large ones on one axis: in proportion to 5 %, then by their logarithm.
    axis.set_xscale("symlog", linthresh=5)
    axis.margins(x=0.08)
    axis.xaxis.set_major_locator(FixedLocator([-50, -10, 0, 10, 50]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    axis.set_xlabel("error of CompEvo against it, %")
    with mpl.rc_context(THEME):
        title = textwrap.fill(summary.scope, 54)
        get_figure(axis).suptitle(title, x=0.01, ha="left", fontsize=10.5, weight="bold")


def show_ablation(rows: pl.DataFrame, dataset: str) -> Picture:
    """Return bars of the pooled MAE of each ablation variant on the first scope."""
    chosen = select_pooled(rows, ablation=True).filter(pl.col("dataset") == dataset)
    _, first = list_scopes(chosen)[0]
    return _show_bars(select_scope(chosen, dataset, first), dataset.capitalize(), "variant")


def _show_bars(rows: pl.DataFrame, name: str, kind: str) -> Picture:
    alt = f"Bar chart of the pooled MAE by {kind} for {name}; the table above holds the numbers."
    records = average_over_seeds(rows).drop_nulls("mae").sort("mae").to_dicts()
    plot = Plot(partial(_fill_bars, records), alt, (6.4, 0.75 + 0.28 * max(len(records), 1)))
    return Picture([plot], caption=f"{name}: pooled MAE by {kind}")


def _fill_bars(records: Sequence[Row], axis: Axes) -> None:
    """Draw the MAE of each record, best on top, with its range over seeds."""
    places = list(range(len(records)))
    errors = [row["mae"] for row in records]

    is_compevo = [row["method"] == HIGHLIGHTED_METHOD for row in records]
    axis.barh(places, errors, color=[ACCENT if is_ours else OTHER_BARS for is_ours in is_compevo])
    if any(row["seeds"] > 1 for row in records):
        below = [row["mae"] - row["mae_low"] for row in records]
        above = [row["mae_high"] - row["mae"] for row in records]
        whiskers: Style = {"fmt": "none", "ecolor": INK, "elinewidth": 1, "capsize": 3}
        axis.errorbar(errors, places, xerr=[below, above], **whiskers)
    for place, row in zip(places, records, strict=True):
        # Anchored at the end of the whisker, not of the bar, so that neither hides the number.
        offset: Style = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        end = (row["mae_high"], place)
        axis.annotate(format_number(row["mae"]), end, color=INK, fontsize=9, **offset)

    axis.set_yticks(places, label_methods(records))
    axis.invert_yaxis()
    # Room for the numbers to the right of the longest bar; bars start at zero to be comparable.
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.grid(visible=False, axis="y")
    unit = common_unit(records)
    axis.set_xlabel(f"MAE, {unit}" if unit else "MAE")


def show_reliability(rows: pl.DataFrame, dataset: str, subset: str) -> Picture | None:
    """Return the share of actual values below each quantile against its level; None without any."""
    # A baseline and its recalibrated twin are nearly the same line.
    is_twin = pl.col("method").str.ends_with(RECALIBRATED)
    records = rank_by_pinball(rows.filter(~is_twin), dataset, subset)[:MOST_LINES]
    if not records:
        return None

    name = name_records(records)
    alt = (
        f"Share of actual values below each quantile against its level for {name}; a line on the "
        "diagonal is right, a flatter one has too narrow bands."
    )
    lines = [Line([0, 1], [0, 1], {"color": MUTED, "linewidth": 1, "linestyle": ":"})]
    for row in records:
        shares = [row[name] for name in BELOW_COLUMNS.values()]
        style = method_style(row["method"]) | MARKED | {"linewidth": 1.7}
        lines.append(Line(list(BELOW_COLUMNS), shares, style))
    plot = plot_lines(
        lines,
        alt,
        size=(4.6, 4.4),
        x_label="level of the quantile",
        y_label="share of actual values below it",
        is_counted=False,
        legend_columns=1,
        finish=lambda axis: axis.set(xlim=(0, 1), ylim=(0, 1)),
    )
    caption = f"{name}: reliability of the quantiles; on the dotted line they are right."
    return Picture([plot], caption=caption)


def show_panel(panel: ForecastPanel) -> Picture:
    """Return a forecast window on its clock: history, actual values and each method's forecast."""
    zone = NEM_TIME if panel.dataset == "electricity" else UTC
    step = timedelta(minutes=panel.step_minutes)
    origin = panel.origin_utc.astimezone(zone)
    # The history ends one step before the origin, which is the start of the first forecast step.
    past = [shift(origin, -k, step) for k in range(len(panel.history), 0, -1)]
    ahead: list[Any] = [shift(origin, k, step) for k in range(len(panel.truth))]

    # A missing value breaks the line.
    truth = [float("nan") if value is None else value for value in panel.truth]
    lines = [
        Line(past, panel.history, {"color": HISTORY, "linewidth": 1.3, "label": "history"}),
        Line(ahead, truth, {"color": INK, "linewidth": 2.4, "label": "actual values"}),
    ]
    for method in sorted(panel.forecasts, key=lambda name: name == HIGHLIGHTED_METHOD):
        dash: Style = {} if method == HIGHLIGHTED_METHOD else {"linestyle": (0, (4, 2))}
        lines.append(Line(ahead, panel.forecasts[method], method_style(method) | dash))

    start = f"{origin:%d %b %Y, %H:%M} {zone.tzname(None)}"
    methods = join_items([method_name(name) for name in panel.forecasts])
    alt = (
        f"Line plot of {panel.entity} in {panel.unit}: {len(panel.history)} values before {start}, "
        f"then the actual values and the forecasts by {methods}."
    )

    def mark_origin(axis: Axes) -> None:
        # Everything right of the line was unknown to the models.
        axis.axvline(ahead[0], color=HISTORY, linewidth=1.0)
        axis.axvspan(ahead[0], ahead[-1], color=GRID, alpha=0.25, linewidth=0)
        set_clock(axis, zone)

    look: Style = {"size": (5.2, 2.8), "y_label": panel.unit, "legend_columns": 5}
    plot = plot_lines(lines, alt, finish=mark_origin, **look)
    scope = scope_name(panel.dataset, panel.subset, synthetic=panel.synthetic)
    return Picture([plot], caption=f"{panel.entity}, from {start}. {scope}.")
