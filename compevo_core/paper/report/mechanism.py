"""The section on mechanism: how systems of agents learn, and what their agents become.

What belongs here: from rows of ``paper.run_traces`` to curves, plots and tables of each data set
and budget, and the plateau of one run's rewards. What does not: the components of logics and the
test of a plateau (``paper.run_traces``), plots of a single run (``paper.report.run_sections``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import polars as pl
from matplotlib.ticker import MaxNLocator

from compevo_core.paper.agent_systems import PAPER_ORDER
from compevo_core.paper.report.figures import (
    HALF,
    THIRD,
    Line,
    Picture,
    Plot,
    Style,
    add_legend,
    agent_style,
    method_style,
    plot_lines,
)
from compevo_core.paper.report.inputs import ReportInputs, TrainingRun
from compevo_core.paper.report.rows import format_number, method_name
from compevo_core.paper.run_traces import TOPIC_SEPARATOR, Plateau, measure_plateau
from compevo_core.report.charts import method_colour
from compevo_core.report.tables import (
    MISSING,
    Table,
    format_percent,
    join_items,
    scope_name,
    tabulate,
)

PER_ROUNDS = 100  # slopes are shown per so many rounds: the slope per round is tiny

_PLATEAU = "Do the rewards reach a plateau?"


def split_methods(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the rows of each method, the paper's methods first and in its order."""
    parts = {part["method"][0]: part for part in rows.partition_by("method")}
    others = sorted(parts.keys() - set(PAPER_ORDER))
    return {method: parts[method] for method in (*PAPER_ORDER, *others) if method in parts}


def plateau_table(logics: pl.DataFrame) -> Table | None:
    """Return how the rewards moved by method; None if no run was long enough."""
    parts = split_methods(logics.drop_nulls("reward_slope"))
    if not parts:
        return None
    flat = (pl.col("slope_low") <= 0) & (pl.col("slope_high") >= 0)

    return tabulate(
        parts.values(),
        {
            "Method": _name,
            "Agents": lambda part: str(part.height),
            "Change of the reward": lambda part: _signed(part["reward_change"].mean()),
            f"Slope by {PER_ROUNDS} rounds, median": lambda part: _signed(
                part["reward_slope"].median() * PER_ROUNDS
            ),
            "Interval holds 0": lambda part: f"{part.filter(flat).height} of {part.height}",
            "Still rising": lambda part: str((part["slope_low"] > 0).sum()),
            "Falling": lambda part: str((part["slope_high"] < 0).sum()),
        },
        caption=_PLATEAU,
    )


def run_plateau_table(run: TrainingRun) -> Table | None:
    """Return how the rewards of one run's agents moved; None if it is too short for a test."""
    seed = int(run.setting("run", "seed") or 0)
    rewards = zip(*(record.rewards for record in run.rounds), strict=True)
    tests = [measure_plateau(values, seed) for values in rewards]
    known = [test for test in tests if test is not None]
    if len(known) < len(tests):
        return None

    return tabulate(
        enumerate(known),
        {
            "Agent": lambda row: f"agent {row[0]}",
            "Change of the reward": lambda row: _signed(row[1].change),
            f"Slope by {PER_ROUNDS} rounds": lambda row: _signed(row[1].slope * PER_ROUNDS),
            "95 % interval": lambda row: " to ".join(
                _signed(end * PER_ROUNDS) for end in (row[1].low, row[1].high)
            ),
            "Meaning": lambda row: _describe_plateau(row[1]),
        },
        caption=_PLATEAU,
        text_columns=(0, 4),
    )


def _describe_plateau(plateau: Plateau) -> str:
    if plateau.is_flat:
        return f"the interval includes 0: no slope is shown over {plateau.n_rounds} rounds"
    direction = "rising" if plateau.slope > 0 else "falling"
    return f"still {direction} over the last {plateau.n_rounds} rounds: no plateau"


def topics_table(logics: pl.DataFrame) -> Table:
    """Return which topics the last logics name, and how far apart these logics are, by method."""

    def count_topics(part: pl.DataFrame) -> Counter[str]:
        texts = part["topics"].to_list()
        return Counter(topic for text in texts for topic in text.split(TOPIC_SEPARATOR) if topic)

    return tabulate(
        split_methods(logics).values(),
        {
            "Method": _name,
            "Agents": lambda part: str(part.height),
            "Different logics": lambda part: f"{part['logic'].n_unique()} of {part.height}",
            "Topics": lambda part: str(len(count_topics(part))),
            "Topics of the last logics, with their agents": lambda part: (
                ", ".join(f"{name} ({n})" for name, n in count_topics(part).most_common())
                or MISSING
            ),
            "Distance between agents of a run": lambda part: format_number(
                part["distance_to_others"].mean()
            ),
        },
        caption="What the agents specialised in",
        text_columns=(0, 4),
    )


def shift_table(traces: pl.DataFrame) -> Table | None:
    """Return the mean distance of updates by epoch and method; None if no logic was rewritten.

    A method without a row rewrites no logic.
    """
    known = traces.drop_nulls("logic_shift")
    if known.is_empty():
        return None

    epochs = known["epoch"].unique().sort()
    rows = []
    for part in split_methods(known).values():
        shifts: list[Any] = [part.filter(epoch=epoch)["logic_shift"] for epoch in epochs]
        cells = [(format_number(values.mean()), str(values.len())) for values in shifts]
        rows.append([_name(part), *chain(*cells)])

    return Table(
        header=["Method", *chain(*((f"Epoch {epoch + 1}", "updates") for epoch in epochs))],
        rows=rows,
        caption="Distance of a logic from the previous one, by epoch",
    )


def _name(part: pl.DataFrame) -> str:
    return method_name(part["method"][0])


def _signed(value: Any) -> str:  # noqa: ANN401 - polars knows no type of a mean
    return f"{value:+.4f}"


GROUPS = 20  # most points of a curve: single rounds have a few windows each, and are mostly noise

RANKED_ROUNDS = 100
"""Rounds at the end of a run over which the paper ranks agents by their unique news."""

_VIEW = {"elev": 22, "azim": -58}  # degrees
#: Marks of methods: not all readers can tell colours apart.
_MARKERS = {"compevo": "o", "mad-rl": "s", "mael": "D", "mae-gpt": "P"}
_OTHER_MARKER = "v"
_AXES = ("x", "y", "z")


def make_curve(rows: pl.DataFrame, column: str, style: Mapping[str, Any]) -> Line:
    """Return the mean over seeds by round, with the lowest and highest if there are several.

    The rows of a method, or of one of its agents, are put by round into at most ``GROUPS`` groups
    of equal size, in their order.
    """
    known = rows.drop_nulls(column)
    rounds = known["round"].n_unique()
    place = pl.col("round").rank("dense").cast(pl.Int64) - 1
    group = (place * min(GROUPS, rounds) // max(rounds, 1)).alias("group")
    # A seed counts once in each group, for any number of agents and rounds.
    points = (
        known.group_by(group, "seed")
        .agg(pl.mean("round"), pl.mean(column).alias("mean"))
        .group_by("group")
        .agg(pl.mean("round", "mean"), pl.min("mean").alias("low"), pl.max("mean").alias("high"))
        .sort("group")
    )
    x, mean, low, high = (points[name].to_list() for name in ("round", "mean", "low", "high"))
    return Line(x, mean, style, (low, high) if known["seed"].n_unique() > 1 else None)


def rank_news(rows: pl.DataFrame, last_rounds: int) -> list[float]:
    """Return the unique news per round of a method's agents by rank, most first.

    It is a mean over seeds, and over the last rounds of each run.
    """
    known = rows.drop_nulls("unique_news")
    newest = known.filter(pl.col("round") > pl.col("round").max().over("seed") - last_rounds)
    ranked = (
        newest.group_by("seed", "agent")
        .agg(pl.col("unique_news").mean())
        .sort("unique_news", descending=True)
        # Ranks within a seed: agent 2 of one seed has nothing in common with agent 2 of another.
        .with_columns(pl.int_range(pl.len()).over("seed").alias("rank"))
    )
    means = ranked.group_by("rank").agg(pl.col("unique_news").mean()).sort("rank")
    return means["unique_news"].to_list()


def plot_rewards(rows: pl.DataFrame) -> list[Plot]:
    """Plot the reward of every agent, one plot per method, on one scale."""
    parts, curves = split_methods(rows), {}
    for method, part in parts.items():
        agents = part.drop_nulls("reward").partition_by("agent", as_dict=True)
        curves[method] = [
            make_curve(rewards, "reward", agent_style(agent))
            for (agent,), rewards in sorted(agents.items())
        ]

    # On separate scales, small rewards would look as restless as large ones.
    limits = list(chain(*(find_limits(lines) for lines in curves.values() if lines)))
    plots = []
    for method, lines in curves.items():
        who = f"{len(lines)} agents of {method_name(method)}, {_seeds(parts[method])}"
        alt = f"Line plot by round: reward of each of {who}."
        look: Style = {"size": THIRD, "title": method_name(method), "x_label": "round"}
        look["finish"] = lambda axis: axis.set_ylim(min(limits), max(limits))
        plots.append(plot_lines(lines, alt, **look))
    return plots


def find_limits(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the lowest and the highest value that an axis of these lines would show by itself."""
    values = list(chain(*(chain(line.y, *(line.band or ())) for line in lines)))
    low, high = MaxNLocator().nonsingular(min(values), max(values))
    margin = (high - low) * 0.05
    return low - margin, high + margin


def plot_news(rows: pl.DataFrame) -> list[Plot]:
    """Plot the unique news of an agent by round, and of the agents of each rank at the end."""
    lines, sizes = [], []
    for method, part in split_methods(rows).items():
        counts = rank_news(part, RANKED_ROUNDS)
        sizes.append(f"{method_name(method)} from {counts[0]:.1f} down to {counts[-1]:.1f}")
        ranks = range(1, len(counts) + 1)
        lines.append(Line(ranks, counts, method_style(method) | {"marker": "o"}))
    title = f"Unique news by rank, last {RANKED_ROUNDS} rounds"
    alt = f"Line plot of unique news per round by the agent's rank: {join_items(sizes)}."
    return [
        _plot_methods(rows, "unique_news", "Unique news of an agent in a round"),
        plot_lines(lines, alt, size=HALF, title=title, x_label="rank of the agent"),
    ]


def _plot_methods(rows: pl.DataFrame, column: str, title: str) -> Plot:
    """Plot a column with one line per method and a band over its seeds."""
    lines, texts = [], []
    for method, part in split_methods(rows.drop_nulls(column)).items():
        line = make_curve(part, column, method_style(method))
        ends = f"from {line.y[0]:.3f} to {line.y[-1]:.3f}"
        texts.append(f"{method_name(method)} {ends} ({_seeds(part)})")
        lines.append(line)
    alt = f"Line plot by round: {title}; {join_items(texts)}."
    return plot_lines(lines, alt, size=HALF, title=title, x_label="round")


def fill_space(logics: pl.DataFrame, axis: Any) -> None:  # noqa: ANN401 - of three dimensions
    """Draw the places of the logics of one data set and budget."""
    for method, part in split_methods(logics).items():
        axis.scatter(
            *(part[name] for name in _AXES),
            color=method_colour(method),
            label=method_name(method),
            marker=_MARKERS.get(method, _OTHER_MARKER),
            depthshade=False,
            s=30,
        )

    axis.view_init(**_VIEW)
    for number, name in enumerate(_AXES, start=1):
        axis.set(**{f"{name}label": f"component {number}"})
        getattr(axis, f"{name}axis").set_major_locator(MaxNLocator(4))
    add_legend(axis)


def list_groups(inputs: ReportInputs) -> list[Mapping[str, Any]]:
    """Return what is shown for each data set and budget with traces."""
    parts = (inputs.traces, inputs.logics)
    keys = pl.concat([rows.select("dataset", "budget") for rows in parts]).unique()
    groups: list[Mapping[str, Any]] = []

    for dataset, budget in keys.sort("dataset", "budget").rows():
        traces, logics = (rows.filter(dataset=dataset, budget=budget) for rows in parts)
        title = scope_name(dataset, "") + (f", budget {budget}" if budget else "")
        # Methods whose agents keep their first logics have no shift.
        moving = split_methods(traces.drop_nulls("logic_shift"))
        still = [method_name(method) for method in split_methods(traces) if method not in moving]
        group = {
            "title": title,
            "curves": None if traces.is_empty() else _view_curves(traces),
            "shifts": shift_table(traces),
            "plateau": plateau_table(logics),
            "topics": None if logics.is_empty() else topics_table(logics),
            "space": None if logics.is_empty() else _view_space(logics, title),
            "still": join_items(still),
        }
        groups.append(group)

    return groups


def _view_curves(traces: pl.DataFrame) -> Mapping[str, Any]:
    ends = [
        f"{method_name(method)} {format_number(make_curve(part, 'val_error', {}).y[-1])}"
        for method, part in split_methods(traces.drop_nulls("val_error")).items()
    ]
    dynamics = [
        _plot_methods(traces, "loss", "Loss on the round's train windows (scaled)"),
        _plot_methods(traces, "val_error", "Validation MAE (scaled)"),
    ]
    shifts = _plot_methods(traces, "logic_shift", "Distance of a logic from the previous one")
    has_shifts = traces["logic_shift"].null_count() < traces.height

    return {
        "dynamics": Picture(dynamics, columns=2),
        "rewards": Picture(plot_rewards(traces), columns=3),
        "news": Picture(plot_news(traces), columns=2),
        "shifts": Picture([shifts], columns=2) if has_shifts else None,
        "end": f"It ends at: {join_items(ends)}." if ends else "It was not measured.",
        "seeds": _list_seeds(traces),
        "most_points": GROUPS,
        "ranked_rounds": RANKED_ROUNDS,
    }


def _view_space(logics: pl.DataFrame, title: str) -> Mapping[str, Any]:
    names = join_items([method_name(method) for method in split_methods(logics)])
    label = (
        f"Points in three dimensions: the last logics of {logics.height} agents on {title}, "
        f"coloured by method: {names}; the table holds the distances."
    )
    return {
        "picture": Picture([Plot(partial(fill_space, logics), label, (6.4, 4.8), "3d")]),
        "agents": logics.height,
        "seeds": _list_seeds(logics),
        "encoder": logics["encoder"][0],
        "variance": format_percent(logics["shown_variance"][0]),
    }


def _list_seeds(rows: pl.DataFrame) -> str:
    """Return how many seeds each method has: ``CompEvo 3 and MAD-RL 1``."""
    parts = split_methods(rows).values()
    return join_items([f"{_name(part)} {part['seed'].n_unique()}" for part in parts])


def _seeds(rows: pl.DataFrame) -> str:
    count = rows["seed"].n_unique()
    return f"{count} seed" if count == 1 else f"{count} seeds"
