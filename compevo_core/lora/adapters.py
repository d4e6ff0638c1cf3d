"""Stacked LoRA adapters on frozen linear layers, which a forward pass uses, and their optimiser.

What belongs here: the size of adapters, the active route, the layer with its fused forward and
backward pass, one step for all adapters. What does not: which layers get adapters
(``lora.backbone``), adapters in PEFT's format (``lora.population``).

Autograd keeps the adapters that a forward pass used. Gradient checkpointing runs a layer again in
the backward pass, when another route may be active, so :meth:`AdapterRouter.checkpoint_contexts`
binds the route of the forward pass to the recomputation.

Shapes: A adapters, M tokens of an adapter, r rank.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from compevo_core.errors import ConfigError
from compevo_core.lora.backbone import frozen_linear, linear_without_grad, product_type

_NO_BACKWARD = -1  # what torch answers outside a backward pass
NORM_FLOOR = 1e-6  # as in torch's clip_grad_norm_


@dataclasses.dataclass(frozen=True)
class LoraShape:
    """Number and size of the adapters of a kind, in PEFT's terms."""

    adapters: int
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0  # what saved folders state


@dataclasses.dataclass(frozen=True)
class AdapterRoute:
    """The adapters of one forward pass; without a kind it is the frozen backbone.

    Dropout, of an adapter's input, draws from torch's global generator.
    """

    kind: str | None = None
    rows: slice = dataclasses.field(default_factory=lambda: slice(None))  # whose the batch's are
    dropout: float = 0.0


class AdapterRouter:
    """Holds the active route of one population; its layers share the router."""

    def __init__(self, route: AdapterRoute | None = None) -> None:
        # Without a route the backbone is frozen: no adapter is ever active by accident. With each
        # route is the backward pass in which it was activated.
        self._stack = [(route or AdapterRoute(), _NO_BACKWARD)]

    @property
    def active(self) -> AdapterRoute:
        """The route that a layer uses now.

        RuntimeError if a layer is recomputed in a backward pass and its route is not known.
        """
        route, backward_pass = self._stack[-1]
        # In a backward pass a route from outside it belongs to another forward pass.
        if _find_backward_pass() != backward_pass:
            raise RuntimeError(
                "a layer with adapters is recomputed in a backward pass without the route of its "
                "forward pass. Set backbone.gradient_checkpointing and let Population enable "
                "checkpointing, rather than enabling it on the model"
            )
        return route

    def use(self, route: AdapterRoute) -> contextlib.AbstractContextManager[None]:
        """Activate a route within a ``with`` block."""
        return _ActiveRoute(self._stack, route)

    def checkpoint_contexts(
        self,
    ) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
        """Return the contexts of a checkpointed layer's forward pass and of its recomputation."""
        # The forward pass runs under the active route already; the recomputation gets it back.
        return contextlib.nullcontext(), self.use(self._stack[-1][0])


class _ActiveRoute(contextlib.AbstractContextManager[None]):
    """Put a route on top of a router's within a block.

    A class, since a generator's context is entered once only: a graph that is kept
    (``retain_graph``) recomputes its layers in each of its backward passes.
    """

    def __init__(self, stack: list[tuple[AdapterRoute, int]], route: AdapterRoute) -> None:
        self._stack, self._route = stack, route

    def __enter__(self) -> None:
        self._stack.append((self._route, _find_backward_pass()))

    def __exit__(self, *error: object) -> None:
        self._stack.pop()


def _find_backward_pass() -> int:
    """Return the number of the backward pass that runs; torch's own checkpointing asks the same."""
    return int(torch._C._current_graph_task_id())


class StackedLoraLinear(nn.Module):
    """A frozen linear layer plus the low-rank updates of every adapter.

    ``lora_a[kind]`` is (A, r, in), ``lora_b[kind]`` is (A, out, r); the output of adapter i is ``W
    x + (alpha / r) B_i A_i x``. Adapters are float32 even over a bfloat16 weight, for which their
    updates are too small; products run in the weight's type (:func:`product_type`).

    All adapters are drawn and ``local`` ones kept, so that each starts alike on one and n
    processes; ``kinds`` says which kinds the layer has, and the others are drawn all the same.
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
        # float32 or wider.
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
                "have them. Read only through those, read_out(layers=n), or give them to all: "
                "forecast.layers = 0"
            )
        a = self.lora_a[route.kind]
        b = self.lora_b[route.kind]
        if x_AMD.shape[0] != a.shape[0]:  # a slice of all adapters would copy their gradients
            a = a[route.rows]
            b = b[route.rows]

        # As in PEFT, dropout reaches only the adapter's input, not the frozen layer's.
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
        dtype = product_type(weight)
        rounded = x.to(dtype)
        lora_input = rounded if dropped is None else dropped.to(dtype)
        low_rank = torch.bmm(lora_input, a.to(dtype).transpose(1, 2))

        out = linear_without_grad(rounded, weight, bias).to(dtype)
        out.baddbmm_(low_rank, b.to(dtype).transpose(1, 2), alpha=scale)

        ctx.save_for_backward(lora_input, low_rank, weight, a, b)
        ctx.scale = scale
        ctx.dtype = x.dtype
        ctx.has_dropout = dropped is not None
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - autograd's context and tuple
        """Compute the gradients of x, of x after dropout, of A and of B; see the class."""
        lora_input, low_rank, weight, a, b = ctx.saved_tensors
        needs_x, _, _, _, needs_a, needs_b, _ = ctx.needs_input_grad
        dtype = lora_input.dtype
        grad_out = gradients[0].to(dtype)
        grad_low_rank = torch.bmm(grad_out, b.to(dtype)).mul_(ctx.scale)

        grad_a = grad_b = None
        if needs_a:
            grad_a = torch.bmm(grad_low_rank.transpose(1, 2), lora_input).to(a.dtype)
        if needs_b:
            grad_b = torch.bmm(grad_out.transpose(1, 2), low_rank).mul_(ctx.scale).to(b.dtype)

        grad_x = grad_dropped = None
        if needs_x:
            grad_x = linear_without_grad(grad_out, weight.t()).to(dtype)
            if ctx.has_dropout:
                # Autograd sends this part through the dropout mask before it reaches x.
                grad_dropped = torch.bmm(grad_low_rank, a.to(dtype)).to(ctx.dtype)
            else:
                grad_x.baddbmm_(grad_low_rank, a.to(dtype))
            grad_x = grad_x.to(ctx.dtype)

        return grad_x, grad_dropped, None, None, grad_a, grad_b, None


class Optimizer(torch.optim.AdamW):
    """AdamW, which works number by number: one step moves every adapter as if it trained by itself.

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
