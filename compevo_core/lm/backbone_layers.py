"""The blocks of a backbone: which of their layers get adapters, and a decoder of the first few.

What belongs here: what this package must know of a transformers decoder's build, and the refusal of
decoders that are built otherwise. What does not: the adapters (``lm.stacked_lora``), loading
(``lm.backbone``).
"""

import copy
from typing import Any

from torch import nn

from compevo_core.errors import ConfigError
from compevo_core.lm.architectures import LORA_TARGETS
from compevo_core.lm.backbone import Backbone


def find_adapter_targets(backbone: Backbone) -> list[tuple[int, str, nn.Linear]]:
    """List the layers that get adapters: number of the block, name in the model, layer.

    They are :data:`compevo_core.lm.architectures.LORA_TARGETS` of every block, in the model's own
    order.

    Raises:
        ConfigError: the backbone has adapters already, or its blocks are not made of these layers.
    """
    model = backbone.model
    # A second population on one model would find no plain layer, and train nothing.
    if any("lora_" in name for name, _ in model.named_parameters()):
        raise ConfigError(
            f"backbone {backbone.name_or_path} has adapters already; load it anew with "
            "load_backbone for each population"
        )

    blocks = getattr(backbone.decoder, "layers", None)
    if not isinstance(blocks, nn.ModuleList) or not hasattr(backbone.decoder, "norm"):
        raise ConfigError(
            f"backbone {backbone.name_or_path} ({type(model).__name__}) is not a stack of layers "
            "with a norm at its end; name a model built like Llama, Mistral, Qwen2 or Gemma"
        )

    return [
        (number, f"{model.base_model_prefix}.layers.{number}.{name}", layer)
        for number, block in enumerate(blocks)
        for name, layer in _find_linear_layers(block, number, backbone.name_or_path)
    ]


def take_first_layers(decoder: Any, count: int) -> Any:  # noqa: ANN401 - transformers' own module
    """Return a decoder that reads through the first layers alone, without the norm at its end.

    A second shell around the same modules: the given decoder, its settings and its weights stay as
    they are, and gradients and recomputation reach the shared layers as usual.
    """
    shell = copy.copy(decoder)
    # copy.copy shares the dictionary of submodules, which is about to differ.
    shell._modules = dict(decoder._modules)
    shell.layers = decoder.layers[:count]
    shell.norm = nn.Identity()
    return shell


def _find_linear_layers(
    block: nn.Module, number: int, name_or_path: str
) -> list[tuple[str, nn.Linear]]:
    """Find the targets of one block: each of them once, and no other matrix beside them."""
    found = [
        (name, module)
        for name, module in block.named_modules()
        if name.rpartition(".")[2] in LORA_TARGETS and isinstance(module, nn.Linear)
    ]

    targets = [name.rpartition(".")[2] for name, _ in found]
    matrices = {name for name, parameter in block.named_parameters() if parameter.dim() > 1}
    # Fused projections lack targets; experts are matrices beside them. Both would train in part.
    others = matrices - {f"{name}.weight" for name, _ in found}
    if sorted(targets) != sorted(LORA_TARGETS) or others:
        missing = [target for target in LORA_TARGETS if target not in targets]
        raise ConfigError(
            f"backbone {name_or_path}: layer {number} has not just the linear layers "
            f"{', '.join(LORA_TARGETS)} (missing: {', '.join(missing) or 'none'}; others: "
            f"{', '.join(sorted(others)) or 'none'}), and adapters would cover a part of it; name "
            "a model built like Llama, Mistral, Qwen2 or Gemma"
        )
    return found
