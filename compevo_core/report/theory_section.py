"""The theory instruments of one run as HTML: plots by round and the growth of regret, in words.

What belongs here: how to read what ``theory`` measured and the trainer fitted. What does not: any fit, the drawing
(``training_plots``).
"""

import html
from collections.abc import Mapping
from typing import Any

from compevo_core.report import training_plots as plots
from compevo_core.report.figures import to_html
from compevo_core.report.inputs import RunRecord
from compevo_core.report.tables import Table
from compevo_core.report.tables import to_html as table_html
from compevo_core.report.wording import number

READING = (
    "A gap near zero means that no agent alone could have lowered the group's error by its best sampled logic. Regret "
    "is the reward an agent gave up by changing its logic, against the best of a few fixed logics picked afterwards; "
    "below zero it did better than each of them. A margin above zero means that the regularisers did not turn the step "
    "away from a lower error. These are instruments of one finite run, on sampled and fixed logics: they can speak "
    "against the theory, they cannot prove it."
)
UNMEASURED = "Regret against fixed logics was not measured in this run (run.fixed_logics = 0)."
EXPONENT = (
    "The exponent b says how regret grew with the number of rounds T, as T to the power b: 1 is in proportion to the "
    "rounds, 0.5 the rate of the paper's theorem. Rounds with regret at or below zero cannot enter the fit."
)


def theory_html(run: RunRecord) -> str:
    """Plots by round, then the growth of regret as a table, or why there is none."""
    what = "best-response gap, regret, regret against the group, conflict margin, gradient norm, weight entropy"
    figure = to_html(
        plots.theory(run),
        alt=f"Six plots by round: {what}.",
        caption="Best-response gap; regret against the best fixed logic in hindsight, and against each round's own "
        "best sample, which may switch every round; margin of the gradient-conflict condition; gradient norm; weight "
        "entropy.",
    )
    return _paragraph(READING) + figure + _growth(run)


def _growth(run: RunRecord) -> str:
    if not plots.has_fixed_regret(run):
        return _paragraph(UNMEASURED)
    fits = run.summary.get("regret_exponent")
    if not isinstance(fits, Mapping):
        return _paragraph("The growth of regret is fitted when the run ends; it has not ended.")
    last = run.rounds[-1]["regret"]
    rows = [
        _row(f"agent {a}", last[a], fit, len(run.rounds)) for a, fit in enumerate(fits["agents"])
    ]
    rows.append(_row("mean of agents", sum(last) / len(last), fits["mean"], len(run.rounds)))
    table = Table(
        header=[
            "Agent",
            "Regret at the end",
            "Exponent",
            "95 % interval",
            "Rounds used",
            "What it says",
        ],
        rows=rows,
        caption="Growth of regret against the best fixed logic",
        text_columns=frozenset({0, 5}),
        notes=(EXPONENT,),
    )
    return table_html(table)


def _row(name: str, regret: float, fit: Mapping[str, Any], rounds: int) -> list[str]:
    interval = "" if fit["low"] is None else f"{fit['low']:.2f} to {fit['high']:.2f}"
    exponent = "" if fit["exponent"] is None else f"{fit['exponent']:.2f}"
    return [
        name,
        number(regret),
        exponent,
        interval,
        f"{fit['n_used']} of {rounds}",
        growth_in_words(fit),
    ]


def growth_in_words(fit: Mapping[str, Any]) -> str:
    """What a fitted exponent and its interval say, and what they do not."""
    if fit["exponent"] is None:
        return f"no fit: {fit['reason']}"
    if fit["low"] is None:
        return f"no interval: {fit['reason']}"
    if fit["high"] < 1:
        return f"below 1: sublinear over the {fit['n_used']} rounds fitted; not a proof"
    if fit["low"] > 1:
        return f"above 1: faster than in proportion over the {fit['n_used']} rounds fitted"
    return "the interval holds 1: sublinear growth is not shown"


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"
