"""Measure the LUD of one finished run: files in the run folder, rows for a results folder.

What belongs here: which updates are judged, ``lud.json`` (means by agent, judges, their agreement,
gains), ``lud.csv`` (one row an agent, update and judge), the rows that tables read. What does not:
the definitions (``paper.lud``), judges (``paper.lud_judges``), plots (``report``).

Paper 5.6 and appendix F.
"""

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.lm.encoder import Encoder
from compevo_core.paper.lud import (
    Vectors,
    build_lud_table,
    embed_texts,
    measure_agreement,
    measure_gains,
    summarize_gains,
    update_magnitude,
)
from compevo_core.paper.lud_judges import (
    PROMPT_HASH,
    Judge,
    VerdictCache,
    judge_pairs,
)
from compevo_core.runtime.files import write_atomically, write_text
from compevo_core.training.run_folder import RunFolder

DEFAULT_PAIRS = 8
"""Updates of an agent that a judge sees, unless another number is asked for."""

Logics = Sequence[Sequence[str]]
"""Logics by round and agent."""

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


def measure_lud(
    run: Path, judges: Sequence[Judge], encoder: Encoder, *, pairs: int = DEFAULT_PAIRS
) -> dict[str, Any]:
    """Measure how much each agent's logic changed; write ``lud.json`` and ``lud.csv``.

    An update is the step from a round that rewrote logics to the next one; rounds that rewrote
    nothing have no row. Every update has its Delta; each judge sees the same at most ``pairs``
    updates of an agent, evenly spaced over the rounds. Verdicts are kept in ``verdicts.jsonl``: a
    second call asks nothing. Returns the content of ``lud.json``; numbers that do not exist are
    None.

    Raises:
        DataError: there is no finished run in ``run``.
        CheckpointMismatch: its model was altered.
    """
    # torch, only when a run is measured
    from compevo_core.training.artifact import read_config, read_model_manifest

    folder = RunFolder(run)
    rounds = folder.read_rounds()
    logics = [record.logics for record in rounds]
    # What a round wrote is played from the next one on, and that one's row is about the update.
    updates = [t for t in range(1, len(rounds)) if rounds[t - 1].evolved]
    # The same rounds for every judge and agent: means over different rounds do not compare.
    judged_rounds = [updates[number - 1] for number in space_rounds(len(updates), pairs)]
    vectors = embed_texts((text for row in logics for text in row), encoder)

    cache = VerdictCache(folder.verdicts_file)
    tables = [
        build_lud_table(
            logics,
            vectors,
            functools.partial(judge_pairs, judge, cache=cache),
            judged_rounds=judged_rounds,
        ).filter(pl.col("round").is_in(updates))
        for judge in judges
    ]

    gains = measure_gains(rounds)
    played = [logics[t] for t in (0, *updates)]
    names = [judge.name for judge in judges]
    summary = {
        "run": folder.name,
        "config_hash": read_config(run).hash,
        "artifact_hash": read_model_manifest(run)["hash"],
        "encoder": encoder.name,
        "prompt_hash": PROMPT_HASH,
        "rounds": len(logics),
        "updates_an_agent": len(updates),
        "judged_rounds": judged_rounds,
        "agents": [_summarize_agent(agent, played, vectors) for agent in range(len(logics[0]))],
        "judges": [
            _summarize_judge(name, table, judged_rounds) | {"gains": summarize_gains(table, gains)}
            for name, table in zip(names, tables, strict=True)
        ],
        "agreement": [
            {"first": names[a], "second": names[b]} | measure_agreement(tables[a], tables[b])
            for a, b in itertools.combinations(range(len(judges)), 2)
        ],
    }

    # The summary last: whoever finds it finds the rows too.
    rows = _join_rows(folder.name, encoder.name, names, tables)
    write_atomically(folder.lud_rows_file, rows.write_csv)
    write_text(folder.lud_summary_file, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def space_rounds(updates: int, count: int) -> list[int]:
    """Return at most ``count`` of the numbers 1 to ``updates``, evenly spaced; one is the last."""
    if count >= updates:
        return list(range(1, updates + 1))

    # From the last to the first, so that ties round as they always did: other rounds would be
    # judged otherwise, and cached verdicts of earlier measurements would not be found.
    return sorted({round(x) for x in np.linspace(updates, 1, count).tolist()})


def _summarize_agent(agent: int, logics: Logics, vectors: Vectors) -> dict[str, Any]:
    """Measure one agent's Delta from its first logic to its last, and from update to update."""
    texts = [row[agent] for row in logics]
    vectors_TD = np.stack([vectors[text] for text in texts])
    is_unchanged = [before == after for before, after in itertools.pairwise(texts)]

    # Exactly 0 for equal texts, as in ``lud.csv``; the encoder's rounding is no change.
    deltas: FloatArray = np.zeros(0)
    if is_unchanged:
        deltas = np.where(is_unchanged, 0.0, update_magnitude(vectors_TD[:-1], vectors_TD[1:]))

    first_to_last = 0.0
    if texts[0] != texts[-1]:
        first_to_last = float(update_magnitude(vectors_TD[:1], vectors_TD[-1:])[0])

    return {
        "agent": agent,
        "first_to_last": first_to_last,
        "mean_delta": float(deltas.mean()) if is_unchanged else None,
        "unchanged": sum(is_unchanged),
    }


def _summarize_judge(
    name: str, table: pl.DataFrame, judged_rounds: Sequence[int]
) -> dict[str, Any]:
    judged = table.filter(pl.col("round").is_in(list(judged_rounds)))
    asked = judged.filter(~pl.col("unchanged_text"))

    # Failed replies are left out of the means and counted: as zeros they would lower every LUD.
    by_agent = (
        judged.drop_nulls("rius")
        .group_by("agent")
        .agg(
            pl.len().alias("pairs"),
            pl.col("unchanged_text").sum().alias("unchanged"),
            pl.col("strategy_shift").mean().alias("mean_strategy_shift"),
            pl.col("evidence_recombination").mean().alias("mean_evidence_recombination"),
            pl.col("rius").mean().alias("mean_rius"),
            pl.col("lud").mean().alias("mean_lud"),
        )
        .sort("agent")
    )
    return {
        "name": name,
        "asked": asked.height,
        "failures": asked.get_column("rius").null_count(),
        "agents": by_agent.to_dicts(),
    }


def _join_rows(
    run: str, encoder: str, judges: Sequence[str], tables: Sequence[pl.DataFrame]
) -> pl.DataFrame:
    # Every row says what made it: rows of several runs are read together.
    about = {"run": run, "encoder": encoder, "prompt_hash": PROMPT_HASH}
    shared = [pl.lit(value).alias(name) for name, value in about.items()]
    return pl.concat(
        [
            table.with_columns(pl.lit(judge).alias("judge"), *shared)
            for judge, table in zip(judges, tables, strict=True)
        ]
    )


def tabulate_lud(summary: Mapping[str, Any], dataset: str) -> pl.DataFrame:
    """Return the rows of a run from the content of its ``lud.json``."""
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
