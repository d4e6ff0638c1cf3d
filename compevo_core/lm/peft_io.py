"""Agents' adapters as standard PEFT folders, in and out.

What belongs here: the translation between stacked tensors and ``PeftModel`` files. What does not: training.
A folder holds ``adapter_config.json`` and ``adapter_model.safetensors`` and loads with plain
``PeftModel.from_pretrained`` to the same outputs.
"""

from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import Tensor

from compevo_core.errors import CheckpointMismatch
from compevo_core.lm.population import TARGETS, Population

_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."


def save_adapter(population: Population, agent: int, kind: str, folder: Path) -> None:
    """Writes the adapter of one kind of the population's agent number ``agent`` as a PEFT LoRA folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = LoraConfig(
        r=population.config.rank,
        lora_alpha=population.config.alpha,
        bias="none",
        lora_dropout=population.config.dropout,
        target_modules=list(TARGETS),
        task_type="CAUSAL_LM",
        base_model_name_or_path=population.backbone.spec,
        inference_mode=True,
    )
    config.target_modules = sorted(
        TARGETS
    )  # PEFT keeps a set, whose order would change the file from run to run
    config.save_pretrained(folder)
    tensors: dict[str, Tensor] = {}
    row = population.own.index(agent)
    for name, layer in population.layers.items():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = (
            layer.lora_a[kind][row].detach().cpu().contiguous()
        )
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = (
            layer.lora_b[kind][row].detach().cpu().contiguous()
        )
    save_file(tensors, folder / _FILE, metadata={"format": "pt"})


@torch.no_grad()
def load_adapter(population: Population, agent: int, kind: str, folder: Path) -> None:
    """Sets one agent's adapter of one kind from a PEFT LoRA folder of the same rank, scale and layers.

    Raises:
        CheckpointMismatch: the folder's rank, scaling, layers or kind of update are not this population's.
    """
    config = LoraConfig.from_pretrained(folder)
    if (config.r, config.lora_alpha) != (
        population.config.rank,
        population.config.alpha,
    ) or config.use_rslora:
        raise CheckpointMismatch(
            f"{folder} has rank {config.r} and alpha {config.lora_alpha}, the population {population.config.rank} "
            f"and {population.config.alpha}; set population.rank and population.alpha to match"
        )
    if config.rank_pattern or config.alpha_pattern or config.use_dora:
        raise CheckpointMismatch(
            f"{folder} is not one plain LoRA update of equal rank and scale in every layer; "
            "train it without rank_pattern, alpha_pattern and use_dora"
        )
    tensors = load_file(folder / _FILE)
    expected = {
        f"{_PREFIX}{name}.lora_{part}.weight" for name in population.layers for part in "AB"
    }
    if wrong := sorted(expected ^ tensors.keys()):
        raise CheckpointMismatch(
            f"{folder} and the backbone differ in {len(wrong)} layer(s), first {wrong[0]}"
        )
    row = population.own.index(agent)
    for name, layer in population.layers.items():
        layer.lora_a[kind][row].copy_(tensors[f"{_PREFIX}{name}.lora_A.weight"])
        layer.lora_b[kind][row].copy_(tensors[f"{_PREFIX}{name}.lora_B.weight"])
