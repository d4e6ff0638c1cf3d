"""An issued forecast as a chart that one can point at.

What belongs here: plotly figures of one series, as plain data. What does not: the script that draws
them (``templates/charts.js``), colours (``report.theme``), the same picture without a script
(``report.day_pictures``).

Text in a figure is read by plotly as a little HTML, so text from data is escaped here.
"""

import html
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.day_summary import BAND_80, BAND_95, choose_decimals, select_band
from compevo_core.issued import AGENT, METHOD, PUBLISHED, IssuedForecast
from compevo_core.report.forecast_days import ForecastDay, measure_day
from compevo_core.report.theme import (
    ACCENT,
    BAND_FILL_80,
    BAND_FILL_95,
    GRID,
    HISTORY,
    INK,
    MUTED,
    agent_colour,
    method_colour,
)
from compevo_core.report.wording import method_name

_HEIGHT = 390  # pixels

Trace = dict[str, Any]


def chart_series(day: ForecastDay, entity: str) -> dict[str, Any]:
    """Return the figure of one series: yesterday and the day that is forecast."""
    issued = day.issued
    forecast = issued.select_points(entity)[METHOD]
    decimals = choose_decimals([float(np.abs(forecast).max())])

    traces = [
        *_draw_bands(issued, entity),
        *_draw_agents(issued, entity),
        *_draw_before(day, entity),
        *_draw_known(day, entity),
        *_draw_published(issued, entity),
        _line(issued.starts, forecast, issued, method_name(METHOD), color=ACCENT, width=2.8),
    ]
    unit = html.escape(issued.unit)
    for trace in traces:
        bound = trace.pop("meta", "")
        trace["hovertemplate"] = f"{bound} %{{y:,.{decimals}f}} {unit}".strip()
    return {"data": traces, "layout": _lay_out(issued)}


def _draw_bands(issued: IssuedForecast, entity: str) -> list[Trace]:
    """Draw both bands, the wider one first, so that the narrower one lies on it."""
    traces = []
    for band, fill, name in (
        (BAND_95, BAND_FILL_95, "95 % band"),
        (BAND_80, BAND_FILL_80, "80 % band"),
    ):
        bounds = select_band(issued, entity, band)
        if bounds is None:
            continue

        low, high = bounds
        lower = _line(issued.starts, low, issued, name, color=fill, width=0)
        upper = _line(issued.starts, high, issued, name, color=fill, width=0)
        # The upper bound fills down to the lower one, and stands for both in the legend.
        traces.append(lower | {"legendgroup": name, "showlegend": False, "meta": "from"})
        traces.append(
            upper | {"legendgroup": name, "fill": "tonexty", "fillcolor": fill, "meta": "to"}
        )
    return traces


def _draw_agents(issued: IssuedForecast, entity: str) -> list[Trace]:
    weights = next(one["weights"] for one in issued.facts["series"] if one["entity"] == entity)
    points = issued.select_points(entity)
    return [
        _line(
            issued.starts,
            points[f"{AGENT}{agent}"],
            issued,
            f"agent {agent} ({100 * weight:.0f} %)",
            color=agent_colour(agent),
            width=1.0,
        )
        # The legend is read from the last trace to the first.
        for agent, weight in reversed(list(enumerate(weights)))
    ]


def _draw_before(day: ForecastDay, entity: str) -> list[Trace]:
    """Draw the forecast of the day before, dotted."""
    before = day.before
    if before is None or entity not in before.entities:
        return []
    values = before.select_points(entity)[METHOD]
    name = f"{method_name(METHOD)}, yesterday's forecast"
    return [_line(before.starts, values, before, name, color=ACCENT, width=1.8, dash="dot")]


def _draw_known(day: ForecastDay, entity: str) -> list[Trace]:
    """Draw what was measured yesterday, and of the day itself where it is known by now."""
    issued = day.issued
    length = measure_day(issued)
    lines = [([start - length for start in issued.starts], day.find_yesterday(entity))]
    truth = day.find_truth(issued, entity)
    if truth is not None:
        lines.append((issued.starts, truth))

    starts = [start for some, _ in lines for start in some]
    values = np.concatenate([values for _, values in lines])
    return [_line(starts, values, issued, "measured", color=INK, width=2.2)]


def _draw_published(issued: IssuedForecast, entity: str) -> list[Trace]:
    values = issued.select_points(entity).get(PUBLISHED)
    if values is None:
        return []
    colour = method_colour(PUBLISHED)
    name = "published forecast"
    return [_line(issued.starts, values, issued, name, color=colour, width=1.8, dash="dash")]


def _line(
    starts: Sequence[datetime],
    values: FloatArray,
    issued: IssuedForecast,
    name: str,
    **style: object,
) -> Trace:
    clock = [f"{start.astimezone(issued.zone):%Y-%m-%dT%H:%M}" for start in starts]
    # JSON has no NaN: a missing value is null, and breaks the line.
    numbers = [round(float(value), 6) if np.isfinite(value) else None for value in values]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": clock,
        "y": numbers,
        "name": html.escape(name),
        "line": style,
    }


def _lay_out(issued: IssuedForecast) -> dict[str, Any]:
    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": GRID, "tickcolor": GRID}
    origin = f"{issued.origin:%Y-%m-%dT%H:%M}"
    is_daily = issued.starts[1] - issued.starts[0] >= timedelta(days=1)
    return {
        "height": _HEIGHT,
        "margin": {"l": 64, "r": 12, "t": 10, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": MUTED, "size": 12.5, "family": "system-ui, sans-serif"},
        "hovermode": "x unified",
        "dragmode": False,  # a finger that scrolls the page must not zoom a chart
        "legend": {"orientation": "h", "y": -0.2, "traceorder": "reversed"},
        "xaxis": {
            **axis,
            "tickformat": "%d %b" if is_daily else "%H:%M\n%a %d %b",
            "hoverformat": "%a %d %b" if is_daily else "%a %d %b, %H:%M",
        },
        "yaxis": {**axis, "title": {"text": html.escape(issued.unit)}, "tickformat": ",~g"},
        # What lies right of this line was unknown.
        "shapes": [
            {
                "type": "line",
                "x0": origin,
                "x1": origin,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": HISTORY, "width": 1},
            }
        ],
    }
