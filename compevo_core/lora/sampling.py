"""Sampling of continuations, a token of all rows at a time.

The host looks at what was written every few tokens, and only then: in between, a step (read a token
of every row, choose the next one) is the same kernels on the same memory, which a GPU launches as
one CUDA graph. Rows run past their end until the host looks, and lose what they wrote
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

_TOKENS_PER_LOOK = {"cuda": 16}
"""By type of device, elsewhere 1: at most so many tokens of a row are written for nothing."""


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
    pad_token: int = 0  # id after the end of a continuation, which is masked
    # One for each adapter, unless greedy. An adapter samples only while one of its rows is
    # unfinished, so its samples do not depend on which others are in the batch
    generators: Sequence[torch.Generator] = ()
    # Whether a continuation, given as its ids so far, ends with the last of them
    is_complete: Callable[[Sequence[int]], bool] | None = None

    def has_ended(self, ids: Sequence[int]) -> bool:
        """Whether a continuation, given as its ids so far, ends with the last of them."""
        return ids[-1] in self.stop_tokens or (
            self.is_complete is not None and self.is_complete(ids)
        )


@torch.no_grad()
def sample_tokens(
    model: SampledModel, cache: PrefillCache, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample continuations of every prompt from the whole vocabulary, see ``Population.sample``."""
    writer = _Writer(model, cache, settings)
    for begin in range(0, settings.max_new_tokens, writer.tokens_per_look):
        writer.write(begin, min(begin + writer.tokens_per_look, settings.max_new_tokens))
        if not any(row.goes_on for rows in writer.rows for row in rows):
            break
    ids = [row.ids for rows in writer.rows for row in rows]
    return stack_rows(ids, len(writer.rows), settings.pad_token, writer.device)


@dataclasses.dataclass
class _Row:
    """One continuation, as far as the host has looked."""

    number: int  # within its adapter
    ids: list[int] = dataclasses.field(default_factory=list)
    goes_on: bool = True


class _Writer:
    """Rows that are written in step, in memory that stays where it is."""

    def __init__(
        self, model: SampledModel, cache: PrefillCache, settings: SamplingSettings
    ) -> None:
        self._model = model
        self._settings = settings
        self._prompt_state_AMD, self._first_Am = cache.begin_samples(settings.samples)
        self.device = self._first_Am.device

        self.tokens_per_look = _TOKENS_PER_LOOK.get(self.device.type, 1)
        self._attention = DecodeAttention(
            cache, settings.samples, settings.max_new_tokens, is_static=self.tokens_per_look > 1
        )
        self._token_Am = torch.zeros_like(self._first_Am)  # written last, in this place
        self._place_1 = torch.full((1,), -1, device=self.device)
        adapters, samples = self._first_Am.shape
        self.rows = [[_Row(number) for number in range(samples)] for _ in range(adapters)]
        self._compute(self.rows)

    def _compute(self, rows: list[list[_Row]]) -> None:
        """Go on with these rows: begin memory for their tokens, and a step that knows it."""
        self._computed = rows
        shape = (self._settings.max_new_tokens, *self._first_Am.shape)
        self._token_TAm = torch.zeros(shape, dtype=torch.long, device=self.device)
        # float64: with a large vocabulary the cumulative sum in float32 would favour some tokens.
        self._uniform_TAm = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._step = _Step(self._read_and_choose, self.device)

    def write(self, begin: int, end: int) -> None:
        """Write the tokens of every row in these places, then look at them."""
        states: dict[int, Tensor] = {}  # of generators, before they drew
        for adapter, rows in enumerate(self.rows if self._settings.temperature else ()):
            # An adapter whose rows have all ended samples nothing, so that the state of its
            # generator does not depend on how long the others write.
            if any(row.goes_on for row in rows):
                states[adapter] = self._settings.generators[adapter].get_state()
                self._draw(adapter, begin, end)
        for place in range(begin, end):
            # The state after the prompts is there already.
            if place:
                self._step()
            else:
                self._choose(self._prompt_state_AMD)
        # Take what was written up to each row's end.
        written = self._token_TAm[begin:end].permute(1, 2, 0).tolist()  # the only wait
        for rows, texts in zip(self._computed, written, strict=True):
            for row, text in zip(rows, texts, strict=True):
                for token in text:
                    if row.goes_on:
                        row.ids.append(token)
                        row.goes_on = not self._settings.has_ended(row.ids)

        # An adapter that ended on the way takes back the numbers that it did not need.
        for adapter, state in states.items():
            longest = max(len(row.ids) for row in self.rows[adapter])
            if longest < end:
                self._settings.generators[adapter].set_state(state)
                self._draw(adapter, begin, longest)

        # Samples of one prompt share its keys, and stay as long as any of them.
        if self._settings.samples == 1:
            self._leave_out_ended()

    def _draw(self, adapter: int, begin: int, end: int) -> None:
        """Draw the numbers that choose tokens, for all rows of an adapter, computed or not."""
        generator = self._settings.generators[adapter]
        shape = (end - begin, len(self.rows[adapter]))
        uniform_cM = torch.rand(shape, dtype=torch.float64, device=self.device, generator=generator)
        computed = [row.number for row in self._computed[adapter]]
        self._uniform_TAm[begin:end, adapter] = uniform_cM[:, computed]

    def _read_and_choose(self) -> None:
        self._attention.begin_pass(self._place_1)
        position_Am = self._first_Am + self._place_1
        self._choose(self._model.read_tokens(self._token_Am, position_Am, self._attention))

    def _choose(self, state_AmD: Tensor) -> None:
        self._place_1 += 1
        uniform_Am = None
        if self._settings.temperature:
            uniform_Am = self._uniform_TAm.index_select(0, self._place_1)[0]
        logits_AmV = self._model.logits(state_AmD)
        self._token_Am.copy_(choose_tokens(logits_AmV, self._settings.temperature, uniform_Am))
        self._token_TAm.index_copy_(0, self._place_1, self._token_Am[None])

    def _leave_out_ended(self) -> None:
        """Go on without most of the rows that have ended.

        Every adapter keeps as many as the adapter with the most unfinished rows.
        """
        goes_on = [[row.goes_on for row in rows] for rows in self._computed]
        going = max(map(sum, goes_on))
        if not 0 < going <= _MOST_KEPT * len(goes_on[0]):
            return

        # Unfinished rows first, all in their order.
        order_Am = torch.tensor(goes_on).long().argsort(descending=True, stable=True)
        kept_Am = order_Am[:, :going].sort().values
        first_A1 = torch.arange(len(goes_on))[:, None] * len(goes_on[0])
        numbers_Am = (first_A1 + kept_Am).to(self.device)
        self._attention.select(numbers_Am)
        self._token_Am, self._first_Am = (
            tensor.flatten()[numbers_Am] for tensor in (self._token_Am, self._first_Am)
        )
        kept = zip(self._computed, kept_Am.tolist(), strict=True)
        self._compute([[rows[place] for place in places] for rows, places in kept])


class _Step:
    """The same work for every token: on a GPU a CUDA graph, launched at once, elsewhere a call.

    Processes that exchange products of a split backbone launch each kernel themselves.
    """

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self._work = work
        self._captures = device.type == "cuda" and not dist.is_initialized()
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self._captures:
            self._work()
        elif self._graph is None:
            # What libraries and caches allocate at their first call must not be captured.
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._work()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._work()
        else:
            self._graph.replay()


def choose_tokens(logits: Tensor, temperature: float, uniform: Tensor | None) -> Tensor:
    """Choose one token per row, (..., V) to (...): the most likely, or by a number from 0 to 1.

    A number chooses by inverse transform sampling, in the order of the tokens.
    """
    if uniform is None:
        return logits.argmax(-1)

    # Scaled by the last sum rather than normalised: that spares a division of the vocabulary.
    cumulative = torch.softmax(logits / temperature, dim=-1).cumsum(-1, dtype=torch.float64)
    threshold = uniform * cumulative[..., -1]

    # right=True passes over tokens of probability zero, also when the uniform number is zero.
    token = torch.searchsorted(cumulative, threshold[..., None], right=True).squeeze(-1)
    return token.clamp(max=logits.shape[-1] - 1)


def stack_rows(
    rows: Sequence[Sequence[int]], adapters: int, pad_token: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the ids and the mask of the rows of all adapters, (A, M, T)."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    ids_NT = pad_sequence(ids, batch_first=True, padding_value=pad_token)
    mask_NT = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
    shape = (adapters, -1, ids_NT.shape[1])
    return ids_NT.reshape(shape).to(device), mask_NT.reshape(shape).to(device)
