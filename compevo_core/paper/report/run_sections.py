"""How agents learn: the sections of one training run, and all systems of agents compared.

What belongs here: which sections a run has, its settings at a glance, tables and plots of what
training measured, fitted and wrote (``rounds.jsonl``, ``metrics.json``, ``lud.json``, ``lud.csv``;
paper 5.1, appendices B and F); from rows of ``paper.run_traces`` to curves, plots and tables of
each data set and budget. What does not: measuring any of it (``training``, ``paper.lud``,
``paper.run_traces``), captions and how to read them (``templates/run.html``).

In plots of a run by round a dashed line marks where the supervised stage ends and the rewriting of
logics begins.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from compevo_core.agents.logics import find_topics
from compevo_core.data.arrays import evenly_spaced
from compevo_core.paper.agent_systems import PAPER_ORDER
from compevo_core.paper.changes import SWAPPED
from compevo_core.paper.declared import read_declared
from compevo_core.paper.report import figures
from compevo_core.paper.report.evidence_tables import find_audit, list_read_topics, plot_news_errors
from compevo_core.paper.report.inputs import (
    ReportInputs,
    TrainingRun,
    describe_duration,
    format_number,
    method_name,
)
from compevo_core.paper.run_traces import TOPIC_SEPARATOR, Plateau, measure_plateau
from compevo_core.report.charts import ACCENT, GOLD, GREEN, INK, MUTED, PURPLE, RED, method_colour
from compevo_core.report.tables import (
    MISSING,
    Row,
    Table,
    format_percent,
    join_items,
    scope_name,
    shorten_hash,
    tabulate,
)

# The last rounds, over which health is averaged: single batches of windows mean little.
LAST_ROUNDS = 10
#: Section and name of each setting shown at a glance, and its label.
SETTINGS = (
    ("backbone", "name_or_path", "backbone"),
    ("forecast", "decoder", "decoder"),
    ("forecast", "prior", "prior"),
    ("population", "rank", "adapter rank"),
    ("grpo", "group_size", "logics in a group"),
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of the page: a macro of a template and its view, folded behind a finding."""

    anchor: str
    title: str
    finding: str
    template: str
    macro: str
    view: Mapping[str, Any] = field(default_factory=dict)


def build_run_sections(runs: Sequence[TrainingRun], audit: Sequence[Row] = ()) -> list[Section]:
    """Return each section of each run that has something to show, with rows of news ``audit``.

    The name of a single run is left out.
    """
    sections = []
    for index, run in enumerate(runs):
        show_logics = partial(view_logics, audit=find_audit(run, audit))
        # If all are fitted together, their parts add up, and no agent has a forecast of its own.
        is_joint = run.setting("news", "fit") == "joint"
        has_health = not is_joint and run.has_values("effective_agents")
        # LUD is measured after training, on demand.
        views: dict[str, tuple[str, Callable[[TrainingRun], Mapping[str, Any]], bool]] = {
            "logics": ("What the agents learnt to read", show_logics, True),
            "training": ("Training", view_training, True),
            "health": ("Health of the population", view_health, has_health),
            "theory": ("Theory diagnostics", view_theory, True),
            "lud": ("Logic update degree", view_lud, bool(run.lud)),
        }
        for macro, (title, show, is_shown) in views.items():
            if not run.rounds or not is_shown:
                continue
            view = show(run)
            sections.append(
                Section(
                    anchor=f"{macro}-{index}",
                    title=f"{title}: {run.name}" if len(runs) > 1 else title,
                    finding=view["finding"],
                    template="run.html",
                    macro=macro,
                    view=view,
                )
            )

    return sections


def view_logics(run: TrainingRun, audit: Sequence[Row]) -> Mapping[str, Any]:
    """Return the last logics, what their news saved, and what agents read on test windows."""
    first, last = run.rounds[0].logics, run.rounds[-1].logics
    moved = sum(before != after for before, after in zip(first, last, strict=True))
    cells: dict[str, Callable[[int], str]] = {
        "Agent": lambda i: f"agent {i}",
        "First logic": lambda i: first[i],
        "Last logic": lambda i: "as at the start" if first[i] == last[i] else last[i],
    }
    if audit:
        title = f"It read about (windows, {audit[0]['unit']} saved)"
        cells[title] = lambda i: list_read_topics(audit, i)

    caption = "What the logics became"
    table = tabulate(range(run.agents), cells, caption=caption, text_columns=range(4))
    gains = plot_values(run, GAINS) if run.has_values("news_gains") else []
    plots = [plot_topics(run), *gains, plot_news_errors(audit)]
    picture = figures.Picture([plot for plot in plots if plot], columns=3)
    lenders = [row["n_with_news"] for row in audit if row["news"] == SWAPPED]

    samples: dict[str, Any] = {}
    # Logics drawn by chance show nothing about a policy.
    if run.setting("evolution", "flat_share") != "1.0":
        rewriting = run.rewriting_rounds
        # Each agent drafts one candidate and samples its group.
        written = sum(len(logics) for r in rewriting for logics in (r.candidates, *r.group_logics))
        empty = sum(record.empty_logics for record in rewriting)
        samples = {
            "n_rounds": len(run.rounds),
            "rewriting": len(rewriting),
            "written": written,
            "empty": format_percent(empty / written if written else None),
            "groups": run.agents * len(rewriting),
            "equal": sum(record.equal_groups for record in rewriting),
        }

    return {
        "finding": f"{moved} of {run.agents} agents ended with a logic other than their first.",
        "samples": samples,
        "table": table,
        "picture": picture,
        "has_gains": bool(gains),
        # Of all test windows, whose row is the first.
        "swapped": f"{lenders[0]:,} of {audit[0]['n_windows']:,}" if audit else "",
    }


def view_training(run: TrainingRun) -> Mapping[str, Any]:
    """Return the facts and the curves of a run."""
    return {
        "finding": _describe_errors(run),
        "facts": list_facts(run),
        "losses": figures.Picture(plot_losses(run), columns=2),
        "selection": figures.Picture(plot_values(run, SELECTION, figures.HALF), columns=2),
        "policy": figures.Picture(plot_values(run, POLICY), columns=3),
        "plateau": run_plateau_table(run),
        "calibration": view_calibration(run),
        "has_stages": run.first_evolving_round is not None,
        "cut_prompts": sum(record.cut_prompts for record in run.rounds),
    }


def _describe_errors(run: TrainingRun) -> str:
    """Say how the error on validation changed."""
    errors, priors = (
        [value for value in run.values_of(key) if value is not None]
        for key in ("val_mae_scaled", "val_prior_mae_scaled")
    )
    if not errors:
        return f"{len(run.rounds)} rounds; no error on validation was measured."
    text = (
        f"Over {len(run.rounds)} rounds the scaled error on validation went from "
        f"{format_number(errors[0])} to {format_number(errors[-1])}"
    )
    prior = f", compared with {format_number(priors[-1])} by the prior" if priors else ""
    return f"{text}{prior}."


def list_facts(run: TrainingRun) -> list[tuple[str, str]]:
    """Return (name, value) pairs that identify a run at a glance."""
    rounds = [str(len(run.rounds))]
    if run.rounds[0].stage == "supervised":
        boundary = run.first_evolving_round
        rounds.append(f"{len(run.rounds) if boundary is None else boundary} supervised")
    if len(run.rewriting_rounds) < len(run.rounds):
        rounds.append(f"{len(run.rewriting_rounds)} rewriting logics")

    seconds = sum(record.seconds for record in run.rounds)
    # Agents that read with a ridge have no backbone and no adapters.
    reads = run.setting("forecast", "decoder") != "linear"
    settings = [
        (label, run.setting(section, name))
        for section, name, label in SETTINGS
        if reads or name not in ("name_or_path", "rank")
    ]
    return [
        ("agents", str(run.agents)),
        ("rounds", ", ".join(rounds)),
        ("training time", describe_duration(seconds)),
        *((label, value) for label, value in settings if value),
    ]


def view_calibration(run: TrainingRun) -> Mapping[str, Any] | None:
    """Return validation errors of prior, population and sealed model; None if not measured."""
    report = run.summary.get("calibration")
    if not report:
        return None

    shares = [f"{format_percent(share)} for agent {i}" for i, share in enumerate(report["blend"])]
    names = {
        "prior_mae": "best prior, as it is",
        "raw_mae": "population before calibration",
        "calibrated_mae": "population as sealed",
    }
    table = Table(
        header=["Forecast", "Validation MAE (scaled)"],
        rows=[[name, format_number(report[key])] for key, name in names.items()],
        caption=f"Calibration on {report['windows']:,} validation windows",
        highlighted=[2],
    )
    return {**report, "table": table, "shares": join_items(shares)}


def view_health(run: TrainingRun) -> Mapping[str, Any]:
    """Return whether the population is more than one agent repeated, by round and at the end."""
    last = [record for record in run.rounds if record.effective_agents is not None][-LAST_ROUNDS:]
    means = {
        key: format_number(sum(getattr(record, key) for record in last) / len(last))
        for key in HEALTH
    }

    return {
        "finding": f"The {run.agents} agents are worth {means['effective_agents']} with unrelated "
        f"errors; their errors correlate by {means['error_correlation']}.",
        "picture": figures.Picture(plot_values(run, HEALTH), columns=3),
        "means": means,
        "n_rounds": len(last),
        "agents": run.agents,
        "weights": [format_number(weight) for weight in run.rounds[-1].weights],
        "equal_weight": format_number(1.0 / run.agents),
    }


def view_theory(run: TrainingRun) -> Mapping[str, Any]:
    """Return the plots, and the growth of regret as a table if it was fitted."""
    measured = {k: v for k, v in THEORY.items() if k != "regret" or has_fixed_regret(run)}
    growth = growth_table(run)
    finding = "Gaps to the best response, regret and margins of one finite run; no fit of growth."
    if growth:
        finding = f"Growth of regret, mean of agents: {growth.rows[-1][-1]}."
    return {
        "finding": finding,
        "picture": figures.Picture(plot_values(run, measured), columns=3),
        "has_fixed_regret": has_fixed_regret(run),
        "growth": growth,
    }


def growth_table(run: TrainingRun) -> Table | None:
    """Return how regret against the best fixed logic grew; None if it was not fitted."""
    fits = run.summary.get("regret_exponent")
    # The fit is written with the summary, when the run ends.
    if not has_fixed_regret(run) or not isinstance(fits, Mapping):
        return None

    # Regret is a running total, so the last round with one holds the sum.
    regrets = [regret for regret in run.values_of("regret") if regret is not None][-1]
    lines = [
        {"name": f"agent {agent}", "end": regret} | fit
        for agent, (regret, fit) in enumerate(zip(regrets, fits["agents"], strict=True))
    ]
    mean = {"name": "mean of agents", "end": sum(regrets) / len(regrets)} | fits["mean"]
    return tabulate(
        [*lines, mean],
        {
            "Agent": lambda row: row["name"],
            "Regret at the end": lambda row: format_number(row["end"]),
            "Exponent": lambda row: "" if row["exponent"] is None else f"{row['exponent']:.2f}",
            "95 % interval": lambda row: (
                "" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
            ),
            "Rounds used": lambda row: f"{row['n_used']} of {len(run.rewriting_rounds)}",
            "Meaning": describe_growth,
        },
        caption="Growth of regret against the best fixed logic",
        text_columns=(0, 5),
    )


def describe_growth(fit: Row) -> str:
    """Say what a fitted exponent and its interval show and what they do not."""
    if fit["exponent"] is None:
        return f"no fit: {fit['reason']}"
    if fit["low"] is None:
        return f"no interval: {fit['reason']}"
    if fit["high"] < 1:
        return f"below 1: sublinear over the {fit['n_used']} rounds fitted; not a proof"
    if fit["low"] > 1:
        return f"above 1: superlinear over the {fit['n_used']} rounds fitted"
    return "the interval includes 1: sublinear growth is not shown"


def view_lud(run: TrainingRun) -> Mapping[str, Any]:
    """Return how far logics moved; for another model's files, only that they are out of date."""
    lud, judges = run.lud, run.lud["judges"]
    # A run folder that is trained again keeps the files of the first training.
    trained = run.summary.get("artifact_hash")
    if trained and lud["artifact_hash"] != trained:
        finding = "Measured for an earlier training; measure it again with: compevo paper lud."
        return {"is_stale": True, "finding": finding}

    scored = [judge for judge in judges if judge.get("gains", {}).get("n")]
    failures = [f"{judge['failures']} of {judge['asked']} by {judge['name']}" for judge in judges]
    shifts = [float(agent["first_to_last"]) for agent in lud["agents"]]
    distances = tabulate(
        lud["agents"],
        {
            "Agent": lambda row: f"agent {row['agent']}",
            "First to last logic": lambda row: format_number(row["first_to_last"]),
            "Mean of round to round": lambda row: format_number(row["mean_delta"]),
            "Rounds without change": lambda row: f"{row['unchanged']} of {lud['updates_an_agent']}",
        },
        caption="Embedding distance between logics",
    )
    scores = tabulate(
        [row | {"judge": judge["name"]} for judge in judges for row in judge["agents"]],
        {
            "Agent": lambda row: f"agent {row['agent']}",
            "Judge": lambda row: row["judge"],
            "Updates": lambda row: f"{row['pairs']} ({row['unchanged']} unchanged)",
            "Strategy shift": lambda row: format_percent(row["mean_strategy_shift"]),
            "Evidence recombined": lambda row: format_percent(row["mean_evidence_recombination"]),
            "Mean RIUS": lambda row: format_number(row["mean_rius"]),
            "Mean LUD": lambda row: format_number(row["mean_lud"]),
        },
        caption="Judged updates",
        text_columns=(0, 1, 2),
    )
    # Kappa is undefined, not zero, if a judge always gave the same answer.
    agreement = tabulate(
        lud["agreement"],
        {
            "Judge": lambda row: row["first"],
            "Against": lambda row: row["second"],
            "Pairs": lambda row: format_number(row["n"]),
            "Kappa, RIUS at least 1": lambda row: format_number(row["kappa_gate"]),
            "Kappa, shift": lambda row: format_number(row["kappa_strategy_shift"]),
            "Kappa, evidence": lambda row: format_number(row["kappa_evidence_recombination"]),
            "r of LUD": lambda row: format_number(row["pearson_lud"]),
        },
        caption="Agreement of judges on the same changed updates",
        text_columns=(0, 1),
    )
    return {
        "finding": "From the first to the last logic the embeddings moved by "
        f"{format_number(min(shifts))} to {format_number(max(shifts))}; 0 means no change.",
        "is_stale": False,
        # The answers of a small local model look like measurements, so the page warns of them.
        "has_local_judge": any(judge["name"].startswith("local:") for judge in judges),
        "picture": figures.Picture(plot_updates(run), columns=2) if run.lud_rows else None,
        "encoder": lud["encoder"],
        "distances": distances,
        "scores": scores,
        "judged": f"{len(lud['judged_rounds'])} of {lud['updates_an_agent']}",
        "failures": join_items(failures),
        "prompt": shorten_hash(lud["prompt_hash"]),
        # A single judge has no one to agree with.
        "agreement": agreement if lud["agreement"] else None,
        "gains": _gain_table(scored) if scored else None,
        "correlations": join_items(
            [
                f"{format_number(judge['gains']['pearson_r'])} by {judge['name']} "
                f"(p {format_number(judge['gains']['pearson_p'])}, "
                f"{judge['gains']['n_changed']} updates)"
                for judge in scored
            ]
        ),
        "missing": MISSING,
    }


def _gain_table(judges: Sequence[Row]) -> Table:
    """Return what updates saved, by how far the logic moved (paper F.4)."""
    rows = []
    for judge in judges:
        gains = judge["gains"]
        low, high = gains["regime_edges"]
        # A regime includes its lower edge but not its upper one.
        ranges = [f"below {low:g}", f"{low:g} to {high:g}", f"from {high:g}"]
        columns = (gains[f"{name}_by_regime"] for name in ("n", "mean_lud", "mean_gain"))
        rows += [
            [judge["name"], regime, bounds, *map(format_number, numbers)]
            for regime, bounds, *numbers in zip(gains["regimes"], ranges, *columns, strict=True)
        ]

    return Table(
        header=["Judge", "Regime", "LUD", "Updates", "Mean LUD", "Mean error saved"],
        rows=rows,
        caption="Error saved by an update, by its LUD",
        text_columns=(0, 1, 2),
    )


#: Plots of one run by round.

# Height of one more row of the legend, so that it does not flatten the plot.
LEGEND_ROW = 0.18

LOSSES: Mapping[str, figures.Style] = {
    "loss": {"label": "total", "color": INK, "linewidth": 2.2},
    "loss_pred": {"label": "forecast", "color": ACCENT},
    "loss_pg": {"label": "policy", "color": RED},
    "loss_div": {"label": "diversity", "color": GREEN},
    "loss_prune": {"label": "pruning", "color": PURPLE},
    "loss_own": {"label": "own errors of agents", "color": GOLD},
}
# Validation is measured only in some rounds, so its points are marked.
ERRORS: Mapping[str, figures.Style] = {
    "loss_pred": {"label": "train, this round's batch", "color": "#9fb6cf"},
    "val_mae_scaled": {"label": "validation MAE (scaled)", "color": ACCENT, **figures.MARKED},
    "val_prior_mae_scaled": {
        "label": "validation MAE of the prior",
        "color": RED,
        "marker": "s",
        "markersize": 3,
    },
}
#: Plotted values of rounds with their titles; the values by agent; the values with a sign.
_ROUNDS = read_declared("rounds")
SELECTION, HEALTH, POLICY, THEORY, GAINS = (
    _ROUNDS[kind] for kind in ("selection", "health", "policy", "theory", "gains")
)
OF_AGENTS, SIGNED = _ROUNDS["of_agents"], _ROUNDS["signed"]
# More rounds than this are too close to each other to be distinguished.
_MOST_POINTS = 60


def plot_losses(run: TrainingRun) -> list[figures.Plot]:
    """Plot the joint objective with its terms, unweighted, and the forecast errors."""
    rounds = [record.round for record in run.rounds]
    if not any(run.values_of("loss")):
        return []
    # At weight zero the agents' own errors are not a term of this run.
    terms = [
        figures.Line(rounds, run.values_of(key), {"linewidth": 1.4} | style)
        for key, style in LOSSES.items()
        if key != "loss_own" or any(run.values_of(key))
    ]
    errors = [figures.Line(rounds, run.values_of(key), style) for key, style in ERRORS.items()]
    return [
        _plot(run, terms, "Loss terms", figures.HALF),
        _plot(run, errors, "Forecast loss and validation error", figures.HALF, legend_columns=1),
    ]


def plot_values(
    run: TrainingRun, titles: Mapping[str, str], size: tuple[float, float] = figures.THIRD
) -> list[figures.Plot]:
    """Plot values of the rounds that are not all zero, a line for each agent that has its own."""
    return [
        _plot_value(run, key, title, size)
        for key, title in titles.items()
        if any(any(v) if isinstance(v, list) else v for v in run.values_of(key))
    ]


def plot_topics(run: TrainingRun) -> figures.Plot | None:
    """Plot the topics that the logics of each agent name by round; None for logics in free text."""
    rounds = [run.rounds[i] for i in evenly_spaced(len(run.rounds), _MOST_POINTS)]
    named = [[find_topics(logic) for logic in record.logics] for record in rounds]
    counts = Counter(topic for topics in (*named, named[-1]) for names in topics for topic in names)
    if not counts:
        return None

    # The most named on top; the marks of agents are side by side.
    places = {topic: -row for row, (topic, _) in enumerate(counts.most_common())}
    lines = []
    for agent in range(run.agents):
        shift = 0.7 * (0.5 - (agent + 0.5) / run.agents)
        points = [
            (record.round, places[topic] + shift)
            for record, topics in zip(rounds, named, strict=True)
            for topic in topics[agent]
        ]
        marks: figures.Style = {"marker": "s", "markersize": 3.5, "linestyle": "none"}
        x, y = zip(*points, strict=True) if points else ((), ())
        lines.append(figures.Line(x, y, figures.agent_style(agent) | marks))
    title, ticks = "Topics that logics name", (list(places.values()), list(places))
    return _plot(run, lines, title, figures.THIRD, finish=lambda axis: axis.set_yticks(*ticks))


def has_fixed_regret(run: TrainingRun) -> bool:
    """Whether ``regret`` was measured against fixed logics."""
    return run.has_values("fixed_rewards") and run.has_values("regret")


def plot_updates(run: TrainingRun) -> list[figures.Plot]:
    """Plot each logic's distance from the previous one, and the LUD by the first judge."""
    # Each judge has its own rows, with the same distances.
    first_judge = run.lud_rows[0]["judge"]
    plots = []
    for key, title, marks in (
        ("delta", "Distance to the previous logic", {}),
        ("lud", "LUD of judged updates", figures.MARKED),
    ):
        lines = []
        for agent in range(run.agents):
            rows = [r for r in run.lud_rows if (r["judge"], r["agent"]) == (first_judge, agent)]
            points = [row["round"] for row in rows], [row[key] for row in rows]
            lines.append(figures.Line(*points, figures.agent_style(agent) | marks))
        plots.append(_plot(run, lines, title, figures.HALF))
    return plots


def _plot_value(run: TrainingRun, key: str, title: str, size: tuple[float, float]) -> figures.Plot:
    rounds, values = [record.round for record in run.rounds], run.values_of(key)
    if key not in OF_AGENTS:
        return _plot(run, [figures.Line(rounds, values, {"color": ACCENT})], title, size, key=key)

    columns = 4 if size == figures.HALF else 3
    size = (size[0], size[1] + LEGEND_ROW * ((run.agents - 1) // columns))
    lines = [
        figures.Line(rounds, [row and row[agent] for row in values], figures.agent_style(agent))
        for agent in range(run.agents)
    ]
    return _plot(run, lines, title, size, key=key, legend_columns=columns)


def _plot(
    run: TrainingRun,
    lines: Sequence[figures.Line],
    title: str,
    size: tuple[float, float],
    *,
    key: str = "",
    legend_columns: int = 3,
    finish: Callable[[Axes], object] | None = None,
) -> figures.Plot:
    """Plot lines over the axis of rounds, and describe the plot."""
    who = "one line per agent, " if key in OF_AGENTS else ""
    length = f"{run.agents} agents over {len(run.rounds)} rounds"
    boundary = run.first_evolving_round
    if boundary is not None:
        length += f", the first {boundary} of them supervised"
    alt = f"Line plot by round: {title}, {who}{length}."

    def mark(axis: Axes) -> None:
        if key in SIGNED:
            axis.axhline(0.0, color=INK, linewidth=0.8)
        if boundary is not None:
            # Between the last supervised round and the first one after it.
            axis.axvline(boundary - 0.5, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        if finish:
            finish(axis)

    look: figures.Style = {"size": size, "title": title, "x_label": "round", "finish": mark}
    return figures.plot_lines(lines, alt, legend_columns=legend_columns, **look)


#: Systems of agents by data set and budget.
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
    # All agents have as many rounds.
    known = [plateau for values in rewards if (plateau := measure_plateau(values, seed))]
    if not known:
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
    """Return the mean distance of updates by epoch and method; None if no logic was rewritten."""
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
RANKED_ROUNDS = 100  # at the end of a run, over which the paper ranks agents by their unique news
#: Marks of methods: not all readers can tell colours apart.
_MARKERS = {"compevo": "o", "mad-rl": "s", "mael": "D", "mae-gpt": "P"}
_AXES = ("x", "y", "z")


def make_curve(rows: pl.DataFrame, column: str, style: Mapping[str, Any]) -> figures.Line:
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
    return figures.Line(x, mean, style, (low, high) if known["seed"].n_unique() > 1 else None)


def rank_news(rows: pl.DataFrame, last_rounds: int) -> list[float]:
    """Return agents' unique news by rank, a mean over seeds and the last rounds of each run."""
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


def plot_rewards(rows: pl.DataFrame) -> list[figures.Plot]:
    """Plot the reward of every agent, one plot per method, on one scale."""
    parts, curves = split_methods(rows), {}
    for method, part in parts.items():
        agents = part.drop_nulls("reward").partition_by("agent", as_dict=True)
        curves[method] = [
            make_curve(rewards, "reward", figures.agent_style(agent))
            for (agent,), rewards in sorted(agents.items())
        ]

    # On separate scales, small rewards would look as restless as large ones.
    limits = list(chain(*(find_limits(lines) for lines in curves.values() if lines)))
    plots = []
    for method, lines in curves.items():
        who = f"{len(lines)} agents of {method_name(method)}, {_seeds(parts[method])}"
        alt = f"Line plot by round: reward of each of {who}."
        look: figures.Style = {
            "size": figures.THIRD,
            "title": method_name(method),
            "x_label": "round",
        }
        look["finish"] = lambda axis: axis.set_ylim(min(limits), max(limits))
        plots.append(figures.plot_lines(lines, alt, **look))
    return plots


def find_limits(lines: Sequence[figures.Line]) -> tuple[float, float]:
    """Return the lowest and the highest value that an axis of these lines would show by itself."""
    values = list(chain(*(chain(line.y, *(line.band or ())) for line in lines)))
    low, high = MaxNLocator().nonsingular(min(values), max(values))
    margin = (high - low) * 0.05
    return low - margin, high + margin


def plot_news(rows: pl.DataFrame) -> list[figures.Plot]:
    """Plot the unique news of an agent by round, and of the agents of each rank at the end."""
    lines, sizes = [], []
    for method, part in split_methods(rows).items():
        counts = rank_news(part, RANKED_ROUNDS)
        sizes.append(f"{method_name(method)} from {counts[0]:.1f} down to {counts[-1]:.1f}")
        ranks = range(1, len(counts) + 1)
        lines.append(figures.Line(ranks, counts, figures.method_style(method) | {"marker": "o"}))
    title = f"Unique news by rank, last {RANKED_ROUNDS} rounds"
    alt = f"Line plot of unique news per round by the agent's rank: {join_items(sizes)}."
    return [
        _plot_methods(rows, "unique_news", "Unique news of an agent in a round"),
        figures.plot_lines(lines, alt, size=figures.HALF, title=title, x_label="rank of the agent"),
    ]


def _plot_methods(rows: pl.DataFrame, column: str, title: str) -> figures.Plot:
    """Plot a column with one line per method and a band over its seeds."""
    lines, texts = [], []
    for method, part in split_methods(rows.drop_nulls(column)).items():
        line = make_curve(part, column, figures.method_style(method))
        ends = f"from {line.y[0]:.3f} to {line.y[-1]:.3f}"
        texts.append(f"{method_name(method)} {ends} ({_seeds(part)})")
        lines.append(line)
    alt = f"Line plot by round: {title}; {join_items(texts)}."
    return figures.plot_lines(lines, alt, size=figures.HALF, title=title, x_label="round")


def fill_space(logics: pl.DataFrame, axis: Any) -> None:  # noqa: ANN401 - of three dimensions
    """Draw the places of the logics of one data set and budget."""
    for method, part in split_methods(logics).items():
        axis.scatter(
            *(part[name] for name in _AXES),
            color=method_colour(method),
            label=method_name(method),
            marker=_MARKERS.get(method, "v"),
            depthshade=False,
            s=30,
        )

    axis.view_init(elev=22, azim=-58)  # degrees
    for number, name in enumerate(_AXES, start=1):
        axis.set(**{f"{name}label": f"component {number}"})
        getattr(axis, f"{name}axis").set_major_locator(MaxNLocator(4))
    figures.add_legend(axis)


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
        groups.append(
            {
                "title": title,
                "curves": None if traces.is_empty() else _view_curves(traces),
                "shifts": shift_table(traces),
                "plateau": plateau_table(logics),
                "topics": None if logics.is_empty() else topics_table(logics),
                "space": None if logics.is_empty() else _view_space(logics, title),
                "still": join_items(still),
            }
        )
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
        "dynamics": figures.Picture(dynamics, columns=2),
        "rewards": figures.Picture(plot_rewards(traces), columns=3),
        "news": figures.Picture(plot_news(traces), columns=2),
        "shifts": figures.Picture([shifts], columns=2) if has_shifts else None,
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
        "picture": figures.Picture(
            [figures.Plot(partial(fill_space, logics), label, (6.4, 4.8), "3d")]
        ),
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
