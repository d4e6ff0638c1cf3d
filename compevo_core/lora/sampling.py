"""Sampling of continuations, a token of all rows at a time.

The host looks at what was written every few tokens, and only then: in between, a step (read a token
of every row, choose the next one) is the same kernels on the same memory, which a GPU launches as
one CUDA graph. Rows go on behind their end until the host has looked, and lose what they wrote
there. Where nothing waits for a device, the host looks after every token.

Shapes: A adapters, R prompts of an adapter, n samples of a prompt, M = R n, m rows of an adapter
that are computed, c tokens between two looks, T tokens, D hidden, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils.rnn import pad_sequence

from compevo_core.lora.attention import AttentionBackend, DecodeAttention, PrefillCache

_MOST_KEPT = 0.5
"""Ended rows are dropped when at most this share is unfinished: dropping each row at its end would
copy the cache once per row."""

_TOKENS_PER_LOOK = 16  # on a GPU; at most so many tokens are written for nothing


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

    max_new_tokens: int
    temperature: float  # of the softmax; 0 is greedy
    stop_tokens: Sequence[int]
    samples: int = 1  # continuations of each prompt
    pad_token: int = 0  # id behind the end of a continuation, which is masked
    # One for each adapter, unless greedy. An adapter samples only while one of its rows is
    # unfinished, so its samples do not depend on which others are in the batch
    generators: Sequence[torch.Generator] = ()
    # Whether a continuation, given as its ids so far, ends with the last of them
    is_complete: Callable[[Sequence[int]], bool] | None = None
    # After how many tokens the host looks; 0 is each on a processor, and more on a GPU
    tokens_per_look: int = 0


@torch.no_grad()
def sample_tokens(
    model: SampledModel, cache: PrefillCache, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample continuations of every prompt from the whole vocabulary, see ``Population.sample``."""
    writer = _Writer(model, cache, settings)
    for begin in range(0, settings.max_new_tokens, writer.tokens_per_look):
        writer.write(min(writer.tokens_per_look, settings.max_new_tokens - begin))
        if not any(row.goes_on for rows in writer.rows for row in rows):
            break
    ids = [row.ids for rows in writer.rows for row in rows]
    return stack_rows(ids, len(writer.rows), settings.pad_token, writer.device)


@dataclasses.dataclass
class _Row:
    """One continuation, as far as the host has looked."""

    ids: list[int] = dataclasses.field(default_factory=list)
    goes_on: bool = True


class _Writer:
    """Rows that are written in step, in memory that stays where it is."""

    def __init__(
        self, model: SampledModel, cache: PrefillCache, settings: SamplingSettings
    ) -> None:
        self._model = model
        self._settings = settings
        self._state_AmD = cache.repeat_last_states(settings.samples)
        self.device = self._state_AmD.device

        is_cuda = self.device.type == "cuda"
        self.tokens_per_look = settings.tokens_per_look or (_TOKENS_PER_LOOK if is_cuda else 1)
        self._attention = DecodeAttention(
            cache, settings.samples, settings.max_new_tokens, is_static=self.tokens_per_look > 1
        )
        # Of the token that was read last; none yet.
        self._position_Am = cache.count_tokens(settings.samples) - 1
        self.rows = [[_Row() for _ in range(self._position_Am.shape[1])] for _ in self._position_Am]
        self._computed = [list(range(len(rows))) for rows in self.rows]
        self._place_1 = torch.zeros(1, dtype=torch.long, device=self.device)  # since the last look
        self._make_room()

    def _make_room(self) -> None:
        """Begin memory for the rows that are computed, and a step that knows it."""
        shape = (self.tokens_per_look, *self._position_Am.shape)
        self._rows_Am = torch.tensor(self._computed, device=self.device)
        self._token_cAm = torch.zeros(shape, dtype=torch.long, device=self.device)
        # float64: with a large vocabulary the cumulative sum in float32 would favour some tokens.
        self._uniform_cAm = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._token_Am = torch.zeros_like(self._position_Am)
        self._step = _Step(self._read_and_choose, self.device)

    def write(self, tokens: int) -> None:
        """Write some tokens of every row, then look at them."""
        states = self._draw(tokens) if self._settings.temperature else []
        self._place_1.zero_()
        has_begun = bool(self.rows[0][0].ids)
        for number in range(tokens):
            # The state behind the prompts is there already.
            if has_begun or number:
                self._step()
            else:
                self._choose()
        longest = self._look(tokens)

        # An adapter that ended on the way takes back the numbers that it did not need.
        for adapter, state in enumerate(states):
            if 0 < longest[adapter] < tokens:
                generator = self._settings.generators[adapter].set_state(state)
                self._draw_numbers(generator, longest[adapter])

        # Samples of one prompt share its keys, and stay as long as any of them.
        if self._settings.samples == 1:
            self._leave_out_ended()

    def _draw_numbers(self, generator: torch.Generator, tokens: int) -> Tensor:
        """Draw numbers between 0 and 1 for all rows of an adapter, computed or not, (c, M)."""
        shape = (tokens, len(self.rows[0]))
        return torch.rand(shape, dtype=torch.float64, device=self.device, generator=generator)

    def _draw(self, tokens: int) -> list[Tensor]:
        """Draw what the next tokens are chosen by; return the generators' states before.

        An adapter whose rows have all ended samples nothing, so that the state of its generator
        does not depend on how long the others write.
        """
        states = []
        uniform = []
        for rows, generator in zip(self.rows, self._settings.generators, strict=True):
            states.append(generator.get_state() if tokens > 1 else torch.empty(0))
            if any(row.goes_on for row in rows):
                uniform.append(self._draw_numbers(generator, tokens))
            else:
                uniform.append(self._uniform_cAm.new_zeros(tokens, len(rows)))
        uniform_cAM = torch.stack(uniform, 1)
        rows_cAm = self._rows_Am.expand(tokens, -1, -1)
        self._uniform_cAm[:tokens] = uniform_cAM.gather(2, rows_cAm)
        return states

    def _read_and_choose(self) -> None:
        self._attention.begin_pass()
        self._position_Am += 1
        self._state_AmD.copy_(
            self._model.read_tokens(self._token_Am, self._position_Am, self._attention)
        )
        self._choose()

    def _choose(self) -> None:
        uniform_Am = None
        if self._settings.temperature:
            uniform_Am = self._uniform_cAm.index_select(0, self._place_1)[0]
        logits_AmV = self._model.logits(self._state_AmD)
        self._token_Am.copy_(choose_tokens(logits_AmV, self._settings.temperature, uniform_Am))
        self._token_cAm.index_copy_(0, self._place_1, self._token_Am[None])
        self._place_1 += 1

    def _look(self, tokens: int) -> list[int]:
        """Take what was written up to each row's end; return the most tokens of each adapter."""
        settings, longest = self._settings, []
        written = self._token_cAm[:tokens].permute(1, 2, 0).tolist()  # the only wait
        for rows, numbers, texts in zip(self.rows, self._computed, written, strict=True):
            taken = [0]
            for number, text in zip(numbers, texts, strict=True):
                row, before = rows[number], len(rows[number].ids)
                for token in text if row.goes_on else ():
                    row.ids.append(token)
                    row.goes_on = token not in settings.stop_tokens and not (
                        settings.is_complete is not None and settings.is_complete(row.ids)
                    )
                    if not row.goes_on:
                        break
                taken.append(len(row.ids) - before)
            longest.append(max(taken))
        return longest

    def _leave_out_ended(self) -> None:
        """Go on without most of the rows that have ended.

        Every adapter keeps as many as the adapter with the most unfinished rows.
        """
        computed = len(self._computed[0])
        going = max(sum(row.goes_on for row in rows) for rows in self.rows)
        if going == 0 or going > _MOST_KEPT * computed:
            return

        # Unfinished rows first, all in their order.
        kept = []
        for rows, numbers in zip(self.rows, self._computed, strict=True):
            has_ended = [not rows[number].goes_on for number in numbers]
            kept.append(sorted(sorted(range(computed), key=has_ended.__getitem__)[:going]))
        self._computed = [
            [numbers[place] for place in places]
            for numbers, places in zip(self._computed, kept, strict=True)
        ]
        kept_Am = torch.tensor(kept, device=self.device)
        first_A1 = torch.arange(len(kept), device=self.device)[:, None] * computed
        flat = (first_A1 + kept_Am).flatten()
        self._attention.keep_prompts(flat)

        token_Am = self._token_Am.gather(1, kept_Am)
        self._position_Am = self._position_Am.gather(1, kept_Am)
        self._state_AmD = self._state_AmD.flatten(0, 1)[flat].reshape(*kept_Am.shape, -1)
        self._make_room()
        self._token_Am.copy_(token_Am)


class _Step:
    """The same work for every token: on a GPU a CUDA graph, launched at once, elsewhere a call.

    Processes that exchange products of a split backbone launch each kernel themselves.
    """

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self._work = work
        self._captures = device.type == "cuda" and not dist.is_initialized()
        self._is_warm = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self._captures:
            self._work()
        elif not self._is_warm:
            # What libraries and caches allocate at their first call must not be captured.
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._work()
            torch.cuda.current_stream().wait_stream(stream)
            self._is_warm = True
        else:
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph):
                    self._work()
            self._graph.replay()


def choose_tokens(logits: Tensor, temperature: float, uniform: Tensor | None) -> Tensor:
    """Choose one token per row, (..., V) to (...): the most likely, or by a number from 0 to 1."""
    if uniform is None:
        return logits.argmax(-1)
    return invert_distribution(torch.softmax(logits / temperature, dim=-1), uniform)


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


def stack_rows(
    rows: Sequence[Sequence[int]], adapters: int, pad_token: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the ids and the mask of the rows of all adapters, (A, M, T)."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    ids_NT = pad_sequence(ids, batch_first=True, padding_value=pad_token)
    mask_NT = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
    shape = (adapters, -1, ids_NT.shape[1])
    return ids_NT.reshape(shape).to(device), mask_NT.reshape(shape).to(device)
