"""News-aware methods of the benchmark: their news, their budget and their facts."""

from dataclasses import replace

import numpy as np
import pytest

from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import ConfigError
from compevo_core.lm import backbone, encoder, packaged_models
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.lm.population import Population
from compevo_core.paper import ltp_llm, news2forecast
from compevo_core.paper.method import FitInputs, find_budget
from compevo_core.paper.method_table import METHODS
from compevo_core.paper.news2forecast import News2Forecast
from tests.support.answers import answer_in_numbers
from tests.support.population import news_pool, tiny, windows

INPUTS = FitInputs(
    train=windows("train", 3),
    val=windows("val", 4, first_day=10),
    seed=0,
    budget=replace(find_budget("quick"), passes=1, rounds=3, round_windows=1),
    learning_rate=2e-3,
    news=news_pool(),
)


@pytest.fixture(autouse=True)
def use_tiny_models(monkeypatch, tmp_path):
    tiny = load_backbone(BackboneConfig(name_or_path=TINY), device="cpu")
    monkeypatch.setattr(backbone, "load_packaged", lambda: tiny)
    monkeypatch.setattr(encoder, "load_encoder", lambda name: HashingEncoder())
    monkeypatch.setattr(packaged_models, "DEFAULT_CACHE", tmp_path)
    monkeypatch.setattr(ltp_llm, "SENTENCE_TOKENS", 4)


@pytest.mark.parametrize("name", ["gpt4mts", "gpt4mts-no-news", "ltp-llm"])
def test_a_network_is_fitted_within_the_budget_and_names_its_backbone(name):
    method = METHODS[name]
    assert (method.family, method.seeds) == ("news-aware", 3)
    fitted = method.fit(INPUTS)
    assert fitted.name == name
    views = windows("test", 1, first_day=20).views()
    assert np.isfinite(fitted.predict(views)).all()
    assert fitted.report.passes == 1
    assert fitted.facts.learning_rate == 2e-3
    assert fitted.facts.backbone == TINY


def test_news2forecast_makes_the_updates_of_the_budget(monkeypatch):
    changes = {"population.agents": 1, "population.exposed_peers": 0, "forecast.decoder": "text"}
    config = tiny().with_overrides({**changes, "forecast.prior": "none", "evolution.form": "slots"})
    monkeypatch.setattr(news2forecast, "configure_news2forecast", lambda *_: config)
    # What the rows' hash stands for can be written beside them.
    assert METHODS["news2forecast"].configure(INPUTS) is config
    monkeypatch.setattr(Population, "sample", answer_in_numbers(Population.sample))
    taught = []
    measure = News2Forecast.measure_loss
    monkeypatch.setattr(
        News2Forecast, "measure_loss", lambda self, w: taught.append(w) or measure(self, w)
    )

    fitted = METHODS["news2forecast"].fit(INPUTS)
    assert fitted.name == "news2forecast"
    assert len(taught) == INPUTS.budget.round_windows * INPUTS.budget.rounds
    judged_by = [len(tried.views) for tried in fitted.tried_logics]
    assert judged_by == [INPUTS.budget.rounds] * 3


@pytest.mark.parametrize("name", ["gpt4mts", "gpt4mts-no-news", "news2forecast"])
def test_a_method_that_reads_news_is_refused_without_them(name):
    assert METHODS[name].reads_news
    with pytest.raises(ConfigError, match=f"{name} reads news"):
        METHODS[name].fit(replace(INPUTS, news=None))
