"""Errors as tables: by method, by region, by ablation variant.

What belongs here: selecting, ordering and labelling result rows. What does not: reading files
(``report.rows``), HTML and Markdown (``report.tables``), sentences about who won
(``report.summaries``), tables of hashes and tests (``report.provenance_tables``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from compevo_core.evaluation.result_rows import POOLED
from compevo_core.report.rows import (
    ABLATION,
    average_over_seeds,
    is_synthetic,
    select_pooled,
    select_scope,
)
from compevo_core.report.tables import Table
from compevo_core.report.wording import (
    format_column,
    format_number,
    format_percent,
    join_items,
    method_name,
    scope_name,
    shorten_hash,
)

METRICS = (
    ("mae", "MAE"),
    ("rmse", "RMSE"),
    ("mape_pct", "MAPE %"),
    ("wape_pct", "WAPE %"),
    ("mase", "MASE"),
)
# Rule of the benchmark: how much was masked or left out stands with the errors.
COUNTS = ("n_windows", "n_points", "n_masked", "mape_skipped")
SHORT_METRICS = frozenset({"mae", "rmse", "mape_pct"})
MOST_SHORT_ROWS = 5
WITH_UNIT = frozenset({"mae", "rmse"})
# More columns than this cannot be read side by side; traffic has 862 sensors.
MOST_ENTITIES = 12
HIGHLIGHTED_METHODS = frozenset({"compevo"})

Row = Mapping[str, Any]


def headline_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table:
    """Return methods by metrics for one data set and subset, lowest MAE first."""
    chosen = select_scope(select_pooled(rows), dataset, subset)
    name = scope_name(dataset, subset, synthetic=is_synthetic(chosen))
    return _method_table(rank_methods(chosen), f"{name}: pooled errors")


def short_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table:
    """Return CompEvo and the best other methods of one scope, with the most used metrics only."""
    chosen = select_scope(select_pooled(rows), dataset, subset)
    ranked = rank_methods(chosen)
    others = [row for row in ranked if row["method"] not in HIGHLIGHTED_METHODS]
    room = MOST_SHORT_ROWS - (len(ranked) - len(others))
    # CompEvo is shown wherever it stands; a table without it would answer nobody's question.
    dropped = others[max(room, 0) :]
    records = [row for row in ranked if row not in dropped]

    unit = common_unit(records)
    metrics = [(metric, label) for metric, label in METRICS if metric in SHORT_METRICS]
    columns = [
        label_methods(records),
        *(format_column(metric, [row[metric] for row in records]) for metric, _ in metrics),
        [format_number(row["n_windows"]) for row in records],
        [str(row["seeds"]) for row in records],
    ]
    return Table(
        header=[
            "Method",
            *(metric_title(metric, label, unit) for metric, label in metrics),
            "Windows",
            "Seeds",
        ],
        rows=list(zip(*columns, strict=True)),
        caption=scope_name(dataset, subset, synthetic=is_synthetic(chosen)),
        best_cells=_lowest_of_columns([[row[key] for key, _ in metrics] for row in records]),
        highlighted_rows=_highlighted(records),
        notes=_notes(records),
    )


def ablation_table(rows: pl.DataFrame, dataset: str) -> Table:
    """Return the ablation variants of one data set, lowest MAE first."""
    chosen = select_pooled(rows, ablation=True).filter(pl.col("dataset") == dataset)
    name = scope_name(dataset, "", synthetic=is_synthetic(chosen))
    return _method_table(rank_methods(chosen), f"{name}: ablation under one equal budget")


def region_table(
    rows: pl.DataFrame, dataset: str, subset: str, metric: str, label: str
) -> Table | None:
    """Return methods by regions for one metric.

    Returns:
        The table; None where there is one entity, or too many to read side by side.
    """
    by_region = rows.filter((pl.col("entity") != POOLED) & (pl.col("experiment") != ABLATION))
    chosen = average_over_seeds(select_scope(by_region, dataset, subset))
    entities = sorted(chosen.get_column("entity").unique().to_list())
    if not 2 <= len(entities) <= MOST_ENTITIES:
        return None

    # Methods stand in the order of the headline table, those without a pooled row after them.
    ranked = rank_methods(select_scope(select_pooled(rows), dataset, subset))
    order = [row["method"] for row in ranked]
    present = set(chosen.get_column("method").to_list())
    methods = [name for name in dict.fromkeys(order) if name in present]
    methods += sorted(present - set(order))

    # A method that was not scored in a region leaves a gap, shown as "n/a".
    values = {(row["method"], row["entity"]): row[metric] for row in chosen.to_dicts()}
    grid = [[values.get((method, entity)) for entity in entities] for method in methods]
    columns = [format_column(metric, column) for column in zip(*grid, strict=True)]
    cells = zip(*columns, strict=True)

    name = scope_name(dataset, subset, synthetic=is_synthetic(chosen))
    return Table(
        header=["Method", *entities],
        rows=[[method_name(m), *line] for m, line in zip(methods, cells, strict=True)],
        caption=f"{name}: {label} by region",
        best_cells=_lowest_of_columns(grid),
        highlighted_rows=frozenset(i for i, m in enumerate(methods) if m in HIGHLIGHTED_METHODS),
    )


def rank_methods(rows: pl.DataFrame) -> list[Row]:
    """Average rows over seeds and order them by MAE, those without one last."""
    return list(
        average_over_seeds(rows).sort("mae", "method", nulls_last=True).iter_rows(named=True)
    )


def label_methods(records: Sequence[Row]) -> list[str]:
    """Return display names; a method in several configurations is named with the configuration."""
    names = [method_name(row["method"]) for row in records]
    return [
        f"{name} ({shorten_hash(row['config_hash'])})" if names.count(name) > 1 else name
        for name, row in zip(names, records, strict=True)
    ]


def common_unit(records: Sequence[Row]) -> str:
    """Return the unit of all rows; empty where they differ or have none."""
    units = {row["unit"] for row in records if row["unit"]}
    return units.pop() if len(units) == 1 else ""


def metric_title(metric: str, label: str, unit: str) -> str:
    """Return the column title of a metric, with its unit if it has one."""
    return f"{label} {unit}" if metric in WITH_UNIT and unit else label


def _method_table(records: Sequence[Row], caption: str) -> Table:
    unit = common_unit(records)
    errors = [metric_title(metric, label, unit) for metric, label in METRICS]
    header = ["Method", *errors, "Windows", "Points", "Masked", "Not in MAPE", "Seeds"]

    columns = [
        label_methods(records),
        *(format_column(metric, [row[metric] for row in records]) for metric, _ in METRICS),
        *([format_number(row[count]) for row in records] for count in COUNTS),
        [_describe_seeds(row) for row in records],
    ]
    return Table(
        header=header,
        rows=list(zip(*columns, strict=True)),
        caption=caption,
        wrap_columns=frozenset({len(header) - 1}),
        best_cells=_lowest_of_columns([[row[key] for key, _ in METRICS] for row in records]),
        highlighted_rows=_highlighted(records),
        notes=_notes(records),
    )


def _lowest_of_columns(grid: Sequence[Sequence[float | None]]) -> frozenset[tuple[int, int]]:
    """Return the cells with the lowest value of each column; column 0 holds the method's name."""
    cells: set[tuple[int, int]] = set()
    for column, values in enumerate(zip(*grid, strict=True), start=1):
        present = [value for value in values if value is not None]
        # A single value is the lowest of nothing.
        if len(present) < 2:
            continue

        lowest = min(present)
        cells |= {(row, column) for row, value in enumerate(values) if value == lowest}
    return frozenset(cells)


def _highlighted(records: Sequence[Row]) -> frozenset[int]:
    return frozenset(i for i, row in enumerate(records) if row["method"] in HIGHLIGHTED_METHODS)


def _describe_seeds(row: Row) -> str:
    # The range stands with the mean, so that no difference within it is taken for a result.
    if row["seeds"] == 1:
        return "1"
    low, high = format_number(row["mae_low"]), format_number(row["mae_high"])
    return f"{row['seeds']} (MAE {low} to {high})"


def _notes(records: Sequence[Row]) -> list[str]:
    """Return what a reader must know about the rows: MAPE's threshold, leaks, unread answers."""
    notes = []

    thresholds = {row["mape_threshold"] for row in records if row["mape_threshold"] is not None}
    if thresholds:
        values = join_items([f"{value:g}" for value in sorted(thresholds)])
        notes.append(f"MAPE leaves out actual values below {values} in size.")

    for key, text in (
        ("leaky", "Made with a leaky prompt"),
        ("possibly_memorised", "The backbone may have memorised this period"),
    ):
        names = [method_name(row["method"]) for row in records if row[key]]
        if names:
            notes.append(f"{text}: {join_items(list(dict.fromkeys(names)))}.")

    # Only methods that answer in text can fail to be parsed; a rate of zero is not worth a note.
    unread = [
        f"{method_name(row['method'])} {format_percent(row['parse_failure_rate'])}"
        for row in records
        if row["parse_failure_rate"]
    ]
    if unread:
        notes.append(
            f"Answers that could not be parsed; the fallback is scored: {join_items(unread)}."
        )
    return notes
