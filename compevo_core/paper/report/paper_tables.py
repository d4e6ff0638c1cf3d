"""Every table of ``compevo paper table``, by name, and the figures that the paper prints there.

What belongs here: the printed figures and the checks of them that need none of the paper's data;
the list of tables and how they are printed (paper 5.2 to 5.6, appendix E); comparisons of methods
and of systems of agents with the printed figures, tests, win rates and skill; tables and curves of
one method with one change; costs and logic updates. What does not: selecting rows
(``paper.report.inputs``), what is changed (``paper.changes``), measuring any of it
(``evaluation.comparison``, the benchmark, ``paper.lud``).

A figure is kept as printed, with the power of ten that its table prints next to the metric.
"""

import csv
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import polars as pl
from matplotlib.axes import Axes

from compevo_core.evaluation.comparison import FEWEST_BLOCKS, USUAL_BLOCKS
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.paper.changes import ABLATION, EXPERIMENTS, FOLDS, list_changes
from compevo_core.paper.declared import read_declared, require_known
from compevo_core.paper.lud import GAINS, JUDGES
from compevo_core.paper.report.figures import Picture, Plot, Style, add_legend
from compevo_core.paper.report.inputs import (
    METRIC_TITLES,
    NAIVE,
    PAPER_METRICS,
    Column,
    ReportInputs,
    average_rows,
    build_table,
    common_unit,
    describe_seeds,
    format_column,
    format_difference,
    format_interval,
    format_number,
    format_p,
    format_with_unit,
    is_synthetic,
    list_test_scopes,
    method_name,
    select_pooled,
    select_scope,
    title_metric,
)
from compevo_core.report.charts import ACCENT, OTHER_BARS
from compevo_core.report.tables import (
    MISSING,
    Row,
    Table,
    format_percent,
    join_items,
    scope_name,
    tabulate,
)

# The labels of the paper's tables.
MAIN = "tab:comparison_results"
AGENTS = "tab:simple_avg_results"
PARAMETERS = "tab:baseline_configuration_main"
BACKBONES = "tab:model_generalization_summary"
VARIANTS = "tab:ablation"
EFFICIENCY = "tab:efficiency_comparison_main"
LEAKAGE = "tab:memorization_risk_2026"
CONTEXT = "context-is-key"  # of the benchmark's own table, not the paper's
DATASETS = ("electricity", "exchange", "traffic", "bitcoin")  # in the order of the paper's tables
# The subset with the paper's own test windows, by data set: its figures are printed there.
PAPER_SUBSETS = {"electricity": "paper-original"}
# Share by which a printed MSE may differ from the square of its RMSE: both have three digits.
ROUNDING = 0.05


class Published(NamedTuple):
    """One printed figure."""

    printed: str  # its digits, as in the table
    spread: str  # printed deviation over runs; empty where there is none
    scale: float  # power of ten that the table prints next to the metric

    @property
    def value(self) -> float:
        """The figure without its power of ten."""
        return float(self.printed) * self.scale

    @property
    def text(self) -> str:
        """The figure in the unit of the series, with its spread."""
        # 35.0e-6 with one digit is 0.000035: more digits would claim what was not printed.
        shift = round(math.log10(self.scale))
        decimals = max(len(self.printed.partition(".")[2]) - shift, 0)
        figures = (self.printed, self.spread)
        return " ± ".join(f"{float(x) * 10.0**shift:,.{decimals}f}" for x in figures if x)


@functools.cache
def read_published() -> dict[tuple[str, str, str, str], Published]:
    """Return every figure by (label of the table, data set, subject, metric)."""
    file = resources.files("compevo_core.paper.report") / "published.csv"
    return {
        (row["label"], row["dataset"], row["subject"], row["metric"]): Published(
            row["value"], row["spread"], float(row["scale"])
        )
        for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    }


def find_published(label: str, dataset: str, subject: str, metric: str) -> Published | None:
    """Return one figure; None if the paper prints none."""
    return read_published().get((label, dataset, subject, metric))


def list_subjects(label: str) -> list[str]:
    """Return the subjects of a table (methods, variants, settings) in its order."""
    return list(dict.fromkeys(key[2] for key in read_published() if key[0] == label))


def list_contradictions(label: str, dataset: str) -> list[str]:
    """Return sentences on figures of a data set in one table that cannot all be right."""
    sentences = []
    for subject in list_subjects(label):
        mse, rmse = (find_published(label, dataset, subject, key) for key in ("mse", "rmse"))
        # Digits must agree to the last; a larger difference is not rounding.
        if mse and rmse and abs((ratio := mse.value / rmse.value**2) - 1) > ROUNDING:
            sentences.append(
                f"{dataset}, {subject}: the printed MSE is {ratio:.2g} times the square of the "
                "printed RMSE."
            )
    return sentences


NOTES = read_declared("notes")
RATIO_BOUNDS = (0.01, 100.0)  # error ratios are clipped to these, as fev's leaderboard does
NO_ROW = "no row"
NOT_PRINTED = "-"


def list_tasks(scores: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """Return MAE by task and method: a task is a series, or all windows if there is only one."""
    errors: dict[str, Mapping[str, float | None]]
    errors = {name: score["by_entity"] for name, score in scores.items()}
    # fev counts tasks, and would count a single series twice, with its own pooled row.
    if len({entity for values in errors.values() for entity in values}) < 2:
        errors = {name: {POOLED: score["mae"]} for name, score in scores.items()}
    return {
        task: {
            name: mae for name, values in errors.items() if (mae := values.get(task)) is not None
        }
        for task in dict.fromkeys(task for values in errors.values() for task in values)
    }


def win_rate(method: str, tasks: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return the share of (task, other method) in which a method has the smaller MAE.

    A tie counts half, as in fev's leaderboard. None if it has no opponent.
    """
    points = [
        0.5 + 0.5 * (error > errors[method]) - 0.5 * (error < errors[method])
        for errors in tasks.values()
        if method in errors
        for other, error in errors.items()
        if other != method
    ]
    return sum(points) / len(points) if points else None


def skill_score(method: str, tasks: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return one minus the geometric mean of MAE over naive MAE by task; None if one is missing."""
    shared = [errors for errors in tasks.values() if method in errors]
    if not shared or any(not errors.get(NAIVE) for errors in shared):
        return None
    # Otherwise one task with hardly any error would decide the mean.
    low, high = RATIO_BOUNDS
    ratios = [min(max(errors[method] / errors[NAIVE], low), high) for errors in shared]
    return 1 - math.exp(sum(map(math.log, ratios)) / len(ratios))


def macro_reduction(pairs: Sequence[tuple[float, float] | None]) -> float | None:
    """Return the mean over data sets of the relative reduction of an error, a share (paper 5.2).

    ``pairs`` are the errors of method and rival by data set; if one is missing there is no mean.
    """
    known = [pair for pair in pairs if pair is not None]
    if not known or len(known) < len(pairs):
        return None
    return sum(1 - error / rival for error, rival in known) / len(known)


class TableLine(NamedTuple):
    """What one line of a table of errors compares."""

    name: str  # its first cell
    score: Row | None  # own score; None if no row exists
    published: Mapping[str, Published]  # the published figures by metric


def find_line(subject: str, score: Row | None, label: str, dataset: str) -> TableLine:
    """Return the line of a subject, with the figures that a table of the paper has for it."""
    figures = {metric: find_published(label, dataset, subject, metric) for metric in PAPER_METRICS}
    known = {metric: figure for metric, figure in figures.items() if figure}
    return TableLine(method_name(subject), score, known)


def error_table(
    lines: Sequence[TableLine],
    caption: str,
    *,
    first: str = "Method",
    **layout: Any,  # noqa: ANN401
) -> Table:
    """Return a table: own mean and spread of each metric, then published figures, if any exist."""
    scores = [line.score for line in lines]
    unit = common_unit(filter(None, scores))
    columns = [Column(first, [line.name for line in lines])]

    for metric in PAPER_METRICS:
        means = [score[metric] if score else None for score in scores]
        spreads = [score[f"{metric}_sd"] if score else None for score in scores]
        # Formatted together: a spread is hard to read with other decimals than its mean.
        texts = format_column(metric, [*means, *spreads])
        cells = [
            NO_ROW if score is None else mean if spread == MISSING else f"{mean} ± {spread}"
            for score, mean, spread in zip(scores, texts, texts[len(lines) :], strict=False)
        ]
        ranked = format_column(metric, means)
        columns.append(Column(title_metric(metric, unit), cells, means, ranked))
        # Own and published figures are ranked separately: they are from different windows.
        if any(line.published for line in lines):
            figures = [line.published.get(metric) for line in lines]
            cells = [figure.text if figure else NOT_PRINTED for figure in figures]
            values = [figure.value if figure else None for figure in figures]
            title = f"{METRIC_TITLES[metric]}, paper"
            columns.append(Column(title, cells, values, ranked=[str(value) for value in values]))

    # A row of an unusual budget must not look like a row of the usual one.
    seeds = []
    for score in scores:
        seeds.append(describe_seeds(score) if score else "")
        if score and score["budget"] not in ("", "standard"):
            seeds[-1] += f", {score['budget']} budget"

    wraps = range(1, len(columns))
    return build_table(
        [*columns, Column("Seeds", seeds)], caption=caption, wrap_columns=wraps, **layout
    )


def format_share(share: float | None) -> str:
    """Return a share as a percentage with its sign; empty if it cannot be computed."""
    return MISSING if share is None else f"{100 * share:+z.1f} %"


def pair_cells(test: Row | None) -> list[str]:
    """Return difference, interval and p of a comparison."""
    if test is None:
        return ["no pair", "", ""]
    return [format_difference(test), format_interval(test), format_p(test)]


def describe_tests(
    tests: Sequence[Row], scores: Mapping[str, Row], *, side: str = "b"
) -> list[str]:
    """Return what a reader must know about the comparisons of one table, except how they are made.

    ``scores`` of its methods give the number of trainings behind a mean error; the method of a line
    is on ``side`` a or b of a comparison.
    """
    blocks = {test["n_blocks"] for test in tests}
    known = sorted(blocks - {None})
    notes = []
    if known:
        notes.append(f"Blocks of days: {join_items([str(count) for count in known])}.")
    if known and known[0] < FEWEST_BLOCKS:
        notes.append(
            f"{MISSING}: an interval or a test needs at least {FEWEST_BLOCKS} blocks of days."
        )
    if any(t["block_days"] == 1 and t["n_blocks"] >= 2 * USUAL_BLOCKS for t in tests):
        notes.append("Blocks of one day: older intervals, too narrow where days are correlated.")
    if None in blocks:
        notes.append("Number of blocks unknown: p was of single windows, and is left out.")

    # Without a second training of the common reference, it is unknown how trainings vary.
    other = {"a": "b", "b": "a"}[side]
    if single := {test[f"method_{other}"] for test in tests if test.get(f"seeds_{other}") == 1}:
        names = join_items([method_name(name) for name in sorted(single)])
        notes.append(f"One training of {names}: the variation between trainings is unknown.")

    # Paired with fewer trainings than their mean errors have.
    seeds = {test[f"method_{side}"]: test.get(f"seeds_{side}") for test in tests}
    short = [
        method_name(name)
        for name, count in seeds.items()
        if name in scores and count is not None and count < scores[name]["seeds"]
    ]
    if short:
        notes.append(f"Paired with the first training only: {join_items(short)}.")
    return notes


REDUCED = ("rmse", "mape_pct")  # metrics whose macro-averaged reduction the paper states
UNFITTED = "quick"  # budget of a few updates, which is in no mean
SIMPLE = (NAIVE, "calendar-ridge")
# Data sets on whose daily grid the naive forecast is a random walk.
RANDOM_WALK = ("exchange", "bitcoin")


class MethodScores(NamedTuple):
    """Scores on one set of test windows, for one of the paper's comparisons of methods."""

    name: str  # display name, which marks made-up data
    dataset: str
    subset: str
    scores: Mapping[str, Row]
    budget: str  # common budget of all of the paper's methods; empty if they had their own
    is_first: bool  # whether the paper's figures are next to it: its windows, or the closest ones


def score_methods(inputs: ReportInputs, label: str, dataset: str) -> list[MethodScores]:
    """Return the scores of every set of test windows; the first goes with the paper's figures.

    Without any row there is one set without scores, under the name of the data set.
    """
    sets: list[MethodScores] = []
    subsets = list_test_scopes(inputs.rows, dataset)
    own = PAPER_SUBSETS.get(dataset, "")
    # Figures for windows that we have are shown only with these, even before they have rows.
    if own not in subsets and (own or not subsets):
        subsets = [own, *subsets]
    for subset in subsets:
        # Systems of agents are compared at one number of updates, as in the paper.
        sharing = list_subjects(AGENTS) if label == AGENTS else []
        scores, budget = inputs.find_scores(dataset, subset, sharing=sharing)
        name = _title(inputs, dataset, subset)
        sets.append(MethodScores(name, dataset, subset, scores, budget, is_first=not sets))
    return sets


def _title(inputs: ReportInputs, dataset: str, subset: str) -> str:
    chosen = select_scope(select_pooled(inputs.rows), dataset, subset)
    return scope_name(dataset, subset, synthetic=is_synthetic(chosen))


def compare_methods(inputs: ReportInputs, label: str) -> Iterator[Table]:
    """Yield errors and tests of each test set; the first has the printed ones, too.

    Then the mean over data sets and, for systems of agents, the size of each.
    """
    methods = list_subjects(label)
    for windows in (it for dataset in DATASETS for it in score_methods(inputs, label, dataset)):
        scores = windows.scores
        # Methods of the paper in its order, then the others by their error.
        extra = [name for name in scores if name not in methods] if label == MAIN else [NAIVE]
        names = [*methods, *(name for name in extra if name in scores)]
        present = [name for name in names if name in scores]
        # The paper has one test set per data set: further ones of ours have none of its figures.
        shown, printed = (names, label) if windows.is_first else (present, "")
        yield error_table(
            [find_line(name, scores.get(name), printed, windows.dataset) for name in shown],
            f"{windows.name}: errors" + (" next to the paper's" if printed else ""),
            highlighted=[0],
            notes=_describe_errors(inputs, windows, shown, printed),
        )
        if len(present) > 1 and COMPEVO in scores:
            yield _rival_table(inputs, windows, present)

    # Methods that the paper lacks show how much of the gain any forecast with a calendar has.
    yield build_macro_table(inputs, label, [*methods[1:], *(SIMPLE if label == MAIN else ())])
    if label == AGENTS:
        yield _parameter_table(inputs)


def _describe_errors(
    inputs: ReportInputs, windows: MethodScores, names: Sequence[str], label: str
) -> list[str]:
    """Return notes for a table of errors; ``label`` is empty if the paper prints none."""
    dataset, scores = windows.dataset, windows.scores
    notes = []
    if windows.budget:
        notes.append(
            f"All systems of agents had the budget `{windows.budget}`; CompEvo's longer training "
            "is among the methods."
        )
    missing = [name for name in names if name not in scores]
    own = windows.subset in PAPER_SUBSETS.values()
    notes += [
        *list_missing(windows.subset if own else dataset, missing),
        *_list_thinned(inputs, dataset, missing),
    ]
    # Stated with each printed figure, not on a separate page that no one opens.
    if label == MAIN and dataset in NOTES["protocol"]:
        notes.append(NOTES["protocol"][dataset])
    contradictions = list_contradictions(label, dataset)
    notes += [f"The paper contradicts itself: {sentence}" for sentence in contradictions]

    # If a random walk is hard to beat, the table itself names the methods that do not.
    if label == MAIN and dataset in RANDOM_WALK and NAIVE in scores:
        walk = scores[NAIVE]["mae"]
        behind = [m for m, score in scores.items() if m != NAIVE and score["mae"] >= walk]
        if behind:
            names_behind = join_items([method_name(method) for method in behind])
            notes.append(f"Do not beat the random walk ({method_name(NAIVE)}): {names_behind}.")
    return notes


def list_missing(dataset: str, methods: Sequence[str]) -> list[str]:
    """Return which methods have no row, and the commands that make them."""
    notes = []
    # On the paper's own windows CompEvo is a method of the benchmark like the others.
    if COMPEVO in methods and dataset not in PAPER_SUBSETS.values():
        methods = [method for method in methods if method != COMPEVO]
        notes.append(f"No row of CompEvo: `compevo fit {dataset}`, `compevo evaluate {dataset}`.")
    if methods:
        names = join_items([method_name(method) for method in methods])
        command = f"compevo paper benchmark {dataset} --methods {','.join(methods)}"
        notes.append(f"No row of {names}: `{command}`.")
    return notes


def _list_thinned(inputs: ReportInputs, dataset: str, methods: Sequence[str]) -> list[str]:
    """Return the errors of methods that were scored on only some of the windows."""
    notes = []
    for subset in list_test_scopes(inputs.rows, dataset, is_thinned=True):
        scores, _ = inputs.find_scores(dataset, subset)
        scored = [method for method in methods if method in scores]
        if not scored:
            continue
        # Errors on other windows are no column; the naive error shows how hard these are.
        errors = []
        for name in (*scored, NAIVE):
            if score := scores.get(name):
                budget = f" ({score['budget']} budget)" if score["budget"] else ""
                error = format_with_unit(score["mae"], score["unit"])
                errors.append(f"{method_name(name)}{budget} {error}")
        count = scores[scored[0]]["n_windows"]
        notes.append(
            f"{_title(inputs, dataset, subset)}, {count} of them: MAE of {join_items(errors)}."
        )

    return notes


def _rival_table(inputs: ReportInputs, windows: MethodScores, names: Sequence[str]) -> Table:
    """Return the tests of CompEvo against every other method, win rates and skill."""
    scores = windows.scores
    tasks = list_tasks({name: scores[name] for name in names})
    # If CompEvo itself had a smaller budget, it is paired at that budget. Without a common budget,
    # CompEvo is the full training.
    budget = windows.budget or (scores[COMPEVO]["budget"] if COMPEVO in scores else "")
    # Pairs as they were computed: rows do not hold errors by window. An error at a larger budget
    # belongs to another training than the pair at this one.
    tests = {
        name: test
        for name, test in inputs.find_tests(
            windows.dataset, windows.subset, COMPEVO, budget=budget
        ).items()
        if not budget or (name in scores and scores[name]["budget"] in ("", budget))
    }
    rows = []
    for name in names:
        paired = ["", "", ""] if name == COMPEVO else pair_cells(tests.get(name))
        skill = skill_score(name, tasks)
        shares = format_percent(win_rate(name, tasks)), format_share(skill)
        rows.append([method_name(name), *paired, *shares])

    notes = describe_tests([tests[name] for name in names if name in tests], scores)
    notes.append(f"{len(tasks)} task(s).")
    if not set(names) <= {COMPEVO, *tests}:
        notes.append(f"The command for a missing pair: `compevo paper pair {windows.dataset}`.")
    return Table(
        header=["Method", "CompEvo less it", "95 % interval", "p", "Win rate", "Skill"],
        rows=rows,
        caption=f"{windows.name}: against CompEvo",
        wrap_columns=[2],
        highlighted=[0],
        notes=[" ".join(notes)],
    )


def _find_main(sets: Sequence[MethodScores]) -> MethodScores:
    """Return the first set with a row of CompEvo, or the first."""
    return next((windows for windows in sets if COMPEVO in windows.scores), sets[0])


def build_macro_table(inputs: ReportInputs, label: str, rivals: Sequence[str]) -> Table:
    """Return by how much CompEvo lowers errors, averaged over the four data sets (paper 5.2)."""
    by_dataset = {it: _find_main(score_methods(inputs, label, it)).scores for it in DATASETS}

    def pair(dataset: str, rival: str, metric: str) -> tuple[float, float] | None:
        scores = by_dataset[dataset]
        if COMPEVO not in scores or rival not in scores or scores[rival]["budget"] == UNFITTED:
            return None
        ours, other = scores[COMPEVO][metric], scores[rival][metric]
        return None if ours is None or not other else (ours, other)

    def pair_printed(dataset: str, rival: str, metric: str) -> tuple[float, float] | None:
        ours, other = (find_published(label, dataset, it, metric) for it in (COMPEVO, rival))
        return (ours.value, other.value) if ours and other else None

    rows = []
    for rival in rivals:
        measured, printed = (
            [[find_pair(it, rival, key) for it in DATASETS] for key in REDUCED]
            for find_pair in (pair, pair_printed)
        )
        means = [
            macro_reduction(pairs) for both in zip(measured, printed, strict=True) for pairs in both
        ]
        cells = [format_share(None if mean is None else -mean) for mean in means]
        changes = [mine / other - 1 for mine, other in filter(None, measured[0])]
        ends = [format_share(end(changes)) for end in (min, max) if changes]
        present = [scores[rival] for scores in by_dataset.values() if rival in scores]
        budgets = dict.fromkeys(score["budget"] or "none to name" for score in present)
        last = " to ".join(ends) or MISSING, str(len(changes)), join_items(list(budgets))
        rows.append([method_name(rival), *cells, *last])

    measured_titles = ["RMSE", "RMSE, paper", "MAPE", "MAPE, paper"]
    return Table(
        header=["Against", *measured_titles, "RMSE by data set", "Data sets", "Its budgets"],
        rows=rows,
        caption="Macro-averaged relative change of CompEvo's error",
        text_columns=(0, 7),
        wrap_columns=(5, 7),
        notes=[NOTES["macro"]],
    )


def _parameter_table(inputs: ReportInputs) -> Table:
    scores = _find_main(score_methods(inputs, AGENTS, DATASETS[0])).scores

    def count(method: str) -> str:
        number = scores[method]["trainable_parameters"] if method in scores else None
        return MISSING if number is None else f"{number:,.0f}"

    def print_count(method: str) -> str:
        figure = find_published(PARAMETERS, "all", method, "trainable_parameters")
        return figure.text if figure else NOT_PRINTED

    return tabulate(
        list_subjects(AGENTS),
        {"Method": method_name, "Trainable weights": count, "Paper, Llama-3.1-8B": print_count},
        caption="Size of the agent systems",
        notes=[NOTES["parameters"]],
    )


# The agent systems of the paper's table; the others are measured against the first.
SYSTEMS = ("mael", "mad-rl", "compevo")
PER_WINDOW = "seconds_per_window"

#: Own column, published metric, and the titles of both.
COSTS = (
    ("train_seconds", "train_hours_per_epoch", "Training s", "Training h per epoch, paper"),
    (PER_WINDOW, "seconds_per_step", "s per window", "s per step, paper"),
    ("peak_memory_gb", "peak_memory_gb", "Peak memory GB", "Peak memory GB, paper"),
)

# The paper's tables of experiments that print figures; the others are curves without numbers.
PRINTED = {"lambda-pg": "tab:lambda_sensitivity", "tau": "tab:tau_impact_data"}
ONE_FORECAST = "Identical results: this change did not affect any forecast."
OTHER_WINDOWS = "The paper's figures belong to its own test windows, not to these."
# Height of a curve's axis as a share of the error, so that a thousandth of it looks flat.
LEAST_SPAN = 0.02
_WEIGHTS = ("lambda-pg", "lambda-div", "lambda-prune")
SENSITIVITY = (*_WEIGHTS, "tau", "beta", "t-gen", "agents", "epochs", "instruction")
PERTURBATION = ("news", "news-mael", "news-mae-gpt", "news-mad-rl")


def build_backbones(inputs: ReportInputs) -> list[Table]:
    """Return the paper's backbones, and the layers of the packaged one."""
    printed = error_table(
        [find_line(name, None, BACKBONES, "electricity") for name in list_subjects(BACKBONES)],
        "Electricity: backbones of the paper",
        first="Backbone",
        notes=[NOTES["backbones"]],
    )
    return [printed, *build_sweep(inputs, "layers")]


def build_sweep(inputs: ReportInputs, name: str) -> list[Table]:
    """Return the tables of one experiment, one per data set and subset with rows.

    Without any row, there is one table of what the paper prints, or of what would be there.
    """
    rows, label = _select_experiment(inputs, name), PRINTED.get(name, "")
    names = list(dict.fromkeys([*EXPERIMENTS[name].names, *list_subjects(label)]))
    # Without rows, the paper's data set of this figure still shows what is missing.
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
            # The paper has one test set per data set; its figures are shown with our closest set.
            printed = "" if place else label
            lines = {
                name: find_line(name, scores.get(name), printed, dataset)
                for name in names
                if not place or name in scores
            }
            caption = f"{scope_name(dataset, subset)}: {title}"
            missing = [line.name for line in lines.values() if line.score is None]
            notes = [f"No row of {join_items(missing)}: `{command}`."] if missing else []
            if printed and subset and subset != PAPER_SUBSETS.get(dataset, subset):
                notes.append(OTHER_WINDOWS)
            errors = [line.score["mse"] for line in lines.values() if line.score]
            # Equal in every digit, not only as printed.
            if len(errors) > 1 and len(set(errors)) == 1:
                notes.append(ONE_FORECAST)
            # Without rows and published figures the note is enough.
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
    scores: Mapping[str, Row],
    tests: Mapping[str, Row],
) -> Table:
    """Return each change's difference from the reference, by window, and the paper's figures."""
    measured = {name: score["rmse"] for name, score in scores.items()}
    figures = {name: line.published.get("rmse") for name, line in lines.items()}
    printed = {name: figure.value for name, figure in figures.items() if figure}
    notes = describe_tests([tests[name] for name in lines if name in tests], scores, side="a")

    return Table(
        header=["Change", "Difference", "95 % interval", "p", "RMSE", "RMSE, paper"],
        rows=[
            [
                method_name(name),
                *pair_cells(tests.get(name)),
                # Levels of two backbones cannot be compared; the cost of a change can.
                *(
                    format_share(values[name] / values[reference] - 1)
                    if name in values and reference in values
                    else NOT_PRINTED
                    for values in (measured, printed)
                ),
            ]
            for name in lines
            # Changes that were not run have a note, which says more than a line of empty cells.
            if name != reference and name in scores
        ],
        caption=f"{caption}, against {method_name(reference)}",
        wrap_columns=[2],
        notes=[" ".join(notes)] if notes else [],
    )


def show_curves(inputs: ReportInputs) -> list[Picture]:
    """Return one picture for each experiment and test set with at least two changes."""
    pictures = []
    for name, sweep in EXPERIMENTS.items():
        rows = _select_experiment(inputs, name)
        scopes = [
            (dataset, subset)
            for dataset in rows["dataset"].unique(maintain_order=True)
            for subset in list_subsets(rows, dataset)
            # The ablation has its own bars.
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


def fill_sweep(name: str, dataset: str, scores: Mapping[str, Row], axis: Axes) -> None:
    """Draw the RMSE of every change in order, its spread over seeds, and the paper's next to it."""
    errors, printed = {}, {}
    for change, score in scores.items():
        setting, _, value = change.partition("=")
        errors[value] = score["rmse"], score["rmse_sd"] or 0.0
        if figure := find_published(PRINTED.get(name, ""), dataset, change, "rmse"):
            printed[value] = figure.value
    has_seeds = any(score["seeds"] > 1 for score in scores.values())
    label = "here, with deviation over seeds" if has_seeds else "here, one seed"
    # Equal steps: values such as 0.001 and 1 share no scale, and names have none.
    places = {value: place for place, value in enumerate(errors)}
    means, spreads = zip(*errors.values(), strict=True)
    marks: Style = {"marker": "o", "markersize": 4, "capsize": 3}
    axis.errorbar(list(places.values()), means, yerr=spreads, color=ACCENT, label=label, **marks)
    if printed:
        known = [places[value] for value in printed]
        squares: Style = {"color": OTHER_BARS, "marker": "s", "label": "paper, its windows"}
        axis.plot(known, list(printed.values()), **squares)
    axis.set_xticks(list(places.values()), list(places))
    axis.set_xlabel(setting)
    add_legend(axis)
    axis.set_ylabel(f"RMSE {common_unit(scores.values())}".strip())

    # A span at which a meaningless difference is not visible.
    low, high = axis.get_ylim()
    middle = (low + high) / 2
    half = max(high - low, LEAST_SPAN * middle) / 2
    axis.set_ylim(middle - half, middle + half)


def build_efficiency(inputs: ReportInputs) -> list[Table]:
    """Return the costs of the agent systems, and ratios, by data set; the paper's is first."""
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
        # Seconds on another device mean nothing; their ratio to plain averaging does.
        for column, metric, title, printed_title in COSTS:
            measured = {name: cost[column] for name, cost in costs.items() if column in cost}
            figures = {name: find_published(EFFICIENCY, dataset, name, metric) for name in SYSTEMS}
            printed = {name: figure.value for name, figure in figures.items() if figure}
            # A method without a row differs from one whose row lacks its costs.
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
    """Return the costs of each system by column; seconds per window cover all test windows."""
    scopes = []
    for subset in list_test_scopes(inputs.rows, dataset):
        # Sweeps have other budgets, and so do CompEvo's own rows: costs are compared at only one.
        scopes.append(inputs.find_scores(dataset, subset, sharing=SYSTEMS)[0])

    costs = {}
    for name in SYSTEMS:
        scores = [scope[name] for scope in scopes if name in scope]
        if not scores:
            continue
        # The training is the same for all of them.
        first = scores[0]
        costs[name] = {column: first[column] for column, *_ in COSTS if first[column] is not None}
        # A hundred windows take only seconds, so that other work on the machine matters much.
        timed = [score for score in scores if score[PER_WINDOW] is not None]
        if timed:
            seconds = sum(score[PER_WINDOW] * score["n_windows"] for score in timed)
            costs[name][PER_WINDOW] = seconds / sum(score["n_windows"] for score in timed)
    return costs


def _with_ratio(values: Mapping[str, float], system: str, empty: str) -> str:
    value, base = values.get(system), values.get(SYSTEMS[0])
    if value is None:
        return empty
    return f"{format_number(value)} ({value / base:.2f} x)" if base else format_number(value)


def build_lud(inputs: ReportInputs) -> list[Table]:
    """Return agreement of judges, and gains by size of update, for runs and for the paper."""
    # Own rows first: the paper's judges are not ours, so only ranges can be compared.
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
            *_printed_rows("tab:judge_robustness", "all", agreement, "500"),
        ],
        caption="Logic updates: agreement of judges",
        text_columns=(0, 4),
        notes=[] if judged else [f"{command} --judge slots`."],
    )

    gains = Table(
        header=["Updates", "Mean LUD", "Gain", "Pearson r", "Number", "Source"],
        rows=[
            *(_own_cells(row, f"{row['subject']}, by {row['judge']}", columns) for row in gained),
            *_printed_rows("tab:lud_error_correlation", "electricity", printed, ""),
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
    source = f"{row['dataset']}, run {row['artifact_hash'][:10]}, {row['windows']} windows"
    return [name, *(format_number(row[column]) for column in columns), str(row["n"]), source]


def _printed_rows(
    label: str, dataset: str, metrics: Sequence[str], count: str
) -> Iterator[list[str]]:
    for name in list_subjects(label):
        figures = [find_published(label, dataset, name, metric) for metric in metrics]
        cells = [figure.printed if figure else NOT_PRINTED for figure in figures]
        yield [name, *cells, count, "paper"]


def build_leakage(inputs: ReportInputs) -> list[Table]:
    """Return the errors on the paper's windows of 2026, and what it prints for them."""
    dataset, subset = "electricity-operational", "paper-2026"
    scores, _ = inputs.find_scores(dataset, subset)
    lines = [
        find_line(name, scores.get(name), LEAKAGE, dataset)
        for name in [COMPEVO, *(name for name in scores if name != COMPEVO)]
    ]
    return [
        error_table(lines, scope_name(dataset, subset), highlighted=[0], notes=[NOTES["leakage"]])
    ]


def format_paper_sets(inputs: ReportInputs) -> str:
    """Return the paper's own test sets as Markdown: their contents, and the errors on each."""
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
            "Days that train has for the region": lambda row: format_percent(row["days_in_train"]),
            "Leaks found": lambda row: format_number(row["leaks_found"]),
        },
        caption="Region-days of each set, and how much of its test split is in train",
    )
    parts = [counts.to_titled_markdown()]
    metrics = ("mae", "rmse", "mape_pct")
    naive: Mapping[str, str | None] = {NAIVE: None}
    # The method as written compared with the paper's code, at one budget.
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
                f"{method_name(name)} ({describe_seeds(score)})",
                *(format_number(score[metric]) for metric in metrics),
                *(
                    f"{format_difference(test)} ({format_interval(test)})" if test else "no pair"
                    for test in (of_reference.get(name) for of_reference in tests)
                ),
            ]
            for name, score in scores.items()
        ]
        if label:
            figures = (find_published(label, dataset, COMPEVO, metric) for metric in metrics)
            printed = [figure.text if figure else NOT_PRINTED for figure in figures]
            rows.insert(0, ["CompEvo, as the paper prints it", *printed, ""])
        compared = [f"{method_name(name)} minus this (95 %)" for name in references]
        table = Table(
            header=["Method (seeds)", "MAE", "RMSE", "MAPE %", *compared],
            rows=rows,
            caption=f"{scope_name(dataset, subset)}: errors in MW",
        )
        parts.append(table.to_titled_markdown())
    return "\n\n".join(parts)


# Data set, the paper's table and our methods for each test set of the short table.
_SHORT_SETS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "paper-original": ("electricity", MAIN, ("blend",)),
    "paper-original-no-weather": ("electricity", MAIN, ("blend",)),
    "paper-2026": (
        "electricity-operational",
        LEAKAGE,
        ("mixture-issued", "published-error-gbm", "published"),
    ),
}


def format_short_sets(inputs: ReportInputs) -> str:
    """Return MAE on the paper's own test sets as Markdown: naive, ours, the paper's CompEvo."""
    counts = {row["set"]: f"{row['test']} of {row['published_test']}" for row in inputs.paper_sets}
    lines = []
    for name, (dataset, label, methods) in _SHORT_SETS.items():
        if name not in counts:
            continue
        scores, _ = inputs.find_scores(dataset, name)
        naive, *ours = (format_number(scores[each]["mae"]) for each in (NAIVE, *methods))
        named = (f"{method_name(each)} {mae}" for each, mae in zip(methods, ours, strict=True))
        printed = find_published(label, dataset, COMPEVO, "mae")
        figure = printed.text if printed else NOT_PRINTED
        lines.append((f"`{name}`, {counts[name]}", naive, "; ".join(named), figure))
    title = "The paper's own test windows, MAE in MW"
    header = (title, method_name(NAIVE), "Here, no language model", "The paper's CompEvo")
    return Table(header=header, rows=lines, text_columns=(0, 2)).to_markdown()


def build_fold_table(rows: pl.DataFrame) -> Table:
    """Return the errors of population and prior on every fold of train, then their means."""
    pooled = rows.filter(experiment=FOLDS, entity=POOLED)
    run = ["dataset", "method"]
    lines = [
        TableLine(f"{row['dataset']}: {method_name(row['method'])}, {name.format(**row)}", row, {})
        for keys, name in (([*run, "subset"], "{subset}"), (run, "mean of folds"))
        for row in average_rows(pooled, keys).to_dicts()
    ]
    return error_table(lines, "Folds of train", notes=[NOTES["folds"]])


# Title and builder of each table; for perturbed news the paper only plots errors.
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
    "perturbation": (
        "Perturbed news",
        lambda inputs: [table for name in PERTURBATION for table in build_sweep(inputs, name)],
    ),
    "folds": ("Folds of train", lambda inputs: [build_fold_table(inputs.rows)]),
    "lud": ("Logic updates", build_lud),
}


def build_paper_tables(name: str, inputs: ReportInputs) -> list[Table]:
    """Return the tables of one name; ConfigError if there is no such name."""
    require_known("table", [name], PAPER_TABLES)
    return PAPER_TABLES[name][1](inputs)


def format_paper_tables(name: str, inputs: ReportInputs) -> str:
    """Return the tables of one name as Markdown, and how to read them."""
    return "\n\n".join([*_format_tables(name, inputs), NOTES["reading"]])


def format_all_paper_tables(inputs: ReportInputs) -> str:
    """Return how to read the tables, and every table as Markdown under its own heading."""
    parts = [NOTES["reading"]]
    for name, (title, _) in PAPER_TABLES.items():
        parts += [f"## {title}", *_format_tables(name, inputs)]
    return "\n\n".join(parts)


def _format_tables(name: str, inputs: ReportInputs) -> Iterator[str]:
    for table in build_paper_tables(name, inputs):
        without_rows = f"**{table.caption}**\n\n{' '.join(table.notes)}"
        yield table.to_titled_markdown() if table.rows else without_rows
