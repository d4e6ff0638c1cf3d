"""The section on mechanism: what it shows of each data set and budget, and what captions say.

What belongs here: which pictures and tables there are rows for. What does not: making them (the
other modules of ``report.mechanism``), markup (``templates/mechanism.html``).
"""

from collections.abc import Mapping, Sequence

import polars as pl

from compevo_core.report.figures import Picture, make_picture
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.mechanism.curves import (
    GROUPS,
    list_methods,
    list_still,
    make_curve,
)
from compevo_core.report.mechanism.plots import (
    RANKED_ROUNDS,
    plot_dynamics,
    plot_news,
    plot_rewards,
    plot_shifts,
)
from compevo_core.report.mechanism.space import chart_logics, show_space
from compevo_core.report.mechanism.tables import plateau_table, shift_table, topics_table
from compevo_core.report.wording import (
    format_number,
    format_percent,
    join_items,
    method_name,
    scope_name,
)

_SMOOTHED = (
    f"Each point is a mean over neighbouring rounds, at most {GROUPS} points a line; a band spans "
    "the seeds"
)


def list_groups(inputs: ReportInputs) -> list[Mapping[str, object]]:
    """Return what is shown of each data set and budget that left traces."""
    keys = (
        pl.concat([rows.select("dataset", "budget") for rows in (inputs.traces, inputs.logics)])
        .unique()
        .sort("dataset", "budget")
    )
    return [
        _show_group(
            dataset,
            budget,
            inputs.traces.filter(pl.col("dataset") == dataset, pl.col("budget") == budget),
            inputs.logics.filter(pl.col("dataset") == dataset, pl.col("budget") == budget),
        )
        for dataset, budget in keys.rows()
    ]


def _show_group(
    dataset: str, budget: str, traces: pl.DataFrame, logics: pl.DataFrame
) -> Mapping[str, object]:
    title = scope_name(dataset, "") + (f", budget {budget}" if budget else "")
    return {
        "title": title,
        "pictures": _show_traces(traces),
        "plateau": plateau_table(logics),
        "topics": None if logics.is_empty() else topics_table(logics),
        "shifts": shift_table(traces),
        "space": None if logics.is_empty() else _show_space(logics, list_still(traces), title),
    }


def _describe_seeds(rows: pl.DataFrame) -> str:
    """Return how many seeds each method has: ``CompEvo 3 and MAD-RL 1``."""
    counts = [
        f"{method_name(name)} {rows.filter(pl.col('method') == name)['seed'].n_unique()}"
        for name in list_methods(rows)
    ]
    return join_items(counts)


def _describe_ends(traces: pl.DataFrame) -> str:
    """Say what the curves of the validation error end at."""
    ends = []
    for method in list_methods(traces):
        curve = make_curve(traces.filter(pl.col("method") == method), "val_error")
        if curve is not None:
            ends.append(f"{method_name(method)} {format_number(curve.mean[-1])}")
    return f"It ends at: {join_items(ends)}." if ends else "It was not measured."


def _show_traces(traces: pl.DataFrame) -> Sequence[Picture]:
    if traces.is_empty():
        return []
    smoothed = f"{_SMOOTHED} ({_describe_seeds(traces)})."
    pictures = [
        make_picture(
            plot_dynamics(traces),
            caption="Training dynamics: the loss of the aggregated forecast on the windows of each "
            f"round, and its error on validation windows. {_describe_ends(traces)} {smoothed} Runs "
            "of one seed see the same windows in the same order: a dip that lines share is of the "
            "windows. Where methods have unequal seeds, their windows differ too.",
            columns=2,
        ),
        make_picture(
            plot_rewards(traces),
            caption="Reward of each agent, minus the scaled error of its own forecast, on one "
            f"scale. {smoothed} An agent of one seed has nothing in common with that number in "
            "another but its place and its first logic.",
            columns=3,
        ),
        make_picture(
            plot_news(traces),
            caption="Different articles that an agent read in a round, over the rounds, and by the "
            f"agents' rank over the last {RANKED_ROUNDS} rounds. {smoothed} A flat line of ranks "
            "says that all agents read as many: where windows have no more articles than an agent "
            "reads, no logic can choose.",
            columns=2,
        ),
    ]
    if traces["logic_shift"].null_count() < traces.height:
        pictures.append(
            make_picture(
                plot_shifts(traces),
                caption="How far a logic lies from the one before: one minus the cosine of their "
                f"embeddings, 0 where it was kept. {smoothed}",
                columns=2,
            )
        )
    return pictures


def _show_space(logics: pl.DataFrame, still: Sequence[str], title: str) -> Mapping[str, object]:
    shown = format_percent(logics["shown_variance"][0])
    names = join_items([method_name(name) for name in list_methods(logics)])
    label = (
        f"Points in three dimensions: the last logics of {logics.height} agents on {title}, "
        f"coloured by method: {names}; the table holds the distances."
    )
    caption = (
        f"Logics of the last round, {logics.height} agents (seeds: {_describe_seeds(logics)}). The "
        "axes are the first three principal components of their embeddings "
        f"({logics['encoder'][0]}), computed over all logics of the data set together; they hold "
        f"{shown} of the variance, so points that seem close may lie apart in what is left out."
    )
    if still:
        kept = join_items([method_name(name) for name in still])
        caption += f" These agents keep the logics that they start with: those of {kept}."
    return {
        "figure": chart_logics(logics),
        "label": label,
        "still": show_space(logics, caption, label),
    }
