"""The frozen model that all adapters share: its layers, and products with their weights.

What belongs here: which linear layers get adapters, ``x W' + bias`` with a weight that never
learns, its gradient for ``x``, weights that processes hold together, log-probabilities under a
frozen vocabulary. What does not: adapters (``lora.adapters``), where a model comes from.

torch multiplies float32 matrices on a processor by MKL. oneDNN is 1.1 to 1.6 times faster on AMD's
processors, and slower on Intel's own (``benchmarks/results/engine.csv``, rows ``products``). Where
a processor lacks instructions for bfloat16, the same rounded numbers are multiplied in float32.

Shapes: N tokens, D hidden, V vocabulary.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from compevo_core.errors import ConfigError
from compevo_core.runtime.usage import lacks_bfloat16, read_cpu_facts

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of one block, all of which get adapters."""


@dataclasses.dataclass(frozen=True)
class Backbone:
    """A frozen causal language model of transformers, its tokenizer and what is known about it.

    A population multiplies by the frozen layers in ``matmul_dtype`` (None: their own).
    """

    model: Any
    tokenizer: Any = None
    name_or_path: str = ""
    knowledge_cutoff: str = "unknown"
    matmul_dtype: torch.dtype | None = None

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device(self.model.device)

    @property
    def pad_token_id(self) -> int:
        """Id of padding, which is masked: any token will do."""
        return 0 if self.tokenizer is None else int(self.tokenizer.pad_token_id)

    @property
    def hidden_size(self) -> int:
        """Width D of the hidden states."""
        return int(self.model.config.hidden_size)

    @property
    def decoder(self) -> Any:  # noqa: ANN401 - a module with transformers' own signature
        """The stack of layers without the vocabulary projection."""
        return getattr(self.model, self.model.base_model_prefix)


def find_adapter_targets(backbone: Backbone) -> list[tuple[int, str, nn.Linear]]:
    """List the layers that get adapters: number of the block, name in the model, layer.

    ConfigError if the backbone has adapters already, or its blocks are not made of these layers.
    """
    model = backbone.model
    # A second population on one model would find no plain layer, and train nothing.
    if any("lora_" in name for name, _ in model.named_parameters()):
        raise ConfigError(
            f"backbone {backbone.name_or_path} has adapters already; load a fresh one for each "
            "population"
        )

    advice = "name a model built like Llama, Mistral, Qwen2 or Gemma"
    blocks = getattr(backbone.decoder, "layers", None)
    if not isinstance(blocks, nn.ModuleList) or not hasattr(backbone.decoder, "norm"):
        raise ConfigError(
            f"backbone {backbone.name_or_path} ({type(model).__name__}) is not a stack of layers "
            f"with a norm at its end; {advice}"
        )

    found = []
    for number, block in enumerate(blocks):
        linear_layers = {
            name: module
            for name, module in block.named_modules()
            if name.rpartition(".")[2] in LORA_TARGETS and isinstance(module, nn.Linear)
        }
        targets = [name.rpartition(".")[2] for name in linear_layers]
        weights = {f"{name}.weight" for name in linear_layers}
        # Fused projections lack targets; experts are extra matrices. Both would train only in part.
        others = {name for name, p in block.named_parameters() if p.dim() > 1} - weights
        if sorted(targets) != sorted(LORA_TARGETS) or others:
            raise ConfigError(
                f"backbone {backbone.name_or_path}: layer {number} has not just the linear layers "
                f"{', '.join(LORA_TARGETS)}, each once (it has {', '.join(targets) or 'none'}; "
                f"others: {', '.join(sorted(others)) or 'none'}); {advice}"
            )
        stem = f"{model.base_model_prefix}.layers.{number}"
        found += [(number, f"{stem}.{name}", layer) for name, layer in linear_layers.items()]
    return found


# Only where it was measured, and by name, not by a trial: two runs on one machine must use the same
# kernel. Elsewhere torch chooses.
_USES_ONEDNN = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and "AuthenticAMD" in read_cpu_facts()
)
WIDENS_BFLOAT16 = lacks_bfloat16(read_cpu_facts())


def product_type(weight: Tensor) -> torch.dtype:
    """Return the type in which a product with a frozen weight is computed.

    Its adapters use the same type: float32 would cost more than it gains.
    """
    is_widened = WIDENS_BFLOAT16 and weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return torch.float32 if is_widened else weight.dtype


def widen(x: Tensor) -> Tensor:
    """Return float32, in which losses and states are held, or float64 as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def linear_without_grad(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x W' + bias`` for (..., in) and (out, in), in the weight's type, untracked."""
    x = x.to(weight.dtype)
    bias = None if bias is None else bias.to(weight.dtype)
    # A DTensor, whose module takes a second to import and is not needed to know it.
    if hasattr(weight, "device_mesh"):
        from torch.distributed.tensor.experimental import implicit_replication

        # Rows of a split weight give columns of the product, which are gathered; a transposed one
        # gives a part of every element, which are summed (decision 12-engine). The input is equal
        # on every process.
        with implicit_replication():
            product: Any = nn.functional.linear(x, weight, bias)
        whole: Tensor = product.full_tensor()
        return whole
    if product_type(weight) != weight.dtype:
        # A sum of products of rounded numbers, rounded at its end: what the instruction does.
        return linear_without_grad(x, weight.float(), bias).to(weight.dtype)
    if _USES_ONEDNN and weight.device.type == "cpu" and weight.dtype == torch.float32:
        # The operator is internal to torch: the test against torch's own product guards it.
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    return nn.functional.linear(x, weight, bias)


def frozen_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    update: tuple[Tensor, Tensor, float] | None = None,
    dropped: Tensor | None = None,
) -> Tensor:
    """Compute ``x W' + bias`` in the input's type, with a gradient only for ``x``.

    With an update, ``a`` (A, r, in), ``b`` (A, out, r) and ``scale``, the input is (A, M, in) and
    ``scale (d a') b'`` is added, where d is x or, if given, x after dropout; all of them have
    gradients. It is fused by hand: one pass over the output in place of three, and one over the
    input's gradient in place of two.
    """
    a, b, scale = update or (None, None, 1.0)
    out: Tensor = _FrozenLinear.apply(x, dropped, weight, bias, a, b, scale)  # type: ignore[no-untyped-call]
    return out


class _FrozenLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        x: Tensor,
        dropped: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        scale: float,
    ) -> Tensor:
        dtype = product_type(weight)
        rounded = x.to(dtype)
        out = linear_without_grad(rounded, weight, bias).to(dtype)

        kept = [weight]  # not x: a frozen weight needs no gradient
        if a is not None and b is not None:
            lora_input = rounded if dropped is None else dropped.to(dtype)
            low_rank = torch.bmm(lora_input, a.to(dtype).mT)
            out.baddbmm_(low_rank, b.to(dtype).mT, alpha=scale)
            kept += [lora_input, low_rank, a, b]

        ctx.save_for_backward(*kept)
        ctx.scale = scale
        ctx.dtype = x.dtype
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - autograd's context and tuple
        weight, *kept = ctx.saved_tensors
        needs_x, needs_dropped, _, _, needs_a, needs_b, _ = ctx.needs_input_grad
        grad_out = gradients[0].to(product_type(weight))
        grad_x = grad_dropped = grad_a = grad_b = None
        if needs_x:
            grad_x = linear_without_grad(grad_out, weight.t()).to(grad_out.dtype)

        if kept:
            lora_input, low_rank, a, b = kept
            grad_low_rank = torch.bmm(grad_out, b.to(grad_out.dtype)).mul_(ctx.scale)
            if needs_a:
                grad_a = torch.bmm(grad_low_rank.mT, lora_input).to(a.dtype)
            if needs_b:
                grad_b = torch.bmm(grad_out.mT, low_rank).mul_(ctx.scale).to(b.dtype)
            if needs_dropped:
                # Autograd sends this part through the dropout mask before it reaches x.
                grad_dropped = torch.bmm(grad_low_rank, a.to(grad_out.dtype)).to(ctx.dtype)
            elif grad_x is not None:
                grad_x.baddbmm_(grad_low_rank, a.to(grad_out.dtype))

        grad_x = None if grad_x is None else grad_x.to(ctx.dtype)
        return grad_x, grad_dropped, None, None, grad_a, grad_b, None


class TokenLogp(torch.autograd.Function):
    """The log-probability (N,) of each id, with a gradient only for the states (N, D).

    The scores ``W h + bias``, capped as in :func:`compevo_core.lora.attention.apply_softcap`, go
    through ``softmax(s / temperature)``, a few tokens at a time: the gradient of each in its state,
    (N, D), is computed on the way.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        states_ND: Tensor,
        ids_N: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        temperature: float = 1.0,
        cap: float | None = None,
    ) -> Tensor:
        """Compute log-probabilities and their gradients block by block."""
        logp: list[Tensor] = []
        grad_states: list[Tensor] = []
        size = 64  # tokens whose vocabulary scores are held in memory at a time
        blocks = zip(torch.split(states_ND, size), torch.split(ids_N[:, None], size), strict=True)
        for states, ids in blocks:
            # In place from here on: a block of scores has the width of the vocabulary.
            scores = widen(linear_without_grad(states, weight_VD, bias_V))
            tanh_grad = None
            if cap is not None:
                scores.div_(cap).tanh_()
                tanh_grad = 1.0 - scores**2
                scores.mul_(cap)
            scores.div_(temperature)

            log_total = scores.logsumexp(-1, keepdim=True)
            logp.append((scores.gather(-1, ids) - log_total).squeeze(-1))
            if not ctx.needs_input_grad[0]:
                continue

            # d logp / d scores = onehot - softmax; the sign is in the division below.
            scores.sub_(log_total).exp_()
            softmax_minus_onehot = scores.scatter_(-1, ids, -1.0, reduce="add")
            if tanh_grad is not None:
                softmax_minus_onehot.mul_(tanh_grad)
            grad = widen(linear_without_grad(softmax_minus_onehot, weight_VD.t()))
            grad_states.append(grad.div_(-temperature))

        # One vector of width D a token, where the scores would be V wide.
        if grad_states:
            ctx.save_for_backward(torch.cat(grad_states))
        return torch.cat(logp)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - autograd's context and tuple
        """Compute the gradient of the states."""
        (grad_states_ND,) = ctx.saved_tensors
        return gradients[0][:, None] * grad_states_ND, None, None, None, None, None
