"""Plots by round of the systems of agents: losses, rewards, news, updates of logics.

What belongs here: lines of ``report.mechanism.curves``, and the text that says what each plot
shows. What does not: logics in space (``report.mechanism.space``), tables
(``report.mechanism.tables``), plots of a single run (``report.training_plots``).
"""

from collections.abc import Mapping
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from compevo_core.report.figures import Plot, add_legend, make_axis, set_title
from compevo_core.report.mechanism.curves import Curve, list_methods, make_curve, rank_news
from compevo_core.report.theme import agent_style, method_colour
from compevo_core.report.wording import join_items, method_name

RANKED_ROUNDS = 100
"""Rounds at the end of a run over which the paper ranks agents by their unique news."""

_HALF = (5.0, 3.1)  # inches, a plot in two columns of the page
_THIRD = (3.6, 2.8)


def plot_dynamics(rows: pl.DataFrame) -> list[Plot]:
    """Draw the loss on train windows and the error on validation windows, a line a method."""
    return [
        _plot_methods(rows, "loss", "Loss on the round's train windows (scaled)"),
        _plot_methods(rows, "val_error", "Validation MAE (scaled)"),
    ]


def plot_rewards(rows: pl.DataFrame) -> list[Plot]:
    """Draw the reward of every agent, a plot a method, on one scale."""
    methods = list_methods(rows)
    figures = []
    for method in methods:
        chosen = rows.filter(pl.col("method") == method).drop_nulls("reward")
        figure, axis = make_axis(width=_THIRD[0], height=_THIRD[1])
        agents = sorted(chosen["agent"].unique().to_list())
        for agent in agents:
            curve = make_curve(chosen.filter(pl.col("agent") == agent), "reward")
            if curve is not None:
                _draw(axis, curve, **agent_style(agent))
        _label(axis, method_name(method))
        alt = f"Line plot by round: reward of each of {len(agents)} agents of {method_name(method)}"
        figures.append((figure, axis, f"{alt}, {_count_seeds(chosen['seed'].n_unique())}."))

    # One scale, or a method of small rewards would look as restless as one of large ones.
    limits = [axis.get_ylim() for _, axis, _ in figures]
    for _, axis, _ in figures:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    return [Plot(figure, alt) for figure, _, alt in figures]


def plot_news(rows: pl.DataFrame) -> list[Plot]:
    """Draw the unique news of an agent by round, and of the agents of each rank at the end."""
    by_round = _plot_methods(rows, "unique_news", "Unique news of an agent in a round")

    figure, axis = make_axis(width=_HALF[0], height=_HALF[1])
    sizes = []
    for method in list_methods(rows):
        counts = rank_news(rows.filter(pl.col("method") == method), RANKED_ROUNDS)
        sizes.append(f"{method_name(method)} from {counts[0]:.1f} down to {counts[-1]:.1f}")
        axis.plot(range(1, len(counts) + 1), counts, marker="o", **_style(method))
    _label(axis, f"Unique news by rank, last {RANKED_ROUNDS} rounds", x="rank of the agent")
    alt = f"Line plot of unique news a round by the agent's rank: {join_items(sizes)}."
    return [by_round, Plot(figure, alt)]


def plot_shifts(rows: pl.DataFrame) -> list[Plot]:
    """Draw the mean distance of a logic to the one before, a line a method that rewrites any."""
    return [_plot_methods(rows, "logic_shift", "Distance of a logic to the one before")]


def _plot_methods(rows: pl.DataFrame, column: str, title: str) -> Plot:
    """Draw a column with one line a method and a band over its seeds."""
    curves: dict[str, Curve] = {}
    for method in list_methods(rows):
        curve = make_curve(rows.filter(pl.col("method") == method), column)
        if curve is not None:
            curves[method] = curve

    figure, axis = make_axis(width=_HALF[0], height=_HALF[1])
    for method, curve in curves.items():
        _draw(axis, curve, **_style(method))
    _label(axis, title)
    return Plot(figure, _describe(title, curves))


def _draw(axis: Axes, curve: Curve, **style: Any) -> None:  # noqa: ANN401 - options of matplotlib
    # A line of one point is invisible without a marker.
    marker = "o" if len(curve.rounds) == 1 else None
    axis.plot(curve.rounds, curve.mean, marker=marker, **style)
    if curve.seeds > 1:
        colour = style["color"]
        axis.fill_between(
            curve.rounds, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0
        )


def _style(method: str) -> dict[str, Any]:
    # The paper's own method lies on the others and is the thickest.
    is_own = method == "compevo"
    return {
        "color": method_colour(method),
        "label": method_name(method),
        "linewidth": 2.2 if is_own else 1.5,
        "zorder": 3 if is_own else 2,
    }


def _label(axis: Axes, title: str, *, x: str = "round") -> None:
    set_title(axis, title)
    axis.set_xlabel(x)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(axis)


def _describe(title: str, curves: Mapping[str, Curve]) -> str:
    lines = [
        f"{method_name(method)} from {curve.mean[0]:.3f} to {curve.mean[-1]:.3f} "
        f"({_count_seeds(curve.seeds)})"
        for method, curve in curves.items()
    ]
    return f"Line plot by round: {title}; {join_items(lines)}."


def _count_seeds(seeds: int) -> str:
    return f"{seeds} seed" if seeds == 1 else f"{seeds} seeds"
