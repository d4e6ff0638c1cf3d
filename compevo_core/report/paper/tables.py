"""Every table that ``compevo table`` knows, by name; the tables of costs and logic updates.

What belongs here: the list of tables and how they are printed. What does not: comparisons of
methods (``report.paper.comparison``), changes (``report.paper.experiments``), measuring costs and
logic updates (the benchmark, ``paper.lud``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from compevo_core.errors import ConfigError
from compevo_core.paper.changes import ABLATION, list_changes
from compevo_core.paper.lud import GAINS, JUDGES
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper.comparison import NO_ROW, NOT_PRINTED, build_agents, build_main
from compevo_core.report.paper.experiments import (
    SENSITIVITY,
    build_backbones,
    build_changes,
    build_sweep,
)
from compevo_core.report.paper.published import (
    DATASETS,
    EFFICIENCY,
    GAIN_FIGURES,
    JUDGE_FIGURES,
    VARIANTS,
    find_published,
    list_subjects,
)
from compevo_core.report.rows import list_test_scopes
from compevo_core.report.tables import (
    MISSING,
    Column,
    Row,
    Table,
    build_table,
    format_number,
    method_name,
)

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
        lambda inputs: build_changes(
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
