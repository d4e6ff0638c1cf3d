"""What calibration on validation made of a trained population.

What belongs here: wording the ``calibration`` of ``metrics.json``. What does not: fitting it
(``training.calibration``), errors on the test split (``report.result_tables``).
"""

from collections.abc import Mapping
from typing import Any

from compevo_core.report.inputs import TrainingRun
from compevo_core.report.tables import Table
from compevo_core.report.wording import format_number, format_percent, join_items

GUARDS = {
    "none": "Selection weighs the agents.",
    "equal": "The guard weighs all agents alike: with their weights the population validated worse "
    "than its prior.",
    "best": "The guard lets the best agent forecast alone: with the others it was worse than the "
    "prior.",
    "prior": "The guard forecasts by the prior alone: no agent was better on validation.",
}


def calibration_table(run: TrainingRun) -> Table | None:
    """Return validation errors of prior, population and sealed model; None where not measured."""
    report = run.summary.get("calibration")
    if not report:
        return None

    return Table(
        header=["Forecast", "Validation MAE (scaled)"],
        rows=[
            ["best prior, as it is", format_number(report["prior_mae"])],
            ["population before calibration", format_number(report["raw_mae"])],
            ["population as sealed", format_number(report["calibrated_mae"])],
        ],
        caption=f"Calibration on {report['windows']:,} validation windows",
        highlighted_rows=frozenset({2}),
        notes=_describe(report),
    )


def _describe(report: Mapping[str, Any]) -> list[str]:
    shares = [
        f"{format_percent(share)} of agent {agent}" for agent, share in enumerate(report["blend"])
    ]
    notes = [
        f"Kept of each agent's correction, mean over steps: {join_items(shares)}; 0 % returns its "
        "prior."
    ]
    if report["half_life_days"] is None:
        notes.append("No level of known errors is added.")
    else:
        notes.append(
            f"Known errors are added by series and step ({report['known_errors']}, half-life "
            f"{report['half_life_days']:g} days)."
        )

    notes.append(GUARDS.get(report["guard"], f"Guard: {report['guard']}."))
    notes.append("The same windows chose and are measured here: only the test split is evidence.")
    return notes
