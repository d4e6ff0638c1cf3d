"""Cells of the paper's tables: own figures beside published ones, and comparisons by window.

What belongs here: formatting, what an empty cell says, what a reader must know of comparisons. What
does not: which figures a table holds (the other modules of ``report.paper``), making comparisons
(``evaluation.comparison``).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from compevo_core.evaluation.comparison import FEWEST_BLOCKS
from compevo_core.report.paper.scores import METRICS, Published, Score, find_published
from compevo_core.report.rows import is_synthetic, select_pooled, select_scope
from compevo_core.report.tables import METRIC_TITLES, Column, Row, Table, build_table
from compevo_core.report.wording import (
    MISSING,
    format_column,
    format_interval,
    format_number,
    join_items,
    method_name,
    scope_name,
)

NO_ROW = "no row"
NOT_PRINTED = "-"
WITH_UNIT = frozenset({"mae", "rmse"})
READING = (
    "Interval: 95 %, blocks of days resampled; one in twenty misses zero by chance alone. p: "
    "Wilcoxon's test of block "
    "means, two-sided; variation between seeds is in neither. Differences are means over windows, "
    "each error the mean over its seeds: CompEvo minus the other method, below zero CompEvo is "
    "better; or the change minus its reference, above zero the change is worse. Win rate: share of "
    "other methods with a larger MAE, over tasks (one a series). Skill: one minus the geometric "
    "mean of the MAE over the MAE of Persistence. In the tables of changes RMSE is relative to the "
    "reference."
)
"""What holds for every table, said once beside them."""


class TableLine(NamedTuple):
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
    chosen = select_scope(select_pooled(rows), dataset, subset)
    return scope_name(dataset, subset, synthetic=is_synthetic(chosen))


def find_line(name: str, score: Score | None, label: str, dataset: str, subject: str) -> TableLine:
    """Return a line with the figures that a table of the paper has of a subject."""
    figures = {metric: find_published(label, dataset, subject, metric) for metric in METRICS}
    return TableLine(name, score, {key: figure for key, figure in figures.items() if figure})


def error_table(
    lines: Sequence[TableLine],
    caption: str,
    *,
    first: str = "Method",
    notes: Sequence[str] = (),
    highlighted: Sequence[int] = (),
) -> Table:
    """Return lines as a table: for each metric own mean and spread, then the published figure.

    Columns of published figures are left out where no line has any.
    """
    units = {line.score.unit for line in lines if line.score}
    unit = units.pop() if len(units) == 1 else ""
    columns = [Column(title=first, cells=[line.name for line in lines], is_text=True)]
    for metric in METRICS:
        title = METRIC_TITLES[metric]
        with_unit = f"{title} {unit}" if metric in WITH_UNIT else title
        columns.append(_own_column(lines, metric, with_unit.strip()))
        # Own and published figures are ranked apart: they are of other windows.
        if any(line.published for line in lines):
            figures = [line.published.get(metric) for line in lines]
            cells = [figure.text if figure else NOT_PRINTED for figure in figures]
            values = [figure.value if figure else None for figure in figures]
            columns.append(
                Column(
                    title=f"{title}, paper",
                    cells=cells,
                    values=values,
                    ranked=list(map(str, values)),
                    may_wrap=True,
                )
            )
    seeds = [_describe_seeds(line.score) for line in lines]
    return build_table(
        [*columns, Column(title="Seeds", cells=seeds)],
        caption=caption,
        highlighted=highlighted,
        notes=notes,
    )


def _own_column(lines: Sequence[TableLine], metric: str, title: str) -> Column:
    means = [line.score.mean.get(metric) if line.score else None for line in lines]
    spreads = [line.score.spread.get(metric) if line.score else None for line in lines]
    # Formatted together: a spread with other decimals than its mean cannot be read beside it.
    texts = format_column(metric, [*means, *spreads])
    cells = [
        NO_ROW if line.score is None else mean if spread == MISSING else f"{mean} ± {spread}"
        for line, mean, spread in zip(lines, texts, texts[len(lines) :], strict=False)
    ]
    ranked = format_column(metric, means)
    return Column(title=title, cells=cells, values=means, ranked=ranked, may_wrap=True)


def _describe_seeds(score: Score | None) -> str:
    if score is None:
        return ""
    # A row of another budget than the usual one must not pass for one of it.
    small = score.budget not in ("", "standard")
    return f"{score.seeds}, {score.budget} budget" if small else str(score.seeds)


def format_share(share: float | None) -> str:
    """Return a share as a percentage with its sign; empty says that it cannot be computed."""
    return MISSING if share is None else f"{100 * share:+.1f} %"


def pair_cells(test: Row | None) -> list[str]:
    """Return difference, interval and p of a comparison."""
    if test is None:
        return ["no pair", "", ""]
    return [
        format_number(test["mean_difference"]),
        format_interval(test),
        format_number(test["p_two_sided"]),
    ]


def describe_tests(
    tests: Sequence[Row], scores: Mapping[str, Score], *, side: str = "method_b"
) -> list[str]:
    """Return what a reader must know of the comparisons of one table; how they are made apart.

    Args:
        tests: the comparisons of one table.
        scores: of the methods in it, for how many trainings their errors are the mean of.
        side: the column that names the method of a line.
    """
    blocks = {test["n_blocks"] for test in tests}
    known = sorted(blocks - {None})
    notes = []
    if known:
        notes.append(f"Blocks of days: {join_items([str(count) for count in known])}.")
    if known and known[0] < FEWEST_BLOCKS:
        notes.append(
            f"{MISSING}: {FEWEST_BLOCKS} blocks of days are the fewest for an interval or a test."
        )
    if None in blocks:
        notes.append("p is by single windows, and too small.")

    # Paired with fewer trainings than their errors are the mean of.
    seeds = "seeds_b" if side == "method_b" else "seeds_a"
    short = [
        method_name(test[side])
        for test in tests
        if test[side] in scores
        and test.get(seeds) is not None
        and test[seeds] < scores[test[side]].seeds
    ]
    if short:
        notes.append(f"Paired with the first training alone: {join_items(short)}.")
    return notes
