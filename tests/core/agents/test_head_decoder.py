"""The head decoder: what an agent sees, where it is read out, and that reading it is exact."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.agents.decoders import ForecastRequest, mix_bases
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.baselines import gbm
from compevo_core.errors import ConfigError
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lora.population import Population
from compevo_core.training import trainer
from compevo_core.training.prior import make_examples
from tests.support import models
from tests.support.answers import answer_in_numbers
from tests.support.population import article_ids, news_pool, tiny, windows
from tests.support.window_samples import change_views

LOGICS = list(SEED_LOGICS[:3])
BLEND = {"forecast__prior": "blend"}


def build(*, is_moved=True, **overrides):
    """A population, away from its start or as it starts, its strategies and two windows."""
    config = tiny(**overrides)
    model = models.build_model(config)
    if is_moved:
        models.fill_with_noise(model)
    return model, models.build_executor(model), models.make_batch(config)


def find_bases(executor, examples):
    """Return what the agents correct, (A, B, 48)."""
    return torch.from_numpy(mix_bases(executor.decoder.mix_AP, examples)).float()


def correct(executor, examples):
    """Return the corrections (A, B, 48) of all agents under the seed logics."""
    values = executor.play(LOGICS, examples).values_ABH
    return values - find_bases(executor, examples)


@pytest.mark.parametrize("prior", ["none", "persistence", "blend"])
def test_before_training_every_agent_returns_its_base_exactly(prior):
    _, executor, examples = build(is_moved=False, forecast__prior=prior)

    # A read-out of zeros needs no states; where it learns, they are read.
    forecasts = executor.play(LOGICS, examples)
    trained = executor.forecast(executor.read(LOGICS, examples), train=True)
    values_ABH = forecasts.values_ABH
    assert torch.equal(values_ABH, find_bases(executor, examples))
    assert torch.equal(trained.values_ABH, values_ABH) and trained.values_ABH.requires_grad

    shares = {"none": [], "persistence": [1.0], "blend": [0.3, 0.7]}[prior]
    for number, example in enumerate(examples):
        pairs = zip(shares, example.priors_PH, strict=True)
        expected = sum((share * prior_H for share, prior_H in pairs), np.zeros(48))
        assert np.allclose(values_ABH[1, number].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("form", ["text", "token"])
def test_joint_agents_forecast_and_learn_as_single_ones(form):
    model, executor, examples = build(news__form=form, **BLEND)
    parameters = [*model.adapter_parameters(), *model.head_parameters()]

    together = executor.forecast(executor.read(LOGICS, examples), train=True)
    (together.values_ABH.square().sum()).backward()
    joint = [parameter.grad.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None

    for agent in range(3):
        chosen = slice(agent, agent + 1)
        own = executor.read([LOGICS[agent]], examples, chosen)
        alone = executor.forecast(own, train=True, agents=chosen)
        assert torch.allclose(alone.values_ABH[0], together.values_ABH[agent], atol=1e-5)
        alone.values_ABH.square().sum().backward()

    for parameter, expected in zip(parameters, joint, strict=True):
        assert torch.allclose(parameter.grad, expected, rtol=1e-4, atol=1e-4)


def test_a_day_token_sees_no_later_token():
    _, executor, examples = build()
    priors_PH = examples[0].priors_PH.copy()
    priors_PH[:, 40:44] += 1.0  # the eleventh of twelve patches
    changed = [replace(examples[0], priors_PH=priors_PH), examples[1]]

    before, after = correct(executor, examples), correct(executor, changed)
    assert torch.allclose(before[:, 0, :40], after[:, 0, :40], atol=1e-6)
    for steps in (slice(40, 44), slice(44, 48)):
        assert not torch.allclose(before[:, 0, steps], after[:, 0, steps], atol=1e-5)
    assert torch.equal(before[:, 1], after[:, 1])


def test_no_news_has_a_token_of_its_own():
    _, executor, examples = build(news__form="token", news__top_k=2)
    view = examples[0].view
    decoder = executor.decoder

    def forecast_with(ids):
        articles = executor.news_retriever.resolve(ids)
        readings = [[ForecastRequest(examples[0], [logic], [articles])] for logic in LOGICS]
        with executor.population.use_adapters("forecast"), torch.no_grad():
            return decoder.decode(readings, train=False).values_ABH

    a, b = view.candidate_ids[:2]
    forecasts = [forecast_with(ids) for ids in ((), (a,), (b,), (a, b), (b, a))]
    for i, one in enumerate(forecasts):
        for other in forecasts[:i]:
            assert not torch.allclose(one, other, atol=1e-6)

    decoder.module.tokens.no_news_AD.data.add_(1.0)
    assert not torch.allclose(forecast_with(()), forecasts[0], atol=1e-6)
    assert torch.equal(forecast_with((a,)), forecasts[1])


def test_the_target_day_shows_priors_above_the_base(spy):
    _, executor, examples = build(**BLEND)
    shown = spy(executor.decoder.module.tokens, "forward")

    correct(executor, examples)

    above_PH = examples[0].priors_PH - find_bases(executor, examples)[0, 0].numpy()
    expected_PH = above_PH / executor.decoder.inputs.spread_of_priors
    assert np.abs(above_PH).max() > 0.0
    (_, _, target_ABSH, _), _ = shown[0]
    assert np.allclose(target_ABSH[0, 0, 2:].numpy(), expected_PH, atol=1e-5)


def test_logics_with_other_articles_are_not_merged():
    _, executor, examples = build(news__form="token", forecast__logic_in_prompt=False)
    a, b = examples[0].view.candidate_ids[:2]
    articles = [executor.news_retriever.resolve((name,)) for name in (a, b)]
    readings = [[ForecastRequest(examples[0], ["x", "y"], articles)] for _ in LOGICS]
    with executor.population.use_adapters("forecast"), torch.no_grad():
        values_ABH = executor.decoder.decode(readings, train=False).values_ABH
    assert not torch.allclose(values_ABH[:, 0], values_ABH[:, 1], atol=1e-6)


@pytest.mark.parametrize("moved", ["weight_AKD", "bias_AH"])
def test_a_readout_past_its_start_is_read(moved):
    model, executor, examples = build(is_moved=False)
    generator = torch.Generator().manual_seed(0)
    getattr(model.decoder.module.readout, moved).data[1].normal_(generator=generator)
    has_moved = [bool(of_agent.abs().max() > 1e-3) for of_agent in correct(executor, examples)]
    assert has_moved == [False, True, False]


def test_centring_removes_the_shared_part_of_states_once():
    model, executor, _ = build()
    many = models.make_batch(model.config, windows("train", 4))
    executor.centre_readout(LOGICS, many)
    readout = model.decoder.module.readout

    # The mean forecast over the same windows is then only the bias: nothing common is left.
    mean_AH = correct(executor, many).mean(1)
    assert torch.allclose(mean_AH, readout.bias_AH, atol=1e-4)
    assert (readout.size_A != 1.0).all()
    assert not readout.centre_ATD.requires_grad


def test_numeric_tokens_differ_by_seed_and_agent():
    same = models.build_model(tiny())
    other = models.build_model(tiny(population__members=[{}, {"seed": 1}, {}]))
    drawn = [model.decoder.module.tokens.target_AFD for model in (same, other)]
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert [torch.equal(drawn[0][a], drawn[1][a]) for a in range(3)] == [True, False, True]


def build_decoder(**overrides):
    executor = models.build_executor(models.build_model(tiny(**overrides)))
    assert isinstance(executor.decoder, HeadDecoder)
    return executor, executor.decoder


def test_all_agents_see_every_step_of_the_lookback():
    _, decoder = build_decoder()
    example = models.make_batch(decoder.config)[0]

    def embed_history(x):
        moved = replace(example, view=replace(example.view, x=x))
        # The tokens between context and target day.
        return decoder._embed_numbers([moved], slice(None), None).detach()[:, 1:13]

    before = embed_history(example.view.x)
    for step in (0, 35, 47):
        x = example.view.x.copy()
        x[step] *= 2.0
        after = embed_history(x)
        assert not any(map(torch.equal, before, after)), step


@pytest.mark.parametrize("form", ["text", "token"])
def test_the_best_of_three_articles_goes_last(form):
    executor, decoder = build_decoder(news__form=form)
    ids = article_ids()[:3]
    news = executor.news_retriever.resolve(ids)
    rows = {name: row for row, name in enumerate((*ids, ""))}

    # As tokens, no news takes as much room as one article.
    fewest = 0 if form == "text" else 1
    for kept in range(3, fewest - 1, -1):
        expected, _ = decoder._fit_evidence("Watch heat.", news[:kept], "", 999, rows)
        fitted = decoder._fit_evidence("Watch heat.", news, "", len(expected), rows)
        assert fitted == (expected, 3 - kept)
    with pytest.raises(ConfigError, match="context_length"):
        decoder._fit_evidence("Watch heat.", news, "", 3, rows)


def test_an_article_keeps_its_place_among_others():
    executor, decoder = build_decoder(news__form="token")
    articles = executor.news_retriever.resolve(article_ids()[:2])
    embeddings = torch.tensor(np.stack([article.embedding for article in articles]))
    embed = decoder.module.tokens.embed_articles
    tokens, alone = (embed(read, slice(None)).detach() for read in (embeddings, embeddings[1:]))
    assert np.allclose(tokens[:, 1], alone[:, 0]) and np.allclose(tokens[:, 2], alone[:, 1])


BLENDED = tiny(forecast__prior="blend")


def test_context_columns_are_standardised_on_train():
    days, temperatures = windows("train", 20), itertools.count(285.0)
    train = change_views(days, lambda _: {"covariates": {"noon_temp_k_lag1": next(temperatures)}})
    inputs = models.fit_inputs(BLENDED, train)
    examples = make_examples(train, models.make_priors(train, BLENDED), inputs.scaler)
    context_BC, *_ = inputs.extract(examples)

    assert context_BC.shape == (len(train), len(inputs.context_mean_C))
    assert np.allclose(context_BC.mean(0), 0.0, atol=1e-9)
    spread_C = context_BC.std(0)
    assert np.all(np.isclose(spread_C, 1.0) | np.isclose(spread_C, 0.0))
    assert np.isclose(spread_C, 1.0).sum() > 5

    # Missing weather is the mean of train.
    example = models.make_batch(BLENDED)[0]
    bare = replace(example, view=replace(example.view, covariates={}))
    columns, *_ = inputs.extract([bare])
    assert np.isfinite(columns).all()
    assert np.allclose(columns[0, -3:], 0.0)


def test_values_are_scaled_by_series_and_seasons_repeat():
    inputs = models.fit_inputs(BLENDED)
    examples = models.make_batch(BLENDED)
    _, history_BH, season_BH, priors_BPH = inputs.extract(examples)
    for row, example in enumerate(examples):
        view = example.view
        scaled = (view.x - inputs.scaler.mean[view.entity]) / inputs.scaler.std[view.entity]
        assert np.allclose(history_BH[row], scaled)
        assert np.allclose(season_BH[row], scaled)  # 48 half-hours are one day
        assert np.array_equal(priors_BPH[row], example.priors_PH)


def test_the_prior_spread_comes_from_their_differences():
    train = windows("train", 6)
    priors_NPH = models.make_priors(train, BLENDED)
    inputs = NumericInputs.fit(train, priors_NPH, models.ARTICLE_SIZE)
    scale_N = np.array([inputs.scaler.std[view.entity] for view in train.views()])
    half = (priors_NPH[:, 1] - priors_NPH[:, 0]) / 2 / scale_N[:, None]
    assert inputs.spread_of_priors == pytest.approx(np.concatenate([half, -half]).std())
    assert models.fit_inputs(tiny(forecast__prior="none")).spread_of_priors == 1.0


PRIORS = {"head": ("none", "published", "blend"), "text": ("none", "persistence", "gbm")}
CASES = [
    pytest.param(decoder, prior, marks=() if prior == "blend" else pytest.mark.slow)
    for decoder, priors in PRIORS.items()
    for prior in priors
]


@pytest.mark.parametrize(("decoder", "prior"), CASES)
def test_a_loaded_model_predicts_as_its_trainer(decoder, prior, tmp_path, monkeypatch, spy):
    monkeypatch.setattr(gbm.BoostedTrees, "_rounds", 5)
    monkeypatch.setattr(Population, "sample", answer_in_numbers(Population.sample))
    trained = spy(trainer, "write_model")
    settings = {"forecast__decoder": decoder, "forecast__prior": prior, "forecast__prior_folds": 2}
    settings |= {"run__rounds": 2, "run__validate_every": 0, "evolution__every": 0}
    config = tiny(optim__forecast_lr=0.02, **settings)
    train, val, test = (
        # With a forecast that was out before the origin.
        change_views(windows(*span, first_day=first), lambda view: {"published": 1.01 * view.x})
        for *span, first in (("train", 40, 0), ("val", 2, 60), ("test", 2, 80))
    )
    trainer.train(config, train, val, news_pool(), tmp_path)
    (((_, model, _, _), _),) = trained
    loaded = CompEvoForecaster.load(tmp_path, news_pool())
    prediction = loaded.predict_by_agent(test.views())

    restored = loaded._model.tensors()
    assert all(torch.equal(value, restored[name]) for name, value in model.tensors().items())
    # Every third of 3 agents x 4 windows.
    assert prediction.n_unparsed == (4 if decoder == "text" else 0)
    assert (prediction.prior is None) == (prior == "none")
    # The agents correct the base, even if validation removed the correction afterwards.
    examples = make_examples(test, model.priors.forecast(test.views()), model.scaler)
    executor = models.build_executor(model)
    values_ABH = executor.play(model.logics, examples).values_ABH
    again_ABH = loaded._model.executor.play(loaded.logics, examples).values_ABH
    assert torch.allclose(again_ABH, values_ABH, atol=1e-6)
    assert not torch.allclose(values_ABH, find_bases(executor, examples), atol=1e-3)
