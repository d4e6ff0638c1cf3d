"""What a measured run says of its logic updates, as rows for a results folder.

What belongs here: the columns, and rows from the content of ``lud.json``. What does not: measuring
(``lud.measure``), the paper's figures beside them (``report.paper``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from compevo_core.data.files import write_atomically

JUDGES, GAINS = "judges", "gains"
ALL_UPDATES = "all"

LUD_RESULT_SCHEMA: dict[str, pl.DataType] = {
    "table": pl.String(),  # judges: agreement of two; gains: LUD against the error saved
    "subject": pl.String(),  # the two judges, or the regime of the update
    "dataset": pl.String(),
    "judge": pl.String(),
    "n": pl.Int64(),  # updates behind the numbers
    "kappa": pl.Float64(),  # of the gate that LUD is multiplied by
    "pearson_r": pl.Float64(),
    "p_value": pl.Float64(),
    "mean_lud": pl.Float64(),
    "error_gain": pl.Float64(),  # scaled error that an update saved
    "encoder": pl.String(),
    "config_hash": pl.String(),
    "artifact_hash": pl.String(),
}


def tabulate_lud(summary: Mapping[str, Any], dataset: str) -> pl.DataFrame:
    """Return the rows of a run.

    Args:
        summary: content of ``lud.json``, as ``lud.measure.measure_lud`` returns it.
        dataset: data set that the run was trained on.
    """
    facts = {
        "dataset": dataset,
        **{name: summary[name] for name in ("encoder", "config_hash", "artifact_hash")},
    }
    rows: list[dict[str, Any]] = [
        {
            "table": JUDGES,
            "subject": f"{pair['first']} / {pair['second']}",
            "n": pair["n"],
            "kappa": pair["kappa_gate"],
            "pearson_r": pair["pearson_lud"],
        }
        for pair in summary["agreement"]
    ]
    for judge in summary["judges"]:
        rows += _tabulate_gains(judge["name"], judge["gains"])
    return pl.DataFrame([row | facts for row in rows], schema=LUD_RESULT_SCHEMA)


def _tabulate_gains(judge: str, gains: Mapping[str, Any]) -> list[dict[str, Any]]:
    by_regime = zip(
        gains["regimes"],
        gains["n_by_regime"],
        gains["mean_lud_by_regime"],
        gains["mean_gain_by_regime"],
        strict=True,
    )
    rows: list[dict[str, Any]] = [
        {"subject": regime, "n": n, "mean_lud": lud, "error_gain": gain}
        for regime, n, lud, gain in by_regime
    ]
    rows.append(
        {
            "subject": ALL_UPDATES,
            "n": gains["n"],
            "pearson_r": gains["pearson_r"],
            "p_value": gains["pearson_p"],
        }
    )
    return [row | {"table": GAINS, "judge": judge} for row in rows]


def write_lud_rows(results: Path, summary: Mapping[str, Any], dataset: str) -> Path:
    """Write the rows of a run to ``lud-<dataset>.csv``, in the place of those of its model."""
    path = results / f"lud-{dataset}.csv"
    rows = tabulate_lud(summary, dataset)
    # Rows of other runs of the data set stay; a run measured again replaces its own.
    if path.exists():
        stored = pl.read_csv(path, schema=LUD_RESULT_SCHEMA)
        rows = pl.concat([stored.filter(pl.col("artifact_hash") != summary["artifact_hash"]), rows])
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(path, rows.write_csv)
    return path
