"""Stacked LoRA adapters on frozen linear layers, which a forward pass uses, and their optimiser.

What belongs here: the size of adapters, the route of a forward pass, the layer, one step for all
adapters. What does not: which layers get adapters, and products (``lora.backbone``), adapters in
PEFT's format (``lora.population``).

Shapes: A adapters, M tokens of an adapter, r rank.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from compevo_core.errors import ConfigError
from compevo_core.lora.backbone import frozen_linear

NORM_FLOOR = 1e-6  # as in torch's clip_grad_norm_


@dataclasses.dataclass(frozen=True)
class LoraShape:
    """Number and size of the adapters of a kind, in PEFT's terms."""

    adapters: int
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0  # what saved folders state


class AdapterRoute(NamedTuple):
    """The adapters of one forward pass; without a kind it is the frozen backbone.

    Dropout, of an adapter's input, draws from torch's global generator.
    """

    kind: str | None = None
    rows: slice = slice(None)  # the adapters that the batch has prompts of
    dropout: float = 0.0


class AdapterRouter:
    """Holds the route of the block being read; all layers of a population share the router.

    A route comes with each call of a block, whose attention is the first to need it. So a block
    that is run again in a backward pass (gradient checkpointing) uses the adapters of its forward
    pass, and in a call that knows nothing of populations the backbone is frozen.
    """

    active = AdapterRoute()

    def take_route(self, _: nn.Module, __: object, arguments: Mapping[str, Any]) -> None:
        """Take the route from the arguments of a block's attention; runs before each call."""
        self.active = arguments.get("adapter_route", AdapterRoute())


class StackedLoraLinear(nn.Module):
    """A frozen linear layer plus the low-rank updates of every adapter.

    ``lora_a[kind]`` is (A, r, in), ``lora_b[kind]`` is (A, out, r); the output of adapter i is ``W
    x + (alpha / r) B_i A_i x``. Adapters are float32 even over a bfloat16 weight, for which their
    updates are too small; products run in the weight's type.

    All adapters are drawn and the ``local`` ones kept, so that each starts the same on any number
    of processes; ``kinds`` says which kinds the layer has, and the others are drawn all the same.
    """

    def __init__(
        self,
        base: nn.Linear,
        shape: LoraShape,
        local: range,
        router: AdapterRouter,
        generator: torch.Generator,
        kinds: Mapping[str, bool],
    ) -> None:
        super().__init__()
        self.base = base
        self.router = router
        self.scale = shape.alpha / shape.rank
        dtype = torch.promote_types(base.weight.dtype, torch.float32)
        self.lora_a = nn.ParameterDict()
        self.lora_b = nn.ParameterDict()

        bound = base.in_features**-0.5  # PEFT's start: kaiming uniform with a = sqrt(5)
        for kind, is_here in kinds.items():
            everyone = torch.empty(shape.adapters, shape.rank, base.in_features)
            everyone.uniform_(-bound, bound, generator=generator)
            if not is_here:
                continue

            mine = everyone[local.start : local.stop]
            self.lora_a[kind] = nn.Parameter(mine.to(dtype, copy=True))
            # Zero, so that every adapter starts as the frozen backbone (Hu et al., LoRA, 2022).
            zeros = torch.zeros(len(local), base.out_features, shape.rank, dtype=dtype)
            self.lora_b[kind] = nn.Parameter(zeros)

    def forward(self, x_AMD: Tensor) -> Tensor:
        """Map (A, M, in) to (A, M, out) with the active adapters, if any."""
        route = self.router.active
        if route.kind is None:
            return frozen_linear(x_AMD, self.base.weight, self.base.bias)

        if route.kind not in self.lora_a:
            raise ConfigError(
                f"a layer without {route.kind} adapters was read with them: only the first layers "
                "have them. Read only through those, read_out(layers=n), or give them to all"
            )
        a = self.lora_a[route.kind]
        b = self.lora_b[route.kind]
        if x_AMD.shape[0] != a.shape[0]:  # a slice of all adapters would copy their gradients
            a = a[route.rows]
            b = b[route.rows]

        # As in PEFT, dropout reaches only the adapter's input, not the frozen layer's.
        dropped = nn.functional.dropout(x_AMD, route.dropout) if route.dropout else None
        return frozen_linear(x_AMD, self.base.weight, self.base.bias, (a, b, self.scale), dropped)


class Optimizer(torch.optim.AdamW):
    """AdamW, which works element by element: a step moves each adapter as if it trained by itself.

    Parameters have the adapters along their first dimension.
    """

    def clip(self, max_norm: float) -> Tensor:
        """Scale each adapter's gradient down to ``max_norm``; return the norms before, (A,)."""
        gradients = [
            parameter.grad
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        squares_A = torch.stack([gradient.square().flatten(1).sum(1) for gradient in gradients])
        norm_A = squares_A.sum(0).sqrt()
        clip_each(gradients, norm_A, max_norm)
        return norm_A


def clip_each(gradients: Iterable[Tensor], norm_A: Tensor, max_norm: float) -> None:
    """Scale the gradients of each adapter, whose norm over all of them is given, in place."""
    scale_A = (max_norm / (norm_A + NORM_FLOOR)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale_A.to(gradient.dtype).view(-1, *[1] * (gradient.dim() - 1)))
