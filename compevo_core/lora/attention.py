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
import functools
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from compevo_core.errors import ConfigError
from compevo_core.lora.batch import Batch

ATTENTION_NAME = "compevo"  # under which transformers finds the function


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

    def attend(self, heads: Heads) -> Tensor:
        """Compute the attention of one layer, (A, L, K g, d)."""

    @property
    def max_distance(self) -> int:
        """Longest distance that a token looks back, in tokens."""


def apply_softcap(scores: Tensor, cap: float | None) -> Tensor:
    """Bound scores smoothly, ``cap tanh(s / cap)``, as Gemma 2 does; return them without a cap."""
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    attention_backend: AttentionBackend | None = None,
    attention_dtype: torch.dtype | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **others: Any,  # noqa: ANN401 - other arguments of transformers
) -> tuple[Tensor, None]:
    """Call the backend that the forward pass was given, with the arguments of transformers."""
    # Callers that know nothing of populations (generate, PEFT) pass no backend.
    if attention_backend is None:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
        out: tuple[Tensor, None] = plain(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            softcap=softcap,
            sliding_window=sliding_window,
            **others,
        )
        return out

    # Backends attend to the whole prompt. Where a layer would not, results would differ silently.
    distance = attention_backend.max_distance
    if sliding_window is not None and distance > sliding_window:
        raise ConfigError(
            f"a prompt and its answer are {distance} tokens long, and this backbone looks back "
            f"{sliding_window} tokens; lower backbone.context_length"
        )

    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    # Products may be in bfloat16 where all else is float32.
    q, k, v = (tensor.to(attention_dtype) for tensor in (query, key, value))
    states = attention_backend.attend(Heads(layer, q, k, v, scale, softcap))
    return states.to(query.dtype), None


def register_attention() -> None:
    """Tell transformers of the function; a forecast without a language model never imports it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    # transformers looks up both under one name; the mask is that of its own attention, which plain
    # calls use.
    AttentionInterface.register(ATTENTION_NAME, _attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


_KEYS_PER_BATCH = 1 << 14  # tokens whose keys are held at a time; bounds memory, not results


class SegmentBatch(NamedTuple):
    """Segments of one length that continue parents of one length, or none, in any row."""

    numbers: list[int]  # of the segments, among the parts of all rows
    key_numbers: list[int]  # of the parts whose keys they meet: a parent, then the segment itself
    parent_length: int  # tokens of each parent; 0 without


def divide_rows(packed: Batch) -> tuple[list[int], list[int], list[SegmentBatch]]:
    """Return the parts of all rows, one behind the other: lengths, which are padding, batches.

    Parts are the segments, and the padding after each row; each segment is in one batch.
    """
    lengths: list[int] = []
    padding: list[int] = []
    by_shape: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for segments in packed.segments:
        first = len(lengths)
        for number, segment in enumerate(segments, first):
            lengths.append(segment.end - segment.begin)
            parents = () if segment.parent is None else (first + segment.parent,)
            shape = lengths[number], sum(lengths[part] for part in parents)
            by_shape.setdefault(shape, []).append((*parents, number))

        # Rows end where the longest one does.
        if lacking := packed.ids_AL.shape[1] - sum(lengths[first:]):
            padding.append(len(lengths))
            lengths.append(lacking)

    batches = []
    for (length, parent_length), parts in by_shape.items():
        size = max(1, _KEYS_PER_BATCH // (length + parent_length))
        for begin in range(0, len(parts), size):
            chosen = parts[begin : begin + size]
            numbers = [part[-1] for part in chosen]
            key_numbers = [number for part in chosen for number in part]
            batches.append(SegmentBatch(numbers, key_numbers, parent_length))
    return lengths, padding, batches


@dataclasses.dataclass(frozen=True)
class PrefillCache:
    """What decoding needs of prompts that were read: keys and values by layer, (N, K, P, d)."""

    keys: list[Tensor]
    values: list[Tensor]
    mask_NP: Tensor  # true where a token is real and not padding
    last_states_ARD: Tensor  # final hidden state at the last token of every prompt

    @functools.cached_property
    def padding_mask(self) -> Tensor:
        """Minus infinity at padding, (N, 1, 1, 1, P): hides it from all heads and samples."""
        # Shorter prompts are padded on the right.
        mask_NP = torch.zeros_like(self.mask_NP, dtype=self.keys[0].dtype)
        return mask_NP.masked_fill(~self.mask_NP, -torch.inf)[:, None, None, None]

    def repeat_last_states(self, samples: int) -> Tensor:
        """Return the state (A, M, D) that each sample of a prompt starts from."""
        return self.last_states_ARD.repeat_interleave(samples, 1)

    def count_tokens(self, samples: int) -> Tensor:
        """Return the tokens (A, M) of each sample's prompt: the position of its first new one."""
        rows = self.last_states_ARD.shape[0]
        return self.mask_NP.sum(1).reshape(rows, -1).repeat_interleave(samples, 1)

    def select(self, prompts_N: Tensor) -> "PrefillCache":
        """Return the cache of some prompts, by number, the same number of each adapter."""
        rows, _, hidden = self.last_states_ARD.shape
        return PrefillCache(
            [keys[prompts_N] for keys in self.keys],
            [values[prompts_N] for values in self.values],
            self.mask_NP[prompts_N],
            self.last_states_ARD.flatten(0, 1)[prompts_N].reshape(rows, -1, hidden),
        )


class PrefillAttention:
    """Causal attention within each prompt of a packed batch; may keep keys for a cache."""

    def __init__(self, packed: Batch, *, keeps_cache: bool = False) -> None:
        self.keeps_cache = keeps_cache
        self.max_distance = int(packed.positions_AL.max()) + 1
        self._packed = packed
        self._lengths, self._padding, self._batches = divide_rows(packed)
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._masks: dict[tuple[int, int], Tensor] = {}

    def attend(self, heads: Heads) -> Tensor:
        """See :class:`compevo_core.lora.attention.AttentionBackend`."""
        # Only without gradient: kept keys would hold the whole graph in memory.
        if self.keeps_cache:
            self._keys[heads.layer] = heads.key
            self._values[heads.layer] = heads.value

        # Token by token, one row behind the other, (A L, heads, d), in segments.
        q_parts, k_parts, v_parts = (
            torch.split(tensor.transpose(1, 2).flatten(0, 1), self._lengths)
            for tensor in (heads.query, heads.key, heads.value)
        )

        # The padding behind a shorter row belongs to no segment; its states are never read.
        out = {number: torch.zeros_like(q_parts[number]) for number in self._padding}
        for batch in self._batches:
            q_BtKd = torch.stack([q_parts[number] for number in batch.numbers])
            k_BsKd, v_BsKd = (
                torch.cat([parts[number] for number in batch.key_numbers]).reshape(
                    len(q_BtKd), -1, *parts[0].shape[1:]
                )
                for parts in (k_parts, v_parts)
            )
            mask = None  # causal: a prefix attends only to itself
            if batch.parent_length:
                mask = self._suffix_mask(batch.parent_length, q_BtKd.shape[1], heads)
            states_BtKd = _attend_heads(q_BtKd, k_BsKd, v_BsKd, mask, heads)
            out.update(zip(batch.numbers, states_BtKd.unbind(), strict=True))

        in_order = [out[number] for number in range(len(q_parts))]
        return torch.cat(in_order).reshape(heads.query.transpose(1, 2).shape)

    def build_cache(self, last_states_ARD: Tensor) -> PrefillCache:
        """Gather the kept keys and values prompt by prompt."""
        packed = self._packed
        indices = [
            torch.tensor(packed.token_indices(row, prompt))
            for row, numbers in enumerate(packed.prompt_segments)
            for prompt in range(len(numbers))
        ]
        lengths_N = torch.tensor([len(index) for index in indices])

        # Padding points at token 0: any token will do, as the mask hides it.
        index_NP = pad_sequence(indices, batch_first=True)
        mask_NP = torch.arange(index_NP.shape[1]) < lengths_N[:, None]

        device = last_states_ARD.device
        index_ARP = index_NP.reshape(len(packed.prompt_segments), -1, index_NP.shape[1]).to(device)
        return PrefillCache(
            [_gather_prompts(self._keys[layer], index_ARP) for layer in range(len(self._keys))],
            [_gather_prompts(self._values[layer], index_ARP) for layer in range(len(self._values))],
            mask_NP.to(device),
            last_states_ARD,
        )

    def _suffix_mask(self, prefix: int, suffix: int, heads: Heads) -> Tensor:
        """Return the mask of a suffix after its prefix, (suffix, prefix + suffix)."""
        like = heads.query
        if like.is_cuda and like.dtype == torch.bfloat16 and heads.softcap is None:
            # Which torch's fused kernel takes. The module takes seconds to import.
            from torch.nn.attention.bias import causal_lower_right

            return causal_lower_right(suffix, prefix + suffix)

        # Sizes repeat from layer to layer.
        if (prefix, suffix) not in self._masks:
            causal_mask = torch.full(
                (suffix, prefix + suffix), -torch.inf, dtype=like.dtype, device=like.device
            )
            self._masks[prefix, suffix] = causal_mask.triu(prefix + 1)
        return self._masks[prefix, suffix]


def _attend_heads(
    q_BtKd: Tensor, k_BsKd: Tensor, v_BsKd: Tensor, mask: Tensor | None, heads: Heads
) -> Tensor:
    """Attend from equal segments, (B, t, K g, d); causal without a mask, where t equals s."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q_BtKd, k_BsKd, v_BsKd))
    if heads.softcap is None:
        out: Tensor = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=heads.scale, enable_gqa=True
        )
        return out.transpose(1, 2)

    # torch's fused attention knows no softcap: the same by hand.
    segments, _, length, width = q.shape
    if mask is None:
        mask = torch.full((length, length), -torch.inf, dtype=q.dtype, device=q.device).triu(1)

    q_BKgtd = q.reshape(segments, k.shape[1], -1, length, width)
    scores = q_BKgtd @ k[:, :, None].transpose(-1, -2) * heads.scale
    scores = apply_softcap(scores, heads.softcap) + mask
    dtype = torch.promote_types(q.dtype, torch.float32)
    weights = torch.softmax(scores, -1, dtype=dtype).to(q.dtype)
    return (weights @ v[:, :, None]).flatten(1, 2).transpose(1, 2)


def _gather_prompts(stored: Tensor, index_ARP: Tensor) -> Tensor:
    """Gather keys or values (A, K, L, d) along each prompt, (N, K, P, d)."""
    rows_A11 = torch.arange(stored.shape[0], device=stored.device)[:, None, None]
    gathered_ARPKd = stored.transpose(1, 2)[rows_A11, index_ARP]

    # Contiguous, since decoding multiplies by this once a token.
    return gathered_ARPKd.flatten(0, 1).transpose(1, 2).contiguous()


class NewTokens:
    """The keys and values of new tokens; the cache of their prompts is stored separately."""

    def __init__(self, cache: PrefillCache, samples: int, max_new_tokens: int) -> None:
        self.max_distance = cache.mask_NP.shape[1] + max_new_tokens
        self._cache = cache
        self._samples = samples
        self._max_new_tokens = max_new_tokens
        self._new_keys_values: dict[int, tuple[Tensor, Tensor]] = {}

    def store(self, heads: Heads) -> tuple[Tensor, Tensor]:
        """Return what holds a layer's new keys and values, (N, K, n, T, d)."""
        if heads.layer not in self._new_keys_values:
            prompts, kv_heads, _, width = self._cache.keys[heads.layer].shape
            # All T tokens at once: growing by one a step would copy the past T times. Zeros: a
            # row's unread places are hidden, and a hidden infinity would still be one.
            shape = (prompts, kv_heads, self._samples, self._max_new_tokens, width)
            stored = heads.key.new_zeros(shape), heads.key.new_zeros(shape)
            self._new_keys_values[heads.layer] = stored
        return self._new_keys_values[heads.layer]


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
        self._place_1 = torch.full((1,), -1, device=keys.device)  # of the new token
        self._width = max_new_tokens if is_static else 0
        self._mask_T = keys.new_full((max_new_tokens,), -torch.inf) if is_static else None

    def begin_pass(self) -> None:
        """Take the next token of every row; call it before each forward pass."""
        self._place_1 += 1
        if self._mask_T is None:
            self._width += 1
        else:
            self._mask_T.index_fill_(0, self._place_1, 0.0)

    def attend(self, heads: Heads) -> Tensor:
        """See :class:`compevo_core.lora.attention.AttentionBackend`; L is M rows of one token."""
        prompts, kv_heads, _, width = self._cache.keys[heads.layer].shape
        rows, n = heads.query.shape[0], self._samples
        per_row, groups = prompts // rows, heads.query.shape[1] // kv_heads

        # (A, K g, R n, d) to (N, K, n, g, d): prompts first, to meet the cache.
        q = heads.query.reshape(rows, kv_heads, groups, per_row, n, width)
        q = q.permute(0, 3, 1, 4, 2, 5).reshape(prompts, kv_heads, n, groups, width) * heads.scale
        so_far = []
        for stored, new in zip(self.store(heads), (heads.key, heads.value), strict=True):
            by_prompt = new.reshape(rows, kv_heads, per_row, n, width).transpose(1, 2)
            by_prompt = by_prompt.reshape(prompts, kv_heads, n, 1, width)
            stored.index_copy_(3, self._place_1, by_prompt)
            so_far.append(stored[:, :, :, : self._width])
        new_keys, new_values = so_far
        out = attend_to_cache(self._cache, heads, q, new_keys, new_values, self._mask_T)

        # Back to (A, R n, K g, d), as transformers expects it.
        out = out.reshape(rows, per_row, kv_heads, n, groups, width).permute(0, 1, 3, 2, 4, 5)
        return out.reshape(rows, per_row * n, kv_heads * groups, width)

    def keep_prompts(self, prompts_N: Tensor) -> None:
        """Leave out all but some prompts, by number, the same number of each adapter."""
        self._cache = self._cache.select(prompts_N)
        for layer, (keys, values) in self._new_keys_values.items():
            self._new_keys_values[layer] = (keys[prompts_N], values[prompts_N])


def attend_to_cache(
    cache: PrefillCache,
    heads: Heads,
    q: Tensor,
    new_keys: Tensor,
    new_values: Tensor,
    new_mask: Tensor | None = None,
) -> Tensor:
    """Attend from new tokens of each row over its prompt and over new tokens, (N, K, n, q, d).

    Scaled queries are (N, K, n, q, d), of q query heads and tokens of a row, new keys and values
    (N, K, n, t, d); the mask, (N, 1, n, q, t) or (t,), is added to the scores of new tokens.
    """
    prompt_keys, prompt_values = cache.keys[heads.layer], cache.values[heads.layer]
    length = prompt_keys.shape[2]

    # All samples of a prompt meet its keys in one product, (N, K, n q, P).
    prompt_scores = q.flatten(2, 3) @ prompt_keys.transpose(-1, -2)
    prompt_scores = prompt_scores.reshape(*q.shape[:-1], length)
    new_scores = q @ new_keys.transpose(-1, -2)

    scores = apply_softcap(torch.cat([prompt_scores, new_scores], -1), heads.softcap)
    scores[..., :length] += cache.padding_mask
    if new_mask is not None:
        scores[..., length:] += new_mask
    dtype = torch.promote_types(q.dtype, torch.float32)
    weights = torch.softmax(scores, -1, dtype=dtype).to(q.dtype)

    out = (weights[..., :length].flatten(2, 3) @ prompt_values).reshape(q.shape)
    return out + weights[..., length:] @ new_values
