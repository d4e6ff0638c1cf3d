"""Attention in every layer of a population's backbone, over packed prompts and over new tokens.

What belongs here: the function that transformers calls, the backends behind it, the cache of keys
and values. What does not: the layout of prompts (``lora.batch``), the loop over tokens
(``lora.sampling``).

Without a backend the function is transformers' own, so that the model can still be called as usual.
A prefix is read once for all members of a group, and a suffix attends to its keys and values
(shared-prefix attention: Juravsky et al., Hydragen, 2024). Segments of one shape are one call.
Samples of one prompt share its keys and values; only their own tokens are stored for each.

Shapes: A adapters, R prompts of an adapter, N = A R, L packed length, P tokens of the longest
prompt, n samples of a prompt, M = R n, T new tokens, t of them so far, K key/value heads, g query
heads of each, d width of a head, D hidden; within a batch of segments B segments of t query tokens
and s key tokens each.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from compevo_core.errors import ConfigError
from compevo_core.lora.backbone import widen
from compevo_core.lora.batch import Batch


class Heads(NamedTuple):
    """What one layer attends with; scores are multiplied by ``scale``."""

    layer: int
    query: Tensor  # (A, K g, L, d)
    key: Tensor  # (A, K, L, d)
    value: Tensor  # (A, K, L, d)
    scale: float
    softcap: float | None  # see :func:`apply_softcap`


class AttentionBackend(Protocol):
    """What computes attention in a layer of a population."""

    max_distance: int  # longest distance that a token looks back, in tokens

    def attend(self, heads: Heads) -> Tensor:
        """Compute the attention of one layer, (A, L, K g, d)."""


def apply_softcap(scores: Tensor, cap: float | None) -> Tensor:
    """Bound scores smoothly, ``cap tanh(s / cap)``, as Gemma 2 does; return them without a cap."""
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _attention_forward(
    module: Any,  # noqa: ANN401 - a block's attention
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    attention_backend: AttentionBackend | None = None,
    **options: Any,  # noqa: ANN401 - other arguments of transformers
) -> tuple[Tensor, None]:
    """Call the backend that the forward pass was given, with the arguments of transformers."""
    # Callers that know nothing of populations (generate, PEFT) pass no backend.
    if attention_backend is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward as plain

        out: tuple[Tensor, None] = plain(module, query, key, value, attention_mask, **options)
        return out

    # Backends attend to the whole prompt. Where a layer would not, results would differ silently.
    distance, window = attention_backend.max_distance, options.get("sliding_window")
    if window is not None and distance > window:
        raise ConfigError(
            f"a prompt and its answer are {distance} tokens long, and this backbone looks back "
            f"{window} tokens; lower backbone.context_length"
        )

    # On processors torch's fused kernel takes three to four times as long in bfloat16.
    dtype = module.q_proj.base.weight.dtype
    q, k, v = (widen(one) if one.is_cpu else one.to(dtype) for one in (query, key, value))
    heads = Heads(module.layer_idx, q, k, v, options["scaling"], options.get("softcap"))
    return attention_backend.attend(heads).to(query.dtype), None


def register_attention() -> str:
    """Register the function with transformers; return its name there."""
    # Imported here, as that takes seconds.
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    # transformers looks up both under one name; plain calls use the mask of its own attention.
    name = "compevo"
    AttentionInterface.register(name, _attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


_KEYS_PER_BATCH = 1 << 14  # tokens whose keys are held at a time; bounds memory, not results


@dataclasses.dataclass(frozen=True)
class PrefillCache:
    """What decoding needs of prompts that were read: keys and values by layer, (N, K, P, d)."""

    keys: list[Tensor]
    values: list[Tensor]
    mask_NP: Tensor  # minus infinity at padding, which is on the right; added to scores
    tokens_AR: Tensor  # of every prompt
    last_states_ARD: Tensor  # final hidden state at the last token of every prompt

    def begin_samples(self, samples: int) -> tuple[Tensor, Tensor]:
        """Return the last state (A, M, D) and the tokens (A, M) of each sample's prompt."""
        states_AMD = self.last_states_ARD.repeat_interleave(samples, 1)
        return states_AMD, self.tokens_AR.repeat_interleave(samples, 1)

    def select(self, prompts_AR: Tensor) -> "PrefillCache":
        """Return the cache of some prompts of each adapter, by their numbers among all of them."""
        return PrefillCache(
            [keys[prompts_AR.flatten()] for keys in self.keys],
            [values[prompts_AR.flatten()] for values in self.values],
            self.mask_NP[prompts_AR.flatten()],
            self.tokens_AR.flatten()[prompts_AR],
            self.last_states_ARD.flatten(0, 1)[prompts_AR],
        )


class PrefillAttention:
    """Causal attention within each prompt of a packed batch; may keep keys for a cache."""

    def __init__(self, packed: Batch, *, keeps_cache: bool = False) -> None:
        self.max_distance = int(packed.positions_AL.max()) + 1
        self._packed = packed
        self._keeps_cache = keeps_cache
        self._kept: list[tuple[Tensor, Tensor]] = []  # keys and values of each layer

        # Segments of one length, which continue parts of one length, if any.
        by_shape: dict[tuple[int, ...], list[list[int]]] = {}
        for parts in packed.segments:
            shape = tuple(packed.lengths[part] for part in parts)
            by_shape.setdefault(shape, []).append(parts)
        self._batches: list[list[list[int]]] = []
        for shape, segments in by_shape.items():
            size = max(1, _KEYS_PER_BATCH // sum(shape))
            self._batches += [segments[i : i + size] for i in range(0, len(segments), size)]

    def attend(self, heads: Heads) -> Tensor:
        """See :class:`compevo_core.lora.attention.AttentionBackend`."""
        # Token by token, one row after the other, (A L, heads, d).
        q, k, v = (
            tensor.transpose(1, 2).flatten(0, 1) for tensor in (heads.query, heads.key, heads.value)
        )
        # Only without gradient: kept keys would hold the whole graph in memory.
        if self._keeps_cache:
            self._kept.append((k, v))

        q_parts, *kv_parts = (torch.split(tensor, self._packed.lengths) for tensor in (q, k, v))
        states = list(q_parts)  # padding keeps its query: its states are never read
        for batch in self._batches:
            q_BtKd = torch.stack([q_parts[number] for *_, number in batch])
            met = [number for numbers in batch for number in numbers]
            k_BsKd, v_BsKd = (
                torch.cat([parts[number] for number in met]).reshape(len(batch), -1, *k.shape[1:])
                for parts in kv_parts
            )
            states_BtKd = _attend_causally(q_BtKd, k_BsKd, v_BsKd, heads)
            for (*_, number), states_tKd in zip(batch, states_BtKd, strict=True):
                states[number] = states_tKd
        return torch.cat(states).reshape(heads.query.transpose(1, 2).shape)

    def build_cache(self, last_states_ARD: Tensor) -> PrefillCache:
        """Gather the kept keys and values prompt by prompt."""
        prompts = [torch.tensor(places) for row in self._packed.prompts for places in row]
        tokens_AR = torch.tensor([[len(places) for places in row] for row in self._packed.prompts])
        # Padding points at token 0: any token will do, as the mask hides it.
        place_NP = pad_sequence(prompts, batch_first=True).to(last_states_ARD.device)
        # Contiguous, since decoding multiplies by this once a token.
        keys, values = (
            [kept[place_NP].transpose(1, 2).contiguous() for kept in by_layer]
            for by_layer in zip(*self._kept, strict=True)
        )
        zeros = [torch.zeros(len(places)) for places in prompts]
        mask_NP = pad_sequence(zeros, batch_first=True, padding_value=-torch.inf).to(keys[0])
        return PrefillCache(keys, values, mask_NP, tokens_AR.to(mask_NP.device), last_states_ARD)


def _attend_causally(q_BtKd: Tensor, k_BsKd: Tensor, v_BsKd: Tensor, heads: Heads) -> Tensor:
    """Attend from the last t of the s tokens of each segment, (B, t, K g, d)."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q_BtKd, k_BsKd, v_BsKd))
    tokens, met = q.shape[2], k.shape[2]
    mask: Any = None
    if tokens < met or heads.softcap is not None:
        mask = torch.ones(tokens, met, dtype=torch.bool, device=q.device).tril(met - tokens)

    if heads.softcap is None:
        if mask is not None and q.is_cuda and q.dtype == torch.bfloat16:
            # Which torch's fused kernel takes. The module takes seconds to import.
            from torch.nn.attention.bias import causal_lower_right

            mask = causal_lower_right(tokens, met)
        out: Tensor = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=heads.scale, enable_gqa=True
        )
        return out.transpose(1, 2)

    # torch's fused attention knows no softcap: the same by hand.
    q_BKgtd = q.reshape(len(q), k.shape[1], -1, tokens, q.shape[-1])
    scores = apply_softcap(q_BKgtd @ k[:, :, None].mT * heads.scale, heads.softcap)
    weights = widen(scores.masked_fill(~mask, -torch.inf)).softmax(-1).to(q.dtype)
    return (weights @ v[:, :, None]).flatten(1, 2).transpose(1, 2)


class NewTokens:
    """The keys and values of new tokens; the cache of their prompts is stored separately.

    ``_new`` holds them by layer, (N, K, n, T, d).
    """

    def __init__(self, cache: PrefillCache, samples: int, max_new_tokens: int) -> None:
        self.max_distance = cache.keys[0].shape[2] + max_new_tokens
        self._cache = cache
        self._samples = samples
        # All T tokens at once: growing by one a step would copy the past T times. Zeros: places
        # that are not read yet are masked, and an infinity there would survive the mask.
        self._new = [
            [
                prompts.new_zeros(*prompts.shape[:2], samples, max_new_tokens, prompts.shape[-1])
                for prompts in (keys, values)
            ]
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]

    def attend_to_stored(self, heads: Heads, q: Tensor, tokens: int, mask: Tensor | None) -> Tensor:
        """Attend from each row over its prompt and its first new tokens, (N, K, n, q, d).

        Queries are (N, K, n, q, d), of q query heads and tokens of a row; the mask, (N, 1, n, q, t)
        or (t,), is added to the scores of new tokens.
        """
        q = q * heads.scale
        prompt_keys, prompt_values = self._cache.keys[heads.layer], self._cache.values[heads.layer]
        new_keys, new_values = (new[:, :, :, :tokens] for new in self._new[heads.layer])
        length = prompt_keys.shape[2]

        # All samples of a prompt meet its keys in one product, (N, K, n q, P).
        prompt_scores = (q.flatten(2, 3) @ prompt_keys.mT).reshape(*q.shape[:-1], length)
        scores = apply_softcap(torch.cat([prompt_scores, q @ new_keys.mT], -1), heads.softcap)
        scores[..., :length] += self._cache.mask_NP[:, None, None, None]
        if mask is not None:
            scores[..., length:] += mask
        weights = widen(scores).softmax(-1).to(q.dtype)

        out = (weights[..., :length].flatten(2, 3) @ prompt_values).reshape(q.shape)
        return out + weights[..., length:] @ new_values


class DecodeAttention(NewTokens):
    """Attention of one new token a row, over its prompt and its own tokens so far.

    Static attention has the same shapes for every token and asks the host nothing, as a CUDA graph
    needs: it looks at all T places and hides the empty ones. Otherwise only those so far are read.
    """

    def __init__(
        self, cache: PrefillCache, samples: int, max_new_tokens: int, *, is_static: bool = False
    ) -> None:
        super().__init__(cache, samples, max_new_tokens)
        keys = cache.keys[0]
        self._width = max_new_tokens if is_static else 0
        self._mask_T = keys.new_full((max_new_tokens,), -torch.inf) if is_static else None

    def begin_pass(self, place_1: Tensor) -> None:
        """Take the place of the token to read in every row; call it before each forward pass."""
        self._place_1 = place_1
        if self._mask_T is None:
            self._width += 1
        else:
            self._mask_T.index_fill_(0, place_1, 0.0)

    def attend(self, heads: Heads) -> Tensor:
        """See :class:`compevo_core.lora.attention.AttentionBackend`; L is M rows of one token."""
        prompts, kv_heads, _, width = self._cache.keys[heads.layer].shape
        rows, n = heads.query.shape[0], self._samples

        def sort_by_prompt(tensor: Tensor) -> Tensor:
            """Bring (A, K g, R n, d) to (N, K, n, g, d): prompts first, to meet the cache."""
            tensor = tensor.reshape(rows, kv_heads, -1, prompts // rows, n, width)
            return tensor.permute(0, 3, 1, 4, 2, 5).flatten(0, 1)

        for stored, new in zip(self._new[heads.layer], (heads.key, heads.value), strict=True):
            stored.index_copy_(3, self._place_1, sort_by_prompt(new))
        q = sort_by_prompt(heads.query)
        out = self.attend_to_stored(heads, q, self._width, self._mask_T)

        # Back to (A, R n, K g, d), as transformers expects it.
        out = out.reshape(rows, -1, *out.shape[1:]).transpose(2, 3)
        return out.reshape(rows, -1, heads.query.shape[1], width)

    def select(self, prompts_AR: Tensor) -> None:
        """Go on with some prompts of each adapter, by their numbers among all of them."""
        self._cache = self._cache.select(prompts_AR)
        self._new = [[new[prompts_AR.flatten()] for new in of_layer] for of_layer in self._new]
