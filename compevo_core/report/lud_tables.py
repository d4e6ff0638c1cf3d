"""Logic Update Degree of one run: how far logics moved, what judges answered, how far they agree.

What belongs here: the tables of ``lud.json`` (paper 5.1, appendix F). What does not: measuring
(``lud.measure``), drawing (``report.training_plots``), how to read them (``templates/lud.html``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from compevo_core.report.figures import Picture, make_picture
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.tables import Table
from compevo_core.report.training_plots import plot_updates
from compevo_core.report.wording import format_number, format_percent, join_items, shorten_hash

# In the order of the columns of the table.
_AGREEMENT_KEYS = (
    "kappa_gate",
    "kappa_strategy_shift",
    "kappa_evidence_recombination",
    "pearson_lud",
)

#: Contents of ``lud.json``.
Lud = Mapping[str, Any]
#: What ``lud.json`` holds of one judge.
Judge = Mapping[str, Any]


def lud_view(run: TrainingRun) -> Mapping[str, object]:
    """Return the measures; of another model's, only that they are out of date."""
    # A run folder that is trained again keeps the files of the first training.
    trained = run.summary.get("artifact_hash")
    if trained and run.lud["artifact_hash"] != trained:
        return {"is_stale": True}

    tables = [_distance_table(run.lud), _score_table(run.lud)]
    # One judge has nobody to agree with.
    if run.lud["agreement"]:
        tables.append(_agreement_table(run.lud))

    # Files of older versions have no gains; a run without fixed logics has none to measure.
    judges = [judge for judge in run.lud["judges"] if judge.get("gains", {}).get("n")]
    if judges:
        tables.append(_gain_table(judges))

    return {
        "is_stale": False,
        # The answers of a small local model look like measurements, so the page warns of them.
        "has_local_judge": any(judge["name"].startswith("local:") for judge in run.lud["judges"]),
        "picture": _show_updates(run) if run.lud_rows else None,
        "tables": tables,
        "has_gains": bool(judges),
    }


def _show_updates(run: TrainingRun) -> Picture:
    return make_picture(
        plot_updates(run),
        caption="Distance of each logic to the one before, and LUD of the updates that were "
        "judged, by the first judge.",
        columns=2,
    )


def _distance_table(lud: Lud) -> Table:
    rows = [
        [
            f"agent {row['agent']}",
            format_number(row["first_to_last"]),
            format_number(row["mean_delta"]),
            f"{row['unchanged']} of {lud['updates_an_agent']}",
        ]
        for row in lud["agents"]
    ]

    return Table(
        header=["Agent", "First to last logic", "Mean of round to round", "Rounds without change"],
        rows=rows,
        caption="Embedding distance between logics",
        notes=(f"Encoder: {lud['encoder']}.",),
    )


def _score_table(lud: Lud) -> Table:
    rows = [
        [
            f"agent {row['agent']}",
            judge["name"],
            f"{row['pairs']} ({row['unchanged']} unchanged)",
            format_percent(row["mean_strategy_shift"]),
            format_percent(row["mean_evidence_recombination"]),
            format_number(row["mean_rius"]),
            format_number(row["mean_lud"]),
        ]
        for judge in lud["judges"]
        for row in judge["agents"]
    ]

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
        notes=(_describe_sample(lud),),
    )


def _describe_sample(lud: Lud) -> str:
    """Say how many updates were judged and how many answers are missing from the means."""
    judged = f"{len(lud['judged_rounds'])} of {lud['updates_an_agent']} updates of each agent"
    failures = [
        f"{judge['failures']} of {judge['asked']} by {judge['name']}" for judge in lud["judges"]
    ]
    return (
        f"Judged: {judged}, evenly spaced; an unchanged text counts as 0 and is not sent to the "
        f"judge. Answers that could not be parsed, left out: {join_items(failures)}. "
        f"Prompt {shorten_hash(lud['prompt_hash'])}."
    )


def _agreement_table(lud: Lud) -> Table:
    rows = [
        [
            row["first"],
            row["second"],
            format_number(row["n"]),
            *(format_number(row[key]) for key in _AGREEMENT_KEYS),
        ]
        for row in lud["agreement"]
    ]

    # Kappa is undefined, not zero, where a judge gave one and the same answer throughout.
    return Table(
        header=[
            "Judge",
            "Against",
            "Pairs",
            "Kappa, RIUS at least 1",
            "Kappa, shift",
            "Kappa, evidence",
            "r of LUD",
        ],
        rows=rows,
        caption="Agreement of judges on the same changed updates",
        text_columns=frozenset({0, 1}),
        notes=(
            "Cohen's kappa and Pearson's r: 1 is full agreement, 0 what chance gives; n/a where a "
            "judge always gave the same answer.",
        ),
    )


def _gain_table(judges: Sequence[Judge]) -> Table:
    """Return what updates saved, by how far the logic moved (paper F.4)."""
    rows = [[judge["name"], *cells] for judge in judges for cells in _regime_rows(judge["gains"])]

    correlations = [
        f"{format_number(judge['gains']['pearson_r'])} by {judge['name']} "
        f"(p {format_number(judge['gains']['pearson_p'])}, {judge['gains']['n']} updates)"
        for judge in judges
    ]
    return Table(
        header=["Judge", "Regime", "LUD", "Updates", "Mean LUD", "Mean error saved"],
        rows=rows,
        caption="Error saved by an update, by its LUD",
        text_columns=frozenset({0, 1, 2}),
        notes=(
            "Error saved: scaled error of the old logic minus that of the new one, on the same "
            "windows. The new logic was the best of its group on these windows, so the saving is "
            "overestimated.",
            f"Pearson's r of LUD and error saved: {join_items(correlations)}.",
        ),
    )


def _regime_rows(gains: Mapping[str, Any]) -> list[list[str]]:
    low, high = gains["regime_edges"]
    # A regime holds its lower edge and not its upper one.
    ranges = [f"below {low:g}", f"{low:g} to {high:g}", f"from {high:g}"]
    return [
        [name, bounds, format_number(count), format_number(mean_lud), format_number(mean_gain)]
        for name, bounds, count, mean_lud, mean_gain in zip(
            gains["regimes"],
            ranges,
            gains["n_by_regime"],
            gains["mean_lud_by_regime"],
            gains["mean_gain_by_regime"],
            strict=True,
        )
    ]
