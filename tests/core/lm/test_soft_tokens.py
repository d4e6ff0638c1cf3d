"""Soft tokens stand in a prompt like tokens, and a forecast is read at its last tokens."""

import pytest
import torch

from compevo_core.config_sections import PopulationConfig
from compevo_core.lm.adapter_routing import FORECAST
from compevo_core.lm.packing import PackedPrompts, PromptGroup
from compevo_core.lm.population import Population
from tests.support.tiny_backbone import CONFIG, build_backbone, build_gemma, build_population

WORDS = [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]  # the soft tokens of each agent, as ids
S = 4


def _prompts(population: Population, *, soft: bool) -> PackedPrompts:
    """Return a shared prefix, then two suffixes, with the words of WORDS soft or as they are."""

    def token(agent: int, row: int) -> int:
        return population.soft_token_id(row) if soft else WORDS[agent][row]

    return population.pack(
        [
            [PromptGroup([3, token(i, 0), 4], [[token(i, 1), token(i, 2)], [token(i, 3), 20]])]
            for i in range(3)
        ]
    )


def _table(population: Population) -> torch.Tensor:
    return population.embed(torch.tensor(WORDS)).detach()


@pytest.mark.parametrize("build", [build_backbone, build_gemma])
def test_soft_tokens_that_equal_embeddings_give_the_states_of_the_words(build) -> None:
    population = Population(build(), CONFIG, torch.Generator().manual_seed(0))
    packed = _prompts(population, soft=True)

    embeds = population.embed(packed.ids_AL, _table(population))
    with torch.no_grad():
        soft = population.hidden_states(packed, embeds)
        words = population.hidden_states(_prompts(population, soft=False))

    assert torch.equal(soft, words)


def test_every_agent_reads_its_own_row_of_the_table() -> None:
    population = build_population()
    table_ASD = torch.randn(3, S, population.backbone.hidden_size)
    ids = torch.tensor([[population.soft_token_id(2), 7, population.soft_token_id(0)]] * 3)

    embeds_ATD = population.embed(ids, table_ASD)

    assert torch.equal(embeds_ATD[:, [0, 2]], table_ASD[:, [2, 0]])
    assert torch.equal(embeds_ATD[:, 1], population.embed(ids[:, 1]))


def test_the_gradient_of_a_soft_token_is_the_sum_over_the_places_where_it_stands() -> None:
    population = build_population()
    table_ASD = torch.randn(3, S, population.backbone.hidden_size, requires_grad=True)
    ids = torch.tensor([[population.soft_token_id(1), 7, population.soft_token_id(1)]] * 3)
    weight_ATD = torch.randn(3, 3, population.backbone.hidden_size)

    (population.embed(ids, table_ASD) * weight_ATD).sum().backward()

    assert table_ASD.grad is not None
    assert torch.allclose(table_ASD.grad[:, 1], weight_ATD[:, 0] + weight_ATD[:, 2])
    assert not table_ASD.grad[:, [0, 2, 3]].any()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_shared_prefixes_give_soft_tokens_the_gradient_of_full_prompts(checkpointing: bool) -> None:
    population = build_population(checkpointing=checkpointing)
    shared = _prompts(population, soft=True)
    soft = population.soft_token_id
    full = population.pack(
        [[PromptGroup([3, soft(0), 4, *suffix]) for suffix in ([soft(1), soft(2)], [soft(3), 20])]]
        * 3
    )

    found = []
    for packed in (shared, full):
        table_ASD = _table(population).requires_grad_()
        with population.use_adapters(FORECAST):
            states = population.read_out(packed, population.embed(packed.ids_AL, table_ASD))
        found.append((states.detach(), torch.autograd.grad(states.square().sum(), table_ASD)[0]))

    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-4)
    assert float(found[0][1].abs().max()) > 0.01


def test_ids_that_name_nothing_are_refused() -> None:
    population = build_population()
    ids = torch.tensor([[5, population.soft_token_id(S)]] * 3)
    for table in (None, torch.zeros(3, S, population.backbone.hidden_size)):
        with pytest.raises(ValueError, match="soft"):
            population.embed(ids, table)


def test_the_last_tokens_of_every_prompt_are_read_in_their_order_across_its_prefix() -> None:
    population = build_population(PopulationConfig(agents=1, rank=4, alpha=8.0))
    packed = population.pack([[PromptGroup([5, 6, 7], [[8, 9], [], [10, 11, 12]])]])

    with torch.no_grad():
        states_ALD = population.hidden_states(packed)
        read_ARCD = population.read_out(packed, count=3)

    places = [[2, 3, 4], [0, 1, 2], [5, 6, 7]]
    expected = torch.stack([states_ALD[0, place] for place in places])
    assert torch.equal(read_ARCD[0], expected)
    assert torch.equal(population.last_token_states(packed), read_ARCD[:, :, -1])


@pytest.mark.parametrize("count", [0, 4])
def test_more_tokens_than_a_prompt_has_are_refused(count: int) -> None:
    population = build_population(PopulationConfig(agents=1, rank=4, alpha=8.0))
    packed = population.pack([[PromptGroup([5, 6, 7]), PromptGroup([5, 6, 7, 8])]])
    with pytest.raises(ValueError, match="shortest prompt has 3"):
        population.read_out(packed, count=count)
