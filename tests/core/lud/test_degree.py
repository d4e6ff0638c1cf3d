"""Delta, RIUS and LUD, by hand and by their properties."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compevo_core.errors import DataError
from compevo_core.lud.degree import (
    LUD_SCHEMA,
    build_lud_table,
    logic_update_degree,
    rius,
    update_magnitude,
)
from compevo_core.lud.judge import JudgeVerdict


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

    def judge(pairs: list[tuple[str, str]]) -> list[JudgeVerdict]:
        asked.extend(pairs)
        return [JudgeVerdict(int(b == "east"), 0) for _, b in pairs]

    table = build_lud_table(
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
    assert build_lud_table([["a"]], lambda t: np.ones((len(t), 2)), lambda p: []).height == 0
    with pytest.raises(DataError, match="different numbers"):
        build_lud_table([["a"], ["a", "b"]], lambda t: np.ones((len(t), 2)), lambda p: [])


def test_an_empty_logic_embedding_is_refused() -> None:
    with pytest.raises(DataError, match="zero or not finite"):
        update_magnitude([[0.0, 0.0]], [[1.0, 0.0]])
