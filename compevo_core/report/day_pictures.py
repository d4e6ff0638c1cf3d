"""An issued forecast as a still picture: for the UI, for print, for a browser without scripts.

What belongs here: one small plot for each series. What does not: the chart that one can point at
(``report.day_charts``), the look that all plots share (``report.theme``).
"""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compevo_core.day_summary import BAND_80, BAND_95, select_band
from compevo_core.issued import AGENT, METHOD, PUBLISHED, IssuedForecast
from compevo_core.report.forecast_days import ForecastDay, measure_day
from compevo_core.report.theme import (
    ACCENT,
    BAND_FILL_80,
    BAND_FILL_95,
    HISTORY,
    INK,
    THEME,
    agent_colour,
    method_colour,
)
from compevo_core.report.wording import method_name

MOST_SERIES = 6
"""Series that a picture shows, the first ones of the record."""

_COLUMNS = 2
_INCHES = (4.6, 2.4)  # of one plot
_SECONDS_PER_HOUR = 3600


def plot_day(day: ForecastDay) -> Figure:
    """Draw bands, members, yesterday and what was published for each of the first series."""
    entities = day.issued.entities[:MOST_SERIES]
    columns = min(_COLUMNS, len(entities))
    rows = -(-len(entities) // columns)

    with mpl.rc_context(THEME):
        size = (columns * _INCHES[0], rows * _INCHES[1] + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axis, entity in zip(grid.flat, entities, strict=False):
            _plot_series(axis, day, entity)
        for axis in list(grid.flat)[len(entities) :]:
            axis.set_visible(False)

        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _plot_series(axis: Axes, day: ForecastDay, entity: str) -> None:
    issued = day.issued
    points = issued.select_points(entity)
    hours = _count_hours(issued)
    length = measure_day(issued).total_seconds() / _SECONDS_PER_HOUR

    for band, fill, name in (
        (BAND_95, BAND_FILL_95, "95 % band"),
        (BAND_80, BAND_FILL_80, "80 % band"),
    ):
        bounds = select_band(issued, entity, band)
        if bounds is not None:
            axis.fill_between(hours, *bounds, color=_read_fill(fill), linewidth=0, label=name)

    for agent in range(len(issued.facts["logics"])):
        label = "agents" if agent == 0 else None
        values = points[f"{AGENT}{agent}"]
        axis.plot(hours, values, color=agent_colour(agent), linewidth=0.7, label=label)

    axis.plot(hours - length, day.find_yesterday(entity), color=INK, label="measured")
    truth = day.find_truth(issued, entity)
    if truth is not None:
        axis.plot(hours, truth, color=INK)
    if PUBLISHED in points:
        colour = method_colour(PUBLISHED)
        axis.plot(
            hours, points[PUBLISHED], "--", color=colour, linewidth=1.2, label="published forecast"
        )
    axis.plot(hours, points[METHOD], color=ACCENT, linewidth=2.2, label=method_name(METHOD))

    axis.axvline(0, color=HISTORY, linewidth=0.8)
    # A name from data may hold a dollar sign, which would begin a formula.
    axis.set_title(entity.replace("$", r"\$"))
    axis.set_ylabel(issued.unit.replace("$", r"\$"))
    axis.set_xlabel(f"hours from {issued.origin:%d %b %H:%M} {issued.zone.tzname(None)}")


def _count_hours(issued: IssuedForecast) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the hours from the origin to the start of each step, (H,)."""
    first = issued.starts[0]
    seconds = [(start - first).total_seconds() for start in issued.starts]
    return np.array(seconds) / _SECONDS_PER_HOUR


def _read_fill(css: str) -> tuple[float, float, float, float]:
    """Return a colour ``rgba(r,g,b,a)`` of the page as matplotlib takes it."""
    red, green, blue, alpha = css.removeprefix("rgba(").removesuffix(")").split(",")
    return int(red) / 255, int(green) / 255, int(blue) / 255, float(alpha)
