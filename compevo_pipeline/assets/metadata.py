"""Metadata of materializations: row counts, column schemas, previews as tables, plots as images.

What belongs here: turning frames and numbers into Dagster metadata. What does not: computing what
is shown, deciding what an asset shows (its own module does).
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from compevo_core.data.schemas import COLUMN_MEANINGS
from compevo_core.evaluation.result_rows import POOLED
from compevo_pipeline.markdown import escape_markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREVIEW_ROWS = 5
MAX_SCORE_ROWS = 40
LABEL_POINTS = 8
TICK_POINTS = 7

SCORE_COLUMNS = (
    *("method", "subset", "n_windows"),
    *("mae", "rmse", "mape_pct", "wape_pct", "mase", "unit"),
)
"""Columns of result rows that the UI shows; the CSV holds all of them."""

_MAX_CELL_CHARACTERS = 60
_PLOT_DPI = 90


def describe_table(frame: pl.DataFrame) -> dict[str, Any]:
    """Return the row count and the column schema of a frame under Dagster's own names.

    The catalog, the asset's overview and its row-count plot read these two keys.
    """
    return {
        "dagster/row_count": frame.height,
        "dagster/column_schema": make_column_schema(frame.schema),
    }


def make_column_schema(schema: Mapping[str, pl.DataType]) -> dg.TableSchema:
    """Return Dagster's schema of polars columns, with the meaning of those in a frame contract."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(name, type=str(dtype), description=COLUMN_MEANINGS.get(name))
            for name, dtype in schema.items()
        ]
    )


def describe_scores(rows: pl.DataFrame, path: Path) -> dict[str, Any]:
    """Return the metadata of result rows: pooled errors as a table and as bars.

    Args:
        rows: result rows of one or more methods.
        path: the CSV they were written to.
    """
    pooled = rows.filter(pl.col("entity") == POOLED)

    def draw(axes: "Axes") -> None:
        names = pooled.select("method", "subset").iter_rows()
        labels = [f"{method}\n{subset}" for method, subset in names]
        # Horizontal, because names of methods and subsets are long.
        axes.barh(range(len(labels)), pooled["mae"].to_numpy())
        axes.set_yticks(range(len(labels)), labels, fontsize=6)
        axes.set_xlabel(f"MAE, {pooled['unit'][0]}", fontsize=LABEL_POINTS)

    # What one looks for comes first: the UI keeps the order.
    return {
        "pooled": render_table(pooled.select(SCORE_COLUMNS), rows=MAX_SCORE_ROWS),
        "synthetic": bool(rows["synthetic"].any()),
        # Without their columns, which the documentation has: the UI would show them first.
        "dagster/row_count": rows.height,
        "rows": link_path(path),
        # A bar a method: the plot grows with their number, or labels would overlap.
        "plot": render_plot(draw, "Mean absolute error", height=max(2.0, 0.35 * pooled.height)),
    }


def render_table(frame: pl.DataFrame, rows: int = PREVIEW_ROWS) -> dg.MetadataValue[Any]:
    """Return the first rows of a frame as a table, which the UI shows without a click."""
    records: list[Mapping[str, str | float | bool]] = [
        {name: _render_cell(value) for name, value in row.items()}
        for row in frame.head(rows).iter_rows(named=True)
    ]
    if frame.height > rows and frame.columns:
        left_out = f"{frame.height - rows:,} more rows"
        records.append(dict.fromkeys(frame.columns, "") | {frame.columns[0]: left_out})
    return _make_table(frame.columns, records)


def render_counts(numbers: Mapping[str, object]) -> dg.MetadataValue[Any]:
    """Return named numbers as a table."""
    records = [{"name": name, "count": _render_cell(value)} for name, value in numbers.items()]
    return _make_table(["name", "count"], records)


def _make_table(
    columns: Sequence[str], records: Sequence[Mapping[str, str | float | bool]]
) -> dg.MetadataValue[Any]:
    # Cells are text to the UI: news and names in them are no Markdown and load no address.
    return dg.MetadataValue.table(
        [dg.TableRecord(record) for record in records],
        dg.TableSchema([dg.TableColumn(name) for name in columns]),
    )


def render_plot(
    draw: Callable[["Axes"], None], title: str, *, width: float = 8.0, height: float = 3.0
) -> dg.MetadataValue[Any]:
    """Return a plot as a PNG inside Markdown, which the UI shows with the asset.

    Args:
        draw: draws on the axes it is given.
        title: title above the plot.
        width: inches.
        height: inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own instead of pyplot, whose global state is not safe in threads of Dagster.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()

    draw(axes)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return render_figure(figure, title)


def render_figure(figure: "Figure", title: str) -> dg.MetadataValue[Any]:
    """Return a drawn figure as a PNG inside Markdown, which the UI shows with the asset."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_PLOT_DPI)
    # Embedded: the UI serves no files of a run.
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return dg.MetadataValue.md(f"![{escape_markdown(title)}](data:image/png;base64,{encoded})")


def link_path(path: Path) -> dg.MetadataValue[Any]:
    """Return a file or folder as metadata."""
    return dg.MetadataValue.path(str(path))


def _render_cell(value: object) -> str | float | bool:
    if isinstance(value, bool | int):
        return value
    # As text: a table of the UI knows no NaN, and would show 15 digits.
    if isinstance(value, float):
        return f"{value:.6g}"

    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_CELL_CHARACTERS else text[: _MAX_CELL_CHARACTERS - 1] + "…"
