"""How far two judges agree, and other measures of agreement between two samples.

What belongs here: Pearson's r with its reasons to be undefined, Cohen's kappa, and both of them
over the verdicts of two judges (paper F.4). What does not: LUD itself (``lud.degree``), choosing
which pairs are compared (``lud.measure``).

A judge alone proves little: a small model that always gives the same answer has a LUD too.

Shapes: N logic pairs.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compevo_core.errors import DataError
from compevo_core.lud.degree import (
    Indicators,
    logic_update_degree,
    read_indicators,
    rius,
    split_indicators,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correlation:
    """Pearson's r.

    Attributes:
        r: the correlation; NaN where it is undefined.
        p: its two-sided p-value; NaN where it is undefined.
        n: number of pairs.
        reason: why it is undefined; empty where it is not.
    """

    r: float
    p: float
    n: int
    reason: str = ""


def pearson(first: npt.ArrayLike, second: npt.ArrayLike) -> Correlation:
    """Correlate two samples (N,), such as the LUD of two judges, or LUD and gain (appendix F.4).

    Raises:
        DataError: the samples differ in length or hold a number that is not finite.
    """
    from scipy.stats import pearsonr

    x = np.asarray(first, dtype=np.float64)
    y = np.asarray(second, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DataError(
            f"samples of shapes {x.shape} and {y.shape} must be equally long lists of finite "
            "numbers"
        )

    # Two points always lie on a line, and a constant has no direction to agree with.
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        reason = "fewer than 3 pairs" if len(x) < 3 else "one of the samples is constant"
        return Correlation(r=math.nan, p=math.nan, n=len(x), reason=reason)

    result = pearsonr(x, y)
    return Correlation(r=float(result.statistic), p=float(result.pvalue), n=len(x))


def cohens_kappa(first: Sequence[int], second: Sequence[int]) -> float:
    """Return Cohen's kappa of two raters' labels: 1 is full agreement, 0 what chance gives.

    It is NaN where both raters always give one and the same label: chance alone agrees fully there.

    Raises:
        DataError: the lists are empty or differ in length.
    """
    from sklearn.metrics import cohen_kappa_score  # takes a second to import

    labels_a = np.asarray(first)
    labels_b = np.asarray(second)
    if labels_a.ndim != 1 or labels_a.shape != labels_b.shape or labels_a.size == 0:
        raise DataError(
            f"label lists of shapes {labels_a.shape} and {labels_b.shape}: "
            "give two equally long, non-empty lists"
        )

    # With a single label chance agrees as often; scikit-learn would divide by zero and warn.
    if len(np.union1d(labels_a, labels_b)) == 1:
        return math.nan
    return float(cohen_kappa_score(labels_a, labels_b))


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeAgreement:
    """How far two judges agree on the same logic pairs (appendix F.4).

    Attributes:
        n: number of pairs.
        kappa_gate: Cohen's kappa of RIUS >= 1, which decides whether an update counts.
        kappa_strategy_shift: Cohen's kappa of the first indicator.
        kappa_evidence_recombination: Cohen's kappa of the second indicator.
        lud: correlation of the two judges' LUD.
    """

    n: int
    kappa_gate: float
    kappa_strategy_shift: float
    kappa_evidence_recombination: float
    lud: Correlation


def judge_agreement(
    first: Sequence[Indicators], second: Sequence[Indicators], delta: npt.ArrayLike
) -> JudgeAgreement:
    """Compare two judges over the same pairs, whose magnitudes are ``delta`` (N,).

    Raises:
        DataError: there is no pair, or the judges did not score the same number of them.
    """
    if len(first) != len(second) or not first:
        raise DataError(
            f"{len(first)} and {len(second)} verdicts: both judges must score the same pairs"
        )

    shift_a, recombination_a = split_indicators([read_indicators(verdict) for verdict in first])
    shift_b, recombination_b = split_indicators([read_indicators(verdict) for verdict in second])
    rius_a = rius(shift_a, recombination_a)
    rius_b = rius(shift_b, recombination_b)

    gate_a = (rius_a >= 1).astype(int).tolist()
    gate_b = (rius_b >= 1).astype(int).tolist()
    return JudgeAgreement(
        n=len(first),
        kappa_gate=cohens_kappa(gate_a, gate_b),
        kappa_strategy_shift=cohens_kappa(shift_a.tolist(), shift_b.tolist()),
        kappa_evidence_recombination=cohens_kappa(
            recombination_a.tolist(), recombination_b.tolist()
        ),
        # The magnitudes are the same for both, so that only the gates can make a difference.
        lud=pearson(logic_update_degree(delta, rius_a), logic_update_degree(delta, rius_b)),
    )
