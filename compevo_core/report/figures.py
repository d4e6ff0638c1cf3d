"""Axes in the project's look, and plots as images inside the page.

What belongs here: making an axis, its title and legend, encoding a plot as SVG. What does not:
colours and fonts (``report.theme``), what is plotted (the modules ``report.*_plots`` and
``report.forecast_pictures``), the markup around an image (``templates/macros.html``).
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compevo_core.report.theme import THEME


@dataclass(frozen=True)
class Plot:
    """A drawn plot and a text that says what it shows, for readers who do not see it."""

    figure: Figure
    alt: str


@dataclass(frozen=True)
class Image:
    """An image as the page holds it: a data URI, its alternative text and its width in inches."""

    source: str
    alt: str
    width: float


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Images under one caption, side by side in ``columns`` columns where the screen is wide."""

    images: Sequence[Image]
    caption: str
    columns: int = 1


def make_picture(plots: Sequence[Plot], *, caption: str, columns: int = 1) -> Picture:
    """Encode plots for the page.

    Every plot is an image of its own, so that a narrow screen can stack them at a readable size.
    """
    # SVG, because lines stay sharp at any width of the page.
    images = [
        Image(
            source=_encode_svg(plot.figure), alt=plot.alt, width=float(plot.figure.get_figwidth())
        )
        for plot in plots
    ]
    return Picture(images=images, caption=caption, columns=columns)


def make_axis(*, width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of one axis in the project's look; sizes are in inches."""
    with mpl.rc_context(THEME):
        figure = Figure(figsize=(width, height), layout="constrained")
        axis = figure.subplots()

    # matplotlib would write a shared power of ten above the axis, where the title stands.
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.9g}")
    return figure, axis


def set_title(axis: Axes, text: str) -> None:
    """Set a title in the project's place and weight."""
    with mpl.rc_context(THEME):
        axis.set_title(text)


def add_legend(axis: Axes, *, columns: int = 3) -> None:
    """Add a legend below the axis, where it hides no line, if any line has a label.

    It has at most ``columns`` columns, and fewer where the figure would cut the last one off.
    """
    handles, labels = axis.get_legend_handles_labels()
    figure = axis.get_figure(root=True)
    if not handles or figure is None:
        return

    with mpl.rc_context(THEME):
        for count in range(columns, 0, -1):
            # "outside" makes room for the legend, however many rows it has.
            legend = figure.legend(
                handles, labels, loc="outside lower left", ncols=count, borderaxespad=0.1
            )
            if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
                return
            legend.remove()


def _encode_svg(figure: Figure) -> str:
    """Return a figure as a data URI; the same figure gives the same text."""
    buffer = io.BytesIO()
    with mpl.rc_context(THEME):
        # The date and matplotlib's version would make every page differ.
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})

    # An <img> with a data URI is inert: nothing inside the SVG can run or fetch.
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/svg+xml;base64,{encoded}"
