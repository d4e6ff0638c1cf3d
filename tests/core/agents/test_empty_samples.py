"""A sample that holds no logic: nothing is credited to its tokens."""

import pytest
import torch

from compevo_core.agents import logic_writer
from compevo_core.agents.observation import Observation
from tests.support.rounds import build_round_trainer


def test_the_tokens_of_a_sample_without_a_logic_are_no_part_of_the_policy_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, state, _ = build_round_trainer()
    read = []

    def every_other(text: str, fallback: str, *, was_cut: bool) -> tuple[str, bool]:
        read.append(text)
        return (fallback, True) if len(read) % 2 else ("Watch the heat.", False)

    monkeypatch.setattr(logic_writer, "clean_logic", every_other)
    observation = Observation(state.logics, [-0.1, -0.2, -0.3], [[1], [2], [0]])
    generators = [torch.Generator().manual_seed(5 + agent) for agent in range(3)]
    proposal = trainer.writer.propose(observation, state.previous_AD, generators)

    is_empty_AG = proposal.is_empty_AG
    assert is_empty_AG.any() and not is_empty_AG.all()
    assert not proposal.mask_AGT[is_empty_AG].any()
    assert proposal.mask_AGT[~is_empty_AG].any(dim=-1).all()
    assert proposal.n_empty == (len(read) + 1) // 2
    for agent, group in enumerate(proposal.group_logics):
        present = [logic == state.logics[agent] for logic in group]
        assert present == is_empty_AG[agent].tolist()
