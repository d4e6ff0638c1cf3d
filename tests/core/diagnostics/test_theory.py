"""What the theory speaks about: cases computed by hand, and the defining inequalities."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import ArrayLike

from compevo_core.diagnostics.theory import (
    GradientConflict,
    aggregate_best_response_gap,
    best_response_gap,
    gradient_conflict,
    gradient_norm,
    regret_of_sums,
    weight_entropy,
)
from compevo_core.errors import DataError

numbers = st.floats(-100, 100, allow_nan=False, width=32)


def test_the_gap_is_the_best_own_sample_minus_what_was_played() -> None:
    gap = best_response_gap([[-3.0, -1.0, -2.0], [-5.0, -4.0, -6.0]], [-2.0, -4.0])
    assert gap.tolist() == [1.0, 0.0]


def test_an_agent_that_carried_a_better_logic_than_its_group_has_no_gap() -> None:
    assert best_response_gap([[-3.0, -2.0]], [-1.0]).tolist() == [0.0]


def test_the_aggregate_gap_by_hand_for_two_agents_and_one_point() -> None:
    # Aggregate 0.5*2 + 0.5*6 = 4 against a truth of 1: loss 9.
    # Agent 0 switching to 0 gives 3 (loss 4), agent 1 switching to 2 gives 2 (loss 1).
    group = np.array([[[[2.0]], [[0.0]]], [[[6.0]], [[2.0]]]])
    gap = aggregate_best_response_gap(group, [[[2.0]], [[6.0]]], [0.5, 0.5], [[1.0]])
    assert gap.tolist() == [5.0, 8.0]
    absolute = aggregate_best_response_gap(
        group, [[[2.0]], [[6.0]]], [0.5, 0.5], [[1.0]], metric="mae"
    )
    assert absolute.tolist() == [1.0, 2.0]


def test_the_aggregate_gap_rewards_a_worse_own_forecast_that_cancels_the_others_error() -> None:
    # Alone, agent 0 is perfect; the best response to a peer that is 2 too high is to be 2 too low.
    group = np.array([[[[1.0]], [[-1.0]]], [[[3.0]], [[3.0]]]])
    gap = aggregate_best_response_gap(group, [[[1.0]], [[3.0]]], [0.5, 0.5], [[1.0]])
    assert gap.tolist() == [1.0, 0.0]


def test_masked_targets_do_not_enter_the_aggregate_gap() -> None:
    group = np.array([[[[2.0, 50.0]], [[1.0, -50.0]]]])
    gap = aggregate_best_response_gap(group, group[:, 0], [1.0], [[1.0, np.nan]])
    assert gap.tolist() == [1.0]


@settings(deadline=None)
@given(
    arrays(float, (3, 4, 2, 5), elements=numbers),
    arrays(float, (2, 5), elements=numbers),
    arrays(float, 3, elements=st.floats(0, 1)),
)
def test_the_aggregate_gap_equals_trying_every_switch_one_by_one(group, truth, raw) -> None:
    weights = (raw + 0.1) / (raw + 0.1).sum()
    played = group[:, 0]
    aggregate = np.tensordot(weights, played, 1)
    expected = []
    for i in range(3):
        losses = [
            np.mean((aggregate - weights[i] * played[i] + weights[i] * group[i, g] - truth) ** 2)
            for g in range(4)
        ]
        expected.append(max(0.0, np.mean((aggregate - truth) ** 2) - min(losses)))
    gap = aggregate_best_response_gap(group, played, weights, truth)
    np.testing.assert_allclose(gap, expected, atol=1e-8)
    assert (gap >= 0).all()


def _regret_by_round(played_T: list[float], fixed_TK: list[list[float]]) -> np.ndarray:
    """Regret after each of T rounds of one agent, from the rewards of the rounds."""
    return regret_of_sums(np.cumsum(played_T), np.cumsum(fixed_TK, axis=0))


def test_regret_against_the_best_fixed_logic_by_hand() -> None:
    fixed = [[1.0, 0.0], [0.0, 3.0], [1.0, 0.0]]
    assert _regret_by_round([0.0, 0.0, 2.0], fixed).tolist() == [1.0, 3.0, 1.0]


@settings(deadline=None)
@given(arrays(float, (12, 4), elements=numbers), st.integers(0, 3))
def test_playing_one_fixed_logic_never_has_negative_regret_and_the_best_one_ends_at_zero(
    fixed, k
) -> None:
    assert (_regret_by_round(fixed[:, k], fixed) >= 0).all()
    assert _regret_by_round(fixed[:, fixed.sum(axis=0).argmax()], fixed)[-1] == pytest.approx(
        0.0, abs=1e-9
    )


@settings(deadline=None)
@given(arrays(float, (12, 4), elements=numbers))
def test_group_regret_never_falls_and_bounds_the_fixed_regret_when_the_group_is_fixed(
    rewards,
) -> None:
    played = rewards[:, 0]
    group = np.cumsum(best_response_gap(rewards, played))
    assert (np.diff(group) >= 0).all()
    assert (group >= _regret_by_round(played, rewards) - 1e-9).all()


def _conflict_of(main: ArrayLike, strategy: ArrayLike) -> GradientConflict:
    """The condition for two gradient vectors."""
    main_P, strategy_P = np.asarray(main), np.asarray(strategy)
    return gradient_conflict(
        float(np.linalg.norm(main_P)),
        float(np.linalg.norm(strategy_P)),
        float(main_P @ strategy_P),
    )


def test_opposed_gradients_conflict_by_hand() -> None:
    conflict = _conflict_of([1.0, 0.0], [-2.0, 0.0])
    assert (conflict.cosine, conflict.margin, conflict.holds) == (-1.0, -1.0, False)

    mild = _conflict_of([3.0, 0.0], [-2.0, 0.0])
    assert (mild.cosine, mild.margin, mild.holds) == (-1.0, 1.0, True)

    assert _conflict_of([1.0, 0.0], [0.0, 5.0]).holds


def test_zero_gradients_have_no_direction() -> None:
    assert gradient_conflict(2.0, 0.0, 0.0).holds
    assert not gradient_conflict(0.0, 2.0, 0.0).holds


@settings(deadline=None)
@given(arrays(float, 6, elements=numbers), arrays(float, 6, elements=numbers))
def test_the_condition_holds_exactly_when_the_joint_step_still_descends_the_main_loss(
    main, strategy
) -> None:
    progress = float(main @ (main + strategy))
    norm = float(np.linalg.norm(main))
    conflict = _conflict_of(main, strategy)
    if norm > 1e-3 and abs(progress) > 1e-6 * norm * (norm + float(np.linalg.norm(strategy))):
        assert conflict.holds == (progress > 0)
        assert conflict.margin * norm == pytest.approx(progress, rel=1e-5, abs=1e-6)


def test_the_gradient_norm_is_that_of_the_concatenation() -> None:
    assert gradient_norm([[3.0], [[4.0, 0.0]]]) == 5.0
    assert gradient_norm([]) == 0.0


def test_entropy_by_hand() -> None:
    assert weight_entropy([1.0, 0.0]) == 0.0
    assert weight_entropy([0.25] * 4) == pytest.approx(math.log(4))


@settings(deadline=None)
@given(arrays(float, 5, elements=st.floats(0, 10)))
def test_entropy_lies_between_one_agent_and_a_plain_mean(raw) -> None:
    weights = (raw + 1e-6) / (raw + 1e-6).sum()
    assert 0.0 <= weight_entropy(weights) <= math.log(5) + 1e-12


@pytest.mark.parametrize(
    "call",
    [
        lambda: best_response_gap([[1.0, np.nan]], [1.0]),
        lambda: best_response_gap([[1.0]], [1.0, 2.0]),
        lambda: regret_of_sums([1.0, 2.0], [[1.0]]),
        lambda: aggregate_best_response_gap(
            np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)), [1.0], [[np.nan]]
        ),
        lambda: aggregate_best_response_gap(
            np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)), [1.0], [[1.0]], metric="rmse"
        ),
        lambda: gradient_conflict(float("inf"), 1.0, 0.0),
        lambda: gradient_conflict(-1.0, 1.0, 0.0),
        lambda: weight_entropy([0.5, 0.6]),
    ],
)
def test_unusable_input_is_refused(call) -> None:
    with pytest.raises(DataError):
        call()


def test_weights_that_differ_by_window_weigh_each_windows_own_switch() -> None:
    # The second agent counts in the second window alone: in the first it could gain nothing.
    group = np.ones((2, 1, 2, 1))
    gap = aggregate_best_response_gap(
        group, np.zeros((2, 2, 1)), [[1.0, 0.0], [0.5, 0.5]], [[1.0], [1.0]]
    )
    assert gap.tolist() == [0.875, 0.375]
