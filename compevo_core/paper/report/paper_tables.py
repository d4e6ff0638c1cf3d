"""Every table of ``compevo paper table``, by name; tables of changes, costs and logic updates.

What belongs here: the list of tables and how they are printed; tables and curves of one method
that is changed in one thing. What does not: comparisons of methods (``paper.report.comparison``),
what is changed (``paper.changes``), measuring costs and logic updates (the benchmark,
``paper.lud``).
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import polars as pl
from matplotlib.axes import Axes

from compevo_core.errors import ConfigError
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.paper.changes import ABLATION, EXPERIMENTS, list_changes
from compevo_core.paper.declared import read_declared
from compevo_core.paper.lud import GAINS, JUDGES
from compevo_core.paper.report.comparison import (
    NO_ROW,
    NOT_PRINTED,
    TableLine,
    compare_methods,
    describe_tests,
    error_table,
    find_line,
    format_share,
    pair_cells,
)
from compevo_core.paper.report.inputs import ReportInputs
from compevo_core.paper.report.published import (
    AGENTS,
    BACKBONES,
    DATASETS,
    EFFICIENCY,
    GAIN_FIGURES,
    JUDGE_FIGURES,
    LAMBDA_PG,
    LEAKAGE,
    MAIN,
    PAPER_SUBSETS,
    TAU,
    VARIANTS,
    find_published,
    list_subjects,
)
from compevo_core.paper.report.rows import Score, list_test_scopes
from compevo_core.report.figures import ACCENT, OTHER_BARS, Picture, Plot, Style, add_legend
from compevo_core.report.tables import (
    MISSING,
    NAIVE,
    Column,
    Row,
    Table,
    build_table,
    format_difference,
    format_interval,
    format_number,
    format_percent,
    join_items,
    method_name,
    scope_name,
    tabulate,
)

NOTES = read_declared("notes")

SYSTEMS = ("mael", "mad-rl", "compevo")
"""The agent systems of the paper's table; the first is what the others are measured against."""

PER_WINDOW = "seconds_per_window"

#: Own column, published metric, and the titles of both.
COSTS = (
    ("train_seconds", "train_hours_per_epoch", "Training s", "Training h an epoch, paper"),
    (PER_WINDOW, "seconds_per_step", "s a window", "s a step, paper"),
    ("peak_memory_gb", "peak_memory_gb", "Peak memory GB", "Peak memory GB, paper"),
)

PRINTED = {"lambda-pg": LAMBDA_PG, "tau": TAU}
"""The paper's tables of experiments that print figures; the others are curves without numbers."""

ONE_FORECAST = "Identical results: this change did not affect any forecast."

OTHER_WINDOWS = "The paper's figures belong to its own test windows, not to these."

LEAST_SPAN = 0.02
"""Height of a curve's axis as a share of the error: a thousandth of it shall look like nothing."""

_WEIGHTS = ("lambda-pg", "lambda-div", "lambda-prune")
SENSITIVITY = (*_WEIGHTS, "tau", "beta", "t-gen", "agents", "epochs", "instruction")


def build_backbones(inputs: ReportInputs) -> list[Table]:
    """Return the paper's backbones, and the layers of the packaged one."""
    printed = error_table(
        [
            find_line(name, None, BACKBONES, "electricity", name)
            for name in list_subjects(BACKBONES)
        ],
        "Electricity: backbones of the paper",
        first="Backbone",
        notes=[NOTES["backbones"]],
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
    """Return the subsets of a data set that have rows; the published test sets first."""
    named = rows.filter(pl.col("dataset") == dataset)["subset"].unique().to_list()
    own = PAPER_SUBSETS.get(dataset)
    return sorted(map(str, named), key=lambda it: (it != own, not it.startswith("n2f"), it))


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
        command = f"compevo paper experiment {experiment} {dataset}"
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
            if printed and subset and subset != PAPER_SUBSETS.get(dataset, subset):
                notes.append(OTHER_WINDOWS)
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
        paper: Style = {"color": OTHER_BARS, "marker": "s", "label": "paper, its windows"}
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


def build_efficiency(inputs: ReportInputs) -> list[Table]:
    """Return the costs of the agent systems by data set, as figures and as ratios to averaging.

    The paper's data set comes first; others are shown where all systems have rows.
    """
    tables: list[Table] = []
    for dataset in DATASETS:
        costs = _measure_costs(inputs, dataset)
        missing = [name for name in SYSTEMS if name not in costs]
        if tables and missing:
            continue
        notes = [] if tables else [NOTES["ratios"]]
        if missing:
            command = f"compevo paper benchmark {dataset} --methods {','.join(SYSTEMS)}"
            notes.append(f"`{command}` makes the rows.")
        columns = [Column("System", [method_name(name) for name in SYSTEMS])]
        # Seconds on another device say nothing; their ratio to plain averaging does.
        for column, metric, title, printed_title in COSTS:
            measured = {name: cost[column] for name, cost in costs.items() if column in cost}
            figures = {name: find_published(EFFICIENCY, dataset, name, metric) for name in SYSTEMS}
            printed = {name: figure.value for name, figure in figures.items() if figure}
            # A method without a row is not one whose row says nothing of its costs.
            empty = {name: MISSING if name in costs else NO_ROW for name in SYSTEMS}
            columns += [
                Column(title, [_with_ratio(measured, name, empty[name]) for name in SYSTEMS]),
                Column(
                    printed_title, [_with_ratio(printed, name, NOT_PRINTED) for name in SYSTEMS]
                ),
            ]
        caption = f"{dataset.capitalize()}: what agent systems cost"
        tables.append(build_table(columns, caption=caption, wrap_columns=range(1, 7), notes=notes))

    return tables


def _measure_costs(inputs: ReportInputs, dataset: str) -> dict[str, dict[str, float]]:
    """Return the costs of each system by column; seconds a window cover all test windows."""
    scopes = []
    for subset in list_test_scopes(inputs.rows, dataset):
        # A sweep's rows have other budgets, and so have CompEvo's own: costs compare at one alone.
        scopes.append(inputs.find_scores(dataset, subset, sharing=SYSTEMS)[0])

    costs = {}
    for name in SYSTEMS:
        scores = [scope[name] for scope in scopes if name in scope]
        if not scores:
            continue
        # The training is the same for all of them.
        mean = scores[0].mean
        costs[name] = {column: mean[column] for column, *_ in COSTS if column in mean}
        # A hundred windows take seconds, in which anything else on the machine weighs much.
        timed = [score for score in scores if PER_WINDOW in score.mean]
        if timed:
            seconds = sum(score.mean[PER_WINDOW] * score.n_windows for score in timed)
            costs[name][PER_WINDOW] = seconds / sum(score.n_windows for score in timed)
    return costs


def _with_ratio(values: Mapping[str, float], system: str, empty: str) -> str:
    value, base = values.get(system), values.get(SYSTEMS[0])
    if value is None:
        return empty
    return f"{format_number(value)} ({value / base:.2f} x)" if base else format_number(value)


def build_lud(inputs: ReportInputs) -> list[Table]:
    """Return agreement of judges, and gains by size of update, of runs and of the paper."""
    # Own rows first: the paper's judges are not ours, and only ranges compare.
    judged = [row for row in inputs.lud if row["table"] == JUDGES]
    gained = [row for row in inputs.lud if row["table"] == GAINS]
    known = {"all", *(str(row["judge"] or "").partition(":")[0] for row in inputs.lud)}
    agreement, columns = ("kappa", "pearson_r"), ("mean_lud", "error_gain", "pearson_r")
    printed = ("mean_lud", "rmse_gain", "pearson_r")
    command = "No row of ours: `compevo paper lud RUN electricity --judge local"

    judges = Table(
        header=["Judges", "Cohen's kappa", "Pearson r", "Updates", "Source"],
        rows=[
            *(_own_cells(row, row["subject"], agreement) for row in judged),
            *_printed_rows(JUDGE_FIGURES, "all", agreement, "500"),
        ],
        caption="Logic updates: agreement of judges",
        text_columns=(0, 4),
        notes=[] if judged else [f"{command} --judge slots`."],
    )

    gains = Table(
        header=["Updates", "Mean LUD", "Gain", "Pearson r", "Number", "Source"],
        rows=[
            *(_own_cells(row, f"{row['subject']}, by {row['judge']}", columns) for row in gained),
            *_printed_rows(GAIN_FIGURES, "electricity", printed, ""),
        ],
        caption="Logic updates: size and gain of the forecast",
        text_columns=(0, 5),
        notes=[
            *(note for kind, note in NOTES["lud"].items() if kind in known),
            *([] if gained else [f"{command}`."]),
        ],
    )
    return [judges, gains]


def _own_cells(row: Row, name: str, columns: Sequence[str]) -> list[str]:
    source = f"{row['dataset']}, run {row['artifact_hash'][:10]}"
    return [name, *(format_number(row[column]) for column in columns), str(row["n"]), source]


def _printed_rows(
    label: str, dataset: str, metrics: Sequence[str], count: str
) -> Iterator[list[str]]:
    for name in list_subjects(label):
        figures = [find_published(label, dataset, name, metric) for metric in metrics]
        cells = [figure.printed if figure else NOT_PRINTED for figure in figures]
        yield [name, *cells, count, "paper"]


def build_leakage(inputs: ReportInputs) -> list[Table]:
    """Return the errors on the paper's windows of 2026, beside what it prints of them."""
    dataset, subset = "electricity-operational", "paper-2026"
    scores, _ = inputs.find_scores(dataset, subset)
    lines = [
        find_line(method_name(name), scores.get(name), LEAKAGE, dataset, name)
        for name in [COMPEVO, *(name for name in scores if name != COMPEVO)]
    ]
    return [
        error_table(lines, scope_name(dataset, subset), highlighted=[0], notes=[NOTES["leakage"]])
    ]


def format_paper_sets(inputs: ReportInputs) -> str:
    """Return the paper's own test sets as Markdown: what they hold, and the errors on each."""
    counts = tabulate(
        inputs.paper_sets,
        {
            "Set": lambda row: row["set"],
            "Train": lambda row: format_number(row["train"]),
            "Validation": lambda row: format_number(row["val"]),
            "Test": lambda row: f"{row['test']} of {row['published_test']}",
            "Targets that are train inputs": lambda row: format_percent(
                row["targets_in_train_inputs"]
            ),
            "Days that train has of a region": lambda row: format_percent(row["days_in_train"]),
            "Leaks found": lambda row: format_number(row["leaks_found"]),
        },
        caption="Region-days of each set, and what of its test train holds",
    )
    parts = [counts.to_titled_markdown()]
    metrics = ("mae", "rmse", "mape_pct")
    naive: Mapping[str, str | None] = {NAIVE: None}
    # The method as written beside the paper's code, under one budget.
    forms: Mapping[str, str | None] = {"as-published": "short", "as-written": "short"}
    for dataset, subset, label, references in (
        ("electricity", "paper-original-every-3", "", forms),
        ("electricity", "paper-original", MAIN, naive),
        ("electricity", "paper-original-no-weather", "", naive),
        ("electricity", "paper-original-2020", "", naive),
        ("electricity", "paper-original-2020-from-2019", "", naive),
        ("electricity-operational", "paper-2026", LEAKAGE, naive),
    ):
        scores, _ = inputs.find_scores(dataset, subset)
        tests = [
            inputs.find_tests(dataset, subset, name, budget=budget)
            for name, budget in references.items()
        ]
        rows = [
            [
                method_name(name) + (f", {score.seeds} seeds" if score.seeds > 1 else ""),
                *(format_number(score.mean.get(metric)) for metric in metrics),
                *(_format_pair(of_reference.get(name)) for of_reference in tests),
            ]
            for name, score in scores.items()
        ]
        if label:
            figures = (find_published(label, dataset, COMPEVO, metric) for metric in metrics)
            printed = [figure.text if figure else NOT_PRINTED for figure in figures]
            rows.insert(0, ["CompEvo, as the paper prints it", *printed, ""])
        table = Table(
            header=[
                *("Method", "MAE", "RMSE", "MAPE %"),
                *(f"{method_name(name)} less it (95 %)" for name in references),
            ],
            rows=rows,
            caption=f"{scope_name(dataset, subset)}: errors in MW",
        )
        parts.append(table.to_titled_markdown())
    return "\n\n".join(parts)


def _format_pair(test: Row | None) -> str:
    return f"{format_difference(test)} ({format_interval(test)})" if test else "no pair"


_SHORT_SETS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "paper-original": ("electricity", MAIN, ("blend",)),
    "paper-original-no-weather": ("electricity", MAIN, ("blend",)),
    "paper-2026": (
        "electricity-operational",
        LEAKAGE,
        ("mixture-issued", "published-error-gbm", "published"),
    ),
}
"""Data set, the paper's table and our methods of each test set of the short table."""


def format_short_sets(inputs: ReportInputs) -> str:
    """Return MAE on the paper's own test sets as Markdown: naive, ours, the paper's CompEvo."""
    counts = {row["set"]: f"{row['test']} of {row['published_test']}" for row in inputs.paper_sets}
    lines = []
    for name, (dataset, label, methods) in _SHORT_SETS.items():
        if name not in counts:
            continue
        scores, _ = inputs.find_scores(dataset, name)
        naive, *ours = (format_number(scores[each].mean["mae"]) for each in (NAIVE, *methods))
        named = (f"{method_name(each)} {mae}" for each, mae in zip(methods, ours, strict=True))
        printed = find_published(label, dataset, COMPEVO, "mae")
        figure = printed.text if printed else NOT_PRINTED
        lines.append((f"`{name}`, {counts[name]}", naive, "; ".join(named), figure))
    title = "The paper's own test windows, MAE in MW"
    header = (title, method_name(NAIVE), "Here, no language model", "The paper's CompEvo")
    return Table(header=header, rows=lines, text_columns=(0, 2)).to_markdown()


PAPER_TABLES: Mapping[str, tuple[str, Callable[[ReportInputs], list[Table]]]] = {
    "main": ("Methods", lambda inputs: list(compare_methods(inputs, MAIN))),
    "agents": ("Agent systems", lambda inputs: list(compare_methods(inputs, AGENTS))),
    "ablation": (
        "Ablation",
        lambda inputs: build_changes(
            inputs, ABLATION, DATASETS, VARIANTS, list_changes("variant"), "architecture"
        ),
    ),
    "backbones": ("Backbones", build_backbones),
    "leakage": ("Windows of 2026", build_leakage),
    "efficiency": ("Efficiency", build_efficiency),
    "sensitivity": (
        "Sensitivity",
        lambda inputs: [table for name in SENSITIVITY for table in build_sweep(inputs, name)],
    ),
    "perturbation": ("Perturbed news", lambda inputs: build_sweep(inputs, "news")),
    "lud": ("Logic updates", build_lud),
}
"""Title and builder of each table; of perturbed news the paper plots errors and prints none."""


def build_paper_tables(name: str, inputs: ReportInputs) -> list[Table]:
    """Return the tables of one name; ConfigError if there is no such name."""
    if name not in PAPER_TABLES:
        raise ConfigError(f"no table {name!r}; known: {', '.join(PAPER_TABLES)}")
    return PAPER_TABLES[name][1](inputs)


def format_paper_tables(name: str, inputs: ReportInputs) -> str:
    """Return the tables of one name as Markdown, and how to read them."""
    return "\n\n".join([*_format_tables(name, inputs), NOTES["reading"]])


def format_all_paper_tables(inputs: ReportInputs) -> str:
    """Return how to read the tables, and every table as Markdown, under a heading each."""
    parts = [NOTES["reading"]]
    for name, (title, _) in PAPER_TABLES.items():
        parts += [f"## {title}", *_format_tables(name, inputs)]
    return "\n\n".join(parts)


def _format_tables(name: str, inputs: ReportInputs) -> Iterator[str]:
    for table in build_paper_tables(name, inputs):
        without_rows = f"**{table.caption}**\n\n{' '.join(table.notes)}"
        yield table.to_titled_markdown() if table.rows else without_rows
