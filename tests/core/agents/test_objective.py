"""The regularising terms and the weighted sum by hand, and what stops an update."""

import pytest
import torch

from compevo_core.agents.objective import LossTerms, diversity_loss, pruning_loss, require_finite
from compevo_core.config import ObjectiveConfig
from compevo_core.errors import NonFiniteLoss


def test_diversity_sums_the_cosines_of_all_pairs() -> None:
    states = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    assert diversity_loss(states).item() == pytest.approx(0.0 - 1.0 + 0.0)
    assert diversity_loss(torch.ones(4, 2)).item() == pytest.approx(6.0)


def test_a_step_down_the_diversity_loss_turns_two_candidates_apart() -> None:
    states = torch.tensor([[1.0, 0.2], [1.0, -0.1]], requires_grad=True)
    before = diversity_loss(states)
    before.backward()
    assert states.grad is not None
    assert diversity_loss(states.detach() - 0.5 * states.grad) < before


def test_pruning_is_the_absolute_sum_of_gates() -> None:
    assert pruning_loss(torch.tensor([0.5, -2.0, 0.0])).item() == 2.5


def test_the_total_is_the_weighted_sum_of_the_four_terms() -> None:
    config = ObjectiveConfig(lambda_pg=0.5, lambda_div=0.1, lambda_prune=0.01)
    assert LossTerms(1.0, 2.0, 3.0, 4.0).total(config) == pytest.approx(1.0 + 1.0 + 0.3 + 0.04)


def test_a_non_finite_term_names_round_and_agents() -> None:
    with pytest.raises(NonFiniteLoss, match=r"round 7 for agent\(s\) \[1\]"):
        require_finite("L_pg", torch.tensor([0.0, float("inf")]), 7)


def test_a_non_finite_term_of_all_agents_blames_none_of_them() -> None:
    with pytest.raises(NonFiniteLoss, match="for the population"):
        require_finite("L_pred", torch.tensor(float("inf")), 7)
