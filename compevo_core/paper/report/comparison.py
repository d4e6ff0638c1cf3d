"""The paper's tables of methods: errors beside the printed ones, tests, win rates, skill (5.2).

What belongs here: cells, lines and notes of every table of errors, and the comparisons of methods
and of systems of agents. What does not: the printed figures (``paper.report.published``), selecting
rows (``paper.report.rows``), computing comparisons by window (``evaluation.comparison``).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from compevo_core.evaluation.comparison import FEWEST_BLOCKS, USUAL_BLOCKS
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.paper.declared import read_declared
from compevo_core.paper.report.inputs import ReportInputs
from compevo_core.paper.report.published import (
    AGENTS,
    DATASETS,
    MAIN,
    PAPER_SUBSETS,
    PARAMETERS,
    Published,
    find_published,
    list_contradictions,
    list_subjects,
)
from compevo_core.paper.report.rows import (
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
    format_p,
    format_percent,
    format_with_unit,
    join_items,
    method_name,
    scope_name,
    tabulate,
    title_metric,
)

RATIO_BOUNDS = (0.01, 100.0)  # error ratios are clipped to these, as fev's leaderboard does

NO_ROW = "no row"

NOT_PRINTED = "-"


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
    seeds = []
    for score in scores:
        seeds.append(str(score.seeds) if score else "")
        if score and score.budget not in ("", "standard"):
            seeds[-1] += f", {score.budget} budget"

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
    if any(t["block_days"] == 1 and t["n_blocks"] >= 2 * USUAL_BLOCKS for t in tests):
        notes.append("Blocks of one day: older intervals, too narrow where days are correlated.")
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


REDUCED = ("rmse", "mape_pct")  # metrics whose macro-averaged reduction the paper states

UNFITTED = "quick"  # budget of a few updates: what has no more is in no mean

SIMPLE = (NAIVE, "calendar-ridge")

RANDOM_WALK = ("exchange", "bitcoin")
"""Data sets on whose daily grid the naive forecast is a random walk."""

NOTES = read_declared("notes")


class MethodScores(NamedTuple):
    """Scores on one set of test windows, for one of the paper's comparisons of methods."""

    name: str  # display name, which says where data is made up
    dataset: str
    subset: str
    scores: Mapping[str, Score]
    budget: str  # what all of the paper's methods had; empty where they had their own
    is_first: bool  # whether the paper's figures are beside it: its windows, or the nearest to them


def score_methods(inputs: ReportInputs, label: str, dataset: str) -> list[MethodScores]:
    """Return the scores of every set of test windows; the first is beside the paper's figures.

    Without any row there is one set without scores, under the name of the data set.
    """
    sets: list[MethodScores] = []
    subsets = list_test_scopes(inputs.rows, dataset)
    own = PAPER_SUBSETS.get(dataset, "")
    # Figures of windows that we have stand beside no others, though ours have no rows yet.
    if own not in subsets and (own or not subsets):
        subsets = [own, *subsets]
    for subset in subsets:
        # Systems of agents are compared at one number of updates, as the paper compares them.
        sharing = list_subjects(AGENTS) if label == AGENTS else []
        scores, budget = inputs.find_scores(dataset, subset, sharing=sharing)
        name = _title(inputs, dataset, subset)
        sets.append(MethodScores(name, dataset, subset, scores, budget, is_first=not sets))
    return sets


def _title(inputs: ReportInputs, dataset: str, subset: str) -> str:
    chosen = select_scope(select_pooled(inputs.rows), dataset, subset)
    return scope_name(dataset, subset, synthetic=is_synthetic(chosen))


def compare_methods(inputs: ReportInputs, label: str) -> Iterator[Table]:
    """Yield errors and tests of each test set; the first has the paper's beside it.

    Then the mean over data sets, and of systems of agents how large each of them is.
    """
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
            f"{windows.name}: errors" + (" beside the paper's" if printed else ""),
            highlighted=[0],
            notes=_describe_errors(inputs, windows, shown, printed),
        )
        if len(present) > 1 and COMPEVO in scores:
            yield _rival_table(inputs, windows, present)

    # What the paper lacks says how much of the gain any forecast with a calendar has.
    yield build_macro_table(inputs, label, [*methods[1:], *(SIMPLE if label == MAIN else ())])
    if label == AGENTS:
        yield _parameter_table(inputs)


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
    own = windows.subset in PAPER_SUBSETS.values()
    notes += [
        *list_missing(windows.subset if own else dataset, missing),
        *_list_thinned(inputs, dataset, missing),
    ]
    # Said beside each printed figure, not on a page of its own that nobody opens.
    if label == MAIN and dataset in NOTES["protocol"]:
        notes.append(NOTES["protocol"][dataset])
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
    # On the paper's own windows it is a method of the benchmark like the others.
    if COMPEVO in methods and dataset not in PAPER_SUBSETS.values():
        methods = [method for method in methods if method != COMPEVO]
        notes.append(f"No row of CompEvo: `compevo fit {dataset}`, `compevo evaluate {dataset}`.")
    if methods:
        names = join_items([method_name(method) for method in methods])
        command = f"compevo paper benchmark {dataset} --methods {','.join(methods)}"
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
    """Return the first set that CompEvo has a row of, or the first."""
    return next((windows for windows in sets if COMPEVO in windows.scores), sets[0])


def build_macro_table(inputs: ReportInputs, label: str, rivals: Sequence[str]) -> Table:
    """Return by how much CompEvo lowers errors, averaged over the four data sets (paper 5.2)."""
    by_dataset = {it: _find_main(score_methods(inputs, label, it)).scores for it in DATASETS}

    def pair(dataset: str, rival: str, metric: str) -> tuple[float, float] | None:
        scores = by_dataset[dataset]
        if COMPEVO not in scores or rival not in scores or scores[rival].budget == UNFITTED:
            return None
        ours, other = scores[COMPEVO].mean.get(metric), scores[rival].mean.get(metric)
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
        budgets = dict.fromkeys(score.budget or "none to name" for score in present)
        last = " to ".join(ends) or MISSING, str(len(changes)), join_items(list(budgets))
        rows.append([method_name(rival), *cells, *last])

    measured_titles = ["RMSE", "RMSE, paper", "MAPE", "MAPE, paper"]
    return Table(
        header=["Against", *measured_titles, "RMSE by data set", "Data sets", "Its budgets"],
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


def _parameter_table(inputs: ReportInputs) -> Table:
    scores = _find_main(score_methods(inputs, AGENTS, DATASETS[0])).scores

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
        notes=[NOTES["parameters"]],
    )
