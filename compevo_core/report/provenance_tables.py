"""Tables that let a reader check the numbers: identity of rows, leakage checks, paired tests.

What belongs here: hashes, commits, devices and test outcomes as cells. What does not: errors
(``report.result_tables``), the checks and tests themselves (``evaluation.leakage``,
``evaluation.significance``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from compevo_core.durations import describe_duration
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.experiments.ablation import FULL_METHOD
from compevo_core.experiments.sweeps import REFERENCES
from compevo_core.report.inputs import LeakageCheck
from compevo_core.report.rows import drop_parts
from compevo_core.report.tables import Table
from compevo_core.report.wording import (
    MISSING,
    format_interval,
    format_number,
    format_percent,
    method_name,
    scope_name,
    shorten_hash,
)

Row = Mapping[str, Any]

#: Column titles of the identity table and the cell that each takes from a row.
_IDENTITY_COLUMNS: dict[str, Callable[[Row], str]] = {
    "Method": lambda row: method_name(row["method"]),
    "Experiment": lambda row: row["experiment"] or "",
    "Data": lambda row: scope_name(row["dataset"], row["subset"], synthetic=bool(row["synthetic"])),
    "Seed": lambda row: format_number(row["seed"]),
    "Config": lambda row: shorten_hash(row["config_hash"]),
    "Data hash": lambda row: shorten_hash(row["data_hash"]),
    "Artifact": lambda row: shorten_hash(row["artifact_hash"]),
    "Commit": lambda row: shorten_hash(row["commit"]),
    "Device": lambda row: row["device"] or "",
    "Time": lambda row: describe_duration(row["seconds"], missing=MISSING),
    "Backbone": lambda row: row["backbone"] or "",
    "Knowledge until": lambda row: row["knowledge_cutoff"] or "",
    "News to choose": lambda row: format_percent(row["news_choice_share"]),
    "Trained on": lambda row: "train and validation" if row["refit"] else "train",
    "Data kind": lambda row: "synthetic" if row["synthetic"] else "real",
}


def identity_table(rows: pl.DataFrame) -> Table:
    """Return what each pooled row was made from: hashes, commit, device, time, backbone."""
    # Rows by region and of a population's parts come from the same run as its pooled row and would
    # repeat its hashes.
    records = drop_parts(rows.filter(pl.col("entity") == POOLED)).to_dicts()
    return Table(
        header=list(_IDENTITY_COLUMNS),
        rows=[[cell(row) for cell in _IDENTITY_COLUMNS.values()] for row in records],
        caption="Identity of every pooled row",
        text_columns=frozenset(range(len(_IDENTITY_COLUMNS))),
    )


def check_table(checks: Sequence[LeakageCheck]) -> Table:
    """Return the leakage checks with their outcome in words; failed ones are highlighted."""
    return Table(
        header=["Check", "Outcome", "Detail"],
        rows=[
            [check.name, "passed" if check.passed else "FAILED", check.detail] for check in checks
        ],
        caption="Leakage checks",
        text_columns=frozenset({0, 1, 2}),
        # A failed check must not pass for one of many lines.
        highlighted_rows=frozenset(i for i, check in enumerate(checks) if not check.passed),
    )


def is_of_variant(test: Row) -> bool:
    """Whether a paired test compares a change of an experiment with its reference."""
    # The full method is never an opponent elsewhere: there it is the one that is compared.
    return test["method_b"] in REFERENCES


def variant_test_table(tests: Sequence[Row], dataset: str) -> Table | None:
    """Return the paired tests of variants and controls of one data set; None without any."""
    chosen = [
        test for test in tests if test["method_b"] == FULL_METHOD and test["dataset"] == dataset
    ]
    if not chosen:
        return None

    return replace(
        paired_table(chosen),
        caption=f"{scope_name(dataset, '')}: variants and controls against the full method",
        notes=(
            "Differences are the variant's error less that of the full method, window by window, "
            "each the mean over its seeds: below zero the variant is better.",
            "The ends of the interval say how much the two may differ at most on such days; whole "
            "days are drawn again, and what other seeds would change is not in it.",
        ),
    )


def paired_table(tests: Sequence[Row]) -> Table:
    """Return the paired tests as evaluation computed them."""
    rows = [
        [
            method_name(test["method_a"]),
            method_name(test["method_b"]),
            scope_name(test["dataset"], test["subset"]),
            format_number(test["n"]),
            format_number(test["n_blocks"]),
            format_number(test["mean_difference"]),
            format_interval(test),
            _format_two_sided(test),
            format_number(test["p_value"]),
        ]
        for test in tests
    ]

    return Table(
        header=[
            "Method",
            "Against",
            "Data",
            "Windows",
            "Blocks of days",
            "Mean difference",
            "95 % interval",
            "p, two-sided",
            "p, one-sided",
        ],
        rows=rows,
        caption="Paired comparisons by window",
        text_columns=frozenset({0, 1, 2}),
        wrap_columns=frozenset({6, 7}),
        notes=(
            "Differences are the first method's error less the other's, mean over windows, in the "
            "unit of the series: below zero the first is better. The interval is that of the mean "
            "difference, with blocks of days drawn again.",
            "p is of Wilcoxon's signed-rank test on means of blocks: two-sided with the side that "
            "the ranks are on, and the paper's one-sided test that the first method's error is "
            "smaller. Without a number of blocks it is by single windows, of an earlier version, "
            "and too small.",
        ),
    )


def _format_two_sided(test: Row) -> str:
    if test["p_two_sided"] is None:
        return MISSING
    side = {-1: " (better)", 1: " (worse)"}.get(test["rank_sign"], "")
    return format_number(test["p_two_sided"]) + side
