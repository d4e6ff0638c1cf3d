"""Logic Update Degree (LUD): how much an agent's logic really changed from one round to the next.

What belongs here: the magnitude Delta, the rubric score RIUS and the gate between them (paper F.2).
What does not: prompts and judges (``lud.judge``), text encoders (``lm.encoder``), how judges agree
(``lud.agreement``), what an update gained (``lud.gains``), files (``lud.measure``).

An embedding moves when a text is merely reworded, so its distance counts only where a judge, which
sees the two texts and nothing else, marks at least one structural change.

Shapes: N logic pairs, D embedding size.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError

IntArray = npt.NDArray[np.int64]

LUD_SCHEMA = {
    "round": pl.Int64,
    "agent": pl.Int64,
    "delta": pl.Float64,
    "strategy_shift": pl.Int64,
    "evidence_recombination": pl.Int64,
    "rius": pl.Int64,
    "lud": pl.Float64,
    "unchanged_text": pl.Boolean,
}

LogicPair = tuple[str, str]
"""An agent's logic in the round before, and its logic now."""

Encode = Callable[[list[str]], npt.ArrayLike]


class Indicators(Protocol):
    """What a judge returns for one logic pair: two binary indicators."""

    @property
    def strategy_shift(self) -> int:
        """s_1 of appendix F.3."""

    @property
    def evidence_recombination(self) -> int:
        """s_2 of appendix F.3."""


JudgePairs = Callable[[list[LogicPair]], Sequence[Indicators | None]]


def update_magnitude(previous: npt.ArrayLike, current: npt.ArrayLike) -> FloatArray:
    """Return Delta = 1 - cosine of two embeddings, (N,) in [0, 2]; 0 is no change (appendix F.2).

    Args:
        previous: embeddings (N, D) of the logics before.
        current: embeddings (N, D) of the logics now.

    Raises:
        DataError: the shapes differ, or an embedding is zero or not finite.
    """
    before_ND = np.asarray(previous, dtype=np.float64)
    after_ND = np.asarray(current, dtype=np.float64)
    if before_ND.ndim != 2 or before_ND.shape != after_ND.shape:
        raise DataError(
            f"embeddings of shapes {before_ND.shape} and {after_ND.shape}: "
            "give two equal (N, D) arrays"
        )

    norms_N = np.linalg.norm(before_ND, axis=1) * np.linalg.norm(after_ND, axis=1)
    if not np.isfinite(norms_N).all() or (norms_N == 0).any():
        raise DataError(
            "an embedding is zero or not finite: a logic was empty or its encoder failed"
        )

    # Clipped: rounding can push the cosine of two equal vectors past 1, and Delta below 0.
    cosine_N = (before_ND * after_ND).sum(axis=1) / norms_N
    return np.asarray(np.clip(1.0 - cosine_N, 0.0, 2.0))


def rius(strategy_shift: npt.ArrayLike, evidence_recombination: npt.ArrayLike) -> IntArray:
    """Return RIUS = s_1 + s_2 in {0, 1, 2} (appendix F.2).

    Raises:
        DataError: an indicator is not 0 or 1, or the two lists differ in length.
    """
    shift = np.asarray(strategy_shift)
    recombination = np.asarray(evidence_recombination)

    # A judge that answers 2 or 0.5 has not understood the rubric; its sum would pass the gate.
    is_binary = np.isin(shift, (0, 1)).all() and np.isin(recombination, (0, 1)).all()
    if shift.shape != recombination.shape or not is_binary:
        raise DataError(
            "rubric indicators must be two equally long lists of 0 and 1: check the judge's answers"
        )
    return np.asarray(shift.astype(np.int64) + recombination.astype(np.int64))


def logic_update_degree(delta: npt.ArrayLike, rius_scores: npt.ArrayLike) -> FloatArray:
    """Return LUD = Delta where RIUS >= 1, else 0 (appendix F.2).

    Raises:
        DataError: there is not one score for every magnitude.
    """
    magnitude = np.asarray(delta, dtype=np.float64)
    score = np.asarray(rius_scores)
    if magnitude.shape != score.shape:
        raise DataError(
            f"{magnitude.size} magnitudes but {score.size} rubric scores: "
            "give one of each per update"
        )
    return np.asarray(np.where(score >= 1, magnitude, 0.0))


def build_lud_table(
    logics: Sequence[Sequence[str]],
    encode: Encode,
    judge: JudgePairs,
    *,
    judged_rounds: Collection[int] | None = None,
) -> pl.DataFrame:
    """Return the LUD of every agent's every update, as rows of ``LUD_SCHEMA``.

    Args:
        logics: logics by round and agent, as in ``rounds.jsonl``; the row of a round compares it
            with the round before.
        encode: gives the embeddings (N, D) of N texts.
        judge: gives the indicators of each pair, or None where its reply was no verdict.
        judged_rounds: rounds whose updates are judged; None: all.

    An unchanged text is not sent to the judge: its Delta and LUD are 0 whatever it would answer; it
    is flagged ``unchanged_text``. Rows that are not judged, or have no verdict, have a Delta only;
    their indicators, RIUS and LUD are null.

    Raises:
        DataError: rounds have different numbers of agents, or an embedding is zero.
    """
    if len({len(row) for row in logics}) > 1:
        raise DataError(
            "rounds have different numbers of agents: give one logic per agent and round"
        )
    keys = [(t, i) for t in range(1, len(logics)) for i in range(len(logics[t]))]
    if not keys:
        return pl.DataFrame(schema=LUD_SCHEMA)

    pairs = [(logics[t - 1][i], logics[t][i]) for t, i in keys]
    is_unchanged = [previous == current for previous, current in pairs]
    delta_N = _measure_deltas(pairs, encode)
    delta_N[is_unchanged] = 0.0  # exactly: the encoder's rounding is no change

    is_judged = [judged_rounds is None or t in judged_rounds for t, _ in keys]
    indicators = _ask_about_changes(judge, pairs, is_unchanged, is_judged)
    # Arithmetic runs over the rows with a verdict alone: a null must not turn into a zero.
    known = [n for n, marks in enumerate(indicators) if marks is not None]
    shift, recombination = split_indicators([indicators[n] for n in known])
    score = rius(shift, recombination)

    def place(values: npt.NDArray[Any]) -> list[Any]:
        """Put the values of the known rows into their places, with null in all others."""
        by_row = dict(zip(known, values.tolist(), strict=True))
        return [by_row.get(n) for n in range(len(keys))]

    return pl.DataFrame(
        {
            "round": [t for t, _ in keys],
            "agent": [i for _, i in keys],
            "delta": delta_N,
            "strategy_shift": place(shift),
            "evidence_recombination": place(recombination),
            "rius": place(score),
            "lud": place(logic_update_degree(delta_N[known], score)),
            "unchanged_text": is_unchanged,
        },
        schema=LUD_SCHEMA,
    )


def _measure_deltas(pairs: Sequence[LogicPair], encode: Encode) -> FloatArray:
    # Every distinct text is encoded once: a logic is the end of one pair and the start of the next.
    texts = sorted({text for pair in pairs for text in pair})
    vectors_TD = np.asarray(encode(texts), dtype=np.float64)

    row_of = {text: row for row, text in enumerate(texts)}
    previous = vectors_TD[[row_of[text] for text, _ in pairs]]
    current = vectors_TD[[row_of[text] for _, text in pairs]]
    return update_magnitude(previous, current)


def _ask_about_changes(
    judge: JudgePairs,
    pairs: Sequence[LogicPair],
    is_unchanged: Sequence[bool],
    is_judged: Sequence[bool],
) -> list[tuple[int, int] | None]:
    """Return the two indicators of every pair; None where it is not judged or has no verdict."""
    rows = list(zip(pairs, is_unchanged, is_judged, strict=True))

    # One call for all pairs: a judge can then ask about each distinct one once.
    asked = [pair for pair, unchanged, judged in rows if judged and not unchanged]
    verdicts = iter(judge(asked))

    indicators: list[tuple[int, int] | None] = []
    for _, unchanged, judged in rows:
        if not judged:
            indicators.append(None)
        elif unchanged:
            indicators.append((0, 0))
        else:
            verdict = next(verdicts)
            indicators.append(None if verdict is None else read_indicators(verdict))
    return indicators


def read_indicators(verdict: Indicators) -> tuple[int, int]:
    """Return s_1 and s_2 of a verdict."""
    return verdict.strategy_shift, verdict.evidence_recombination


def split_indicators(
    indicators: Sequence[tuple[int, int] | None],
) -> tuple[IntArray, IntArray]:
    """Return s_1 (N,) and s_2 (N,) of N verdicts."""
    # The shape is given, for a list without any row has none to tell the two columns apart.
    marks_N2 = np.array(indicators, dtype=np.int64).reshape(-1, 2)
    return marks_N2[:, 0], marks_N2[:, 1]
