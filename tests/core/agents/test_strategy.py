"""Strategy execution: a logic retrieves the news an agent reads, and a group is read once."""

import torch

from compevo_core.agents.prompts import SEED_LOGICS
from tests.support.population import windows
from tests.support.rounds import build_round_trainer

VIEW = windows("train", 1).views()[0]


def test_every_logic_of_a_group_is_scored_by_the_forecast_it_alone_would_give() -> None:
    trainer, state, examples = build_round_trainer(backbone__context_length=1024)
    groups = [[logic, SEED_LOGICS[5 + agent]] for agent, logic in enumerate(state.logics)]
    together = trainer.executor.forecast_groups(groups, examples).values_AGBH
    assert together.shape == (3, 2, 2, 48)

    for member in range(2):
        logics = [group[member] for group in groups]
        alone = trainer.executor.forecast(logics, examples).values_ABH
        assert torch.allclose(together[:, member], alone, atol=1e-5)

    # The logics matter at all: two of a group do not forecast the same.
    assert not torch.allclose(together[:, 0], together[:, 1], atol=1e-5)
