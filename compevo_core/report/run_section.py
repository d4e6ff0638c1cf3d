"""One training run as HTML: what was trained, curves by round, theory instruments, logics.

What belongs here: which parts a run has, its training plots, the table of logics (untrusted model text, escaped).
What does not: the drawing (``training_plots``), the instruments (``theory_section``), LUD (``lud_section``).
"""

import html
from collections.abc import Sequence

from matplotlib.figure import Figure

from compevo_core.data.arrays import evenly_spaced
from compevo_core.durations import describe_duration
from compevo_core.report import training_plots as plots
from compevo_core.report.figures import to_html
from compevo_core.report.inputs import Round, RunRecord
from compevo_core.report.lud_section import lud_html
from compevo_core.report.tables import Table
from compevo_core.report.tables import to_html as table_html
from compevo_core.report.theory_section import theory_html
from compevo_core.report.wording import MISSING, number

SHOWN_ROUNDS = 6
FACTS = (
    ("backbone", "name_or_path", "backbone"),
    ("forecast", "decoder", "decoder"),
    ("forecast", "prior", "prior"),
    ("population", "rank", "adapter rank"),
    ("grpo", "group_size", "logics sampled an agent"),
    ("selection", "fitness_shift", "fitness shift"),
)


def parts(run: RunRecord) -> list[tuple[str, str, str]]:
    """(anchor, title, HTML) of each part of a run that has something to show."""
    if not run.rounds:
        return []
    found = [("training", "Training", _training(run)), ("logics", "Logics by round", _logics(run))]
    if any(plots.has(run, key) for key in ("best_response_gap", "group_regret", "gradient_margin")):
        found.append(("theory", "Theory instruments", theory_html(run)))
    if run.lud:
        found.append(("lud", "Logic update degree", lud_html(run)))
    return found


def facts(run: RunRecord) -> list[tuple[str, str]]:
    """Name and value of what identifies a run at a glance."""
    known = [(label, run.setting(section, name)) for section, name, label in FACTS]
    length = [
        ("agents", str(run.agents)),
        ("rounds", str(len(run.rounds))),
        (
            "training time",
            describe_duration(
                sum(entry.get("seconds", 0.0) for entry in run.rounds), missing=MISSING
            ),
        ),
    ]
    return length + [(label, value) for label, value in known if value]


def _training(run: RunRecord) -> str:
    chips = "".join(
        f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd></div>"
        for label, value in facts(run)
    )
    who = f"{run.agents} agents over {len(run.rounds)} rounds"
    return "".join(
        (
            f'<dl class="facts">{chips}</dl>',
            _figure(
                plots.losses(run),
                "Loss terms as logged each round, and the validation error where it was measured.",
                f"Line plots of the loss terms and the validation error by round, {who}.",
            ),
            _figure(
                plots.selection(run),
                "Selection: what each agent earned, its fitness, its weight in the forecast, its gate.",
                f"Four line plots by round, one line an agent: reward, fitness, weight and gate, {who}.",
            ),
            _figure(
                plots.policy(run),
                "The policy step: distance to the frozen reference, share clipped, and whether the regularisers pull "
                "with the main loss (1), across it (0) or against it (-1).",
                f"Three line plots by round: KL, share clipped, cosine of the two gradients, {who}.",
            ),
            _equal_groups(run),
        )
    )


def _equal_groups(run: RunRecord) -> str:
    equal = sum(entry.get("equal_groups") or 0 for entry in run.rounds)
    groups = run.agents * len(run.rounds)
    text = f"Groups whose samples all earned the same reward, and so taught nothing: {equal} of {groups}."
    return f'<p class="quiet">{html.escape(text)}</p>'


def _figure(figure: Figure, caption: str, alt: str) -> str:
    return to_html(figure, alt=alt, caption=caption)


def _logics(run: RunRecord) -> str:
    shown = _spread(run.rounds)
    note = (
        ""
        if len(shown) == len(run.rounds)
        else f" {len(shown)} of {len(run.rounds)} rounds shown; rounds.jsonl holds all."
    )
    blocks = "".join(
        _logic_round(entry, opened=index in (0, len(shown) - 1))
        for index, entry in enumerate(shown)
    )
    return f"<p>{html.escape('The rule each agent wrote for itself, as generated.' + note)}</p>{blocks}"


def _spread(rounds: Sequence[Round]) -> list[Round]:
    """First, last and evenly spaced rounds between."""
    return [rounds[position] for position in evenly_spaced(len(rounds), SHOWN_ROUNDS)]


def _logic_round(entry: Round, *, opened: bool) -> str:
    rows = [
        [f"agent {agent}", logic, number(entry["rewards"][agent]), number(entry["weights"][agent])]
        for agent, logic in enumerate(entry["logics"])
    ]
    table = Table(
        header=["Agent", "Logic", "Reward", "Weight"], rows=rows, text_columns=frozenset({0, 1})
    )
    return (
        f'<details class="logics"{" open" if opened else ""}><summary>Round {int(entry["round"])}</summary>'
        f"{table_html(table)}</details>"
    )
