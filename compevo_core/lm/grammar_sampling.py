"""Sampling under a grammar: a forward pass for each free choice, not for each token.

What belongs here: the loop that follows a grammar, its random numbers. What does not: the grammar
(``lm.grammar``), attention of the runs of tokens that it reads (``lm.ragged_decode``), the draw of
one token (``lm.decode``), sampling without a grammar (``lm.sampling``).

Where a grammar allows one token alone, nothing is drawn and no probability is needed. Each row
writes such tokens at once and reads them together with the choice before them, in one pass. Logits
are those of the tokens that are allowed somewhere in the pass, out of the whole vocabulary.

What is drawn does not depend on that: the token at a place of a row is drawn with the number that
it would have been drawn with, had all rows written token by token.

Shapes: A agents, R prompts of an agent, n samples of a prompt, M = R n, T tokens, D hidden;
within a pass F rows that go on, L new tokens of an agent, U tokens allowed in any of the rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from compevo_core.lm.decode import choose_tokens
from compevo_core.lm.grammar import TokenGrammar
from compevo_core.lm.prefill import PrefillCache
from compevo_core.lm.ragged_decode import RaggedDecodeAttention, RaggedTokens, TokenRun
from compevo_core.lm.sampling import SampledModel, SamplingSettings


@torch.no_grad()
def sample_under_grammar(
    model: SampledModel, cache: PrefillCache, grammar: TokenGrammar, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample continuations of every prompt from the softmax over what the grammar allows.

    Returns:
        ids (A, M, T) and mask (A, M, T); the last token is part of a continuation, what follows it
        is masked.
    """
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
        numbers[row.agent].draw_up_to(len(row.ids))
    return _stack_rows(rows, agents, settings.pad_token, state_AMD.device)


class _Row:
    """One continuation, up to its next free choice.

    Attributes:
        agent: the agent, as a row of the batch.
        number: of the continuation, among the agent's.
        ids: its tokens.
        n_read: how many of them the model has read.
        allowed: tokens of the next choice, in ascending order.
        goes_on: whether there is a next choice.
    """

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
        self.draw_up_to(place + 1)
        return self._drawn[place][row]

    def draw_up_to(self, tokens: int) -> None:
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
            return  # no row has written: they go on from their prompts

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
