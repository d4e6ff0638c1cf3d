"""GRPO on a bandit: what is rewarded becomes likelier, by the trainer's own update."""

import numpy as np
import pytest
import torch

from compevo_core.agents.logics import find_topics
from compevo_core.agents.observation import observe
from tests.support.rounds import build_round_trainer

pytestmark = pytest.mark.slow
PAID = {"power outages", "rooftop solar"}
UPDATES = 8


def _measure_rise(policy_lr, lambda_div):
    """Return by how much the share of samples that name what is paid for rises."""
    settings = {"population__agents": 2, "evolution__form": "slots", "grpo__group_size": 12}
    settings |= {"objective__lambda_div": lambda_div, "optim__policy_lr": policy_lr}
    trainer, state, _ = build_round_trainer(2 * UPDATES, optim__warmup_ratio=0.0, **settings)
    generators = [torch.Generator().manual_seed(agent) for agent in range(2)]
    seen = observe(logics=state.logics, rewards=[-1.0, -1.0], peers=[[1], [0]])
    shares = []
    for number in range(UPDATES):
        trainer.update.start_round(number)
        proposal = trainer.writer.propose(seen, state.previous_AD, generators)
        is_paid = [[bool(PAID & {*find_topics(x)}) for x in row] for row in proposal.group_logics]
        reward_AG = torch.tensor(is_paid).float()
        trainer.update.apply(proposal, reward_AG, number)
        shares.append(float(reward_AG.mean()))
    return float(np.mean(shares[4:]) - np.mean(shares[:2]))


def test_a_rewarded_logic_becomes_likelier():
    assert _measure_rise(2e-2, 0.0) > 0.15


@pytest.mark.parametrize(("policy_lr", "lambda_div"), [(1e-5, 0.0), (2e-2, 0.1)])
def test_the_printed_settings_do_not_learn(policy_lr, lambda_div):
    assert _measure_rise(policy_lr, lambda_div) < 0.15
