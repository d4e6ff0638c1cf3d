"""The look of every plot, and a plot as a self-contained piece of HTML.

What belongs here: colours, fonts, line styles, SVG encoding, the <figure> around a plot.
What does not: what is plotted (``training_plots``, ``forecast_plots``, ``result_plots``).
"""

import base64
import html
import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID, ACCENT = "#1c2430", "#5b6675", "#e3e7ec", "#0b5cad"
AGENTS = (
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
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 2, 1, 2)))
METHODS = {
    "truth": INK,
    "history": "#8a94a3",
    "compevo": "#0b5cad",
    "persistence": "#b8860b",
    "weekly": "#8c6d1f",
    "calendar-ridge": "#c8501e",
    "gbm": "#1a7f5a",
    "published": "#9a4bb0",
    "prior": "#c8501e",
}
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
    "svg.hashsalt": "compevo",
    "svg.fonttype": "path",
    "axes.formatter.useoffset": False,
}


def axes(
    rows: int, columns: int, *, width: float = 10.0, height: float = 3.1
) -> tuple[Figure, list[Axes]]:
    """A figure in the project's look and its axes, row by row; ``height`` is inches a row."""
    with mpl.rc_context(THEME):
        figure = Figure(figsize=(width, height * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
    cells = [cell for line in grid for cell in line]
    for cell in (
        cells
    ):  # a power of ten above the axis would push its title out of line with its neighbours'
        cell.yaxis.set_major_formatter(lambda value, _: f"{value:.7g}")
    return figure, cells


def agent_style(agent: int) -> dict[str, Any]:
    """Colour and dash of an agent; both differ so that print and colour-blind readers can tell them apart."""
    return {
        "color": AGENTS[agent % len(AGENTS)],
        "linestyle": DASHES[agent % len(DASHES)],
        "label": f"agent {agent}",
    }


def method_colour(method: str) -> str:
    """Colour of a method wherever it appears."""
    return METHODS.get(method, "#6b7684")


def svg_bytes(figure: Figure) -> bytes:
    """The figure as SVG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(THEME):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def png_bytes(figure: Figure, *, dpi: int = 110) -> bytes:
    """The figure as PNG, for places that show no SVG (asset metadata)."""
    buffer = io.BytesIO()
    with mpl.rc_context(THEME):
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def data_uri(content: bytes, media_type: str) -> str:
    """Bytes as a data URI."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def to_html(figure: Figure, *, alt: str, caption: str) -> str:
    """A <figure> with the plot inlined; ``alt`` says in words what the picture shows."""
    source = data_uri(svg_bytes(figure), "image/svg+xml")
    return (
        f'<figure><img src="{source}" alt="{html.escape(alt, quote=True)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def title(axis: Axes, text: str) -> None:
    """A title in the project's place and weight."""
    with mpl.rc_context(THEME):
        axis.set_title(text)


def legend(axis: Axes, **options: Any) -> None:
    """A legend below the axis, where it hides no line, if there is something to name."""
    handles, _ = axis.get_legend_handles_labels()
    if handles:
        place = {
            "loc": "upper left",
            "bbox_to_anchor": (0.0, -0.2),
            "ncols": 5 if len(handles) > 6 else 3,
        }
        settings: Mapping[str, Any] = place | options
        with mpl.rc_context(THEME):
            axis.legend(**settings)
