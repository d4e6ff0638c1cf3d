"""Decoding one token a row: attention against a shared cache, and the draw of the next token.

What belongs here: attention of new tokens over prompts that have been read, the choice of a token
from its logits, also within a grammar. What does not: the loop over tokens (``lm.population``),
reading prompts (``lm.prefill``), what the tokens mean.

Samples of one prompt share its keys and values; only their own tokens are stored for each.

Shapes: A agents, R prompts of an agent, N = A R, n samples of a prompt, M = R n,
P tokens of the longest prompt, T new tokens, t new tokens so far, V vocabulary,
K key/value heads, g query heads of each, d width of a head.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from compevo_core.lm.attention import apply_softcap
from compevo_core.lm.grammar import TokenGrammar
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

        # Shorter prompts are padded on the right: hide the padding from all heads and samples.
        padding_mask_NP = torch.zeros_like(cache.mask_NP, dtype=cache.keys[0].dtype)
        padding_mask_NP = padding_mask_NP.masked_fill(~cache.mask_NP, -torch.inf)
        self._padding_mask = padding_mask_NP[:, None, None, None]

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
        prompt_keys = self._cache.keys[layer]
        prompt_values = self._cache.values[layer]
        prompts, heads, length, width = prompt_keys.shape
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

        # All samples of a prompt meet its keys in one product, (N, K, n g, P).
        prompt_scores = q.reshape(prompts, heads, n * groups, width) @ prompt_keys.transpose(-1, -2)
        prompt_scores = prompt_scores.reshape(prompts, heads, n, groups, length)
        new_scores = q @ new_keys.transpose(-1, -2)

        scores = apply_softcap(torch.cat([prompt_scores, new_scores], -1), softcap)
        scores[..., :length] += self._padding_mask  # new tokens have no padding
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)

        prompt_weights = weights[..., :length].reshape(prompts, heads, n * groups, length)
        out = (prompt_weights @ prompt_values).reshape(q.shape)
        out = out + weights[..., length:] @ new_values

        # Back to (A, R n, K g, d), as transformers expects it.
        out = out.reshape(agents, per_agent, heads, n, groups, width).permute(0, 1, 3, 2, 4, 5)
        return out.reshape(agents, per_agent * n, heads * groups, width)

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


class GrammarRows:
    """The rows of a batch under one grammar, each at its own place in it."""

    def __init__(self, grammar: TokenGrammar, agents: int, rows: int) -> None:
        self._grammar = grammar
        self._written: list[list[tuple[int, ...]]] = [[()] * rows for _ in range(agents)]

    def restrict(self, logits_AMV: Tensor, is_alive_AM: Tensor) -> Tensor:
        """Return the logits with minus infinity at tokens that may not come next.

        Rows that have ended keep theirs: nobody reads what they draw.
        """
        is_allowed_AMV = torch.zeros_like(logits_AMV, dtype=torch.bool)
        for agent, row in is_alive_AM.nonzero().tolist():
            tokens = self._grammar.allowed(self._written[agent][row])
            is_allowed_AMV[agent, row, list(tokens)] = True

        is_hidden_AMV = ~is_allowed_AMV & is_alive_AM[..., None]
        return logits_AMV.masked_fill(is_hidden_AMV, -torch.inf)

    def append(self, token_AM: Tensor) -> None:
        """Write one token a row; what is written to rows that have ended is never read."""
        for written, tokens in zip(self._written, token_AM.tolist(), strict=True):
            written[:] = [(*ids, token) for ids, token in zip(written, tokens, strict=True)]


def find_complete(
    ids: Sequence[Tensor],
    is_alive_AM: Tensor,
    is_complete: Callable[[Sequence[int]], bool] | None,
) -> Tensor:
    """Return which rows (A, M) among those that go on are complete with their last token.

    Args:
        ids: tokens (A, M) so far, step by step.
        is_alive_AM: rows that have not ended; others are not asked about.
        is_complete: whether a continuation, given as its ids, ends here; None: none does.
    """
    is_complete_AM = torch.zeros_like(is_alive_AM)
    if is_complete is None:
        return is_complete_AM

    written_AMT = torch.stack(list(ids), -1).cpu()
    for agent, row in is_alive_AM.nonzero().tolist():
        is_complete_AM[agent, row] = is_complete(written_AMT[agent, row].tolist())
    return is_complete_AM


def choose_tokens(
    logits_AMV: Tensor,
    is_alive_AM: Tensor,
    temperature: float,
    generators: Sequence[torch.Generator],
) -> Tensor:
    """Choose one token a row, (A, M): the most likely at temperature 0, else a draw."""
    if temperature == 0:
        return logits_AMV.argmax(-1)

    probabilities_AMV = torch.softmax(logits_AMV / temperature, dim=-1)
    return draw_tokens(probabilities_AMV, is_alive_AM, generators)


def draw_tokens(
    probabilities_AMV: Tensor, is_alive_AM: Tensor, generators: Sequence[torch.Generator]
) -> Tensor:
    """Draw one token a row by inverse transform sampling, (A, M).

    Args:
        probabilities_AMV: probability of each token; rows need not sum to exactly one.
        is_alive_AM: rows that have not ended. An agent whose rows have all ended draws nothing, so
            that the state of its generator does not depend on how long other agents go on.
        generators: one for each agent.
    """
    # float64: with a large vocabulary the cumulative sum in float32 would favour some tokens.
    uniform_AM = torch.stack(
        [
            torch.rand(alive.shape, dtype=torch.float64, device=alive.device, generator=generator)
            if is_any_alive
            else torch.zeros(alive.shape, dtype=torch.float64, device=alive.device)
            for alive, generator, is_any_alive in zip(
                is_alive_AM, generators, is_alive_AM.any(1), strict=True
            )
        ]
    )

    # Scaled by the last sum rather than normalised: that spares a division of the vocabulary.
    cumulative_AMV = probabilities_AMV.cumsum(-1, dtype=torch.float64)
    threshold_AM = uniform_AM * cumulative_AMV[..., -1]

    # right=True passes over tokens of probability zero, also when the uniform number is zero.
    token_AM = torch.searchsorted(cumulative_AMV, threshold_AM[..., None], right=True).squeeze(-1)
    return token_AM.clamp(max=probabilities_AMV.shape[-1] - 1)
