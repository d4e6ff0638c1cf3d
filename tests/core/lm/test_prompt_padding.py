"""Prompts of different lengths in one batch: decoding sees the tokens of its own prompt alone."""

import torch

from compevo_core.lm.adapter_routing import LOGIC
from compevo_core.lm.packing import PromptGroup
from tests.support.tiny_backbone import build_population

PROMPTS = [[[5, 6, 7, 8, 9, 10, 11]], [[12, 13, 14]], [[15]]]


def test_the_cache_holds_as_many_tokens_of_each_prompt_as_it_has() -> None:
    population = build_population()
    packed = population.pack([[PromptGroup(row) for row in rows] for rows in PROMPTS])
    with population.use_adapters(LOGIC), torch.no_grad():
        cache = population.prefill(packed)
    assert cache.mask_NP.sum(1).tolist() == [7, 3, 1]
    assert [row.tolist() for row in cache.mask_NP[1:]] == [
        [True] * 3 + [False] * 4,
        [True] + [False] * 6,
    ]
