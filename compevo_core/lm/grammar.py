"""Grammars over tokens: texts that a small model can write because it can write nothing else.

What belongs here: what generation asks of a grammar, and the grammar of sentences with slots. What
does not: which sentences (``agents``), sampling and probabilities under a grammar
(``lm.population``).
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from compevo_core.errors import ConfigError

# A text is tokenised behind one of these: a tokenizer may treat the beginning of a text apart, and
# joins letters with letters and signs with signs.
_ANCHORS = ("a", ":", "1")

_KEPT_PARTS = 1 << 16  # of sentences, whose places are kept; those of some rounds


class TokenGrammar(Protocol):
    """What decides which tokens may come next."""

    def allowed(self, ids: tuple[int, ...]) -> Sequence[int]:
        """Return the tokens, each once, that may follow those written so far.

        Where the text may end, they include the tokens that end it.
        """


class GrammarTokenizer(Protocol):
    """What a grammar uses of a transformers tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""


@dataclasses.dataclass
class _Node:
    """A place within the alternatives of a slot, after some of their tokens."""

    children: dict[int, "_Node"] = dataclasses.field(default_factory=dict)
    is_end: bool = False


class SlotGrammar:
    """Sentences made of one text from each slot, one behind the other.

    A text brings its own space in front. It has one tokenisation; every path of allowed tokens
    therefore decodes to a sentence, and every sentence has a path. An empty text leaves a slot out.
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

        self._roots = [_build_trie(alternatives) for alternatives in tokens]
        # Samples share their beginnings, and grow by a token: each part is followed once.
        self._find_places = lru_cache(maxsize=_KEPT_PARTS)(self._follow)
        self.max_tokens = sum(max(map(len, alternatives)) for alternatives in tokens) + 1

    def allowed(self, ids: tuple[int, ...]) -> Sequence[int]:
        """Return the tokens that continue the sentence, ascending; ValueError if there is none."""
        places = self._find_places(ids)
        if not places:
            raise ValueError(
                f"the token ids {ids} begin no sentence of the grammar; ask for the tokens after a "
                "part of a sentence, without its stop token"
            )

        tokens = {token for _, node in places for token in node.children}
        if any(slot == len(self._roots) for slot, _ in places):
            tokens.update(self._stop_tokens)
        return sorted(tokens)

    def _follow(self, ids: tuple[int, ...]) -> list[tuple[int, _Node]]:
        """Return the places that a part of a sentence may have reached; none if it begins none.

        Several at once, as one alternative may begin like another one and its next slot.
        """
        if not ids:
            return self._step_over_ends([(0, self._roots[0])])
        *before, token = ids
        return self._step_over_ends(
            (slot, node.children[token])
            for slot, node in self._find_places(tuple(before))
            if token in node.children
        )

    def _step_over_ends(self, places: Iterable[tuple[int, _Node]]) -> list[tuple[int, _Node]]:
        """Add the begin of the next slot to every place where an alternative is complete."""
        reached: list[tuple[int, _Node]] = []
        waiting = list(places)
        while waiting:
            slot, node = waiting.pop()
            reached.append((slot, node))
            if slot < len(self._roots) and node.is_end:
                # An empty place follows the last slot: the sentence may end there.
                is_last = slot + 1 == len(self._roots)
                waiting.append((slot + 1, _Node() if is_last else self._roots[slot + 1]))
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
            for text, ids in zip(slot, tokens[number], strict=True):
                if set(ids) & set(self._stop_tokens):
                    raise ConfigError(f"{text!r} holds a token that ends a text; leave it out")

                before = [token for other in tokens[:number] for token in other[0]]
                after = [token for other in tokens[number + 1 :] for token in other[0]]
                sentence = "".join(
                    [*(s[0] for s in slots[:number]), text, *(s[0] for s in slots[number + 1 :])]
                )
                if tokenizer.decode([*anchor, *before, *ids, *after]) != _ANCHORS[0] + sentence:
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
            return both[len(prefix) :]

    raise ConfigError(
        f"the tokenizer gives {text!r} no tokens of its own; write it with a space in front"
    )


def _build_trie(alternatives: Sequence[Sequence[int]]) -> _Node:
    root = _Node()
    for ids in alternatives:
        node = root
        for token in ids:
            node = node.children.setdefault(token, _Node())
        node.is_end = True
    return root
