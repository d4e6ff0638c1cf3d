"""Reward, fitness, weights and aggregation on hand-computed cases and properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compevo_core.agents.selection import (
    FitnessSelection,
    aggregate_forecasts,
    forecast_error,
    reward,
)
from compevo_core.config import SelectionConfig
from compevo_core.errors import DataError


def _selection(
    fitness: list[float], gates: list[float] | None = None, **settings: object
) -> FitnessSelection:
    selection = FitnessSelection(len(fitness), SelectionConfig(**settings))
    selection.fitness_A.copy_(torch.tensor(fitness))
    if gates is not None:
        selection.gates_A.data.copy_(torch.tensor(gates))
    return selection


def test_reward_is_minus_the_mean_squared_error() -> None:
    forecast = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]])
    assert reward(forecast, torch.tensor([[1.0, 4.0]]), "mse").tolist() == [-2.0, -8.5]
    assert reward(forecast, torch.tensor([[1.0, 4.0]]), "mae").tolist() == [-1.0, -2.5]


def test_masked_targets_do_not_count_and_carry_no_gradient() -> None:
    forecast = torch.tensor([[[1.0, 9.0]]], requires_grad=True)
    error = forecast_error(forecast, torch.tensor([[3.0, float("nan")]]), "mse")
    assert error.item() == 4.0
    error.sum().backward()
    assert forecast.grad is not None
    assert forecast.grad.flatten().tolist() == [-4.0, 0.0]


def test_a_window_without_any_target_is_refused() -> None:
    with pytest.raises(DataError, match="no known target"):
        forecast_error(torch.zeros(1, 1, 2), torch.full((1, 2), float("nan")), "mse")


def test_fitness_is_the_exponential_average_of_rewards() -> None:
    selection = _selection([0.0, -1.0], ema=0.75)
    selection.update_fitness(torch.tensor([-4.0, -1.0]))
    assert selection.fitness_A.tolist() == [-1.0, -1.0]
    selection.update_fitness(torch.tensor([0.0, -5.0]))
    assert selection.fitness_A.tolist() == [-0.75, -2.0]


def test_weights_are_the_gated_softmax() -> None:
    weights = _selection([-0.5, -1.0], [1.0, 0.5], temperature=0.5).weights()
    raw = [math.exp(-1.0), math.exp(-1.0)]
    assert weights.tolist() == pytest.approx([r / sum(raw) for r in raw])


finite = st.floats(-3, 3)


@pytest.mark.parametrize("rule", ["none", "min"])
@given(
    st.lists(st.tuples(finite, st.floats(0, 3)), min_size=2, max_size=6),
    st.floats(1e-3, 2),
    st.data(),
)
def test_more_fitness_never_lowers_a_weight_while_gates_are_not_negative(
    rule: str, agents: list[tuple[float, float]], more: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(agents) - 1))
    fitness, gates = [list(column) for column in zip(*agents, strict=True)]
    selection = _selection(fitness, gates, fitness_shift=rule)
    values = selection.fitness_A.clone().double().requires_grad_()
    selection.fitness_A = values

    weights = selection.weights()
    (slope,) = torch.autograd.grad(weights[k], values)
    assert slope[k] >= -1e-12
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-5)

    raised = [m + more if i == k else m for i, m in enumerate(fitness)]
    after = _selection(raised, gates, fitness_shift=rule).weights()
    assert after[k].item() >= weights[k].item() - 1e-6


@given(st.lists(st.tuples(finite, st.floats(0.1, 3)), min_size=2, max_size=6), st.data())
def test_the_slope_is_the_one_of_proposition_b_5_1(
    agents: list[tuple[float, float]], data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(agents) - 1))
    fitness, gates = [list(column) for column in zip(*agents, strict=True)]
    selection = _selection(fitness, gates, temperature=0.5)
    values = selection.fitness_A.clone().double().requires_grad_()
    selection.fitness_A = values

    weights = selection.weights()
    (slope,) = torch.autograd.grad(weights[k], values)
    w = weights.tolist()[k]
    assert slope[k].item() == pytest.approx(w * (1 - w) * gates[k] / 0.5, abs=1e-6)


def test_a_negative_gate_turns_the_order_around_which_is_why_the_proposition_asks_for_none() -> (
    None
):
    low, high = (_selection([m, -1.0], [-1.0, 1.0]).weights()[0].item() for m in (-2.0, -1.0))
    assert high < low


def test_a_smaller_gate_raises_a_weak_agents_weight_under_the_printed_rule_only() -> None:
    # The printed rule, on the weaker of two agents.
    open_weight, shut_weight = (
        _selection([-1.0, -3.0], gates, fitness_shift="none").weights()[1].item()
        for gates in ([1.0, 1.0], [1.0, 0.1])
    )
    assert shut_weight > open_weight

    # The shifted rule; the weakest has fitness 0 there, so the gate of the other is moved.
    open_weight, shut_weight = (
        _selection([-1.0, -3.0], gates, fitness_shift="min").weights()[0].item()
        for gates in ([1.0, 1.0], [0.1, 1.0])
    )
    assert shut_weight < open_weight


def test_uniform_weights_ignore_fitness() -> None:
    assert _selection([-9.0, 0.0, -1.0], uniform=True).weights().tolist() == pytest.approx(
        [1 / 3] * 3
    )


def test_aggregation_is_the_weighted_sum_and_reaches_gates_with_gradient() -> None:
    selection = _selection([-1.0, -2.0])
    total = aggregate_forecasts(
        torch.tensor([[[0.0, 2.0]], [[4.0, 6.0]]]), torch.tensor([0.75, 0.25])
    )
    assert total.tolist() == [[1.0, 3.0]]
    aggregate_forecasts(torch.tensor([[[0.0]], [[4.0]]]), selection.weights()).sum().backward()
    assert selection.gates_A.grad is not None
    assert selection.gates_A.grad.abs().min() > 0
