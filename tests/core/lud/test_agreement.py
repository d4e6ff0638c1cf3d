"""Agreement of judges, by hand, by its definition and against numpy."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import pearsonr

from compevo_core.errors import DataError
from compevo_core.lud.agreement import cohens_kappa, judge_agreement, pearson
from compevo_core.lud.judge import JudgeVerdict


@settings(deadline=None)
@given(
    arrays(float, 12, elements=st.floats(-100, 100)),
    arrays(float, 12, elements=st.floats(-100, 100)),
)
def test_pearson_equals_numpy_and_is_undefined_only_for_constants(x, y) -> None:
    correlation = pearson(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert math.isnan(correlation.r)
        assert correlation.reason
    elif np.std(x) > 1e-3 and np.std(y) > 1e-3:
        assert correlation.r == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
        assert correlation.p == pearsonr(x, y).pvalue


def test_kappa_by_hand() -> None:
    # Agreement 0.7; chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5; kappa 0.4.
    first = [1] * 5 + [0] * 5
    second = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert cohens_kappa(first, second) == pytest.approx(0.4)
    assert cohens_kappa([0, 1], [1, 0]) == pytest.approx(-1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(cohens_kappa([1, 1], [1, 1]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_kappa_is_the_agreement_above_chance_over_the_most_there_could_be(labels) -> None:
    first, second = (np.array(side) for side in zip(*labels, strict=True))
    assume(len(np.union1d(first, second)) > 1)
    chance = sum((first == k).mean() * (second == k).mean() for k in range(4))
    by_definition = ((first == second).mean() - chance) / (1 - chance)
    assert cohens_kappa(first, second) == pytest.approx(by_definition, abs=1e-9)


def test_agreement_of_two_judges_gates_the_same_magnitudes() -> None:
    first = [JudgeVerdict(1, 0), JudgeVerdict(0, 0), JudgeVerdict(1, 1), JudgeVerdict(0, 0)]
    second = [JudgeVerdict(0, 1), JudgeVerdict(0, 0), JudgeVerdict(1, 1), JudgeVerdict(1, 0)]
    agreement = judge_agreement(first, second, [0.2, 0.9, 0.6, 0.1])
    assert agreement.kappa_gate == pytest.approx(0.5)
    assert agreement.kappa_evidence_recombination == pytest.approx(0.5)
    assert agreement.kappa_strategy_shift == pytest.approx(0.0)
    assert agreement.lud.r == pytest.approx(np.corrcoef([0.2, 0, 0.6, 0], [0.2, 0, 0.6, 0.1])[0, 1])
    assert judge_agreement(first, first, [0.2, 0.9, 0.6, 0.1]).kappa_gate == 1.0


def test_judges_that_scored_different_pairs_are_refused() -> None:
    with pytest.raises(DataError, match="same pairs"):
        judge_agreement([JudgeVerdict(0, 0)], [], [0.1])
