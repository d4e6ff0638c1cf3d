"""Decoding several tokens a row at once, each row at a place of its own.

What belongs here: which row each new token of a pass belongs to, attention of such tokens over
prompts that have been read and over earlier ones of their row. What does not: one token a row, all
at one place (``lm.decode``), which tokens are read (``lm.grammar_sampling``).

An agent's new tokens stand one behind the other, so that the layers multiply by no padding but that
behind agents with fewer of them. Attention alone takes them row by row, padded to the longest run.

Shapes: A agents, R prompts of an agent, N = A R, n samples of a prompt, M = R n, F new tokens of
all rows, L those of the agent with the most, c those of the row with the most, t tokens of the
longest row so far, K key/value heads, g query heads of each, d width of a head.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from compevo_core.lm.decode import attend_to_cache
from compevo_core.lm.prefill import PrefillCache


@dataclasses.dataclass(frozen=True)
class TokenRun:
    """New tokens of one row.

    Attributes:
        agent: the agent, as a row of the batch.
        row: one of the agent's M rows.
        start: tokens of the row that have been read before.
        ids: the tokens.
    """

    agent: int
    row: int
    start: int
    ids: Sequence[int]


class RaggedTokens:
    """The new tokens of one pass, agent by agent.

    Attributes:
        agent_F: the agent of each token.
        row_F: its row.
        offset_F: its place among the new tokens of the row.
        place_F: its place among all tokens of the row.
        column_F: its place among the new tokens of the agent.
        last_runs: of each run the number of its last token, from 0 to F - 1.
        ids_AL: token ids, padded on the right.
        width: c.
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
        """Return the tokens' positions (A, L), given that of the first new token of each row."""
        position_AL = torch.zeros_like(self.ids_AL)
        position_F = first_AM[self.agent_F, self.row_F] + self.place_F
        position_AL[self.agent_F, self.column_F] = position_F
        return position_AL


class RaggedDecodeAttention:
    """Attention of runs of new tokens, over their rows' prompts and their rows' tokens so far.

    Attributes:
        max_distance: longest distance that a token looks back, in tokens.
    """

    def __init__(self, cache: PrefillCache, samples: int, max_new_tokens: int) -> None:
        self.max_distance = cache.mask_NP.shape[1] + max_new_tokens
        self._cache = cache
        self._samples = samples
        self._max_new_tokens = max_new_tokens
        self._new_keys_values: dict[int, tuple[Tensor, Tensor]] = {}
        self._tokens: RaggedTokens
        self._mask: Tensor

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
        tokens, n, width = self._tokens, self._samples, query.shape[-1]
        prompts, heads = self._cache.keys[layer].shape[:2]
        agents, per_agent, groups = len(query), prompts // len(query), query.shape[1] // heads

        # Row by row, (A, M, c, K g, d), and to (N, K, n, c g, d): prompts first, to meet the cache.
        rows = query.new_zeros(agents, per_agent * n, tokens.width, *query.shape[1:4:2])
        where_F = (tokens.agent_F, tokens.row_F, tokens.offset_F)
        rows[where_F] = query[tokens.agent_F, :, tokens.column_F]
        q = rows.reshape(prompts, n, tokens.width, heads, groups, width).permute(0, 3, 1, 2, 4, 5)
        q = q.reshape(prompts, heads, n, tokens.width * groups, width) * scale

        new_keys, new_values = self._append_tokens(layer, key, value)
        mask = self._mask.repeat_interleave(groups, 3)
        out = attend_to_cache(self._cache, layer, q, new_keys, new_values, softcap, mask)

        # Back to (A, M, c, K g, d), and token by token to (A, L, K g, d).
        out = out.reshape(prompts, heads, n, tokens.width, groups, width).permute(0, 2, 3, 1, 4, 5)
        packed = query.new_zeros(query.transpose(1, 2).shape)
        packed[tokens.agent_F, tokens.column_F] = out.reshape(rows.shape)[where_F]
        return packed

    def _append_tokens(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new tokens' keys and values, (A, K, L, d) each.

        Returns:
            keys and values of the rows' tokens so far, (N, K, n, t, d) each.
        """
        agents, heads, _, width = key.shape
        per_agent, n = len(self._cache.mask_NP) // agents, self._samples
        if layer not in self._new_keys_values:
            # Zeros: a row's unread places are hidden, and a hidden infinity would still be one.
            shape = (agents * per_agent, heads, n, self._max_new_tokens, width)
            self._new_keys_values[layer] = (key.new_zeros(shape), key.new_zeros(shape))

        tokens = self._tokens
        prompt_F = tokens.agent_F * per_agent + tokens.row_F // n
        stored_keys, stored_values = self._new_keys_values[layer]
        for stored, new in ((stored_keys, key), (stored_values, value)):
            stored[prompt_F, :, tokens.row_F % n, tokens.place_F] = new[
                tokens.agent_F, :, tokens.column_F
            ]

        so_far = self._mask.shape[-1]
        return stored_keys[:, :, :, :so_far], stored_values[:, :, :, :so_far]
