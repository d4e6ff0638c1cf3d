"""``ablation``, ``backbones``, ``sensitivity`` and ``perturbation``: one method, changed.

What belongs here: the tables and curves of ``paper.changes`` beside the paper's figures.
What does not: what is changed (``paper.changes``), methods (``report.paper.methods``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl
from matplotlib.figure import Figure

from compevo_core.paper.changes import ABLATION, EXPERIMENTS, FULL_METHOD, list_changes
from compevo_core.report.figures import Picture, Plot, get_figure
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper import scores as published
from compevo_core.report.paper.cells import (
    NOT_PRINTED,
    TableLine,
    describe_tests,
    error_table,
    find_line,
    format_share,
    pair_cells,
)
from compevo_core.report.paper.scores import Score, collect_scores
from compevo_core.report.plots import plot_errors
from compevo_core.report.tables import Row, Table
from compevo_core.report.wording import join_items, method_name, scope_name

#: The paper's tables of experiments that print figures; the others are curves without numbers.
PRINTED = {"lambda-pg": published.LAMBDA_PG, "tau": published.TAU}
ONE_FORECAST = "Identical results: this change did not affect any forecast."
LEAST_SPAN = 0.02
"""Height of a curve's axis as a share of the error: a thousandth of it shall look like nothing."""

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

    @property
    def name(self) -> str:
        """Title of the table."""
        return f"{scope_name(self.dataset, self.subset)}: {self.title.lower()}"


def build_ablation(inputs: ReportInputs) -> list[Table]:
    """Return table 3 of the paper by data set, each variant also against the full method."""
    rows = inputs.rows.filter(pl.col("experiment") == ABLATION)
    tables: list[Table] = []
    for dataset in published.DATASETS:
        command = f"compevo experiment ablation {dataset}"
        change = Change(dataset, "", published.VARIANTS, "architecture", FULL_METHOD, command)
        tables += _build_changes(inputs, rows, change, list_changes("variant"))
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
    """Return the population with perturbed news; the paper plots its errors and prints none."""
    return build_sweep(inputs, "news")


def build_sweep(inputs: ReportInputs, name: str) -> list[Table]:
    """Return the tables of one experiment, one a data set and subset with rows.

    Without any row: one table of what the paper prints, or of what there would be.
    """
    sweep, label = EXPERIMENTS[name], PRINTED.get(name, "")
    rows = inputs.rows.filter(pl.col("experiment") == sweep.rows_name)
    names = list(dict.fromkeys([*sweep.names, *published.list_subjects(label)]))
    tables: list[Table] = []
    # Without rows the paper's data set of this figure still says what is missing.
    for dataset in dict.fromkeys(rows["dataset"].to_list() or ["electricity"]):
        command = f"compevo experiment {name} {dataset}"
        change = Change(dataset, "", label, sweep.title, sweep.reference, command)
        tables += _build_changes(inputs, rows, change, names)
    return tables


def list_subsets(rows: pl.DataFrame, dataset: str) -> list[str]:
    """Return the subsets of a data set that have rows; the published test set first."""
    own = rows.filter(pl.col("dataset") == dataset)["subset"].unique().to_list()
    return sorted(map(str, own), key=lambda subset: (not subset.startswith("n2f"), subset))


def _build_changes(
    inputs: ReportInputs, rows: pl.DataFrame, change: Change, names: Sequence[str]
) -> Iterator[Table]:
    """Yield the errors of changes by subset, and how they differ from those of the reference."""
    for place, subset in enumerate(list_subsets(rows, change.dataset) or [""]):
        scores = collect_scores(rows, change.dataset, subset)
        # The paper has one test set a data set; its figures are beside ours of the nearest.
        label = "" if place else change.label
        shown = [name for name in names if not place or name in scores]
        scope = change._replace(subset=subset, label=label)
        lines = {
            name: find_line(method_name(name), scores.get(name), label, change.dataset, name)
            for name in shown
        }
        yield _error_table(scope, lines)
        # Without the reference's row there is no difference from it.
        if change.reference in scores and len(scores) > 1:
            yield _difference_table(scope, lines, scores, inputs.paired)


def _error_table(change: Change, lines: Mapping[str, TableLine]) -> Table:
    missing = [line.name for line in lines.values() if line.score is None]
    notes = [f"No row of {join_items(missing)}: `{change.command}`."] if missing else []
    errors = [line.score.mean.get("mse") for line in lines.values() if line.score]
    # Equal to every digit, and not only as printed.
    if len(errors) > 1 and len(set(errors)) == 1:
        notes.append(ONE_FORECAST)
    # Without any row and any published figure the note says it all.
    is_empty = not any(line.score or line.published for line in lines.values())
    rows = [] if is_empty else list(lines.values())
    return error_table(rows, change.name, first="Change", notes=notes)


def _difference_table(
    change: Change,
    lines: Mapping[str, TableLine],
    scores: Mapping[str, Score],
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
    own = {name: score.mean["rmse"] for name, score in scores.items()}
    printed = {
        name: line.published["rmse"].value
        for name, line in lines.items()
        if "rmse" in line.published
    }
    rows = [
        [
            method_name(name),
            *pair_cells(tests.get(name)),
            # Levels of two backbones do not compare; how much a change costs each of them does.
            *(_relate(values, name, change.reference) for values in (own, printed)),
        ]
        for name in lines
        # What was not run has a note; a line of empty cells would say less.
        if name != change.reference and name in scores
    ]
    shown = [tests[name] for name in lines if name in tests]
    return Table(
        header=["Change", "Difference", "95 % interval", "p", "RMSE", "RMSE, paper"],
        rows=rows,
        caption=f"{change.name}, against {method_name(change.reference)}",
        wrap_columns=frozenset({2}),
        notes=[" ".join(notes)]
        if (notes := describe_tests(shown, scores, side="method_a"))
        else (),
    )


def _relate(values: Mapping[str, float], name: str, reference: str) -> str:
    if name not in values or reference not in values:
        return NOT_PRINTED
    return format_share(values[name] / values[reference] - 1)


def show_curves(inputs: ReportInputs) -> list[Picture]:
    """Return one picture an experiment and test set that has at least two changes."""
    pictures = []
    for name, sweep in EXPERIMENTS.items():
        # The ablation has bars of its own.
        if name == ABLATION:
            continue
        rows = inputs.rows.filter(pl.col("experiment") == sweep.rows_name)
        for dataset in rows["dataset"].unique(maintain_order=True):
            for subset in list_subsets(rows, dataset):
                scores = collect_scores(rows, dataset, subset)
                shown = {key: scores[key] for key in sweep.names if key in scores}
                if len(shown) < 2:
                    continue
                title = f"{scope_name(dataset, subset)}: {sweep.title.lower()}"
                alt = f"RMSE by change for {title}; the table holds the numbers."
                plot = Plot(plot_sweep(name, dataset, shown), alt)
                pictures.append(Picture([plot], caption=title))
    return pictures


def plot_sweep(name: str, dataset: str, scores: Mapping[str, Score]) -> Figure:
    """Plot the RMSE of every change in order, its spread over seeds, and the paper's beside it."""
    values = {change.partition("=")[2]: change for change in scores}
    printed = {
        value: figure.value
        for value, change in values.items()
        if (figure := published.find_published(PRINTED.get(name, ""), dataset, change, "rmse"))
    }
    has_seeds = any(score.seeds > 1 for score in scores.values())
    axis = plot_errors(
        {
            value: (scores[change].mean["rmse"], scores[change].spread.get("rmse", 0.0))
            for value, change in values.items()
        },
        printed,
        label="here, with deviation over seeds" if has_seeds else "here, one seed",
        x=next(iter(scores)).partition("=")[0],
    )
    units = {score.unit for score in scores.values()}
    axis.set_ylabel(f"RMSE {units.pop()}" if len(units) == 1 else "RMSE")

    # A span by which a difference that means nothing looks like nothing.
    low, high = axis.get_ylim()
    middle = (low + high) / 2
    half = max(high - low, LEAST_SPAN * middle) / 2
    axis.set_ylim(middle - half, middle + half)
    return get_figure(axis)
