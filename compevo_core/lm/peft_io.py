"""Agents' adapters as standard PEFT folders, in and out.

What belongs here: the translation between stacked tensors and ``PeftModel`` files. What does not:
training, checkpoints (``training.checkpoint``).

A folder holds ``adapter_config.json`` and ``adapter_model.safetensors``, and loads with plain
``PeftModel.from_pretrained`` to the same outputs.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from compevo_core.errors import CheckpointMismatch
from compevo_core.lm.adapters import LOGIC
from compevo_core.lm.architectures import LORA_TARGETS
from compevo_core.lm.population import Population

TENSOR_FILE = "adapter_model.safetensors"
"""File of a folder that holds the adapter's weights."""
_PREFIX = "base_model.model."  # under which PEFT saves the layers of the model that it wraps


def save_adapter(population: Population, agent: int, kind: str, folder: Path) -> None:
    """Write one adapter of one of the population's local agents as a PEFT LoRA folder."""
    from peft import LoraConfig

    folder.mkdir(parents=True, exist_ok=True)

    config = LoraConfig(
        r=population.config.rank,
        lora_alpha=population.config.alpha,
        bias="none",
        lora_dropout=population.config.dropout,
        target_modules=list(LORA_TARGETS),
        task_type="CAUSAL_LM",
        base_model_name_or_path=population.backbone.name_or_path,
        inference_mode=True,
    )
    # Only where PEFT would otherwise look for adapters that are not there.
    if kind != LOGIC and population.forecast_layers:
        config.layers_to_transform = list(range(population.forecast_layers))
    # PEFT keeps a set, whose order would change the file from run to run.
    config.target_modules = sorted(LORA_TARGETS)
    config.save_pretrained(folder)

    tensors = {
        # safetensors takes contiguous tensors only.
        name: parameter.detach().cpu().contiguous()
        for name, parameter in _named_tensors(population, agent, kind)
    }
    save_file(tensors, folder / TENSOR_FILE, metadata={"format": "pt"})


@torch.no_grad()
def load_adapter(population: Population, agent: int, kind: str, folder: Path) -> None:
    """Set one agent's adapter of one kind from a PEFT LoRA folder.

    CheckpointMismatch if the folder's rank, scaling, layers or kind of update are not this
    population's.
    """
    from peft import LoraConfig

    # The folder must hold the plain LoRA update that the population computes.
    config = LoraConfig.from_pretrained(folder)
    rank, alpha = population.config.rank, population.config.alpha
    # Rank-stabilised LoRA scales by alpha / sqrt(r) in place of alpha / r.
    if (config.r, config.lora_alpha) != (rank, alpha) or config.use_rslora:
        raise CheckpointMismatch(
            f"{folder} has rank {config.r} and alpha {config.lora_alpha}, the population {rank} "
            f"and {alpha}; set population.rank and population.alpha to match"
        )
    if config.rank_pattern or config.alpha_pattern or config.use_dora:
        raise CheckpointMismatch(
            f"{folder} is not one plain LoRA update of equal rank and scale in every layer; "
            "train it without rank_pattern, alpha_pattern and use_dora"
        )

    tensors = load_file(folder / TENSOR_FILE)
    targets = dict(_named_tensors(population, agent, kind))
    # In either direction: a tensor too many would be ignored in silence.
    if differing := sorted(targets.keys() ^ tensors.keys()):
        raise CheckpointMismatch(
            f"{folder} and the backbone differ in {len(differing)} tensor(s), first {differing[0]}"
        )

    for name, target in targets.items():
        target.copy_(tensors[name])


def _named_tensors(population: Population, agent: int, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Yield PEFT's name and the stacked tensors' row of every tensor of one adapter."""
    row = population.local_agents.index(agent)
    for name, layer in population.layers.items():
        if kind not in layer.lora_a:
            continue
        yield f"{_PREFIX}{name}.lora_A.weight", layer.lora_a[kind][row]
        yield f"{_PREFIX}{name}.lora_B.weight", layer.lora_b[kind][row]
