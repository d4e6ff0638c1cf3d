"""Attention over packed prompts, and of new tokens over prompts already read.

What belongs here: the attention function that transformers calls in every layer of a population's backbone, and the
two ways it works: reading a packed batch (with gradient), and decoding one token a row against shared keys and values.
What does not: layouts (``packing``), adapters, sampling.
A branch attends to its stem where it lies: nothing is repeated for the members of a group, in memory or in time
(the idea of shared-prefix attention: Juravsky et al., Hydragen, 2024). Without a reader or decoder the function is
transformers' own, so that the model can still be called as usual.
Legend: A agents, R leaves of an agent, N = A R, n samples of a leaf, L packed length, P longest path, T new tokens,
K key/value heads, g query heads of each.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from compevo_core.errors import ConfigError
from compevo_core.lm.packing import PackedPrompts

NAME = "compevo"


def capped(scores: Tensor, cap: float | None) -> Tensor:
    """``cap tanh(s / cap)``, as some backbones bound their scores; without a cap the scores."""
    return scores if cap is None else torch.tanh(scores / cap) * cap


class AttentionBackend(Protocol):
    """What computes attention in a layer of a population."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """Query (A, K g, L, d), key and value (A, K, L, d) to (A, L, K g, d)."""
        ...

    @property
    def reach(self) -> int:
        """Longest distance a token looks back, in tokens."""
        ...


class PrefillAttention:
    """Attention within a packed batch; keeps keys and values of every layer if asked to."""

    def __init__(self, packed: PackedPrompts, *, keep: bool = False) -> None:
        self.packed, self.keep = packed, keep
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self._masks: dict[tuple[int, int], Tensor] = {}
        self.reach = int(packed.positions_AL.max()) + 1

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """See :class:`AttentionBackend`."""
        if self.keep:
            self.keys[layer], self.values[layer] = key, value
        rows = []
        for agent, parts in enumerate(
            zip(query.unbind(0), key.unbind(0), value.unbind(0), strict=True)
        ):
            lengths = self.packed.lengths(agent)
            q, k, v = (torch.split(part, lengths, dim=1) for part in parts)
            out = []
            for i, segment in enumerate(self.packed.segments[agent]):
                if segment.parent is None:
                    out.append(_attend(q[i], k[i], v[i], None, scale, softcap))
                else:
                    above = segment.parent
                    whole = (torch.cat([k[above], k[i]], 1), torch.cat([v[above], v[i]], 1))
                    out.append(
                        _attend(
                            q[i],
                            *whole,
                            self._mask(lengths[above], lengths[i], query),
                            scale,
                            softcap,
                        )
                    )
            out += [torch.zeros_like(q[i]) for i in range(len(out), len(lengths))]
            rows.append(torch.cat(out, 1))
        return torch.stack(rows).transpose(1, 2)

    def _mask(self, stem: int, branch: int, like: Tensor) -> Tensor:
        """Additive mask of a branch after its stem, (branch, stem + branch)."""
        if (stem, branch) not in self._masks:
            wall = torch.full(
                (branch, stem + branch), -torch.inf, dtype=like.dtype, device=like.device
            )
            self._masks[stem, branch] = wall.triu(stem + 1)
        return self._masks[stem, branch]


class DecodeAttention:
    """Attention of one new token a row, over its leaf's path (shared by its n samples) and its own tokens so far."""

    def __init__(
        self, keys: list[Tensor], values: list[Tensor], mask_NP: Tensor, samples: int, tokens: int
    ) -> None:
        self.keys, self.values, self.samples, self.tokens = keys, values, samples, tokens
        wall_NP = torch.zeros_like(mask_NP, dtype=keys[0].dtype).masked_fill(~mask_NP, -torch.inf)
        self._wall = wall_NP[:, None, None, None]
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self.step = 0
        self.reach = mask_NP.shape[1] + tokens

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """See :class:`AttentionBackend`; L is R n rows, each one token."""
        base_k, base_v = self.keys[layer], self.values[layer]
        leaves, heads, length, width = base_k.shape
        agents, n = query.shape[0], self.samples
        per_agent, groups = leaves // agents, query.shape[1] // heads
        q = query.reshape(agents, heads, groups, per_agent, n, width).permute(0, 3, 1, 4, 2, 5)
        q = q.reshape(leaves, heads, n, groups, width) * scale
        own_k, own_v = self._remember(
            layer,
            key.reshape(agents, heads, per_agent, n, width),
            value.reshape(agents, heads, per_agent, n, width),
        )
        shared = (q.reshape(leaves, heads, n * groups, width) @ base_k.transpose(-1, -2)).reshape(
            leaves, heads, n, groups, length
        )
        scores = capped(torch.cat([shared, q @ own_k.transpose(-1, -2)], -1), softcap)
        scores[..., :length] += self._wall
        chances = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
        out = (chances[..., :length].reshape(leaves, heads, n * groups, length) @ base_v).reshape(
            q.shape
        )
        out = out + chances[..., length:] @ own_v
        out = out.reshape(agents, per_agent, heads, n, groups, width).permute(0, 1, 3, 2, 4, 5)
        return out.reshape(agents, per_agent * n, heads * groups, width)

    def _remember(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Stores this step's keys and values, (A, K, R, n, d) each; returns all steps' so far, (N, K, n, t, d)."""
        if layer not in self._own:
            agents, heads, per_agent, n, width = key.shape
            shape = (agents * per_agent, heads, n, self.tokens, width)
            self._own[layer] = (key.new_empty(shape), key.new_empty(shape))
        for store, new in zip(self._own[layer], (key, value), strict=True):
            store[:, :, :, self.step] = new.transpose(1, 2).reshape(store[:, :, :, self.step].shape)
        keys, values = self._own[layer]
        return keys[:, :, :, : self.step + 1], values[:, :, :, : self.step + 1]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """One segment: q (K g, t, d), k and v (K, s, d) to (K g, t, d); causal if there is no mask."""
    if softcap is None:
        out: Tensor = nn.functional.scaled_dot_product_attention(
            q[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=True,
        )
        return out[0]
    heads, length = k.shape[0], q.shape[1]
    if mask is None:
        mask = torch.full((length, length), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
    scores = q.reshape(heads, -1, length, q.shape[-1]) @ k[:, None].transpose(-1, -2) * scale
    scores = capped(scores, softcap) + mask
    return (torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v[:, None]).reshape(
        q.shape
    )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    attender: AttentionBackend | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    if attender is None:
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
    if sliding_window is not None and attender.reach > sliding_window:
        raise ConfigError(
            f"a prompt and its answer are {attender.reach} tokens long, and this backbone looks back "
            f"{sliding_window}; lower backbone.context_tokens"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attender.attend(int(module.layer_idx), query, key, value, scale, softcap), None  # type: ignore[arg-type]


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
