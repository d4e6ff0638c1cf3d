"""The loop that samples continuations token by token, all rows in step.

What belongs here: what sampling is told, what it asks of a model, the loop over tokens without a
grammar. What does not: attention of new tokens and the draw of one (``lm.decode``), sampling under
a grammar (``lm.grammar_sampling``), what the tokens mean.

Shapes: A agents, R prompts of an agent, n samples of a prompt, M = R n, T tokens, L new tokens of
an agent in one pass, m rows of an agent that are computed, D hidden, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from compevo_core.lm.attention import AttentionBackend
from compevo_core.lm.decode import DecodeAttention, choose_tokens, draw_uniform
from compevo_core.lm.prefill import PrefillCache

_MOST_KEPT = 0.5
"""Share of the rows that may go on where the others are left out: a copy each time that a half of
them has ended, where one at every end would copy the cache as often as there are rows."""


class SampledModel(Protocol):
    """What sampling asks of a model whose prompts have been read."""

    def logits(self, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return logits in float32 of all or of some tokens, states (..., D) to (..., V)."""
        ...

    def read_tokens(
        self, ids_AL: Tensor, positions_AL: Tensor, attention: AttentionBackend
    ) -> Tensor:
        """Return the final hidden states (A, L, D) of new tokens."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How continuations are sampled.

    Attributes:
        samples: continuations of each prompt.
        max_new_tokens: longest continuation.
        temperature: of the softmax; 0 is greedy.
        stop_tokens: ids that end a continuation.
        pad_token: id behind the end of a continuation.
        generators: one for each agent, unless greedy.
        is_complete: whether a continuation, given as its ids, ends with the last of them; None:
            none does.
    """

    samples: int
    max_new_tokens: int
    temperature: float
    stop_tokens: Sequence[int]
    pad_token: int
    generators: Sequence[torch.Generator] = ()
    is_complete: Callable[[Sequence[int]], bool] | None = None


@torch.no_grad()
def sample_tokens(
    model: SampledModel, cache: PrefillCache, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample continuations of every prompt from the whole vocabulary.

    Returns:
        ids (A, M, T) and mask (A, M, T); the last token is part of a continuation, what follows it
        is masked.
    """
    attention = DecodeAttention(cache, settings.samples, settings.max_new_tokens)
    state_AmD = cache.repeat_last_states(settings.samples)
    position_AM = cache.count_tokens(settings.samples)
    is_alive_AM = torch.ones_like(position_AM, dtype=torch.bool)
    rows_Am = torch.arange(position_AM.shape[1], device=state_AmD.device).expand_as(position_AM)
    stop_ids = torch.tensor(list(settings.stop_tokens), device=state_AmD.device)

    ids: list[Tensor] = []
    masks: list[Tensor] = []
    for step in range(settings.max_new_tokens):
        uniform_Am = None
        if settings.temperature:
            # For all rows: what one draws does not depend on which of them are computed.
            uniform_Am = draw_uniform(is_alive_AM, settings.generators).gather(1, rows_Am)
        token_Am = choose_tokens(model.logits(state_AmD), settings.temperature, uniform_Am)

        token_AM = torch.full_like(position_AM, settings.pad_token).scatter(1, rows_Am, token_Am)
        token_AM = torch.where(is_alive_AM, token_AM, settings.pad_token)
        ids.append(token_AM)
        masks.append(is_alive_AM)

        is_alive_AM = is_alive_AM & ~torch.isin(token_AM, stop_ids)
        is_alive_AM = is_alive_AM & ~_find_complete(ids, is_alive_AM, settings.is_complete)
        if not is_alive_AM.any() or step == settings.max_new_tokens - 1:
            break  # nobody reads the state after the last token

        # Samples of one prompt share its keys, and stay as long as any of them.
        if settings.samples == 1:
            rows_Am = _leave_out_ended(rows_Am, is_alive_AM, attention)
        attention.step = step
        position_Am = position_AM.gather(1, rows_Am) + step
        state_AmD = model.read_tokens(token_AM.gather(1, rows_Am), position_Am, attention)

    return torch.stack(ids, -1), torch.stack(masks, -1).long()


def _leave_out_ended(rows_Am: Tensor, is_alive_AM: Tensor, attention: DecodeAttention) -> Tensor:
    """Return the rows that are computed from here on, without most of those that have ended.

    Every agent keeps as many as the agent with the most that go on.
    """
    agents, computed = rows_Am.shape
    going = int(is_alive_AM.sum(1).max())
    if going > _MOST_KEPT * computed:
        return rows_Am

    # Those that go on first, and all in their order.
    has_ended_Am = ~is_alive_AM.gather(1, rows_Am)
    kept_Am = has_ended_Am.int().argsort(dim=1, stable=True)[:, :going].sort(1).values
    first_A1 = torch.arange(agents, device=kept_Am.device)[:, None] * computed
    attention.keep_prompts((first_A1 + kept_Am).flatten())
    return rows_Am.gather(1, kept_Am)


def _find_complete(
    ids: Sequence[Tensor],
    is_alive_AM: Tensor,
    is_complete: Callable[[Sequence[int]], bool] | None,
) -> Tensor:
    """Return which rows (A, M) among those that go on are complete with their last token.

    Args:
        ids: tokens (A, M) so far, step by step.
        is_alive_AM: rows that have not ended; others are not asked about.
        is_complete: see :class:`SamplingSettings`.
    """
    is_complete_AM = torch.zeros_like(is_alive_AM)
    if is_complete is None:
        return is_complete_AM

    written_AMT = torch.stack(list(ids), -1).cpu()
    for agent, row in is_alive_AM.nonzero().tolist():
        is_complete_AM[agent, row] = is_complete(written_AMT[agent, row].tolist())
    return is_complete_AM
