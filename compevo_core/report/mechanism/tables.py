"""What the plots of mechanism cannot say exactly: plateaus, topics, distances between logics.

What belongs here: tables of ``mechanism.traces`` and ``mechanism.logics``, and of one run's
rewards. What does not: the test of a plateau (``diagnostics.plateau``), plots
(``report.mechanism.plots``).
"""

from collections import Counter
from collections.abc import Sequence
from statistics import mean, median

import polars as pl

from compevo_core.diagnostics.plateau import Plateau, measure_plateau
from compevo_core.mechanism.logics import TOPIC_SEPARATOR
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.mechanism.curves import list_methods, list_still
from compevo_core.report.tables import Table
from compevo_core.report.wording import MISSING, format_number, method_name

PER_ROUNDS = 100
"""Slopes are shown by so many rounds: those of one round are tiny."""

PLATEAU_NOTES = (
    "Slope: Theil-Sen, of the last half of the rounds; 95 % interval by a moving-block bootstrap.",
    "An interval without 0 contradicts a plateau. One that holds 0 does not show an equilibrium: "
    "the learning rates fall towards the end, batches differ, and a wide interval holds 0 whatever "
    "the reward does.",
)


def plateau_table(logics: pl.DataFrame) -> Table | None:
    """Return how the rewards moved by method; None where no run was long enough."""
    known = logics.drop_nulls("reward_slope")
    rows = [_plateau_row(known.filter(pl.col("method") == name)) for name in list_methods(known)]
    if not rows:
        return None
    return Table(
        header=[
            "Method",
            "Agents",
            "Change of the reward",
            f"Slope by {PER_ROUNDS} rounds, median",
            "Interval holds 0",
            "Still rising",
            "Falling",
        ],
        rows=rows,
        caption="Do the rewards reach a plateau?",
        notes=(
            "Agents of all seeds. Change: mean of the last quarter of the rounds minus that of the "
            "first, mean over agents.",
            *PLATEAU_NOTES,
        ),
    )


def _plateau_row(rows: pl.DataFrame) -> list[str]:
    rising = int((rows["slope_low"] > 0).sum())
    falling = int((rows["slope_high"] < 0).sum())
    return [
        method_name(rows["method"][0]),
        str(rows.height),
        _signed(mean(rows["reward_change"].to_list())),
        _signed(PER_ROUNDS * median(rows["reward_slope"].to_list())),
        f"{rows.height - rising - falling} of {rows.height}",
        str(rising),
        str(falling),
    ]


def run_plateau_table(run: TrainingRun) -> Table | None:
    """Return how the rewards of one run's agents moved; None where it is too short for a test."""
    seed = int(run.setting("run", "seed") or 0)
    plateaus = [
        measure_plateau([record.rewards[agent] for record in run.rounds], seed)
        for agent in range(run.agents)
    ]
    rows = [
        [
            f"agent {agent}",
            _signed(plateau.change),
            _signed(plateau.slope * PER_ROUNDS),
            f"{_signed(plateau.low * PER_ROUNDS)} to {_signed(plateau.high * PER_ROUNDS)}",
            _judge(plateau),
        ]
        for agent, plateau in enumerate(plateaus)
        if plateau is not None
    ]
    if not rows:
        return None
    return Table(
        header=[
            "Agent",
            "Change of the reward",
            f"Slope by {PER_ROUNDS} rounds",
            "95 % interval",
            "Meaning",
        ],
        rows=rows,
        caption="Do the rewards reach a plateau?",
        text_columns=frozenset({0, 4}),
        notes=(
            "Change: mean of the last quarter of the rounds minus that of the first.",
            *PLATEAU_NOTES,
        ),
    )


def _judge(plateau: Plateau) -> str:
    if plateau.is_flat:
        return f"the interval holds 0: no slope is shown over {plateau.n_rounds} rounds"
    direction = "rising" if plateau.slope > 0 else "falling"
    return f"still {direction} over the last {plateau.n_rounds} rounds: no plateau"


def topics_table(logics: pl.DataFrame) -> Table:
    """Return which topics the last logics name, and how far apart they lie, by method."""
    rows = []
    for method in list_methods(logics):
        chosen = logics.filter(pl.col("method") == method)
        topics = Counter(
            topic for text in chosen["topics"] for topic in text.split(TOPIC_SEPARATOR) if topic
        )
        named = [f"{topic} ({count})" for topic, count in topics.most_common()]
        distances = chosen["distance_to_others"].drop_nulls().to_list()
        rows.append(
            [
                method_name(method),
                str(chosen.height),
                f"{chosen['logic'].n_unique()} of {chosen.height}",
                str(len(topics)),
                ", ".join(named) or MISSING,
                format_number(mean(distances) if distances else None),
            ]
        )
    return Table(
        header=[
            "Method",
            "Agents",
            "Different logics",
            "Topics",
            "Topics of the last logics, with their agents",
            "Distance between agents of a run",
        ],
        rows=rows,
        caption="What the agents specialised in",
        text_columns=frozenset({0, 4}),
        notes=(
            "Agents of all seeds. Topics are those of the grammar that logics with slots are "
            "written in; a logic in free text names none of them. Distance: one minus the cosine "
            "of two embeddings, mean over pairs; 0 where all agents follow one logic.",
        ),
    )


def shift_table(traces: pl.DataFrame) -> Table | None:
    """Return the mean distance of updates by epoch and method; None where no logic was rewritten.

    A method without a row rewrites no logic.
    """
    known = traces.drop_nulls("logic_shift")
    if known.is_empty():
        return None

    epochs = sorted(known["epoch"].unique().to_list())
    rows = [
        [method_name(method), *_list_shifts(known.filter(pl.col("method") == method), epochs)]
        for method in list_methods(known)
    ]
    columns = [(f"Epoch {epoch + 1}", "updates") for epoch in epochs]
    return Table(
        header=["Method", *(name for pair in columns for name in pair)],
        rows=rows,
        caption="Distance of a logic to the one before, by epoch",
        notes=(_name_still(traces), "The part of LUD that needs no judge."),
    )


def _list_shifts(rows: pl.DataFrame, epochs: Sequence[int]) -> list[str]:
    cells = []
    for epoch in epochs:
        values = rows.filter(pl.col("epoch") == epoch)["logic_shift"].to_list()
        cells += [format_number(mean(values) if values else None), str(len(values))]
    return cells


def _name_still(traces: pl.DataFrame) -> str:
    """Say which methods rewrote no logic."""
    still = [method_name(name) for name in list_still(traces)]
    if not still:
        return "Every method here rewrites logics."
    return f"Without a row, as they keep the logics they start with: {', '.join(still)}."


def _signed(value: float) -> str:
    return f"{value:+.4f}"
