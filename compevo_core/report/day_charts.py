"""An issued forecast as a chart that one can point at, and as a still picture of the same traces.

What belongs here: plotly figures of one series as plain data, and their drawing by matplotlib for
the UI, for print and for a browser without scripts. What does not: the script that draws the
figures (``templates/charts.js``), colours (``report.figures``).

Text in a figure is read by plotly as a little HTML, so text from data is escaped here.
"""

import html
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compevo_core.data.arrays import FloatArray
from compevo_core.forecast.day_summary import BAND_80, BAND_95, choose_decimals, select_band
from compevo_core.forecast.issued import AGENT, METHOD, PUBLISHED, IssuedForecast
from compevo_core.report.figures import (
    ACCENT,
    BAND_FILL_80,
    BAND_FILL_95,
    GRID,
    HISTORY,
    INK,
    MUTED,
    THEME,
    agent_colour,
    method_colour,
    set_clock,
)
from compevo_core.report.inputs import ForecastDay, measure_day
from compevo_core.report.wording import method_name

MOST_SERIES = 6
"""Series that a still picture shows, the first ones of the record."""

CHART_LAYOUT = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": MUTED, "size": 12.5, "family": "system-ui, sans-serif"},
}
"""What every plotly figure of the page has in common."""

_HEIGHT = 390  # pixels
_COLUMNS = 2
_INCHES = (4.6, 2.4)  # of one plot of the still picture
_BANDS = ((BAND_95, BAND_FILL_95, "95 % band"), (BAND_80, BAND_FILL_80, "80 % band"))
_DASHES = {"dot": ":", "dash": "--"}

Trace = dict[str, Any]


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
