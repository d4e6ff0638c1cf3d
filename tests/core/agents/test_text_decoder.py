"""Answers as text: what is taught, its loss, each agent's own base, answers that cannot be read."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compevo_core.agents.decoders import DecodedForecasts, Reading
from compevo_core.agents.decoding import parse_answer
from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.text_decoder import TextDecoder
from compevo_core.errors import ForecastParseError
from compevo_core.lm.adapter_routing import FORECAST
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population
from tests.support.answers import answer_in_numbers, pad_rows
from tests.support.models import build_model, fill_with_noise, make_batch
from tests.support.population import tiny

#: The three agents correct a prior, answer with the values themselves, correct a blend of priors.
MEMBERS = [{"prior": "persistence"}, {"prior": "none"}, {"prior": "blend"}]


def _build(**overrides: object) -> tuple[TextDecoder, list[ForecastExample]]:
    """A text decoder over adapters away from their start, and two windows."""
    config = tiny(forecast__decoder="text", population__members=MEMBERS, **overrides)
    model = build_model(config)
    fill_with_noise(model)
    assert isinstance(model.decoder, TextDecoder)
    return model.decoder, make_batch(config)


@pytest.fixture(autouse=True)
def _answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer in numbers at once: the tiny backbone would write 576 tokens of nothing."""
    monkeypatch.setattr(Population, "sample", answer_in_numbers(Population.sample))


@pytest.fixture(scope="module")
def built() -> tuple[TextDecoder, list[ForecastExample]]:
    return _build()


def _read(examples: Sequence[ForecastExample], agents: int = 3) -> list[list[Reading]]:
    """One logic an agent, without news."""
    return [
        [Reading(one, [SEED_LOGICS[agent]], [()]) for one in examples] for agent in range(agents)
    ]


def _find_base(decoder: TextDecoder, agent: int, one: ForecastExample) -> np.ndarray:
    """The agent's own base, scaled; zeros without a prior."""
    return decoder.mix_AP[agent] @ one.priors_PH


def _encode_answers(decoder: TextDecoder, examples: Sequence[ForecastExample]) -> list[list[int]]:
    """What each agent is taught to answer, by agent, then by window."""
    return [
        decoder._encode_answer(decoder._ask(agent, one)) for agent in range(3) for one in examples
    ]


def _decode_answers(
    decoder: TextDecoder, rows: list[list[int]], examples: Sequence[ForecastExample]
) -> DecodedForecasts:
    """Forecasts of three agents whose answers are these token rows, whatever the prompt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Population, "prefill", lambda *_: None)
        patch.setattr(Population, "sample", lambda *_, **__: pad_rows(rows, agents=3))
        return decoder.decode(_read(examples), train=False)


def test_each_agent_is_taught_the_values_or_the_correction_to_its_own_base_in_the_unit(
    built: tuple[TextDecoder, list[ForecastExample]],
) -> None:
    decoder, examples = built
    tokenizer = decoder.population.backbone.tokenizer
    first = examples[0]
    std, mean = decoder.scaler.std[first.view.entity], decoder.scaler.mean[first.view.entity]

    answers = _encode_answers(decoder, [first])
    taught_mw = [parse_answer(tokenizer.decode(ids, skip_special_tokens=True)) for ids in answers]
    # The third of three made-up priors is the input itself times 1.04.
    for agent, base_H in (
        (0, 1.04 * first.view.x),
        (2, mean + std * _find_base(decoder, 2, first)),
    ):
        correction_mw = mean + std * first.truth_H - base_H
        assert np.allclose(taught_mw[agent], correction_mw, atol=0.051)
    assert np.allclose(taught_mw[1], mean + std * first.truth_H, atol=0.051)
    assert not np.allclose(taught_mw[0], taught_mw[2], atol=1.0)


def test_what_an_agent_is_taught_reads_back_as_the_truth(
    built: tuple[TextDecoder, list[ForecastExample]],
) -> None:
    decoder, examples = built
    decoded = _decode_answers(decoder, _encode_answers(decoder, examples), examples)
    assert decoded.n_unparsed == 0
    for number, one in enumerate(examples):
        rounding = 0.051 / decoder.scaler.std[one.view.entity]
        assert np.allclose(decoded.values_ARH[:, number].numpy(), one.truth_H, atol=rounding)


def test_the_prompt_of_an_agent_shows_its_own_base_and_asks_for_its_own_answer(
    built: tuple[TextDecoder, list[ForecastExample]],
) -> None:
    decoder, examples = built
    view = examples[0].view
    points = decoder.config.forecast.history_points
    texts = [
        decoder.population.backbone.tokenizer.decode(
            decoder._build_prompts(
                agent, Reading(examples[0], ["Watch storms."], [()])
            ).group.prefix
        )
        for agent in range(3)
    ]
    for agent in (0, 2):
        base_mw = decoder.scaler.unscale(_find_base(decoder, agent, examples[0]), view.entity)
        shown = ", ".join(f"{part.mean():.1f}" for part in np.split(base_mw, points))
        assert f"Statistical forecast in MW: {shown}\n" in texts[agent]
        assert "48 corrections to add to it, in MW." in texts[agent]
    assert "Answer with 48 values in MW." in texts[1]
    assert "Statistical" not in texts[1]


def test_the_token_loss_is_that_of_each_answer_read_alone_after_its_prompt(
    built: tuple[TextDecoder, list[ForecastExample]],
) -> None:
    decoder, examples = built
    population = decoder.population
    with population.use_adapters(FORECAST):
        loss_A = decoder.decode(_read(examples), train=True).token_loss_A

    for agent in range(3):
        losses = []
        for one in examples:
            group = decoder._build_prompts(agent, Reading(one, [SEED_LOGICS[agent]], [()])).group
            prompt = [*group.prefix, *group.suffixes[0]]
            answer = torch.tensor(decoder._encode_answer(decoder._ask(agent, one)))

            with torch.no_grad(), population.use_adapters(FORECAST, agents=slice(agent, agent + 1)):
                row = PromptGroup([*prompt, *answer.tolist()])
                states_LD = population.hidden_states(population.pack([[row]]))[0]

            # The state at a token is the distribution of the token after it.
            logits_TV = population.logits(states_LD[len(prompt) - 1 : -1])
            losses.append(torch.nn.functional.cross_entropy(logits_TV, answer))
        assert loss_A[agent].item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)

    loss_A.sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in population.adapter_parameters(FORECAST))


def test_a_truth_with_a_missing_value_has_no_answer_to_learn_from(
    built: tuple[TextDecoder, list[ForecastExample]],
) -> None:
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
    none_A.sum().backward()  # a round calls it whatever the batch holds


def test_answers_are_written_without_dropout_and_some_agents_answer_as_among_all(
    built: tuple[TextDecoder, list[ForecastExample]],
) -> None:
    decoder, examples = built
    readings = _read(examples)

    with decoder.population.use_adapters(FORECAST):
        plain_ARH = decoder.decode(readings, train=False).values_ARH
    with decoder.population.use_adapters(FORECAST, dropout=0.5):
        trained = decoder.decode(readings, train=True)
    assert torch.equal(trained.values_ARH, plain_ARH)

    some = slice(1, 3)
    with decoder.population.use_adapters(FORECAST, agents=some):
        alone_ARH = decoder.decode(readings[some], train=False, agents=some).values_ARH
    # Every third answer is one number short; that of agent 1 to the second window is in neither.
    assert torch.allclose(alone_ARH[0, 1], plain_ARH[1, 1], atol=1e-4)
    assert not torch.allclose(plain_ARH[1, 1], plain_ARH[0, 1], atol=1e-2)


def test_prompts_that_lost_news_or_history_are_counted(
    built: tuple[TextDecoder, list[ForecastExample]],
) -> None:
    decoder, examples = built
    lengths = []
    for agent, row in enumerate(_read(examples)):
        for reading in row:
            group = decoder._build_prompts(agent, reading).group
            lengths.append(len(group.prefix) + len(group.suffixes[0]))

    for length, expected in ((max(lengths), 0), (max(lengths) - 1, lengths.count(max(lengths)))):
        decoder, examples = _build(backbone__context_length=length)
        assert _decode_answers(decoder, [[2]] * 6, examples).n_cut == expected


NUMBERS = st.lists(st.floats(width=32).map(str), min_size=47, max_size=49).map(", ".join)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(st.one_of(st.text(max_size=80), NUMBERS), min_size=6, max_size=6))
@example([", ".join(["1e14"] * 48)] * 6)
@example([", ".join(["nan"] * 48), "", "1", ", ".join(["2.5"] * 48), "\x00", ", ".join(["7"] * 49)])
def test_whatever_a_model_writes_is_48_finite_numbers_or_a_counted_failure_scored_as_the_base(
    built: tuple[TextDecoder, list[ForecastExample]], texts: list[str]
) -> None:
    decoder, examples = built
    tokenizer = decoder.population.backbone.tokenizer
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] or [2] for text in texts]
    decoded = _decode_answers(decoder, rows, examples)
    assert decoded.values_ARH.shape == (3, 2, 48)
    assert torch.isfinite(decoded.values_ARH).all()

    is_readable = [_is_readable(tokenizer.decode(row, skip_special_tokens=True)) for row in rows]
    assert decoded.n_unparsed == 6 - sum(is_readable)
    for row, readable in enumerate(is_readable):
        if not readable:
            values_H = decoded.values_ARH[row // 2, row % 2].numpy()
            base_H = _find_base(decoder, row // 2, examples[row % 2])
            assert np.allclose(values_H, base_H, rtol=1e-6)


def _is_readable(text: str) -> bool:
    try:
        return bool(np.isfinite(parse_answer(text)).all())
    except ForecastParseError:
        return False


def test_generation_ends_after_the_number_that_was_asked_for_last(
    built: tuple[TextDecoder, list[ForecastExample]],
) -> None:
    decoder, examples = built
    tokenizer = decoder.population.backbone.tokenizer
    asked: dict[str, Callable[[list[int]], bool]] = {}

    def write(*_: object, **given: object) -> tuple[torch.Tensor, torch.Tensor]:
        asked.update(is_complete=given["is_complete"])
        return pad_rows([tokenizer.encode("7, " * 48, add_special_tokens=False)] * 6, agents=3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Population, "sample", write)
        decoded = decoder.decode(_read(examples), train=False)

    # The separator that ended it is no part of the answer.
    assert decoded.n_unparsed == 0
    for count, is_over in ((47, False), (48, True)):
        ids = tokenizer.encode(" " + "7, " * count, add_special_tokens=False)
        assert asked["is_complete"](ids) is is_over
