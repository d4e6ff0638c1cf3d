"""Attention of new tokens over prompts that have been read, and the draw of one token.

What belongs here: one token per row with all rows in step, several tokens per row at their own
places, the choice of a token from its logits. What does not: the loop over tokens
(``lm.sampling``), reading prompts (``lm.attention``).

Samples of one prompt share its keys and values; only their own tokens are stored for each. In a
ragged pass an agent's new tokens follow each other without padding between rows; only attention
takes them row by row, padded to the longest run.

Shapes: A agents, R prompts of an agent, N = A R, n samples of a prompt, M = R n, P tokens of the
longest prompt, T new tokens, t tokens of the longest row so far, V vocabulary, K key/value heads,
g query heads of each, d width of a head; in a ragged pass F new tokens of all rows, L new tokens of
the agent with the most, c new tokens of the row with the most.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from compevo_core.lm.attention import Heads, PrefillCache, apply_softcap


class _NewTokens:
    """The keys and values of new tokens; the cache of their prompts is stored separately."""

    def __init__(self, cache: PrefillCache, samples: int, max_new_tokens: int) -> None:
        self.max_distance = cache.mask_NP.shape[1] + max_new_tokens
        self._cache = cache
        self._samples = samples
        self._max_new_tokens = max_new_tokens
        self._new_keys_values: dict[int, tuple[Tensor, Tensor]] = {}

    def _store(self, heads: Heads) -> tuple[Tensor, Tensor]:
        """Return what holds a layer's new keys and values, (N, K, n, T, d)."""
        if heads.layer not in self._new_keys_values:
            prompts, kv_heads, _, width = self._cache.keys[heads.layer].shape
            # All T tokens at once: growing by one a step would copy the past T times. Zeros: a
            # row's unread places are hidden, and a hidden infinity would still be one.
            shape = (prompts, kv_heads, self._samples, self._max_new_tokens, width)
            stored = heads.key.new_zeros(shape), heads.key.new_zeros(shape)
            self._new_keys_values[heads.layer] = stored
        return self._new_keys_values[heads.layer]


class DecodeAttention(_NewTokens):
    """Attention of one new token a row, over its prompt and its own tokens so far.

    The caller sets ``step``, the number of the new token, before each forward pass.
    """

    step = 0

    def attend(self, heads: Heads) -> Tensor:
        """See :class:`compevo_core.lm.attention.AttentionBackend`; L is M rows of one token."""
        prompts, kv_heads, _, width = self._cache.keys[heads.layer].shape
        agents, n = heads.query.shape[0], self._samples
        per_agent, groups = prompts // agents, heads.query.shape[1] // kv_heads

        # (A, K g, R n, d) to (N, K, n, g, d): prompts first, to meet the cache.
        q = heads.query.reshape(agents, kv_heads, groups, per_agent, n, width)
        q = q.permute(0, 3, 1, 4, 2, 5).reshape(prompts, kv_heads, n, groups, width) * heads.scale
        so_far = []
        for stored, new in zip(self._store(heads), (heads.key, heads.value), strict=True):
            slot = stored[:, :, :, self.step]
            by_prompt = new.reshape(agents, kv_heads, per_agent, n, width).transpose(1, 2)
            slot.copy_(by_prompt.reshape(slot.shape))
            so_far.append(stored[:, :, :, : self.step + 1])
        new_keys, new_values = so_far
        out = attend_to_cache(self._cache, heads, q, new_keys, new_values)

        # Back to (A, R n, K g, d), as transformers expects it.
        out = out.reshape(agents, per_agent, kv_heads, n, groups, width).permute(0, 1, 3, 2, 4, 5)
        return out.reshape(agents, per_agent * n, kv_heads * groups, width)

    def keep_prompts(self, prompts_N: Tensor) -> None:
        """Leave out all but some prompts, by number, the same number of each agent."""
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
    (N, K, n, t, d); the mask (N, 1, n, q, t) is added to the scores of new tokens.
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
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)

    out = (weights[..., :length].flatten(2, 3) @ prompt_values).reshape(q.shape)
    return out + weights[..., length:] @ new_values


def choose_tokens(logits: Tensor, temperature: float, uniform: Tensor | None) -> Tensor:
    """Choose one token per row, (..., V) to (...): the most likely, or by a number from 0 to 1."""
    if uniform is None:
        return logits.argmax(-1)
    return invert_distribution(torch.softmax(logits / temperature, dim=-1), uniform)


def sample_uniform(is_alive_AM: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw a number between 0 and 1 for each row, (A, M) in float64, from one generator per agent.

    An agent whose rows have all ended samples nothing, so that the state of its generator does not
    depend on how long the other agents write.
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

    By inverse transform sampling, in the order of the tokens; rows need not sum to exactly one.
    """
    # Scaled by the last sum rather than normalised: that spares a division of the vocabulary.
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    threshold = uniform * cumulative[..., -1]

    # right=True passes over tokens of probability zero, also when the uniform number is zero.
    token = torch.searchsorted(cumulative, threshold[..., None], right=True).squeeze(-1)
    return token.clamp(max=probabilities.shape[-1] - 1)


@dataclasses.dataclass(frozen=True)
class TokenRun:
    """New tokens of one of an agent's rows, behind ``start`` tokens that have been read before."""

    agent: int
    row: int
    start: int
    ids: Sequence[int]


class RaggedTokens:
    """The new tokens of one pass: agent, row, and places in row, run and agent of each.

    ``last_runs`` holds of each run the number of its last token, from 0 to F - 1.
    """

    def __init__(
        self, runs: Sequence[TokenRun], agents: int, pad_token: int, device: torch.device
    ) -> None:
        columns = [0] * agents
        places: list[tuple[int, int, int, int, int]] = []
        self.last_runs: list[int] = []
        for run in runs:
            for offset in range(len(run.ids)):
                column = columns[run.agent]
                places.append((run.agent, run.row, offset, run.start + offset, column))
                columns[run.agent] += 1
            self.last_runs.append(len(places) - 1)

        self.width = max(len(run.ids) for run in runs)
        self.agent_F, self.row_F, self.offset_F, self.place_F, self.column_F = torch.tensor(
            places, device=device
        ).unbind(1)
        ids_F = torch.tensor([token for run in runs for token in run.ids], device=device)
        self.ids_AL = ids_F.new_full((agents, max(columns)), pad_token)
        self.ids_AL[self.agent_F, self.column_F] = ids_F

    def list_positions(self, first_AM: Tensor) -> Tensor:
        """Return the positions of tokens (A, L), given where each row's first new token is."""
        position_AL = torch.zeros_like(self.ids_AL)
        position_F = first_AM[self.agent_F, self.row_F] + self.place_F
        position_AL[self.agent_F, self.column_F] = position_F
        return position_AL


class RaggedDecodeAttention(_NewTokens):
    """Attention of runs of new tokens, over their rows' prompts and their rows' tokens so far."""

    _tokens: RaggedTokens
    _mask: Tensor

    def begin_pass(self, tokens: RaggedTokens) -> None:
        """Take the tokens of the next forward pass."""
        agents, n = tokens.ids_AL.shape[0], self._samples
        per_agent = len(self._cache.mask_NP) // agents
        so_far = int(tokens.place_F.max()) + 1
        last_AMc = tokens.ids_AL.new_zeros(agents, per_agent * n, tokens.width)
        last_AMc[tokens.agent_F, tokens.row_F, tokens.offset_F] = tokens.place_F

        # A token sees those of its row up to itself; what padding sees is never read.
        is_hidden_AMct = torch.arange(so_far, device=last_AMc.device) > last_AMc[..., None]
        mask_AMct = torch.zeros_like(is_hidden_AMct, dtype=self._cache.keys[0].dtype)
        mask_AMct = mask_AMct.masked_fill(is_hidden_AMct, -torch.inf)
        self._mask = mask_AMct.reshape(agents * per_agent, 1, n, tokens.width, so_far)
        self._tokens = tokens

    def attend(self, heads: Heads) -> Tensor:
        """See :class:`compevo_core.lm.attention.AttentionBackend`."""
        tokens, n, query = self._tokens, self._samples, heads.query
        prompts, kv_heads, _, width = self._cache.keys[heads.layer].shape
        per_agent, groups = prompts // len(query), query.shape[1] // kv_heads

        # Row by row, (A, M, c, K g, d), and to (N, K, n, c g, d): prompts first, to meet the cache.
        rows = query.new_zeros(len(query), per_agent * n, tokens.width, *query.shape[1:4:2])
        where_F = (tokens.agent_F, tokens.row_F, tokens.offset_F)
        rows[where_F] = query[tokens.agent_F, :, tokens.column_F]
        q = rows.reshape(prompts, n, tokens.width, kv_heads, groups, width)
        q = q.permute(0, 3, 1, 2, 4, 5)
        q = q.reshape(prompts, kv_heads, n, tokens.width * groups, width) * heads.scale

        prompt_F = tokens.agent_F * per_agent + tokens.row_F // n
        so_far = []
        for stored, new in zip(self._store(heads), (heads.key, heads.value), strict=True):
            in_row_F = new[tokens.agent_F, :, tokens.column_F]
            stored[prompt_F, :, tokens.row_F % n, tokens.place_F] = in_row_F
            so_far.append(stored[:, :, :, : self._mask.shape[-1]])
        mask = self._mask.repeat_interleave(groups, 3)
        new_keys, new_values = so_far
        out = attend_to_cache(self._cache, heads, q, new_keys, new_values, mask)

        # Back to (A, M, c, K g, d), and token by token to (A, L, K g, d).
        out = out.reshape(prompts, kv_heads, n, tokens.width, groups, width)
        out = out.permute(0, 2, 3, 1, 4, 5)
        packed = query.new_zeros(query.transpose(1, 2).shape)
        packed[tokens.agent_F, tokens.column_F] = out.reshape(rows.shape)[where_F]
        return packed
