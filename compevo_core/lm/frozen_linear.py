"""Products with frozen weights: the part of the work that all agents and adapters share.

What belongs here: ``x W' + bias`` with a weight that never learns, its gradient for ``x``, which kernel does it, and
log-probabilities under a frozen vocabulary. What does not: adapters (``stacked``), loading (``backbone``).
torch multiplies float32 matrices on a processor by MKL. oneDNN, which torch ships too and which its compiler's own code
calls, is faster (``benchmarks/results/engine.csv``, rows ``products``).
Legend: N tokens, D hidden, V vocabulary.
"""

import platform
from typing import Any

import torch
from torch import Tensor, nn

_ONEDNN = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and platform.machine().lower() in ("x86_64", "amd64")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)
_ROWS = 64  # tokens whose vocabulary scores are held at a time


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W' + bias`` for (..., in) and (out, in), in the weight's type and without gradient."""
    x = x.to(weight.dtype)
    if _ONEDNN and weight.device.type == "cpu" and weight.dtype == torch.float32:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    return nn.functional.linear(x, weight, None if bias is None else bias.to(weight.dtype))


def frozen_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W' + bias`` in the input's type, with a gradient for ``x`` alone."""
    out: Tensor = _Frozen.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def token_logp(
    states_ND: Tensor,
    ids_N: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None = None,
    *,
    temperature: float = 1.0,
    cap: float | None = None,
) -> Tensor:
    """Log-probability (N,) of each id after its state, with a gradient for the states alone.

    The scores ``s = W h`` (``cap tanh(s / cap)`` where there is a cap) go through ``softmax(s / temperature)``. They
    are never held for more than a few tokens: the slope of each log-probability in its state, (N, D), is found on the
    way, and the backward pass needs nothing else.
    """
    out: Tensor = _TokenLogp.apply(states_ND, ids_N, weight_VD, bias_V, temperature, cap)  # type: ignore[no-untyped-call]
    return out


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See :func:`frozen_linear`."""
        ctx.save_for_backward(weight)
        ctx.dtype = x.dtype
        return product(x, weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """See :func:`frozen_linear`."""
        (weight,) = ctx.saved_tensors
        return product(gradients[0], weight.t()).to(ctx.dtype), None, None


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_ND: Tensor,
        ids_N: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        temperature: float,
        cap: float | None,
    ) -> Tensor:
        """See :func:`token_logp`."""
        found, slopes = [], []
        for states, ids in zip(
            torch.split(states_ND, _ROWS), torch.split(ids_N[:, None], _ROWS), strict=True
        ):
            scores = product(states, weight_VD, bias_V).float()
            slack = None
            if cap is not None:
                scores.div_(cap).tanh_()
                slack = 1.0 - scores**2
                scores.mul_(cap)
            scores.div_(temperature)
            total = scores.logsumexp(-1, keepdim=True)
            found.append((scores.gather(-1, ids) - total).squeeze(-1))
            if ctx.needs_input_grad[0]:
                excess = (
                    scores.sub_(total)
                    .exp_()
                    .scatter_add_(-1, ids, scores.new_full(ids.shape, -1.0))
                )
                excess = excess if slack is None else excess.mul_(slack)
                slopes.append(product(excess, weight_VD.t()).float().div_(-temperature))
        if slopes:
            ctx.save_for_backward(torch.cat(slopes))
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """See :func:`token_logp`."""
        (slope_ND,) = ctx.saved_tensors
        return gradients[0][:, None] * slope_ND, None, None, None, None, None
