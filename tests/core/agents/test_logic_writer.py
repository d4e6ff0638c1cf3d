"""Candidates, the soft prompt's place and log-probabilities, each against one plain forward."""

import pytest
import torch

from compevo_core.agents.logic_writer import LogicWriter, Observation, Proposal
from compevo_core.lm.adapter_routing import LOGIC
from compevo_core.lm.packing import PromptGroup
from tests.support.rounds import build_round_trainer


def _generators() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(5 + agent) for agent in range(3)]


@pytest.fixture(scope="module")
def written() -> tuple[LogicWriter, Proposal]:
    trainer, state, _ = build_round_trainer(backbone__context_length=1024)
    # Soft prompts far from the neutral one and from each other, so that a mix-up shows.
    generator = torch.Generator().manual_seed(4)
    trainer.model.fusion.projection.weight.data.normal_(0, 0.3, generator=generator)

    observation = Observation(state.logics, [-0.1, -0.2, -0.3], [[1], [2], [0]])
    return trainer.writer, trainer.writer.propose(observation, state.previous_AD, _generators())


def _sampled_ids(proposal: Proposal, row: int) -> torch.Tensor:
    """Token ids (1, T) of one sample, counted over all agents."""
    return proposal.ids_AGT.flatten(0, 1)[row][_sampled_mask(proposal, row)][None]


def _sampled_mask(proposal: Proposal, row: int) -> torch.Tensor:
    return proposal.mask_AGT.flatten(0, 1)[row].bool()


def _states_alone(
    writer: LogicWriter, kind: str | None, agent: int, embeds: torch.Tensor
) -> torch.Tensor:
    """Last hidden states (T, D) of one unpadded row under one agent."""
    with writer.population.use_adapters(kind, agents=slice(agent, agent + 1)):
        packed = writer.population.pack([[PromptGroup([0] * embeds.shape[1])]])
        return writer.population.hidden_states(packed, embeds)[0]


def test_a_candidate_is_the_last_state_at_its_final_token_under_the_agents_own_logic_adapter(
    written,
) -> None:
    writer, proposal = written
    for agent, text in enumerate(proposal.candidates):
        ids = torch.tensor([writer._tokenize(text)])
        state = _states_alone(writer, LOGIC, agent, writer.population.embed(ids))[-1]
        assert torch.allclose(proposal.candidate_AD[agent], state, atol=1e-5)

    assert proposal.candidate_AD.requires_grad


def _expected_logp(
    writer: LogicWriter, proposal: Proposal, row: int, kind: str | None, soft: torch.Tensor
) -> torch.Tensor:
    """Read soft prompt, instruction and sample as one row without padding, at T_gen."""
    agent = row // writer.config.grpo.group_size
    embed = writer.population.embed
    prompt = torch.tensor([proposal.prompt_ids[agent]])
    sample = _sampled_ids(proposal, row)

    embeds = torch.cat([soft[None, None], embed(prompt), embed(sample)], 1)
    states = _states_alone(writer, kind, agent, embeds)[-sample.shape[1] - 1 : -1]
    logits = writer.population.logits(states) / writer.config.evolution.temperature
    return torch.log_softmax(logits, -1).gather(1, sample[0][:, None]).squeeze(1)


def test_log_probabilities_are_those_of_the_sample_behind_soft_prompt_and_instruction_at_t_gen(
    written,
) -> None:
    writer, proposal = written
    size = writer.config.grpo.group_size
    logp_AGT = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)

    for row in range(3 * size):
        agent = row // size
        expected = _expected_logp(writer, proposal, row, LOGIC, proposal.soft_prompt_AD[agent])
        measured = logp_AGT[agent, row % size][_sampled_mask(proposal, row)]
        assert torch.allclose(measured, expected, atol=1e-4)


def test_some_agents_are_scored_under_their_own_adapters(written) -> None:
    writer, proposal = written
    together = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)
    alone = writer.logp(proposal, slice(1, 2), proposal.soft_prompt_AD)
    assert torch.allclose(alone[0], together[1], atol=1e-4)


def test_the_reference_is_the_frozen_backbone_behind_the_neutral_soft_prompt(written) -> None:
    writer, proposal = written
    size = writer.config.grpo.group_size
    reference_AGT = writer.reference_logp(proposal)
    assert not reference_AGT.requires_grad

    for row in range(0, 3 * size, 2):
        expected = _expected_logp(writer, proposal, row, None, writer.fusion.neutral_D)
        measured = reference_AGT[row // size, row % size][_sampled_mask(proposal, row)]
        assert torch.allclose(measured, expected, atol=1e-4)

    policy_AGT = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)
    assert not torch.allclose(reference_AGT, policy_AGT, atol=1e-2)


def test_the_simplified_update_has_neither_soft_prompt_nor_fusion() -> None:
    trainer, state, _ = build_round_trainer(evolution__update="simplified")
    observation = Observation(state.logics, [-0.1, -0.2, -0.3], [[1], [2], [0]])
    proposal = trainer.writer.propose(observation, state.previous_AD, _generators())
    assert proposal.soft_prompt_AD is None


def test_the_prompt_names_the_agents_own_reward_and_the_exposed_peers_only() -> None:
    trainer, state, _ = build_round_trainer(backbone__context_length=4096)
    observation = Observation(state.logics, [-0.1234, -0.2345, -0.3456], [[1], [2], [0]])
    prompt_ids = trainer.writer._write_prompts(observation)[0]
    text = trainer.writer.population.backbone.tokenizer.decode(prompt_ids)

    assert "-0.1234" in text
    assert f'Agent_1 (Reward: -0.2345): "{state.logics[1]}"' in text
    assert "-0.3456" not in text
    assert state.logics[2] not in text
