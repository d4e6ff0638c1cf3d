"""Writing a logic: candidate states, the soft prompt's place, and log-probabilities, each against one plain forward."""

import pytest
import torch

from compevo_core.agents.logic_writer import LogicWriter, Observation, Proposal
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import LOGIC
from tests.support.rounds import round_player


def _generators() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(5 + agent) for agent in range(3)]


@pytest.fixture(scope="module")
def written() -> tuple[LogicWriter, Proposal]:
    player, state, _ = round_player(backbone__context_tokens=1024)
    generator = torch.Generator().manual_seed(4)
    player.learner.fusion.projection.weight.data.normal_(0, 0.3, generator=generator)
    seen = Observation(state.logics, [-0.1, -0.2, -0.3], [[1], [2], [0]])
    return player.writer, player.writer.propose(seen, state.previous_AD, _generators())


def _tokens(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return ids[mask.bool()][None]


def _alone(writer: LogicWriter, kind: str | None, agent: int, embeds: torch.Tensor) -> torch.Tensor:
    """Last hidden states (T, D) of one unpadded row under one agent."""
    with writer.population.using(kind, agents=slice(agent, agent + 1)):
        packed = writer.population.pack([[PromptGroup([0] * embeds.shape[1])]])
        return writer.population.states(packed, embeds)[0]


def test_a_candidate_is_the_last_state_at_its_final_token_under_the_agents_own_logic_adapter(
    written,
) -> None:
    writer, proposal = written
    for agent, text in enumerate(proposal.candidates):
        ids = torch.tensor([writer._tokens(text)])
        state = _alone(writer, LOGIC, agent, writer.population.embed(ids))[-1]
        assert torch.allclose(proposal.candidate_AD[agent], state, atol=1e-5)
    assert proposal.candidate_AD.requires_grad


def _expected_logp(
    writer: LogicWriter, proposal: Proposal, row: int, kind: str | None, soft: torch.Tensor
) -> torch.Tensor:
    """soft prompt + instruction + sample in one row without padding, read off at temperature T_gen."""
    agent = row // writer.config.grpo.group_size
    prompt = torch.tensor([proposal.prompts[agent]])
    sample = _tokens(proposal.ids_AGT.flatten(0, 1)[row], proposal.mask_AGT.flatten(0, 1)[row])
    embed = writer.population.embed
    states = _alone(
        writer, kind, agent, torch.cat([soft[None, None], embed(prompt), embed(sample)], 1)
    )
    logits = (
        writer.population.logits(states[-sample.shape[1] - 1 : -1])
        / writer.config.evolution.temperature
    )
    return torch.log_softmax(logits, -1).gather(1, sample[0][:, None]).squeeze(1)


def test_log_probabilities_are_those_of_the_soft_prompt_before_the_instruction_at_the_sampling_temperature(
    written,
) -> None:
    writer, proposal = written
    size = writer.config.grpo.group_size
    with writer.routing(slice(None)):
        found = writer.logp(proposal, slice(0, 3), proposal.soft_AD)
    for row in range(3 * size):
        agent, kept = row // size, proposal.mask_AGT.flatten(0, 1)[row].bool()
        expected = _expected_logp(writer, proposal, row, LOGIC, proposal.soft_AD[agent])
        assert torch.allclose(found[agent, row % size][kept], expected, atol=1e-4)


def test_the_reference_is_the_frozen_backbone_behind_the_neutral_soft_prompt(written) -> None:
    writer, proposal = written
    size = writer.config.grpo.group_size
    found = writer.reference_logp(proposal)
    assert not found.requires_grad
    for row in range(0, 3 * size, 2):
        agent, kept = row // size, proposal.mask_AGT.flatten(0, 1)[row].bool()
        expected = _expected_logp(writer, proposal, row, None, writer.fusion.neutral_D)
        assert torch.allclose(found[agent, row % size][kept], expected, atol=1e-4)
    with writer.routing(slice(None)):
        assert not torch.allclose(
            found, writer.logp(proposal, slice(0, 3), proposal.soft_AD), atol=1e-2
        )


def test_the_simplified_update_has_neither_soft_prompt_nor_fusion() -> None:
    player, state, _ = round_player(evolution__update="simplified")
    seen = Observation(state.logics, [-0.1, -0.2, -0.3], [[1], [2], [0]])
    proposal = player.writer.propose(seen, state.previous_AD, _generators())
    assert proposal.soft_AD is None


def test_the_prompt_names_the_agents_own_reward_and_the_exposed_peers_only() -> None:
    player, state, _ = round_player(backbone__context_tokens=4096)
    seen = Observation(state.logics, [-0.1234, -0.2345, -0.3456], [[1], [2], [0]])
    text = player.writer.population.backbone.tokenizer.decode(player.writer._prompts(seen)[0])
    assert "-0.1234" in text
    assert f'Agent_1 (Reward: -0.2345): "{state.logics[1]}"' in text
    assert "-0.3456" not in text
    assert state.logics[2] not in text
