"""Products with frozen weights: the part of the work that all agents and adapters share.

What belongs here: ``x W' + bias`` with a weight that never learns, its gradient for ``x``, which
kernel computes it, weights that several processes hold together, log-probabilities under a frozen
vocabulary. What does not: adapters (``lm.adapters``), loading (``lm.backbone``), the split of the
agents (``runtime.distributed``).

torch multiplies float32 matrices on a processor by MKL. oneDNN, which torch ships too and which its
compiler's own code calls, is 1.1 to 1.6 times faster on AMD's processors. On Intel's own, MKL is as
fast with many rows and two to four times faster with the three of a decoding step
(``benchmarks/results/engine.csv``, rows ``products``, measures the one that is used).

A processor without instructions for bfloat16 multiplies such matrices one number at a time, at an
eighth of its speed in float32. There the same rounded numbers are multiplied in float32.

Of a split weight each process holds a slice of the rows. It multiplies the same tokens by it and
gathers the columns of the others; in the backward pass each multiplies its columns of the gradient
by its rows, and the parts are summed. Embeddings, norms and the vocabulary projection stay whole.
Splitting and exchange are torch's DTensor; loading is transformers' tensor-parallel plan, which
reads each process's rows from the file and nothing else (decision 12-engine).

Shapes: A agents, N tokens, M tokens of an agent or of one choice, K tokens to choose from,
D hidden, V vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import ConfigError
from compevo_core.lm.attention import apply_softcap
from compevo_core.lm.model_sources import LORA_TARGETS
from compevo_core.runtime.usage import lacks_bfloat16, read_cpu_facts

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from transformers.distributed import DistributedConfig

_BLOCKS = "model.layers.*"  # as transformers names the blocks of Llama, Mistral, Qwen2 and Gemma
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def require_processes(config: BackboneConfig) -> int:
    """Return how many processes share the backbone; ConfigError for one, or for random layers."""
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


def build_sharding_plan(processes: int) -> "DistributedConfig":
    """Return what ``from_pretrained`` needs in order to load only this process's rows."""
    from transformers.distributed import DistributedConfig

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
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(device_type, (processes,))
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in LORA_TARGETS and isinstance(module, nn.Linear):
            rows = distribute_tensor(module.weight, mesh, [Shard(0)], src_data_rank=None)
            module.weight = nn.Parameter(rows, requires_grad=False)


def multiply_sharded(x: Tensor, weight: "DTensor", bias: Tensor | None = None) -> Tensor:
    """Compute ``x W' + bias`` with a split weight; the whole product on every process.

    A weight that is split by rows gives columns of the product, which are gathered. A transposed
    one is split by columns and gives a part of every element, which are summed. The input is equal
    on every process; the bias is whole, or split as the rows are.
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


def attention_type(weight: Tensor) -> torch.dtype:
    """Return the type of attention for products with a frozen weight.

    On every processor torch's fused kernel takes longer in bfloat16 than in float32: three to four
    times as long in its backward pass.
    """
    return torch.float32 if weight.device.type == "cpu" else product_type(weight)


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

    The scores ``s = W h + bias`` (``cap tanh(s / cap)`` where there is a cap) go through
    ``softmax(s / temperature)``. They are never held for more than a few tokens: the gradient of
    each log-probability in its state, (N, D), is computed on the way, and the backward pass needs
    nothing else. ``cap`` works as in :func:`compevo_core.lm.attention.apply_softcap`.
    """
    out: Tensor = _TokenLogp.apply(states_ND, ids_N, weight_VD, bias_V, temperature, cap)  # type: ignore[no-untyped-call]
    return out


def restricted_token_logp(
    states_ND: Tensor,
    ids_N: Tensor,
    allowed: Sequence[Sequence[int]],
    weight_VD: Tensor,
    bias_V: Tensor | None = None,
    *,
    temperature: float = 1.0,
    cap: float | None = None,
) -> Tensor:
    """Return the log-probability (N,) of each id among the tokens that are allowed in its place.

    ``allowed`` holds for each id the tokens that the softmax goes over, the id among them. Only
    these rows of the vocabulary are ever read; see :func:`token_logp` for the other arguments.
    ValueError if an id is not among its allowed tokens.
    """
    ids = ids_N.tolist()
    # Samples of one grammar meet the same choices: one product for each of them.
    places_of: dict[tuple[int, ...], list[int]] = {}
    for place, tokens in enumerate(allowed):
        if ids[place] not in tokens:
            raise ValueError(
                f"token {ids[place]} is not among the {len(tokens)} allowed in its place; score a "
                "text under the grammar that it was written with"
            )
        places_of.setdefault(tuple(tokens), []).append(place)

    # A token without a choice has probability one; the product keeps the graph where all have none.
    logp_N = states_ND.float().sum(-1) * 0.0
    for tokens, places in places_of.items():
        if len(tokens) == 1:
            continue
        rows = torch.tensor(tokens, device=weight_VD.device)
        numbers_M = torch.tensor([tokens.index(ids[place]) for place in places], device=rows.device)
        places_M = torch.tensor(places, device=rows.device)

        bias = None if bias_V is None else bias_V[rows]
        scores_MK = frozen_linear(states_ND.index_select(0, places_M), weight_VD[rows], bias)
        scores_MK = apply_softcap(scores_MK.float(), cap) / temperature
        logp_MK = torch.log_softmax(scores_MK, -1)
        logp_N = logp_N.index_add(0, places_M, logp_MK.gather(1, numbers_M[:, None]).squeeze(1))
    return logp_N


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
            scores = linear_without_grad(states, weight_VD, bias_V).float()
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
                grad = linear_without_grad(softmax_minus_onehot, weight_VD.t()).float()
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
