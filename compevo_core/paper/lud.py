"""Logic Update Degree (LUD): how much an agent's logic really changed, and what that gained.

What belongs here: the magnitude Delta, the rubric score RIUS and the gate between them (paper F.2),
the gain of every update by LUD, and the agreement of two judges (paper F.4). What does not: prompts
and judges (``paper.lud_judges``), text encoders (``lm.encoder``), files (``paper.lud_measure``).

An embedding moves when a text is merely reworded, so its distance counts only where a judge, which
sees the two texts and nothing else, marks at least one structural change.

The paper correlates the LUD of an update with the error that it saves. Here both logics of an
update are scored on the same reward windows of the same round: the old one as the played logic, the
new one as a sample of its group. Rounds on different windows would compare days, not logics. The
new logic is the best of its group on these windows, so gains are biased upwards.

Shapes: N logic pairs, T texts, D embedding size.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError
from compevo_core.lm.encoder import Encoder
from compevo_core.paper.lud_judges import JudgeVerdict, LogicPair
from compevo_core.training.round_record import RoundRecord

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

REGIMES = ("low", "medium", "high")
# The paper prints regime averages 0.09, 0.44 and 0.76 but no edges; these are the midpoints.
REGIME_EDGES = (0.265, 0.60)
GAIN_SCHEMA = {"round": pl.Int64, "agent": pl.Int64, "gain": pl.Float64}

Vectors = Mapping[str, FloatArray]
"""Embeddings (D,) by text."""

JudgePairs = Callable[[list[LogicPair]], Sequence[JudgeVerdict | None]]


def embed_texts(texts: Iterable[str], encoder: Encoder) -> dict[str, FloatArray]:
    """Return the embedding of every distinct text: most logics are in many rounds."""
    distinct = sorted(set(texts))
    vectors_TD = np.asarray(encoder.encode(distinct), dtype=np.float64)
    return dict(zip(distinct, vectors_TD, strict=True))


def update_magnitude(previous: npt.ArrayLike, current: npt.ArrayLike) -> FloatArray:
    """Return Delta = 1 - cosine of two embeddings (N, D), (N,) in [0, 2] (appendix F.2).

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


def logic_update_degree(delta: npt.ArrayLike, rius: npt.ArrayLike) -> FloatArray:
    """Return LUD = Delta where RIUS >= 1, else 0, for N magnitudes and scores (appendix F.2)."""
    magnitude, score = np.asarray(delta, dtype=np.float64), np.asarray(rius)
    return np.asarray(np.where(score >= 1, magnitude, 0.0))


def split_verdicts(verdicts: Sequence[JudgeVerdict]) -> tuple[IntArray, IntArray]:
    """Return s_1 (N,) and s_2 (N,) of N verdicts; RIUS = s_1 + s_2 (appendix F.2)."""
    marks = [(verdict.strategy_shift, verdict.evidence_recombination) for verdict in verdicts]
    # The shape is given, as a list without any row has none.
    marks_N2 = np.array(marks, dtype=np.int64).reshape(-1, 2)
    return marks_N2[:, 0], marks_N2[:, 1]


def build_lud_table(
    logics: Sequence[Sequence[str]],
    vectors: Vectors,
    judge: JudgePairs,
    *,
    judged_rounds: Collection[int] | None = None,
) -> pl.DataFrame:
    """Return the LUD of every agent's every update, as rows of ``LUD_SCHEMA``.

    ``logics`` are by round and agent; the row of a round compares it with the round before.
    ``judge`` gives the verdict on each pair of the ``judged_rounds`` (None: all), or None where its
    reply was none.

    An unchanged text is not sent to the judge: its Delta and LUD are 0 whatever it would answer; it
    is flagged ``unchanged_text``. Rows that are not judged, or have no verdict, have a Delta only;
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
    is_unchanged = [previous == current for previous, current in pairs]
    delta_N = update_magnitude([vectors[a] for a, _ in pairs], [vectors[b] for _, b in pairs])
    delta_N[is_unchanged] = 0.0  # exactly: the encoder's rounding is no change

    # One call for all changed pairs: a judge can then ask about each distinct one once.
    is_judged = [judged_rounds is None or t in judged_rounds for t, _ in keys]
    rows = list(zip(pairs, is_unchanged, is_judged, strict=True))
    answers = iter(judge([pair for pair, unchanged, judged in rows if judged and not unchanged]))
    verdicts: list[JudgeVerdict | None] = []
    for _, unchanged, judged in rows:
        if not judged:
            verdicts.append(None)
        else:
            verdicts.append(JudgeVerdict(0, 0) if unchanged else next(answers))

    # Arithmetic runs over the rows with a verdict alone: a null must not turn into a zero.
    known = [n for n, verdict in enumerate(verdicts) if verdict is not None]
    shift, recombination = split_verdicts([verdict for verdict in verdicts if verdict])

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
            "rius": place(shift + recombination),
            "lud": place(logic_update_degree(delta_N[known], shift + recombination)),
            "unchanged_text": is_unchanged,
        },
        schema=LUD_SCHEMA,
    )


def measure_gains(rounds: Sequence[RoundRecord]) -> pl.DataFrame:
    """Return the scaled error that each update saved, as rows of ``GAIN_SCHEMA``.

    The row of a round is about the update from the round before to it, as in ``lud.csv``. A round
    that rewrote nothing has no update. A run that scores no fixed logics does not score the played
    one on the reward windows either; its updates have no row.
    """
    rows = []
    for number in range(1, len(rounds)):
        # The round before scored the new logic, as a sample, and the old one, which it played.
        before = rounds[number - 1]
        if not before.evolved or not before.played_rewards:
            continue

        for agent, logic in enumerate(rounds[number].logics):
            # Equal texts of a group earned the same.
            if logic in before.group_logics[agent]:
                sample = before.group_logics[agent].index(logic)
                gain = before.group_rewards[agent][sample] - before.played_rewards[agent]
                rows.append((number, agent, gain))
            elif logic == before.logics[agent]:
                # The played logic was better than all of its group and stays.
                rows.append((number, agent, 0.0))
    return pl.DataFrame(rows, schema=GAIN_SCHEMA, orient="row")


def summarize_gains(table: pl.DataFrame, gains: pl.DataFrame) -> dict[str, Any]:
    """Return how the LUD of one judge goes with gains, as plain values for ``lud.json``.

    A regime is [its edge, the next edge); an empty one has no means.
    """
    # By round and agent, not by position: a judge has not scored every update.
    both = table.drop_nulls("lud").join(gains, on=["round", "agent"], maintain_order="left")
    lud_N, gain_N = both["lud"].to_numpy(), both["gain"].to_numpy()
    r, p = pearson(lud_N, gain_N)

    bounds = (0.0, *REGIME_EDGES, math.inf)
    # Half open, so that every update falls into exactly one regime.
    members = [(lud_N >= low) & (lud_N < high) for low, high in itertools.pairwise(bounds)]
    return {
        "n": both.height,
        "pearson_r": _none_if_nan(r),
        "pearson_p": _none_if_nan(p),
        "regimes": list(REGIMES),
        "regime_edges": list(REGIME_EDGES),
        "n_by_regime": [int(is_inside.sum()) for is_inside in members],
        "mean_lud_by_regime": [_mean_or_none(lud_N[is_inside]) for is_inside in members],
        "mean_gain_by_regime": [_mean_or_none(gain_N[is_inside]) for is_inside in members],
    }


def measure_agreement(table: pl.DataFrame, other: pl.DataFrame) -> dict[str, Any]:
    """Return how far two judges agree on the changed updates that both scored (appendix F.4).

    The numbers are Cohen's kappa of the gate RIUS >= 1 and of both indicators, and Pearson's r of
    the two LUD. A judge alone proves little: a small model that always gives the same answer has a
    LUD too.
    """
    # Unchanged texts are no judgement: both tables hold the same zeros for them.
    both = table.join(other, on=["round", "agent"], suffix="_other", maintain_order="left").filter(
        ~pl.col("unchanged_text")
        & pl.col("rius").is_not_null()
        & pl.col("rius_other").is_not_null()
    )
    agreement = {
        "kappa_gate": cohens_kappa(both["rius"] >= 1, both["rius_other"] >= 1),
        **{
            f"kappa_{name}": cohens_kappa(both[name], both[f"{name}_other"])
            for name in ("strategy_shift", "evidence_recombination")
        },
        # The magnitudes are the same for both, so that only the gates can make a difference.
        "pearson_lud": pearson(both["lud"], both["lud_other"])[0],
    }
    return {"n": both.height} | {name: _none_if_nan(value) for name, value in agreement.items()}


def pearson(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[float, float]:
    """Return Pearson's r of two samples (N,) and its two-sided p-value; NaN where undefined."""
    from scipy.stats import pearsonr

    x = np.asarray(first, dtype=np.float64)
    y = np.asarray(second, dtype=np.float64)
    # Two points always lie on a line, and a constant has no direction to agree with.
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, math.nan
    result = pearsonr(x, y)
    return float(result.statistic), float(result.pvalue)


def cohens_kappa(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return Cohen's kappa of two raters' labels (N,): 1 is full agreement, 0 what chance gives.

    It is NaN where both raters always give the same label, as chance alone agrees fully there.
    """
    from sklearn.metrics import cohen_kappa_score  # takes a second to import

    # With a single label chance agrees as often; scikit-learn would divide by zero and warn.
    if len(np.union1d(first, second)) < 2:
        return math.nan
    return float(cohen_kappa_score(first, second))


def _none_if_nan(value: float) -> float | None:
    """Return a number that JSON can hold: it has no NaN."""
    return None if math.isnan(value) else value


def _mean_or_none(values: FloatArray) -> float | None:
    return float(values.mean()) if values.size else None
