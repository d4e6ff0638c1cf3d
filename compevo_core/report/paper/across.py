"""What the data sets say together: macro averages, and whether units are the paper's.

What belongs here: comparisons over all four data sets, and the rows that each of them is compared
by. What does not: tables of one data set (``report.paper.methods``), statistics
(``report.paper.scores``).
"""

from collections.abc import Mapping, Sequence

import polars as pl

from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper.cells import NO_ROW, format_share
from compevo_core.report.paper.published import (
    AGENTS,
    DATASETS,
    MAIN,
    find_published,
    implied_level,
    list_subjects,
)
from compevo_core.report.paper.scores import (
    Score,
    collect_scores,
    list_test_scopes,
    macro_reduction,
    share_budget,
)
from compevo_core.report.rows import drop_sweeps
from compevo_core.report.tables import Table
from compevo_core.report.wording import MISSING, NAIVE, format_number, join_items, method_name

REDUCED = ("rmse", "mape_pct")
"""Metrics whose macro-averaged reduction the paper states."""

UNFITTED = "quick"
"""Budget of a few updates: what has no more is in no mean."""

SIMPLE = (NAIVE, "calendar-ridge")

LEVELS_AGREE = 2.0
"""Factor up to which two levels count as one unit: MAPE makes them rough."""


def choose_rows(
    inputs: ReportInputs, label: str, dataset: str, subset: str
) -> tuple[pl.DataFrame, str]:
    """Return the rows to compare, and the budget that all of the paper's methods had, if any.

    Args:
        inputs: all rows.
        label: the paper's table.
        dataset: name of the data set.
        subset: the test windows.
    """
    rows = drop_sweeps(inputs.rows)
    # Systems of agents are compared at one number of updates, as the paper compares them.
    return (
        share_budget(rows, dataset, subset, list_subjects(AGENTS))
        if label == AGENTS
        else (rows, "")
    )


def build_macro_table(inputs: ReportInputs, label: str, rivals: Sequence[str]) -> Table:
    """Return by how much CompEvo lowers errors, averaged over the four data sets (paper 5.2)."""
    by_dataset = {ds: first_scores(inputs, ds, label) for ds in DATASETS}
    # What the paper lacks says how much of the gain any forecast with a calendar has.
    own = SIMPLE if label == MAIN else ()
    rows = []
    for rival in [*rivals, *own]:
        pairs = {
            metric: [_own_pair(by_dataset[ds], rival, metric) for ds in DATASETS]
            for metric in REDUCED
        }
        cells = [method_name(rival)]
        for metric in REDUCED:
            printed = [_published_pair(label, ds, rival, metric) for ds in DATASETS]
            cells += [
                format_share(_negate(macro_reduction(one))) for one in (pairs[metric], printed)
            ]
        rmse = [pair for pair in pairs["rmse"] if pair is not None]
        found = [of[rival] for of in by_dataset.values() if rival in of]
        budgets = dict.fromkeys(score.budget or "none to name" for score in found)
        rows.append([*cells, _format_range(rmse), str(len(rmse)), join_items(list(budgets))])
    return Table(
        header=[
            "Against",
            *("RMSE", "RMSE, paper", "MAPE", "MAPE, paper"),
            *("RMSE by data set", "Data sets", "Its budgets"),
        ],
        rows=rows,
        caption="Macro-averaged relative change of CompEvo's error",
        text_columns=frozenset({0, 7}),
        wrap_columns=frozenset({5, 7}),
        notes=(
            "For each data set the error of CompEvo over that of the other, less one; then the "
            "mean over the four data sets, as the paper does. Below zero CompEvo is better. "
            f"{MISSING}: a data set has no row of both that is more than a `{UNFITTED}` one, which "
            "says no more than that a method runs. Budgets and seeds differ by data set as in the "
            "tables above, and a mean hides where CompEvo is worse: the range shows it.",
        ),
    )


def _negate(share: float | None) -> float | None:
    return None if share is None else -share


def _format_range(pairs: Sequence[tuple[float, float]]) -> str:
    changes = [own / other - 1 for own, other in pairs]
    return f"{format_share(min(changes))} to {format_share(max(changes))}" if changes else MISSING


def first_scores(inputs: ReportInputs, dataset: str, label: str) -> dict[str, Score]:
    """Return the scores of a data set's first test windows, least MAE first; none without rows."""
    subsets = list_test_scopes(inputs.rows, dataset)
    if not subsets:
        return {}
    rows, _ = choose_rows(inputs, label, dataset, subsets[0])
    return collect_scores(rows, dataset, subsets[0])


def _own_pair(scores: Mapping[str, Score], rival: str, metric: str) -> tuple[float, float] | None:
    if COMPEVO not in scores or rival not in scores or scores[rival].budget == UNFITTED:
        return None
    own, other = scores[COMPEVO].mean.get(metric), scores[rival].mean.get(metric)
    return None if own is None or not other else (own, other)


def _published_pair(
    label: str, dataset: str, rival: str, metric: str
) -> tuple[float, float] | None:
    own = find_published(label, dataset, COMPEVO, metric)
    other = find_published(label, dataset, rival, metric)
    return None if own is None or other is None else (own.value, other.value)


def build_unit_table(inputs: ReportInputs) -> Table:
    """Return whether MAE and RMSE of the paper are in the unit of ours."""
    rows = []
    for dataset in DATASETS:
        scores = first_scores(inputs, dataset, MAIN)
        score = next(iter(scores.values()), None)
        # Of any method: the level is that of the series.
        ours = None
        if score is not None and score.mean.get("mape_pct"):
            ours = 100 * score.mean["mae"] / score.mean["mape_pct"]
        theirs = implied_level(dataset)
        rows.append(
            [
                dataset.capitalize(),
                score.unit if score else NO_ROW,
                MISSING if ours is None else format_number(ours),
                format_number(theirs),
                _compare_levels(ours, theirs, _own_published_pair(scores, dataset)),
            ]
        )
    return Table(
        header=["Data set", "Unit here", "Level here", "Level in the paper", "Same unit"],
        rows=rows,
        caption="Do the published units match?",
        text_columns=frozenset({0, 1, 4}),
        notes=(
            "Level: MAE over MAPE of one method, roughly the size of the series that the two "
            "imply; here of the method with the least error, in the paper of CompEvo. Where levels "
            "differ, either MAE or MAPE is not the same quantity: MAE is, where CompEvo's two are "
            "of one size.",
        ),
    )


def _own_published_pair(scores: Mapping[str, Score], dataset: str) -> tuple[float, float] | None:
    """Return CompEvo's MAE here and in the paper."""
    figure = find_published(MAIN, dataset, COMPEVO, "mae")
    own = scores[COMPEVO].mean.get("mae") if COMPEVO in scores else None
    return None if own is None or figure is None else (own, figure.value)


def _compare_levels(ours: float | None, theirs: float, maes: tuple[float, float] | None) -> str:
    if ours is None:
        return "cannot be told without rows"
    factor = _compute_factor(ours, theirs)
    if factor <= LEVELS_AGREE:
        return "yes"
    if maes is not None and _compute_factor(*maes) <= LEVELS_AGREE:
        return f"of MAE, it seems; MAPE then differs by a factor of {factor:,.3g}"
    return f"no: they differ by a factor of {factor:,.3g}"


def _compute_factor(one: float, other: float) -> float:
    return max(one / other, other / one)
