"""Charts of lines over time as SVG inside the page: no script, sharp at any size, dark at night.

What belongs here: colours, scaling points to a drawing, ticks, and what a reader sees when pointing
at a step. What does not: which lines a chart has (``report.forecast_page``), markup
(``templates/chart.html``).

A chart is plain data of numbers and text, which the template escapes.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, num2date
from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 440, 264
"""Size of a drawing in its own units: on a phone it is shrunk to 0.8, in two columns widened."""

MOST_STEPS = 400  # steps that can be pointed at; of more, every second, third and so on

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 42, 24
_CLOCK = ["", "%Y", "%b", "%a %d %b", "%H:%M", "%H:%M"]

INK = "#1c2430"
MUTED = "#5b6675"
GRID = "#e3e7ec"
ACCENT = "#0b5cad"
HISTORY = "#8a94a3"
OTHER_BARS = "#b9c3cf"
RED, GREEN, PURPLE, GOLD = "#c8501e", "#1a7f5a", "#9a4bb0", "#b8860b"

METHOD_COLOURS = {
    "compevo": ACCENT,
    "persistence": GOLD,
    "weekly": "#8c6d1f",
    "calendar-ridge": RED,
    "gbm": GREEN,
    "published": PURPLE,
    "published-error-ridge": "#a83250",
    "published-error-gbm": "#4a90c2",
    "own-weather-ridge": "#b5651d",
    "own-weather-gbm": "#00808a",
    "prior": RED,
    "sa": GREEN,
    "mael": GOLD,
    "mae-gpt": PURPLE,
    "mad-rl": RED,
}
_SECOND_COLOURS = ("#4a90c2", "#a83250", "#5f6b2d", "#00808a", "#6b6b6b")
_AGENT_COLOURS = (ACCENT, RED, GREEN, PURPLE, GOLD, *_SECOND_COLOURS)

#: What a chart's colours become on a dark page, with at least 4.5 : 1 for lines and text.
DARK_COLOURS = {
    INK: "#eef2f6",
    MUTED: "#aab4c0",
    GRID: "#343d49",
    HISTORY: "#8a94a3",
    ACCENT: "#6cb2f5",
    RED: "#f08a5a",
    GREEN: "#5cc79b",
    PURPLE: "#d08be4",
    GOLD: "#e0b04a",
    "#4a90c2": "#86c1ea",
    "#a83250": "#ee7f9b",
    "#5f6b2d": "#b3c06b",
    "#00808a": "#4fc3cc",
    "#6b6b6b": "#b5b5b5",
}


def agent_colour(agent: int) -> str:
    """Return the colour of an agent."""
    return _AGENT_COLOURS[agent % len(_AGENT_COLOURS)]


def method_colour(method: str) -> str:
    """Return the colour of a method, the same in every plot."""
    return METHOD_COLOURS.get(method, "#6b7684")


@dataclass(frozen=True, kw_only=True)
class TimeLine:
    """Values over time, NaN where there is none; with ``low`` a band up to the values."""

    name: str
    times: Sequence[datetime]  # on the reader's clock, without a zone
    values: Sequence[float]
    colour: str
    width: float = 1.5
    dash: str = ""
    low: Sequence[float] | None = None
    opacity: float = 1.0
    row: int = 0  # of the text shown at a step


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A finished drawing: paths, ticks by place and text, and the text of each step."""

    label: str  # what it shows, in words
    lines: Sequence[dict[str, Any]]
    y_ticks: Sequence[tuple[float, str]]
    x_ticks: Sequence[tuple[float, str]]
    steps: Sequence[dict[str, Any]]
    border: float | None  # where what is forecast begins
    width: int = WIDTH
    height: int = HEIGHT
    # Left, top, right and bottom of the plot
    box: tuple[int, int, int, int] = (_LEFT, _TOP, WIDTH - _RIGHT, HEIGHT - _BOTTOM)


def draw_chart(
    lines: Sequence[TimeLine],
    label: str,
    *,
    step: timedelta,
    decimals: int,
    clock: str = "%a %H:%M",
    border: datetime | None = None,
    is_clock: bool = False,
) -> Chart:
    """Return lines as a drawing; later lines cover earlier ones, and at least one has a value.

    ``step`` is the distance of two points; ``clock`` names the clock, and numbers have so many
    ``decimals``. A vertical line at the ``border`` separates what was known. With ``is_clock`` the
    times are times of any day, and ticks name no date.
    """
    known = [v for line in lines for v in (*line.values, *(line.low or ())) if np.isfinite(v)]
    y_ticks = MaxNLocator(nbins=5).tick_values(min(known), max(known))
    moments = [moment for line in lines for moment in line.times]
    first, last = min(moments), max(moments) + step

    # matplotlib.dates is not annotated.
    locator = AutoDateLocator(tz=UTC, minticks=4, maxticks=8)  # type: ignore[no-untyped-call]
    formatter = ConciseDateFormatter(locator, tz=UTC, zero_formats=_CLOCK, show_offset=False)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(action="ignore"):  # where no interval suits, as of two years
        places = locator.tick_values(first, last)  # type: ignore[no-untyped-call]
    ticks = [num2date(place, tz=UTC).replace(tzinfo=None) for place in places]  # type: ignore[no-untyped-call]
    texts = [f"{tick:%H:%M}" for tick in ticks]
    if not is_clock:
        texts = formatter.format_ticks(places)  # type: ignore[no-untyped-call]
    x_ticks = zip(ticks, texts, strict=True)

    def place_x(moment: datetime) -> float:
        return round(_LEFT + (moment - first) / (last - first) * (WIDTH - _LEFT - _RIGHT), 1)

    def place_y(value: float) -> float:
        share = (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return round(float(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)), 1)

    return Chart(
        label=label,
        lines=[_draw_line(line, place_x, place_y) for line in lines],
        y_ticks=[(place_y(value), f"{value:,.9g}") for value in y_ticks],
        x_ticks=[(place_x(tick), text) for tick, text in x_ticks if first <= tick <= last],
        steps=_describe_steps(lines, place_x, step, decimals, clock),
        border=None if border is None else place_x(border),
    )


def _draw_line(line: TimeLine, place_x: Any, place_y: Any) -> dict[str, Any]:  # noqa: ANN401
    def place(values: Sequence[float]) -> list[str]:
        pairs = zip(line.times, values, strict=True)
        return [f"{place_x(moment)},{place_y(value)}" for moment, value in pairs]

    upper, lower = place(line.values), [] if line.low is None else place(line.low)
    # A path for each run of values without a gap; a band goes back along its lower bound.
    runs = np.ma.clump_unmasked(np.ma.masked_invalid(line.values))  # type: ignore[no-untyped-call]
    end = "Z" if lower else ""
    parts = ["M" + "L".join(upper[run] + lower[run][::-1]) + end for run in runs]
    style = {"colour": line.colour, "width": line.width, "dash": line.dash}
    return style | {"d": "".join(parts), "opacity": line.opacity, "is_band": line.low is not None}


def _describe_steps(
    lines: Sequence[TimeLine],
    place_x: Any,  # noqa: ANN401
    step: timedelta,
    decimals: int,
    clock: str,
) -> list[dict[str, Any]]:
    """Return the place of each step and the rows of text that are shown there."""
    rows: dict[datetime, dict[int, list[str]]] = {}
    for line in reversed(lines):
        for i, (moment, value) in enumerate(zip(line.times, line.values, strict=True)):
            if np.isfinite(value):
                low = "" if line.low is None else f"{line.low[i]:,.{decimals}f} to "
                text = f"{line.name} {low}{value:,.{decimals}f}"
                rows.setdefault(moment, {}).setdefault(line.row, []).append(text)

    moments = sorted(rows)
    thinning = math.ceil(len(moments) / MOST_STEPS)
    steps = []
    for moment in moments[::thinning]:
        texts = [", ".join(texts) for _, texts in sorted(rows[moment].items())]
        left = place_x(moment)
        wide = round(place_x(moment + thinning * step) - left, 1)
        steps.append(
            {"x": left, "wide": wide, "texts": [f"{moment:{clock}} {texts[0]}", *texts[1:]]}
        )
    return steps
