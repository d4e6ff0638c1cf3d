"""Sampling of continuations: token by token, or under a grammar by a pass for each free choice.

What belongs here: the settings, what sampling asks of a model, the two loops and their random
numbers. What does not: the grammar (``lm.grammar``), attention of new tokens and the draw of one
(``lm.decode``), what the tokens mean.

Where a grammar allows a single token, nothing is sampled: a row writes such tokens at once and
reads them together with the choice before them. Each token uses the random number it would have had
if all rows had been written token by token.

Shapes: A agents, R prompts of an agent, n samples of a prompt, M = R n, T tokens, L new tokens of
an agent in one pass, m rows of an agent that are computed, D hidden, V vocabulary; under a grammar
F unfinished rows, U tokens allowed in any of them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from compevo_core.lm.attention import AttentionBackend, PrefillCache
from compevo_core.lm.decode import (
    DecodeAttention,
    RaggedDecodeAttention,
    RaggedTokens,
    TokenRun,
    choose_tokens,
    sample_uniform,
)
from compevo_core.lm.grammar import TokenGrammar

_MOST_KEPT = 0.5
"""Ended rows are dropped when at most this share is unfinished: dropping each row at its end would
copy the cache once per row."""


class SampledModel(Protocol):
    """What sampling asks of a model whose prompts have been read."""

    def logits(self, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return logits in float32 of all or of some tokens, states (..., D) to (..., V)."""

    def read_tokens(
        self, ids_AL: Tensor, positions_AL: Tensor, attention: AttentionBackend
    ) -> Tensor:
        """Return the final hidden states (A, L, D) of new tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How continuations are sampled."""

    samples: int  # continuations of each prompt
    max_new_tokens: int
    temperature: float  # of the softmax; 0 is greedy
    stop_tokens: Sequence[int]
    pad_token: int  # id behind the end of a continuation
    # One for each agent, unless greedy. An agent samples only while one of its rows is unfinished,
    # so its samples do not depend on which other agents are in the batch
    generators: Sequence[torch.Generator] = ()
    # Whether a continuation, given as its ids so far, ends with the last of them
    is_complete: Callable[[Sequence[int]], bool] | None = None


@torch.no_grad()
def sample_tokens(
    model: SampledModel, cache: PrefillCache, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample continuations of every prompt from the whole vocabulary, see ``Population.sample``."""
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
            uniform_Am = sample_uniform(is_alive_AM, settings.generators).gather(1, rows_Am)
        token_Am = choose_tokens(model.logits(state_AmD), settings.temperature, uniform_Am)

        token_AM = torch.full_like(position_AM, settings.pad_token).scatter(1, rows_Am, token_Am)
        token_AM = torch.where(is_alive_AM, token_AM, settings.pad_token)
        ids.append(token_AM)
        masks.append(is_alive_AM)

        is_alive_AM = is_alive_AM & ~torch.isin(token_AM, stop_ids)
        is_alive_AM = is_alive_AM & ~_find_complete(ids, is_alive_AM, settings.is_complete)
        if not is_alive_AM.any() or step == settings.max_new_tokens - 1:
            break  # the state after the last token is not needed

        # Samples of one prompt share its keys, and stay as long as any of them.
        if settings.samples == 1:
            rows_Am = _leave_out_ended(rows_Am, is_alive_AM, attention)
        attention.step = step
        position_Am = position_AM.gather(1, rows_Am) + step
        state_AmD = model.read_tokens(token_AM.gather(1, rows_Am), position_Am, attention)

    return torch.stack(ids, -1), torch.stack(masks, -1).long()


def _leave_out_ended(rows_Am: Tensor, is_alive_AM: Tensor, attention: DecodeAttention) -> Tensor:
    """Return the rows that are computed from here on, without most of those that have ended.

    Every agent keeps as many as the agent with the most unfinished rows.
    """
    agents, computed = rows_Am.shape
    going = int(is_alive_AM.sum(1).max())
    if going > _MOST_KEPT * computed:
        return rows_Am

    # Unfinished rows first, all in their order.
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
    """Return which unfinished rows (A, M) are complete with their last token."""
    is_complete_AM = torch.zeros_like(is_alive_AM)
    if is_complete is None:
        return is_complete_AM

    written_AMT = torch.stack(list(ids), -1).cpu()
    for agent, row in is_alive_AM.nonzero().tolist():
        is_complete_AM[agent, row] = is_complete(written_AMT[agent, row].tolist())
    return is_complete_AM


@torch.no_grad()
def sample_under_grammar(
    model: SampledModel, cache: PrefillCache, grammar: TokenGrammar, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample continuations of every prompt from the softmax over what the grammar allows."""
    state_AMD = cache.repeat_last_states(settings.samples)
    agents, samples, _ = state_AMD.shape
    rows = [
        _Row(agent, row, grammar, settings) for agent in range(agents) for row in range(samples)
    ]
    numbers = [_UniformNumbers(samples, generator) for generator in settings.generators]
    reader = _RunReader(model, cache, settings)

    while going := [row for row in rows if row.goes_on]:
        reader.read(going, state_AMD)
        states_FD = torch.stack([state_AMD[row.agent, row.number] for row in going])
        uniform_F = None
        if settings.temperature:
            drawn = [numbers[row.agent].at(len(row.ids), row.number) for row in going]
            uniform_F = torch.tensor(drawn, dtype=torch.float64, device=states_FD.device)

        tokens = _choose(model, states_FD, going, settings.temperature, uniform_F)
        for row, token in zip(going, tokens, strict=True):
            row.write(token)

    # Where the longest row ends; a further text of an agent begins with the numbers after that.
    for row in rows if settings.temperature else ():
        numbers[row.agent].sample_up_to(len(row.ids))
    return _stack_rows(rows, agents, settings.pad_token, state_AMD.device)


class _Row:
    """One continuation of an agent, of which ``n_read`` tokens are read, up to its next choice."""

    def __init__(
        self, agent: int, number: int, grammar: TokenGrammar, settings: SamplingSettings
    ) -> None:
        self.agent = agent
        self.number = number
        self.ids: list[int] = []
        self.n_read = 0
        self.allowed: list[int] = []
        self.goes_on = settings.max_new_tokens > 0
        self._grammar = grammar
        self._settings = settings
        self._follow()

    def write(self, token: int) -> None:
        """Write the token that was chosen, and those that must follow it."""
        self._append(token)
        self._follow()

    def _follow(self) -> None:
        while self.goes_on:
            # Ascending: a number draws among the tokens in the order of their ids.
            self.allowed = sorted(self._grammar.allowed(tuple(self.ids)))
            if len(self.allowed) > 1:
                return
            self._append(self.allowed[0])

    def _append(self, token: int) -> None:
        settings = self._settings
        self.ids.append(token)
        is_last = token in settings.stop_tokens or len(self.ids) == settings.max_new_tokens
        if not is_last and settings.is_complete is not None:
            is_last = settings.is_complete(self.ids)
        self.goes_on = not is_last


class _UniformNumbers:
    """The numbers between 0 and 1 that an agent's rows draw with: one for each row and token.

    They are drawn when they are first asked for, a token of all rows at a time, as by rows that
    write in step.
    """

    def __init__(self, rows: int, generator: torch.Generator) -> None:
        self._rows = rows
        self._generator = generator
        self._drawn: list[list[float]] = []

    def at(self, place: int, row: int) -> float:
        """Return the number of a row's token."""
        self.sample_up_to(place + 1)
        return self._drawn[place][row]

    def sample_up_to(self, tokens: int) -> None:
        """Draw the numbers of the first tokens of all rows, unless they have been."""
        generator = self._generator
        while len(self._drawn) < tokens:
            number_M = torch.rand(
                self._rows, dtype=torch.float64, device=generator.device, generator=generator
            )
            self._drawn.append(number_M.tolist())


class _RunReader:
    """Reads what rows have written since their last choice."""

    def __init__(
        self, model: SampledModel, cache: PrefillCache, settings: SamplingSettings
    ) -> None:
        self._model = model
        self._pad_token = settings.pad_token
        self._first_AM = cache.count_tokens(settings.samples)
        self._attention = RaggedDecodeAttention(cache, settings.samples, settings.max_new_tokens)

    def read(self, rows: Sequence[_Row], state_AMD: Tensor) -> None:
        """Put the state after each row's last token in its place."""
        runs = [
            TokenRun(row.agent, row.number, row.n_read, row.ids[row.n_read :])
            for row in rows
            if row.n_read < len(row.ids)
        ]
        if not runs:
            return  # no row has written yet

        tokens = RaggedTokens(runs, len(state_AMD), self._pad_token, state_AMD.device)
        self._attention.begin_pass(tokens)
        positions_AL = tokens.list_positions(self._first_AM)
        states_ALD = self._model.read_tokens(tokens.ids_AL, positions_AL, self._attention)

        last = tokens.last_runs
        agent_F, row_F, column_F = tokens.agent_F[last], tokens.row_F[last], tokens.column_F[last]
        state_AMD[agent_F, row_F] = states_ALD[agent_F, column_F]
        for row in rows:
            row.n_read = len(row.ids)


def _choose(
    model: SampledModel,
    states_FD: Tensor,
    rows: Sequence[_Row],
    temperature: float,
    uniform_F: Tensor | None,
) -> list[int]:
    """Choose one token for each row among those that it may write."""
    # One product for all rows: they are at like places, and their choices overlap.
    tokens = sorted({token for row in rows for token in row.allowed})
    column_of = {token: column for column, token in enumerate(tokens)}
    logits_FU = model.logits(states_FD, torch.tensor(tokens, device=states_FD.device))

    is_allowed_FU = torch.zeros(logits_FU.shape, dtype=torch.bool)
    for number, row in enumerate(rows):
        is_allowed_FU[number, [column_of[token] for token in row.allowed]] = True
    logits_FU = logits_FU.masked_fill(~is_allowed_FU.to(logits_FU.device), -torch.inf)

    columns = choose_tokens(logits_FU, temperature, uniform_F).tolist()
    return [tokens[column] for column in columns]


def _stack_rows(
    rows: Sequence[_Row], agents: int, pad_token: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the ids and the mask of all rows, (A, M, T)."""
    ids = [torch.tensor(row.ids, device=device) for row in rows]
    ids_NT = pad_sequence(ids, batch_first=True, padding_value=pad_token)
    mask_NT = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
    shape = (agents, -1, ids_NT.shape[1])
    return ids_NT.reshape(shape), mask_NT.reshape(shape)
