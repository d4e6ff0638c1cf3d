"""The population engine is exact: against PEFT one adapter at a time, across prefixes, across agents."""

import pytest
import torch
from peft import PeftModel

from compevo_core.adapters import load_adapter, save_adapter
from compevo_core.backbone import Backbone, load_backbone
from compevo_core.config import BackboneConfig, PopulationConfig
from compevo_core.errors import CheckpointMismatch
from compevo_core.population import FORECAST, KINDS, LOGIC, Population, pad_rows

ROWS = [[5, 6, 7, 8], [9, 10], [11, 12, 13], [20, 21, 22, 23], [30, 31, 32], [40]]
CONFIG = PopulationConfig(agents=3, rank=4, alpha=8.0, dropout=0.0)


def _backbone(*, checkpointing: bool = False) -> Backbone:
    return load_backbone(BackboneConfig(spec="tiny-random", gradient_checkpointing=checkpointing), device="cpu")


def _population(config: PopulationConfig = CONFIG, *, checkpointing: bool = False) -> Population:
    population = Population(_backbone(checkpointing=checkpointing), config, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    for kind in KINDS:
        for parameter in population.parameters_of(kind):
            parameter.data.normal_(0, 0.1, generator=generator)
    return population


def _inputs(population: Population) -> tuple[torch.Tensor, torch.Tensor]:
    ids, mask = pad_rows(ROWS, 0, left=True, device=population.backbone.device)
    return population.embed(ids), mask


def test_without_adapters_it_is_the_frozen_backbone() -> None:
    population, plain = _population(), _backbone()
    ids, mask = pad_rows(ROWS, 0, left=True, device=plain.device)
    with population.using(None):
        ours = population.hidden(population.embed(ids), mask)[0]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    theirs = plain.decoder(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
    assert torch.equal(ours[mask.bool()], theirs[mask.bool()])


@pytest.mark.parametrize("kind", KINDS)
def test_every_agent_equals_its_saved_adapter_under_plain_peft(kind: str, tmp_path) -> None:
    population = _population()
    embeds, mask = _inputs(population)
    with population.using(kind):
        ours = population.hidden(embeds, mask)[0]
    for agent in range(3):
        save_adapter(population, agent, kind, tmp_path / str(agent))
        model = PeftModel.from_pretrained(_backbone().model, tmp_path / str(agent)).eval()
        rows = slice(2 * agent, 2 * agent + 2)
        positions = (mask[rows].cumsum(1) - 1).clamp(min=0)
        theirs = model.base_model.model.model(inputs_embeds=embeds[rows].detach(), attention_mask=mask[rows],
                                              position_ids=positions).last_hidden_state
        assert torch.allclose(ours[rows][mask[rows].bool()], theirs[mask[rows].bool()], atol=1e-5)


def test_a_population_starts_from_given_peft_adapters_and_refuses_another_rank(tmp_path) -> None:
    source, target = _population(), _population(CONFIG)
    save_adapter(source, 1, LOGIC, tmp_path)
    load_adapter(target, 2, LOGIC, tmp_path)
    for theirs, ours in zip(source.parameters_of(LOGIC), target.parameters_of(LOGIC), strict=True):
        assert torch.equal(theirs[1], ours[2])
    with pytest.raises(CheckpointMismatch, match="rank 4"):
        load_adapter(_population(PopulationConfig(agents=1, rank=8, alpha=8.0)), 0, LOGIC, tmp_path)


def test_an_update_of_one_agent_leaves_the_others_bit_equal() -> None:
    population = _population()
    embeds, mask = _inputs(population)
    with population.using(FORECAST):
        before = population.hidden(embeds, mask)[0].detach()
        population.hidden(embeds, mask)[0][2:4].sum().backward()
    torch.optim.AdamW(population.parameters_of(FORECAST), lr=0.1, weight_decay=0.0).step()
    with population.using(FORECAST):
        after = population.hidden(embeds, mask)[0]
    assert torch.equal(before[[0, 1, 4, 5]], after[[0, 1, 4, 5]])
    assert not torch.allclose(before[2:4], after[2:4])


def test_a_shared_prefix_gives_the_states_and_gradients_of_the_full_prompt() -> None:
    population = _population()
    shared = [[5, 6, 7], [9, 10], [11, 12, 13, 14]]
    rest = [[3, 4], [8], [3], [5, 6, 7], [9, 9], [4]]
    full = [shared[i // 2] + rest[i] for i in range(6)]
    parameters = population.parameters_of(LOGIC)
    with population.using(LOGIC):
        ids, mask = pad_rows(full, 0, left=True, device=population.backbone.device)
        whole = population.hidden(population.embed(ids), mask)[0][:, -1]
        expected = torch.autograd.grad(whole.square().sum(), parameters)
        ids, mask = pad_rows(shared, 0, left=True, device=population.backbone.device)
        prefix = population.read(population.embed(ids), mask).repeat(2)
        ids, mask = pad_rows(rest, 0, left=False, device=population.backbone.device)
        states = population.continue_from(prefix, ids, mask)[torch.arange(6), mask.sum(1) - 1]
        found = torch.autograd.grad(states.square().sum(), parameters)
    assert torch.allclose(whole, states, atol=1e-5)
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_recomputed_layers_give_the_same_gradients_with_dropout() -> None:
    gradients = []
    for checkpointing in (False, True):
        population = _population(checkpointing=checkpointing)
        embeds, mask = _inputs(population)
        torch.manual_seed(7)
        with population.using(FORECAST, dropout=0.3):
            population.hidden(embeds.detach(), mask)[0].square().sum().backward()
        gradients.append([p.grad for p in population.parameters_of(FORECAST)])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert torch.allclose(one, other, atol=1e-6)


def test_greedy_decoding_in_one_batch_equals_each_row_alone() -> None:
    population = _population()
    embeds, mask = _inputs(population)
    with population.using(LOGIC), torch.no_grad():
        together, kept = population.sample(population.read(embeds, mask), tokens=6, temperature=0.0, stop=[2])
    for row, prompt in enumerate(ROWS):
        ids, one = pad_rows([prompt], 0, left=True, device=population.backbone.device)
        agent = slice(row // 2, row // 2 + 1)
        with population.using(LOGIC, agents=agent), torch.no_grad():
            alone, _ = population.sample(population.read(population.embed(ids), one), tokens=6, temperature=0.0,
                                         stop=[2])
        assert together[row][kept[row].bool()].tolist() == alone[0].tolist()


def test_a_stop_token_ends_a_sample_and_what_follows_is_masked() -> None:
    population = _population()
    embeds, mask = _inputs(population)
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    with population.using(LOGIC):
        ids, kept = population.sample(population.read(embeds, mask), tokens=12, temperature=5.0,
                                      stop=list(range(3, 130)), generators=generators)
    ends = torch.isin(ids, torch.arange(3, 130)) & kept.bool()
    assert (ends.sum(1) <= 1).all()
    for row in range(len(ROWS)):
        if ends[row].any():
            assert kept[row, int(ends[row].nonzero()) + 1:].sum() == 0


def test_what_an_agent_samples_does_not_depend_on_which_others_are_in_the_batch() -> None:
    population = _population()
    embeds, mask = _inputs(population)

    def twice(agents: slice, generators: list[torch.Generator]) -> list[list[int]]:
        rows, out = slice(2 * agents.start, 2 * agents.stop), []
        with population.using(LOGIC, agents=agents), torch.no_grad():
            for _ in range(2):  # the second time tells whether the generators stood where they should
                ids, kept = population.sample(population.read(embeds[rows], mask[rows]), tokens=12, temperature=5.0,
                                              stop=list(range(3, 130)), generators=generators)
                out += [one[k.bool()].tolist() for one, k in zip(ids, kept, strict=True)]
        return out

    together = twice(slice(0, 3), [torch.Generator().manual_seed(seed) for seed in range(3)])
    for agent in range(3):
        alone = twice(slice(agent, agent + 1), [torch.Generator().manual_seed(agent)])
        assert alone == [together[row] for row in (2 * agent, 2 * agent + 1, 6 + 2 * agent, 7 + 2 * agent)]
    assert len({len(sample) for sample in together}) > 1  # agents end at different steps
