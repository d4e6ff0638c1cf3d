"""``ablation``, ``backbones``, ``sensitivity`` and ``perturbation``: one method, changed.

What belongs here: the tables of ``experiments.sweeps`` beside the paper's. What does not: what is
changed (``experiments.sweeps``), curves (``report.paper.curves``), methods
(``report.paper.methods``).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from compevo_core.experiments.ablation import FULL_METHOD, VARIANTS
from compevo_core.experiments.sweeps import ABLATION, SWEEPS, name_rows
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper import published
from compevo_core.report.paper.cells import (
    NOT_PRINTED,
    Line,
    error_table,
    find_line,
    format_share,
)
from compevo_core.report.paper.pair_notes import describe_tests, pair_cells
from compevo_core.report.paper.scores import Score, collect_scores
from compevo_core.report.tables import Table
from compevo_core.report.wording import join_items, method_name, scope_name

#: The paper's tables of experiments that print figures; the others are curves without numbers.
PRINTED = {"lambda-pg": published.LAMBDA_PG, "tau": published.TAU}
ONE_FORECAST = "Equal to every digit: what was changed reached none of these forecasts."

Row = Mapping[str, Any]

SENSITIVITY = (
    *("lambda-pg", "lambda-div", "lambda-prune", "tau", "beta", "t-gen"),
    *("agents", "epochs", "instruction"),
)


class Change(NamedTuple):
    """What one table of changes is about; ``label`` is the paper's table, empty without one."""

    dataset: str
    subset: str
    label: str
    title: str
    reference: str
    command: str


def build_ablation(inputs: ReportInputs) -> list[Table]:
    """Return table 3 of the paper by data set, each variant also against the full method."""
    rows = inputs.rows.filter(pl.col("experiment") == ABLATION)
    tables = []
    for dataset in published.DATASETS:
        subsets = list_subsets(rows, dataset) or [""]
        for place, subset in enumerate(subsets):
            scores = collect_scores(rows, dataset, subset)
            # The paper has one test set a data set; its figures stand beside ours of the nearest.
            label = published.ABLATION if place == 0 else ""
            names = [name for name in VARIANTS if label or name in scores]
            command = f"compevo experiment ablation {dataset}"
            change = Change(dataset, subset, label, "architecture", FULL_METHOD, command)
            tables += _change_tables(change, names, scores, inputs.paired)
    return tables


def build_backbones(inputs: ReportInputs) -> list[Table]:
    """Return the paper's backbones, and the layers of the packaged one."""
    lines = [
        find_line(name, None, published.BACKBONES, "electricity", name)
        for name in published.list_subjects(published.BACKBONES)
    ]
    printed = error_table(
        lines,
        "Electricity: backbones of the paper",
        first="Backbone",
        notes=(
            "No row of ours: these weights are not packaged. `compevo fit electricity --set "
            "backbone.name_or_path=FOLDER` trains on a folder that holds them; `compevo params` "
            "counts what would be trained.",
        ),
    )
    return [printed, *build_sweep(inputs, "layers")]


def build_sensitivity(inputs: ReportInputs) -> list[Table]:
    """Return one table a setting that the paper varies."""
    return [table for name in SENSITIVITY for table in build_sweep(inputs, name)]


def build_perturbation(inputs: ReportInputs) -> list[Table]:
    """Return the population with perturbed news; the paper draws its errors and prints none."""
    return build_sweep(inputs, "news")


def build_sweep(inputs: ReportInputs, name: str) -> list[Table]:
    """Return the tables of one experiment, one a data set and subset with rows.

    Without any row: one table of what the paper prints, or of what there would be.
    """
    experiment = SWEEPS[name]
    rows = inputs.rows.filter(pl.col("experiment") == name_rows(name))
    label = PRINTED.get(name, "")
    # Without rows the paper's data set of this figure still says what is missing.
    datasets = list(dict.fromkeys(rows["dataset"].to_list())) or ["electricity"]
    names = list(dict.fromkeys([*experiment.list_names(), *published.list_subjects(label)]))

    tables = []
    for dataset in datasets:
        for place, subset in enumerate(list_subsets(rows, dataset) or [""]):
            scores = collect_scores(rows, dataset, subset)
            shown = [one for one in names if place == 0 or one in scores]
            change = Change(
                dataset,
                subset,
                label if place == 0 else "",
                experiment.title,
                experiment.reference,
                f"compevo experiment {name} {dataset}",
            )
            tables += _change_tables(change, shown, scores, inputs.paired)
    return tables


def list_subsets(rows: pl.DataFrame, dataset: str) -> list[str]:
    """Return the subsets of a data set that have rows; the published test set first."""
    own = rows.filter(pl.col("dataset") == dataset)["subset"].unique().to_list()
    return sorted(map(str, own), key=lambda subset: (not subset.startswith("n2f"), subset))


def _change_tables(
    change: Change, names: Sequence[str], scores: Mapping[str, Score], paired: Sequence[Row]
) -> list[Table]:
    """Return the errors of changes, and how rows differ from those of the reference."""
    lines = [
        find_line(method_name(m), scores.get(m), change.label, change.dataset, m) for m in names
    ]
    missing = [method_name(name) for name in names if name not in scores]
    notes = [f"No row of {join_items(missing)}: `{change.command}`."] if missing else []
    # Equal to every digit, and not only as printed.
    if len(scores) > 1 and len({score.mean.get("mse") for score in scores.values()}) == 1:
        notes.append(ONE_FORECAST)
    # Without any row and any published figure the note says it all.
    if not scores and not any(line.published for line in lines):
        lines = []

    name = f"{scope_name(change.dataset, change.subset)}: {change.title.lower()}"
    tables = [error_table(lines, name, first="Change", notes=notes)]
    # A difference from nothing is none: without the reference's row there is no such table.
    if change.reference in scores and len(scores) > 1:
        tables.append(_difference_table(change, name, names, scores, lines, paired))
    return tables


def _difference_table(
    change: Change,
    name: str,
    names: Sequence[str],
    scores: Mapping[str, Score],
    lines: Sequence[Line],
    paired: Sequence[Row],
) -> Table:
    """Return how far each change lies from the reference: by window, and beside the paper's."""
    # Pairs of this scope against this reference: a method can be in several experiments.
    tests = {
        test["method_a"]: test
        for test in paired
        if (test["dataset"], test["subset"], test["method_b"])
        == (change.dataset, change.subset, change.reference)
    }
    own = {m: score.mean["rmse"] for m, score in scores.items()}
    printed = {
        m: line.published["rmse"].value
        for m, line in zip(names, lines, strict=True)
        if "rmse" in line.published
    }
    rows = []
    for one in names:
        # What was not run has a note; a line of empty cells would say less.
        if one == change.reference or one not in scores:
            continue
        test = tests.get(one)
        cells = ["no pair", "", ""]
        if test is not None:
            cells = pair_cells(test)
        # Levels of two backbones do not compare; how much a change costs each of them does.
        relative = [_relate(values, one, change.reference) for values in (own, printed)]
        rows.append([method_name(one), *cells, *relative])

    reference = method_name(change.reference)
    shown = [tests[one] for one in names if one in tests]
    return Table(
        header=["Change", "Difference", "95 % interval", "p", "RMSE", "RMSE, paper"],
        rows=rows,
        caption=f"{name}, against {reference}",
        wrap_columns=frozenset({2}),
        notes=(
            f"Difference: error of the change less that of {reference}, mean over windows, each "
            "error the mean over its seeds; above zero the change is worse. RMSE: relative to that "
            "of the reference.",
            *describe_tests(shown, scores, side="method_a"),
        ),
    )


def _relate(values: Mapping[str, float], name: str, reference: str) -> str:
    if name not in values or reference not in values:
        return NOT_PRINTED
    return format_share(values[name] / values[reference] - 1)
