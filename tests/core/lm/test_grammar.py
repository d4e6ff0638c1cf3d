"""Under a grammar nothing but its sentences is written, with the chances of the softmax over it."""

import itertools

import pytest
import torch

from compevo_core.errors import ConfigError
from compevo_core.lm.frozen_linear import restricted_token_logp
from compevo_core.lm.grammar import SlotGrammar
from tests.support.tiny_backbone import build_backbone

STOPS = [2, 10]
# "in", "ind" and "inde": an alternative that begins like another, and like it and the next slot.
SLOTS = [["in", "ind", "no"], ["", "e"], ["."]]
SENTENCES = {"".join(parts) for parts in itertools.product(*SLOTS)}


def _grammar(slots=SLOTS):
    return SlotGrammar(slots, build_backbone().tokenizer, STOPS)


def _paths(grammar):
    """Every path of allowed tokens that ends with a stop token."""
    done, open_paths = [], [()]
    while open_paths:
        path = open_paths.pop()
        for token in grammar.allowed(path):
            (done if token in STOPS else open_paths).append((*path, token))
    return done


def test_the_paths_of_a_grammar_are_its_sentences_each_once():
    grammar = _grammar()
    decode = build_backbone().tokenizer.decode
    paths = _paths(grammar)

    assert {decode(path[:-1]) for path in paths} == SENTENCES
    assert len(paths) == len(set(paths)) == len(SENTENCES) * len(STOPS)
    assert max(map(len, paths)) == grammar.max_tokens


@pytest.mark.parametrize("cap", [None, 2.0])
def test_restricted_log_probabilities_and_gradients_are_those_of_a_dense_softmax(cap):
    torch.manual_seed(0)
    states, weight, bias = (
        torch.randn(6, 16, requires_grad=True),
        torch.randn(90, 16),
        torch.randn(90),
    )
    allowed = [[3, 7, 80], [5], [3, 7, 80], [80, 2], [3, 7], list(range(90))]
    ids = torch.tensor([7, 5, 80, 2, 3, 44])

    scores = states @ weight.t() + bias
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    hidden = torch.ones(6, 90, dtype=torch.bool)
    for row, tokens in enumerate(allowed):
        hidden[row, tokens] = False
    dense = torch.log_softmax((scores / 0.7).masked_fill(hidden, -torch.inf), -1)
    expected = dense.gather(1, ids[:, None]).squeeze(1)

    found = restricted_token_logp(states, ids, allowed, weight, bias, temperature=0.7, cap=cap)
    assert torch.allclose(found, expected, atol=1e-5)
    upstream = torch.randn(6)
    mine, theirs = (torch.autograd.grad(out, states, upstream)[0] for out in (found, expected))
    assert torch.allclose(mine, theirs, atol=1e-5)


def test_a_token_outside_the_grammar_has_no_probability():
    with pytest.raises(ValueError, match="token 9 is not among the 2"):
        restricted_token_logp(torch.zeros(1, 16), torch.tensor([9]), [[3, 4]], torch.zeros(90, 16))
    with pytest.raises(ValueError, match="begin no sentence"):
        _grammar().allowed((3, 3))


@pytest.mark.parametrize(
    ("slots", "says"),
    [([], "slots"), ([["a"], []], "at least one text"), ([["a<eos>"]], "ends a text")],
)
def test_slots_without_texts_and_texts_that_end_themselves_are_refused(slots, says):
    with pytest.raises(ConfigError, match=says):
        _grammar(slots)


def test_a_tokenizer_that_loses_letters_is_refused():
    class Deaf:
        def encode(self, text, *, add_special_tokens):
            return [ord(letter) for letter in text if letter != "e"]

        def decode(self, token_ids):
            return "".join(map(chr, token_ids))

    with pytest.raises(ConfigError, match="no tokens of its own"):
        SlotGrammar([["the"]], Deaf(), STOPS)
