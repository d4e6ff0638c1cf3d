"""Reward, fitness, weights and aggregation on hand-computed cases and properties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compevo_core.agents import selection as rules
from compevo_core.agents.decoders import EqualFitness
from compevo_core.agents.online_selection import (
    BoaState,
    EqualState,
    ErrorCalibration,
    Experience,
    PaperState,
    PopulationWeights,
    find_excess,
)
from compevo_core.agents.selection import FitnessSelection, aggregate_forecasts, forecast_error
from compevo_core.config.sections import SelectionConfig
from compevo_core.errors import DataError
from compevo_core.evaluation.method_choice import configure_method
from tests.support.window_samples import make_window


def _selection(fitness, gates=None, **settings):
    selection = FitnessSelection(len(fitness), SelectionConfig(**settings))
    selection.fitness_EA.copy_(torch.tensor([fitness]))
    if gates is not None:
        selection.gates_A.data.copy_(torch.tensor(gates))
    return selection


def test_squared_errors_are_means_of_known_targets():
    both = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]])
    assert rules.reward(both, torch.tensor([[1.0, 4.0]])).tolist() == [-2.0, -8.5]

    # What is masked carries no gradient.
    forecast = torch.tensor([[[1.0, 9.0]]], requires_grad=True)
    error = forecast_error(forecast, torch.tensor([[3.0, float("nan")]]))
    assert error.item() == 4.0
    error.sum().backward()
    assert forecast.grad.flatten().tolist() == [-4.0, 0.0]

    with pytest.raises(DataError, match="no known"):
        forecast_error(torch.zeros(1, 2, 2), torch.tensor([[1.0, 2.0], [float("nan")] * 2]))


def test_fitness_is_the_exponential_average_of_rewards():
    selection = _selection([0.0, -1.0], ema=0.75)
    # The reward of a round is the mean over its windows.
    selection.update_fitness(torch.tensor([[-3.0, -5.0], [-2.0, 0.0]]), ["NSW", "VIC"])
    assert selection.fitness_EA.mean(0).tolist() == [-1.0, -1.0]
    selection.update_fitness(torch.tensor([[0.0], [-5.0]]), ["NSW"])
    assert selection.fitness_EA.mean(0).tolist() == [-0.75, -2.0]


def test_weights_are_the_gated_softmax():
    weights = _selection([-0.5, -1.0], [1.0, 0.5], temperature=0.5).population_weights()
    raw = [math.exp(-1.0), math.exp(-1.0)]
    assert weights.tolist() == pytest.approx([r / sum(raw) for r in raw])


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(0, 3)), min_size=2, max_size=6), st.data())
def test_more_fitness_never_lowers_a_weight(agents, data):
    k = data.draw(st.integers(0, len(agents) - 1))
    fitness, gates = [list(column) for column in zip(*agents, strict=True)]
    selection = _selection(fitness, gates, temperature=0.5)
    values = selection.fitness_EA.clone().double().requires_grad_()
    selection.fitness_EA = values

    weights = selection.population_weights()
    (slope,) = torch.autograd.grad(weights[k], values)
    assert slope[0, k] >= -1e-12
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-5)
    # The slope of Proposition B.5.1
    w = weights.tolist()[k]
    assert slope[0, k].item() == pytest.approx(w * (1 - w) * gates[k] / 0.5, abs=1e-6)


def test_aggregation_is_a_weighted_sum_with_gradients():
    selection = _selection([-1.0, -2.0])
    values_ABH = torch.tensor([[[0.0, 2.0], [1.0, 1.0]], [[4.0, 6.0], [3.0, 5.0]]])
    total = aggregate_forecasts(values_ABH, torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    assert total.tolist() == [[1.0, 3.0], [3.0, 5.0]]

    weights_BA = selection.weights(["NSW"])
    aggregate_forecasts(torch.tensor([[[0.0]], [[4.0]]]), weights_BA).sum().backward()
    assert selection.gates_A.grad.abs().min() > 0


def test_scaled_fitness_separates_agents_of_small_errors():
    def weigh(scale, **settings):
        fitness = [-2.0 * scale, -1.0 * scale]
        return _selection(fitness, temperature=0.5, **settings).population_weights().tolist()

    large, small = (weigh(scale, units="spread") for scale in (1.0, 1e-3))
    # One standard deviation above and below the mean, on any scale.
    raw = [math.exp(-2.0), math.exp(2.0)]
    assert large == pytest.approx([r / sum(raw) for r in raw])
    assert small == pytest.approx(large)
    # In scaled errors, as printed, the same two agents hardly differ.
    assert weigh(1e-3) == pytest.approx([0.5, 0.5], abs=1e-3)


def test_a_tiny_spread_is_not_blown_up():
    # The spread is 1e-5 of the mean error, a hundredth of the floor: not one standard deviation.
    close = _selection([-1.00001, -0.99999], temperature=0.5, units="spread").population_weights()
    assert close.tolist() == pytest.approx([0.5, 0.5], abs=0.02)
    assert close[1] > close[0]
    for fitness in ([0.0, 0.0], [-3.0, -3.0]):
        equal = _selection(fitness, units="spread").population_weights()
        assert equal.tolist() == pytest.approx([0.5, 0.5])


def test_series_fitness_weighs_only_its_own_series():
    selection = FitnessSelection(2, SelectionConfig(scope="series", ema=0.5), ["NSW", "VIC"])
    selection.update_fitness(torch.tensor([[-2.0, -8.0], [-4.0, -2.0]]), ["NSW", "VIC"])
    assert selection.fitness_EA.tolist() == [[-1.0, -2.0], [-4.0, -1.0]]

    weights = selection.weights(["VIC", "NSW", "VIC"])
    assert weights.shape == (3, 2)
    assert weights[0].tolist() == pytest.approx(torch.softmax(torch.tensor([-8.0, -2.0]), 0))
    assert weights[1].tolist() == pytest.approx(torch.softmax(torch.tensor([-2.0, -4.0]), 0))
    assert torch.equal(weights[0], weights[2])

    # A record holds the mean over series.
    assert selection.fitness_EA.mean(0).tolist() == [-2.5, -1.5]
    assert selection.population_weights().tolist() == pytest.approx(weights[:2].mean(0).tolist())

    # A series without a window in the round keeps its fitness.
    selection.update_fitness(torch.tensor([[-1.0], [-4.0]]), ["NSW"])
    assert selection.fitness_EA.tolist() == [[-1.0, -3.0], [-4.0, -1.0]]

    with pytest.raises(DataError, match=r"no fitness for \['TAS'\]"):
        selection.weights(["TAS"])
    with pytest.raises(DataError, match="names of the series"):
        FitnessSelection(2, SelectionConfig(scope="series"))


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


def test_the_best_expert_leads_in_any_unit():
    in_megawatts, in_watts = BoaState(ALIKE), BoaState(ALIKE)
    _play(in_megawatts, 200)
    _play(in_watts, 200, scale=1e6)
    weights_A = in_megawatts.weights()

    assert weights_A.sum() == pytest.approx(1.0)
    assert weights_A.min() >= 0 and weights_A.argmax() == 1
    assert np.allclose(in_watts.weights(), weights_A, rtol=1e-6)


def test_a_larger_first_weight_counts_as_several_experts():
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


def test_excess_is_the_absolute_errors_slope():
    # The mixture is too high by 2; an expert below the truth would have pulled it down by 3.
    excess_A = find_excess(np.array([[-1.0], [4.0]]), np.array([2.0]), np.array([0.0]))
    assert np.allclose(excess_A, [3.0, -2.0])


def test_every_named_rule_has_its_own_state():
    def state_of(rule):
        config = configure_method("mixture", ("persistence", "theta"))
        config = config.with_overrides({"selection.rule": rule})
        weighting = PopulationWeights(config, EqualFitness(2), ErrorCalibration(2, ["NSW1"]))
        return type(weighting._state("NSW1", 0, 0))

    assert [state_of(r) for r in ("equal", "boa", "paper")] == [EqualState, BoaState, PaperState]
    assert np.allclose(EqualState(ALIKE).weights(), 1 / 3)


def test_each_part_of_a_day_has_weights_of_its_own():
    names = ("persistence", "seasonal-mean", "theta")
    config = configure_method("mixture", names).with_overrides({"selection.parts": 2})
    views = [make_window(day, y=np.zeros(5), horizon=5).view for day in (0, 1)]
    # The third member is right in no part of the day.
    agents_NAH = np.array([[[0.0, 0, 0, 9, 9], [9, 9, 9, 0, 0], [9, 9, 9, 9, 9]]])
    lived = Experience.of(["NSW1"], views[:1], agents_NAH, agents_NAH.mean(1), np.zeros((1, 5)))
    weighting = PopulationWeights(config, EqualFitness(3), ErrorCalibration(3, ["NSW1"], 5))
    weighting.observe(lived)
    weights_NAH = weighting.weights(views)
    assert weights_NAH.shape == (2, 3, 5) and np.allclose(weights_NAH.sum(axis=1), 1)
    assert weights_NAH[1].argmax(axis=0).tolist() == [0, 0, 0, 1, 1]
