"""Cells of the paper's tables: own figures and published ones in columns of equal decimals.

What belongs here: formatting, what an empty cell says. What does not: which figures stand in a
table (the other modules of ``report.paper``).
"""

from collections.abc import Mapping, Sequence
from math import log10
from typing import NamedTuple

import polars as pl

from compevo_core.report.paper.published import Published, find_published
from compevo_core.report.paper.scores import METRICS, Score
from compevo_core.report.rows import is_synthetic, select_pooled, select_scope
from compevo_core.report.tables import Table
from compevo_core.report.wording import MISSING, format_column, scope_name

NO_ROW = "no row"
NOT_PRINTED = "-"
WITH_UNIT = frozenset({"mae", "rmse"})
TITLES = {"mae": "MAE", "mse": "MSE", "rmse": "RMSE", "mape_pct": "MAPE %"}


class Line(NamedTuple):
    """What one line of a table compares.

    Attributes:
        name: its first cell.
        score: own score; None where no row exists.
        published: the published figures by metric.
    """

    name: str
    score: Score | None
    published: Mapping[str, Published]


def title_scope(rows: pl.DataFrame, dataset: str, subset: str) -> str:
    """Return the name of test windows, which says where their data is made up."""
    # A table may be read alone.
    chosen = select_scope(select_pooled(rows), dataset, subset)
    return scope_name(dataset, subset, synthetic=is_synthetic(chosen))


def find_line(name: str, score: Score | None, label: str, dataset: str, subject: str) -> Line:
    """Return a line with the figures that a table of the paper has of a subject."""
    figures = {metric: find_published(label, dataset, subject, metric) for metric in METRICS}
    return Line(name, score, {metric: one for metric, one in figures.items() if one is not None})


def error_table(
    lines: Sequence[Line],
    caption: str,
    *,
    first: str = "Method",
    notes: Sequence[str] = (),
    highlighted: frozenset[int] = frozenset(),
) -> Table:
    """Return lines as a table: for each metric own mean and spread, then the published figure.

    Columns of published figures are left out where no line has any.
    """
    units = {line.score.unit for line in lines if line.score}
    unit = units.pop() if len(units) == 1 else ""
    has_published = any(line.published for line in lines)

    header, columns = [first], [[line.name for line in lines]]
    # Own and published figures are ranked apart: they are of other windows.
    best: set[tuple[int, int]] = set()
    for metric in METRICS:
        own = {i: line.score.mean.get(metric) for i, line in enumerate(lines) if line.score}
        # What prints alike is marked alike: digits that nobody sees are no difference.
        printed_means = format_column(metric, [own.get(i) for i in range(len(lines))])
        best |= {(i, len(header)) for i in _find_least(own, printed_means)}
        header.append(f"{TITLES[metric]} {unit}".strip() if metric in WITH_UNIT else TITLES[metric])
        columns.append(_own_column(lines, metric))
        if has_published:
            printed = {
                i: one.published[metric].value
                for i, one in enumerate(lines)
                if metric in one.published
            }
            texts = [str(printed.get(i, "")) for i in range(len(lines))]
            best |= {(i, len(header)) for i in _find_least(printed, texts)}
            header.append(f"{TITLES[metric]}, paper")
            columns.append(_published_column(lines, metric))

    header.append("Seeds")
    columns.append([_describe_seeds(line.score) for line in lines])
    return Table(
        header=header,
        rows=[list(cells) for cells in zip(*columns, strict=True)],
        caption=caption,
        wrap_columns=frozenset(range(1, len(header) - 1)),
        best_cells=frozenset(best),
        highlighted_rows=highlighted,
        notes=notes,
    )


def _describe_seeds(score: Score | None) -> str:
    if score is None:
        return ""
    # A row of another budget than the usual one must not pass for one of it.
    small = score.budget not in ("", "standard")
    return f"{score.seeds}, {score.budget} budget" if small else str(score.seeds)


def _find_least(values: Mapping[int, float | None], texts: Sequence[str]) -> list[int]:
    known = {i: value for i, value in values.items() if value is not None}
    # A single value is the least of nothing.
    if len(known) < 2:
        return []
    least = texts[min(known, key=lambda i: known[i])]
    return [i for i in known if texts[i] == least]


def _own_column(lines: Sequence[Line], metric: str) -> list[str]:
    means = [line.score.mean.get(metric) if line.score else None for line in lines]
    spreads = [line.score.spread.get(metric) if line.score else None for line in lines]
    # Formatted together: a spread with other decimals than its mean cannot be read beside it.
    texts = format_column(metric, [*means, *spreads])
    mean_texts, spread_texts = texts[: len(lines)], texts[len(lines) :]
    cells = []
    for line, mean, spread in zip(lines, mean_texts, spread_texts, strict=True):
        if line.score is None:
            cells.append(NO_ROW)
        else:
            cells.append(mean if spread == MISSING else f"{mean} ± {spread}")
    return cells


def _published_column(lines: Sequence[Line], metric: str) -> list[str]:
    figures = [line.published.get(metric) for line in lines]
    return [NOT_PRINTED if one is None else format_published(one) for one in figures]


def format_published(figure: Published) -> str:
    """Return a printed figure in the unit of the series, with its spread."""
    digits = len(figure.printed.partition(".")[2])
    text = _write_scaled(float(figure.printed), digits, figure.scale)
    if not figure.spread:
        return text
    return f"{text} ± {_write_scaled(float(figure.spread), digits, figure.scale)}"


def _write_scaled(printed: float, digits: int, scale: float) -> str:
    """Write a scaled value with the digits that were printed, and no more."""
    # 35.0e-6 with its one digit is 0.000035: more digits would claim what was not printed.
    shift = round(log10(scale))
    return f"{printed * 10.0**shift:,.{max(digits - shift, 0)}f}"


def format_share(share: float | None) -> str:
    """Return a share as a percentage with its sign; empty says that it cannot be computed."""
    return MISSING if share is None else f"{100 * share:+.1f} %"
