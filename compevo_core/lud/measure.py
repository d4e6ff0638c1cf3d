"""LUD of one finished run: which updates are judged, by whom, and the files it leaves in the run folder.

What belongs here: from ``rounds.jsonl`` to ``lud.json`` (who judged what, means by agent, agreement) and ``lud.csv``
(one row an agent, update and judge); the run's own backbone as a judge. What does not: the definitions (``lud``),
prompts (``judge``), HTTP (a judge is passed in), drawing (``report``). Paper 5.1 and appendix F.
"""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.config import BackboneConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError
from compevo_core.lm.encoder import Encoder
from compevo_core.lud.degree import judge_agreement, lud_table, update_magnitude
from compevo_core.lud.judge import PROMPT_HASH, Judge, LocalJudge, Verdict
from compevo_core.lud.verdicts import VerdictCache, judge_pairs

SUMMARY_FILE, ROWS_FILE, VERDICTS_FILE = "lud.json", "lud.csv", "verdicts.jsonl"
DEFAULT_PAIRS = 8


@dataclasses.dataclass(frozen=True)
class BackboneJudge:
    """A run's own frozen backbone, without adapters, scored over the four answers; loaded at the first question."""

    config: BackboneConfig

    @property
    def name(self) -> str:
        """``local:<model>/<dtype>``."""
        return f"local:{self.config.name_or_path}/{self.config.dtype}"

    @functools.cached_property
    def _judge(self) -> LocalJudge:
        from compevo_core.lm.backbone import load_backbone  # torch, only when a question is asked

        backbone = load_backbone(self.config)
        return LocalJudge(name=self.name, model=backbone.model, tokenizer=backbone.tokenizer)

    def judge(self, previous: str, current: str) -> Verdict:
        """The likeliest of the four answers."""
        return self._judge.judge(previous, current)


def measure_lud(
    run: Path, judges: Sequence[Judge], encoder: Encoder, *, pairs: int = DEFAULT_PAIRS
) -> dict[str, Any]:
    """Measures how much each agent's logic changed and writes ``lud.json`` and ``lud.csv`` into the run folder.

    Every update has its Delta. A judge sees at most ``pairs`` updates of an agent, evenly spaced over the rounds, the
    same for all agents and judges; unchanged texts among them score 0 unasked. Verdicts are kept in ``verdicts.jsonl``:
    a second call asks nothing. Numbers that do not exist are null.

    Raises:
        DataError: no finished run in ``run``.
        CheckpointMismatch: its model was altered.
    """
    from compevo_core.training.artifact import (  # torch, only when a run is measured
        model_manifest,
        read_config,
    )

    rounds_file = run / "rounds.jsonl"
    if not rounds_file.is_file():
        raise DataError(f"{run}: no rounds.jsonl; this is not a run folder, train first")
    rounds = [json.loads(line) for line in rounds_file.read_text(encoding="utf-8").splitlines()]
    logics = [entry["logics"] for entry in rounds]
    encode, judged = _memory(encoder, logics), spaced(len(logics) - 1, pairs)
    cache = VerdictCache(run / VERDICTS_FILE)
    tables = [
        lud_table(
            logics, encode, functools.partial(judge_pairs, judge, cache=cache), judged_rounds=judged
        )
        for judge in judges
    ]
    manifest = model_manifest(run)
    summary = {
        "run": run.name,
        "config_hash": read_config(run).hash,
        "artifact_hash": manifest["hash"],
        "encoder": encoder.name,
        "prompt_hash": PROMPT_HASH,
        "rounds": len(logics),
        "updates_an_agent": len(logics) - 1,
        "judged_rounds": judged,
        "agents": [_magnitudes(agent, logics, encode) for agent in range(len(logics[0]))],
        "judges": [
            _judged(judge.name, table, judged) for judge, table in zip(judges, tables, strict=True)
        ],
        "agreement": [
            _agreement(judges[a].name, judges[b].name, tables[a], tables[b])
            for a, b in itertools.combinations(range(len(judges)), 2)
        ],
    }
    about = {"run": run.name, "encoder": encoder.name, "prompt_hash": PROMPT_HASH}
    rows = [
        table.with_columns(
            pl.lit(judge.name).alias("judge"), *(pl.lit(v).alias(k) for k, v in about.items())
        )
        for judge, table in zip(judges, tables, strict=True)
    ]
    _write(run / ROWS_FILE, pl.concat(rows).write_csv())
    _write(run / SUMMARY_FILE, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def spaced(updates: int, count: int) -> list[int]:
    """At most ``count`` of the rounds 1 to ``updates``, evenly spaced; a single one is the last."""
    if count >= updates:
        return list(range(1, updates + 1))
    return sorted({round(x) for x in np.linspace(updates, 1, count).tolist()})


def _memory(encoder: Encoder, logics: Sequence[Sequence[str]]) -> Callable[[list[str]], FloatArray]:
    """The encoder with every text of the run encoded once."""
    texts = sorted({text for row in logics for text in row})
    vectors = np.asarray(encoder.encode(texts), dtype=np.float64)
    row_of = {text: k for k, text in enumerate(texts)}
    return lambda wanted: vectors[[row_of[text] for text in wanted]]


def _magnitudes(
    agent: int, logics: Sequence[Sequence[str]], encode: Callable[[list[str]], FloatArray]
) -> dict[str, Any]:
    """Delta of one agent: from its first logic to its last, and on average from round to round."""
    own = [row[agent] for row in logics]
    vectors = encode(own)
    same = [before == after for before, after in itertools.pairwise(own)]
    steps = (
        np.where(same, 0.0, update_magnitude(vectors[:-1], vectors[1:])) if same else np.zeros(0)
    )
    ends = 0.0 if own[0] == own[-1] else float(update_magnitude(vectors[:1], vectors[-1:])[0])
    return {
        "agent": agent,
        "first_to_last": ends,
        "mean_delta": float(steps.mean()) if same else None,
        "unchanged": sum(same),
    }


def _judged(name: str, table: pl.DataFrame, judged: Sequence[int]) -> dict[str, Any]:
    wanted = table.filter(pl.col("round").is_in(list(judged)))
    asked = wanted.filter(~pl.col("unchanged_text"))
    by_agent = (
        wanted.drop_nulls("rius")
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


def _agreement(first: str, second: str, mine: pl.DataFrame, other: pl.DataFrame) -> dict[str, Any]:
    """Kappa and Pearson r over the changed updates that both judges scored; null where undefined."""
    both = mine.join(other, on=["round", "agent"], suffix="_other", maintain_order="left").filter(
        ~pl.col("unchanged_text")
        & pl.col("rius").is_not_null()
        & pl.col("rius_other").is_not_null()
    )
    found: dict[str, Any] = {
        "first": first,
        "second": second,
        "n": both.height,
        "kappa_gate": None,
        "kappa_strategy_shift": None,
        "kappa_evidence_recombination": None,
        "pearson_lud": None,
    }
    if both.is_empty():
        return found
    said = [
        [
            Verdict(*row)
            for row in both.select(
                f"strategy_shift{side}", f"evidence_recombination{side}"
            ).iter_rows()
        ]
        for side in ("", "_other")
    ]
    measured = judge_agreement(said[0], said[1], both["delta"].to_numpy())
    values = {
        "kappa_gate": measured.kappa_gate,
        "kappa_strategy_shift": measured.kappa_strategy_shift,
        "kappa_evidence_recombination": measured.kappa_evidence_recombination,
        "pearson_lud": measured.lud.r,
    }
    return found | {key: None if math.isnan(value) else value for key, value in values.items()}


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
