"""Both decoders with every prior, the text an agent learns, and answers that cannot be read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compevo_core.agents.decoders import DecodedForecasts, TextDecoder
from compevo_core.agents.decoding import parse_answer
from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.selection import aggregate_forecasts
from compevo_core.agents.strategy import NewsRetriever
from compevo_core.baselines import gbm
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.errors import ForecastParseError
from compevo_core.forecaster import CompEvoForecaster
from compevo_core.lm.adapter_routing import FORECAST
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population
from compevo_core.lm.prefill import PrefillCache
from compevo_core.training import trainer
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import make_examples, make_view_examples
from compevo_core.training.run_folder import RunFolder
from tests.support.population import news_pool, tiny, windows

DECODERS = ("head", "text")
PRIORS = ("none", "persistence", "calendar-ridge", "gbm", "published")

#: The trained model, its logics and its fitted prior, as the trainer hands them to the artifact.
Trained = tuple[PopulationModel, list[str], object]


def _with_published_forecast(drawn: WindowSet) -> WindowSet:
    """The same windows with a forecast that was out before the origin."""
    return WindowSet(
        [
            replace(window, view=replace(window.view, published=1.01 * window.view.x))
            for window in drawn
        ],
        dataset=drawn.dataset,
    )


def _answer_in_numbers(
    original: Callable[..., tuple[torch.Tensor, torch.Tensor]],
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Let the tiny backbone answer in numbers: each prompt's own last state, written as text.

    Every third answer is one number short. Logics are sampled as ever.
    """

    def sample(
        self: Population,
        cache: PrefillCache,
        *,
        max_new_tokens: int,
        temperature: float,
        **options: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if temperature > 0:
            return original(
                self, cache, max_new_tokens=max_new_tokens, temperature=temperature, **options
            )

        rows = []
        for number, state in enumerate(cache.last_states_ARD.detach().flatten(0, 1)):
            values = (100.0 * state).repeat(2)[: 47 if number % 3 == 2 else 48]
            text = ", ".join(f"{value:.2f}" for value in values.tolist())
            ids = self.backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
            rows.append(ids[:max_new_tokens])
        return _pad_rows(rows, agents=len(cache.last_states_ARD))

    return sample


def _pad_rows(rows: list[list[int]], agents: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rows as ``Population.sample`` returns them, ids and mask (A, R, T)."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids.reshape(agents, -1, width), mask.reshape(agents, -1, width)


def _prompts(examples: list[ForecastExample]) -> list[list[PromptGroup]]:
    return [[PromptGroup([5]) for _ in examples] for _ in range(3)]


def _decode_answers(
    decoder: TextDecoder, rows: list[list[int]], examples: list[ForecastExample]
) -> DecodedForecasts:
    """Forecasts of three agents whose answers are these token rows, whatever the prompt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Population, "sample", lambda *_, **__: _pad_rows(rows, agents=3))
        return decoder.decode(_prompts(examples), examples, train=False)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_what_was_trained_saved_and_loaded_predicts_as_the_trainer_would(
    decoder: str, prior: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gbm, "BOOSTING_ROUNDS", 5)
    monkeypatch.setattr(Population, "sample", _answer_in_numbers(Population.sample))
    trained: list[Trained] = []
    write_model = trainer.write_model

    def record_and_write(
        folder: RunFolder,
        model: PopulationModel,
        logics: list[str],
        fitted_prior: object,
        facts: dict[str, object],
    ) -> str:
        trained.append((model, logics, fitted_prior))
        return write_model(folder, model, logics, fitted_prior, facts)

    monkeypatch.setattr(trainer, "write_model", record_and_write)
    config = tiny(
        forecast__decoder=decoder,
        forecast__prior=prior,
        forecast__prior_folds=2,
        run__rounds=2,
        run__validate_every=0,
        grpo__group_size=2,
        optim__forecast_lr=0.02,
    )
    train, val, test = (
        _with_published_forecast(windows(split, days, first_day=first))
        for split, days, first in (("train", 40, 0), ("val", 2, 60), ("test", 2, 80))
    )
    trainer.train(config, train, val, news_pool(), tmp_path)
    ((model, logics, fitted_prior),) = trained

    prediction = CompEvoForecaster.load(tmp_path, news_pool()).predict_by_agent(test.views())
    expected = _predict_in_memory(model, logics, fitted_prior, test)
    assert np.allclose(prediction.aggregate, expected, rtol=1e-6)

    # Every third of 3 agents x 4 windows.
    assert prediction.n_unparsed == (4 if decoder == "text" else 0)

    assert (prediction.prior is None) == (prior == "none")
    if prediction.prior is not None:
        correction_mw = np.abs(prediction.aggregate - prediction.prior).max()
        assert correction_mw > 1.0  # the agents say something of their own
        assert np.allclose(prediction.prior, fitted_prior.predict(test.views()), rtol=1e-12)


def _predict_in_memory(
    model: PopulationModel, logics: list[str], fitted_prior: object, test: WindowSet
) -> np.ndarray:
    """Forecast by the trained objects themselves, without any file, in batches of two."""
    views = test.views()
    prior_NH = None if fitted_prior is None else fitted_prior.predict(views)
    examples = make_view_examples(views, prior_NH, model.scaler)

    news = model.config.news
    executor = model.executor(NewsRetriever(news_pool(), load_encoder(news.encoder), news.top_k))
    rows = []
    for start in range(0, len(examples), 2):
        batch = examples[start : start + 2]
        values_ABH = executor.forecast(logics, batch).values_ABH.detach()
        weights_BA = model.selection.weights([example.view.entity for example in batch]).detach()
        mean_BH = aggregate_forecasts(values_ABH, weights_BA).numpy().astype(np.float64)
        rows += [
            model.scaler.unscale(mean_H, one.view.entity)
            for mean_H, one in zip(mean_BH, batch, strict=True)
        ]
    return np.stack(rows)


def _build_text_decoder(prior: str) -> tuple[TextDecoder, list[ForecastExample]]:
    batch = windows("train", 1)
    scaler = Scaler.fit(windows("train", 4))
    config = tiny(forecast__decoder="text", forecast__prior=prior)
    model = PopulationModel(config, load_backbone(config.backbone, device="cpu"), scaler)

    prior_NH = None if prior == "none" else np.stack([view.x for view in batch.views()])
    return model.decoder, make_examples(batch, prior_NH, scaler)


@pytest.mark.parametrize("prior", ["none", "persistence"])
def test_the_text_an_agent_is_taught_reads_back_as_the_truth(prior: str) -> None:
    decoder, examples = _build_text_decoder(prior)
    tokenizer = decoder.population.backbone.tokenizer
    answers = [decoder._encode_answer(one) for one in examples]

    # In text: the value in MW, or with a prior the correction to it.
    first = examples[0]
    std, mean = decoder.scaler.std[first.view.entity], decoder.scaler.mean[first.view.entity]
    if prior == "none":
        expected_mw = first.truth_H * std + mean
    else:
        expected_mw = (first.truth_H - first.base_H) * std
    text = tokenizer.decode(answers[0], skip_special_tokens=True)
    assert np.allclose(parse_answer(text), expected_mw, atol=0.051)

    # Read back: the scaled truth, up to the rounding of the text.
    decoded = _decode_answers(decoder, answers * 3, examples)
    assert decoded.n_unparsed == 0
    for number, one in enumerate(examples):
        rounding = 0.051 / decoder.scaler.std[one.view.entity]
        assert np.allclose(decoded.values_ARH[:, number].numpy(), one.truth_H, atol=rounding)


def test_the_token_loss_is_that_of_each_answer_read_alone_after_its_prompt() -> None:
    decoder, examples = _build_text_decoder("persistence")
    population = decoder.population
    prompt = [5, 6, 7]
    with population.use_adapters(FORECAST):
        groups = [[PromptGroup(prompt) for _ in examples] for _ in range(3)]
        loss_A = decoder.decode(groups, examples, train=True).token_loss_A

        for agent in range(3):
            losses = []
            for one in examples:
                answer = torch.tensor(decoder._encode_answer(one))
                row = PromptGroup([*prompt, *answer.tolist()])
                states_ALD = population.hidden_states(population.pack([[row]] * 3))
                states_TD = states_ALD[agent, len(prompt) - 1 : -1]
                logp_TV = torch.log_softmax(population.logits(states_TD), -1)
                losses.append(-logp_TV.gather(1, answer[:, None]).mean())
            assert loss_A[agent].item() == pytest.approx(torch.stack(losses).mean().item(), 1e-4)

    loss_A.sum().backward()
    assert any(p.grad.abs().sum() > 0 for p in population.adapter_parameters(FORECAST))


def test_a_truth_with_a_missing_value_has_no_answer_to_learn_from() -> None:
    decoder, examples = _build_text_decoder("persistence")
    truth_H = examples[0].truth_H.copy()
    truth_H[3] = np.nan
    incomplete = [replace(one, truth_H=truth_H) for one in examples]
    assert decoder._encode_answer(incomplete[0]) == []

    with decoder.population.use_adapters(FORECAST):
        loss_A = decoder.decode(_prompts(incomplete), incomplete, train=True).token_loss_A
    assert loss_A.tolist() == [0.0, 0.0, 0.0]
    loss_A.sum().backward()  # a round calls it whatever the batch holds


@pytest.fixture(scope="module")
def text_decoder() -> tuple[TextDecoder, list[ForecastExample]]:
    return _build_text_decoder("persistence")


NUMBERS = st.lists(st.floats(width=32).map(str), min_size=47, max_size=49).map(", ".join)


@settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(st.one_of(st.text(max_size=80), NUMBERS), min_size=6, max_size=6))
@example([", ".join(["1e14"] * 48)] * 6)
@example([", ".join(["nan"] * 48), "", "1", ", ".join(["2.5"] * 48), "\x00", ", ".join(["7"] * 49)])
def test_whatever_a_model_writes_is_48_finite_numbers_or_a_counted_failure_scored_as_the_prior(
    text_decoder: tuple[TextDecoder, list[ForecastExample]], texts: list[str]
) -> None:
    decoder, examples = text_decoder
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
            assert np.allclose(values_H, examples[row % 2].base_H, rtol=1e-6)


def _is_readable(text: str) -> bool:
    try:
        return bool(np.isfinite(parse_answer(text)).all())
    except ForecastParseError:
        return False
