"""The paper's tables and curves of changes: one method, changed in one thing.

What is changed is in ``paper.changes``.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence

import polars as pl
from matplotlib.axes import Axes

from compevo_core.paper.changes import ABLATION, EXPERIMENTS
from compevo_core.report.figures import ACCENT, OTHER_BARS, Picture, Plot, Style, add_legend
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper.comparison import (
    NOT_PRINTED,
    TableLine,
    describe_tests,
    error_table,
    find_line,
    format_share,
    pair_cells,
)
from compevo_core.report.paper.published import (
    BACKBONES,
    LAMBDA_PG,
    TAU,
    find_published,
    list_subjects,
)
from compevo_core.report.rows import Score
from compevo_core.report.tables import Row, Table, join_items, method_name, scope_name

PRINTED = {"lambda-pg": LAMBDA_PG, "tau": TAU}
"""The paper's tables of experiments that print figures; the others are curves without numbers."""

ONE_FORECAST = "Identical results: this change did not affect any forecast."

LEAST_SPAN = 0.02
"""Height of a curve's axis as a share of the error: a thousandth of it shall look like nothing."""

SENSITIVITY = (
    *("lambda-pg", "lambda-div", "lambda-prune", "tau", "beta", "t-gen"),
    *("agents", "epochs", "instruction"),
)


def build_backbones(inputs: ReportInputs) -> list[Table]:
    """Return the paper's backbones, and the layers of the packaged one."""
    printed = error_table(
        [
            find_line(name, None, BACKBONES, "electricity", name)
            for name in list_subjects(BACKBONES)
        ],
        "Electricity: backbones of the paper",
        first="Backbone",
        notes=[
            "No row of ours: these weights are not packaged. `compevo fit electricity --set "
            "backbone.name_or_path=FOLDER` trains on a folder that holds them; `compevo params` "
            "counts what would be trained."
        ],
    )
    return [printed, *build_sweep(inputs, "layers")]


def build_sweep(inputs: ReportInputs, name: str) -> list[Table]:
    """Return the tables of one experiment, one a data set and subset with rows.

    Without any row: one table of what the paper prints, or of what there would be.
    """
    rows, label = _select_experiment(inputs, name), PRINTED.get(name, "")
    names = list(dict.fromkeys([*EXPERIMENTS[name].names, *list_subjects(label)]))
    # Without rows the paper's data set of this figure still says what is missing.
    datasets = dict.fromkeys(rows["dataset"].to_list() or ["electricity"])
    return build_changes(inputs, name, datasets, label, names, EXPERIMENTS[name].title.lower())


def _select_experiment(inputs: ReportInputs, name: str) -> pl.DataFrame:
    return inputs.rows.filter(pl.col("experiment") == EXPERIMENTS[name].rows_name)


def list_subsets(rows: pl.DataFrame, dataset: str) -> list[str]:
    """Return the subsets of a data set that have rows; the published test set first."""
    named = rows.filter(pl.col("dataset") == dataset)["subset"].unique().to_list()
    return sorted(map(str, named), key=lambda subset: (not subset.startswith("n2f"), subset))


def build_changes(
    inputs: ReportInputs,
    experiment: str,
    datasets: Iterable[str],
    label: str,
    names: Sequence[str],
    title: str,
) -> list[Table]:
    """Return the errors of changes by subset, and how they differ from the reference."""
    rows, reference = _select_experiment(inputs, experiment), EXPERIMENTS[experiment].reference
    rows_name = EXPERIMENTS[experiment].rows_name
    tables = []
    for dataset in datasets:
        command = f"compevo experiment {experiment} {dataset}"
        for place, subset in enumerate(list_subsets(rows, dataset) or [""]):
            scores, _ = inputs.find_scores(dataset, subset, experiment=rows_name)
            # The paper has one test set a data set; its figures are beside ours of the nearest.
            printed = "" if place else label
            lines = {
                name: find_line(method_name(name), scores.get(name), printed, dataset, name)
                for name in names
                if not place or name in scores
            }
            caption = f"{scope_name(dataset, subset)}: {title}"
            missing = [line.name for line in lines.values() if line.score is None]
            notes = [f"No row of {join_items(missing)}: `{command}`."] if missing else []
            errors = [line.score.mean.get("mse") for line in lines.values() if line.score]
            # Equal to every digit, and not only as printed.
            if len(errors) > 1 and len(set(errors)) == 1:
                notes.append(ONE_FORECAST)
            # Without any row and any published figure the note says it all.
            is_known = any(line.score or line.published for line in lines.values())
            shown = [*lines.values()] if is_known else []
            tables.append(error_table(shown, caption, first="Change", notes=notes))
            # Without the reference's row there is no difference from it.
            if reference in scores and len(scores) > 1:
                tests = inputs.find_tests(dataset, subset, reference, side="b")
                tables.append(_difference_table(caption, reference, lines, scores, tests))

    return tables


def _difference_table(
    caption: str,
    reference: str,
    lines: Mapping[str, TableLine],
    scores: Mapping[str, Score],
    tests: Mapping[str, Row],
) -> Table:
    """Return how far each change lies from the reference, by window, and the paper's figures."""
    measured = {name: score.mean["rmse"] for name, score in scores.items()}
    figures = {name: line.published.get("rmse") for name, line in lines.items()}
    printed = {name: figure.value for name, figure in figures.items() if figure}
    notes = describe_tests([tests[name] for name in lines if name in tests], scores, side="a")

    return Table(
        header=["Change", "Difference", "95 % interval", "p", "RMSE", "RMSE, paper"],
        rows=[
            [
                method_name(name),
                *pair_cells(tests.get(name)),
                # Levels of two backbones do not compare; how much a change costs each does.
                *(
                    format_share(values[name] / values[reference] - 1)
                    if name in values and reference in values
                    else NOT_PRINTED
                    for values in (measured, printed)
                ),
            ]
            for name in lines
            # What was not run has a note; a line of empty cells would say less.
            if name != reference and name in scores
        ],
        caption=f"{caption}, against {method_name(reference)}",
        wrap_columns=[2],
        notes=[" ".join(notes)] if notes else [],
    )


def show_curves(inputs: ReportInputs) -> list[Picture]:
    """Return one picture an experiment and test set that has at least two changes."""
    pictures = []
    for name, sweep in EXPERIMENTS.items():
        rows = _select_experiment(inputs, name)
        scopes = [
            (dataset, subset)
            for dataset in rows["dataset"].unique(maintain_order=True)
            for subset in list_subsets(rows, dataset)
            # The ablation has bars of its own.
            if name != ABLATION
        ]
        for dataset, subset in scopes:
            scores, _ = inputs.find_scores(dataset, subset, experiment=sweep.rows_name)
            shown = {key: scores[key] for key in sweep.names if key in scores}
            if len(shown) > 1:
                title = f"{scope_name(dataset, subset)}: {sweep.title.lower()}"
                alt = f"RMSE by change for {title}; the table holds the numbers."
                fill = functools.partial(fill_sweep, name, dataset, shown)
                pictures.append(Picture([Plot(fill, alt, (6.4, 2.8))], caption=title))

    return pictures


def fill_sweep(name: str, dataset: str, scores: Mapping[str, Score], axis: Axes) -> None:
    """Draw the RMSE of every change in order, its spread over seeds, and the paper's beside it."""
    errors, printed = {}, {}
    for change, score in scores.items():
        setting, _, value = change.partition("=")
        errors[value] = score.mean["rmse"], score.spread.get("rmse", 0.0)
        if figure := find_published(PRINTED.get(name, ""), dataset, change, "rmse"):
            printed[value] = figure.value
    has_seeds = any(score.seeds > 1 for score in scores.values())
    label = "here, with deviation over seeds" if has_seeds else "here, one seed"
    # Equal steps: values such as 0.001 and 1 share no scale, and names have none.
    places = {value: place for place, value in enumerate(errors)}
    means, spreads = zip(*errors.values(), strict=True)
    marks: Style = {"marker": "o", "markersize": 4, "capsize": 3}
    axis.errorbar(list(places.values()), means, yerr=spreads, color=ACCENT, label=label, **marks)
    if printed:
        known = [places[value] for value in printed]
        paper: Style = {"color": OTHER_BARS, "marker": "s", "label": "paper"}
        axis.plot(known, list(printed.values()), **paper)
    axis.set_xticks(list(places.values()), list(places))
    axis.set_xlabel(setting)
    add_legend(axis)
    units = {score.unit for score in scores.values()}
    axis.set_ylabel(f"RMSE {units.pop()}" if len(units) == 1 else "RMSE")

    # A span by which a difference that means nothing looks like nothing.
    low, high = axis.get_ylim()
    middle = (low + high) / 2
    half = max(high - low, LEAST_SPAN * middle) / 2
    axis.set_ylim(middle - half, middle + half)
