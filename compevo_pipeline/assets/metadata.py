"""What assets show in the UI: previews as tables, plots as images.

What belongs here: turning frames and arrays into Dagster metadata. What does not: choosing what to show, computing it.
"""

import base64
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OWNERS = ["team:forecasting"]
PREVIEW_ROWS = 5
_CELL = 60


def table(frame: pl.DataFrame, rows: int = PREVIEW_ROWS) -> dg.MetadataValue[Any]:
    """The first rows as a Markdown table."""
    shown = frame.head(rows)
    lines = ["| " + " | ".join(shown.columns) + " |", "|" + " --- |" * shown.width]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in shown.iter_rows()]
    if frame.height > rows:
        lines.append(f"\n{frame.height - rows:,} more rows")
    return dg.MetadataValue.md("\n".join(lines))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def counts(numbers: Mapping[str, object]) -> dg.MetadataValue[Any]:
    """Names and numbers as a Markdown table."""
    lines = [
        "| what | count |",
        "| --- | ---: |",
        *(f"| {name} | {value} |" for name, value in numbers.items()),
    ]
    return dg.MetadataValue.md("\n".join(lines))


def plot(
    draw: Callable[["Axes"], None], title: str, *, width: float = 8.0, height: float = 3.0
) -> dg.MetadataValue[Any]:
    """A PNG inside Markdown, which the UI shows beside the asset."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return dg.MetadataValue.md(f"![{title}](data:image/png;base64,{encoded})")


def path(where: Path) -> dg.MetadataValue[Any]:
    """A file or folder."""
    return dg.MetadataValue.path(str(where))
