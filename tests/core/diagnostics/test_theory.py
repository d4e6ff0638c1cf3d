"""The theory instruments on cases done by hand, and their defining inequalities."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compevo_core.diagnostics.theory import (
    aggregate_best_response_gap,
    best_response_gap,
    cumulative_group_regret,
    cumulative_regret,
    fit_growth_exponent,
    gradient_conflict,
    gradient_conflict_from_products,
    gradient_norm,
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
    # Aggregate 0.5*2 + 0.5*6 = 4 against a truth of 1: loss 9. Agent 0 to 0 gives 3 (loss 4), agent 1 to 2 gives 2 (1).
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


def test_regret_against_the_best_fixed_logic_by_hand() -> None:
    fixed = [[1.0, 0.0], [0.0, 3.0], [1.0, 0.0]]
    assert cumulative_regret([0.0, 0.0, 2.0], fixed).tolist() == [1.0, 3.0, 1.0]


@settings(deadline=None)
@given(arrays(float, (12, 4), elements=numbers), st.integers(0, 3))
def test_playing_one_fixed_logic_never_has_negative_regret_and_the_best_one_ends_at_zero(
    fixed, k
) -> None:
    assert (cumulative_regret(fixed[:, k], fixed) >= 0).all()
    assert cumulative_regret(fixed[:, fixed.sum(axis=0).argmax()], fixed)[-1] == pytest.approx(
        0.0, abs=1e-9
    )


@settings(deadline=None)
@given(arrays(float, (12, 4), elements=numbers))
def test_group_regret_never_falls_and_bounds_the_fixed_regret_when_the_group_is_fixed(
    rewards,
) -> None:
    played = rewards[:, 0]
    group = cumulative_group_regret(played, rewards)
    assert (np.diff(group) >= 0).all()
    assert (group >= cumulative_regret(played, rewards) - 1e-9).all()


@pytest.mark.parametrize(("power", "expected"), [(0.5, 0.5), (1.0, 1.0), (0.25, 0.25)])
def test_an_exact_power_law_gives_its_exponent_with_a_closed_interval(
    power: float, expected: float
) -> None:
    fit = fit_growth_exponent(
        3.0 * np.arange(1, 201) ** power, generator=np.random.default_rng(0), samples=50
    )
    assert fit.exponent == pytest.approx(expected, abs=1e-9)
    assert fit.low == pytest.approx(expected, abs=1e-6)
    assert fit.high == pytest.approx(expected, abs=1e-6)
    assert (fit.n_used, fit.n_left_out) == (180, 20)


def test_the_interval_covers_the_true_exponent_of_noisy_square_root_regret_and_excludes_one() -> (
    None
):
    covered, excluded = 0, 0
    rounds = np.arange(1, 301)
    for seed in range(20):
        generator = np.random.default_rng(seed)
        steps = np.diff(5 * np.sqrt(rounds), prepend=0.0) + generator.normal(0, 0.3, 300)
        fit = fit_growth_exponent(np.cumsum(steps), generator=generator, samples=200)
        covered += fit.low <= 0.5 <= fit.high
        excluded += fit.high < 1
    assert covered >= 16
    assert excluded == 20


def test_the_interval_is_the_same_for_the_same_generator() -> None:
    regret = np.cumsum(np.random.default_rng(1).uniform(0, 1, 60))
    fits = [
        fit_growth_exponent(regret, generator=np.random.default_rng(2), samples=40)
        for _ in range(2)
    ]
    assert fits[0] == fits[1]


def test_negative_regret_has_no_exponent_and_says_why() -> None:
    fit = fit_growth_exponent(-np.arange(1.0, 50.0), generator=np.random.default_rng(0))
    assert math.isnan(fit.exponent)
    assert fit.n_left_out == 49
    assert "positive regret" in fit.reason


def test_opposed_gradients_conflict_by_hand() -> None:
    conflict = gradient_conflict([1.0, 0.0], [-2.0, 0.0])
    assert (conflict.cosine, conflict.margin, conflict.holds) == (-1.0, -1.0, False)
    mild = gradient_conflict([3.0, 0.0], [-2.0, 0.0])
    assert (mild.cosine, mild.margin, mild.holds) == (-1.0, 1.0, True)
    assert gradient_conflict([1.0, 0.0], [0.0, 5.0]).holds


def test_zero_gradients_have_no_direction() -> None:
    assert gradient_conflict_from_products(2.0, 0.0, 0.0).holds
    assert not gradient_conflict_from_products(0.0, 2.0, 0.0).holds


@settings(deadline=None)
@given(arrays(float, 6, elements=numbers), arrays(float, 6, elements=numbers))
def test_the_condition_holds_exactly_when_the_joint_step_still_descends_the_main_loss(
    main, strategy
) -> None:
    progress = float(main @ (main + strategy))
    norm = float(np.linalg.norm(main))
    conflict = gradient_conflict(main, strategy)
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
        lambda: cumulative_regret([1.0, 2.0], [[1.0]]),
        lambda: aggregate_best_response_gap(
            np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)), [1.0], [[np.nan]]
        ),
        lambda: aggregate_best_response_gap(
            np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)), [1.0], [[1.0]], metric="rmse"
        ),
        lambda: gradient_conflict([1.0], [1.0, 2.0]),
        lambda: gradient_conflict_from_products(float("inf"), 1.0, 0.0),
        lambda: weight_entropy([0.5, 0.6]),
    ],
)
def test_unusable_input_is_refused(call) -> None:
    with pytest.raises(DataError):
        call()
