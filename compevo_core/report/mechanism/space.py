"""The logics of the last round in space: a figure to turn, and a still picture of it.

What belongs here: points by their principal components, coloured by method. What does not: the
components (``mechanism.logics``), the script that draws the figure (``templates/charts.js``).

Text in a figure is read by plotly as a little HTML, so text from data is escaped here.
"""

import html
import textwrap
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compevo_core.report.figures import Picture, Plot, add_legend, make_picture
from compevo_core.report.mechanism.curves import list_methods
from compevo_core.report.theme import GRID, MUTED, THEME, method_colour
from compevo_core.report.wording import method_name

_HEIGHT = 460  # pixels
_HOVER_CHARACTERS = 60  # a line of the text that is shown at a point
_VIEW = {"elev": 22, "azim": -58}  # degrees
_EYE = {"x": 1.5, "y": 1.5, "z": 0.9}  # far enough for the labels of the axes
_MARKS = {
    "compevo": ("o", "circle"),
    "mad-rl": ("s", "square"),
    "mael": ("D", "diamond"),
    "mae-gpt": ("P", "cross"),
}
_OTHER_MARK = ("v", "diamond-open")
"""Marks of methods in matplotlib and plotly: colours alone are not for all eyes."""
_AXES = ("x", "y", "z")


def chart_logics(logics: pl.DataFrame) -> dict[str, Any]:
    """Return the plotly figure of the logics of one data set and budget."""
    axis = {"color": MUTED, "gridcolor": GRID, "zeroline": False, "showbackground": False}
    return {
        "data": [_trace(logics, method) for method in list_methods(logics)],
        "layout": {
            "height": _HEIGHT,
            "margin": {"l": 0, "r": 0, "t": 10, "b": 10},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": MUTED, "size": 12.5, "family": "system-ui, sans-serif"},
            "legend": {"orientation": "h", "y": 0},
            "scene": {"camera": {"eye": _EYE}}
            | {
                f"{name}axis": {**axis, "title": {"text": f"component {number}"}}
                for number, name in enumerate(_AXES, start=1)
            },
        },
    }


def show_space(logics: pl.DataFrame, caption: str, label: str) -> Picture:
    """Return the still picture of the same points."""
    with mpl.rc_context(THEME):
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        axis = figure.add_subplot(projection="3d")

    for method in list_methods(logics):
        chosen = logics.filter(pl.col("method") == method)
        axis.scatter(
            *(chosen[name].to_list() for name in _AXES),
            color=method_colour(method),
            label=method_name(method),
            marker=_MARKS.get(method, _OTHER_MARK)[0],
            depthshade=False,
            s=30,
        )
    axis.view_init(**_VIEW)
    for number, name in enumerate(_AXES, start=1):
        axis.set(**{f"{name}label": f"component {number}"})
        getattr(axis, f"{name}axis").set_major_locator(MaxNLocator(4))
    add_legend(axis)
    return make_picture([Plot(figure, alt=label)], caption=caption)


def _trace(logics: pl.DataFrame, method: str) -> dict[str, Any]:
    chosen = logics.filter(pl.col("method") == method)
    return {
        "type": "scatter3d",
        "mode": "markers",
        "name": html.escape(method_name(method)),
        **{name: chosen[name].to_list() for name in _AXES},
        "text": [_write_hover(*row) for row in chosen.select("seed", "agent", "logic").rows()],
        "hovertemplate": "%{text}",
        "marker": {
            "size": 5,
            "color": method_colour(method),
            "symbol": _MARKS.get(method, _OTHER_MARK)[1],
        },
    }


def _write_hover(seed: int, agent: int, logic: str) -> str:
    lines = textwrap.wrap(logic, _HOVER_CHARACTERS) or ["an empty logic"]
    return "<br>".join([f"seed {seed}, agent {agent}", *map(html.escape, lines)])
