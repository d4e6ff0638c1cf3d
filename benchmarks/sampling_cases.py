"""Seconds of logics with slots: forced tokens read in runs, against a pass for every token.

What belongs here: the case ``sampling``. What does not: the other way (``dense_sampling``), whole
rounds (``cases``, ``preset_cases``).
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.dense_sampling import sample_every_token
from benchmarks.measuring import Result, TokenCounter, build_result, time_call
from benchmarks.world import World, build_config
from compevo_core.agents.logic_writer import fit_logic_prompt, seed_agent_generators
from compevo_core.agents.logics import build_slots
from compevo_core.agents.prompts import list_stop_tokens
from compevo_core.lm.adapters import LOGIC
from compevo_core.lm.grammar import SlotGrammar
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.sampling import SamplingSettings, sample_under_grammar
from compevo_core.runtime.process_memory import peak_memory_gigabytes

ORDINARY_WAY = "a pass and all logits for every token"

_SAMPLES = 4
_ENTITIES = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")


@torch.no_grad()
def measure_sampling(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure four logics with slots for each agent, the prompts read before.

    Both ways take turns, with other draws in each repeat.

    Raises:
        ArithmeticError: they wrote other tokens.
    """
    world = World(build_config(agents, quick=quick, dtype="float32"), 1)
    counter = TokenCounter(world.model.backbone)
    population = world.model.population
    tokenizer = world.model.backbone.tokenizer
    stop_tokens = list_stop_tokens(tokenizer)
    grammar = SlotGrammar(build_slots(_ENTITIES), tokenizer, stop_tokens)
    prompts = [
        fit_logic_prompt(world.observe(), agent, world.config, tokenizer)[0]
        for agent in range(agents)
    ]

    def sample(way: Callable[..., Any], seed: int) -> tuple[float, tuple[Tensor, Tensor]]:
        device = world.model.backbone.device
        settings = SamplingSettings(
            samples=_SAMPLES,
            max_new_tokens=grammar.max_tokens,
            temperature=world.config.evolution.temperature,
            stop_tokens=stop_tokens,
            pad_token=tokenizer.pad_token_id,
            generators=seed_agent_generators(seed, range(agents), device),
        )
        counter.take()
        return time_call(lambda: way(population, cache, grammar, settings))

    ours, reference, tokens = [], [], []
    with population.use_adapters(LOGIC):
        cache = population.prefill(population.pack([[PromptGroup(ids)] for ids in prompts]))
        for repeat in range(repeats + 1):
            our_seconds, our_texts = sample(sample_under_grammar, repeat)
            tokens.append(counter.take())
            their_seconds, their_texts = sample(sample_every_token, repeat)
            if not all(torch.equal(*pair) for pair in zip(our_texts, their_texts, strict=True)):
                raise ArithmeticError("both ways of sampling write other tokens: one is wrong")
            ours.append(our_seconds)
            reference.append(their_seconds)

    # The first repeat warms up.
    row = build_result(
        "sampling",
        world,
        ours[1:],
        reference[1:],
        peak_memory_gigabytes(),
        other_way=ORDINARY_WAY,
        tokens=round(statistics.median(tokens[1:])),
    )
    return [row]
