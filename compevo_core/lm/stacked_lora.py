"""LoRA adapters of all agents beside one frozen linear layer, applied in one pass.

What belongs here: the layer, its routing, its fused forward and backward. What does not: which layers get adapters
(``population``). Paper: section 5.1 and D.2 (per agent one adapter for forecasting and one for logic, rank 16).
Legend: A agents, M tokens of an agent, r rank.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from compevo_core.config import PopulationConfig
from compevo_core.lm.frozen_linear import frozen_linear, product

FORECAST, LOGIC = "forecast", "logic"
KINDS = (FORECAST, LOGIC)


@dataclasses.dataclass
class Route:
    """Which adapters the next forward uses; shared by all layers of one population."""

    kind: str | None = None
    agents: slice = dataclasses.field(default_factory=lambda: slice(None))
    dropout: float = 0.0


class StackedLoraLinear(nn.Module):
    """A frozen linear layer plus one low-rank update per agent and kind.

    ``lora_a[kind]`` is (I, r, in), ``lora_b[kind]`` is (I, out, r); agent i's output is
    ``W x + (alpha / r) B_i A_i x``, as PEFT computes it one adapter at a time. Adapters are float32 whatever the
    frozen weight is; the frozen product runs in the weight's type, and the output has the input's.
    A process that owns some of the agents keeps their slice of what is drawn for all.
    """

    def __init__(
        self,
        base: nn.Linear,
        config: PopulationConfig,
        own: range,
        route: Route,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.base, self.route, self.scale = base, route, config.alpha / config.rank
        self.lora_a, self.lora_b = nn.ParameterDict(), nn.ParameterDict()
        for kind in KINDS:
            start = torch.empty(config.agents, config.rank, base.in_features)
            bound = base.in_features**-0.5  # PEFT's start: kaiming uniform with a = sqrt(5)
            start.uniform_(-bound, bound, generator=generator)
            self.lora_a[kind] = nn.Parameter(start[own.start : own.stop].clone())
            self.lora_b[kind] = nn.Parameter(torch.zeros(len(own), base.out_features, config.rank))

    def forward(self, x_AMD: Tensor) -> Tensor:
        """Maps (A, M, in) to (A, M, out); with no kind set it is the frozen layer alone."""
        route, base = self.route, self.base
        if route.kind is None:
            return frozen_linear(x_AMD, base.weight, base.bias)
        a, b = self.lora_a[route.kind], self.lora_b[route.kind]
        if x_AMD.shape[0] != a.shape[0]:  # slicing all agents would copy their gradients
            a, b = a[route.agents], b[route.agents]
        dropped = nn.functional.dropout(x_AMD, route.dropout) if route.dropout else None
        out: Tensor = _FrozenPlusLora.apply(
            x_AMD, dropped, base.weight, base.bias, a, b, self.scale
        )  # type: ignore[no-untyped-call]
        return out


class _FrozenPlusLora(torch.autograd.Function):
    """``x W' + bias + scale (d A') B'`` with d = x or x after dropout; no gradient for the frozen weight.

    One pass over the output in place of three, and one over the input's gradient in place of two.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dropped: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        scale: float,
    ) -> Tensor:
        """See the class."""
        lora_x = (x if dropped is None else dropped).to(a.dtype)
        low = torch.bmm(lora_x, a.transpose(1, 2))
        out = product(x, weight, bias).to(a.dtype)
        out.baddbmm_(low, b.transpose(1, 2), alpha=scale)
        ctx.save_for_backward(x if dropped is None else dropped, low, weight, a, b)
        ctx.scale, ctx.separate = scale, dropped is not None
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """See the class."""
        source, low, weight, a, b = ctx.saved_tensors
        gradient = gradients[0].to(a.dtype)
        low_gradient = torch.bmm(gradient, b).mul_(ctx.scale)
        a_gradient = (
            torch.bmm(low_gradient.transpose(1, 2), source.to(a.dtype))
            if ctx.needs_input_grad[4]
            else None
        )
        b_gradient = (
            torch.bmm(gradient.transpose(1, 2), low).mul_(ctx.scale)
            if ctx.needs_input_grad[5]
            else None
        )
        x_gradient = dropped_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = product(gradients[0], weight.t()).to(a.dtype)
            if ctx.separate:
                dropped_gradient = torch.bmm(low_gradient, a).to(source.dtype)
            else:
                x_gradient.baddbmm_(low_gradient, a)
            x_gradient = x_gradient.to(source.dtype)
        return x_gradient, dropped_gradient, None, None, a_gradient, b_gradient, None
