"""Errors as tables: by method, by region, by ablation variant.

What belongs here: selecting, ordering and labelling result rows. What does not: reading files
(``report.rows``), HTML and Markdown (``report.tables``), sentences about who won
(``report.summaries``), tables of hashes and tests (``report.provenance_tables``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from compevo_core.evaluation.budget_order import rank_budget
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.experiments.ablation import FULL_METHOD
from compevo_core.experiments.controls import CONTROLS
from compevo_core.experiments.systems import SYSTEMS
from compevo_core.report.rows import (
    average_over_seeds,
    drop_agents,
    drop_parts,
    drop_short_fits,
    drop_sweeps,
    is_synthetic,
    select_agents,
    select_pooled,
    select_scope,
)
from compevo_core.report.tables import Table
from compevo_core.report.wording import (
    AGENT,
    NAIVE,
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
REFIT = ", refit"
WITH_UNIT = frozenset({"mae", "rmse"})
# More columns than this cannot be read side by side; traffic has 862 sensors.
MOST_ENTITIES = 12
HIGHLIGHTED_METHODS = frozenset({"compevo"})

Row = Mapping[str, Any]


def headline_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table:
    """Return methods by metrics for one data set and subset, lowest MAE first, without agents."""
    chosen = drop_agents(select_scope(select_pooled(rows), dataset, subset))
    name = scope_name(dataset, subset, synthetic=is_synthetic(chosen))
    return _method_table(rank_methods(chosen), f"{name}: pooled errors")


def agent_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table | None:
    """Return the errors of each agent's own forecasts; None where agents were not scored."""
    chosen = select_agents(select_scope(select_pooled(rows), dataset, subset))
    if chosen.is_empty():
        return None

    records = sorted(average_over_seeds(chosen).to_dicts(), key=_agent_number)
    unit = common_unit(records)
    columns = [
        label_methods(records),
        *(format_column(metric, [row[metric] for row in records]) for metric, _ in METRICS),
        [str(row["seeds"]) for row in records],
    ]
    return Table(
        header=["Agent", *(metric_title(key, label, unit) for key, label in METRICS), "Seeds"],
        rows=list(zip(*columns, strict=True)),
        caption=f"{scope_name(dataset, subset, synthetic=is_synthetic(chosen))}: agents alone",
        best_cells=find_lowest([[row[key] for key, _ in METRICS] for row in records], columns[1:]),
    )


def _agent_number(row: Row) -> tuple[str, int]:
    return row["config_hash"] or "", int(row["method"].removeprefix(AGENT))


def short_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table:
    """Return CompEvo, the best others and the naive one, with the most used metrics only."""
    chosen = drop_parts(select_scope(select_pooled(rows), dataset, subset))
    ranked = rank_methods(chosen)
    # CompEvo is shown wherever it stands: a table without it would answer nobody's question. So is
    # the naive forecast: without it errors of a few percent apart say nothing of their size.
    others = [row for row in ranked if row["method"] not in (*HIGHLIGHTED_METHODS, NAIVE)]
    room = MOST_SHORT_ROWS - (len(ranked) - len(others))
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
        best_cells=find_lowest([[row[key] for key, _ in metrics] for row in records], columns[1:]),
        highlighted_rows=_highlighted(records),
        notes=_notes(records),
    )


def ablation_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table | None:
    """Return the ablation variants of one scope, lowest MAE first; None without any."""
    is_shown = ~pl.col("method").is_in([*CONTROLS, *SYSTEMS])
    title = "ablation under one equal budget"
    return _variant_table(rows.filter(is_shown), dataset, subset, title)


def control_table(rows: pl.DataFrame, dataset: str, subset: str) -> Table | None:
    """Return controls, other systems of agents and the full method; None without any of them."""
    is_shown = pl.col("method").is_in([FULL_METHOD, *CONTROLS, *SYSTEMS])
    title = "controls under the same budget"
    return _variant_table(rows.filter(is_shown), dataset, subset, title)


def _variant_table(rows: pl.DataFrame, dataset: str, subset: str, title: str) -> Table | None:
    chosen = select_scope(select_pooled(rows, ablation=True), dataset, subset)
    # The full method alone is compared with nothing.
    if set(chosen.get_column("method")) <= {FULL_METHOD}:
        return None

    name = scope_name(dataset, subset, synthetic=is_synthetic(chosen))
    return _method_table(rank_methods(chosen), f"{name}: {title}")


def region_table(
    rows: pl.DataFrame, dataset: str, subset: str, metric: str, label: str
) -> Table | None:
    """Return methods by regions for one metric.

    Returns:
        The table; None where there is one entity, or too many to read side by side.
    """
    by_region = drop_short_fits(drop_agents(drop_sweeps(rows))).filter(pl.col("entity") != POOLED)
    chosen = average_over_seeds(select_scope(by_region, dataset, subset))
    entities = sorted(chosen.get_column("entity").unique().to_list())
    if not 2 <= len(entities) <= MOST_ENTITIES:
        return None

    # Methods stand in the order of the headline table, those without a pooled row after them.
    ranked = rank_methods(drop_agents(select_scope(select_pooled(rows), dataset, subset)))
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
        best_cells=find_lowest(grid, columns),
        highlighted_rows=frozenset(i for i, m in enumerate(methods) if m in HIGHLIGHTED_METHODS),
    )


def rank_methods(rows: pl.DataFrame) -> list[Row]:
    """Average rows over seeds and order them by MAE, those without one last."""
    return list(
        average_over_seeds(rows).sort("mae", "method", nulls_last=True).iter_rows(named=True)
    )


def label_methods(records: Sequence[Row]) -> list[str]:
    """Return display names; a method with several budgets or configurations is named with them.

    So is one that had less than a full budget: it stands beside others that had one.
    """
    names = [method_name(row["method"]) + (REFIT if row["refit"] else "") for row in records]
    labels = []
    for name, row in zip(names, records, strict=True):
        if rank_budget(row["budget"]) > rank_budget(None):
            labels.append(f"{name} ({row['budget']} budget)")
        elif names.count(name) > 1:
            labels.append(f"{name} ({row['budget'] or shorten_hash(row['config_hash'])})")
        else:
            labels.append(name)
    return labels


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
        best_cells=find_lowest([[row[key] for key, _ in METRICS] for row in records], columns[1:]),
        highlighted_rows=_highlighted(records),
        notes=_notes(records),
    )


def find_lowest(
    grid: Sequence[Sequence[float | None]], printed: Sequence[Sequence[str]]
) -> frozenset[tuple[int, int]]:
    """Return the cells with the lowest value of each column; column 0 holds the method's name.

    Args:
        grid: values by row and column.
        printed: texts by column and row, of these columns first. What prints alike is marked alike:
            digits that nobody sees are no difference.
    """
    cells: set[tuple[int, int]] = set()
    for column, values in enumerate(zip(*grid, strict=True), start=1):
        rows = [row for row, value in enumerate(values) if value is not None]
        # A single value is the lowest of nothing.
        if len(rows) < 2:
            continue

        texts = printed[column - 1]
        lowest = texts[min(rows, key=lambda row: values[row])]
        cells |= {(row, column) for row in rows if texts[row] == lowest}
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

    notes += _describe_choice(records)
    if any(row["refit"] for row in records):
        notes.append(
            "Refit: trained once more on train and validation together, after validation had made "
            "every choice."
        )
    return notes


def _describe_choice(records: Sequence[Row]) -> list[str]:
    """Say in how many windows a logic could choose; equal for all methods that read as much."""
    shares = {row["news_choice_share"] for row in records if row["news_choice_share"] is not None}
    texts = [
        f"In {format_percent(share)} of these windows a logic had more articles than it may read."
        for share in sorted(shares)
    ]
    if len(texts) < 2:
        return texts

    # Methods that read different numbers of articles: each share with its own.
    return [
        f"{text.removesuffix('.')}: {join_items(_methods_with(records, share))}."
        for text, share in zip(texts, sorted(shares), strict=True)
    ]


def _methods_with(records: Sequence[Row], share: float) -> list[str]:
    names = [method_name(row["method"]) for row in records if row["news_choice_share"] == share]
    return list(dict.fromkeys(names))
