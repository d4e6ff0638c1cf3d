"""Prompts begin once and end where generation goes on; texts end with their first line."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from compevo_core.agents.tokens import count_first_line, list_stop_tokens, tokenize_prompt

BOS, EOS = 1, 2
_TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}[{{ turn['role'] }}] {{ turn['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)


class _Characters:
    """Character codes; closes texts as some tokenizers do."""

    eos_token_id = EOS
    bos_token = None

    def __init__(self, *, closes: bool = False) -> None:
        self.closes = closes

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        ids = [ord(character) for character in text]
        return {"input_ids": [*ids, EOS] if self.closes and add_special_tokens else ids}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(id_) for id_ in ids if not (skip_special_tokens and id_ == EOS))


def _build_llama(*, marks_spaces: bool) -> PreTrainedTokenizerFast:
    """A byte tokenizer that opens texts as Llama's does.

    With ``marks_spaces`` it is of the SentencePiece kind: it puts a space before every text, and a
    line break alone is two tokens.
    """
    vocab = {"<unk>": 0, "<s>": BOS, "</s>": EOS, "\u2581": 3, ".\n": 4}
    vocab |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    vocab |= {chr(code): 300 + code for code in range(33, 127)}

    rust = RustTokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))  # noqa: S106
    replace = normalizers.Replace(" ", "\u2581")
    if marks_spaces:
        rust.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace])
    else:
        rust.normalizer = replace

    rust.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        bos_token="<s>",  # noqa: S106 - a token of text
        eos_token="</s>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
        chat_template=_TEMPLATE,
    )


@pytest.mark.parametrize("closes", [False, True])
def test_a_prompt_does_not_end_the_sequence(closes: bool) -> None:
    assert tokenize_prompt(_Characters(closes=closes), "ab") == [97, 98]


def test_an_empty_text_leaves_the_one_token_a_row_needs() -> None:
    assert tokenize_prompt(_Characters(closes=True), "") == [EOS]


@pytest.mark.parametrize("has_chat_layout", [False, True])
@pytest.mark.parametrize("marks_spaces", [False, True])
def test_a_prompt_begins_with_exactly_one_token_of_the_begin_of_sequence(
    has_chat_layout: bool, marks_spaces: bool
) -> None:
    tokenizer = _build_llama(marks_spaces=marks_spaces)
    text = "hello"
    if has_chat_layout:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        assert text.startswith("<s>")

    ids = tokenize_prompt(tokenizer, text)
    assert ids[0] == BOS
    assert ids.count(BOS) == 1


def test_a_line_break_stops_generation_behind_a_token_that_marks_a_space_too() -> None:
    assert list_stop_tokens(_Characters()) == [EOS, 10]

    tokenizer = _build_llama(marks_spaces=True)
    assert len(tokenizer("\n", add_special_tokens=False)["input_ids"]) == 2
    stops = list_stop_tokens(tokenizer)
    assert [tokenizer.decode([id_]) for id_ in stops] == ["</s>", "\n"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one line", "one line"),
        ("one line\nand another\nand more", "one line\n"),
        ("\n\n one line\nand another", "\n\n one line\n"),
        ("\n\n", "\n\n"),
        ("", ""),
    ],
)
def test_the_first_line_ends_with_the_token_that_ends_it(text: str, expected: str) -> None:
    ids = [ord(character) for character in text]
    assert count_first_line(_Characters(), ids) == len(expected)


def test_a_token_that_holds_more_than_a_line_break_ends_the_first_line() -> None:
    tokenizer = _build_llama(marks_spaces=False)
    first = tokenizer("Follow storms", add_special_tokens=False)["input_ids"]
    rest = tokenizer("and write on", add_special_tokens=False)["input_ids"]
    assert count_first_line(tokenizer, [*first, 4, *rest]) == len(first) + 1
