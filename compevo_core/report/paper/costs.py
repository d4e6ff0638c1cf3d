"""``efficiency`` and ``lud``: what agent systems cost, and what judges say of logic updates.

What belongs here: ratios of costs, agreement of judges and gains beside the paper's. What does not:
measuring them (``lud.measure``, the benchmark), errors (the other modules of ``report.paper``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from compevo_core.lud.rows import GAINS, JUDGES
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper import published
from compevo_core.report.paper.cells import NO_ROW, NOT_PRINTED
from compevo_core.report.paper.scores import collect_scores, list_test_scopes, share_budget
from compevo_core.report.rows import drop_sweeps
from compevo_core.report.tables import Table
from compevo_core.report.wording import MISSING, format_number, method_name

SYSTEMS = ("mael", "mad-rl", "compevo")
"""The agent systems of the paper's table; the first is what the others are measured against."""

PER_WINDOW = "seconds_per_window"

RATIOS = (
    "Ratios are to MAEL. The paper's costs are of three agents on Llama-3.1-8B; absolute figures "
    "of another backbone and device do not compare; ratios do where both had a core to themselves "
    "(what was trained beside other work is said in the results)."
)

COSTS = (
    ("train_seconds", "train_hours_per_epoch", "Training s", "Training h an epoch, paper"),
    (PER_WINDOW, "seconds_per_step", "s a window", "s a step, paper"),
    ("peak_memory_gb", "peak_memory_gb", "Peak memory GB", "Peak memory GB, paper"),
)
"""Own column, published metric, and the titles of both."""

Row = Mapping[str, Any]


def build_efficiency(inputs: ReportInputs) -> list[Table]:
    """Return the costs of the agent systems by data set, as figures and as ratios to averaging.

    The first data set is the paper's; further ones stand where all systems have rows.
    """
    tables = []
    for place, dataset in enumerate(published.DATASETS):
        costs = _measure_costs(inputs, dataset)
        missing = [name for name in SYSTEMS if name not in costs]
        if place and missing:
            continue
        notes = [RATIOS] if place == 0 else []
        if missing:
            command = f"compevo benchmark --dataset {dataset} --methods {','.join(SYSTEMS)}"
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
    scores_by_scope = []
    for subset in list_test_scopes(inputs.rows, dataset):
        # A sweep's rows have other budgets, and so have CompEvo's own: costs compare at one alone.
        rows, _ = share_budget(drop_sweeps(inputs.rows), dataset, subset, SYSTEMS)
        scores_by_scope.append(collect_scores(rows, dataset, subset))

    costs = {}
    for name in SYSTEMS:
        found = [scores[name] for scores in scores_by_scope if name in scores]
        if not found:
            continue
        # The training is the same for all of them.
        costs[name] = {
            column: found[0].mean[column] for column, *_ in COSTS if column in found[0].mean
        }
        # A hundred windows take seconds, in which anything else on the machine weighs much.
        timed = [score for score in found if PER_WINDOW in score.mean]
        if timed:
            seconds = sum(score.mean[PER_WINDOW] * score.n_windows for score in timed)
            costs[name][PER_WINDOW] = seconds / sum(score.n_windows for score in timed)
    return costs


def _cost_cells(name: str, dataset: str, costs: Mapping[str, Mapping[str, float]]) -> list[str]:
    # Seconds on another device say nothing; how many times those of plain averaging does.
    cells = [method_name(name)]
    for column, metric, _, _ in COSTS:
        own, own_base = (costs.get(one, {}).get(column) for one in (name, SYSTEMS[0]))
        printed, base = (_find_printed(dataset, one, metric) for one in (name, SYSTEMS[0]))
        # A method without a row is not one whose row says nothing of its costs.
        empty = NO_ROW if name not in costs else MISSING
        cells += [_with_ratio(own, own_base, empty), _with_ratio(printed, base, NOT_PRINTED)]
    return cells


def _find_printed(dataset: str, name: str, metric: str) -> float | None:
    figure = published.find_published(published.EFFICIENCY, dataset, name, metric)
    return None if figure is None else figure.value


def _with_ratio(value: float | None, base: float | None, empty: str) -> str:
    if value is None:
        return empty
    return f"{format_number(value)} ({value / base:.2f} x)" if base else format_number(value)


def build_lud(inputs: ReportInputs) -> list[Table]:
    """Return agreement of judges, and gains by size of update, of runs and of the paper."""
    return [_judge_table(inputs.lud), _gain_table(inputs.lud)]


def _judge_table(rows: Sequence[Row]) -> Table:
    # Own rows first: the paper's judges are not ours, and only ranges compare.
    own = [
        [
            row["subject"],
            format_number(row["kappa"]),
            format_number(row["pearson_r"]),
            str(row["n"]),
            _name_source(row),
        ]
        for row in rows
        if row["table"] == JUDGES
    ]
    printed = [
        [
            name,
            *_printed_cells(published.JUDGES, "all", name, ("kappa", "pearson_r")),
            "500",
            "paper",
        ]
        for name in published.list_subjects(published.JUDGES)
    ]
    return Table(
        header=["Judges", "Cohen's kappa", "Pearson r", "Updates", "Source"],
        rows=[*own, *printed],
        caption="Logic updates: agreement of judges",
        text_columns=frozenset({0, 4}),
        notes=_missing_note(own, "--judge local --judge slots"),
    )


def _gain_table(rows: Sequence[Row]) -> Table:
    own = [
        [
            f"{row['subject']}, by {row['judge']}",
            format_number(row["mean_lud"]),
            format_number(row["error_gain"]),
            format_number(row["pearson_r"]),
            str(row["n"]),
            _name_source(row),
        ]
        for row in rows
        if row["table"] == GAINS
    ]
    columns = ("mean_lud", "rmse_gain", "pearson_r")
    printed = [
        [name, *_printed_cells(published.LUD_GAINS, "electricity", name, columns), "", "paper"]
        for name in published.list_subjects(published.LUD_GAINS)
    ]
    return Table(
        header=["Updates", "Mean LUD", "Gain", "Pearson r", "Number", "Source"],
        rows=[*own, *printed],
        caption="Logic updates: size and gain of the forecast",
        text_columns=frozenset({0, 5}),
        notes=[
            "The paper's gains are of the RMSE in MW over 1,200 steps; ours are of the scaled "
            "error of the same round's windows.",
            "Gains are of the best of a group on the windows that chose it, so biased upwards.",
            *_describe_judges(rows),
            *_missing_note(own, "--judge local"),
        ],
    )


def _describe_judges(rows: Sequence[Row]) -> list[str]:
    judges = {str(row["judge"] or "").partition(":")[0] for row in rows}
    notes = []
    if "local" in judges:
        notes.append(
            "A local judge is the run's own backbone. The packaged one, of 135 million parameters, "
            "cannot follow the rubric: its rows show that the measurement runs, not what logics "
            "are worth."
        )
    if "rule" in judges:
        notes.append(
            "rule:slots compares logics slot by slot: a topic, the region, the time of day or the "
            "sign shifts the strategy, a topic that was not named before recombines evidence."
        )
    return notes


def _printed_cells(label: str, dataset: str, name: str, metrics: Sequence[str]) -> list[str]:
    figures = [published.find_published(label, dataset, name, metric) for metric in metrics]
    return [NOT_PRINTED if one is None else one.printed for one in figures]


def _name_source(row: Row) -> str:
    return f"{row['dataset']}, run {row['artifact_hash'][:10]}"


def _missing_note(own: Sequence[object], options: str) -> list[str]:
    return [] if own else [f"No row of ours: `compevo lud RUN {options} --dataset electricity`."]
