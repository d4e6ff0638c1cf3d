"""Sampling under a grammar the ordinary way: a forward pass and all logits for every token.

What belongs here: what the engine's own way (``lm.grammar``) is compared with, for its speed and
for the tokens that it writes. What does not: timing (``cases``).

Shapes: A agents, M rows of an agent, D hidden, T tokens, V vocabulary.
"""

import torch
from torch import Tensor

from compevo_core.lm.grammar import TokenGrammar
from compevo_core.lora.attention import AttentionBackend, PrefillCache
from compevo_core.lora.population import Population
from compevo_core.lora.sampling import SamplingSettings, sample_tokens


def sample_every_token(
    population: Population, cache: PrefillCache, grammar: TokenGrammar, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample as the population does, several samples of a prompt; return ids and mask (A, M, T)."""
    return sample_tokens(_Masked(population, grammar, settings), cache, settings)


class _Masked:
    """A population that gives tokens which the grammar forbids no probability."""

    def __init__(
        self, population: Population, grammar: TokenGrammar, settings: SamplingSettings
    ) -> None:
        self._population = population
        self._grammar = grammar
        self._stop_tokens = settings.stop_tokens
        self._written: dict[tuple[int, int], list[int]] = {}

    def logits(self, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return logits (A, M, V) of states (A, M, D)."""
        logits_AMV = self._population.logits(states, tokens)
        is_allowed_AMV = torch.zeros_like(logits_AMV, dtype=torch.bool)
        for agent, row in torch.cartesian_prod(*map(torch.arange, states.shape[:2])).tolist():
            ids = self._written.setdefault((agent, row), [])
            has_ended = any(token in self._stop_tokens for token in ids)
            allowed = slice(None) if has_ended else list(self._grammar.allowed(tuple(ids)))
            is_allowed_AMV[agent, row, allowed] = True
        return logits_AMV.masked_fill(~is_allowed_AMV, -torch.inf)

    def read_tokens(
        self, ids_AL: Tensor, positions_AL: Tensor, attention: AttentionBackend
    ) -> Tensor:
        """Read the next token of every row."""
        for agent, tokens in enumerate(ids_AL.tolist()):
            for row, token in enumerate(tokens):
                self._written[agent, row].append(token)
        return self._population.read_tokens(ids_AL, positions_AL, attention)
