"""Token ids of prompts and the ids at which generation stops.

What belongs here: what the agents need of a tokenizer besides decoding. What does not: wording
(``agents.prompts``), packing rows into a batch (``lm.packing``).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """What the agents use of a transformers tokenizer."""

    @property
    def eos_token_id(self) -> int:
        """The id that ends a sequence."""
        ...

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, list[int]]:
        """Return the token ids of a text under ``input_ids``."""
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
    """Return the ids of a text that generation shall continue, without an end-of-sequence token."""
    ids = list(tokenizer(text, add_special_tokens=True)["input_ids"])

    # Some tokenizers close every text; a model that has read the end has nothing more to say.
    # A row needs one token at least, so an end alone stays.
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        return ids[:-1]
    return ids


def list_stop_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the token ids that end a logic or an answer: end of sequence, plain line break."""
    stops = [tokenizer.eos_token_id]
    line_break = tokenizer("\n", add_special_tokens=False)["input_ids"]

    # A line break of several tokens cannot be matched token by token.
    return stops + (line_break if len(line_break) == 1 else [])
