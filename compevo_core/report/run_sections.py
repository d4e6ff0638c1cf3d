"""The parts of one training run: settings, curves by round, health, logics, theory, updates.

What belongs here: which parts a run has, its settings at a glance and its curves. What does not:
drawing (``report.training_plots``), the tables of logics (``report.logic_tables``), of theory
(``report.theory_tables``) and of logic updates (``report.lud_tables``), markup (``templates``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from compevo_core.durations import describe_duration
from compevo_core.report.calibration_tables import calibration_table
from compevo_core.report.figures import make_picture
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.logic_tables import logics_view
from compevo_core.report.lud_tables import lud_view
from compevo_core.report.mechanism.tables import run_plateau_table
from compevo_core.report.theory_tables import theory_view
from compevo_core.report.training_plots import (
    HEALTH,
    plot_health,
    plot_losses,
    plot_policy,
    plot_selection,
)
from compevo_core.report.wording import MISSING, format_number

# The last rounds, over which health is averaged: single batches of windows say little.
LAST_ROUNDS = 10
#: Section and name of each setting shown at a glance, and its label.
SETTINGS = (
    ("backbone", "name_or_path", "backbone"),
    ("forecast", "decoder", "decoder"),
    ("forecast", "prior", "prior"),
    ("population", "rank", "adapter rank"),
    ("grpo", "group_size", "logics in a group"),
    ("selection", "fitness_shift", "fitness shift"),
)


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """One part of a run: anchor and title without the run, template, and what it shows."""

    anchor: str
    title: str
    template: str
    view: Mapping[str, object]


def build_run_parts(run: TrainingRun) -> list[RunPart]:
    """Return each part of a run that has something to show."""
    if not run.rounds:
        return []

    parts = [
        RunPart(
            anchor="training", title="Training", template="training.html", view=training_view(run)
        ),
        *_health_parts(run),
        RunPart(
            anchor="logics", title="Logics by round", template="logics.html", view=logics_view(run)
        ),
        RunPart(
            anchor="theory",
            title="Theory diagnostics",
            template="theory.html",
            view=theory_view(run),
        ),
    ]
    # LUD is measured after training, on demand.
    if run.lud:
        parts.append(
            RunPart(
                anchor="lud", title="Logic update degree", template="lud.html", view=lud_view(run)
            )
        )
    return parts


def list_facts(run: TrainingRun) -> list[tuple[str, str]]:
    """Return (name, value) of what identifies a run at a glance."""
    seconds = sum(record.seconds for record in run.rounds)
    length = [
        ("agents", str(run.agents)),
        ("rounds", _describe_rounds(run)),
        ("training time", describe_duration(seconds, missing=MISSING)),
    ]
    # A run of an older version lacks settings that were added since.
    settings = [(label, run.setting(section, name)) for section, name, label in SETTINGS]
    return length + [(label, value) for label, value in settings if value]


def _describe_rounds(run: TrainingRun) -> str:
    """Return the number of rounds, with those of the supervised stage and those that rewrote."""
    parts = [str(len(run.rounds))]
    if run.rounds[0].stage == "supervised":
        boundary = run.first_evolving_round
        parts.append(f"{len(run.rounds) if boundary is None else boundary} supervised")
    if len(run.rewriting_rounds) < len(run.rounds):
        parts.append(f"{len(run.rewriting_rounds)} rewriting logics")
    return ", ".join(parts)


def training_view(run: TrainingRun) -> Mapping[str, object]:
    """Return the facts and the curves of a run."""
    # Pictures in reading order: did it learn, who was selected, what did the policy step do.
    pictures = [
        make_picture(
            plot_losses(run),
            caption="Loss terms of each round, and the validation error where it was measured.",
            columns=2,
        ),
        make_picture(
            plot_selection(run),
            caption="Selection: reward and fitness of each agent, its weight in the forecast, and "
            "its gate.",
            columns=2,
        ),
        make_picture(
            plot_policy(run),
            caption="The policy step: distance to the frozen reference, share of clipped tokens, "
            "and whether the regularisers pull with the main loss (1), across it (0) or against it "
            "(-1).",
            columns=3,
        ),
    ]

    return {
        "facts": list_facts(run),
        "pictures": pictures,
        "plateau": run_plateau_table(run),
        "calibration": calibration_table(run),
        "has_stages": run.first_evolving_round is not None,
        "cut_prompts": sum(record.cut_prompts for record in run.rounds),
    }


def _health_parts(run: TrainingRun) -> list[RunPart]:
    # Older versions did not measure it.
    if not run.has_values("effective_agents"):
        return []
    return [
        RunPart(
            anchor="health",
            title="Health of the population",
            template="health.html",
            view=health_view(run),
        )
    ]


def health_view(run: TrainingRun) -> Mapping[str, object]:
    """Return whether the population is more than one agent repeated, by round and at the end."""
    last = [record for record in run.rounds if record.effective_agents is not None][-LAST_ROUNDS:]
    means = {
        key: format_number(sum(getattr(record, key) for record in last) / len(last))
        for key, _ in HEALTH
    }

    return {
        "picture": make_picture(
            plot_health(run),
            caption="Correlation of errors, gain of the plain mean over the best agent, and "
            "effective number of agents, in the batch of each round.",
            columns=3,
        ),
        "means": means,
        "n_rounds": len(last),
        "agents": run.agents,
        "weights": [
            (f"agent {agent}", format_number(weight))
            for agent, weight in enumerate(run.rounds[-1].weights)
        ],
        "equal_weight": format_number(1.0 / run.agents),
    }
