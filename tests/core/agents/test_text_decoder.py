"""Answers as text: parsing, prompts, the token loss, each agent's own base."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compevo_core.agents import text_decoder
from compevo_core.agents.decoders import (
    FORECAST,
    ForecastExample,
    ForecastRequest,
    RetrievedArticle,
)
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.text_decoder import TextDecoder, format_numbers, parse_answer
from compevo_core.errors import ConfigError, ForecastParseError
from compevo_core.lora import Population, PromptGroup
from tests.support.answers import answer_in_numbers, pad_rows
from tests.support.models import build_model, fill_with_noise, make_batch
from tests.support.population import tiny, windows

#: The three agents correct a prior, answer with the values themselves, correct a blend of priors.
MEMBERS = [{"prior": "persistence"}, {"prior": "none"}, {"prior": "blend"}]


@pytest.fixture(autouse=True)
def _answers(monkeypatch):
    """Answer in numbers at once: the tiny backbone would write 576 tokens of nothing."""
    monkeypatch.setattr(Population, "sample", answer_in_numbers(Population.sample))


@pytest.fixture(scope="module")
def built():
    """A text decoder over adapters away from their start, and two windows."""
    config = tiny(forecast__decoder="text", population__members=MEMBERS)
    model = build_model(config)
    fill_with_noise(model)
    assert isinstance(model.decoder, TextDecoder)
    return model.decoder, make_batch(config)


def _read(examples):
    """One logic an agent, without news."""
    return [[ForecastRequest(one, [logic], [()]) for one in examples] for logic in SEED_LOGICS[:3]]


def _find_base(decoder, agent, one):
    """The agent's own base, scaled; zeros without a prior."""
    return decoder.mix_AP[agent] @ one.priors_PH


def _ask(decoder, agent, one):
    return decoder._ask(agent, ForecastRequest(one, [SEED_LOGICS[agent]], [()]))


def _encode_answers(decoder, examples):
    """What each agent is taught to answer, by agent, then by window."""
    asked = [_ask(decoder, agent, one) for agent in range(3) for one in examples]
    return [decoder._encode_answer(question) for question in asked]


def _decode_answers(decoder, rows, examples):
    """Forecasts of three agents whose answers to any prompt are these token rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Population, "prefill", lambda *_: None)
        patch.setattr(Population, "sample", lambda *_, **__: pad_rows(rows, agents=3))
        return decoder.decode(_read(examples), train=False)


def test_agents_are_taught_values_or_corrections(built):
    decoder, examples = built
    tokenizer, scaler = decoder.population.backbone.tokenizer, decoder.scaler
    answers = _encode_answers(decoder, examples)
    taught = [parse_answer(tokenizer.decode(ids, skip_special_tokens=True)) for ids in answers]
    for number, one in enumerate(examples):
        entity = one.view.entity
        truth_mw = scaler.unscale(one.truth_H, entity)
        for agent in (0, 2):
            base_mw = scaler.unscale(_find_base(decoder, agent, one), entity)
            assert np.allclose(taught[2 * agent + number], truth_mw - base_mw, atol=0.051)
        assert np.allclose(taught[2 + number], truth_mw, atol=0.051)

    # What is taught reads back as the truth.
    decoded = _decode_answers(decoder, answers, examples)
    assert decoded.n_unparsed == 0
    for number, one in enumerate(examples):
        rounding = 0.051 / scaler.std[one.view.entity]
        assert np.allclose(decoded.values_ABH[:, number].numpy(), one.truth_H, atol=rounding)


def test_the_prompt_shows_the_agents_own_base(built):
    decoder, examples = built
    view = examples[0].view
    points = decoder.config.forecast.history_points
    decode = decoder.population.backbone.tokenizer.decode

    texts = [decode(_ask(decoder, agent, examples[0]).group.prefix) for agent in range(3)]

    for agent in (0, 2):
        base_mw = decoder.scaler.unscale(_find_base(decoder, agent, examples[0]), view.entity)
        shown = ", ".join(f"{part.mean():.1f}" for part in np.split(base_mw, points))
        assert f"Statistical forecast in MW: {shown}\n" in texts[agent]
        assert "48 corrections to" in texts[agent]
    assert "48 values in" in texts[1] and "Statistical" not in texts[1]


def test_the_token_loss_equals_answers_read_separately(built):
    decoder, examples = built
    population = decoder.population
    with population.use_adapters(FORECAST):
        loss_A = decoder.decode(_read(examples), train=True).token_loss_A

    for agent in range(3):
        losses = []
        for one in examples:
            question = _ask(decoder, agent, one)
            prompt = [*question.group.prefix, *question.group.suffixes[0]]
            answer = torch.tensor(decoder._encode_answer(question))

            with torch.no_grad(), population.use_adapters(FORECAST, rows=slice(agent, agent + 1)):
                row = PromptGroup([*prompt, *answer.tolist()])
                states_LD = population.hidden_states(population.pack([[row]]))[0]

            # The state at a token is the distribution of the token after it.
            logits_TV = population.logits(states_LD[len(prompt) - 1 : -1])
            losses.append(torch.nn.functional.cross_entropy(logits_TV, answer))
        assert loss_A[agent].item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)

    loss_A.sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in population.adapter_parameters(FORECAST))


def test_a_truth_with_gaps_has_no_answer(built):
    decoder, examples = built
    truth_H = examples[0].truth_H.copy()
    truth_H[3] = np.nan
    incomplete = [replace(one, truth_H=truth_H) for one in examples]
    assert _encode_answers(decoder, incomplete) == [[]] * 6

    with decoder.population.use_adapters(FORECAST):
        none_A = decoder.decode(_read(incomplete), train=True).token_loss_A
        half_A = decoder.decode(_read([examples[0], incomplete[1]]), train=True).token_loss_A
        whole_A = decoder.decode(_read(examples[:1]), train=True).token_loss_A
    assert none_A.tolist() == [0.0, 0.0, 0.0]
    assert torch.allclose(half_A, whole_A, rtol=1e-5)  # the mean over the answers there are
    none_A.sum().backward()  # a round calls it for every batch


def test_answers_use_no_dropout_in_any_subset(built):
    decoder, examples = built
    readings = _read(examples)

    with decoder.population.use_adapters(FORECAST):
        plain_ARH = decoder.decode(readings, train=False).values_ABH
    with decoder.population.use_adapters(FORECAST, dropout=0.5):
        trained = decoder.decode(readings, train=True)
    assert torch.equal(trained.values_ABH, plain_ARH)

    some = slice(1, 3)
    with decoder.population.use_adapters(FORECAST, rows=some):
        alone_ARH = decoder.decode(readings[some], train=False, agents=some).values_ABH
    # Every third answer is one number short; that of agent 1 to the second window is in neither.
    assert torch.allclose(alone_ARH[0, 1], plain_ARH[1, 1], atol=1e-4)
    assert not torch.allclose(plain_ARH[1, 1], plain_ARH[0, 1], atol=1e-2)


WRITTEN = (", ".join(["1e14"] * 48), ", ".join(["nan"] * 48), "", "1", "\x00", "7, " * 49)


def test_an_unreadable_answer_is_counted_as_the_base(built):
    decoder, examples = built
    tokenizer = decoder.population.backbone.tokenizer
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] or [2] for text in WRITTEN]

    decoded = _decode_answers(decoder, rows, examples)

    assert decoded.n_unparsed == 5 and torch.isfinite(decoded.values_ABH).all()
    for row in range(1, 6):
        values_H = decoded.values_ABH[row // 2, row % 2].numpy()
        base_H = _find_base(decoder, row // 2, examples[row % 2])
        assert np.allclose(values_H, base_H, rtol=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=48, max_size=48))
def test_formatted_values_are_read_back_before_remarks(values):
    text = ", ".join(format_numbers(values, "MW")) + "\nThis is my forecast."
    assert np.allclose(parse_answer(text), values, atol=5.1e-2)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("MW", "0.7, 1.0"), ("USD/AUD", "0.66667, 1.00000"), ("fraction", "0.6667, 1.0000")],
)
def test_the_unit_sets_the_decimals_of_answers(unit, expected):
    assert ", ".join(format_numbers([2 / 3, 1.0], unit)) == expected


WORDS = st.one_of(st.floats().map(str), st.sampled_from(["nan", "1e999", "--", "12.", "1,2", ""]))


@settings(max_examples=300)
@given(st.one_of(st.text(max_size=400), st.lists(WORDS, max_size=60).map(", ".join)))
@example("1e400, " * 48)
@example("٣, " * 48)
def test_any_text_gives_48_numbers_or_fails(text):
    try:
        values = parse_answer(text)
    except ForecastParseError:
        return
    assert values.shape == (48,) and np.isfinite(values).all()


@pytest.mark.parametrize(
    ("text", "is_over"),
    [
        ("1.5, " * 47 + "1", False),  # may still become 1.5
        ("1.5, " * 47 + "1.5,", True),
        ("1.5\n" * 48, True),
        ("", False),
        (", " * 60, False),
    ],
)
def test_an_answer_ends_after_its_last_number(text, is_over):
    assert text_decoder.has_all_numbers(text) is is_over


VIEW = windows("train", 1).views()[0]
LOGICS = SEED_LOGICS[:2]
NEWS = [
    RetrievedArticle(title, f"0{day} Jan", title, np.zeros(1, np.float32))
    for day, title in enumerate(("Best match", "Second match", "Third match"), 1)
]


@pytest.fixture(scope="module")
def plain():
    """A decoder whose agents answer with the values themselves."""
    members = [{"prior": "none"}] * 3
    decoder = build_model(tiny(forecast__decoder="text", population__members=members)).decoder
    assert isinstance(decoder, TextDecoder)
    return decoder


def _build_prompts(decoder, length=4096, *, points=8):
    """The prompts of one window under two logics, the first of which found news."""
    sizes = {"forecast.history_points": points, "backbone.context_length": length}
    reading = ForecastRequest(ForecastExample(VIEW, np.zeros((0, 48))), LOGICS, [NEWS, []])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "config", decoder.config.with_overrides(sizes))
        return decoder._ask(0, reading)


def _texts(decoder, prompts):
    group = prompts.group
    decode = decoder.population.backbone.tokenizer.decode
    return [decode([*group.prefix, *suffix]) for suffix in group.suffixes]


def _longest(prompts):
    return len(prompts.group.prefix) + max(map(len, prompts.group.suffixes))


def _history(text):
    return text.partition("Historical data in MW: ")[2].partition("\n")[0].split(", ")


@pytest.mark.parametrize("points", [48, 8])
def test_an_agent_sees_the_means_of_the_lookback(plain, points):
    means = [part.mean() for part in np.split(VIEW.x, points)]
    shown = _history(_texts(plain, _build_prompts(plain, points=points))[0])
    assert shown == [f"{value:.1f}" for value in means]


def test_the_least_similar_news_is_cut_first(plain):
    whole = _build_prompts(plain)
    all_history = _history(_texts(plain, whole)[0])
    all_titles = [article.title for article in NEWS]
    with pytest.raises(ConfigError) as caught:
        _build_prompts(plain, 64)
    shortest = int(str(caught.value).partition(" has ")[2].split()[0])

    shown = []
    for length in range(shortest, _longest(whole) + 1):
        prompts = _build_prompts(plain, length)
        assert _longest(prompts) <= length
        texts = _texts(plain, prompts)
        for logic, text in zip(LOGICS, texts, strict=True):
            assert f"Logic: {logic}" in text and "load for NSW1" in text
            assert text.endswith("Forecast:")

        # What is left of the news are the best matches, of the history the newest values.
        titles = [title for title in all_titles if title in texts[0]]
        history = _history(texts[0])
        assert titles == all_titles[: len(titles)]
        assert history == all_history[len(all_history) - len(history) :]
        shown.append((len(titles), len(history)))

        is_cut = len(titles) < 3 or len(history) < 8
        assert prompts.n_cut == (2 if len(history) < 8 else int(is_cut))

    # History goes only where no news is left, and every step of the way occurs.
    assert set(shown) == {(0, count) for count in range(1, 8)} | {(kept, 8) for kept in range(4)}
    assert shown == sorted(shown)
