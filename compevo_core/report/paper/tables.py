"""The paper's tables again: this project's committed rows beside the published figures.

What belongs here: every table that ``compevo table`` knows, its cells and notes, and the curves of
the experiments; what ``published.csv`` holds and what can be checked of it without the paper's
data; own mean and spread over seeds, win rate, skill, reductions. What does not: selecting rows
(``report.rows``), computing comparisons by window (``evaluation.comparison``), what is changed
(``paper.changes``), measuring costs and logic updates (the benchmark, ``paper.lud``).

A figure is kept as printed, with the power of ten that its table prints beside the metric.
"""

import csv
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import polars as pl
from matplotlib.axes import Axes

from compevo_core.errors import ConfigError
from compevo_core.evaluation.comparison import FEWEST_BLOCKS
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.paper.changes import ABLATION, EXPERIMENTS, list_changes
from compevo_core.paper.lud import GAINS, JUDGES
from compevo_core.report.figures import ACCENT, OTHER_BARS, Picture, Plot, Style, add_legend
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.rows import (
    PAPER_METRICS,
    Score,
    is_synthetic,
    list_test_scopes,
    select_pooled,
    select_scope,
)
from compevo_core.report.tables import (
    METRIC_TITLES,
    MISSING,
    NAIVE,
    Column,
    Row,
    Table,
    build_table,
    format_column,
    format_difference,
    format_interval,
    format_number,
    format_p,
    format_percent,
    format_with_unit,
    join_items,
    method_name,
    scope_name,
    tabulate,
    title_metric,
)

#: Labels of the paper's tables.
MAIN = "tab:comparison_results"
AGENTS = "tab:simple_avg_results"
PARAMETERS = "tab:baseline_configuration_main"
BACKBONES = "tab:model_generalization_summary"
VARIANTS = "tab:ablation"
EFFICIENCY = "tab:efficiency_comparison_main"
LAMBDA_PG = "tab:lambda_sensitivity"
TAU = "tab:tau_impact_data"
JUDGE_FIGURES = "tab:judge_robustness"
GAIN_FIGURES = "tab:lud_error_correlation"

DATASETS = ("electricity", "exchange", "traffic", "bitcoin")
"""The paper's data sets, in the order of its tables."""

ROUNDING = 0.05
"""Share by which a printed MSE may differ from the square of its RMSE: both have three digits."""

RATIO_BOUNDS = (0.01, 100.0)  # error ratios are clipped to these, as fev's leaderboard does

NO_ROW = "no row"
NOT_PRINTED = "-"
READING = (
    "Interval: 95 %, blocks of days resampled; one in twenty misses zero by chance alone. p: "
    "Wilcoxon's test of block "
    "means, two-sided; variation between trainings is in neither. SD: the deviation between "
    "trainings of CompEvo or of the reference. Differences are means over windows, "
    "each error the mean over its seeds: CompEvo minus the other method, below zero CompEvo is "
    "better; or the change minus its reference, above zero the change is worse. Win rate: share of "
    "other methods with a larger MAE, over tasks (one a series). Skill: one minus the geometric "
    "mean of the MAE over the MAE of Persistence. In the tables of changes RMSE is relative to the "
    "reference."
)
"""What holds for every table, said once beside them."""


class Published(NamedTuple):
    """One printed figure."""

    printed: str  # its digits, as in the table
    spread: str  # printed deviation over runs; empty where there is none
    scale: float  # power of ten that the table prints beside the metric

    @property
    def value(self) -> float:
        """The figure without its power of ten."""
        return float(self.printed) * self.scale

    @property
    def text(self) -> str:
        """The figure in the unit of the series, with its spread."""
        # 35.0e-6 with its one digit is 0.000035: more digits would claim what was not printed.
        shift = round(math.log10(self.scale))
        decimals = max(len(self.printed.partition(".")[2]) - shift, 0)
        figures = (self.printed, self.spread)
        return " ± ".join(f"{float(x) * 10.0**shift:,.{decimals}f}" for x in figures if x)


@functools.cache
def read_published() -> dict[tuple[str, str, str, str], Published]:
    """Return every figure by (label of the table, data set, subject, metric)."""
    file = resources.files("compevo_core.report.paper") / "published.csv"
    return {
        (row["label"], row["dataset"], row["subject"], row["metric"]): Published(
            row["value"], row["spread"], float(row["scale"])
        )
        for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    }


def find_published(label: str, dataset: str, subject: str, metric: str) -> Published | None:
    """Return one figure; None where the paper prints none."""
    return read_published().get((label, dataset, subject, metric))


def list_subjects(label: str) -> list[str]:
    """Return the subjects of a table (methods, variants, settings) in its order."""
    return list(dict.fromkeys(key[2] for key in read_published() if key[0] == label))


def implied_level(dataset: str) -> float:
    """Return the mean size of the series that CompEvo's MAE and MAPE imply together.

    MAPE weighs small values more, so the level is rough; it tells megawatts from scaled values.
    """
    mae, mape = (read_published()[MAIN, dataset, "compevo", key] for key in ("mae", "mape_pct"))
    return mae.value / (mape.value / 100)


def list_contradictions(label: str, dataset: str) -> list[str]:
    """Return sentences on figures of a data set in one table that cannot all be right."""
    sentences = []
    for subject in list_subjects(label):
        mse, rmse = (find_published(label, dataset, subject, key) for key in ("mse", "rmse"))
        # Digits agree to their last; what is further off is not rounding.
        if mse and rmse and abs((ratio := mse.value / rmse.value**2) - 1) > ROUNDING:
            sentences.append(
                f"{dataset}, {subject}: the printed MSE is {ratio:.2g} times the square of the "
                "printed RMSE."
            )
    return sentences


def list_tasks(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Return MAE by task and method: a task is a series, or all windows where there is one."""
    errors: dict[str, Mapping[str, float | None]]
    errors = {name: score.by_entity for name, score in scores.items()}
    # fev counts tasks, and so would one series with its own pooled row twice.
    if len({entity for values in errors.values() for entity in values}) < 2:
        errors = {name: {POOLED: score.mean.get("mae")} for name, score in scores.items()}
    return {
        task: {
            name: mae for name, values in errors.items() if (mae := values.get(task)) is not None
        }
        for task in dict.fromkeys(task for values in errors.values() for task in values)
    }


def win_rate(method: str, tasks: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return the share of (task, other method) in which a method has the smaller MAE.

    A tie counts half, as in fev's leaderboard. None where it has nobody to meet.
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
    """Return one minus the geometric mean of a method's MAE over the naive one's, by task.

    None where a task that has the method lacks the naive forecast, or there is no such task.
    """
    shared = [errors for errors in tasks.values() if method in errors]
    if not shared or any(not errors.get(NAIVE) for errors in shared):
        return None
    # One task with hardly any error would decide the mean of all.
    low, high = RATIO_BOUNDS
    ratios = [min(max(errors[method] / errors[NAIVE], low), high) for errors in shared]
    return 1 - math.exp(sum(map(math.log, ratios)) / len(ratios))


def macro_reduction(pairs: Sequence[tuple[float, float] | None]) -> float | None:
    """Return the mean over data sets of the relative reduction of an error, a share (paper 5.2).

    ``pairs`` are the errors of the method and of the rival by data set. Where one is missing there
    is no mean either: one over others is another figure.
    """
    known = [pair for pair in pairs if pair is not None]
    # The paper averages four data sets; of three it would be another figure under the same name.
    if not known or len(known) < len(pairs):
        return None
    return sum(1 - error / rival for error, rival in known) / len(known)


class TableLine(NamedTuple):
    """What one line of a table of errors compares."""

    name: str  # its first cell
    score: Score | None  # own score; None where no row exists
    published: Mapping[str, Published]  # the published figures by metric


def find_line(name: str, score: Score | None, label: str, dataset: str, subject: str) -> TableLine:
    """Return a line with the figures that a table of the paper has of a subject."""
    figures = {metric: find_published(label, dataset, subject, metric) for metric in PAPER_METRICS}
    return TableLine(name, score, {key: figure for key, figure in figures.items() if figure})


def error_table(
    lines: Sequence[TableLine],
    caption: str,
    *,
    first: str = "Method",
    **layout: Any,  # noqa: ANN401
) -> Table:
    """Return lines as a table: for each metric own mean and spread, then the published figure.

    Columns of published figures are left out where no line has any.
    """
    scores = [line.score for line in lines]
    units = {score.unit for score in scores if score}
    unit = units.pop() if len(units) == 1 else ""
    columns = [Column(first, [line.name for line in lines])]

    for metric in PAPER_METRICS:
        means = [score.mean.get(metric) if score else None for score in scores]
        spreads = [score.spread.get(metric) if score else None for score in scores]
        # Formatted together: a spread with other decimals than its mean cannot be read beside it.
        texts = format_column(metric, [*means, *spreads])
        cells = [
            NO_ROW if score is None else mean if spread == MISSING else f"{mean} ± {spread}"
            for score, mean, spread in zip(scores, texts, texts[len(lines) :], strict=False)
        ]
        ranked = format_column(metric, means)
        columns.append(Column(title_metric(metric, unit), cells, means, ranked))
        # Own and published figures are ranked apart: they are of other windows.
        if any(line.published for line in lines):
            figures = [line.published.get(metric) for line in lines]
            cells = [figure.text if figure else NOT_PRINTED for figure in figures]
            values = [figure.value if figure else None for figure in figures]
            title = f"{METRIC_TITLES[metric]}, paper"
            columns.append(Column(title, cells, values, ranked=[str(value) for value in values]))

    # A row of another budget than the usual one must not pass for one of it.
    seeds = [
        f"{score.seeds}" + f", {score.budget} budget" * (score.budget not in ("", "standard"))
        if score
        else ""
        for score in scores
    ]

    wraps = range(1, len(columns))
    return build_table(
        [*columns, Column("Seeds", seeds)], caption=caption, wrap_columns=wraps, **layout
    )


def format_share(share: float | None) -> str:
    """Return a share as a percentage with its sign; empty says that it cannot be computed."""
    return MISSING if share is None else f"{100 * share:+z.1f} %"


def pair_cells(test: Row | None) -> list[str]:
    """Return difference, interval and p of a comparison."""
    if test is None:
        return ["no pair", "", ""]
    return [format_difference(test), format_interval(test), format_p(test)]


def describe_tests(
    tests: Sequence[Row], scores: Mapping[str, Score], *, side: str = "b"
) -> list[str]:
    """Return what a reader must know of the comparisons of one table; how they are made apart.

    The scores of its methods say how many trainings an error is the mean of; ``side`` of a
    comparison, a or b, has the method of a line.
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
        notes.append("Number of blocks unknown: p was of single windows, and is left out.")

    # Without a second training of what all are compared with, nothing says how trainings vary.
    other = {"a": "b", "b": "a"}[side]
    if alone := {test[f"method_{other}"] for test in tests if test.get(f"seeds_{other}") == 1}:
        names = join_items([method_name(name) for name in sorted(alone)])
        notes.append(f"One training of {names}: the variation between trainings is unknown.")

    # Paired with fewer trainings than their errors are the mean of.
    seeds = {test[f"method_{side}"]: test.get(f"seeds_{side}") for test in tests}
    short = [
        method_name(name)
        for name, count in seeds.items()
        if name in scores and count is not None and count < scores[name].seeds
    ]
    if short:
        notes.append(f"Paired with the first training alone: {join_items(short)}.")
    return notes


#: Methods: the paper's two comparisons (5.2), with the rivals that it lacks.

REDUCED = ("rmse", "mape_pct")  # metrics whose macro-averaged reduction the paper states

UNFITTED = "quick"  # budget of a few updates: what has no more is in no mean

SIMPLE = (NAIVE, "calendar-ridge")
LEVELS_AGREE = 2.0  # factor up to which two levels count as one unit: MAPE makes them rough

RANDOM_WALK = ("exchange", "bitcoin")
"""Data sets on whose daily grid the naive forecast is a random walk."""

PROTOCOL = {
    "electricity": "The paper does not publish its test windows; the published 100-window set of "
    "its data lineage is the nearest public one.",
    "exchange": "The printed errors are far below the errors of a random walk 48 days ahead on the "
    "same series, so the paper's protocol cannot be the one that it states "
    "(decision 13-baselines).",
    "bitcoin": "The printed errors are in scaled units, not in dollars: MAE over MAPE implies a "
    "level near 0.06. The printed RMSE is 11 to 14 times the MAE; on the other data sets CompEvo's "
    "RMSE is about twice its MAE at most, so one of the two seems to be printed with another power "
    "of ten.",
}


class MethodScores(NamedTuple):
    """Scores on one set of test windows, for one of the paper's comparisons of methods."""

    name: str  # display name, which says where data is made up
    dataset: str
    subset: str
    scores: Mapping[str, Score]
    budget: str  # what all of the paper's methods had; empty where they had their own
    is_first: bool  # whether it is the data set's nearest to the windows of the paper


def score_methods(inputs: ReportInputs, label: str, dataset: str) -> list[MethodScores]:
    """Return the scores of every set of test windows; the first is beside the paper's figures.

    Without any row there is one set without scores, under the name of the data set.
    """
    sets: list[MethodScores] = []
    for subset in list_test_scopes(inputs.rows, dataset) or [""]:
        # Systems of agents are compared at one number of updates, as the paper compares them.
        sharing = list_subjects(AGENTS) if label == AGENTS else []
        scores, budget = inputs.find_scores(dataset, subset, sharing=sharing)
        name = _title(inputs, dataset, subset)
        sets.append(MethodScores(name, dataset, subset, scores, budget, is_first=not sets))
    return sets


def _title(inputs: ReportInputs, dataset: str, subset: str) -> str:
    chosen = select_scope(select_pooled(inputs.rows), dataset, subset)
    return scope_name(dataset, subset, synthetic=is_synthetic(chosen))


def build_main(inputs: ReportInputs) -> list[Table]:
    """Return table 1 of the paper by data set, each with the tests against CompEvo."""
    # What the paper lacks says how much of the gain any forecast with a calendar has.
    macro = build_macro_table(inputs, MAIN, [*list_subjects(MAIN)[1:], *SIMPLE])
    return [*_compare_methods(inputs, MAIN), macro, build_unit_table(inputs)]


def build_agents(inputs: ReportInputs) -> list[Table]:
    """Return the comparison of agent systems, and how large each of them is."""
    macro = build_macro_table(inputs, AGENTS, list_subjects(AGENTS)[1:])
    return [*_compare_methods(inputs, AGENTS), macro, _parameter_table(inputs)]


def _compare_methods(inputs: ReportInputs, label: str) -> Iterator[Table]:
    """Yield the errors and the tests of each test set; the first has the paper's beside it."""
    methods = list_subjects(label)
    for windows in (it for dataset in DATASETS for it in score_methods(inputs, label, dataset)):
        scores = windows.scores
        # Methods of the paper in its order, then those that it lacks, by their error.
        extra = [name for name in scores if name not in methods] if label == MAIN else [NAIVE]
        names = [*methods, *(name for name in extra if name in scores)]
        present = [name for name in names if name in scores]
        # The paper has one test set a data set: further ones of ours are without its figures.
        shown, printed = (names, label) if windows.is_first else (present, "")
        yield error_table(
            [find_line(method_name(m), scores.get(m), printed, windows.dataset, m) for m in shown],
            f"{windows.name}: errors" + " beside the paper's" * bool(printed),
            highlighted=[0],
            notes=_describe_errors(inputs, windows, shown, printed),
        )
        if len(present) > 1:
            yield _rival_table(inputs, windows, present)


def _describe_errors(
    inputs: ReportInputs, windows: MethodScores, names: Sequence[str], label: str
) -> list[str]:
    """Return what a reader must know of a table of errors; ``label`` is empty without printed."""
    dataset, scores = windows.dataset, windows.scores
    notes = []
    if windows.budget:
        notes.append(
            f"All systems of agents had the budget `{windows.budget}`; CompEvo's longer training "
            "is among the methods."
        )
    missing = [name for name in names if name not in scores]
    notes += [*list_missing(dataset, missing), *_list_thinned(inputs, dataset, missing)]
    # Said beside each printed figure, not on a page of its own that nobody opens.
    if label == MAIN and dataset in PROTOCOL:
        notes.append(PROTOCOL[dataset])
    contradictions = list_contradictions(label, dataset)
    notes += [f"The paper contradicts itself: {sentence}" for sentence in contradictions]

    # Where a random walk is hard to beat, the table itself says who does not.
    if label == MAIN and dataset in RANDOM_WALK and NAIVE in scores:
        walk = scores[NAIVE].mean["mae"]
        behind = [m for m, score in scores.items() if m != NAIVE and score.mean["mae"] >= walk]
        if behind:
            names_behind = join_items([method_name(method) for method in behind])
            notes.append(f"Do not beat the random walk ({method_name(NAIVE)}): {names_behind}.")
    return notes


def list_missing(dataset: str, methods: Sequence[str]) -> list[str]:
    """Return which methods have no row, and the commands that make them."""
    notes = []
    if COMPEVO in methods:
        notes.append(f"No row of CompEvo: `compevo fit {dataset}`, `compevo evaluate {dataset}`.")
    rest = [method for method in methods if method != COMPEVO]
    if rest:
        names = join_items([method_name(method) for method in rest])
        command = f"compevo benchmark {dataset} --methods {','.join(rest)}"
        notes.append(f"No row of {names}: `{command}`.")
    return notes


def _list_thinned(inputs: ReportInputs, dataset: str, methods: Sequence[str]) -> list[str]:
    """Return the errors of methods that were scored on some of the windows alone."""
    notes = []
    for subset in list_test_scopes(inputs.rows, dataset, is_thinned=True):
        scores, _ = inputs.find_scores(dataset, subset)
        scored = [method for method in methods if method in scores]
        if not scored:
            continue
        # Errors on other windows are not a column; the naive one says how hard these are.
        errors = []
        for name in (*scored, NAIVE):
            if score := scores.get(name):
                budget = f" ({score.budget} budget)" if score.budget else ""
                error = format_with_unit(score.mean["mae"], score.unit)
                errors.append(f"{method_name(name)}{budget} {error}")
        count = scores[scored[0]].n_windows
        notes.append(
            f"{_title(inputs, dataset, subset)}, {count} of them: MAE of {join_items(errors)}."
        )

    return notes


def _rival_table(inputs: ReportInputs, windows: MethodScores, names: Sequence[str]) -> Table:
    """Return the tests of CompEvo against every other method, win rates and skill."""
    scores = windows.scores
    tasks = list_tasks({name: scores[name] for name in names})
    # A CompEvo that had a smaller budget itself is paired at that. Without a budget that both sides
    # had, CompEvo is the full training.
    budget = windows.budget or (scores[COMPEVO].budget if COMPEVO in scores else "")
    # Pairs as they were computed: rows alone hold no error by window. An error of a larger budget
    # is of another training than the pair at this one.
    tests = {
        name: test
        for name, test in inputs.find_tests(
            windows.dataset, windows.subset, COMPEVO, budget=budget
        ).items()
        if not budget or (name in scores and scores[name].budget in ("", budget))
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
        notes.append(f"The command for a missing pair: `compevo pair {windows.dataset}`.")
    return Table(
        header=["Method", "CompEvo less it", "95 % interval", "p", "Win rate", "Skill"],
        rows=rows,
        caption=f"{windows.name}: against CompEvo",
        wrap_columns=[2],
        highlighted=[0],
        notes=[" ".join(notes)],
    )


def build_macro_table(inputs: ReportInputs, label: str, rivals: Sequence[str]) -> Table:
    """Return by how much CompEvo lowers errors, averaged over the four data sets (paper 5.2)."""
    by_dataset = {dataset: score_methods(inputs, label, dataset)[0].scores for dataset in DATASETS}
    rows = []
    for rival in rivals:
        measured = [
            [_pair_own(scores, rival, key) for scores in by_dataset.values()] for key in REDUCED
        ]
        printed = [[_pair_printed(label, it, rival, key) for it in DATASETS] for key in REDUCED]
        means = [
            macro_reduction(pairs) for both in zip(measured, printed, strict=True) for pairs in both
        ]
        cells = [format_share(None if mean is None else -mean) for mean in means]
        changes = [mine / other - 1 for mine, other in filter(None, measured[0])]
        ends = [format_share(end(changes)) for end in (min, max) if changes]
        present = [scores[rival] for scores in by_dataset.values() if rival in scores]
        budgets = dict.fromkeys(score.budget or "none to name" for score in present)
        last = " to ".join(ends) or MISSING, str(len(changes)), join_items(list(budgets))
        rows.append([method_name(rival), *cells, *last])

    return Table(
        header=[
            *("Against", "RMSE", "RMSE, paper", "MAPE", "MAPE, paper"),
            *("RMSE by data set", "Data sets", "Its budgets"),
        ],
        rows=rows,
        caption="Macro-averaged relative change of CompEvo's error",
        text_columns=(0, 7),
        wrap_columns=(5, 7),
        notes=[
            "CompEvo's error over the other's, less one, then the mean over the four data sets, as "
            f"in the paper: below zero CompEvo is better. {MISSING}: a data set has no row of both "
            f"above the `{UNFITTED}` budget, which only shows that a method runs. Budgets and "
            "seeds differ by data set; the range shows where a mean hides that CompEvo is worse."
        ],
    )


def _pair_own(scores: Mapping[str, Score], rival: str, metric: str) -> tuple[float, float] | None:
    if COMPEVO not in scores or rival not in scores or scores[rival].budget == UNFITTED:
        return None
    ours, other = scores[COMPEVO].mean.get(metric), scores[rival].mean.get(metric)
    return None if ours is None or not other else (ours, other)


def _pair_printed(label: str, dataset: str, rival: str, metric: str) -> tuple[float, float] | None:
    ours, other = (find_published(label, dataset, name, metric) for name in (COMPEVO, rival))
    return (ours.value, other.value) if ours and other else None


def build_unit_table(inputs: ReportInputs) -> Table:
    """Return whether MAE and RMSE of the paper are in the unit of ours."""
    rows = []
    for dataset in DATASETS:
        scores = score_methods(inputs, MAIN, dataset)[0].scores
        # Any method will do: the level is a property of the series.
        score = next(iter(scores.values()), None)
        mape = score.mean.get("mape_pct") if score else None
        ours = 100 * score.mean["mae"] / mape if score and mape else None
        theirs = implied_level(dataset)
        levels = format_number(ours), format_number(theirs)
        mae = scores[COMPEVO].mean.get("mae") if COMPEVO in scores else None
        same = (
            "unknown without rows" if ours is None else _compare_levels(ours, theirs, mae, dataset)
        )
        rows.append([dataset.capitalize(), score.unit if score else NO_ROW, *levels, same])

    return Table(
        header=["Data set", "Unit here", "Level here", "Level in the paper", "Same unit"],
        rows=rows,
        caption="Do the published units match?",
        text_columns=(0, 1, 4),
        notes=[
            "Level: MAE over MAPE, roughly the size of the series that the two imply. Our level is "
            "from the method with the least error, the paper's from CompEvo. Where the levels "
            "differ, MAE or MAPE must be another quantity in the paper; it is not MAE where the "
            "two MAE of CompEvo have the same size."
        ],
    )


def _compare_levels(ours: float, theirs: float, mae: float | None, dataset: str) -> str:
    factor = max(ours / theirs, theirs / ours)
    if factor <= LEVELS_AGREE:
        return "yes"
    figure = find_published(MAIN, dataset, COMPEVO, "mae")
    if mae and figure and max(mae / figure.value, figure.value / mae) <= LEVELS_AGREE:
        return f"of MAE, it seems; MAPE then differs by a factor of {factor:,.3g}"
    return f"no: they differ by a factor of {factor:,.3g}"


def _parameter_table(inputs: ReportInputs) -> Table:
    scores = score_methods(inputs, AGENTS, DATASETS[0])[0].scores

    def count(method: str) -> str:
        number = scores[method].mean.get("trainable_parameters") if method in scores else None
        return MISSING if number is None else f"{number:,.0f}"

    def print_count(method: str) -> str:
        figure = find_published(PARAMETERS, "all", method, "trainable_parameters")
        return figure.text if figure else NOT_PRINTED

    return tabulate(
        list_subjects(AGENTS),
        {"Method": method_name, "Trainable weights": count, "Paper, Llama-3.1-8B": print_count},
        caption="Size of the agent systems",
        notes=[
            "Our counts come from the models built on the packaged backbone. `compevo params` "
            "builds all of them on Llama-3.1-8B, and gives the paper's counts."
        ],
    )


#: Changes: one method, changed in one thing.

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
    return _build_changes(inputs, name, datasets, label, names, EXPERIMENTS[name].title.lower())


def _select_experiment(inputs: ReportInputs, name: str) -> pl.DataFrame:
    return inputs.rows.filter(pl.col("experiment") == EXPERIMENTS[name].rows_name)


def list_subsets(rows: pl.DataFrame, dataset: str) -> list[str]:
    """Return the subsets of a data set that have rows; the published test set first."""
    named = rows.filter(pl.col("dataset") == dataset)["subset"].unique().to_list()
    return sorted(map(str, named), key=lambda subset: (not subset.startswith("n2f"), subset))


def _build_changes(
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


#: Costs of agent systems, and what judges say of logic updates.

SYSTEMS = ("mael", "mad-rl", "compevo")
"""The agent systems of the paper's table; the first is what the others are measured against."""

PER_WINDOW = "seconds_per_window"

#: Own column, published metric, and the titles of both.
COSTS = (
    ("train_seconds", "train_hours_per_epoch", "Training s", "Training h an epoch, paper"),
    (PER_WINDOW, "seconds_per_step", "s a window", "s a step, paper"),
    ("peak_memory_gb", "peak_memory_gb", "Peak memory GB", "Peak memory GB, paper"),
)
RATIOS = (
    "Ratios are relative to MAEL. The paper trained three agents on Llama-3.1-8B: absolute figures "
    "on another backbone and device do not compare; ratios do where both had a core to themselves "
    "(the results name what was trained beside other work)."
)
LUD_NOTES = {
    "": "The paper measures gains by the RMSE in MW over 1,200 steps; we use the scaled error on "
    "the windows of the same round. Each gain measures the best logic of a group on the windows "
    "that selected it, so gains are biased upwards.",
    "local": "A local judge is the run's own backbone. The packaged one, of 135 million "
    "parameters, cannot follow the rubric: its rows show that the measurement runs, not what "
    "logics are worth.",
    "rule": "rule:slots compares logics slot by slot: a topic, the region, the time of day or the "
    "sign shifts the strategy, a topic that was not named before recombines evidence.",
}


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
        notes = [] if tables else [RATIOS]
        if missing:
            command = f"compevo benchmark {dataset} --methods {','.join(SYSTEMS)}"
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
    known = {"", *(str(row["judge"] or "").partition(":")[0] for row in inputs.lud)}
    agreement, columns = ("kappa", "pearson_r"), ("mean_lud", "error_gain", "pearson_r")
    printed = ("mean_lud", "rmse_gain", "pearson_r")
    command = "No row of ours: `compevo lud RUN electricity --judge local"

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
            *(note for kind, note in LUD_NOTES.items() if kind in known),
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


PAPER_TABLES: Mapping[str, tuple[str, Callable[[ReportInputs], list[Table]]]] = {
    "main": ("Methods", build_main),
    "agents": ("Agent systems", build_agents),
    "ablation": (
        "Ablation",
        lambda inputs: _build_changes(
            inputs, ABLATION, DATASETS, VARIANTS, list_changes("variant"), "architecture"
        ),
    ),
    "backbones": ("Backbones", build_backbones),
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
    return "\n\n".join([*_format_tables(name, inputs), READING])


def format_all_paper_tables(inputs: ReportInputs) -> str:
    """Return how to read the tables, and every table as Markdown, under a heading each."""
    parts = [READING]
    for name, (title, _) in PAPER_TABLES.items():
        parts += [f"## {title}", *_format_tables(name, inputs)]
    return "\n\n".join(parts)


def _format_tables(name: str, inputs: ReportInputs) -> Iterator[str]:
    for table in build_paper_tables(name, inputs):
        without_rows = f"**{table.caption}**\n\n{' '.join(table.notes)}"
        yield table.to_titled_markdown() if table.rows else without_rows
