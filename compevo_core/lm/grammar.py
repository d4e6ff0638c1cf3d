"""Grammars over tokens: texts that a small model can write because it can write nothing else.

Where a grammar allows a single token, nothing is sampled: a row writes such tokens at once and
reads them together with the choice before them, in a ragged pass: an agent's new tokens follow each
other without padding between rows, and only attention takes them row by row, padded to the longest
run. Each token uses the random number it would have had if all rows had been written token by
token.

Shapes: A agents, R prompts of an agent, N = A R, n samples of a prompt, M = R n, T tokens, t of
them so far, D hidden, U tokens allowed in any row, K in one, V vocabulary, d width of a head; in a
ragged pass F new tokens of all rows or unfinished rows, L new tokens of the agent with the most, c
of the row with the most.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor

from compevo_core.errors import ConfigError
from compevo_core.lora.attention import Heads, NewTokens, PrefillCache
from compevo_core.lora.sampling import SampledModel, SamplingSettings, choose_tokens, stack_rows

# A text is tokenised after one of these: a tokenizer may treat the beginning of a text apart, and
# joins letters with letters and signs with signs.
_ANCHORS = ("a", ":", "1")


class TokenGrammar(Protocol):
    """What decides which tokens may come next."""

    def allowed(self, ids: tuple[int, ...]) -> Sequence[int]:
        """Return the tokens, each once, that may follow those written so far.

        Where the text may end, they include the tokens that end it.
        """


GrammarTokenizer = Any
"""A tokenizer of transformers."""


_Place = tuple[int, tuple[int, ...]]
"""The number of a slot, and the tokens that are written of one of its texts."""


class SlotGrammar:
    """Sentences made of one text from each slot, one after the other.

    A text brings its own space in front, and has one tokenisation; an empty text leaves a slot out.
    ``max_tokens`` is the length of the longest sentence with its stop token. ConfigError if a slot
    has no alternative, a text holds a stop token, or the tokenizer does not give a text back.
    """

    def __init__(
        self,
        slots: Sequence[Sequence[str]],
        tokenizer: GrammarTokenizer,
        stop_tokens: Sequence[int],
    ) -> None:
        if not slots or not all(slots):
            raise ConfigError("a grammar needs slots, and each of them at least one text")

        self._stop_tokens = tuple(stop_tokens)
        tokens = [[_tokenize_inside(text, tokenizer) for text in slot] for slot in slots]
        self._check(slots, tokens, tokenizer)

        # An empty place follows the last slot: the sentence may end there.
        self._texts = [*(set(map(tuple, texts)) for texts in tokens), set()]
        self._next: list[dict[tuple[int, ...], set[int]]] = [defaultdict(set) for _ in self._texts]
        for after, texts in zip(self._next, self._texts, strict=True):
            for ids in texts:
                for place, token in enumerate(ids):
                    after[ids[:place]].add(token)
        # Samples share their beginnings, and grow by a token: each part of some rounds' sentences
        # is followed once.
        self._find_places = lru_cache(maxsize=1 << 16)(self._follow)
        self.max_tokens = sum(max(map(len, alternatives)) for alternatives in tokens) + 1

    def allowed(self, ids: tuple[int, ...]) -> Sequence[int]:
        """Return the tokens that continue the sentence, ascending; ValueError if there is none."""
        places = self._find_places(ids)
        if not places:
            raise ValueError(
                f"the token ids {ids} begin no sentence of the grammar; ask for the tokens after a "
                "part of a sentence, without its stop token"
            )

        tokens = {token for slot, part in places for token in self._next[slot].get(part, ())}
        if (len(self._texts) - 1, ()) in places:
            tokens.update(self._stop_tokens)
        return sorted(tokens)

    def _follow(self, ids: tuple[int, ...]) -> list[_Place]:
        """Return the places that a part of a sentence may have reached; none if it begins none.

        Several at once, as one alternative may begin like another one and its next slot.
        """
        reached: list[_Place] = [(0, ())]
        if ids:
            *before, token = ids
            reached = [
                (slot, (*part, token))
                for slot, part in self._find_places(tuple(before))
                if token in self._next[slot].get(part, ())
            ]
        # Where a text is complete, the next slot begins; the list grows while it is read.
        for slot, part in reached:
            if part in self._texts[slot]:
                reached.append((slot + 1, ()))
        return reached

    def _check(
        self,
        slots: Sequence[Sequence[str]],
        tokens: Sequence[Sequence[Sequence[int]]],
        tokenizer: GrammarTokenizer,
    ) -> None:
        """Check that every text comes back from its tokens, between texts of the other slots."""
        anchor = tokenizer.encode(_ANCHORS[0], add_special_tokens=False)
        for number, slot in enumerate(slots):
            # Each text stands between the first texts of the other slots.
            for text, ids in zip(slot, tokens[number], strict=True):
                if set(ids) & set(self._stop_tokens):
                    raise ConfigError(f"{text!r} holds a token that ends a text; leave it out")

                texts, written = [other[0] for other in slots], [other[0] for other in tokens]
                texts[number], written[number] = text, ids
                sentence = "".join(texts)
                decoded = tokenizer.decode([*anchor, *chain.from_iterable(written)])
                if decoded != _ANCHORS[0] + sentence:
                    raise ConfigError(
                        f"the tokenizer does not give {sentence!r} back from its tokens; write the "
                        "texts with a space in front and plain letters"
                    )


def _tokenize_inside(text: str, tokenizer: GrammarTokenizer) -> list[int]:
    """Return the tokens of a text that follows another one."""
    for anchor in _ANCHORS:
        prefix = tokenizer.encode(anchor, add_special_tokens=False)
        both = tokenizer.encode(anchor + text, add_special_tokens=False)
        # Where the tokenizer joins the two, another anchor may stay apart.
        if both[: len(prefix)] == prefix and tokenizer.decode(both) == anchor + text:
            return list(both[len(prefix) :])

    raise ConfigError(
        f"the tokenizer gives {text!r} no tokens of its own; write it with a space in front"
    )


@torch.no_grad()
def sample_under_grammar(
    model: SampledModel, cache: PrefillCache, grammar: TokenGrammar, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample continuations of every prompt from the softmax over what the grammar allows."""
    state_AMD, first_AM = cache.begin_samples(settings.samples)
    agents, samples, _ = state_AMD.shape
    rows = [
        _Row(agent, row, grammar, settings) for agent in range(agents) for row in range(samples)
    ]
    generators = settings.generators if settings.temperature else ()
    first_states = [generator.get_state() for generator in generators]
    numbers = [_draw(each, settings.max_new_tokens, samples) for each in generators]
    attention = RaggedDecodeAttention(cache, settings.samples, settings.max_new_tokens)

    while going := [row for row in rows if row.goes_on]:
        # What was written since the last choice; at first nothing was.
        if written := [row for row in going if row.n_read < len(row.ids)]:
            tokens = RaggedTokens(written, agents, settings.pad_token, state_AMD.device)
            attention.begin_pass(tokens)
            positions_AL = torch.zeros_like(tokens.ids_AL)
            starts_F = first_AM[tokens.agent_F, tokens.row_F]
            positions_AL[tokens.agent_F, tokens.column_F] = starts_F + tokens.place_F
            states_ALD = model.read_tokens(tokens.ids_AL, positions_AL, attention)

            agent_F, last = tokens.agent_F[tokens.last], tokens.last
            state_AMD[agent_F, tokens.row_F[last]] = states_ALD[agent_F, tokens.column_F[last]]
            for row in written:
                row.n_read = len(row.ids)

        states_FD = torch.stack([state_AMD[row.agent, row.number] for row in going])
        uniform_F = None
        if settings.temperature:
            drawn = [numbers[row.agent][len(row.ids)][row.number] for row in going]
            uniform_F = torch.tensor(drawn, dtype=torch.float64, device=states_FD.device)

        chosen = _choose(model, states_FD, going, settings.temperature, uniform_F)
        for row, token in zip(going, chosen, strict=True):
            row.write(token)

    # A further text of an agent begins with the numbers after its longest row.
    for agent, (generator, state) in enumerate(zip(generators, first_states, strict=True)):
        longest = max(len(row.ids) for row in rows[agent * samples :][:samples])
        generator.set_state(state)
        _draw(generator, longest, samples)
    ids = [row.ids for row in rows]
    return stack_rows(ids, agents, settings.pad_token, state_AMD.device)


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
        self.write()

    def write(self, token: int | None = None) -> None:
        """Write the token that was chosen, if any, and those that must follow."""
        settings = self._settings
        while True:
            if token is not None:
                self.ids.append(token)
                is_last = len(self.ids) == settings.max_new_tokens
                self.goes_on = not is_last and not settings.has_ended(self.ids)
            if not self.goes_on:
                return
            # Ascending: a number draws among the tokens in the order of their ids.
            self.allowed = sorted(self._grammar.allowed(tuple(self.ids)))
            if len(self.allowed) > 1:
                return
            token = self.allowed[0]


def _draw(generator: torch.Generator, tokens: int, rows: int) -> list[list[float]]:
    """Return the numbers between 0 and 1 that an agent's rows draw with, by token, then by row."""
    # A call for each token, as if all rows had been written token by token.
    number_M = torch.empty(rows, dtype=torch.float64, device=generator.device)
    return [number_M.uniform_(generator=generator).tolist() for _ in range(tokens)]


def _choose(
    model: SampledModel,
    states_FD: Tensor,
    rows: Sequence[_Row],
    temperature: float,
    uniform_F: Tensor | None,
) -> list[int]:
    """Choose one token for each row among those that it may write."""
    # One product for all rows: they are at similar places, and their choices overlap.
    tokens = sorted({token for row in rows for token in row.allowed})
    column_of = {token: column for column, token in enumerate(tokens)}
    logits_FU = model.logits(states_FD, torch.tensor(tokens, device=states_FD.device))

    is_allowed_FU = torch.zeros(logits_FU.shape, dtype=torch.bool)
    for number, row in enumerate(rows):
        is_allowed_FU[number, [column_of[token] for token in row.allowed]] = True
    logits_FU = logits_FU.masked_fill(~is_allowed_FU.to(logits_FU.device), -torch.inf)

    columns = choose_tokens(logits_FU, temperature, uniform_F).tolist()
    return [tokens[column] for column in columns]


class RaggedTokens:
    """The new tokens of one pass, row by row: agent, row, and places in row, run and agent."""

    def __init__(
        self, rows: Sequence[_Row], agents: int, pad_token: int, device: torch.device
    ) -> None:
        columns = [0] * agents
        places: list[tuple[int, int, int, int, int]] = []
        ids: list[int] = []
        self.last: list[int] = []  # of each row, the number of its last token
        for row in rows:
            for offset, place in enumerate(range(row.n_read, len(row.ids))):
                places.append((row.agent, row.number, offset, place, columns[row.agent]))
                columns[row.agent] += 1
            ids += row.ids[row.n_read :]
            self.last.append(len(places) - 1)

        self.width = max(len(row.ids) - row.n_read for row in rows)
        self.agent_F, self.row_F, self.offset_F, self.place_F, self.column_F = torch.tensor(
            places, device=device
        ).unbind(1)
        ids_F = torch.tensor(ids, device=device)
        self.ids_AL = ids_F.new_full((agents, max(columns)), pad_token)
        self.ids_AL[self.agent_F, self.column_F] = ids_F


class RaggedDecodeAttention(NewTokens):
    """Attention of runs of new tokens, over their rows' prompts and their rows' tokens so far."""

    _tokens: RaggedTokens
    _mask: Tensor

    def begin_pass(self, tokens: RaggedTokens) -> None:
        """Take the tokens of the next forward pass."""
        agents, n = tokens.ids_AL.shape[0], self._samples
        per_agent = self._cache.tokens_AR.shape[1]
        so_far = int(tokens.place_F.max()) + 1
        last_AMc = tokens.ids_AL.new_zeros(agents, per_agent * n, tokens.width)
        last_AMc[tokens.agent_F, tokens.row_F, tokens.offset_F] = tokens.place_F

        # A token sees its row up to itself; what padding sees is never read.
        is_hidden_AMct = torch.arange(so_far, device=last_AMc.device) > last_AMc[..., None]
        mask_AMct = torch.zeros_like(is_hidden_AMct, dtype=self._cache.keys[0].dtype)
        mask_AMct = mask_AMct.masked_fill(is_hidden_AMct, -torch.inf)
        self._mask = mask_AMct.reshape(agents * per_agent, 1, n, tokens.width, so_far)
        self._tokens = tokens

    def attend(self, heads: Heads) -> Tensor:
        """See :class:`compevo_core.lora.attention.AttentionBackend`."""
        tokens, n, query = self._tokens, self._samples, heads.query
        prompts, kv_heads, _, width = self._cache.keys[heads.layer].shape
        per_agent, groups = prompts // len(query), query.shape[1] // kv_heads

        # Row by row, (A, M, c, K g, d), and to (N, K, n, c g, d): prompts first, to meet the cache.
        rows = query.new_zeros(len(query), per_agent * n, tokens.width, *query.shape[1:4:2])
        where_F = (tokens.agent_F, tokens.row_F, tokens.offset_F)
        rows[where_F] = query[tokens.agent_F, :, tokens.column_F]
        q = rows.reshape(prompts, n, tokens.width, kv_heads, groups, width)
        q = q.permute(0, 3, 1, 2, 4, 5)
        q = q.reshape(prompts, kv_heads, n, tokens.width * groups, width)

        prompt_F = tokens.agent_F * per_agent + tokens.row_F // n
        for stored, new in zip(self._new[heads.layer], (heads.key, heads.value), strict=True):
            in_row_F = new[tokens.agent_F, :, tokens.column_F]
            stored[prompt_F, :, tokens.row_F % n, tokens.place_F] = in_row_F
        mask = self._mask.repeat_interleave(groups, 3)
        out = self.attend_to_stored(heads, q, mask.shape[-1], mask)

        # Back to (A, M, c, K g, d), and token by token to (A, L, K g, d).
        out = out.reshape(prompts, kv_heads, n, tokens.width, groups, width)
        out = out.permute(0, 2, 3, 1, 4, 5)
        packed = query.new_zeros(query.transpose(1, 2).shape)
        packed[tokens.agent_F, tokens.column_F] = out.reshape(rows.shape)[where_F]
        return packed


def restricted_token_logp(
    model: SampledModel,
    states_ND: Tensor,
    ids_N: Tensor,
    allowed: Sequence[Sequence[int]],
    temperature: float = 1.0,
) -> Tensor:
    """Return the log-probability (N,) of each id among the tokens that are allowed in its place.

    ``allowed`` holds for each id the tokens that the softmax goes over, the id among them. Only
    these rows of the vocabulary are ever read. ValueError if an id is not among its allowed tokens.
    """
    ids = ids_N.tolist()
    # Samples of one grammar meet the same choices: one product for each of them.
    places_of: dict[tuple[int, ...], list[int]] = {}
    for place, tokens in enumerate(allowed):
        if ids[place] not in tokens:
            raise ValueError(
                f"token {ids[place]} is not among the {len(tokens)} allowed in its place; score a "
                "text under the grammar that it was written with"
            )
        places_of.setdefault(tuple(tokens), []).append(place)

    # A token without a choice has probability one; the product keeps the graph where all have none.
    logp_N = states_ND.float().sum(-1) * 0.0
    for tokens, places in places_of.items():
        if len(tokens) == 1:
            continue
        device = states_ND.device
        numbers_M = torch.tensor([tokens.index(ids[place]) for place in places], device=device)
        places_M = torch.tensor(places, device=device)

        rows = torch.tensor(tokens, device=device)
        scores_MK = model.logits(states_ND.index_select(0, places_M), rows) / temperature
        logp_MK = torch.log_softmax(scores_MK, -1)
        logp_N = logp_N.index_add(0, places_M, logp_MK.gather(1, numbers_M[:, None]).squeeze(1))
    return logp_N
