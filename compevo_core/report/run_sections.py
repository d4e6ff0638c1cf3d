"""The parts of one training run: settings, curves by round, logics, theory, logic updates.

What belongs here: which parts a run has, its settings at a glance, its curves and its logics. What
does not: drawing (``report.training_plots``), the tables of theory (``report.theory_tables``) and
of logic updates (``report.lud_tables``), markup (``templates``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from compevo_core.data.arrays import evenly_spaced
from compevo_core.durations import describe_duration
from compevo_core.report.figures import make_picture
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.lud_tables import lud_view
from compevo_core.report.tables import Table
from compevo_core.report.theory_tables import theory_view
from compevo_core.report.training_plots import plot_losses, plot_policy, plot_selection
from compevo_core.report.wording import MISSING, format_number
from compevo_core.training.round_record import RoundRecord

# Of thousands of rounds, a reader needs the course: the first, the last and some between.
SHOWN_ROUNDS = 6
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
        ("rounds", str(len(run.rounds))),
        ("training time", describe_duration(seconds, missing=MISSING)),
    ]
    # A run of an older version lacks settings that were added since.
    settings = [(label, run.setting(section, name)) for section, name, label in SETTINGS]
    return length + [(label, value) for label, value in settings if value]


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
        # Advantages within a group of equal rewards are zero: many such groups mean no learning.
        "equal_groups": sum(record.equal_groups for record in run.rounds),
        "groups": run.agents * len(run.rounds),
    }


def logics_view(run: TrainingRun) -> Mapping[str, object]:
    """Return the logics of evenly spaced rounds, the first and the last opened."""
    positions = evenly_spaced(len(run.rounds), SHOWN_ROUNDS)
    shown = [run.rounds[position] for position in positions]

    # The ends are open, because their comparison is what most readers look for.
    return {
        "rounds": [
            {
                "number": record.round,
                "is_open": index in (0, len(shown) - 1),
                "table": _logic_table(record),
            }
            for index, record in enumerate(shown)
        ],
        "total": len(run.rounds),
    }


def _logic_table(record: RoundRecord) -> Table:
    rows = [
        [f"agent {agent}", logic, format_number(reward), format_number(weight)]
        for agent, (logic, reward, weight) in enumerate(
            zip(record.logics, record.rewards, record.weights, strict=True)
        )
    ]
    return Table(
        header=["Agent", "Logic", "Reward", "Weight"], rows=rows, text_columns=frozenset({0, 1})
    )
