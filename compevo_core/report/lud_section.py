"""Logic Update Degree of one run as HTML: how far the texts moved, what the judges said, how far they agree.

What belongs here: the tables of ``lud.json`` and how to read them. What does not: measuring (``lud_run``), drawing.
"""

import html
from collections.abc import Mapping
from typing import Any

from compevo_core.report import training_plots as plots
from compevo_core.report.figures import to_html
from compevo_core.report.inputs import RunRecord
from compevo_core.report.tables import Table
from compevo_core.report.tables import to_html as table_html
from compevo_core.report.wording import listed, number, percent, short

READING = (
    "How much each agent's logic changed. The distance is one minus the cosine between two texts' embeddings: 0 is no "
    "change. A judge that sees the two texts alone says whether the strategy shifted and whether evidence was "
    "recombined (RIUS, 0 to 2); LUD is the distance where it said yes to at least one, and 0 elsewhere."
)
LOCAL_CAVEAT = (
    "A local judge is the run's own frozen backbone. The packaged one has 135 million parameters, too few to follow "
    "the rubric: its answers are not informative, whatever the logics. They show that the measurement works; read RIUS "
    "and LUD only from a capable judge."
)
STALE = (
    "The LUD files in this run folder are of an earlier training; measure again with: compevo lud."
)


def lud_html(run: RunRecord) -> str:
    """The whole part; where the files belong to another model it says so and shows nothing of them."""
    found = run.lud
    trained = run.summary.get("artifact_hash")
    if trained and found["artifact_hash"] != trained:
        return f"<p>{html.escape(STALE)}</p>"
    parts = [f"<p>{html.escape(READING)}</p>"]
    if any(judge["name"].startswith("local:") for judge in found["judges"]):
        parts.append(f'<p class="quiet">{html.escape(LOCAL_CAVEAT)}</p>')
    if run.lud_rows:
        parts.append(_figure(run))
    parts += [table_html(_distances(found)), table_html(_scores(found))]
    if found["agreement"]:
        parts.append(table_html(_agreement(found)))
    return "".join(parts)


def _figure(run: RunRecord) -> str:
    return to_html(
        plots.update_degree(run),
        caption="Distance of each logic from the one before, and LUD of the updates that were judged, by the first "
        "judge.",
        alt="Two plots by round, one colour an agent: embedding distance to the previous logic, and LUD where judged.",
    )


def _distances(found: Mapping[str, Any]) -> Table:
    rows = [
        [
            f"agent {row['agent']}",
            number(row["first_to_last"]),
            number(row["mean_delta"]),
            f"{row['unchanged']} of {found['updates_an_agent']}",
        ]
        for row in found["agents"]
    ]
    return Table(
        header=["Agent", "First to last logic", "Mean of round to round", "Rounds without change"],
        rows=rows,
        caption="Embedding distance between logics",
        notes=(f"Encoder: {found['encoder']}.",),
    )


def _scores(found: Mapping[str, Any]) -> Table:
    rows = [
        [
            f"agent {row['agent']}",
            judge["name"],
            f"{row['pairs']} ({row['unchanged']} unchanged)",
            percent(row["mean_strategy_shift"]),
            percent(row["mean_evidence_recombination"]),
            number(row["mean_rius"]),
            number(row["mean_lud"]),
        ]
        for judge in found["judges"]
        for row in judge["agents"]
    ]
    failed = [
        f"{judge['failures']} of {judge['asked']} by {judge['name']}" for judge in found["judges"]
    ]
    sampled = f"{len(found['judged_rounds'])} of {found['updates_an_agent']} updates an agent, evenly spaced"
    return Table(
        header=[
            "Agent",
            "Judge",
            "Updates",
            "Strategy shift",
            "Evidence recombined",
            "Mean RIUS",
            "Mean LUD",
        ],
        rows=rows,
        caption="Judged updates",
        text_columns=frozenset({0, 1, 2}),
        notes=(
            f"Judged: {sampled}; an unchanged text counts as 0 and is not asked about. "
            f"Answers that were no verdict, left out: {listed(failed)}. Prompt {short(found['prompt_hash'])}.",
        ),
    )


def _agreement(found: Mapping[str, Any]) -> Table:
    keys = ("kappa_gate", "kappa_strategy_shift", "kappa_evidence_recombination", "pearson_lud")
    rows = [[row["first"], row["second"], number(row["n"]), *(number(row[key]) for key in keys)]
            for row in found["agreement"]]  # fmt: skip
    return Table(
        header=["Judge", "Against", "Pairs", "Kappa, RIUS at least 1", "Kappa, shift", "Kappa, evidence", "r of LUD"],
        rows=rows,
        caption="Agreement of judges on the same changed updates",
        text_columns=frozenset({0, 1}),
        notes=("Cohen's kappa and Pearson's r: 1 is full agreement, 0 what chance gives; n/a where a judge always says "
               "the same.",),
    )  # fmt: skip
