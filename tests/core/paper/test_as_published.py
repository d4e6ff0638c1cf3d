"""What the paper's code does: one adapter, chosen news, adopted logics, its own scale."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.agents.decoders import FORECAST
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.config.run import RunConfig
from compevo_core.errors import LeakageError, NonFiniteLoss
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper.changes import LEAST_DISTANCE, lend_news
from compevo_core.paper.declared import STANDARD
from compevo_core.paper.fine_tuned import (
    FIRST_LOGIC,
    AsPublished,
    AsWritten,
    configure_method,
    render_series,
)
from compevo_core.paper.method_table import FitInputs
from tests.support.answers import pad_rows
from tests.support.population import news_pool, tiny, windows
from tests.support.tiny_backbone import build_backbone

POOL = news_pool()
TRAIN = windows("train", 4)
LATER = windows("test", 2, first_day=60)
CONFIG = tiny(
    population__agents=3,
    forecast__prior="none",
    forecast__layers=1,
    news__top_k=3,
    evolution__every=2,
    evolution__update="simplified",
    optim__forecast_lr=1e-2,
)


def fit(name="as-published", train=TRAIN, *, updates=3, config=CONFIG):
    models = {"backbone": build_backbone(), "encoder": HashingEncoder()}
    budget = replace(STANDARD, rounds=updates, round_windows=2)
    inputs = FitInputs(train=train, val=train, seed=0, budget=budget, news=POOL)
    return AsPublished.fit(name, inputs, config=config, **models)


def make_untrained(name="as-published"):
    retriever = NewsRetriever(POOL, HashingEncoder(), 3)
    return AsPublished(CONFIG, build_backbone(), retriever, TRAIN, name)


def test_untrained_agents_share_adapter_head_and_mean():
    model = make_untrained()
    adapters = model.population.adapter_parameters(FORECAST)
    assert {len(parameter) for parameter in adapters} == {1}
    for view, row_H in zip(LATER.views(), model.predict(LATER.views()), strict=True):
        assert np.abs(row_H - view.x.mean()).max() < view.x.std()

    # Agents with one logic read the same news, and so forecast the same.
    model.config = CONFIG.with_overrides({"population.dropout": 0.0})
    values_IBH = model.forecast(LATER.views())
    assert values_IBH.shape == (3, len(LATER), 48)
    assert torch.equal(values_IBH[0], values_IBH[1])


def test_a_fit_trains_everything_and_repeats():
    before, first = make_untrained(), fit()
    for start, end in zip(before.parameters[1::2], first.parameters[1::2], strict=True):
        assert not torch.equal(start, end)
    forecast_NH = first.predict(LATER.views())

    assert first.rewards.max() < 0 and (first.fitness > first.rewards).all()
    assert np.array_equal(forecast_NH, first.predict(LATER.views())), "dropout has a seed"
    assert np.array_equal(forecast_NH, fit().predict(LATER.views()))
    other = fit(config=CONFIG.with_overrides({"run.seed": 1}))
    assert not np.array_equal(forecast_NH, other.predict(LATER.views()))
    assert other.facts.seedless_hash == first.facts.seedless_hash, "one method to the tables"


def test_agents_hear_and_adopt_logics(monkeypatch):
    model = make_untrained()
    tokenizer = model.population.backbone.tokenizer
    texts = ["Follow heatwaves and storms.\n", "ok\n", "Watch large factories that close.\n"]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    sampled = pad_rows(rows, agents=1)
    monkeypatch.setattr(model.population, "sample", lambda *_, **__: sampled)

    # What was written is adopted unless it is invalid.
    first, _, last = (text.rstrip() for text in texts)
    assert model.write_logics() == [first, FIRST_LOGIC, last]

    # An agent hears of the best other.
    model.logics, model.rewards = ["first", "second", "third"], np.array([-0.1, -0.3, -0.2])
    first, second = (model.render_logic_task(agent) for agent in (0, 1))
    assert "rule: third" in first and "-0.2000" in first
    assert "rule: first" in second and "-0.1000" in second


@pytest.mark.parametrize(("threshold", "count"), [(2.0, 1), (-2.0, 3)])
def test_the_best_article_is_read_without_similarity(monkeypatch, threshold, count):
    monkeypatch.setattr("compevo_core.paper.fine_tuned.THRESHOLD", threshold)
    model, view = make_untrained(), LATER[0].view
    chosen = model.choose_news(FIRST_LOGIC, view)
    assert chosen == model.retriever.retrieve(FIRST_LOGIC, view)[:count]


def test_swapped_news_comes_from_long_before():
    model, view = make_untrained("as-published-swapped"), LATER[0].view
    lent = {
        name
        for window in TRAIN
        if window.view.entity == view.entity
        and window.view.origin_utc <= view.origin_utc - LEAST_DISTANCE
        for name in window.view.candidate_ids
    }
    chosen = model.choose_news(FIRST_LOGIC, view)

    assert chosen and set(chosen) <= lent


def test_the_code_calls_scaled_values_megawatts():
    window = TRAIN[0].change_view(covariates={"temp": 25.0})
    as_code, mended = (render_series(window.view, is_mended) for is_mended in (False, True))
    assert f"mean {window.view.x.mean():.1f}" in mended and "temp 25" in mended
    assert "mean 0.0." in as_code or "mean -0.0." in as_code
    assert "not a public" in as_code and "temp" not in as_code


def test_held_out_windows_and_diverging_fits_are_refused():
    with pytest.raises(LeakageError):
        fit(train=LATER, updates=0)
    with pytest.raises(NonFiniteLoss, match="as-published"):
        fit(config=CONFIG.with_overrides({"optim.forecast_lr": 1e30}))


def test_the_written_method_has_the_papers_settings():
    inputs = FitInputs(train=TRAIN, val=TRAIN, seed=3, budget=STANDARD)
    names = ("as-written", "as-written-plain", "as-published")
    whole, plain, code = (configure_method(name, inputs) for name in names)
    paper = RunConfig()

    assert (whole.objective, whole.selection) == (paper.objective, paper.selection)
    assert whole.grpo == paper.grpo.model_copy(update={"group_size": 4})
    assert (whole.backbone, whole.news) == (code.backbone, code.news)
    assert whole.forecast.prior == code.forecast.prior == "none"
    assert whole.run.supervised_rounds == whole.evolution.every == 8
    assert whole.run.rounds == STANDARD.rounds - 8
    assert not plain.grpo.enabled and plain.evolution.update == "simplified"


def test_the_written_method_reads_scaled_windows():
    config = tiny(run__rounds=1, forecast__prior="none")
    val = windows("val", 2, first_day=50)
    inputs = FitInputs(train=TRAIN, val=val, seed=2, budget=STANDARD, news=POOL)
    fitted = AsWritten("as-written-swapped", config, inputs)

    views = LATER.views()
    bare = [replace(view, candidate_ids=()) for view in views]
    read = fitted.change_views(bare)
    lent = [view.candidate_ids for view in read]
    assert all(lent) and lent == [view.candidate_ids for view in lend_news(views, TRAIN)]
    assert all(abs(view.x.mean()) < 1e-9 and view.x.std() == pytest.approx(1) for view in read)

    forecast_NH = fitted.predict(views)
    np.testing.assert_array_equal(forecast_NH, fitted.predict(bare))
    larger = [replace(view, x=10 * view.x) for view in views]
    np.testing.assert_allclose(fitted.predict(larger), 10 * forecast_NH, rtol=1e-6)
