"""Frozen layers that several processes hold together: each its rows, products gathered.

What belongs here: which layers are split, loading them split, the product with a split weight. What
does not: the split of the agents (``compevo_core.distributed``), adapters (``lm.stacked_lora``).

Every process reads the same tokens for the same agents. It holds a slice of the rows of each weight
matrix of the blocks, multiplies by it, and gathers the columns of the others; in the backward pass
each multiplies its columns of the gradient by its rows, and the parts are summed. Embeddings, norms
and the vocabulary projection stay whole on each process. Splitting and exchange are torch's
DTensor; loading is transformers' tensor-parallel plan, which reads each process's rows from the
file and nothing else (decision 66).

Shapes: M tokens of an agent, A agents.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers.distributed import DistributedConfig

from compevo_core.config_sections import BackboneConfig
from compevo_core.errors import ConfigError
from compevo_core.lm.architectures import LORA_TARGETS

_BLOCKS = "model.layers.*"  # as transformers names the blocks of Llama, Mistral, Qwen2 and Gemma
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def require_processes(config: BackboneConfig) -> int:
    """Return how many processes share the backbone.

    Raises:
        ConfigError: there is one process alone, or the layers are to be random.
    """
    processes = dist.get_world_size() if dist.is_initialized() else 1
    if config.weights == "random":
        raise ConfigError(
            "the control backbone.weights = 'random' draws whole layers, which no process would "
            "hold: leave shard_backbone out"
        )
    if processes < 2:
        raise ConfigError(
            f"backbone {config.name_or_path} is to be split over processes, and there is one: "
            "start several (launcher torchrun with processes = 2, or a pod with 2 GPUs), or leave "
            "shard_backbone out"
        )
    return processes


def build_sharding_plan(processes: int) -> DistributedConfig:
    """Return what ``from_pretrained`` needs in order to load this process's rows alone."""
    plan = {
        f"{_BLOCKS}.{'self_attn' if target in _ATTENTION else 'mlp'}.{target}": (
            "colwise_gather_output"
        )
        for target in LORA_TARGETS
    }
    # Whole: a grammar picks the rows that it allows, and it may be tied to the embeddings.
    return DistributedConfig(tp_size=processes, tp_plan=plan | {"lm_head": "replicate"})


@torch.no_grad()
def split_loaded_layers(model: nn.Module, processes: int, device_type: str) -> None:
    """Split the layers of a model that was built in memory; the same model on every process."""
    mesh = init_device_mesh(device_type, (processes,))
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in LORA_TARGETS and isinstance(module, nn.Linear):
            rows = distribute_tensor(module.weight, mesh, [Shard(0)], src_data_rank=None)
            module.weight = nn.Parameter(rows, requires_grad=False)


def multiply_sharded(x: Tensor, weight: DTensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x W' + bias`` with a split weight; the whole product on every process.

    A weight that is split by rows gives columns of the product, which are gathered. A transposed
    one is split by columns and gives a part of every element, which are summed.

    Args:
        x: (A, M, in), equal on every process.
        weight: (out, in), split.
        bias: (out,), whole or split as the rows of the weight are.
    """
    mesh = weight.device_mesh
    replicated = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    if bias is not None and not isinstance(bias, DTensor):
        bias = DTensor.from_local(bias, mesh, [Replicate()], run_check=False)
    product: Any = nn.functional.linear(replicated, weight, bias)
    whole: Tensor = product.full_tensor()
    return whole
