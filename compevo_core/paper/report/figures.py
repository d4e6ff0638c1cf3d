"""The common look of all plots, and plots as images inside the page.

What belongs here: line styles, an axis with its lines, title and legend, encoding a plot as SVG.
What does not: fonts and sizes (``templates/figures.mplstyle``), colours (``report.charts``), what
is plotted (``paper.report``), the markup of an image (``templates/macros.html``).
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compevo_core.paper.report.inputs import method_name
from compevo_core.report.charts import GRID, INK, MUTED, agent_colour, method_colour

_STYLE = resources.files("compevo_core.paper.report") / "templates" / "figures.mplstyle"
#: matplotlib's settings while a figure is made or saved.
THEME: Any = {
    **mpl.rc_params_from_file(str(_STYLE), use_default_template=False),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), GRID),
    "text.color": INK,
}

# Inches: a plot in two columns of the page, and one in three.
HALF = (5.0, 3.1)
THIRD = (3.6, 2.8)

_AGENT_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 2, 1, 2)))

#: Options of matplotlib by name.
Style = dict[str, Any]
MARKED: Style = {"marker": "o", "markersize": 3.5}


@dataclass(frozen=True)
class Plot:
    """A plot that is drawn on request, and a text for readers who cannot see it."""

    fill: Callable[[Axes], None]  # draws on the only axis of a new figure
    alt: str  # what the plot shows, in words
    size: tuple[float, float]  # width and height in inches
    projection: str | None = None  # of the axis, if it is not flat

    def draw(self) -> Axes:
        """Return the filled axis of a new figure in the project's look."""
        with mpl.rc_context(THEME):
            figure = Figure(figsize=self.size, layout="constrained")
            axis: Axes = figure.add_subplot(projection=self.projection)
        # matplotlib would write a shared power of ten above the axis, where the title is.
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.9g}")
        self.fill(axis)
        return axis

    @property
    def source(self) -> str:
        """The plot as an SVG in a data URI; the same plot gives the same text."""
        buffer, figure = io.BytesIO(), get_figure(self.draw())
        with mpl.rc_context(THEME):
            # The date and matplotlib's version would make every page differ.
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        # An <img> with a data URI is inert: nothing inside the SVG can run or fetch.
        encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
        return f"data:image/svg+xml;base64,{encoded}"


@dataclass(frozen=True)
class Picture:
    """Plots under one caption, side by side in ``columns`` columns if the screen is wide enough.

    Every plot is an image of its own, so that a narrow screen can stack them at a readable size.
    Without a caption, the template gives one.
    """

    plots: Sequence[Plot]
    caption: str = ""
    columns: int = 1


@dataclass(frozen=True)
class Line:
    """Points of a line, its look and, if any, a band; None is left out, a NaN breaks the line."""

    x: Sequence[Any]
    y: Sequence[float | None]
    style: Mapping[str, Any] = field(default_factory=dict)
    band: tuple[Sequence[float], Sequence[float]] | None = None


def plot_lines(
    lines: Sequence[Line],
    alt: str,
    *,
    size: tuple[float, float],
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    is_counted: bool = True,
    legend_columns: int = 3,
    finish: Callable[[Axes], object] | None = None,
) -> Plot:
    """Plot lines on one axis in the project's look; a line without values has no legend entry.

    ``alt`` says in words what the plot shows, ``size`` is in inches, ``is_counted`` says whether
    the horizontal axis counts something, such as rounds, and ``finish`` adds to the axis.
    """

    def fill(axis: Axes) -> None:
        for line in lines:
            points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
            if not points:
                continue
            # A line of one point is invisible without a marker.
            marker: Style = {"marker": "o"} if len(points) == 1 else {}
            axis.plot(*zip(*points, strict=True), **(marker | dict(line.style)))
            if line.band is not None:
                area: Style = {"color": line.style["color"], "alpha": 0.15, "linewidth": 0}
                axis.fill_between(line.x, *line.band, **area)

        with mpl.rc_context(THEME):
            axis.set_title(title)
        axis.set(xlabel=x_label, ylabel=y_label)
        if is_counted:
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(axis, columns=legend_columns)
        if finish:
            finish(axis)

    return Plot(fill, alt, size)


def add_legend(axis: Axes, *, columns: int = 3) -> None:
    """Add a legend below the axis, of as many columns as fit, if any line has a label."""
    handles, labels = axis.get_legend_handles_labels()
    figure = get_figure(axis)
    if not handles:
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


def get_figure(axis: Axes) -> Figure:
    """Return the figure that an axis is part of."""
    figure = axis.get_figure(root=True)
    assert figure is not None  # noqa: S101 - every axis here was made with its figure
    return figure


def agent_style(agent: int) -> Style:
    """Return an agent's line style: colour and dash differ, for print and colour-blind readers."""
    dash = _AGENT_DASHES[agent % len(_AGENT_DASHES)]
    return {"color": agent_colour(agent), "linestyle": dash, "label": f"agent {agent}"}


def method_style(method: str) -> Style:
    """Return the line style of a method: CompEvo is drawn on top and is the thickest."""
    is_compevo = method == "compevo"
    return {
        "color": method_colour(method),
        "label": method_name(method),
        "linewidth": 2.2 if is_compevo else 1.4,
        "zorder": 3 if is_compevo else 2,
    }
