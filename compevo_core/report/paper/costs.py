"""``efficiency`` and ``lud``: what agent systems cost, and what judges say of logic updates.

What belongs here: ratios of costs, agreement of judges and gains beside the paper's. What does not:
measuring them (``paper.lud``, the benchmark), errors (the other modules of
``report.paper``).
"""

from collections.abc import Mapping, Sequence

from compevo_core.paper.lud import GAINS, JUDGES
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper import scores as published
from compevo_core.report.paper.cells import NO_ROW, NOT_PRINTED
from compevo_core.report.paper.scores import collect_scores, list_test_scopes, share_budget
from compevo_core.report.rows import drop_sweeps
from compevo_core.report.tables import Row, Table
from compevo_core.report.wording import MISSING, format_number, method_name

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
    tables = []
    for place, dataset in enumerate(published.DATASETS):
        costs = _measure_costs(inputs, dataset)
        missing = [name for name in SYSTEMS if name not in costs]
        if place and missing:
            continue
        notes = [] if place else [RATIOS]
        if missing:
            command = f"compevo benchmark {dataset} --methods {','.join(SYSTEMS)}"
            notes.append(f"`{command}` makes the rows.")
        tables.append(
            Table(
                header=["System", *(title for cost in COSTS for title in cost[2:])],
                rows=[_cost_cells(name, dataset, costs) for name in SYSTEMS],
                caption=f"{dataset.capitalize()}: what agent systems cost",
                wrap_columns=frozenset(range(1, 7)),
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


def _cost_cells(name: str, dataset: str, costs: Mapping[str, Mapping[str, float]]) -> list[str]:
    # Seconds on another device say nothing; their ratio to plain averaging does.
    cells = [method_name(name)]
    for column, metric, _, _ in COSTS:
        own, base = (costs.get(system, {}).get(column) for system in (name, SYSTEMS[0]))
        figures = (
            published.find_published(published.EFFICIENCY, dataset, system, metric)
            for system in (name, SYSTEMS[0])
        )
        printed, printed_base = (figure.value if figure else None for figure in figures)
        # A method without a row is not one whose row says nothing of its costs.
        empty = NO_ROW if name not in costs else MISSING
        cells += [_with_ratio(own, base, empty), _with_ratio(printed, printed_base, NOT_PRINTED)]
    return cells


def _with_ratio(value: float | None, base: float | None, empty: str) -> str:
    if value is None:
        return empty
    return f"{format_number(value)} ({value / base:.2f} x)" if base else format_number(value)


def build_lud(inputs: ReportInputs) -> list[Table]:
    """Return agreement of judges, and gains by size of update, of runs and of the paper."""
    # Own rows first: the paper's judges are not ours, and only ranges compare.
    judged = [row for row in inputs.lud if row["table"] == JUDGES]
    gained = [row for row in inputs.lud if row["table"] == GAINS]
    known = {str(row["judge"] or "").partition(":")[0] for row in inputs.lud}
    judges = Table(
        header=["Judges", "Cohen's kappa", "Pearson r", "Updates", "Source"],
        rows=[
            *(_own_cells(row, row["subject"], ("kappa", "pearson_r")) for row in judged),
            *_printed_rows(published.JUDGE_FIGURES, "all", ("kappa", "pearson_r"), "500"),
        ],
        caption="Logic updates: agreement of judges",
        text_columns=frozenset({0, 4}),
        notes=_describe_missing(judged, "--judge local --judge slots"),
    )
    columns = ("mean_lud", "error_gain", "pearson_r")
    gains = Table(
        header=["Updates", "Mean LUD", "Gain", "Pearson r", "Number", "Source"],
        rows=[
            *(_own_cells(row, f"{row['subject']}, by {row['judge']}", columns) for row in gained),
            *_printed_rows(
                published.GAIN_FIGURES, "electricity", ("mean_lud", "rmse_gain", "pearson_r"), ""
            ),
        ],
        caption="Logic updates: size and gain of the forecast",
        text_columns=frozenset({0, 5}),
        notes=[
            *(note for kind, note in LUD_NOTES.items() if not kind or kind in known),
            *_describe_missing(gained, "--judge local"),
        ],
    )
    return [judges, gains]


def _own_cells(row: Row, name: str, columns: Sequence[str]) -> list[str]:
    source = f"{row['dataset']}, run {row['artifact_hash'][:10]}"
    return [name, *(format_number(row[column]) for column in columns), str(row["n"]), source]


def _printed_rows(label: str, dataset: str, metrics: Sequence[str], count: str) -> list[list[str]]:
    rows = []
    for name in published.list_subjects(label):
        figures = [published.find_published(label, dataset, name, metric) for metric in metrics]
        cells = [figure.printed if figure else NOT_PRINTED for figure in figures]
        rows.append([name, *cells, count, "paper"])
    return rows


def _describe_missing(own: Sequence[Row], options: str) -> list[str]:
    return [] if own else [f"No row of ours: `compevo lud RUN electricity {options}`."]
