"""One process of several that share the layers of a backbone: what a population makes of it.

    python weight_worker.py '{"folder": ..., "out": ...}'

It needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and writes ``out.rank<n>``.
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import load_backbone
from compevo_core.lora import LoraShape, PromptGroup, SamplingSettings
from compevo_core.lora.population import DEFAULT, Population
from compevo_core.runtime.distributed import AgentShards, process_group

PROMPTS = [[PromptGroup([5, 6, 7], [[9, 10], [11]])], [PromptGroup([12, 13], [[14], [15]])]]


def measure(config, *, shard):
    """Return states, gradients, samples and the frozen values that this process holds."""
    backbone = load_backbone(config, device="cpu", shard=shard)
    generator = torch.Generator().manual_seed(0)
    population = Population(backbone, LoraShape(adapters=2, rank=4), generator)
    for parameter in population.adapter_parameters(DEFAULT):
        torch.nn.init.normal_(parameter, std=0.1, generator=generator)

    packed = population.pack(PROMPTS)
    with population.use_adapters():
        states = population.hidden_states(packed)
        # Not their squares: those of normalised states have one sum, and a gradient of roundings.
        direction = torch.randn(states.shape, generator=generator)
        (states * direction).sum().backward()
        cache = population.prefill(packed)
        generators = [torch.Generator().manual_seed(agent) for agent in range(2)]
        settings = SamplingSettings(
            max_new_tokens=3, temperature=1.0, stop_tokens=[2], generators=generators
        )
        ids, _ = population.sample(cache, settings)

    adapters = population.adapter_parameters(DEFAULT)
    held = [
        parameter.to_local() if isinstance(parameter, DTensor) else parameter
        for name, parameter in backbone.model.named_parameters()
        if name.endswith(".base.weight")
    ]
    return {
        "states": states.detach(),
        "ids": ids,
        "held": torch.tensor([value.numel() for value in held]),
        **{f"gradient_{number:02d}": each.grad for number, each in enumerate(adapters)},
    }


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = BackboneConfig(
        name_or_path=job["folder"], gradient_checkpointing=job.get("checkpointing", False)
    )
    with process_group(rank, processes, 0):
        found = measure(config, shard=True)
        # As on GPUs, whose sums differ in their last bits from process to process.
        found["drifted"] = torch.full((2,), 1.0 + rank / 1024)
        shards = AgentShards.from_process_group(2, splits_agents=False)
        shards.unify_gradients([found["drifted"]])
        save_file(found, f"{job['out']}.rank{rank}")
