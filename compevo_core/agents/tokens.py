"""Token ids of prompts and the ids at which generation stops.

What belongs here: what the agents need of a tokenizer besides decoding. What does not: wording
(``agents.prompts``), packing rows into a batch (``lm.packing``).
"""

import bisect
from collections.abc import Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """What the agents use of a transformers tokenizer."""

    @property
    def eos_token_id(self) -> int:
        """The id that ends a sequence."""
        ...

    @property
    def bos_token(self) -> str | None:
        """The text of the token that begins a sequence; None if there is none."""
        ...

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, list[int]]:
        """Return the token ids of a text under ``input_ids``."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        ...

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> str:
        """Return turns in the layout that the model was trained on; only if it has a template."""
        ...


def tokenize_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text that generation shall continue.

    They begin with one begin-of-sequence token if the tokenizer has one, and end in no
    end-of-sequence token.
    """
    # A chat template may write the begin-of-sequence token itself; the model has never seen two.
    bos = tokenizer.bos_token
    adds_bos = not (bos and text.startswith(bos))
    ids = list(tokenizer(text, add_special_tokens=adds_bos)["input_ids"])

    # Some tokenizers close every text; a model that has read the end has nothing more to say.
    # A row needs one token at least, so an end alone stays.
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        return ids[:-1]
    return ids


def list_stop_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the token ids that end a logic or an answer: end of sequence, plain line break.

    They save computation alone: a token that holds more than a line break is no stop, so what
    follows the first line is left out by :func:`count_first_line` as well.
    """
    line_break = tokenizer("\n", add_special_tokens=False)["input_ids"]

    # A tokenizer of the SentencePiece kind puts a token that marks a space before the line break.
    plain = [id_ for id_ in line_break if tokenizer.decode([id_]) == "\n"]
    return [tokenizer.eos_token_id, *plain]


def count_first_line(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Return how many tokens make the first line of a text, with the one that ends it.

    Line breaks before the first word do not count, as they begin no line.
    """

    def ends_line(count: int) -> bool:
        text = tokenizer.decode(ids[:count], skip_special_tokens=True)
        return "\n" in text.lstrip()

    # A line that has ended stays ended, so the first such prefix is found by bisection.
    return min(bisect.bisect_left(range(len(ids) + 1), True, key=ends_line), len(ids))
