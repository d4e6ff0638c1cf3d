"""The other methods against CompEvo: tests by window, win rates and skill.

What belongs here: one table from pairs and scores that are there. What does not: computing pairs
(``evaluation.pairing``), statistics (``report.paper.scores``), errors (``report.paper.methods``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper.cells import format_share, title_scope
from compevo_core.report.paper.pair_notes import describe_tests, pair_cells
from compevo_core.report.paper.scores import Score, list_tasks, skill_score, win_rate
from compevo_core.report.tables import Table
from compevo_core.report.wording import (
    NAIVE,
    format_percent,
    join_items,
    method_name,
)

Paired = Sequence[Mapping[str, Any]]


def build_rival_table(
    inputs: ReportInputs,
    dataset: str,
    subset: str,
    names: Sequence[str],
    scores: Mapping[str, Score],
    *,
    budget: str,
) -> Table:
    """Return the tests of CompEvo against every other method, win rates and skill.

    Args:
        inputs: rows and pairs.
        dataset: name of the data set.
        subset: the test windows.
        names: methods in the order of the table.
        scores: of each of them.
        budget: what both sides of a pair had; empty: CompEvo's full training.
    """
    tasks = list_tasks({name: scores[name] for name in names})
    # Pairs as they were computed: rows alone hold no error by window.
    tests = {
        test["method_b"]: test
        for test in _list_tests(inputs, budget, scores)
        if (test["dataset"], test["subset"], test["method_a"]) == (dataset, subset, COMPEVO)
    }
    rows = [_rival_cells(name, tests.get(name), tasks) for name in names]
    unpaired = [name for name in names if name not in tests and name != COMPEVO]
    shown = [tests[name] for name in names if name in tests]
    notes = [
        "Difference: CompEvo's error less the other's, mean over windows, each error the mean over "
        "its seeds; below zero CompEvo is better.",
        *describe_tests(shown, scores),
        f"Win rate and skill are over {len(tasks)} task(s), one a series: the share of other "
        f"methods with a larger MAE, and one minus the geometric mean of the MAE over that of "
        f"{method_name(NAIVE)}.",
    ]
    if unpaired:
        notes.append(
            f"Not paired with CompEvo yet: {join_items([method_name(m) for m in unpaired])}. "
            f"`compevo pair {dataset}` reads the forecasts that runs and benchmark kept."
        )
    return Table(
        header=["Method", "CompEvo less it", "95 % interval", "p", "Win rate", "Skill"],
        rows=rows,
        caption=f"{title_scope(inputs.rows, dataset, subset)}: against CompEvo",
        wrap_columns=frozenset({2}),
        highlighted_rows=frozenset({0}),
        notes=notes,
    )


def _list_tests(inputs: ReportInputs, budget: str, scores: Mapping[str, Score]) -> Paired:
    """Return the comparisons of the trainings whose errors the table shows."""
    # Without a budget that both sides had, CompEvo is the full training.
    if not budget:
        return inputs.paired
    # An error of a larger budget is of another training than the pair at this one.
    shown = {name for name, score in scores.items() if score.budget in ("", budget)}
    return [
        test
        for test in inputs.paired_at_budget
        if test["budget"] == budget and test["method_b"] in shown
    ]


def _rival_cells(
    name: str, test: Mapping[str, Any] | None, tasks: Mapping[str, Mapping[str, float]]
) -> list[str]:
    rate = win_rate(name, tasks)
    skill = skill_score(name, tasks)
    paired = ["", "", ""]
    if test is not None:
        paired = pair_cells(test)
    elif name != COMPEVO:
        paired = ["no pair", "", ""]
    return [method_name(name), *paired, format_percent(rate), format_share(skill)]
