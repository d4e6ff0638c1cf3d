"""Sampling: under a grammar as token by token, ended rows leave, edges of a random choice."""

import dataclasses
import itertools
from collections import Counter
from typing import NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.cases import sample_every_token
from compevo_core.agents.decoders import LOGIC
from compevo_core.errors import ConfigError
from compevo_core.lm.grammar import SlotGrammar, restricted_token_logp, sample_under_grammar
from compevo_core.lora import Population, PromptGroup, sampling
from compevo_core.lora.sampling import SamplingSettings, choose_tokens
from tests.support import tiny_backbone

STOPS = [2, 13]
# Bytes: runs of letters that nothing but the first one chooses, and slots that may be left out.
SLOTS = [
    ["read ", "ignore ", "rank "],
    ["outages", "wind", "windstorms"],
    ["", " in the north", " in the south", " everywhere"],
    ["."],
]
PROMPTS = [[5, 6, 7], [9, 10], [11, 12, 13, 14, 15]]
SAMPLES = 5


class FirstTokensForced:
    """The prompt is followed by two tokens at any rate, then by a coin flip, and may continue."""

    def allowed(self, ids):
        return [[20], [30], [9, 5], [41, 40, 2]][min(len(ids), 3)]


class EverythingForced:
    """Nothing is ever chosen."""

    def allowed(self, ids):
        return [20 + len(ids)] if len(ids) < 4 else [2]


def _settings(grammar, seed, **changes):
    settings = SamplingSettings(
        samples=SAMPLES,
        max_new_tokens=getattr(grammar, "max_tokens", 12),
        temperature=0.9,
        stop_tokens=STOPS,
        generators=[torch.Generator().manual_seed(100 * seed + agent) for agent in range(3)],
    )
    return dataclasses.replace(settings, **changes)


def _sample(population, prompts, grammar, settings, way=sample_under_grammar):
    """Ids and mask of the samples, and where the generators then stand."""
    groups = [[PromptGroup([4], rows)] for rows in prompts]
    with population.use_adapters(LOGIC):
        cache = population.prefill(population.pack(groups))
        ids, mask = way(population, cache, grammar, settings)
    return ids, mask, [generator.get_state() for generator in settings.generators]


def _assert_same(population, prompts, grammar, seed, **changes):
    chosen = (_settings(grammar, seed, **changes) for _ in range(2))
    ids, mask, states = _sample(population, prompts, grammar, next(chosen))
    expected_ids, expected_mask, expected_states = _sample(
        population, prompts, grammar, next(chosen), sample_every_token
    )

    assert torch.equal(ids, expected_ids)
    assert torch.equal(mask, expected_mask)
    assert ids.dtype == mask.dtype == torch.long
    assert all(torch.equal(*pair) for pair in zip(states, expected_states, strict=True))
    return ids


@pytest.fixture(scope="module")
def population():
    return tiny_backbone.build_population()


@pytest.fixture(scope="module")
def grammar(population):
    return SlotGrammar(SLOTS, population.backbone.tokenizer, STOPS)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_writing_equals_one_pass_per_token(population, grammar, seed):
    one = [[row] for row in PROMPTS]
    two = [[row, row[::-1], [*row, 8, 8]] for row in PROMPTS]
    drawn = {tuple(row) for row in _assert_same(population, one, grammar, seed)[0].tolist()}
    assert len(drawn) > 1
    _assert_same(population, two, grammar, seed)
    _assert_same(population, one, grammar, seed, temperature=0.0)
    _assert_same(population, one, grammar, seed, temperature=8.0)
    # A text ends with the token that completes it.
    (last,) = population.backbone.tokenizer.encode("w")
    _assert_same(population, one, grammar, seed, is_complete=lambda ids: ids[-1] == last)


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_a_text_is_cut_where_too_long(population, grammar, length):
    ids = _assert_same(population, [[row] for row in PROMPTS], grammar, 1, max_new_tokens=length)
    assert ids.shape == (3, SAMPLES, length)


@pytest.mark.parametrize("rule", [FirstTokensForced(), EverythingForced()])
def test_texts_may_begin_with_or_without_choices(population, rule):
    for seed in range(4):
        _assert_same(population, [[row] for row in PROMPTS], rule, seed)
    _assert_same(population, [[row] for row in PROMPTS], rule, 0, temperature=0.0)


def test_capped_scores_and_embeddings_are_the_models():
    population = tiny_backbone.insert_adapters(tiny_backbone.build_gemma(), seed=1)
    tiny_backbone.move_adapters(population)
    _assert_same(population, [[[5, 6]], [[9]], [[7, 3]]], FirstTokensForced(), 3, max_new_tokens=5)


def test_each_choice_has_a_pass_reading_once(population, grammar, spy):
    read = spy(Population, "read_tokens")
    prompts = [[row] for row in PROMPTS]
    ids, mask, _ = _sample(population, prompts, grammar, _settings(grammar, seed=0))
    lengths = mask.sum(-1).flatten().tolist()
    choices = [
        sum(len(grammar.allowed(tuple(row[:place]))) > 1 for place in range(length))
        for row, length in zip(ids.flatten(0, 1).tolist(), lengths, strict=True)
    ]
    # The first choice needs the prompt alone.
    assert len(read) == max(choices) - 1 < ids.shape[-1] // 3
    widest = sum(int(ids_AL.shape[1]) for (_, ids_AL, *_), _ in read)

    assert widest <= 1.3 * int(mask.sum(-1).sum(1).max())


AGENTS = 3
PROMPTS_OF_AN_AGENT = 8
TOKENS = 14


def _write(population, temperature, *, samples=1):
    """Continue prompts of unlike lengths to unlike lengths; return the generators' states too."""
    generators = [torch.Generator().manual_seed(agent) for agent in range(AGENTS)]
    groups = [
        [PromptGroup([3, 4 + agent, *range(20, 21 + row)]) for row in range(PROMPTS_OF_AN_AGENT)]
        for agent in range(AGENTS)
    ]
    with population.use_adapters(LOGIC):
        settings = SamplingSettings(
            samples=samples,
            max_new_tokens=TOKENS,
            temperature=temperature,
            stop_tokens=[2],
            generators=generators,
            is_complete=lambda row: len(row) == 1 + sum(row[:2]) % TOKENS,
        )
        ids, mask = population.sample(population.prefill(population.pack(groups)), settings)
    return ids, mask, [generator.get_state() for generator in generators]


@pytest.mark.parametrize(("temperature", "samples"), [(0.0, 1), (0.9, 1), (0.9, 2)])
def test_batch_size_and_checks_change_no_text(temperature, samples, monkeypatch, spy):
    population = tiny_backbone.build_population()
    read = spy(Population, "read_tokens")

    def write(tokens_per_look=1):
        read.clear()
        monkeypatch.setitem(sampling._TOKENS_PER_LOOK, "cpu", tokens_per_look)
        written = _write(population, temperature, samples=samples)
        return written, [ids_AL.shape[1] for (_, ids_AL, *_), _ in read]

    (ids, mask, states), widths = write()
    # Samples of one prompt share its keys, and are computed until the last one ends.
    assert widths[0] == PROMPTS_OF_AN_AGENT * samples
    assert (widths[-1] < widths[0]) == (samples == 1)
    assert len(set(mask.sum(-1).flatten().tolist())) > 3

    # An agent that ends between two looks takes back the numbers that it did not need.
    others = [write(tokens_per_look)[0] for tokens_per_look in (3, 16)]
    monkeypatch.setattr(sampling, "_MOST_KEPT", 0.0)  # nothing is left out
    whole, widths = write()
    assert set(widths) == {PROMPTS_OF_AN_AGENT * samples}
    for other_ids, other_mask, other_states in (*others, whole):
        assert torch.equal(mask, other_mask) and torch.equal(ids, other_ids)
        assert all(map(torch.equal, states, other_states))


class _Counter(TorchDispatchMode):
    """Counts kernels and waits for the device, inside and outside of a step."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()
        self.place = "outside"

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        returned = [each.alias_info for each in operator._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in returned)
        is_wait = operator.name() in ("aten::_local_scalar_dense", "aten::nonzero")
        self.counts[self.place, "wait" if is_wait else "view" if is_view else "kernel"] += 1
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_token_waits_for_nothing(temperature, monkeypatch):
    population, counter = tiny_backbone.build_population(), _Counter()
    counts, read_tensor = counter.counts, torch.Tensor.tolist

    def look(tensor):
        counts[counter.place, "wait"] += 1  # on a processor reading a tensor is no operator
        return read_tensor(tensor)

    def step(self):
        counter.place = "inside"
        self._work()
        counter.place = "outside"
        counts["steps"] += 1

    monkeypatch.setattr(torch.Tensor, "tolist", look)
    monkeypatch.setattr(sampling._Step, "__call__", step)
    monkeypatch.setitem(sampling._TOKENS_PER_LOOK, "cpu", 16)
    settings = SamplingSettings(
        max_new_tokens=32,
        temperature=temperature,
        stop_tokens=[],
        generators=[torch.Generator().manual_seed(agent) for agent in range(3)],
    )
    with population.use_adapters(LOGIC), torch.no_grad():
        cache = population.prefill(population.pack([[PromptGroup([5, 6, 7])]] * 3))
        with counter:
            population.sample(cache, settings)

    assert counts["steps"] == 31  # the first token needs the prompt alone
    assert counts["inside", "wait"] == 0
    assert counts["outside", "wait"] == 2  # looks
    # A greedy token took 161 kernels here, and three waits, when the host looked after each.
    assert (counts["outside", "kernel"] + counts["steps"]) / 32 < 161 / 30


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.5, 3), (1.0 - 2.0**-53, 3)])
def test_an_impossible_token_is_never_drawn(uniform, token):
    logits = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).log()
    assert choose_tokens(logits, 1.0, torch.tensor(uniform, dtype=torch.float64)).item() == token


ENDS = [2, 10]
# "in", "ind" and "inde": an alternative that begins like another, and like it and the next slot.
LETTERS = [["in", "ind", "no"], ["", "e"], ["."]]
SENTENCES = {"".join(parts) for parts in itertools.product(*LETTERS)}


def _grammar(slots=LETTERS):
    return SlotGrammar(slots, tiny_backbone.build_backbone().tokenizer, ENDS)


def test_grammar_paths_are_its_sentences_once():
    grammar = _grammar()
    decode = tiny_backbone.build_backbone().tokenizer.decode
    paths, open_paths = [], [()]
    while open_paths:
        path = open_paths.pop()
        for token in grammar.allowed(path):
            (paths if token in ENDS else open_paths).append((*path, token))

    assert {decode(path[:-1]) for path in paths} == SENTENCES
    assert len(paths) == len(set(paths)) == len(SENTENCES) * len(ENDS)
    assert max(map(len, paths)) == grammar.max_tokens


class _Head(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor
    cap: float | None

    def logits(self, states, tokens):
        scores = states @ self.weight[tokens].t() + self.bias[tokens]
        return scores if self.cap is None else self.cap * torch.tanh(scores / self.cap)


@pytest.mark.parametrize("cap", [None, 2.0])
def test_restricted_probabilities_equal_a_dense_softmax(cap):
    torch.manual_seed(0)
    states = torch.randn(6, 16, requires_grad=True)
    weight, bias = torch.randn(90, 16), torch.randn(90)
    allowed = [[3, 7, 80], [5], [3, 7, 80], [80, 2], [3, 7], list(range(90))]
    ids = torch.tensor([7, 5, 80, 2, 3, 44])

    scores = states @ weight.t() + bias
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    hidden = torch.ones(6, 90, dtype=torch.bool)
    for row, tokens in enumerate(allowed):
        hidden[row, tokens] = False
    dense = torch.log_softmax((scores / 0.7).masked_fill(hidden, -torch.inf), -1)
    expected = dense.gather(1, ids[:, None]).squeeze(1)

    found = restricted_token_logp(_Head(weight, bias, cap), states, ids, allowed, 0.7)
    assert torch.allclose(found, expected, atol=1e-5)
    upstream = torch.randn(6)
    mine, theirs = (torch.autograd.grad(out, states, upstream)[0] for out in (found, expected))
    assert torch.allclose(mine, theirs, atol=1e-5)


def test_a_token_outside_the_grammar_has_no_probability():
    with pytest.raises(ValueError, match=r"token 9.* 2"):
        restricted_token_logp(None, torch.zeros(1, 16), torch.tensor([9]), [[3, 4]])
    with pytest.raises(ValueError, match="begin no sentence"):
        _grammar().allowed((3, 3))


@pytest.mark.parametrize(
    ("slots", "says"),
    [([], "slots"), ([["a"], []], "at least one text"), ([["a<eos>"]], "ends a text")],
)
def test_empty_slots_and_ending_texts_are_refused(slots, says):
    with pytest.raises(ConfigError, match=says):
        _grammar(slots)


def test_a_tokenizer_that_loses_letters_is_refused():
    class Deaf:
        def encode(self, text, *, add_special_tokens):
            return [ord(letter) for letter in text if letter != "e"]

        def decode(self, token_ids):
            return "".join(map(chr, token_ids))

    with pytest.raises(ConfigError, match="of its own"):
        SlotGrammar([["the"]], Deaf(), ENDS)
