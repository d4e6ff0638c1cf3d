"""The frozen model that all adapters share: its layers, and products with their weights.

What belongs here: which linear layers get adapters, ``x W' + bias`` with a weight that never
learns, its gradient for ``x``, weights that processes hold together, log-probabilities under a
frozen vocabulary. What does not: adapters (``lora.adapters``), where a model comes from.

torch multiplies float32 matrices on a processor by MKL. oneDNN is 1.1 to 1.6 times faster on AMD's
processors, and slower on Intel's own (``benchmarks/results/engine.csv``, rows ``products``). Where
a processor lacks instructions for bfloat16, the same rounded numbers are multiplied in float32.

Of a split weight each process holds a slice of the rows, and gathers the columns of the others; in
the backward pass the parts are summed (decision 12-engine).

Shapes: N tokens, D hidden, V vocabulary.
"""

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from compevo_core.errors import ConfigError
from compevo_core.runtime.usage import lacks_bfloat16, read_cpu_facts

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of one block, all of which get adapters."""


@dataclasses.dataclass(frozen=True)
class Backbone:
    """A frozen causal language model of transformers, its tokenizer and what is known about it.

    A population multiplies by the frozen layers in ``matmul_dtype`` (None: their own), and enables
    gradient checkpointing, as recomputed layers must use the adapters of their forward pass.
    """

    model: Any
    tokenizer: Any = None
    name_or_path: str = ""
    knowledge_cutoff: str = "unknown"
    matmul_dtype: torch.dtype | None = None
    gradient_checkpointing: bool = False

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        device: torch.device = self.model.device
        return device

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


def select_first_layers(decoder: Any, count: int) -> Any:  # noqa: ANN401 - transformers' own module
    """Return a decoder with only the first layers, a shell without the final norm."""
    shell = copy.copy(decoder)
    # copy.copy shares the dictionary of submodules, which is about to differ.
    shell._modules = dict(decoder._modules)
    shell.layers = decoder.layers[:count]
    shell.norm = nn.Identity()
    return shell


def _find_linear_layers(
    block: nn.Module, number: int, name_or_path: str
) -> list[tuple[str, nn.Linear]]:
    """Find the targets of one block; each must occur once, and there may be no other matrix."""
    linear_layers = [
        (name, module)
        for name, module in block.named_modules()
        if name.rpartition(".")[2] in LORA_TARGETS and isinstance(module, nn.Linear)
    ]

    targets = [name.rpartition(".")[2] for name, _ in linear_layers]
    matrices = {name for name, parameter in block.named_parameters() if parameter.dim() > 1}
    # Fused projections lack targets; experts are extra matrices. Both would train only in part.
    others = matrices - {f"{name}.weight" for name, _ in linear_layers}
    if sorted(targets) != sorted(LORA_TARGETS) or others:
        missing = [target for target in LORA_TARGETS if target not in targets]
        raise ConfigError(
            f"backbone {name_or_path}: layer {number} has not just the linear layers "
            f"{', '.join(LORA_TARGETS)} (missing: {', '.join(missing) or 'none'}; others: "
            f"{', '.join(sorted(others)) or 'none'}), and adapters would cover a part of it; name "
            "a model built like Llama, Mistral, Qwen2 or Gemma"
        )
    return linear_layers


def multiply_sharded(x: Tensor, weight: "DTensor", bias: Tensor | None = None) -> Tensor:
    """Compute ``x W' + bias`` with a split weight; the whole product on every process.

    A weight split by rows gives columns of the product, which are gathered; a transposed one gives
    a part of every element, which are summed. The input is equal on every process.
    """
    from torch.distributed.tensor import DTensor, Replicate

    mesh = weight.device_mesh
    replicated = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    if bias is not None and not isinstance(bias, DTensor):
        bias = DTensor.from_local(bias, mesh, [Replicate()], run_check=False)
    product: Any = nn.functional.linear(replicated, weight, bias)
    whole: Tensor = product.full_tensor()
    return whole


def is_onednn_faster(cpu_facts: str) -> bool:
    """Whether float32 products go through oneDNN on a processor that calls itself this."""
    # By name and not by a trial: two runs on one machine must use the same kernel.
    return "AuthenticAMD" in cpu_facts


# Only where it was measured; elsewhere torch chooses.
_USES_ONEDNN = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and is_onednn_faster(read_cpu_facts())
)
WIDENS_BFLOAT16 = lacks_bfloat16(read_cpu_facts())
_TOKENS_PER_BLOCK = 64  # whose vocabulary scores are held in memory at a time


def product_type(weight: Tensor) -> torch.dtype:
    """Return the type in which a product with a frozen weight is computed.

    Its adapters use the same type: float32 would cost more than it gains.
    """
    is_widened = WIDENS_BFLOAT16 and weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return torch.float32 if is_widened else weight.dtype


def widen(x: Tensor) -> Tensor:
    """Return float32, in which losses and states are held, or float64 as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def attention_type(weight: Tensor) -> torch.dtype:
    """Return the type of attention for products with a frozen weight.

    torch's fused kernel on processors takes three to four times as long in bfloat16.
    """
    is_cpu = weight.device.type == "cpu"
    return torch.promote_types(weight.dtype, torch.float32) if is_cpu else product_type(weight)


def linear_without_grad(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x W' + bias`` for (..., in) and (out, in), in the weight's type, untracked."""
    # The operator is internal to torch: the test against torch's own product guards it.
    x = x.to(weight.dtype)
    # A DTensor, whose module takes a second to import and is not needed to know it.
    if hasattr(weight, "device_mesh"):
        whole: Any = weight
        return multiply_sharded(x, whole, None if bias is None else bias.to(weight.dtype))
    if product_type(weight) != weight.dtype:
        # A sum of products of rounded numbers, rounded at its end: what the instruction does.
        plain_bias = None if bias is None else bias.to(weight.dtype).float()
        return linear_without_grad(x.float(), weight.float(), plain_bias).to(weight.dtype)
    if _USES_ONEDNN and weight.device.type == "cpu" and weight.dtype == torch.float32:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out

    return nn.functional.linear(x, weight, None if bias is None else bias.to(weight.dtype))


def frozen_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x W' + bias`` in the input's type, with a gradient only for ``x``."""
    out: Tensor = _FrozenLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
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
    """Return the log-probability (N,) of each id, with a gradient only for the states.

    The scores ``W h + bias``, capped as in :func:`compevo_core.lora.attention.apply_softcap`, go
    through ``softmax(s / temperature)``, a few tokens at a time: the gradient of each in its state,
    (N, D), is computed on the way.
    """
    out: Tensor = _TokenLogp.apply(states_ND, ids_N, weight_VD, bias_V, temperature, cap)  # type: ignore[no-untyped-call]
    return out


class _FrozenLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401
        """Compute the output; see :func:`frozen_linear`."""
        ctx.save_for_backward(weight)  # not x: a frozen weight needs no gradient
        ctx.dtype = x.dtype
        return linear_without_grad(x, weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - autograd's context and tuple
        """Compute the gradient of ``x``; see :func:`frozen_linear`."""
        (weight,) = ctx.saved_tensors
        return linear_without_grad(gradients[0], weight.t()).to(ctx.dtype), None, None


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context
        states_ND: Tensor,
        ids_N: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        temperature: float,
        cap: float | None,
    ) -> Tensor:
        """Compute log-probabilities and their gradients block by block; see :func:`token_logp`."""
        logp: list[Tensor] = []
        grad_states: list[Tensor] = []
        blocks = zip(
            torch.split(states_ND, _TOKENS_PER_BLOCK),
            torch.split(ids_N[:, None], _TOKENS_PER_BLOCK),
            strict=True,
        )
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

            if ctx.needs_input_grad[0]:
                # d logp / d scores = onehot - softmax; the sign is in the division below.
                minus_one = scores.new_full(ids.shape, -1.0)
                softmax_minus_onehot = (
                    scores.sub_(log_total).exp_().scatter_add_(-1, ids, minus_one)
                )
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
        """Compute the gradient of the states; see :func:`token_logp`."""
        (grad_states_ND,) = ctx.saved_tensors
        return gradients[0][:, None] * grad_states_ND, None, None, None, None, None
