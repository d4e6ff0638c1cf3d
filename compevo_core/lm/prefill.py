"""Attention within packed prompts, and the cache that reading them leaves.

What belongs here: attention over a packed batch (with gradient), and its keys and values gathered
prompt by prompt. What does not: the layout (``lm.packing``), decoding against the cache
(``lm.decode``).

A suffix attends to its prefix where it lies: nothing is repeated for the members of a group, in
memory or in time (shared-prefix attention: Juravsky et al., Hydragen, 2024).

Shapes: A agents, R prompts of an agent, N = A R, L packed length, P tokens of the longest prompt,
K key/value heads, g query heads of each, d width of a head, D hidden; within one segment
t query tokens and s key tokens.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from compevo_core.lm.attention import apply_softcap
from compevo_core.lm.packing import PackedPrompts


@dataclasses.dataclass(frozen=True)
class PrefillCache:
    """What decoding needs of prompts that have been read.

    Attributes:
        keys: of every layer, (N, K, P, d).
        values: of every layer, (N, K, P, d).
        mask_NP: true where a token is real and not padding.
        last_states_ARD: final hidden state at the last token of every prompt.
    """

    keys: list[Tensor]
    values: list[Tensor]
    mask_NP: Tensor
    last_states_ARD: Tensor


class PrefillAttention:
    """Causal attention within each prompt of a packed batch.

    Attributes:
        keeps_cache: whether keys and values of every layer are kept, for :meth:`build_cache`.
        max_distance: longest distance that a token looks back, in tokens.
    """

    def __init__(self, packed: PackedPrompts, *, keeps_cache: bool = False) -> None:
        self.keeps_cache = keeps_cache
        self.max_distance = int(packed.positions_AL.max()) + 1
        self._packed = packed
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._masks: dict[tuple[int, int], Tensor] = {}

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """See :class:`compevo_core.lm.attention.AttentionBackend`."""
        # Only without gradient: kept keys would hold the whole graph in memory.
        if self.keeps_cache:
            self._keys[layer] = key
            self._values[layer] = value

        rows = [
            self._attend_row(agent, q, k, v, scale, softcap)
            for agent, (q, k, v) in enumerate(zip(query, key, value, strict=True))
        ]
        return torch.stack(rows).transpose(1, 2)

    def build_cache(self, last_states_ARD: Tensor) -> PrefillCache:
        """Gather the kept keys and values prompt by prompt."""
        packed = self._packed
        indices = [
            torch.tensor(packed.token_indices(agent, prompt))
            for agent, numbers in enumerate(packed.prompt_segments)
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

    def _attend_row(
        self, agent: int, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None
    ) -> Tensor:
        """Attend within one agent's row: q (K g, L, d), k and v (K, L, d) to (K g, L, d)."""
        # One small attention a segment, in place of a mask over the whole row: tokens of different
        # groups never meet, so most of that mask would be empty.
        lengths = self._packed.segment_lengths(agent)
        q_parts, k_parts, v_parts = (torch.split(part, lengths, dim=1) for part in (q, k, v))

        out = []
        for number, segment in enumerate(self._packed.segments[agent]):
            keys = k_parts[number]
            values = v_parts[number]
            mask = None  # causal: a prefix looks at itself alone

            if segment.parent is not None:
                keys = torch.cat([k_parts[segment.parent], keys], 1)
                values = torch.cat([v_parts[segment.parent], values], 1)
                mask = self._suffix_mask(lengths[segment.parent], lengths[number], q)
            out.append(_attend_segment(q_parts[number], keys, values, mask, scale, softcap))

        # The padding behind a shorter row has no segment; its states are never read.
        out += [torch.zeros_like(part) for part in q_parts[len(out) :]]
        return torch.cat(out, 1)

    def _suffix_mask(self, prefix: int, suffix: int, like: Tensor) -> Tensor:
        """Return the additive mask of a suffix after its prefix, (suffix, prefix + suffix)."""
        # Sizes repeat from layer to layer.
        if (prefix, suffix) not in self._masks:
            causal_mask = torch.full(
                (suffix, prefix + suffix), -torch.inf, dtype=like.dtype, device=like.device
            )
            self._masks[prefix, suffix] = causal_mask.triu(prefix + 1)
        return self._masks[prefix, suffix]


def _attend_segment(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Attend from one segment: q (K g, t, d), k and v (K, s, d) to (K g, t, d).

    Causal if there is no mask, in which case t equals s.
    """
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

    # torch's fused attention knows no softcap: the same by hand.
    heads, length = k.shape[0], q.shape[1]
    if mask is None:
        mask = torch.full((length, length), -torch.inf, dtype=q.dtype, device=q.device).triu(1)

    scores = q.reshape(heads, -1, length, q.shape[-1]) @ k[:, None].transpose(-1, -2) * scale
    scores = apply_softcap(scores, softcap) + mask
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    return (weights @ v[:, None]).reshape(q.shape)


def _gather_prompts(stored: Tensor, index_ARP: Tensor) -> Tensor:
    """Gather keys or values (A, K, L, d) along each prompt, (N, K, P, d)."""
    agents_A11 = torch.arange(stored.shape[0], device=stored.device)[:, None, None]
    gathered_ARPKd = stored.transpose(1, 2)[agents_A11, index_ARP]

    # Contiguous, since decoding multiplies by this once a token.
    return gathered_ARPKd.flatten(0, 1).transpose(1, 2).contiguous()
