"""The section "Tomorrow": what was issued last, what it was made of, how earlier forecasts did.

What belongs here: what the section shows of each data set: facts, tables, what agents read; plotly
figures of one series as plain data, and their drawing by matplotlib for the UI, for print and for a
browser without scripts. What does not: the numbers (``compevo_core.forecast``), the script that
draws the figures (``templates/charts.js``), markup (``templates/tomorrow.html``), colours
(``report.figures``).

Logics and news are untrusted text. The templates escape it; text in a figure is read by plotly as a
little HTML, so it is escaped here.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compevo_core.data.arrays import FloatArray
from compevo_core.evaluation.issued_scores import measure_skill, select_standing
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast.explain import (
    BAND_80,
    BAND_95,
    Explanation,
    choose_decimals,
    explain,
    format_start,
    select_band,
    summarise_day,
)
from compevo_core.forecast.issued import AGENT, METHOD, PUBLISHED, IssuedForecast
from compevo_core.report.figures import (
    ACCENT,
    BAND_FILL_80,
    BAND_FILL_95,
    CHART_LAYOUT,
    GRID,
    HISTORY,
    INK,
    THEME,
    Picture,
    Plot,
    agent_colour,
    method_colour,
    set_clock,
)
from compevo_core.report.inputs import ForecastDay, measure_day
from compevo_core.report.tables import Table, tabulate
from compevo_core.report.wording import MISSING, method_name, shorten_hash

MOST_CHARTS = 12
"""Series of a data set that are charted, the first ones of the record; tables hold all."""

SKILL_DAYS = 28
"""Days to the last one that was scored whose errors are shown."""

MOST_SERIES = 6
"""Series that a still picture shows, the first ones of the record."""

_HEIGHT = 390  # pixels
_COLUMNS = 2
_INCHES = (4.6, 2.4)  # of one plot of the still picture
_BANDS = ((BAND_95, BAND_FILL_95, "95 % band"), (BAND_80, BAND_FILL_80, "80 % band"))
_DASHES = {"dot": ":", "dash": "--"}

Trace = dict[str, Any]


def view_day(day: ForecastDay) -> Mapping[str, Any]:
    """Return what the page shows of the newest forecast of a data set."""
    issued = day.issued
    charted = issued.entities[:MOST_CHARTS]
    was_ahead = datetime.fromisoformat(issued.facts["issued_at"]) <= issued.origin
    alt = (
        f"Line plots of the first {min(MOST_SERIES, len(issued.entities))} series of "
        f"{issued.facts['dataset']}: the day before as measured, the forecast with its bands, "
        "each agent, and the published forecast; the table above holds the numbers."
    )
    return {
        "dataset": issued.facts["dataset"],
        "day": f"{issued.origin:%A %d %B %Y}",
        "is_ahead": was_ahead,
        "facts": _list_facts(day),
        "table": day_table(issued),
        "series": [_view_series(day, entity) for entity in charted],
        "n_not_charted": len(issued.entities) - len(charted),
        "picture": Picture([Plot(plot_day(day), alt)], caption=f"{issued.origin:%d %B %Y}"),
        "before": before_table(day),
        "skill": skill_table(day),
    }


def _list_facts(day: ForecastDay) -> list[tuple[str, str]]:
    issued, facts = day.issued, day.issued.facts

    def show(moment: str | None) -> str:
        if moment is None:
            return "none"
        return f"{datetime.fromisoformat(moment).astimezone(issued.zone):%d %b %Y, %H:%M}"

    return [
        ("times are in", str(issued.zone.tzname(None))),
        ("values known until", show(facts["information_until"])),
        ("issued", show(facts["issued_at"])),
        *(("supersedes the issue of", show(one.facts["issued_at"])) for one in day.earlier),
        ("newest article", show(facts.get("newest_candidate"))),
        ("model", shorten_hash(facts["artifact_hash"])),
        ("commit", shorten_hash(facts["commit"])),
        ("head of the chain of issues", shorten_hash(day.head) if day.head else "none"),
    ]


def _view_series(day: ForecastDay, entity: str) -> Mapping[str, Any]:
    """Return one series: its chart, the parts of its forecast, what the agents read."""
    parts = explain(day.issued, entity)
    zone = day.issued.zone
    return {
        "entity": entity,
        "axis": f"{parts.unit}, by start of the interval in {zone.tzname(None)}",
        "label": f"Chart of {entity} in {parts.unit}, yesterday and {day.issued.origin:%d %B %Y}: "
        "what was measured, the forecast with its bands, each agent and the published forecast. "
        "The table above holds the numbers.",
        "figure": chart_series(day, entity),
        "parts": part_table(parts),
        "agents": parts.parts,
        "zone": zone,
    }


def day_table(issued: IssuedForecast) -> Table:
    """Return a row for each series: mean, band, peak, change, what was published."""
    days = summarise_day(issued)
    decimals = choose_decimals([day.peak for day in days])
    until = datetime.fromisoformat(issued.facts["information_until"]).astimezone(issued.zone)
    note = "The band is the mean of its lower and upper bounds."
    if until < issued.origin:
        note += f" The change from yesterday is over its steps up to {until:%H:%M}."

    unit = issued.unit
    return tabulate(
        days,
        {
            "series": lambda day: day.entity,
            f"mean, {unit}": lambda day: _show(day.mean, decimals),
            f"80 % band, {unit}": lambda day: (
                MISSING
                if day.low is None
                else f"{_show(day.low, decimals)} to {_show(day.high, decimals)}"
            ),
            f"peak, {unit}": lambda day: (
                f"{_show(day.peak, decimals)} at {format_start(issued, day.peak_at)}"
            ),
            "against yesterday": lambda day: (
                MISSING if day.change_pct is None else f"{day.change_pct:+.1f} %"
            ),
            f"published, {unit}": lambda day: _show(day.published, decimals),
        },
        caption=f"{issued.origin:%A %d %B %Y}: means over the day, and its highest step",
        notes=[note],
    )


def part_table(parts: Explanation) -> Table:
    """Return a row for each agent: weight, prior, correction, level, what it adds; and the sum."""
    decimals = choose_decimals([float(np.abs(parts.forecast).max())])
    lines: list[tuple[Any, ...]] = [
        (
            f"agent {part.agent}",
            f"{100 * float(part.weights.mean()):.1f} %",
            *(part.prior, part.correction, part.level, part.contribution),
        )
        for part in parts.parts
    ]
    sums = [parts.weigh(name) for name in ("prior", "correction", "level")]
    lines.append(("weighted sum", "", *sums, parts.forecast))
    signs = ("", "+", "+", "")
    rows = [
        [name, weight, *(_show(v.mean(), decimals, s) for v, s in zip(values, signs, strict=True))]
        for name, weight, *values in lines
    ]
    return Table(
        header=("", "weight", "prior", "correction", "level", f"adds, {parts.unit}"),
        rows=rows,
        caption=f"Parts of the mean of {parts.entity}",
        highlighted=[len(rows) - 1],
        notes=[
            f"Corrections move the forecast by {parts.share('correction'):.2f} % of its size on "
            f"average over the day, levels by {parts.share('level'):.2f} %."
        ],
    )


def before_table(day: ForecastDay) -> Table | None:
    """Return how the forecast of the day before did by series; None where nothing is known."""
    before = day.before
    if before is None:
        return None
    truths = {entity: day.find_truth(before, entity) for entity in before.entities}
    rows = [_score(before, entity, y) for entity, y in truths.items() if y is not None]
    if not rows:
        return None
    return Table(
        header=(
            *("series", f"mean error, {before.unit}", f"MAE, {before.unit}"),
            *(f"MAE of the published, {before.unit}", "measured inside the 80 % band"),
        ),
        rows=rows,
        caption=f"{before.origin:%A %d %B %Y}: the forecast against what was measured",
    )


def _score(issued: IssuedForecast, entity: str, truth: FloatArray) -> list[str]:
    points, band = issued.select_points(entity), select_band(issued, entity, BAND_80)
    errors = {name: points[name] - truth for name in (METHOD, PUBLISHED) if name in points}
    maes = {name: float(np.nanmean(np.abs(error))) for name, error in errors.items()}
    decimals = choose_decimals([maes[METHOD]])
    inside = MISSING
    if band is not None:
        is_inside = ((band[0] <= truth) & (truth <= band[1]))[np.isfinite(truth)]
        inside = f"{100 * float(is_inside.mean()):.0f} %"
    return [
        entity,
        _show(float(np.nanmean(errors[METHOD])), decimals, "+"),
        *(_show(maes.get(name), decimals) for name in (METHOD, PUBLISHED)),
        inside,
    ]


def skill_table(day: ForecastDay) -> Table | None:
    """Return the errors of the last days beside each reference's; None where none was scored."""
    pooled = measure_skill(day.scores).filter(entity=POOLED, span_days=SKILL_DAYS)
    pooled = pooled.sort("is_on_time", "reference_mae", descending=[True, False])
    if pooled.is_empty():
        return None

    # In four digits of the largest error: references may have forecast other days.
    decimals = choose_decimals([*pooled["mae"], *pooled["reference_mae"]])
    last = max(pooled["last_day"])
    note = (
        "Each row is over the days and series that both forecast; the best member is known only "
        "afterwards."
    )
    recent = pl.col("day") > last - timedelta(days=SKILL_DAYS)
    covered = select_standing(day.scores).filter(recent, method=METHOD)["coverage_80"].mean()
    if isinstance(covered, float):
        note += f" {100 * covered:.0f} % of the measured values lie inside the 80 % band."

    unit = day.issued.unit
    return tabulate(
        pooled.iter_rows(named=True),
        {
            "reference": lambda row: method_name(row["reference"]),
            "issued": lambda row: "on time" if row["is_on_time"] else "later",
            f"its MAE, {unit}": lambda row: _show(row["reference_mae"], decimals),
            f"MAE of CompEvo, {unit}": lambda row: _show(row["mae"], decimals),
            "gain of CompEvo": lambda row: (
                f"{100 * row['skill']:+.1f} %" if row["reference_mae"] else MISSING
            ),
            "days": lambda row: str(row["n_days"]),
        },
        caption=f"Issued forecasts of the {SKILL_DAYS} days to {last:%d %b %Y}",
        notes=[note],
    )


def _show(value: float | None, decimals: int, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign},.{decimals}f}"


def chart_series(day: ForecastDay, entity: str) -> dict[str, Any]:
    """Return the figure of one series: yesterday and the day that is forecast."""
    issued = day.issued
    decimals = choose_decimals([float(np.abs(issued.select_points(entity)[METHOD]).max())])
    unit = html.escape(issued.unit)

    traces = list(_list_traces(day, entity))
    for trace in traces:
        bound = trace.pop("meta", "")
        trace["hovertemplate"] = f"{bound} %{{y:,.{decimals}f}} {unit}".strip()
    return {"data": traces, "layout": _lay_out(issued)}


def _list_traces(day: ForecastDay, entity: str) -> Iterator[Trace]:
    """Yield the lines of one series, each lying on those before it."""
    issued, before = day.issued, day.before
    starts, points = issued.starts, issued.select_points(entity)

    for band, fill, name in _BANDS:
        bounds = select_band(issued, entity, band)
        if bounds is not None:
            # The upper bound fills down to the lower one, and represents both in the legend.
            low, high = (
                _line(starts, values, issued, name, color=fill, width=0) for values in bounds
            )
            yield low | {"legendgroup": name, "showlegend": False, "meta": "from"}
            yield high | {"legendgroup": name, "fill": "tonexty", "fillcolor": fill, "meta": "to"}

    # The legend is read from the last trace to the first.
    facts = next(series for series in issued.facts["series"] if series["entity"] == entity)
    for agent, weight in reversed(list(enumerate(facts["weights"]))):
        style = {"color": agent_colour(agent), "width": 1.0}
        name = f"agent {agent} ({100 * weight:.0f} %)"
        yield _line(starts, points[f"{AGENT}{agent}"], issued, name, **style)

    if before is not None and entity in before.entities:
        values = before.select_points(entity)[METHOD]
        style = {"color": ACCENT, "width": 1.8, "dash": "dot"}
        name = f"{method_name(METHOD)}, yesterday's forecast"
        yield _line(before.starts, values, before, name, **style)

    measured = [day.find_yesterday(entity)]
    times = [start - measure_day(issued) for start in starts]
    truth = day.find_truth(issued, entity)
    if truth is not None:
        measured.append(truth)
        times += starts
    yield _line(times, np.concatenate(measured), issued, "measured", color=INK, width=2.2)

    if PUBLISHED in points:
        style = {"color": method_colour(PUBLISHED), "width": 1.8, "dash": "dash"}
        yield _line(starts, points[PUBLISHED], issued, "published forecast", **style)
    yield _line(starts, points[METHOD], issued, method_name(METHOD), color=ACCENT, width=2.8)


def _line(
    starts: Sequence[datetime],
    values: FloatArray,
    issued: IssuedForecast,
    name: str,
    **style: object,
) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [f"{start.astimezone(issued.zone):%Y-%m-%dT%H:%M}" for start in starts],
        # JSON has no NaN: a missing value is null, and breaks the line.
        "y": [round(float(value), 6) if np.isfinite(value) else None for value in values],
        "name": html.escape(name),
        "line": style,
    }


def _lay_out(issued: IssuedForecast) -> dict[str, Any]:
    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": GRID, "tickcolor": GRID}
    origin = f"{issued.origin:%Y-%m-%dT%H:%M}"
    is_daily = issued.starts[1] - issued.starts[0] >= timedelta(days=1)
    # What lies right of this line was unknown.
    border = {"type": "line", "x0": origin, "x1": origin, "yref": "paper", "y0": 0, "y1": 1}
    return CHART_LAYOUT | {
        "height": _HEIGHT,
        "margin": {"l": 64, "r": 12, "t": 10, "b": 40},
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "dragmode": False,  # a finger that scrolls the page must not zoom a chart
        "legend": {"orientation": "h", "y": -0.2, "traceorder": "reversed"},
        "xaxis": axis
        | {
            "tickformat": "%d %b" if is_daily else "%H:%M\n%a %d %b",
            "hoverformat": "%a %d %b" if is_daily else "%a %d %b, %H:%M",
        },
        "yaxis": axis | {"title": {"text": html.escape(issued.unit)}, "tickformat": ",~g"},
        "shapes": [border | {"line": {"color": HISTORY, "width": 1}}],
    }


def plot_day(day: ForecastDay) -> Figure:
    """Plot the charts of the first series as one still picture."""
    entities = day.issued.entities[:MOST_SERIES]
    columns = min(_COLUMNS, len(entities))
    rows = -(-len(entities) // columns)

    with mpl.rc_context(THEME):
        size = (columns * _INCHES[0], rows * _INCHES[1] + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axis, entity in zip(axes, entities, strict=False):
            _plot_series(axis, day, entity)
        for axis in axes[len(entities) :]:
            axis.set_visible(False)
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2 * columns
        )
    return figure


def _plot_series(axis: Axes, day: ForecastDay, entity: str) -> None:
    figure = chart_series(day, entity)
    lower: FloatArray = np.empty(0)
    origin: Any = day.issued.origin.replace(tzinfo=None)
    for trace in figure["data"]:
        times: Any = [datetime.fromisoformat(moment) for moment in trace["x"]]
        values = np.array([np.nan if y is None else y for y in trace["y"]])
        # Weights differ between series, which share one legend.
        label = html.unescape(trace["name"]).partition(" (")[0]
        line = trace["line"]
        if "fill" in trace:
            fill = _read_fill(trace["fillcolor"])
            axis.fill_between(times, lower, values, color=fill, linewidth=0, label=label)
        elif line["width"]:
            style = {"color": line["color"], "linestyle": _DASHES.get(line.get("dash"), "-")}
            axis.plot(times, values, linewidth=0.8 * line["width"], label=label, **style)
        lower = values

    axis.axvline(origin, color=HISTORY)
    set_clock(axis, UTC)
    # A name from data may hold a dollar sign, which would begin a formula.
    axis.set_title(entity.replace("$", r"\$"))
    axis.set_ylabel(day.issued.unit.replace("$", r"\$"))


def _read_fill(css: str) -> tuple[float, ...]:
    """Return a colour ``rgba(r,g,b,a)`` of the page as matplotlib reads it."""
    *colour, alpha = css.removeprefix("rgba(").removesuffix(")").split(",")
    return (*(int(part) / 255 for part in colour), float(alpha))
