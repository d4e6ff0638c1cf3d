"""The regularising terms and the weighted sum by hand, and what stops an update."""

import numpy as np
import pytest
import torch

from compevo_core.agents.objective import (
    diversity_loss,
    joint_loss,
    own_error_weights,
    prediction_loss,
)
from compevo_core.config.sections import MemberConfig, ObjectiveConfig
from tests.support.population import windows


def test_diversity_sums_the_cosines_of_all_pairs():
    states = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    assert diversity_loss(states).item() == pytest.approx(0.0 - 1.0 + 0.0)
    assert diversity_loss(torch.ones(4, 2)).item() == pytest.approx(6.0)


def test_the_total_is_the_weighted_sum_of_the_terms():
    config = ObjectiveConfig(lambda_own=2.0, lambda_pg=0.5, lambda_div=0.1, lambda_prune=0.01)
    terms = dict(zip(("pred", "own", "pg", "div", "prune"), (1.0, 5.0, 2.0, 3.0, 4.0), strict=True))
    total = joint_loss({f"loss_{name}": value for name, value in terms.items()}, config)
    assert total == pytest.approx(1.0 + 10.0 + 1.0 + 0.3 + 0.04)


TRUTH_BH = torch.tensor([[0.0, float("nan"), 1.0], [2.0, 2.0, 2.0]])
FORECAST_BH = torch.tensor([[1.0, 7.0, 4.0], [2.0, 2.5, 0.0]])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"metric": "mse"}, [(1 + 9) / 2, (0 + 0.25 + 4) / 3]),
        ({"metric": "mae"}, [(1 + 3) / 2, (0 + 0.5 + 2) / 3]),
        # Half the square within delta, delta times the rest beyond it.
        ({"loss": "huber"}, [(0.5 + 2.5) / 2, (0 + 0.125 + 1.5) / 3]),
        ({"loss": "huber", "huber_delta": 2.0}, [(0.5 + 4.0) / 2, (0 + 0.125 + 2.0) / 3]),
    ],
)
def test_the_prediction_loss_is_the_metric_or_hubers_over_known_steps(settings, expected):
    forecast_BH = FORECAST_BH.clone().requires_grad_()
    loss_B = prediction_loss(forecast_BH, TRUTH_BH, ObjectiveConfig(**settings))
    assert loss_B.tolist() == pytest.approx(expected)
    loss_B.sum().backward()
    assert forecast_BH.grad[0, 1] == 0.0
    assert forecast_BH.grad.isfinite().all()


def test_weights_scale_single_steps_and_are_not_divided_out():
    config = ObjectiveConfig()
    weights_BH = torch.tensor([[1.0, 1.0, 0.25], [0.25, 0.25, 0.25]])
    loss_B = prediction_loss(FORECAST_BH, TRUTH_BH, config, weights_BH)
    assert loss_B.tolist() == pytest.approx([(1 + 9 / 4) / 2, (0.25 + 4) / 4 / 3])


def test_an_agents_own_series_and_steps_count_fully_the_others_to_a_quarter():
    views = windows("train", 1).views()
    member = MemberConfig(entities=("SA1",), first_step=2, last_step=3)
    weights_BH = own_error_weights(member, views, seed=0, agent=0)
    inside = np.full(48, 0.25)
    inside[2:4] = 1.0
    assert [view.entity for view in views] == ["NSW1", "SA1"]
    assert weights_BH.tolist() == [[0.25] * 48, inside.tolist()]
    assert (own_error_weights(MemberConfig(), views, seed=0, agent=0) == 1.0).all()


def test_a_share_of_the_windows_is_a_property_of_window_agent_and_seeds():
    views = windows("train", 200).views()
    member = MemberConfig(window_share=0.3)

    def counted(**changes):
        settings = {"member": member, "views": views, "seed": 0, "agent": 0} | changes
        weights_BH = own_error_weights(**settings)
        assert set(np.unique(weights_BH)) <= {0.0, 1.0}
        return weights_BH[:, 0].astype(bool).tolist()

    drawn = counted()
    assert 0.2 < np.mean(drawn) < 0.4
    assert counted(views=views[::-1]) == drawn[::-1]
    assert counted(agent=1) != drawn
    assert counted(seed=1) != drawn
    assert counted(member=MemberConfig(window_share=0.3, seed=1)) != drawn
