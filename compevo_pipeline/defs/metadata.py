"""Metadata of materializations: counts, column schemas, tables, drawings, escaped text.

What belongs here: turning frames, numbers and strangers' text into what Dagster's pages show. What
does not: computing what is shown, deciding what an asset shows (its own module does). A sketch is a
drawing so small that the UI shows it without a click, also while a training still runs.
"""

import base64
import html
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from compevo_core.data.schemas import COLUMN_MEANINGS
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast.issued import IssuedForecast
from compevo_core.report.tomorrow import ForecastDay
from compevo_core.training.round_record import RoundRecord

if TYPE_CHECKING:
    from compevo_core.report.tables import Table

_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#!|~])")
_ADDRESS = re.compile(r"(?i)(https?|ftp|www)([:.])")


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is: no image, link or markup of it takes effect."""
    escaped = _MARKUP.sub(r"\\\1", " ".join(text.split()))
    # An address becomes a link even without brackets; a zero-width space breaks it.
    return _ADDRESS.sub("\\1\u200b\\2", escaped)


PREVIEW_ROWS = 5
MAX_SCORE_ROWS = 40

_ERRORS = ("mae", "rmse", "mape_pct", "wape_pct", "mase")
SCORE_COLUMNS = ("method", "subset", "n_windows", *_ERRORS, "unit")  # shown; the CSV holds all
_MAX_CELL_CHARACTERS = 60
MOST_SERIES = 6  # series of a forecast whose charts are shown, the first ones of the record


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
    """Return the pooled errors of result rows as a table, and the CSV they are in."""
    pooled = rows.filter(pl.col("entity") == POOLED)

    # The most wanted columns come first: the UI keeps the order.
    return {
        "pooled": render_table(pooled.select(SCORE_COLUMNS), rows=MAX_SCORE_ROWS),
        "synthetic": bool(rows["synthetic"].any()),
        # Without their columns, which the documentation has: the UI would show them first.
        "dagster/row_count": rows.height,
        "rows": dg.MetadataValue.path(path),
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


def render_columns(table: "Table", columns: Collection[str]) -> dg.MetadataValue[Any]:
    """Return the first column of a table of the report and those named, as far as it has them.

    A page cuts off what is wider than some seven short columns: a wide table becomes several.
    """
    shown = [name for name in table.header[1:] if name in columns]
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    names = [table.header[0], *shown]
    return _make_table(names, [{name: row[name] for name in names} for row in rows])


def render_preview(frame: pl.DataFrame) -> dg.MetadataValue[Any]:
    """Return three rows of a frame side by side, for more columns than a page shows."""
    first = list(enumerate(frame.head(3).iter_rows(named=True), start=1))
    records: list[dict[str, str | float | bool]] = [
        {"column": name, **{f"row {number}": _render_cell(row[name]) for number, row in first}}
        for name in frame.columns
    ]
    return _make_table(["column", *(f"row {number}" for number, _ in first)], records)


def render_counts(values: Mapping[str, object], title: str = "count") -> dg.MetadataValue[Any]:
    """Return named numbers, or other values under a title, as a table."""
    records = [{"name": name, title: _render_cell(value)} for name, value in values.items()]
    return _make_table(["name", title], records)


def render_feeds(counts: Mapping[str, Mapping[str, int]]) -> dg.MetadataValue[Any]:
    """Return what was read from each feed, in words, as a table."""
    records = [
        {"feed": feed, "read": ", ".join(f"{count:,} {what}" for what, count in of_feed.items())}
        for feed, of_feed in counts.items()
    ]
    return _make_table(["feed", "read"], records)


def _make_table(
    columns: Sequence[str], records: Sequence[Mapping[str, str | float | bool]]
) -> dg.MetadataValue[Any]:
    # Cells are text to the UI: news and names in them are not Markdown and load no address.
    return dg.MetadataValue.table(
        [dg.TableRecord(record) for record in records],
        dg.TableSchema([dg.TableColumn(name) for name in columns]),
    )


def _render_cell(value: object) -> str | float | bool:
    if isinstance(value, bool | int):
        return value
    # As text: a table of the UI knows no NaN, and would show 15 digits.
    if isinstance(value, float):
        return f"{value:.6g}"

    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_CELL_CHARACTERS else text[: _MAX_CELL_CHARACTERS - 1] + "…"


_SHOWN_AT_ONCE = 1000  # characters of Markdown; the UI hides a longer text behind a click
_MOST_POINTS = 60
_INKS = (("blue", "#06c"), ("grey", "#999"), ("red", "#c30"))


def render_sketch(
    lines: Mapping[str, Sequence[float | None]], ends: tuple[object, object]
) -> dg.MetadataValue[Any]:
    """Return up to three lines, by name, as a small drawing that the UI shows without a click.

    Values are at equal steps, from the first to the last of ``ends``; missing ones are left out.
    """
    known = {
        name: [v for v in values if v is not None and not math.isnan(v)]
        for name, values in lines.items()
    }
    values = [value for line in known.values() for value in line]
    named = ", ".join(
        f"{escape_markdown(name)} ({colour})"
        for name, (colour, _) in zip(known, _INKS, strict=False)
    )
    if not values:
        return dg.MetadataValue.md(f"{named}; no values yet")

    # The UI hides a longer text behind a click: the drawing takes as many points as fit.
    for points in range(_MOST_POINTS, 1, -1):
        svg = _draw_svg(known, ends, points).encode()
        encoded = base64.b64encode(svg).decode("ascii")
        drawn = f"![](data:image/svg+xml;base64,{encoded})\n\n{named}"
        if len(drawn) < _SHOWN_AT_ONCE:
            return dg.MetadataValue.md(drawn)
    return dg.MetadataValue.md(f"{named}; {min(values):.4g} to {max(values):.4g}")


def _draw_svg(
    lines: Mapping[str, Sequence[float]], ends: tuple[object, object], points: int
) -> str:
    """Return lines as SVG: each thinned to so many points, all on one scale, between two axes."""
    width, height = 240, 60
    values = [value for line in lines.values() for value in line]
    low, high = min(values), max(values)
    scale = (height - 4) / ((high - low) or 1.0)

    paths = []
    for (_, colour), line in zip(_INKS, lines.values(), strict=False):
        count = min(points, len(line))
        picked = [line[round(i * (len(line) - 1) / max(1, count - 1))] for i in range(count)]
        corners = [
            f"{round(i * width / max(1, count - 1))},{round(height - 2 - (value - low) * scale)}"
            for i, value in enumerate(picked)
        ]
        paths.append(f'<polyline stroke="{colour}" points="{" ".join(corners)}"/>')

    # The extremes next to one axis, the first and the last step below the other.
    below = height + 11
    labels = [
        f'<text x="-3" y="9">{high:.4g}</text>',
        f'<text x="-3" y="{height}">{low:.4g}</text>',
        f'<text y="{below}" text-anchor="start">{html.escape(str(ends[0]))}</text>',
        f'<text x="{width}" y="{below}">{html.escape(str(ends[1]))}</text>',
    ]
    axes = f'<path d="M0 0V{height}H{width}" stroke="#ccc"/>'
    style = 'font-size="10" font-family="sans-serif" fill="#888" text-anchor="end"'
    text = f"<g {style}>{''.join(labels)}</g>"
    box = f'viewBox="-44 -2 {width + 46} {height + 18}" width="340"'
    drawn = f"{axes}{text}{''.join(paths)}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} fill="none">{drawn}</svg>'


def sketch_validation(records: Sequence[RoundRecord]) -> dg.MetadataValue[Any]:
    """Return a drawing of the scaled validation MAE by round, of population and prior."""
    return render_sketch(
        {
            "population": [record.val_mae_scaled for record in records],
            "prior": [record.val_prior_mae_scaled for record in records],
        },
        ends=("round 1", f"round {len(records)}"),
    )


def render_day(issued: IssuedForecast) -> dg.MetadataValue[Any]:
    """Return bands, members, yesterday as it was known, and the published forecast, by series."""
    # Drawing takes a second to import.
    from compevo_core.report.forecast_page import chart_series, render_chart

    day = ForecastDay(issued=issued)
    parts = []
    for entity in issued.entities[:MOST_SERIES]:
        svg = render_chart(chart_series(day, entity)).encode()
        encoded = base64.b64encode(svg).decode("ascii")
        name = escape_markdown(entity)
        parts.append(f"**{name}**\n\n![{name}](data:image/svg+xml;base64,{encoded})")
    return dg.MetadataValue.md("\n\n".join(parts))
