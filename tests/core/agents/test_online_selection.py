"""Rules that weigh experts by their known errors."""

import numpy as np
import pytest

from compevo_core.agents.online_selection import (
    BoaState,
    EqualState,
    InverseState,
    MlPolyState,
    build_state,
    find_excess,
)
from compevo_core.config.sections import SelectionConfig

STEPS = 6
ALIKE = [1 / 3] * 3


def _play(state, days, *, scale=1.0):
    """Let three experts forecast noise around a truth; the second one is the best."""
    rng = np.random.default_rng(0)
    spread_A = np.array([3.0, 1.0, 2.0])
    for _ in range(days):
        truth_h = scale * rng.normal(size=STEPS)
        experts_Ah = truth_h + scale * spread_A[:, None] * rng.normal(size=(3, STEPS))
        state.observe(experts_Ah, state.weights() @ experts_Ah, truth_h)


@pytest.mark.parametrize(
    "state", [EqualState(ALIKE), InverseState(3, 28.0), BoaState(ALIKE), MlPolyState(3)]
)
def test_a_rule_that_has_seen_nothing_weighs_all_alike(state):
    assert np.allclose(state.weights(), 1 / 3)


@pytest.mark.parametrize("state", [InverseState(3, 28.0), BoaState(ALIKE), MlPolyState(3)])
def test_the_expert_with_the_smallest_errors_gets_the_largest_weight(state):
    _play(state, 200)
    weights_A = state.weights()
    assert weights_A.sum() == pytest.approx(1.0)
    assert weights_A.min() >= 0
    assert weights_A.argmax() == 1


@pytest.mark.parametrize(("kind", "experts"), [(BoaState, ALIKE), (MlPolyState, 3)])
def test_weights_do_not_depend_on_the_unit_of_the_series(kind, experts):
    in_megawatts, in_watts = kind(experts), kind(experts)
    _play(in_megawatts, 40)
    _play(in_watts, 40, scale=1e6)
    assert np.allclose(in_megawatts.weights(), in_watts.weights(), rtol=1e-6)


def test_inverse_weights_forget_by_half_in_a_half_life():
    state = InverseState(2, 10.0)
    truth_h = np.zeros(STEPS)
    first, then = np.array([[2.0], [1.0]]), np.array([[1.0], [1.0]])
    state.observe(np.tile(first, STEPS), truth_h, truth_h)
    for _ in range(10):
        state.observe(np.tile(0 * then, STEPS), truth_h, truth_h)
    state.observe(np.tile(then, STEPS), truth_h, truth_h)

    # What is left of the first squared errors, 4 and 1, after eleven days, and 1 of today.
    left = 0.5**1.1
    expected_A = 1 / (np.array([4.0, 1.0]) * left + 1.0)
    assert np.allclose(state.weights(), expected_A / expected_A.sum())


def test_an_expert_of_a_larger_first_weight_counts_as_several_that_forecast_alike():
    rng = np.random.default_rng(3)
    weighed, repeated = BoaState([0.75, 0.25]), BoaState([0.25] * 4)
    assert np.allclose(weighed.weights(), [0.75, 0.25])
    for _ in range(20):
        truth_h, experts_Ah = rng.normal(size=STEPS), rng.normal(size=(2, STEPS))
        repeated_Ah = experts_Ah[[0, 0, 0, 1]]
        mixture_h = weighed.weights() @ experts_Ah
        assert np.allclose(repeated.weights() @ repeated_Ah, mixture_h)
        weighed.observe(experts_Ah, mixture_h, truth_h)
        repeated.observe(repeated_Ah, mixture_h, truth_h)
    assert not np.allclose(weighed.weights(), [0.75, 0.25], atol=0.02)


def test_excess_is_the_slope_of_the_absolute_error_at_the_mixture():
    # The mixture is too high by 2; an expert below the truth would have pulled it down by 3.
    excess_A = find_excess(np.array([[-1.0], [4.0]]), np.array([2.0]), np.array([0.0]))
    assert np.allclose(excess_A, [3.0, -2.0])


def test_each_name_of_a_rule_has_a_state_of_its_own():
    def state_of(rule):
        config = SelectionConfig(online=True, rule=rule)
        return build_state(config, ALIKE, lambda: EqualState([1 / 99] * 99))

    names = ("equal", "inverse", "boa", "ml-poly")
    kinds = [type(state_of(rule)) for rule in names]
    assert kinds == [EqualState, InverseState, BoaState, MlPolyState]
    assert len(state_of("paper").weights()) == 99
