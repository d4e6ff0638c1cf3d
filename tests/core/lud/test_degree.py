"""LUD, its regimes and the agreement of judges, by hand and against scikit-learn and numpy."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import pearsonr
from sklearn.metrics import cohen_kappa_score

from compevo_core.errors import DataError
from compevo_core.lud.degree import (
    LUD_SCHEMA,
    cohens_kappa,
    judge_agreement,
    logic_update_degree,
    lud_table,
    pearson,
    regime_table,
    rius,
    update_magnitude,
)


@dataclasses.dataclass
class Said:
    strategy_shift: int
    evidence_recombination: int


def test_magnitude_by_hand_same_orthogonal_opposite() -> None:
    delta = update_magnitude([[1, 0], [1, 0], [1, 0], [2, 0]], [[3, 0], [0, 1], [-1, 0], [1, 1]])
    np.testing.assert_allclose(delta, [0.0, 1.0, 2.0, 1 - math.sqrt(0.5)], atol=1e-12)


@settings(deadline=None)
@given(
    arrays(float, (5, 4), elements=st.floats(-10, 10)),
    arrays(float, (5, 4), elements=st.floats(-10, 10)),
    st.floats(0.1, 50),
)
def test_magnitude_is_symmetric_bounded_and_ignores_length(before, after, factor) -> None:
    assume(
        (np.linalg.norm(before, axis=1) > 1e-3).all()
        and (np.linalg.norm(after, axis=1) > 1e-3).all()
    )
    delta = update_magnitude(before, after)
    assert ((delta >= 0) & (delta <= 2)).all()
    np.testing.assert_allclose(delta, update_magnitude(after, before), atol=1e-9)
    np.testing.assert_allclose(delta, update_magnitude(before * factor, after), atol=1e-9)
    np.testing.assert_allclose(update_magnitude(before, before), 0.0, atol=1e-9)


def test_the_gate_passes_an_update_with_at_least_one_indicator() -> None:
    scores = rius([0, 1, 0, 1], [0, 0, 1, 1])
    assert scores.tolist() == [0, 1, 1, 2]
    assert logic_update_degree([0.3, 0.3, 0.4, 0.5], scores).tolist() == [0.0, 0.3, 0.4, 0.5]


def test_indicators_other_than_zero_and_one_are_refused() -> None:
    with pytest.raises(DataError, match="0 and 1"):
        rius([2], [0])
    with pytest.raises(DataError, match="0 and 1"):
        rius([0.5], [0])


def test_a_table_of_updates_compares_each_round_with_the_one_before_and_skips_unchanged_texts() -> (
    None
):
    vectors = {"north": [1.0, 0.0], "east": [0.0, 1.0], "south": [-1.0, 0.0]}
    asked: list[tuple[str, str]] = []

    def judge(pairs: list[tuple[str, str]]) -> list[Said]:
        asked.extend(pairs)
        return [Said(int(b == "east"), 0) for _, b in pairs]

    table = lud_table(
        [["north", "north"], ["east", "north"], ["south", "south"]],
        lambda texts: np.array([vectors[t] for t in texts]),
        judge,
    )
    assert asked == [("north", "east"), ("east", "south"), ("north", "south")]
    assert dict(table.schema) == LUD_SCHEMA
    assert table.select("round", "agent", "delta", "lud", "unchanged_text").rows() == [
        (1, 0, 1.0, 1.0, False),
        (1, 1, 0.0, 0.0, True),
        (2, 0, 1.0, 0.0, False),
        (2, 1, 2.0, 0.0, False),
    ]


def test_one_round_has_no_updates_and_ragged_rounds_are_refused() -> None:
    assert lud_table([["a"]], lambda t: np.ones((len(t), 2)), lambda p: []).height == 0
    with pytest.raises(DataError, match="different numbers"):
        lud_table([["a"], ["a", "b"]], lambda t: np.ones((len(t), 2)), lambda p: [])


def test_an_empty_logic_embedding_is_refused() -> None:
    with pytest.raises(DataError, match="zero or not finite"):
        update_magnitude([[0.0, 0.0]], [[1.0, 0.0]])


def test_regimes_by_hand_with_an_empty_middle() -> None:
    table = regime_table([0.0, 0.2, 0.9], [1.0, 3.0, 10.0], edges=(0.3, 0.6))
    assert table.select("regime", "n", "mean_lud", "mean_gain").rows() == [
        ("low", 2, 0.1, 2.0),
        ("medium", 0, None, None),
        ("high", 1, 0.9, 10.0),
    ]


@settings(deadline=None)
@given(arrays(float, 30, elements=st.floats(0, 2)))
def test_every_update_falls_into_exactly_one_regime(lud) -> None:
    table = regime_table(lud, lud)
    assert table["n"].sum() == 30
    assert sum(n * m for n, m in table.select("n", "mean_lud").rows() if n) == pytest.approx(
        lud.sum()
    )


@settings(deadline=None)
@given(
    arrays(float, 12, elements=st.floats(-100, 100)),
    arrays(float, 12, elements=st.floats(-100, 100)),
)
def test_pearson_equals_numpy_and_is_undefined_only_for_constants(x, y) -> None:
    found = pearson(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert math.isnan(found.r)
        assert found.reason
    elif np.std(x) > 1e-3 and np.std(y) > 1e-3:
        assert found.r == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
        assert found.p == pearsonr(x, y).pvalue


def test_kappa_by_hand() -> None:
    # Agreement 0.7; chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5; kappa 0.4.
    first = [1] * 5 + [0] * 5
    second = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert cohens_kappa(first, second) == pytest.approx(0.4)
    assert cohens_kappa([0, 1], [1, 0]) == pytest.approx(-1.0)
    assert math.isnan(cohens_kappa([1, 1], [1, 1]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_kappa_equals_scikit_learn(labels) -> None:
    first, second = zip(*labels, strict=True)
    assume(len(set(first) | set(second)) > 1)
    assert cohens_kappa(first, second) == pytest.approx(cohen_kappa_score(first, second), abs=1e-9)


def test_agreement_of_two_judges_gates_the_same_magnitudes() -> None:
    first = [Said(1, 0), Said(0, 0), Said(1, 1), Said(0, 0)]
    second = [Said(0, 1), Said(0, 0), Said(1, 1), Said(1, 0)]
    found = judge_agreement(first, second, [0.2, 0.9, 0.6, 0.1])
    assert found.kappa_gate == pytest.approx(0.5)
    assert found.kappa_evidence_recombination == pytest.approx(0.5)
    assert found.kappa_strategy_shift == pytest.approx(0.0)
    assert found.lud.r == pytest.approx(np.corrcoef([0.2, 0, 0.6, 0], [0.2, 0, 0.6, 0.1])[0, 1])
    assert judge_agreement(first, first, [0.2, 0.9, 0.6, 0.1]).kappa_gate == 1.0


def test_judges_that_scored_different_pairs_are_refused() -> None:
    with pytest.raises(DataError, match="same pairs"):
        judge_agreement([Said(0, 0)], [], [0.1])
