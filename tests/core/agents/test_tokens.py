"""Prompts end where generation goes on, and generation stops at an end or a plain line break."""

import pytest

from compevo_core.agents.tokens import list_stop_tokens, tokenize_prompt

EOS = 2


class _Tokenizer:
    """Character codes; closes texts as some tokenizers do, and may split a line break."""

    eos_token_id = EOS

    def __init__(self, *, closes: bool = False, line_break: tuple[int, ...] = (10,)) -> None:
        self.closes = closes
        self.line_break = line_break

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        ids = list(self.line_break) if text == "\n" else [ord(character) for character in text]
        return {"input_ids": [*ids, EOS] if self.closes and add_special_tokens else ids}


@pytest.mark.parametrize("closes", [False, True])
def test_a_prompt_does_not_end_the_sequence(closes: bool) -> None:
    assert tokenize_prompt(_Tokenizer(closes=closes), "ab") == [97, 98]


def test_an_empty_text_leaves_the_one_token_a_row_needs() -> None:
    assert tokenize_prompt(_Tokenizer(closes=True), "") == [EOS]


def test_a_line_break_of_one_token_stops_generation() -> None:
    assert list_stop_tokens(_Tokenizer()) == [EOS, 10]
    assert list_stop_tokens(_Tokenizer(line_break=(13, 10))) == [EOS]
