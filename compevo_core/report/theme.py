"""Colours, fonts and line styles of every plot.

What belongs here: the look that all plots share. What does not: axes and encoding
(``report.figures``), what is plotted (the modules ``report.*_plots`` and
``report.forecast_pictures``), the look of the page (``templates/report.css``).
"""

from typing import Any

INK = "#1c2430"
MUTED = "#5b6675"
GRID = "#e3e7ec"
ACCENT = "#0b5cad"
HISTORY = "#8a94a3"
OTHER_BARS = "#b9c3cf"

# The narrower band lies on the wider one, so that it is the darker.
BAND_FILL_80 = "rgba(11,92,173,0.20)"
BAND_FILL_95 = "rgba(11,92,173,0.10)"

METHOD_COLOURS = {
    "compevo": ACCENT,
    "persistence": "#b8860b",
    "weekly": "#8c6d1f",
    "calendar-ridge": "#c8501e",
    "gbm": "#1a7f5a",
    "published": "#9a4bb0",
    "published-error-ridge": "#a83250",
    "published-error-gbm": "#4a90c2",
    "prior": "#c8501e",
    "sa": "#1a7f5a",
    "mael": "#b8860b",
    "mae-gpt": "#9a4bb0",
    "mad-rl": "#c8501e",
}
_UNKNOWN_METHOD = "#6b7684"

_AGENT_COLOURS = (
    "#0b5cad",
    "#c8501e",
    "#1a7f5a",
    "#9a4bb0",
    "#b8860b",
    "#4a90c2",
    "#a83250",
    "#5f6b2d",
    "#00808a",
    "#6b6b6b",
)
_AGENT_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 2, 1, 2)))

#: What a chart's colours become on a dark page, with at least 4.5 : 1 for lines and text.
DARK_COLOURS = {
    INK: "#eef2f6",
    MUTED: "#aab4c0",
    GRID: "#343d49",
    HISTORY: "#8a94a3",
    ACCENT: "#6cb2f5",
    BAND_FILL_80: "rgba(108,178,245,0.26)",
    BAND_FILL_95: "rgba(108,178,245,0.13)",
    "#c8501e": "#f08a5a",
    "#1a7f5a": "#5cc79b",
    "#9a4bb0": "#d08be4",
    "#b8860b": "#e0b04a",
    "#4a90c2": "#86c1ea",
    "#a83250": "#ee7f9b",
    "#5f6b2d": "#b3c06b",
    "#00808a": "#4fc3cc",
    "#6b6b6b": "#b5b5b5",
}

#: matplotlib's settings while a figure is made or saved.
THEME: Any = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.7,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "figure.dpi": 100,
    # A fixed salt gives the same element ids, so that the same figure gives the same bytes.
    "svg.hashsalt": "compevo",
    # Letters as outlines: the page looks the same where DejaVu Sans is not installed.
    "svg.fonttype": "path",
    "axes.formatter.useoffset": False,
}


def agent_colour(agent: int) -> str:
    """Return the colour of an agent."""
    return _AGENT_COLOURS[agent % len(_AGENT_COLOURS)]


def agent_style(agent: int) -> dict[str, Any]:
    """Return the line style of an agent.

    Colour and dash both differ, so that print and colour-blind readers can tell agents apart.
    """
    return {
        "color": agent_colour(agent),
        "linestyle": _AGENT_DASHES[agent % len(_AGENT_DASHES)],
        "label": f"agent {agent}",
    }


def method_colour(method: str) -> str:
    """Return the colour of a method, the same in every plot."""
    return METHOD_COLOURS.get(method, _UNKNOWN_METHOD)
