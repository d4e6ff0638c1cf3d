"""LoRA adapters of all agents on one frozen linear layer, applied in one pass.

What belongs here: the layer and its fused forward and backward pass. What does not: which layers
get adapters (``lm.population``), which adapters are active (``lm.adapter_routing``).
Paper: sections 5.1 and D.2 (each agent has one adapter for forecasts and one for logics, rank 16).

Shapes: A agents, M tokens of an agent, r rank.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compevo_core.config_sections import PopulationConfig
from compevo_core.errors import ConfigError
from compevo_core.lm.adapter_routing import KINDS, AdapterRouter
from compevo_core.lm.frozen_linear import frozen_linear, linear_without_grad


class StackedLoraLinear(nn.Module):
    """A frozen linear layer plus one low-rank update per agent and kind.

    ``lora_a[kind]`` is (A, r, in), ``lora_b[kind]`` is (A, out, r); agent i's output is
    ``W x + (alpha / r) B_i A_i x``, as PEFT computes it one adapter at a time. Adapters are float32
    whatever the type of the frozen weight; the frozen product runs in the weight's type, and the
    output has the type of the input.

    Args:
        base: the frozen layer.
        config: number of agents, rank and scale.
        local_agents: the agents whose adapters are kept.
        router: tells which adapters a forward pass uses.
        generator: draws the start of the adapters of all agents and kinds, kept or not.
        kinds: the kinds of adapters that this layer has.
    """

    def __init__(
        self,
        base: nn.Linear,
        config: PopulationConfig,
        local_agents: range,
        router: AdapterRouter,
        generator: torch.Generator,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        super().__init__()
        self.base = base
        self.router = router
        self.scale = config.alpha / config.rank
        self.lora_a = nn.ParameterDict()
        self.lora_b = nn.ParameterDict()

        bound = base.in_features**-0.5  # PEFT's start: kaiming uniform with a = sqrt(5)
        for kind in (*KINDS, *(kind for kind in kinds if kind not in KINDS)):
            # Drawn for all agents, then sliced: a run gives the same adapters on 1 and n processes.
            all_agents = torch.empty(config.agents, config.rank, base.in_features)
            all_agents.uniform_(-bound, bound, generator=generator)
            if kind not in kinds:
                continue  # drawn all the same: the logic adapters start alike at any depth

            self.lora_a[kind] = nn.Parameter(
                all_agents[local_agents.start : local_agents.stop].clone()
            )

            # Zero, so that every agent starts as the frozen backbone (Hu et al., LoRA, 2022).
            self.lora_b[kind] = nn.Parameter(
                torch.zeros(len(local_agents), base.out_features, config.rank)
            )

    def forward(self, x_AMD: Tensor) -> Tensor:
        """Map (A, M, in) to (A, M, out) with the active adapters, or with none of them.

        Raises:
            ConfigError: the layer has no adapters of the active kind.
        """
        route = self.router.active
        if route.kind is None:
            return frozen_linear(x_AMD, self.base.weight, self.base.bias)

        if route.kind not in self.lora_a:
            raise ConfigError(
                f"a layer without {route.kind} adapters was read with them: only the first layers "
                "have them. Read through those alone, read_out(layers=n), or set "
                "forecast.layers = 0"
            )
        a = self.lora_a[route.kind]
        b = self.lora_b[route.kind]
        if x_AMD.shape[0] != a.shape[0]:  # a slice of all agents would copy their gradients
            a = a[route.agents]
            b = b[route.agents]

        # As in PEFT, dropout reaches the adapter's input alone, not the frozen layer's.
        dropped = nn.functional.dropout(x_AMD, route.dropout) if route.dropout else None
        out: Tensor = _FrozenPlusLora.apply(
            x_AMD, dropped, self.base.weight, self.base.bias, a, b, self.scale
        )  # type: ignore[no-untyped-call]
        return out


class _FrozenPlusLora(torch.autograd.Function):
    """``x W' + bias + scale (d A') B'``, where d is x or x after dropout.

    Fused by hand: one pass over the output in place of three and one over the input's gradient in
    place of two. The frozen weight has no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        x: Tensor,
        dropped: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        scale: float,
    ) -> Tensor:
        """Compute the output; see the class."""
        # Adapters are float32: their updates are too small for bfloat16.
        lora_input = x if dropped is None else dropped
        low_rank = torch.bmm(lora_input.to(a.dtype), a.transpose(1, 2))

        out = linear_without_grad(x, weight, bias).to(a.dtype)
        out.baddbmm_(low_rank, b.transpose(1, 2), alpha=scale)

        ctx.save_for_backward(lora_input, low_rank, weight, a, b)
        ctx.scale = scale
        ctx.has_dropout = dropped is not None
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - autograd's context and tuple
        """Compute the gradients of x, of x after dropout, of A and of B; see the class."""
        lora_input, low_rank, weight, a, b = ctx.saved_tensors
        needs_x, _, _, _, needs_a, needs_b, _ = ctx.needs_input_grad
        grad_out = gradients[0].to(a.dtype)
        grad_low_rank = torch.bmm(grad_out, b).mul_(ctx.scale)

        grad_a = grad_b = None
        if needs_a:
            grad_a = torch.bmm(grad_low_rank.transpose(1, 2), lora_input.to(a.dtype))
        if needs_b:
            grad_b = torch.bmm(grad_out.transpose(1, 2), low_rank).mul_(ctx.scale)

        grad_x = grad_dropped = None
        if needs_x:
            grad_x = linear_without_grad(gradients[0], weight.t()).to(a.dtype)
            if ctx.has_dropout:
                # Autograd sends this part through the dropout mask before it reaches x.
                grad_dropped = torch.bmm(grad_low_rank, a).to(lora_input.dtype)
            else:
                grad_x.baddbmm_(grad_low_rank, a)
            grad_x = grad_x.to(lora_input.dtype)

        return grad_x, grad_dropped, None, None, grad_a, grad_b, None
