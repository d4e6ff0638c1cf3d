"""Plots of one training run by round: losses, selection, health, policy step, theory, updates.

What belongs here: lines by round, and the text that says what each plot shows. What does not:
smoothing, fitting, or any number that is not in ``rounds.jsonl`` or ``lud.csv``.

Every plot has one axis; the page arranges them. A dashed line marks where the supervised stage ends
and the rewriting of logics begins.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compevo_core.report.figures import Plot, add_legend, make_axis, set_title
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.theme import ACCENT, INK, MUTED, agent_style

# Inches: a plot in two columns of the page, and one in three.
HALF = (5.0, 3.1)
THIRD = (3.6, 2.8)
# Height of one more row of the legend, so that it does not flatten the plot.
LEGEND_ROW = 0.18

LOSSES = (
    ("loss", "total", INK),
    ("loss_pred", "forecast", "#0b5cad"),
    ("loss_pg", "policy", "#c8501e"),
    ("loss_div", "diversity", "#1a7f5a"),
    ("loss_prune", "pruning", "#9a4bb0"),
    ("loss_own", "own errors of agents", "#b8860b"),
)
SELECTION = (
    ("rewards", "Reward (minus scaled error)"),
    ("fitness", "Fitness (moving average)"),
    ("weights", "Weight in the aggregate"),
    ("gates", "Gate"),
)
HEALTH = (
    ("error_correlation", "Correlation of the agents' errors"),
    ("gain_over_best", "Gain over the best agent (%)"),
    ("effective_agents", "Effective number of agents"),
)
POLICY = (
    ("kl", "KL to the reference"),
    ("clip_fraction", "Share clipped"),
    ("gradient_conflict", "Gradient cosine"),
)
# Values whose sign carries the meaning: a line is drawn at zero.
SIGNED = frozenset({"gradient_conflict", "gradient_margin", "regret", "gain_over_best"})


def plot_losses(run: TrainingRun) -> list[Plot]:
    """Draw the joint objective with its four terms, unweighted, and the forecast errors."""
    terms, axis = make_axis(width=HALF[0], height=HALF[1])
    for key, label, colour in LOSSES:
        # Of weight zero, the agents' own errors are no term of this run.
        if key == "loss_own" and not any(run.values_of(key)):
            continue
        width = 2.2 if key == "loss" else 1.4
        _draw_values(axis, run, key, label=label, color=colour, linewidth=width)
    first = _finish(terms, axis, run, "Loss terms")

    errors, axis = make_axis(width=HALF[0], height=HALF[1])
    _draw_values(axis, run, "loss_pred", label="train, this round's batch", color="#9fb6cf")
    # Validation is measured in some rounds only, so its points are marked.
    _draw_values(
        axis,
        run,
        "val_mae_scaled",
        label="validation MAE (scaled)",
        color=ACCENT,
        marker="o",
        markersize=3.5,
    )
    _draw_values(
        axis,
        run,
        "val_prior_mae_scaled",
        label="validation MAE of the prior alone",
        color="#c8501e",
        marker="s",
        markersize=3,
    )
    second = _finish(errors, axis, run, "Forecast loss and validation error", legend_columns=1)
    return [first, second]


def plot_selection(run: TrainingRun) -> list[Plot]:
    """Draw reward, fitness, weight and gate of each agent."""
    return [_plot_agents(run, key, title, HALF) for key, title in SELECTION]


def plot_health(run: TrainingRun) -> list[Plot]:
    """Draw whether agents differ, whether their mean helps, and how many they are worth."""
    return [_plot_values(run, key, title) for key, title in HEALTH]


def plot_policy(run: TrainingRun) -> list[Plot]:
    """Draw divergence, clipping and the angle between the two gradients."""
    return [_plot_values(run, key, title) for key, title in POLICY]


def plot_theory(run: TrainingRun) -> list[Plot]:
    """Draw the diagnostics of paper appendix B, two rows of three."""
    return [
        _plot_agents(run, "best_response_gap", "Best-response gap", THIRD),
        _plot_fixed_regret(run),
        _plot_agents(run, "group_regret", "Regret against the group's best", THIRD),
        _plot_values(run, "gradient_margin", "Gradient-conflict margin"),
        _plot_values(run, "grad_norm", "Gradient norm"),
        _plot_values(run, "weight_entropy", "Weight entropy (nats)"),
    ]


def has_fixed_regret(run: TrainingRun) -> bool:
    """Whether ``regret`` was measured against fixed logics.

    Older versions wrote the regret against the group under that key, without fixed rewards.
    """
    return run.has_values("fixed_rewards") and run.has_values("regret")


def plot_updates(run: TrainingRun) -> list[Plot]:
    """Draw each logic's distance to the one before, and the LUD of what the first judge scored."""
    # Each judge has rows of its own; the distances are the same in all of them.
    first_judge = run.lud_rows[0]["judge"]
    rows = [row for row in run.lud_rows if row["judge"] == first_judge]

    plots = []
    for key, title, style in (
        ("delta", "Distance to the previous logic", {}),
        ("lud", "LUD of judged updates", {"marker": "o", "markersize": 3.5}),
    ):
        figure, axis = make_axis(width=HALF[0], height=HALF[1])
        for agent in range(run.agents):
            points = [(row["round"], row[key]) for row in rows if row["agent"] == agent]
            _draw_points(axis, points, **(agent_style(agent) | style))
        plots.append(_finish(figure, axis, run, title))
    return plots


def _plot_fixed_regret(run: TrainingRun) -> Plot:
    title = "Regret against the best fixed logic"
    if has_fixed_regret(run):
        return _plot_agents(run, "regret", title, THIRD)

    # An empty plot keeps the six in their places.
    figure, axis = make_axis(width=THIRD[0], height=THIRD[1])
    place = axis.transAxes
    axis.text(0.5, 0.5, "not measured", ha="center", va="center", color=MUTED, transform=place)
    return _finish(figure, axis, run, f"{title} (not measured)")


def _plot_agents(run: TrainingRun, key: str, title: str, size: tuple[float, float]) -> Plot:
    """Plot a value of each agent; a round without it leaves no point."""
    columns = 4 if size == HALF else 3
    extra_rows = (run.agents - 1) // columns
    figure, axis = make_axis(width=size[0], height=size[1] + LEGEND_ROW * extra_rows)
    values: Sequence[Sequence[float] | None] = run.values_of(key)

    for agent in range(run.agents):
        points = [
            (record.round, None if row is None else row[agent])
            for record, row in zip(run.rounds, values, strict=True)
        ]
        _draw_points(axis, points, **agent_style(agent))

    _mark_zero(axis, key)
    who = "one line an agent, "
    return _finish(figure, axis, run, title, who=who, legend_columns=columns)


def _plot_values(run: TrainingRun, key: str, title: str) -> Plot:
    figure, axis = make_axis(width=THIRD[0], height=THIRD[1])
    _draw_values(axis, run, key, color=ACCENT)
    _mark_zero(axis, key)
    return _finish(figure, axis, run, title)


def _mark_zero(axis: Axes, key: str) -> None:
    if key in SIGNED:
        axis.axhline(0.0, color=INK, linewidth=0.8)


def _draw_values(
    axis: Axes,
    run: TrainingRun,
    key: str,
    **style: Any,  # noqa: ANN401 - options of matplotlib
) -> None:
    points = [
        (record.round, value) for record, value in zip(run.rounds, run.values_of(key), strict=True)
    ]
    _draw_points(axis, points, **style)


def _draw_points(
    axis: Axes,
    points: Iterable[tuple[int, float | None]],
    **style: Any,  # noqa: ANN401 - options of matplotlib
) -> None:
    """Draw a line through the points that have a value; without any, add no legend entry."""
    present = [(position, value) for position, value in points if value is not None]
    if present:
        axis.plot(*zip(*present, strict=True), **style)


def _finish(
    figure: Figure,
    axis: Axes,
    run: TrainingRun,
    title: str,
    *,
    who: str = "",
    legend_columns: int = 3,
) -> Plot:
    """Add title, legend and the axis of rounds, and describe the plot."""
    set_title(axis, title)
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(axis, columns=legend_columns)

    for line in axis.get_lines():
        # A line of one point is invisible without a marker.
        if len(line.get_xydata()) == 1:  # type: ignore[arg-type]
            line.set_marker("o")

    length = f"{run.agents} agents over {len(run.rounds)} rounds"
    boundary = run.first_evolving_round
    if boundary is not None:
        # Between the last supervised round and the first one after it.
        axis.axvline(boundary - 0.5, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        length += f", the first {boundary} of them supervised"
    return Plot(figure, f"Line plot by round: {title}, {who}{length}.")
