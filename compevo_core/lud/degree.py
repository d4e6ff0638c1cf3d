"""Logic Update Degree: how much an agent's logic really changed between rounds (paper 5.1, appendix F).

What belongs here: the magnitude Delta, the rubric score RIUS, the gate, how LUD relates to forecast gains, and how
well two judges agree. Encoders and judges are passed in.
What does not: prompts and judges (``judge``), encoders (``encoder``), plots.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError

IntArray = npt.NDArray[np.int64]

REGIMES = ("low", "medium", "high")
# The paper prints regime averages 0.09, 0.44 and 0.76 but no edges; these are the midpoints between them.
REGIME_EDGES = (0.265, 0.60)
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


class Indicators(Protocol):
    """What a judge says of one logic pair: two binary indicators."""

    @property
    def strategy_shift(self) -> int:
        """s_1 of appendix F.3."""

    @property
    def evidence_recombination(self) -> int:
        """s_2 of appendix F.3."""


def update_magnitude(previous: npt.ArrayLike, current: npt.ArrayLike) -> FloatArray:
    """Delta = 1 - cosine of two embeddings (N, D), (N, D) -> (N,) in [0, 2]; 0 is no change (appendix F.2)."""
    before, after = np.asarray(previous, dtype=np.float64), np.asarray(current, dtype=np.float64)
    if before.ndim != 2 or before.shape != after.shape:
        raise DataError(
            f"embeddings of shapes {before.shape} and {after.shape}: give two equal (N, D) arrays"
        )
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    if not np.isfinite(norms).all() or (norms == 0).any():
        raise DataError(
            "an embedding is zero or not finite: a logic was empty or its encoder failed"
        )
    return np.asarray(np.clip(1.0 - (before * after).sum(axis=1) / norms, 0.0, 2.0))


def rius(strategy_shift: npt.ArrayLike, evidence_recombination: npt.ArrayLike) -> IntArray:
    """RIUS = s_1 + s_2 in {0, 1, 2}; both indicators must be 0 or 1 (appendix F.2)."""
    shift, recombination = np.asarray(strategy_shift), np.asarray(evidence_recombination)
    binary = np.isin(shift, (0, 1)).all() and np.isin(recombination, (0, 1)).all()
    if shift.shape != recombination.shape or not binary:
        raise DataError(
            "rubric indicators must be two equally long lists of 0 and 1: check the judge's answers"
        )
    return np.asarray(shift.astype(np.int64) + recombination.astype(np.int64))


def logic_update_degree(delta: npt.ArrayLike, rius_scores: npt.ArrayLike) -> FloatArray:
    """LUD = Delta where RIUS >= 1, else 0 (appendix F.2)."""
    magnitude, score = np.asarray(delta, dtype=np.float64), np.asarray(rius_scores)
    if magnitude.shape != score.shape:
        raise DataError(
            f"{magnitude.size} magnitudes but {score.size} rubric scores: give one of each per update"
        )
    return np.asarray(np.where(score >= 1, magnitude, 0.0))


def lud_table(
    logics: Sequence[Sequence[str]],
    encode: Callable[[list[str]], npt.ArrayLike],
    judge: Callable[[list[tuple[str, str]]], Sequence[Indicators | None]],
    *,
    judged_rounds: Collection[int] | None = None,
) -> pl.DataFrame:
    """LUD of every agent's every update, as rows of ``LUD_SCHEMA``.

    ``logics``: rounds x agents, as in ``rounds.jsonl``; row ``round`` compares round with round - 1. An unchanged text
    is not sent to the judge: its Delta and LUD are 0 whatever the verdict; it is flagged ``unchanged_text``.
    Rows outside ``judged_rounds`` (None: all are judged), and rows for which the judge gave None, have a Delta only;
    their indicators, RIUS and LUD are null.
    """
    if len({len(row) for row in logics}) > 1:
        raise DataError(
            "rounds have different numbers of agents: give one logic per agent and round"
        )
    keys = [(t, i) for t in range(1, len(logics)) for i in range(len(logics[t]))]
    if not keys:
        return pl.DataFrame(schema=LUD_SCHEMA)
    pairs = [(logics[t - 1][i], logics[t][i]) for t, i in keys]
    texts = sorted({text for pair in pairs for text in pair})
    vectors = np.asarray(encode(texts), dtype=np.float64)
    row_of = {text: k for k, text in enumerate(texts)}
    same = np.array([before == after for before, after in pairs])
    delta = update_magnitude(
        vectors[[row_of[a] for a, _ in pairs]], vectors[[row_of[b] for _, b in pairs]]
    )
    delta[same] = 0.0
    chosen = [judged_rounds is None or t in judged_rounds for t, _ in keys]
    verdicts = iter(
        judge(
            [
                pair
                for pair, equal, wanted in zip(pairs, same, chosen, strict=True)
                if wanted and not equal
            ]
        )
    )
    marks = [
        (None if not wanted else (0, 0) if equal else _marks_or_none(next(verdicts)))
        for equal, wanted in zip(same, chosen, strict=True)
    ]
    known = [k for k, mark in enumerate(marks) if mark is not None]
    shift, recombination = (
        np.array([mark for mark in marks if mark is not None], dtype=np.int64).reshape(-1, 2).T
    )
    score = rius(shift, recombination)

    def spread(values: npt.NDArray[Any]) -> list[Any]:
        cells = dict(zip(known, values.tolist(), strict=True))
        return [cells.get(k) for k in range(len(keys))]

    return pl.DataFrame(
        {
            "round": [t for t, _ in keys],
            "agent": [i for _, i in keys],
            "delta": delta,
            "strategy_shift": spread(shift),
            "evidence_recombination": spread(recombination),
            "rius": spread(score),
            "lud": spread(logic_update_degree(delta[known], score)),
            "unchanged_text": same,
        },
        schema=LUD_SCHEMA,
    )


def _marks_or_none(verdict: Indicators | None) -> tuple[int, int] | None:
    return None if verdict is None else _marks(verdict)


def _marks(verdict: Indicators) -> tuple[int, int]:
    return verdict.strategy_shift, verdict.evidence_recombination


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correlation:
    """Pearson r with its two-sided p-value; NaN, with a reason, where it is undefined."""

    r: float
    p: float
    n: int
    reason: str = ""


def pearson(first: npt.ArrayLike, second: npt.ArrayLike) -> Correlation:
    """Pearson correlation of two samples (N,), e.g. LUD and RMSE reduction, or two judges' LUD (appendix F.4)."""
    from scipy.stats import pearsonr

    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DataError(
            f"samples of shapes {x.shape} and {y.shape} must be equally long lists of finite numbers"
        )
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        reason = "fewer than 3 pairs" if len(x) < 3 else "one of the samples is constant"
        return Correlation(r=math.nan, p=math.nan, n=len(x), reason=reason)
    result = pearsonr(x, y)
    return Correlation(r=float(result.statistic), p=float(result.pvalue), n=len(x))


def regime_table(
    lud: npt.ArrayLike, gain: npt.ArrayLike, *, edges: tuple[float, float] = REGIME_EDGES
) -> pl.DataFrame:
    """Mean LUD and mean error reduction by LUD regime (appendix F.4).

    Columns: regime, low_edge, high_edge, n, mean_lud, mean_gain. A regime is [low_edge, high_edge); an empty one has
    n = 0 and null means.
    """
    degree, gained = np.asarray(lud, dtype=np.float64), np.asarray(gain, dtype=np.float64)
    if degree.ndim != 1 or degree.shape != gained.shape or not edges[0] < edges[1]:
        raise DataError(
            f"{degree.size} LUD and {gained.size} gains with edges {edges}: lengths must agree, edges rise"
        )
    bounds = (0.0, *edges, math.inf)
    rows = []
    for name, low, high in zip(REGIMES, bounds[:-1], bounds[1:], strict=True):
        inside = (degree >= low) & (degree < high)
        n = int(inside.sum())
        rows.append(
            {
                "regime": name,
                "low_edge": low,
                "high_edge": high,
                "n": n,
                "mean_lud": float(degree[inside].mean()) if n else None,
                "mean_gain": float(gained[inside].mean()) if n else None,
            }
        )
    return pl.DataFrame(
        rows,
        schema={
            "regime": pl.String,
            "low_edge": pl.Float64,
            "high_edge": pl.Float64,
            "n": pl.Int64,
            "mean_lud": pl.Float64,
            "mean_gain": pl.Float64,
        },
    )


def cohens_kappa(first: Sequence[int], second: Sequence[int]) -> float:
    """Cohen's kappa of two raters' labels; NaN where chance alone already agrees fully (both say one same thing)."""
    a, b = np.asarray(first), np.asarray(second)
    if a.ndim != 1 or a.shape != b.shape or a.size == 0:
        raise DataError(
            f"label lists of shapes {a.shape} and {b.shape}: give two equally long, non-empty lists"
        )
    labels = np.union1d(a, b)
    chance = float(sum((a == label).mean() * (b == label).mean() for label in labels))
    return (
        math.nan
        if math.isclose(chance, 1.0)
        else (float((a == b).mean()) - chance) / (1.0 - chance)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeAgreement:
    """How far two judges agree on the same logic pairs (appendix F.4)."""

    n: int
    kappa_gate: float
    kappa_strategy_shift: float
    kappa_evidence_recombination: float
    lud: Correlation


def judge_agreement(
    first: Sequence[Indicators], second: Sequence[Indicators], delta: npt.ArrayLike
) -> JudgeAgreement:
    """Kappa on the gate RIUS >= 1 and on each indicator, and Pearson r of the two LUD, over the same pairs (N,)."""
    marks_a, marks_b = np.array([_marks(v) for v in first]), np.array([_marks(v) for v in second])
    if marks_a.shape != marks_b.shape or not len(marks_a):
        raise DataError(
            f"{len(marks_a)} and {len(marks_b)} verdicts: both judges must score the same pairs"
        )
    rius_a, rius_b = rius(*marks_a.T), rius(*marks_b.T)
    return JudgeAgreement(
        n=len(marks_a),
        kappa_gate=cohens_kappa(
            (rius_a >= 1).astype(int).tolist(), (rius_b >= 1).astype(int).tolist()
        ),
        kappa_strategy_shift=cohens_kappa(marks_a[:, 0].tolist(), marks_b[:, 0].tolist()),
        kappa_evidence_recombination=cohens_kappa(marks_a[:, 1].tolist(), marks_b[:, 1].tolist()),
        lud=pearson(logic_update_degree(delta, rius_a), logic_update_degree(delta, rius_b)),
    )
