"""Plots of one training run, from its rounds: losses, rewards, selection, policy, theory instruments.

What belongs here: lines by round. A missing value leaves a gap.
What does not: smoothing, fitting or any number that is not in ``rounds.jsonl`` or ``lud.csv``.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compevo_core.report.figures import ACCENT, INK, MUTED, agent_style, axes, legend, title
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
    _line(
        right,
        run,
        "val_mae_scaled",
        label="validation MAE (scaled)",
        color=ACCENT,
        marker="o",
        markersize=3.5,
    )
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
    legend(right, ncols=1)
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
    """What the policy step did: divergence, clipping, and how the two gradients stood to each other."""
    figure, cells = axes(1, 3, height=2.5, width=10.6)
    for axis, (key, name) in zip(
        cells,
        (
            ("kl", "KL to the reference"),
            ("clip_fraction", "Share clipped"),
            ("gradient_conflict", "Gradient cosine"),
        ),
        strict=True,
    ):
        _line(axis, run, key, color=ACCENT)
        title(axis, name)
    cells[-1].axhline(0.0, color=INK, linewidth=0.8)
    return _rounds(figure, run, *cells)


def theory(run: RunRecord) -> Figure:
    """The instruments of paper appendix B: gap, the two regrets, conflict margin, gradient norm, weight entropy."""
    figure, cells = axes(2, 3, height=2.7, width=10.6)
    gap, regret, group, margin, norm, entropy = cells
    for axis, key, name in ((gap, "best_response_gap", "Best-response gap"),
                            (group, "group_regret", "Regret against the group's best")):  # fmt: skip
        _agents(axis, run, key)
        title(axis, name)
    if has_fixed_regret(run):
        _agents(regret, run, "regret")
        regret.axhline(0.0, color=INK, linewidth=0.8)
    else:
        regret.text(
            0.5,
            0.5,
            "not measured",
            ha="center",
            va="center",
            color=MUTED,
            transform=regret.transAxes,
        )
    title(regret, "Regret against the best fixed logic")
    for axis, key, name in ((margin, "gradient_margin", "Gradient-conflict margin"),
                            (norm, "grad_norm", "Gradient norm"),
                            (entropy, "weight_entropy", "Weight entropy (nats)")):  # fmt: skip
        _line(axis, run, key, color=ACCENT)
        title(axis, name)
    margin.axhline(0.0, color=INK, linewidth=0.8)
    legend(gap)
    return _rounds(figure, run, *cells)


def has_fixed_regret(run: RunRecord) -> bool:
    """Whether ``regret`` was measured against fixed logics; runs of older versions meant their group by it."""
    return has(run, "fixed_rewards") and has(run, "regret")


def update_degree(run: RunRecord) -> Figure:
    """Distance of each agent's logic from the one before by round, and LUD where the first judge saw the update."""
    figure, (distance, judged) = axes(1, 2, height=2.8, width=10.6)
    first = run.lud_rows[0]["judge"]
    rows = [row for row in run.lud_rows if row["judge"] == first]
    for axis, key, style in (
        (distance, "delta", {}),
        (judged, "lud", {"marker": "o", "markersize": 3.5}),
    ):
        for agent in range(run.agents):
            points = [
                (row["round"], row[key])
                for row in rows
                if row["agent"] == agent and row[key] is not None
            ]
            if points:
                axis.plot(*zip(*points, strict=True), **(agent_style(agent) | style))
    title(distance, "Distance to the previous logic")
    title(judged, "LUD of judged updates")
    legend(distance)
    return _rounds(figure, run, distance, judged)


def has(run: RunRecord, key: str) -> bool:
    """Whether any round holds a value of ``key``."""
    return any(value is not None for value in run.series(key))


def _line(axis: Axes, run: RunRecord, key: str, **style: Any) -> None:
    points = [
        (n, v) for n, v in zip(run.series("round"), run.series(key), strict=True) if v is not None
    ]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


def _agents(axis: Axes, run: RunRecord, key: str) -> None:
    values: Sequence[Sequence[float] | None] = run.series(key)
    for agent in range(run.agents):
        points = [
            (n, v[agent]) for n, v in zip(run.series("round"), values, strict=True) if v is not None
        ]
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
