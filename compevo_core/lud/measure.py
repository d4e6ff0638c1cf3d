"""Measure the LUD of one finished run and write it into the run folder.

What belongs here: which updates are judged, by whom, and the two files that come of it:
``lud.json`` (means by agent, judges, their agreement, gains) and ``lud.csv`` (one row an agent,
update and judge); the run's own backbone as a judge. What does not: the definitions
(``lud.degree``, ``lud.gains``), prompts (``lud.judge``), HTTP (a judge is passed in), drawing
(``report``).

Paper 5.6 and appendix F.
"""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.config_sections import BackboneConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import write_atomically, write_text
from compevo_core.lm.encoder import Encoder
from compevo_core.lud.agreement import judge_agreement
from compevo_core.lud.degree import Encode, build_lud_table, update_magnitude
from compevo_core.lud.gains import measure_gains, summarize_gains
from compevo_core.lud.judge import PROMPT_HASH, Judge, JudgeVerdict, LocalJudge
from compevo_core.lud.verdicts import VerdictCache, judge_pairs
from compevo_core.training.run_folder import RunFolder

DEFAULT_PAIRS = 8
"""Updates of an agent that a judge sees, unless another number is asked for."""

Logics = Sequence[Sequence[str]]
"""Logics by round and agent."""


@dataclasses.dataclass(frozen=True)
class BackboneJudge:
    """A run's own frozen backbone, without adapters, loaded at the first question.

    Attributes:
        config: the backbone section of the run's configuration.
    """

    config: BackboneConfig

    @property
    def name(self) -> str:
        """``local:<model>/<dtype>``."""
        return f"local:{self.config.name_or_path}/{self.config.dtype}"

    @functools.cached_property
    def _judge(self) -> LocalJudge:
        # Loading takes gigabytes; a second measurement finds every verdict in the cache.
        from compevo_core.lm.backbone import load_backbone

        backbone = load_backbone(self.config)
        return LocalJudge(name=self.name, model=backbone.model, tokenizer=backbone.tokenizer)

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the likeliest of the four answers."""
        return self._judge.judge(previous, current)


def measure_lud(
    run: Path, judges: Sequence[Judge], encoder: Encoder, *, pairs: int = DEFAULT_PAIRS
) -> dict[str, Any]:
    """Measure how much each agent's logic changed; write ``lud.json`` and ``lud.csv``.

    An update is the step from a round that rewrote logics to the next one; rounds that rewrote
    nothing have no row. Every update has its Delta. Unchanged texts among the judged updates score
    0 unasked. Verdicts are kept in ``verdicts.jsonl``: a second call asks nothing.

    Args:
        run: folder of a finished run.
        judges: who judges; each sees the same updates.
        encoder: embeds the logics.
        pairs: largest number of updates of an agent that a judge sees, evenly spaced over the
            rounds and the same for all agents.

    Returns:
        The content of ``lud.json``; numbers that do not exist are None.

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
    encode = _encode_once(encoder, logics)

    cache = VerdictCache(folder.verdicts_file)
    tables = [
        build_lud_table(
            logics,
            encode,
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
        "agents": [_summarize_agent(agent, played, encode) for agent in range(len(logics[0]))],
        "judges": [
            _summarize_judge(name, table, judged_rounds) | {"gains": summarize_gains(table, gains)}
            for name, table in zip(names, tables, strict=True)
        ],
        "agreement": [
            _summarize_agreement(names[a], names[b], tables[a], tables[b])
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


def _encode_once(encoder: Encoder, logics: Logics) -> Encode:
    """Return an encoder of the run's logics that has encoded every distinct text already."""
    texts = sorted({text for row in logics for text in row})
    vectors_TD = np.asarray(encoder.encode(texts), dtype=np.float64)

    row_of = {text: row for row, text in enumerate(texts)}
    return lambda wanted: vectors_TD[[row_of[text] for text in wanted]]


def _summarize_agent(agent: int, logics: Logics, encode: Encode) -> dict[str, Any]:
    """Measure one agent's Delta from its first logic to its last, and from update to update.

    Args:
        agent: the agent.
        logics: the first logics, then those after every update.
        encode: gives the embeddings of texts.
    """
    texts = [row[agent] for row in logics]
    vectors_TD = np.asarray(encode(texts), dtype=np.float64)
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


def _summarize_agreement(
    first: str, second: str, table_a: pl.DataFrame, table_b: pl.DataFrame
) -> dict[str, Any]:
    """Compare two judges over the changed updates that both scored; null where undefined."""
    # Unchanged texts are no judgement: both tables hold the same zeros for them.
    both = table_a.join(
        table_b, on=["round", "agent"], suffix="_other", maintain_order="left"
    ).filter(
        ~pl.col("unchanged_text")
        & pl.col("rius").is_not_null()
        & pl.col("rius_other").is_not_null()
    )

    about = {"first": first, "second": second, "n": both.height}
    keys = ("kappa_gate", "kappa_strategy_shift", "kappa_evidence_recombination", "pearson_lud")
    if both.is_empty():
        return about | dict.fromkeys(keys)

    agreement = judge_agreement(
        _read_verdicts(both, ""), _read_verdicts(both, "_other"), both["delta"].to_numpy()
    )
    values = (
        agreement.kappa_gate,
        agreement.kappa_strategy_shift,
        agreement.kappa_evidence_recombination,
        agreement.lud.r,
    )
    # JSON has no NaN; null says that the number does not exist.
    numbers = [None if math.isnan(value) else value for value in values]
    return about | dict(zip(keys, numbers, strict=True))


def _read_verdicts(rows: pl.DataFrame, suffix: str) -> list[JudgeVerdict]:
    columns = (f"strategy_shift{suffix}", f"evidence_recombination{suffix}")
    return [JudgeVerdict(*row) for row in rows.select(columns).iter_rows()]


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
