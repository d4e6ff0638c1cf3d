"""The theory diagnostics of one run: plots by round, and how regret grew.

What belongs here: wording what training measured and fitted (paper appendix B). What does not: the
measures and fits (``diagnostics.theory``, ``diagnostics.regret``), drawing
(``report.training_plots``), how to read them (``templates/theory.html``).
"""

from collections.abc import Mapping
from typing import Any

from compevo_core.report.figures import make_picture
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.tables import Table
from compevo_core.report.training_plots import has_fixed_regret, plot_theory
from compevo_core.report.wording import format_number

EXPONENT_NOTE = (
    "The exponent b says how regret grew with the number of rounds T, as T to the power b: 1 is in "
    "proportion to the rounds, 0.5 the rate of the paper's theorem. Rounds with regret at or below "
    "zero cannot enter the fit."
)
CAPTION = (
    "Best-response gap; regret against the best fixed logic in hindsight, and against each round's "
    "own best sample, which may change every round; margin of the gradient-conflict condition; "
    "gradient norm; weight entropy."
)

#: A fitted exponent as ``metrics.json`` holds it.
Fit = Mapping[str, Any]


def theory_view(run: TrainingRun) -> Mapping[str, object]:
    """Return the plots, and the growth of regret as a table where it was fitted."""
    return {
        "picture": make_picture(plot_theory(run), caption=CAPTION, columns=3),
        "has_fixed_regret": has_fixed_regret(run),
        "growth": _growth_table(run),
    }


def _growth_table(run: TrainingRun) -> Table | None:
    fits = run.summary.get("regret_exponent")
    # The fit is written with the summary, when the run ends.
    if not has_fixed_regret(run) or not isinstance(fits, Mapping):
        return None

    # Regret is a running total, so the last round that has one holds the whole of it.
    measured = [regret for regret in run.values_of("regret") if regret is not None]
    total = len(run.rewriting_rounds)
    regrets = measured[-1]
    rows = [
        _growth_row(f"agent {agent}", regret, fits["agents"][agent], total)
        for agent, regret in enumerate(regrets)
    ]
    mean = sum(regrets) / len(regrets)
    rows.append(_growth_row("mean of agents", mean, fits["mean"], total))
    return Table(
        header=[
            "Agent",
            "Regret at the end",
            "Exponent",
            "95 % interval",
            "Rounds used",
            "Meaning",
        ],
        rows=rows,
        caption="Growth of regret against the best fixed logic",
        text_columns=frozenset({0, 5}),
        notes=(EXPONENT_NOTE,),
    )


def _growth_row(name: str, regret: float, fit: Fit, rounds: int) -> list[str]:
    exponent = "" if fit["exponent"] is None else f"{fit['exponent']:.2f}"
    interval = "" if fit["low"] is None else f"{fit['low']:.2f} to {fit['high']:.2f}"
    return [
        name,
        format_number(regret),
        exponent,
        interval,
        f"{fit['n_used']} of {rounds}",
        describe_growth(fit),
    ]


def describe_growth(fit: Fit) -> str:
    """Say what a fitted exponent and its interval show, and what they do not."""
    if fit["exponent"] is None:
        return f"no fit: {fit['reason']}"
    if fit["low"] is None:
        return f"no interval: {fit['reason']}"
    if fit["high"] < 1:
        return f"below 1: sublinear over the {fit['n_used']} rounds fitted; not a proof"
    if fit["low"] > 1:
        return f"above 1: faster than in proportion over the {fit['n_used']} rounds fitted"

    return "the interval holds 1: sublinear growth is not shown"
