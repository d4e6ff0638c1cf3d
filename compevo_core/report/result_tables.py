"""Result rows as tables: by method, by region, ablation, identity, checks.

What belongs here: picking, ordering and labelling rows.
What does not: reading files, HTML, sentences about who won (``verdict``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from compevo_core.durations import describe_duration
from compevo_core.report.rows import ABLATION, POOLED, in_scope, is_synthetic, over_seeds, pooled
from compevo_core.report.tables import Table
from compevo_core.report.wording import (
    MISSING,
    column,
    listed,
    method_name,
    number,
    percent,
    scope_name,
    short,
)

METRICS = (
    ("mae", "MAE"),
    ("rmse", "RMSE"),
    ("mape_pct", "MAPE %"),
    ("wape_pct", "WAPE %"),
    ("mase", "MASE"),
)
MOST_ENTITIES = 12
OWN_METHODS = frozenset({"compevo"})
Row = Mapping[str, Any]


def headline(rows: pl.DataFrame, dataset: str, subset: str) -> Table:
    """Method by metric for one data set and subset, best MAE first."""
    chosen = in_scope(pooled(rows), dataset, subset)
    return _method_table(
        _ranked(chosen),
        f"{scope_name(dataset, subset, synthetic=is_synthetic(chosen))}: pooled errors",
    )


def ablation(rows: pl.DataFrame, dataset: str) -> Table:
    """Ablation variants of one data set under one budget, best MAE first."""
    chosen = pooled(rows, ablation=True).filter(pl.col("dataset") == dataset)
    return _method_table(
        _ranked(chosen),
        f"{scope_name(dataset, '', synthetic=is_synthetic(chosen))}: ablation under one equal budget",
    )


def _ranked(rows: pl.DataFrame) -> list[Row]:
    return list(over_seeds(rows).sort("mae", "method", nulls_last=True).iter_rows(named=True))


def _method_table(records: Sequence[Row], caption: str) -> Table:
    unit = _units(records)
    errors = [
        f"{label} {unit}" if key in ("mae", "rmse") and unit else label for key, label in METRICS
    ]
    columns = [column(key, [row[key] for row in records]) for key, _ in METRICS]
    counts = [
        [number(row[key]) for row in records]
        for key in ("n_windows", "n_points", "n_masked", "mape_skipped")
    ]
    header = ["Method", *errors, "Windows", "Points", "Masked", "Not in MAPE", "Seeds"]
    return Table(
        header=header,
        wrap_columns=frozenset({len(header) - 1}),
        rows=[
            list(cells)
            for cells in zip(_labels(records), *columns, *counts, map(_seeds, records), strict=True)
        ],
        caption=caption,
        best=_best(records),
        own=_own(records),
        notes=_notes(records),
    )


def _units(records: Sequence[Row]) -> str:
    units = {row["unit"] for row in records if row["unit"]}
    return units.pop() if len(units) == 1 else ""


def _labels(records: Sequence[Row]) -> list[str]:
    """Display names; where one method stands in several configurations, the configuration is named too."""
    names = [method_name(row["method"]) for row in records]
    return [
        f"{name} ({short(row['config_hash'])})" if names.count(name) > 1 else name
        for name, row in zip(names, records, strict=True)
    ]


def _own(records: Sequence[Row]) -> frozenset[int]:
    return frozenset(i for i, row in enumerate(records) if row["method"] in OWN_METHODS)


def _best(records: Sequence[Row]) -> frozenset[tuple[int, int]]:
    marks: set[tuple[int, int]] = set()
    for place, (key, _) in enumerate(METRICS, start=1):
        values = [row[key] for row in records if row[key] is not None]
        if len(values) > 1:
            marks |= {(i, place) for i, row in enumerate(records) if row[key] == min(values)}
    return frozenset(marks)


def _seeds(row: Row) -> str:
    if row["seeds"] == 1:
        return "1"
    return f"{row['seeds']} (MAE {number(row['mae_low'])} to {number(row['mae_high'])})"


def _notes(records: Sequence[Row]) -> list[str]:
    thresholds = sorted(
        {row["mape_threshold"] for row in records if row["mape_threshold"] is not None}
    )
    notes = (
        [f"MAPE leaves out truths below {listed([f'{one:g}' for one in thresholds])} in size."]
        if thresholds
        else []
    )
    for key, text in (
        ("leaky", "Made with a leaky prompt"),
        ("possibly_memorised", "Backbone may have memorised this period"),
    ):
        named = list(dict.fromkeys(method_name(row["method"]) for row in records if row[key]))
        if named:
            notes.append(f"{text}: {listed(named)}.")
    unreadable = [
        f"{method_name(row['method'])} {percent(row['parse_failure_rate'])}"
        for row in records
        if row["parse_failure_rate"]
    ]
    if unreadable:
        notes.append(
            f"Answers that could not be read, their fallback scored: {listed(unreadable)}."
        )
    return notes


def by_entity(
    rows: pl.DataFrame, dataset: str, subset: str, metric: str, label: str
) -> Table | None:
    """Method by region for one metric; None where there is one entity, or too many to read."""
    chosen = over_seeds(
        in_scope(
            rows.filter((pl.col("entity") != POOLED) & (pl.col("experiment") != ABLATION)),
            dataset,
            subset,
        )
    )
    entities = sorted(chosen.get_column("entity").unique().to_list())
    if not 2 <= len(entities) <= MOST_ENTITIES:
        return None
    order = [row["method"] for row in _ranked(in_scope(pooled(rows), dataset, subset))]
    found = set(chosen.get_column("method").to_list())
    methods = [m for m in dict.fromkeys(order) if m in found] + sorted(found - set(order))
    value = {(row["method"], row["entity"]): row[metric] for row in chosen.to_dicts()}
    grid: list[list[float | None]] = [
        [value.get((method, entity)) for entity in entities] for method in methods
    ]
    shown = zip(*(column(metric, line) for line in zip(*grid, strict=True)), strict=True)
    return Table(
        header=["Method", *entities],
        rows=[[method_name(m), *line] for m, line in zip(methods, shown, strict=True)],
        caption=f"{scope_name(dataset, subset, synthetic=is_synthetic(chosen))}: {label} by region",
        best=_best_of_columns(grid),
        own=frozenset(i for i, m in enumerate(methods) if m in OWN_METHODS),
    )


def _best_of_columns(grid: Sequence[Sequence[float | None]]) -> frozenset[tuple[int, int]]:
    marks: set[tuple[int, int]] = set()
    for place, values in enumerate(zip(*grid, strict=True), start=1):
        lowest = min((value for value in values if value is not None), default=None)
        marks |= {
            (row, place)
            for row, value in enumerate(values)
            if value is not None and value == lowest
        }
    return frozenset(marks)


def identity(rows: pl.DataFrame) -> Table:
    """What each pooled row was made from: hashes, commit, device, time, backbone."""
    records = rows.filter(pl.col("entity") == POOLED).to_dicts()
    header = [
        "Method",
        "Experiment",
        "Data",
        "Seed",
        "Config",
        "Data hash",
        "Artifact",
        "Commit",
        "Device",
        "Time",
        "Backbone",
        "Knowledge until",
        "Data kind",
    ]
    cells = [
        [
            method_name(row["method"]),
            row["experiment"] or "",
            scope_name(row["dataset"], row["subset"], synthetic=bool(row["synthetic"])),
            number(row["seed"]),
            short(row["config_hash"]),
            short(row["data_hash"]),
            short(row["artifact_hash"]),
            short(row["commit"]),
            row["device"] or "",
            describe_duration(row["seconds"], missing=MISSING),
            row["backbone"] or "",
            row["knowledge_cutoff"] or "",
            "synthetic" if row["synthetic"] else "real",
        ]
        for row in records
    ]
    return Table(
        header=header,
        rows=cells,
        caption="Identity of every pooled row",
        text_columns=frozenset(range(len(header))),
    )


def checks(found: Sequence[tuple[str, bool, str]]) -> Table:
    """Leakage checks with their outcome in words."""
    return Table(
        header=["Check", "Outcome", "Detail"],
        caption="Leakage checks",
        rows=[[name, "passed" if passed else "FAILED", detail] for name, passed, detail in found],
        text_columns=frozenset({0, 1, 2}),
        own=frozenset(i for i, (_, passed, _) in enumerate(found) if not passed),
    )


def paired(found: Sequence[Row]) -> Table:
    """Paired tests as evaluation computed them."""
    rows = [
        [
            method_name(row["method_a"]),
            method_name(row["method_b"]),
            scope_name(row["dataset"], row["subset"]),
            number(row["n"]),
            number(row["p_value"]),
        ]
        for row in found
    ]
    return Table(
        header=["Method", "Against", "Data", "Pairs", "p"],
        rows=rows,
        text_columns=frozenset({0, 1, 2}),
        caption="One-sided Wilcoxon signed-rank tests: is the first method's error smaller?",
    )
