"""Every decoder with every prior: train, save, load, and the loaded population predicts what the trained one does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compevo_core.agents.decoders import TextDecoder
from compevo_core.agents.decoding import parse_answer
from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.selection import aggregate_forecasts
from compevo_core.agents.strategy import NewsRetriever
from compevo_core.baselines import gbm
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.errors import ForecastParseError
from compevo_core.forecaster import CompEvoForecaster
from compevo_core.lm.backbone import load_backbone
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
Sealed = tuple[PopulationModel, list[str], object]


def _published(drawn: WindowSet) -> WindowSet:
    """The same windows with a forecast that was out before the origin."""
    return WindowSet(
        [replace(w, view=replace(w.view, published=1.01 * w.view.x)) for w in drawn],
        dataset=drawn.dataset,
    )


def _numbers_of_the_state(
    original: Callable[..., tuple[torch.Tensor, torch.Tensor]],
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Lets the tiny backbone answer in numbers: each row's own last state, written as text.

    Every third answer is one number short. Logics are sampled as ever.
    """

    def sample(
        self: Population,
        prefix: PrefillCache,
        *,
        tokens: int,
        temperature: float,
        **options: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if temperature > 0:
            return original(self, prefix, tokens=tokens, temperature=temperature, **options)
        rows = []
        for number, state in enumerate(prefix.last_states_ARD.detach().flatten(0, 1)):
            values = (100.0 * state).repeat(2)[: 47 if number % 3 == 2 else 48]
            text = ", ".join(f"{v:.2f}" for v in values.tolist())
            rows.append(
                self.backbone.tokenizer(text, add_special_tokens=False)["input_ids"][:tokens]
            )
        return _padded(rows, agents=len(prefix.last_states_ARD))

    return sample


def _padded(rows: list[list[int]], agents: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rows as what ``Population.sample`` returns, ids and mask (A, R, T)."""
    width = max(len(r) for r in rows)
    ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
    mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])
    return ids.reshape(agents, -1, width), mask.reshape(agents, -1, width)


def _answered(
    answers: TextDecoder, rows: list[list[int]], tasks: list[ForecastExample]
) -> tuple[torch.Tensor, int]:
    """Forecasts of three agents on two tasks whose answers are these token rows, whatever the prompt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Population, "sample", lambda *_, **__: _padded(rows, agents=3))
        return answers._generate_forecasts(
            [[PromptGroup([5]) for _ in tasks] for _ in range(3)], tasks
        )


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_what_was_trained_saved_and_loaded_predicts_as_the_trainer_would(
    decoder: str, prior: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gbm, "BOOSTING_ROUNDS", 5)
    monkeypatch.setattr(Population, "sample", _numbers_of_the_state(Population.sample))
    sealed: list[Sealed] = []
    write = trainer.write_model

    def keep(
        folder: RunFolder,
        learner: PopulationModel,
        logics: list[str],
        fitted: object,
        facts: dict[str, object],
    ) -> str:
        sealed.append((learner, logics, fitted))
        return write(folder, learner, logics, fitted, facts)

    monkeypatch.setattr(trainer, "write_model", keep)
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
        _published(windows(split, days, first_day=first))
        for split, days, first in (("train", 40, 0), ("val", 2, 60), ("test", 2, 80))
    )
    trainer.train(config, train, val, news_pool(), tmp_path)
    ((learner, logics, fitted),) = sealed
    expected = _predicted_in_memory(learner, logics, fitted, test)

    found = CompEvoForecaster.load(tmp_path, news_pool()).predict_by_agent(test.views())
    assert np.allclose(found.aggregate, expected, rtol=1e-6)
    assert found.unread == (4 if decoder == "text" else 0)  # every third of 3 agents x 4 windows
    assert (found.prior is None) == (prior == "none")
    if found.prior is not None:
        assert (
            np.abs(found.aggregate - found.prior).max() > 1.0
        )  # MW: the agents say something of their own
        again = fitted.predict(test.views())
        assert np.allclose(found.prior, again, rtol=1e-12)


def _predicted_in_memory(
    learner: PopulationModel, logics: list[str], fitted: object, test: WindowSet
) -> np.ndarray:
    """The trained objects themselves, without any file, all windows in one batch of two."""
    views = test.views()
    tasks = make_view_examples(
        views, None if fitted is None else fitted.predict(views), learner.scaler
    )
    news_retriever = NewsRetriever(
        news_pool(), trainer.load_encoder(learner.config.news.encoder), learner.config.news.top_k
    )
    executor, weights, rows = (
        learner.executor(news_retriever),
        learner.selection.weights().detach(),
        [],
    )
    for start in range(0, len(tasks), 2):
        part = tasks[start : start + 2]
        values = executor.forecast(logics, part)[0].detach()
        mean = aggregate_forecasts(values, weights).numpy().astype(np.float64)
        rows += [
            learner.scaler.unscale(one, task.view.entity)
            for one, task in zip(mean, part, strict=True)
        ]
    return np.stack(rows)


def _text_answers(prior: str) -> tuple[TextDecoder, list[ForecastExample]]:
    drawn, scaler = windows("train", 1), Scaler.fit(windows("train", 4))
    config = tiny(forecast__decoder="text", forecast__prior=prior)
    learner = PopulationModel(config, load_backbone(config.backbone, device="cpu"), scaler)
    base = None if prior == "none" else np.stack([view.x for view in drawn.views()])
    return learner.decoder, make_examples(drawn, base, scaler)


@pytest.mark.parametrize("prior", ["none", "persistence"])
def test_the_text_an_agent_is_taught_reads_back_as_the_truth(prior: str) -> None:
    answers, tasks = _text_answers(prior)
    tokenizer = answers.population.backbone.tokenizer
    taught = [answers._encode_answer(task) for task in tasks] * 3
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in taught]
    first = tasks[0].view.entity
    unit = answers.scaler.std[first], answers.scaler.mean[first]
    meant = (
        tasks[0].truth_H * unit[0] + unit[1]
        if prior == "none"
        else (tasks[0].truth_H - tasks[0].base_H) * unit[0]
    )
    assert np.allclose(parse_answer(texts[0]), meant, atol=0.051)  # MW
    values, failures = _answered(answers, taught, tasks)
    assert failures == 0
    for number, task in enumerate(tasks):
        step = 0.051 / answers.scaler.std[task.view.entity]
        assert np.allclose(values[:, number].numpy(), task.truth_H, atol=step)


@pytest.fixture(scope="module")
def text_answers() -> tuple[TextDecoder, list[ForecastExample]]:
    return _text_answers("persistence")


NUMBERS = st.lists(st.floats(width=32).map(str), min_size=47, max_size=49).map(", ".join)


@settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(st.one_of(st.text(max_size=80), NUMBERS), min_size=6, max_size=6))
@example([", ".join(["1e14"] * 48)] * 6)
@example([", ".join(["nan"] * 48), "", "1", ", ".join(["2.5"] * 48), "\x00", ", ".join(["7"] * 49)])
def test_whatever_a_model_writes_is_48_finite_numbers_or_a_counted_failure_scored_as_the_prior(
    text_answers: tuple[TextDecoder, list[ForecastExample]], texts: list[str]
) -> None:
    answers, tasks = text_answers
    tokenizer = answers.population.backbone.tokenizer
    rows = [tokenizer(t, add_special_tokens=False)["input_ids"] or [2] for t in texts]
    values, failures = _answered(answers, rows, tasks)
    assert values.shape == (3, 2, 48)
    assert torch.isfinite(values).all()
    readable = [_readable(tokenizer.decode(r, skip_special_tokens=True)) for r in rows]
    assert failures == 6 - sum(readable)
    for row, read in enumerate(readable):
        if not read:
            assert np.allclose(values[row // 2, row % 2].numpy(), tasks[row % 2].base_H, rtol=1e-6)


def _readable(text: str) -> bool:
    try:
        return bool(np.isfinite(parse_answer(text)).all())
    except ForecastParseError:
        return False
