"""The loop that samples continuations token by token, all rows in step.

What belongs here: what sampling is told, what it asks of a model, the loop over tokens without a
grammar. What does not: attention of new tokens and the draw of one (``lm.decode``), sampling under
a grammar (``lm.grammar_sampling``), what the tokens mean.

Shapes: A agents, R prompts of an agent, n samples of a prompt, M = R n, T tokens, L new tokens of
an agent in one pass, D hidden, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from compevo_core.lm.attention import AttentionBackend
from compevo_core.lm.decode import DecodeAttention, choose_tokens, draw_uniform
from compevo_core.lm.prefill import PrefillCache


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
    state_AMD = cache.repeat_last_states(settings.samples)
    position_AM = cache.count_tokens(settings.samples)
    is_alive_AM = torch.ones_like(position_AM, dtype=torch.bool)
    stop_ids = torch.tensor(list(settings.stop_tokens), device=state_AMD.device)

    ids: list[Tensor] = []
    masks: list[Tensor] = []
    for step in range(settings.max_new_tokens):
        uniform_AM = None
        if settings.temperature:
            uniform_AM = draw_uniform(is_alive_AM, settings.generators)
        token_AM = choose_tokens(model.logits(state_AMD), settings.temperature, uniform_AM)

        # Rows that have ended stay in the batch: the others keep their places.
        token_AM = torch.where(is_alive_AM, token_AM, settings.pad_token)
        ids.append(token_AM)
        masks.append(is_alive_AM)

        is_alive_AM = is_alive_AM & ~torch.isin(token_AM, stop_ids)
        is_alive_AM = is_alive_AM & ~_find_complete(ids, is_alive_AM, settings.is_complete)
        if not is_alive_AM.any() or step == settings.max_new_tokens - 1:
            break  # nobody reads the state after the last token

        attention.step = step
        state_AMD = model.read_tokens(token_AM, position_AM + step, attention)

    return torch.stack(ids, -1), torch.stack(masks, -1).long()


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
