"""The paper's tables again: this project's committed rows beside the published figures.

What belongs here: every table that ``compevo table`` knows, its cells and notes, and the curves of
the experiments. What does not: figures and statistics (``report.paper.scores``), computing
comparisons by window (``evaluation.comparison``), what is changed (``paper.changes``), measuring
costs and logic updates (the benchmark, ``paper.lud``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
from matplotlib.figure import Figure

from compevo_core.errors import ConfigError
from compevo_core.evaluation.comparison import FEWEST_BLOCKS
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.paper.changes import ABLATION, EXPERIMENTS, list_changes
from compevo_core.paper.lud import GAINS, JUDGES
from compevo_core.report.figures import Picture, Plot, get_figure
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper.scores import (
    AGENTS,
    BACKBONES,
    DATASETS,
    EFFICIENCY,
    GAIN_FIGURES,
    JUDGE_FIGURES,
    LAMBDA_PG,
    MAIN,
    METRICS,
    PARAMETERS,
    TAU,
    VARIANTS,
    Published,
    Score,
    collect_scores,
    find_published,
    implied_level,
    list_contradictions,
    list_subjects,
    list_tasks,
    list_test_scopes,
    macro_reduction,
    share_budget,
    skill_score,
    win_rate,
)
from compevo_core.report.plots import plot_errors
from compevo_core.report.rows import drop_sweeps, is_synthetic, select_pooled, select_scope
from compevo_core.report.tables import (
    METRIC_TITLES,
    Column,
    Row,
    Table,
    build_table,
    tabulate,
    title_metric,
)
from compevo_core.report.wording import (
    MISSING,
    NAIVE,
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
)

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


class TableLine(NamedTuple):
    """What one line of a table of errors compares."""

    name: str  # its first cell
    score: Score | None  # own score; None where no row exists
    published: Mapping[str, Published]  # the published figures by metric


def find_line(name: str, score: Score | None, label: str, dataset: str, subject: str) -> TableLine:
    """Return a line with the figures that a table of the paper has of a subject."""
    figures = {metric: find_published(label, dataset, subject, metric) for metric in METRICS}
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
    units = {line.score.unit for line in lines if line.score}
    unit = units.pop() if len(units) == 1 else ""
    columns = [Column(first, [line.name for line in lines])]
    for metric in METRICS:
        columns.append(_own_column(lines, metric, title_metric(metric, unit)))
        # Own and published figures are ranked apart: they are of other windows.
        if any(line.published for line in lines):
            figures = [line.published.get(metric) for line in lines]
            cells = [figure.text if figure else NOT_PRINTED for figure in figures]
            values = [figure.value if figure else None for figure in figures]
            title = f"{METRIC_TITLES[metric]}, paper"
            columns.append(Column(title, cells, values, ranked=[str(value) for value in values]))
    seeds = Column("Seeds", [_describe_seeds(line.score) for line in lines])
    wraps = range(1, len(columns))
    return build_table([*columns, seeds], caption=caption, wrap_columns=wraps, **layout)


def _own_column(lines: Sequence[TableLine], metric: str, title: str) -> Column:
    means = [line.score.mean.get(metric) if line.score else None for line in lines]
    spreads = [line.score.spread.get(metric) if line.score else None for line in lines]
    # Formatted together: a spread with other decimals than its mean cannot be read beside it.
    texts = format_column(metric, [*means, *spreads])
    cells = [
        NO_ROW if line.score is None else mean if spread == MISSING else f"{mean} ± {spread}"
        for line, mean, spread in zip(lines, texts, texts[len(lines) :], strict=False)
    ]
    return Column(title, cells, means, ranked=format_column(metric, means))


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

REDUCED = ("rmse", "mape_pct")
"""Metrics whose macro-averaged reduction the paper states."""

UNFITTED = "quick"
"""Budget of a few updates: what has no more is in no mean."""

SIMPLE = (NAIVE, "calendar-ridge")
LEVELS_AGREE = 2.0
"""Factor up to which two levels count as one unit: MAPE makes them rough."""

RANDOM_WALK = ("exchange", "bitcoin")
"""Data sets on whose daily grid the naive forecast is a random walk."""

PROTOCOL = {
    "electricity": "The paper does not publish its test windows; the published 100-window set of "
    "its data lineage is the nearest public one.",
    "exchange": "The printed errors are far below those of a random walk 48 days ahead on the "
    "same series, so the paper's protocol cannot be the one that it states "
    "(decision 13-baselines).",
    "bitcoin": "The printed errors are of scaled values, not of dollars: MAE over MAPE implies a "
    "level near 0.06. The printed RMSE is 11 to 14 times the MAE; on the other data sets CompEvo's "
    "is about twice at most, so one of the two seems to be printed with another power of ten.",
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
        rows, budget = drop_sweeps(inputs.rows), ""
        # Systems of agents are compared at one number of updates, as the paper compares them.
        if label == AGENTS:
            rows, budget = share_budget(rows, dataset, subset, list_subjects(AGENTS))
        scores = collect_scores(rows, dataset, subset)
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
        own = [name for name in scores if name not in methods] if label == MAIN else [NAIVE]
        names = [*methods, *(name for name in own if name in scores)]
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
        scores = collect_scores(drop_sweeps(inputs.rows), dataset, subset)
        scored = [method for method in methods if method in scores]
        if not scored:
            continue
        # Errors on other windows are no column; the naive one says how hard these are.
        shown = [name for name in (*scored, NAIVE) if name in scores]
        errors = join_items([_describe_error(name, scores[name]) for name in shown])
        count = scores[scored[0]].n_windows
        notes.append(f"{_title(inputs, dataset, subset)}, {count} of them: MAE of {errors}.")
    return notes


def _describe_error(method: str, score: Score) -> str:
    budget = f" ({score.budget} budget)" if score.budget else ""
    return f"{method_name(method)}{budget} {format_with_unit(score.mean['mae'], score.unit)}"


def _rival_table(inputs: ReportInputs, windows: MethodScores, names: Sequence[str]) -> Table:
    """Return the tests of CompEvo against every other method, win rates and skill."""
    scores = windows.scores
    tasks = list_tasks({name: scores[name] for name in names})
    # Pairs as they were computed: rows alone hold no error by window.
    tests = _find_tests(inputs, windows)
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


def _find_tests(inputs: ReportInputs, windows: MethodScores) -> dict[str, Row]:
    """Return the comparisons of the trainings whose errors the table shows, by the other method."""
    scores = windows.scores
    # A CompEvo that had a smaller budget itself is paired at that. Without a budget that both sides
    # had, CompEvo is the full training.
    budget = windows.budget or (scores[COMPEVO].budget if COMPEVO in scores else "")
    tests = inputs.find_tests(windows.dataset, windows.subset, COMPEVO, budget=budget)
    # An error of a larger budget is of another training than the pair at this one.
    shown = {name for name, score in scores.items() if score.budget in ("", budget)}
    return {name: test for name, test in tests.items() if not budget or name in shown}


def build_macro_table(inputs: ReportInputs, label: str, rivals: Sequence[str]) -> Table:
    """Return by how much CompEvo lowers errors, averaged over the four data sets (paper 5.2)."""
    by_dataset = {dataset: score_methods(inputs, label, dataset)[0].scores for dataset in DATASETS}
    rows = []
    for rival in rivals:
        cells = []
        for metric in REDUCED:
            own = [_pair_own(scores, rival, metric) for scores in by_dataset.values()]
            printed = [_pair_printed(label, dataset, rival, metric) for dataset in DATASETS]
            cells += [_format_macro(own), _format_macro(printed)]
            if metric == "rmse":
                changes = [mine / other - 1 for mine, other in filter(None, own)]
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


def _format_macro(pairs: Sequence[tuple[float, float] | None]) -> str:
    reduction = macro_reduction(pairs)
    return format_share(None if reduction is None else -reduction)


def _pair_own(scores: Mapping[str, Score], rival: str, metric: str) -> tuple[float, float] | None:
    if COMPEVO not in scores or rival not in scores or scores[rival].budget == UNFITTED:
        return None
    own, other = scores[COMPEVO].mean.get(metric), scores[rival].mean.get(metric)
    return None if own is None or not other else (own, other)


def _pair_printed(label: str, dataset: str, rival: str, metric: str) -> tuple[float, float] | None:
    own, other = (find_published(label, dataset, name, metric) for name in (COMPEVO, rival))
    return (own.value, other.value) if own and other else None


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
        unit, same = score.unit if score else NO_ROW, _compare_levels(ours, theirs, dataset, scores)
        levels = format_number(ours), format_number(theirs)
        rows.append([dataset.capitalize(), unit, *levels, same])
    return Table(
        header=["Data set", "Unit here", "Level here", "Level in the paper", "Same unit"],
        rows=rows,
        caption="Do the published units match?",
        text_columns=(0, 1, 4),
        notes=[
            "Level: MAE over MAPE, roughly the size of the series that the two imply; here of the "
            "method with the least error, in the paper of CompEvo. Where levels differ, either MAE "
            "or MAPE is another quantity; it is not MAE where CompEvo's two are of one size."
        ],
    )


def _compare_levels(
    ours: float | None, theirs: float, dataset: str, scores: Mapping[str, Score]
) -> str:
    if ours is None:
        return "unknown without rows"
    factor = max(ours / theirs, theirs / ours)
    if factor <= LEVELS_AGREE:
        return "yes"
    figure = find_published(MAIN, dataset, COMPEVO, "mae")
    own = scores[COMPEVO].mean.get("mae") if COMPEVO in scores else None
    if own and figure and max(own / figure.value, figure.value / own) <= LEVELS_AGREE:
        return f"of MAE, it seems; MAPE then differs by a factor of {factor:,.3g}"
    return f"no: they differ by a factor of {factor:,.3g}"


def _parameter_table(inputs: ReportInputs) -> Table:
    scores = score_methods(inputs, AGENTS, DATASETS[0])[0].scores

    def count(method: str) -> str:
        own = scores[method].mean.get("trainable_parameters") if method in scores else None
        return MISSING if own is None else f"{own:,.0f}"

    def print_count(method: str) -> str:
        figure = find_published(PARAMETERS, "all", method, "trainable_parameters")
        return figure.text if figure else NOT_PRINTED

    return tabulate(
        list_subjects(AGENTS),
        {"Method": method_name, "Trainable weights": count, "Paper, Llama-3.1-8B": print_count},
        caption="Size of the agent systems",
        notes=[
            "Ours are of the built models on the packaged backbone. `compevo params` builds all of "
            "them on Llama-3.1-8B, and gives the paper's counts."
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


def build_ablation(inputs: ReportInputs) -> list[Table]:
    """Return table 3 of the paper by data set, each variant also against the full method."""
    names = list_changes("variant")
    return _build_changes(inputs, ABLATION, DATASETS, VARIANTS, names, "architecture")


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


def build_sensitivity(inputs: ReportInputs) -> list[Table]:
    """Return one table a setting that the paper varies."""
    return [table for name in SENSITIVITY for table in build_sweep(inputs, name)]


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
    own = rows.filter(pl.col("dataset") == dataset)["subset"].unique().to_list()
    return sorted(map(str, own), key=lambda subset: (not subset.startswith("n2f"), subset))


def _build_changes(
    inputs: ReportInputs,
    experiment: str,
    datasets: Iterable[str],
    label: str,
    names: Sequence[str],
    title: str,
) -> list[Table]:
    """Return the errors of changes by subset, and how they differ from those of the reference."""
    rows, reference = _select_experiment(inputs, experiment), EXPERIMENTS[experiment].reference
    tables = []
    for dataset in datasets:
        command = f"compevo experiment {experiment} {dataset}"
        for place, subset in enumerate(list_subsets(rows, dataset) or [""]):
            scores = collect_scores(rows, dataset, subset)
            # The paper has one test set a data set; its figures are beside ours of the nearest.
            printed = "" if place else label
            lines = {
                name: find_line(method_name(name), scores.get(name), printed, dataset, name)
                for name in names
                if not place or name in scores
            }
            caption = f"{scope_name(dataset, subset)}: {title}"
            tables.append(_change_table(lines, caption, command))
            # Without the reference's row there is no difference from it.
            if reference in scores and len(scores) > 1:
                tests = inputs.find_tests(dataset, subset, reference, side="b")
                tables.append(_difference_table(caption, reference, lines, scores, tests))
    return tables


def _change_table(lines: Mapping[str, TableLine], caption: str, command: str) -> Table:
    missing = [line.name for line in lines.values() if line.score is None]
    notes = [f"No row of {join_items(missing)}: `{command}`."] if missing else []
    errors = [line.score.mean.get("mse") for line in lines.values() if line.score]
    # Equal to every digit, and not only as printed.
    if len(errors) > 1 and len(set(errors)) == 1:
        notes.append(ONE_FORECAST)
    # Without any row and any published figure the note says it all.
    is_empty = not any(line.score or line.published for line in lines.values())
    return error_table([] if is_empty else [*lines.values()], caption, first="Change", notes=notes)


def _difference_table(
    caption: str,
    reference: str,
    lines: Mapping[str, TableLine],
    scores: Mapping[str, Score],
    tests: Mapping[str, Row],
) -> Table:
    """Return how far each change lies from the reference: by window, and beside the paper's."""
    own = {name: score.mean["rmse"] for name, score in scores.items()}
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
                    for values in (own, printed)
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
            scores = collect_scores(rows, dataset, subset)
            shown = {key: scores[key] for key in sweep.names if key in scores}
            if len(shown) > 1:
                title = f"{scope_name(dataset, subset)}: {sweep.title.lower()}"
                alt = f"RMSE by change for {title}; the table holds the numbers."
                plot = Plot(plot_sweep(name, dataset, shown), alt)
                pictures.append(Picture([plot], caption=title))
    return pictures


def plot_sweep(name: str, dataset: str, scores: Mapping[str, Score]) -> Figure:
    """Plot the RMSE of every change in order, its spread over seeds, and the paper's beside it."""
    errors, printed = {}, {}
    for change, score in scores.items():
        setting, _, value = change.partition("=")
        errors[value] = score.mean["rmse"], score.spread.get("rmse", 0.0)
        if figure := find_published(PRINTED.get(name, ""), dataset, change, "rmse"):
            printed[value] = figure.value
    has_seeds = any(score.seeds > 1 for score in scores.values())
    label = "here, with deviation over seeds" if has_seeds else "here, one seed"
    axis = plot_errors(errors, printed, label=label, x=setting)
    units = {score.unit for score in scores.values()}
    axis.set_ylabel(f"RMSE {units.pop()}" if len(units) == 1 else "RMSE")

    # A span by which a difference that means nothing looks like nothing.
    low, high = axis.get_ylim()
    middle = (low + high) / 2
    half = max(high - low, LEAST_SPAN * middle) / 2
    axis.set_ylim(middle - half, middle + half)
    return get_figure(axis)


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
    "Ratios are to MAEL. The paper's costs are of three agents on Llama-3.1-8B: absolute figures "
    "of another backbone and device do not compare; ratios do where both had a core to themselves "
    "(the results name what was trained beside other work)."
)
LUD_NOTES = {
    "": "The paper's gains are of the RMSE in MW over 1,200 steps; ours are of the scaled error of "
    "the same round's windows. Gains are of the best of a group on the windows that selected it, "
    "so they are biased upwards.",
    "local": "A local judge is the run's own backbone. The packaged one, of 135 million "
    "parameters, cannot follow the rubric: its rows show that the measurement runs, not what "
    "logics are worth.",
    "rule": "rule:slots compares logics slot by slot: a topic, the region, the time of day or the "
    "sign shifts the strategy, a topic that was not named before recombines evidence.",
}


def build_efficiency(inputs: ReportInputs) -> list[Table]:
    """Return the costs of the agent systems by data set, as figures and as ratios to averaging.

    The first data set is the paper's; further ones are shown where all systems have rows.
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
        tables.append(
            Table(
                header=["System", *(title for cost in COSTS for title in cost[2:])],
                rows=[[method_name(name), *_cost_cells(name, dataset, costs)] for name in SYSTEMS],
                caption=f"{dataset.capitalize()}: what agent systems cost",
                wrap_columns=range(1, 7),
                notes=notes,
            )
        )
    return tables


def _measure_costs(inputs: ReportInputs, dataset: str) -> dict[str, dict[str, float]]:
    """Return what each system cost by column; seconds a window are of all test windows."""
    scopes = []
    for subset in list_test_scopes(inputs.rows, dataset):
        # A sweep's rows have other budgets, and so have CompEvo's own: costs compare at one alone.
        rows, _ = share_budget(drop_sweeps(inputs.rows), dataset, subset, SYSTEMS)
        scopes.append(collect_scores(rows, dataset, subset))

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


def _cost_cells(name: str, dataset: str, costs: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    # Seconds on another device say nothing; their ratio to plain averaging does.
    for column, metric, _, _ in COSTS:
        systems = (name, SYSTEMS[0])
        own, base = (costs.get(system, {}).get(column) for system in systems)
        figures = [find_published(EFFICIENCY, dataset, system, metric) for system in systems]
        printed, printed_base = (figure.value if figure else None for figure in figures)
        # A method without a row is not one whose row says nothing of its costs.
        yield _with_ratio(own, base, NO_ROW if name not in costs else MISSING)
        yield _with_ratio(printed, printed_base, NOT_PRINTED)


def _with_ratio(value: float | None, base: float | None, empty: str) -> str:
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
    "ablation": ("Ablation", build_ablation),
    "backbones": ("Backbones", build_backbones),
    "efficiency": ("Efficiency", build_efficiency),
    "sensitivity": ("Sensitivity", build_sensitivity),
    "perturbation": ("Perturbed news", lambda inputs: build_sweep(inputs, "news")),
    "lud": ("Logic updates", build_lud),
}
"""Title and builder of each table; of perturbed news the paper plots errors and prints none."""


def build_paper_tables(name: str, inputs: ReportInputs) -> list[Table]:
    """Return the tables of one name.

    Raises:
        ConfigError: there is no such name.
    """
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
    # Markdown has no captions, so that each is a line before its table.
    for table in build_paper_tables(name, inputs):
        yield f"**{table.caption}**"
        yield table.to_markdown() if table.rows else " ".join(table.notes)
