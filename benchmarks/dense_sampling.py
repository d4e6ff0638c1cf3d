"""Sampling under a grammar the ordinary way: a forward pass and all logits for every token.

What belongs here: the loop that the engine's own (``lm.sampling``) is compared with, for
its speed and for the tokens that it writes. What does not: timing (``cases``).

Shapes: A agents, M rows of an agent, T tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from compevo_core.lm.attention import PrefillCache
from compevo_core.lm.decode import DecodeAttention
from compevo_core.lm.grammar import TokenGrammar
from compevo_core.lm.population import Population
from compevo_core.lm.sampling import SamplingSettings


@torch.no_grad()
def sample_every_token(
    population: Population, cache: PrefillCache, grammar: TokenGrammar, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample as the population does; return ids and mask (A, M, T)."""
    attention = DecodeAttention(cache, settings.samples, settings.max_new_tokens)
    state_AMD = cache.repeat_last_states(settings.samples)
    position_AM = cache.count_tokens(settings.samples)
    is_alive_AM = torch.ones_like(position_AM, dtype=torch.bool)
    written: list[list[list[int]]] = [[[] for _ in row] for row in is_alive_AM]
    stop_ids = torch.tensor(list(settings.stop_tokens))

    ids, masks = [], []
    for step in range(settings.max_new_tokens):
        logits_AMV = population.logits(state_AMD)
        is_allowed_AMV = torch.zeros_like(logits_AMV, dtype=torch.bool)
        for agent, row in is_alive_AM.nonzero().tolist():
            is_allowed_AMV[agent, row, list(grammar.allowed(tuple(written[agent][row])))] = True
        logits_AMV = logits_AMV.masked_fill(~is_allowed_AMV & is_alive_AM[..., None], -torch.inf)

        token_AM = logits_AMV.argmax(-1)
        if settings.temperature:
            token_AM = _draw(logits_AMV / settings.temperature, is_alive_AM, settings.generators)
        token_AM = torch.where(is_alive_AM, token_AM, settings.pad_token)
        ids.append(token_AM)
        masks.append(is_alive_AM)

        is_alive_AM = is_alive_AM & ~torch.isin(token_AM, stop_ids)
        for agent, tokens in enumerate(token_AM.tolist()):
            for row, token in enumerate(tokens):
                written[agent][row].append(token)
                if settings.is_complete is not None and is_alive_AM[agent, row]:
                    is_alive_AM[agent, row] = not settings.is_complete(written[agent][row])
        if not is_alive_AM.any() or step == settings.max_new_tokens - 1:
            break

        attention.step = step
        state_AMD = population.read_tokens(token_AM, position_AM + step, attention)
    return torch.stack(ids, -1), torch.stack(masks, -1).long()


def _draw(scores_AMV: Tensor, is_alive_AM: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Sample one token per row; an agent samples while one of its rows is unfinished."""
    uniform_AM = torch.zeros(is_alive_AM.shape, dtype=torch.float64)
    for agent, generator in enumerate(generators):
        if is_alive_AM[agent].any():
            uniform_AM[agent] = torch.rand(
                is_alive_AM.shape[1], dtype=torch.float64, generator=generator
            )
    cumulative_AMV = torch.softmax(scores_AMV, -1).cumsum(-1, dtype=torch.float64)
    threshold_AM1 = (uniform_AM * cumulative_AMV[..., -1])[..., None]
    token_AM = torch.searchsorted(cumulative_AMV, threshold_AM1, right=True).squeeze(-1)
    return token_AM.clamp(max=scores_AMV.shape[-1] - 1)
