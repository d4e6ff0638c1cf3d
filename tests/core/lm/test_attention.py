"""Attention over packed prompts: segments of one shape in one call, as they would alone."""

import pytest
import torch

from compevo_core.lm import attention as segment_batches
from compevo_core.lm.adapters import FORECAST, LOGIC
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population
from tests.support.tiny_backbone import CONFIG, build_backbone, build_gemma, build_population

# Rows of unlike length; (tokens, tokens of the parent) of some segments repeat between agents.
GROUPS = [
    [PromptGroup([5, 6, 7], [[8, 9], [10, 11], [12]]), PromptGroup([13, 14])],
    [PromptGroup([15, 16, 17], [[18, 19], [20], [21, 22, 23]]), PromptGroup([24, 25])],
    [PromptGroup([26, 27], [[28, 29], [30, 31]]), PromptGroup([32]), PromptGroup([33, 34, 35])],
]


def _pack(population):
    return population.pack(GROUPS)


def _whole_prompts(population):
    """Each agent's prompts one by one, prefix and suffix in one piece."""
    rows = [
        [[*group.prefix, *suffix] for group in agent for suffix in group.suffixes or [[]]]
        for agent in GROUPS
    ]
    return [population.pack([[PromptGroup(row[n])] for row in rows]) for n in range(4)]


def test_one_call_a_shape_and_layer(monkeypatch):
    population, calls = build_population(), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def count(*args, **settings):
        calls.append(args[0].shape)
        return attend(*args, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
    population.hidden_states(_pack(population))
    assert len(calls) == 2 * 7


@pytest.mark.parametrize("keys", [1, 8, 1 << 14])
@pytest.mark.parametrize("build", [build_backbone, build_gemma])
def test_states_are_those_of_prompts_read_one_by_one_however_batches_are_cut(
    build, keys, monkeypatch
):
    monkeypatch.setattr(segment_batches, "_KEYS_PER_BATCH", keys)
    population = Population(build(), CONFIG, torch.Generator().manual_seed(0))
    with torch.no_grad():
        together = population.last_token_states(_pack(population))
        alone = [
            population.last_token_states(packed)[:, 0] for packed in _whole_prompts(population)
        ]
    assert torch.allclose(together, torch.stack(alone, 1), atol=1e-5)


def test_padding_behind_a_shorter_row_reaches_no_state_and_no_gradient():
    population = build_population()
    packed = _pack(population)
    embeds_ALD = population.embed(packed.ids_AL)
    lengths = [row[-1].end for row in packed.segments]
    assert len(set(lengths)) > 1  # some rows are padded

    noisy_ALD = embeds_ALD.clone()
    for agent, length in enumerate(lengths):
        noisy_ALD[agent, length:] = 100.0
    noisy_ALD.requires_grad_()
    with population.use_adapters(FORECAST):
        clean = population.read_out(packed, embeds_ALD)
        noisy = population.read_out(packed, noisy_ALD)
    assert torch.equal(clean, noisy)

    noisy.square().sum().backward()
    for agent, length in enumerate(lengths):
        assert not noisy_ALD.grad[agent, length:].any()


PROMPTS = [[[5, 6, 7, 8, 9, 10, 11]], [[12, 13, 14]], [[15]]]


def test_the_cache_holds_as_many_tokens_of_each_prompt_as_it_has():
    population = build_population()
    packed = population.pack([[PromptGroup(row) for row in rows] for rows in PROMPTS])
    with population.use_adapters(LOGIC), torch.no_grad():
        cache = population.prefill(packed)
    assert cache.mask_NP.sum(1).tolist() == [7, 3, 1]
    assert [row.tolist() for row in cache.mask_NP[1:]] == [
        [True] * 3 + [False] * 4,
        [True] + [False] * 6,
    ]
