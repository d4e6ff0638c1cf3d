"""Rows that have ended leave the batch, and the others write the same tokens without them."""

import pytest
import torch

from compevo_core.lm import sampling
from compevo_core.lm.adapter_routing import LOGIC
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population
from tests.support.tiny_backbone import build_population

AGENTS = 3
PROMPTS = 8
TOKENS = 14


def _write(
    population: Population, temperature: float, *, samples: int = 1
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Continue prompts of unlike lengths to unlike lengths; return the generators' states too."""
    generators = [torch.Generator().manual_seed(agent) for agent in range(AGENTS)]
    groups = [
        [PromptGroup([3, 4 + agent, *range(20, 21 + row)]) for row in range(PROMPTS)]
        for agent in range(AGENTS)
    ]
    with population.use_adapters(LOGIC):
        ids, mask = population.sample(
            population.prefill(population.pack(groups)),
            samples=samples,
            max_new_tokens=TOKENS,
            temperature=temperature,
            stop_tokens=[2],
            generators=generators,
            is_complete=lambda row: len(row) == 1 + sum(row[:2]) % TOKENS,
        )
    return ids, mask, [generator.get_state() for generator in generators]


@pytest.mark.parametrize(("temperature", "samples"), [(0.0, 1), (0.9, 1), (0.9, 2)])
def test_what_goes_on_writes_the_same_tokens_in_a_smaller_batch(
    temperature: float, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = build_population()
    widths: list[int] = []
    read = Population.read_tokens

    def read_tokens(self, ids_AL, positions_AL, attention):
        widths.append(ids_AL.shape[1])
        return read(self, ids_AL, positions_AL, attention)

    monkeypatch.setattr(Population, "read_tokens", read_tokens)
    ids, mask, states = _write(population, temperature, samples=samples)
    # Samples of one prompt share its keys, and are computed until the last one ends.
    assert widths[0] == PROMPTS * samples
    assert (widths[-1] < widths[0]) == (samples == 1)

    monkeypatch.setattr(sampling, "_MOST_KEPT", 0.0)  # nothing is left out
    widths.clear()
    all_ids, all_mask, all_states = _write(population, temperature, samples=samples)
    assert set(widths) == {PROMPTS * samples}
    assert len(set(mask.sum(-1).flatten().tolist())) > 3
    assert torch.equal(mask, all_mask)
    assert torch.equal(ids, all_ids)
    assert all(map(torch.equal, states, all_states))
