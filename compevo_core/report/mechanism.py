"""The section on mechanism: how systems of agents learn, and what their agents become.

What belongs here: from rows of ``paper.run_traces`` to curves, plots and tables of each data set
and budget, and the plateau of one run's rewards. What does not: the components of logics and the
test of a plateau (``paper.run_traces``), plots of a single run (``report.plots``).

Text in a figure is read by plotly as a little HTML, so text from data is escaped here.
"""

import html
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compevo_core.paper.run_traces import TOPIC_SEPARATOR, measure_plateau
from compevo_core.report.day_charts import CHART_LAYOUT
from compevo_core.report.figures import (
    GRID,
    HALF,
    MUTED,
    THIRD,
    Line,
    Picture,
    Plot,
    add_legend,
    agent_style,
    get_figure,
    make_axis,
    method_colour,
    method_style,
    plot_lines,
)
from compevo_core.report.inputs import ReportInputs, TrainingRun
from compevo_core.report.tables import Table
from compevo_core.report.wording import (
    MISSING,
    format_number,
    format_percent,
    join_items,
    method_name,
    scope_name,
)

PER_ROUNDS = 100
"""Slopes are shown by so many rounds: the slope of one round is tiny."""

#: The paper's systems in the order of legends and tables; others follow by name.
_ORDER = ("sa", "mael", "mae-gpt", "mad-rl", "compevo")
_PLATEAU_NOTES = (
    "Slope: Theil-Sen, of the last half of the rounds; 95 % interval by a moving-block bootstrap.",
    "An interval without 0 contradicts a plateau. One that includes 0 does not show an "
    "equilibrium: the learning rates fall towards the end, batches differ, and a wide interval "
    "includes 0 whatever the reward does.",
)


def list_methods(rows: pl.DataFrame) -> list[str]:
    """Return the methods of rows, the paper's first and in its order."""
    present = set(rows["method"].to_list())
    return [name for name in _ORDER if name in present] + sorted(present - set(_ORDER))


def list_still(traces: pl.DataFrame) -> list[str]:
    """Return the methods whose agents keep the logics that they start with."""
    moving = set(traces.drop_nulls("logic_shift")["method"].to_list())
    return [name for name in list_methods(traces) if name not in moving]


def plateau_table(logics: pl.DataFrame) -> Table | None:
    """Return how the rewards moved by method; None where no run was long enough."""
    known = logics.drop_nulls("reward_slope")
    if known.is_empty():
        return None
    rows = []
    for method in list_methods(known):
        agents = known.filter(pl.col("method") == method)
        rising = int((agents["slope_low"] > 0).sum())
        falling = int((agents["slope_high"] < 0).sum())
        rows.append(
            [
                method_name(method),
                str(agents.height),
                _signed(mean(agents["reward_change"].to_list())),
                _signed(PER_ROUNDS * median(agents["reward_slope"].to_list())),
                f"{agents.height - rising - falling} of {agents.height}",
                str(rising),
                str(falling),
            ]
        )
    slope = f"Slope by {PER_ROUNDS} rounds, median"
    return Table(
        header=[
            *("Method", "Agents", "Change of the reward", slope),
            *("Interval holds 0", "Still rising", "Falling"),
        ],
        rows=rows,
        caption="Do the rewards reach a plateau?",
        notes=(
            "Agents of all seeds. Change: mean of the last quarter of the rounds minus that of the "
            "first, mean over agents.",
            *_PLATEAU_NOTES,
        ),
    )


def run_plateau_table(run: TrainingRun) -> Table | None:
    """Return how the rewards of one run's agents moved; None where it is too short for a test."""
    seed = int(run.setting("run", "seed") or 0)
    rows = []
    for agent in range(run.agents):
        plateau = measure_plateau([record.rewards[agent] for record in run.rounds], seed)
        if plateau is None:
            return None
        low, high = (_signed(bound * PER_ROUNDS) for bound in (plateau.low, plateau.high))
        direction = "rising" if plateau.slope > 0 else "falling"
        meaning = f"still {direction} over the last {plateau.n_rounds} rounds: no plateau"
        if plateau.is_flat:
            meaning = f"the interval includes 0: no slope is shown over {plateau.n_rounds} rounds"
        rows.append(
            [
                f"agent {agent}",
                _signed(plateau.change),
                _signed(plateau.slope * PER_ROUNDS),
                f"{low} to {high}",
                meaning,
            ]
        )
    slope = f"Slope by {PER_ROUNDS} rounds"
    return Table(
        header=["Agent", "Change of the reward", slope, "95 % interval", "Meaning"],
        rows=rows,
        caption="Do the rewards reach a plateau?",
        text_columns=frozenset({0, 4}),
        notes=(
            "Change: mean of the last quarter of the rounds minus that of the first.",
            *_PLATEAU_NOTES,
        ),
    )


def topics_table(logics: pl.DataFrame) -> Table:
    """Return which topics the last logics name, and how far apart they lie, by method."""
    rows = []
    for method in list_methods(logics):
        chosen = logics.filter(pl.col("method") == method)
        topics = Counter(
            topic for text in chosen["topics"] for topic in text.split(TOPIC_SEPARATOR) if topic
        )
        names = [f"{topic} ({count})" for topic, count in topics.most_common()]
        distances = chosen["distance_to_others"].drop_nulls().to_list()
        rows.append(
            [
                method_name(method),
                str(chosen.height),
                f"{chosen['logic'].n_unique()} of {chosen.height}",
                str(len(topics)),
                ", ".join(names) or MISSING,
                format_number(mean(distances) if distances else None),
            ]
        )
    return Table(
        header=[
            *("Method", "Agents", "Different logics", "Topics"),
            *("Topics of the last logics, with their agents", "Distance between agents of a run"),
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
    rows = []
    for method in list_methods(known):
        cells = [method_name(method)]
        for epoch in epochs:
            is_shown = (pl.col("method") == method) & (pl.col("epoch") == epoch)
            values = known.filter(is_shown)["logic_shift"].to_list()
            cells += [format_number(mean(values) if values else None), str(len(values))]
        rows.append(cells)

    still = join_items([method_name(name) for name in list_still(traces)])
    note = f"Not listed, because they keep the logics they start with: {still}."
    columns = [(f"Epoch {epoch + 1}", "updates") for epoch in epochs]
    return Table(
        header=["Method", *(name for pair in columns for name in pair)],
        rows=rows,
        caption="Distance of a logic to the one before, by epoch",
        notes=(
            note if still else "Every method here rewrites logics.",
            "This is the part of LUD that needs no judge.",
        ),
    )


def _signed(value: float) -> str:
    return f"{value:+.4f}"


GROUPS = 20
"""Most points of a curve: single rounds, of a few windows each, are mostly noise."""

RANKED_ROUNDS = 100
"""Rounds at the end of a run over which the paper ranks agents by their unique news."""

_HEIGHT = 460  # pixels
_HOVER_CHARACTERS = 60  # a line of the text that is shown at a point
_VIEW = {"elev": 22, "azim": -58}  # degrees
_EYE = {"x": 1.5, "y": 1.5, "z": 0.9}  # far enough for the labels of the axes
#: Marks of methods in matplotlib and plotly: colours alone are not for all eyes.
_MARKS = {
    "compevo": ("o", "circle"),
    "mad-rl": ("s", "square"),
    "mael": ("D", "diamond"),
    "mae-gpt": ("P", "cross"),
}
_OTHER_MARK = ("v", "diamond-open")
_AXES = ("x", "y", "z")


class Curve(NamedTuple):
    """Points of a curve, and the lowest and highest seed at each.

    Attributes:
        rounds: mean round of each group of rounds.
        mean: over seeds.
        low: lowest seed.
        high: highest seed.
        seeds: number of seeds.
    """

    rounds: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    seeds: int

    def to_line(self, style: Mapping[str, Any]) -> Line:
        """Return the curve as a line, with a band where there is more than one seed."""
        return Line(
            self.rounds, self.mean, style, (self.low, self.high) if self.seeds > 1 else None
        )


def make_curve(rows: pl.DataFrame, column: str) -> Curve | None:
    """Return the curve of a column over the rounds that have it; None where none has.

    Rounds with a value are put into at most ``GROUPS`` groups of equal size, in their order.

    Args:
        rows: of one method, or of one agent of it.
        column: what is plotted.
    """
    known = rows.drop_nulls(column)
    if known.is_empty():
        return None

    rounds = known.select("round").unique().sort("round").with_row_index("place")
    count = min(GROUPS, rounds.height)
    groups = rounds.with_columns((pl.col("place") * count // rounds.height).alias("group"))
    # A seed counts once in each group, however many agents and rounds it has there.
    by_seed = (
        known.join(groups, on="round")
        .group_by("group", "seed")
        .agg(pl.col(column).mean(), pl.col("round").mean())
    )
    points = by_seed.group_by("group").agg(
        pl.col("round").mean(),
        pl.col(column).mean().alias("mean"),
        pl.col(column).min().alias("low"),
        pl.col(column).max().alias("high"),
    )
    columns = points.sort("group").select("round", "mean", "low", "high")
    rounds_mean, mean, low, high = (values.to_list() for values in columns)
    return Curve(rounds_mean, mean, low, high, known["seed"].n_unique())


def rank_news(rows: pl.DataFrame, last_rounds: int) -> list[float]:
    """Return the unique news a round of the agent of each rank, most first; mean over seeds.

    Args:
        rows: of one method.
        last_rounds: rounds at the end of each run that count.
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


def plot_dynamics(rows: pl.DataFrame) -> list[Plot]:
    """Plot the loss on train windows and the error on validation windows, a line a method."""
    return [
        _plot_methods(rows, "loss", "Loss on the round's train windows (scaled)"),
        _plot_methods(rows, "val_error", "Validation MAE (scaled)"),
    ]


def plot_rewards(rows: pl.DataFrame) -> list[Plot]:
    """Plot the reward of every agent, a plot a method, on one scale."""
    plots = []
    for method in list_methods(rows):
        chosen = rows.filter(pl.col("method") == method).drop_nulls("reward")
        agents = sorted(chosen["agent"].unique().to_list())
        curves = {
            agent: make_curve(chosen.filter(pl.col("agent") == agent), "reward") for agent in agents
        }
        lines = [curve.to_line(agent_style(agent)) for agent, curve in curves.items() if curve]
        seeds = _count_seeds(chosen["seed"].n_unique())
        alt = f"reward of each of {len(agents)} agents of {method_name(method)}, {seeds}."
        plots.append(_plot(lines, method_name(method), f"Line plot by round: {alt}", size=THIRD))

    # One scale, or a method of small rewards would look as restless as one of large ones.
    axes = [plot.figure.axes[0] for plot in plots]
    lows, highs = zip(*(axis.get_ylim() for axis in axes), strict=True) if axes else ((), ())
    for axis in axes:
        axis.set_ylim(min(lows), max(highs))
    return plots


def plot_news(rows: pl.DataFrame) -> list[Plot]:
    """Plot the unique news of an agent by round, and of the agents of each rank at the end."""
    lines, sizes = [], []
    for method in list_methods(rows):
        counts = rank_news(rows.filter(pl.col("method") == method), RANKED_ROUNDS)
        sizes.append(f"{method_name(method)} from {counts[0]:.1f} down to {counts[-1]:.1f}")
        ranks = range(1, len(counts) + 1)
        lines.append(Line(ranks, counts, method_style(method) | {"marker": "o"}))
    title = f"Unique news by rank, last {RANKED_ROUNDS} rounds"
    alt = f"Line plot of unique news a round by the agent's rank: {join_items(sizes)}."
    return [
        _plot_methods(rows, "unique_news", "Unique news of an agent in a round"),
        _plot(lines, title, alt, x="rank of the agent"),
    ]


def _plot_methods(rows: pl.DataFrame, column: str, title: str) -> Plot:
    """Plot a column with one line a method and a band over its seeds."""
    lines, texts = [], []
    for method in list_methods(rows):
        curve = make_curve(rows.filter(pl.col("method") == method), column)
        if curve is not None:
            lines.append(curve.to_line(method_style(method)))
            texts.append(
                f"{method_name(method)} from {curve.mean[0]:.3f} to {curve.mean[-1]:.3f} "
                f"({_count_seeds(curve.seeds)})"
            )
    return _plot(lines, title, f"Line plot by round: {title}; {join_items(texts)}.")


def _plot(
    lines: Sequence[Line],
    title: str,
    alt: str,
    *,
    size: tuple[float, float] = HALF,
    x: str = "round",
) -> Plot:
    axis = plot_lines(lines, size=size, title=title, x_label=x, is_counted=True)
    return Plot(get_figure(axis), alt)


def chart_logics(logics: pl.DataFrame) -> dict[str, Any]:
    """Return the plotly figure of the logics of one data set and budget."""
    axis = {"color": MUTED, "gridcolor": GRID, "zeroline": False, "showbackground": False}
    axes = {
        f"{name}axis": axis | {"title": {"text": f"component {number}"}}
        for number, name in enumerate(_AXES, start=1)
    }
    return {
        "data": [_trace(logics, method) for method in list_methods(logics)],
        "layout": CHART_LAYOUT
        | {
            "height": _HEIGHT,
            "margin": {"l": 0, "r": 0, "t": 10, "b": 10},
            "legend": {"orientation": "h", "y": 0},
            "scene": axes | {"camera": {"eye": _EYE}},
        },
    }


def _trace(logics: pl.DataFrame, method: str) -> dict[str, Any]:
    chosen = logics.filter(pl.col("method") == method)
    symbol = _MARKS.get(method, _OTHER_MARK)[1]
    return {
        "type": "scatter3d",
        "mode": "markers",
        "name": html.escape(method_name(method)),
        **{name: chosen[name].to_list() for name in _AXES},
        "text": [_write_hover(*row) for row in chosen.select("seed", "agent", "logic").rows()],
        "hovertemplate": "%{text}",
        "marker": {"size": 5, "color": method_colour(method), "symbol": symbol},
    }


def _write_hover(seed: int, agent: int, logic: str) -> str:
    lines = textwrap.wrap(logic, _HOVER_CHARACTERS) or ["an empty logic"]
    return "<br>".join([f"seed {seed}, agent {agent}", *map(html.escape, lines)])


def plot_logics(logics: pl.DataFrame) -> Figure:
    """Plot the still picture of the points of :func:`chart_logics`."""
    axis: Any = make_axis(6.4, 4.8, projection="3d")
    for trace, method in zip(chart_logics(logics)["data"], list_methods(logics), strict=True):
        axis.scatter(
            *(trace[name] for name in _AXES),
            color=trace["marker"]["color"],
            label=method_name(method),
            marker=_MARKS.get(method, _OTHER_MARK)[0],
            depthshade=False,
            s=30,
        )
    axis.view_init(**_VIEW)
    for number, name in enumerate(_AXES, start=1):
        axis.set(**{f"{name}label": f"component {number}"})
        getattr(axis, f"{name}axis").set_major_locator(MaxNLocator(4))
    add_legend(axis)
    return get_figure(axis)


def list_groups(inputs: ReportInputs) -> list[Mapping[str, Any]]:
    """Return what is shown of each data set and budget that left traces."""
    keys = pl.concat(
        [rows.select("dataset", "budget") for rows in (inputs.traces, inputs.logics)]
    ).unique()

    shown: list[Mapping[str, Any]] = []
    for dataset, budget in keys.sort("dataset", "budget").rows():
        is_shown = (pl.col("dataset") == dataset) & (pl.col("budget") == budget)
        traces, logics = inputs.traces.filter(is_shown), inputs.logics.filter(is_shown)
        title = scope_name(dataset, "") + (f", budget {budget}" if budget else "")
        has_logics = not logics.is_empty()
        shown.append(
            {
                "title": title,
                "pictures": [] if traces.is_empty() else _show_traces(traces),
                "plateau": plateau_table(logics),
                "topics": topics_table(logics) if has_logics else None,
                "shifts": shift_table(traces),
                "space": _view_space(logics, list_still(traces), title) if has_logics else None,
            }
        )
    return shown


def _show_traces(traces: pl.DataFrame) -> list[Picture]:
    ends = []
    for method in list_methods(traces):
        curve = make_curve(traces.filter(pl.col("method") == method), "val_error")
        if curve is not None:
            ends.append(f"{method_name(method)} {format_number(curve.mean[-1])}")
    end = f"It ends at: {join_items(ends)}." if ends else "It was not measured."
    smoothed = (
        f"Each point is a mean over neighbouring rounds, at most {GROUPS} points a line; a band "
        f"spans the seeds ({_describe_seeds(traces)})."
    )
    pictures = [
        Picture(
            plot_dynamics(traces),
            caption="Training dynamics: the loss of the aggregated forecast on the windows of each "
            f"round, and its error on validation windows. {end} {smoothed} Runs of one seed see "
            "the same windows in the same order: a dip that lines share comes from the windows. "
            "Where methods have unequal seeds, their windows differ too.",
            columns=2,
        ),
        Picture(
            plot_rewards(traces),
            caption="Reward of each agent, minus the scaled error of its own forecast, on one "
            f"scale. {smoothed} An agent of one seed shares only its place and its first logic "
            "with the agent of that number in another.",
            columns=3,
        ),
        Picture(
            plot_news(traces),
            caption="Different articles that an agent read in a round, over the rounds, and by the "
            f"agents' rank over the last {RANKED_ROUNDS} rounds. {smoothed} A flat line of ranks "
            "means that all agents read equally many: where windows have no more articles than an "
            "agent reads, no logic can choose.",
            columns=2,
        ),
    ]
    if traces["logic_shift"].null_count() < traces.height:
        plot = _plot_methods(traces, "logic_shift", "Distance of a logic to the one before")
        caption = (
            "How far a logic lies from the one before: one minus the cosine of their embeddings, 0 "
            f"where it was kept. {smoothed}"
        )
        pictures.append(Picture([plot], caption=caption, columns=2))
    return pictures


def _view_space(logics: pl.DataFrame, still: Sequence[str], title: str) -> Mapping[str, Any]:
    names = join_items([method_name(name) for name in list_methods(logics)])
    label = (
        f"Points in three dimensions: the last logics of {logics.height} agents on {title}, "
        f"coloured by method: {names}; the table holds the distances."
    )
    caption = (
        f"Logics of the last round, {logics.height} agents (seeds: {_describe_seeds(logics)}). The "
        "axes are the first three principal components of their embeddings "
        f"({logics['encoder'][0]}), computed over all logics of the data set together; they hold "
        f"{format_percent(logics['shown_variance'][0])} of the variance, so points that seem close "
        "may be far apart in the other dimensions."
    )
    if still:
        methods = join_items([method_name(name) for name in still])
        caption += f" The agents of {methods} keep the logics that they start with."
    plot = Plot(plot_logics(logics), label)
    return {
        "figure": chart_logics(logics),
        "label": label,
        "still": Picture([plot], caption=caption),
    }


def _describe_seeds(rows: pl.DataFrame) -> str:
    """Return how many seeds each method has: ``CompEvo 3 and MAD-RL 1``."""
    seeds = {m: rows.filter(pl.col("method") == m)["seed"].n_unique() for m in list_methods(rows)}
    return join_items([f"{method_name(method)} {count}" for method, count in seeds.items()])


def _count_seeds(seeds: int) -> str:
    return f"{seeds} seed" if seeds == 1 else f"{seeds} seeds"
