"""Plots of one training run, from its rounds: losses, rewards, selection, policy, theory instruments.

What belongs here: lines by round. A missing value leaves a gap.
What does not: smoothing, fitting or any number that is not in ``rounds.jsonl``.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compevo_core.report.figures import ACCENT, INK, agent_style, axes, legend, title
from compevo_core.report.inputs import RunRecord

LOSSES = (
    ("loss", "total", INK),
    ("loss_pred", "forecast", "#0b5cad"),
    ("loss_pg", "policy", "#c8501e"),
    ("loss_div", "diversity", "#1a7f5a"),
    ("loss_prune", "pruning", "#9a4bb0"),
)


def losses(run: RunRecord) -> Figure:
    """The joint objective and its four terms, unweighted as logged, and the validation error."""
    figure, (left, right) = axes(1, 2)
    for key, label, colour in LOSSES:
        _line(left, run, key, label=label, color=colour, linewidth=2.2 if key == "loss" else 1.4)
    title(left, "Loss terms")
    legend(left)
    _line(right, run, "loss_pred", label="train, this round's batch", color="#9fb6cf")
    _line(right, run, "val_mae_scaled", label="validation MAE (scaled)", color=ACCENT, marker="o", markersize=3.5)
    _line(
        right,
        run,
        "val_prior_mae_scaled",
        label="validation MAE of the prior alone",
        color="#c8501e",
        marker="s",
        markersize=3,
    )
    title(right, "Forecast loss and validation error")
    legend(right)
    return _rounds(figure, run, left, right)


def selection(run: RunRecord) -> Figure:
    """Reward, fitness, weight and gate of each agent by round."""
    figure, cells = axes(2, 2, height=2.7)
    for axis, (key, name) in zip(
        cells,
        (
            ("rewards", "Reward (minus scaled error)"),
            ("fitness", "Fitness (moving average)"),
            ("weights", "Weight in the aggregate"),
            ("gates", "Gate"),
        ),
        strict=True,
    ):
        _agents(axis, run, key)
        title(axis, name)
    legend(cells[0])
    return _rounds(figure, run, *cells)


def policy(run: RunRecord) -> Figure:
    """What the policy step did: divergence, clipping, gradient norm, spread of weights."""
    figure, cells = axes(1, 4, height=2.5, width=10.6)
    for axis, (key, name) in zip(
        cells,
        (
            ("kl", "KL to the reference"),
            ("clip_fraction", "Share clipped"),
            ("grad_norm", "Gradient norm"),
            ("weight_entropy", "Weight entropy"),
        ),
        strict=True,
    ):
        _line(axis, run, key, color=ACCENT)
        title(axis, name)
    return _rounds(figure, run, *cells)


def theory(run: RunRecord) -> Figure:
    """Best-response gap, cumulative regret and gradient conflict (paper appendix B)."""
    figure, (gap, regret, conflict) = axes(1, 3, height=2.8, width=10.6)
    _agents(gap, run, "best_response_gap")
    title(gap, "Best-response gap")
    _agents(regret, run, "regret")
    title(regret, "Cumulative regret")
    _line(conflict, run, "gradient_conflict", color=ACCENT)
    conflict.axhline(0.0, color=INK, linewidth=0.8)
    title(conflict, "Gradient conflict (cosine)")
    legend(gap)
    return _rounds(figure, run, gap, regret, conflict)


def update_degree(run: RunRecord) -> Figure:
    """Logic update degree of each agent by round."""
    figure, (axis,) = axes(1, 1, height=2.8, width=8)
    _agents(axis, run, "lud")
    title(axis, "Logic update degree (LUD)")
    legend(axis)
    return _rounds(figure, run, axis)


def has(run: RunRecord, key: str) -> bool:
    """Whether any round holds a value of ``key``."""
    return any(value is not None for value in run.series(key))


def _line(axis: Axes, run: RunRecord, key: str, **style: Any) -> None:  # noqa: ANN401 - passed on to matplotlib
    points = [(n, v) for n, v in zip(run.series("round"), run.series(key), strict=True) if v is not None]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


def _agents(axis: Axes, run: RunRecord, key: str) -> None:
    values: Sequence[Sequence[float] | None] = run.series(key)
    for agent in range(run.agents):
        points = [(n, v[agent]) for n, v in zip(run.series("round"), values, strict=True) if v is not None]
        if points:
            axis.plot(*zip(*points, strict=True), **agent_style(agent))


def _rounds(figure: Figure, run: RunRecord, *cells: Axes) -> Figure:
    for axis in cells:
        axis.set_xlabel("round")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(run.rounds) == 1:
            for line in axis.get_lines():
                line.set_marker("o")
    return figure
