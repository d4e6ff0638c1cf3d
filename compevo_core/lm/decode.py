"""Decoding one token a row: attention against a shared cache, and the draw of the next token.

What belongs here: attention of new tokens over prompts that have been read, the choice of a token
from its logits. What does not: the loop over tokens (``lm.sampling``, ``lm.grammar_sampling``),
attention of rows at places of their own (``lm.ragged_decode``), reading prompts (``lm.prefill``).

Samples of one prompt share its keys and values; only their own tokens are stored for each.

Shapes: A agents, R prompts of an agent, N = A R, n samples of a prompt, M = R n,
P tokens of the longest prompt, T new tokens, t new tokens so far, V vocabulary,
K key/value heads, g query heads of each, d width of a head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from compevo_core.lm.attention import apply_softcap
from compevo_core.lm.prefill import PrefillCache


class DecodeAttention:
    """Attention of one new token a row, over its prompt and its own tokens so far.

    Attributes:
        step: number of the new token, from 0; the caller sets it before each forward pass.
        max_distance: longest distance that a token looks back, in tokens.
    """

    def __init__(self, cache: PrefillCache, samples: int, max_new_tokens: int) -> None:
        self.step = 0
        self.max_distance = cache.mask_NP.shape[1] + max_new_tokens
        self._cache = cache
        self._samples = samples
        self._max_new_tokens = max_new_tokens
        self._new_keys_values: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """See :class:`compevo_core.lm.attention.AttentionBackend`; L is M rows of one token."""
        prompts, heads, _, width = self._cache.keys[layer].shape
        agents, n = query.shape[0], self._samples
        per_agent, groups = prompts // agents, query.shape[1] // heads

        # (A, K g, R n, d) to (N, K, n, g, d): prompts first, to meet the cache.
        q = query.reshape(agents, heads, groups, per_agent, n, width).permute(0, 3, 1, 4, 2, 5)
        q = q.reshape(prompts, heads, n, groups, width) * scale
        new_keys, new_values = self._append_token(
            layer,
            key.reshape(agents, heads, per_agent, n, width),
            value.reshape(agents, heads, per_agent, n, width),
        )
        out = attend_to_cache(self._cache, layer, q, new_keys, new_values, softcap)

        # Back to (A, R n, K g, d), as transformers expects it.
        out = out.reshape(agents, per_agent, heads, n, groups, width).permute(0, 1, 3, 2, 4, 5)
        return out.reshape(agents, per_agent * n, heads * groups, width)

    def keep_prompts(self, prompts_N: Tensor) -> None:
        """Leave out all but some prompts and what followed them, the same number of each agent.

        Args:
            prompts_N: their numbers among those of all agents, agent by agent.
        """
        self._cache = self._cache.take(prompts_N)
        for layer, (keys, values) in self._new_keys_values.items():
            self._new_keys_values[layer] = (keys[prompts_N], values[prompts_N])

    def _append_token(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new token's key and value, (A, K, R, n, d) each.

        Returns:
            keys and values of all new tokens so far, (N, K, n, t, d) each.
        """
        if layer not in self._new_keys_values:
            # All T tokens at once: growing by one a step would copy the past T times.
            agents, heads, per_agent, n, width = key.shape
            shape = (agents * per_agent, heads, n, self._max_new_tokens, width)
            self._new_keys_values[layer] = (key.new_empty(shape), key.new_empty(shape))

        stored_keys, stored_values = self._new_keys_values[layer]
        for stored, new in ((stored_keys, key), (stored_values, value)):
            slot = stored[:, :, :, self.step]
            slot.copy_(new.transpose(1, 2).reshape(slot.shape))

        so_far = self.step + 1
        return stored_keys[:, :, :, :so_far], stored_values[:, :, :, :so_far]


def attend_to_cache(
    cache: PrefillCache,
    layer: int,
    q: Tensor,
    new_keys: Tensor,
    new_values: Tensor,
    softcap: float | None,
    new_mask: Tensor | None = None,
) -> Tensor:
    """Attend from new tokens of each row over its prompt and over new tokens.

    Args:
        cache: the prompts.
        layer: number of the layer.
        q: scaled queries (N, K, n, q, d), of q query heads and tokens of a row.
        new_keys: of new tokens, (N, K, n, t, d).
        new_values: the same.
        softcap: bound of the scores, see :func:`compevo_core.lm.attention.apply_softcap`.
        new_mask: added to the scores of new tokens, (N, 1, n, q, t); None: all are seen.

    Returns:
        (N, K, n, q, d).
    """
    prompt_keys, prompt_values = cache.keys[layer], cache.values[layer]
    length = prompt_keys.shape[2]

    # All samples of a prompt meet its keys in one product, (N, K, n q, P).
    prompt_scores = q.flatten(2, 3) @ prompt_keys.transpose(-1, -2)
    prompt_scores = prompt_scores.reshape(*q.shape[:-1], length)
    new_scores = q @ new_keys.transpose(-1, -2)

    scores = apply_softcap(torch.cat([prompt_scores, new_scores], -1), softcap)
    scores[..., :length] += cache.padding_mask
    if new_mask is not None:
        scores[..., length:] += new_mask
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)

    out = (weights[..., :length].flatten(2, 3) @ prompt_values).reshape(q.shape)
    return out + weights[..., length:] @ new_values


def choose_tokens(logits: Tensor, temperature: float, uniform: Tensor | None) -> Tensor:
    """Choose one token a row, (..., V) to (...): the most likely at temperature 0, else a draw.

    Args:
        logits: minus infinity where a token may not come.
        temperature: of the softmax.
        uniform: a number between 0 and 1 for each row; None at temperature 0.
    """
    if uniform is None:
        return logits.argmax(-1)
    return invert_distribution(torch.softmax(logits / temperature, dim=-1), uniform)


def draw_uniform(is_alive_AM: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw a number between 0 and 1 for each row, (A, M) in float64.

    Args:
        is_alive_AM: rows that have not ended. An agent whose rows have all ended draws nothing, so
            that the state of its generator does not depend on how long other agents go on.
        generators: one for each agent.
    """
    # float64: with a large vocabulary the cumulative sum in float32 would favour some tokens.
    return torch.stack(
        [
            torch.rand(alive.shape, dtype=torch.float64, device=alive.device, generator=generator)
            if is_any_alive
            else torch.zeros(alive.shape, dtype=torch.float64, device=alive.device)
            for alive, generator, is_any_alive in zip(
                is_alive_AM, generators, is_alive_AM.any(1), strict=True
            )
        ]
    )


def invert_distribution(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return the token that each row draws with its number, (..., V) and (...) to (...).

    By inverse transform sampling, in the order of the tokens.

    Args:
        probabilities: of each token; rows need not sum to exactly one.
        uniform: float64, between 0 and 1.
    """
    # Scaled by the last sum rather than normalised: that spares a division of the vocabulary.
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    threshold = uniform * cumulative[..., -1]

    # right=True passes over tokens of probability zero, also when the uniform number is zero.
    token = torch.searchsorted(cumulative, threshold[..., None], right=True).squeeze(-1)
    return token.clamp(max=probabilities.shape[-1] - 1)
