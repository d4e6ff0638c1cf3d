"""What the logics of one run became: first and last, how often they changed, those between.

What belongs here: tables of texts from ``rounds.jsonl``, and counts of what became of the samples.
What does not: how far a text moved in meaning (``report.lud_tables``), markup
(``templates/logics.html``).
"""

from collections.abc import Mapping

from compevo_core.data.arrays import evenly_spaced
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.tables import Table
from compevo_core.report.wording import format_number, format_percent
from compevo_core.training.round_record import RoundRecord

# Of thousands of rounds, a reader needs the course: the first, the last and some between.
SHOWN_ROUNDS = 6


def logics_view(run: TrainingRun) -> Mapping[str, object]:
    """Return what became of each logic, and the logics of evenly spaced rounds."""
    # Rounds after which nothing was rewritten would repeat the logics of the one before.
    versions = [run.rounds[0]] + [
        run.rounds[t] for t in range(1, len(run.rounds)) if run.rounds[t - 1].evolved
    ]
    shown = [versions[position] for position in evenly_spaced(len(versions), SHOWN_ROUNDS)]

    # The ends are open, because their comparison is what most readers look for.
    return {
        "change": _change_table(run),
        "samples": _describe_samples(run),
        "rounds": [
            {
                "number": record.round,
                "is_open": index in (0, len(shown) - 1),
                "table": _logic_table(record),
            }
            for index, record in enumerate(shown)
        ],
        "total": len(versions),
    }


def _change_table(run: TrainingRun) -> Table:
    """Return each agent's first and last logic, and how many rewritings replaced the played one."""
    # What the last round wrote was never played, so it is no replacement anybody has seen.
    steps = [
        (record.logics, following.logics)
        for record, following in zip(run.rounds[:-1], run.rounds[1:], strict=True)
        if record.evolved
    ]
    rows = []
    for agent, (first, last) in enumerate(
        zip(run.rounds[0].logics, run.rounds[-1].logics, strict=True)
    ):
        replaced = sum(before[agent] != after[agent] for before, after in steps)
        ended = "as at the start" if first == last else last
        rows.append([f"agent {agent}", first, ended, f"{replaced} of {len(steps)}"])

    return Table(
        header=["Agent", "First logic", "Last logic", "Rewritings that replaced it"],
        rows=rows,
        caption="What the logics became",
        text_columns=frozenset({0, 1, 2}),
    )


def _describe_samples(run: TrainingRun) -> str:
    """Say how much of what the agents wrote was of use; empty where they wrote nothing."""
    rewriting = run.rewriting_rounds
    # Each agent drafts one candidate and samples its group.
    written = sum(
        len(record.candidates) + sum(map(len, record.group_logics)) for record in rewriting
    )
    if not written:
        return ""

    empty = sum(record.empty_logics for record in rewriting)
    groups = run.agents * len(rewriting)
    equal = sum(record.equal_groups for record in rewriting)
    return (
        f"Logics were rewritten in {len(rewriting)} of {len(run.rounds)} rounds. Of {written:,} "
        f"texts written, {format_percent(empty / written)} were empty or a placeholder, and the "
        f"agent's old logic stood in for them. Of {groups:,} groups of samples, {equal:,} earned "
        "one and the same reward and taught nothing."
    )


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
