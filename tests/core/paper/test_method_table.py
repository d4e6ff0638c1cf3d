"""The table of methods: what each is fitted with, the rules that all keep, what rows say."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from compevo_core.baselines import BASELINES
from compevo_core.baselines.base import MethodFacts
from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, LeakageError
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scopes import Scope
from compevo_core.lm import backbone, encoder, model_sources
from compevo_core.lm.backbone import TINY
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.lora.population import Population
from compevo_core.paper import fine_tuned, method_table, text_networks
from compevo_core.paper.declared import BUDGETS, STANDARD, find_budget
from compevo_core.paper.fine_tuned import News2Forecast
from compevo_core.paper.networks import NETWORKS
from tests.support.answers import answer_in_numbers
from tests.support.population import news_pool, tiny, windows
from tests.support.tiny_backbone import build_backbone

TUNED = BUDGETS["tuned"]
QUICK = find_budget("quick")
SECONDS = replace(QUICK, passes=1, patience=1, pass_windows=16, rounds=2, round_windows=2)
TRAIN, VAL = windows("train", 12), windows("val", 6, first_day=30)
TEST = windows("test", 4, first_day=40)


def test_methods_are_selected_once_by_any_name():
    assert {*BASELINES, *NETWORKS} <= set(method_table.METHODS)

    assert method_table.select_methods(["all"]) == list(method_table.METHODS.values())
    numeric = method_table.select_methods(["dlinear", "numeric", "dlinear"])
    assert [method.name for method in numeric].count("dlinear") == 1
    assert {method.family for method in numeric} == {"numeric"}
    for names in ([], ["lstm"], ["dlinear", "lstm"]):
        with pytest.raises(ConfigError, match=r"known: last-value, .*dlinear"):
            method_table.select_methods(names)
    with pytest.raises(ConfigError, match="'lstm'"):
        method_table.find_method("lstm")


def test_a_budget_limits_the_seeds():
    assert all(find_budget(name).name == name for name in BUDGETS)
    assert list(QUICK.choose_seeds(5)) == [0]
    assert list(find_budget("standard").choose_seeds(3)) == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"'huge'.*tuned, standard"):
        find_budget("huge")


class Talking:
    """Repeats its input; one answer in four cannot be read, and it describes itself."""

    name = "talking"
    facts = MethodFacts(trainable_parameters=7, learning_rate=0.5, backbone="b", device="cuda")

    def __init__(self):
        self.answers = 0

    def predict(self, views):
        self.answers += 4 * len(views)
        return np.stack([view.x for view in views])

    def count_answers(self):
        return self.answers // 4, self.answers


def make_method(**changes):
    method = method_table.Method(
        name="talking", family="agents", fit=lambda inputs: Talking(), seeds=3
    )
    return replace(method, **changes)


def run(method, budget=TUNED, seed=2):
    inputs = replace(method_table.prepare_inputs(method, TRAIN, VAL, budget), seed=seed)
    return method_table.score_seed(
        method, inputs, [Scope(subset="test", windows=TEST)], commit="abc"
    )


def test_rows_describe_budget_seed_and_method():
    scores = run(make_method())
    (row,) = [row for row in scores.rows.to_dicts() if row["entity"] == POOLED]
    without = run(make_method(has_budget=False))

    said = [row[name] for name in ("method", "seed", "budget", "backbone", "device")]
    assert said == ["talking", 2, "tuned", "b", "cuda"]
    assert (row["trainable_parameters"], row["learning_rate"]) == (7, 0.5)
    assert row["parse_failure_rate"] == 0.25
    assert row["seconds_per_window"] == pytest.approx(row["seconds"] / len(TEST))
    assert 0 < row["peak_memory_gb"] < 100 and row["train_seconds"] >= 0
    np.testing.assert_array_equal(scores.forecasts[0]["talking"], [[v.x for v in TEST.views()]])
    assert set(without.rows["budget"]) == {""}


def test_seed_zero_chooses_the_rate_for_all():
    fitted, splits = [], set()

    def fit(inputs):
        fitted.append((inputs.seed, inputs.learning_rate, inputs.budget.passes))
        splits.update(view.split for part in (inputs.train, inputs.val) for view in part.views())
        talking = Talking()
        talking.report = SimpleNamespace(validation_loss=abs(inputs.learning_rate - 0.003))
        return talking

    method = make_method(is_tuned=True, fit=fit)
    for seed in (2, 0):
        run(method, seed=seed)
    tried = [(0, rate, TUNED.tuning_passes) for rate in TUNED.learning_rates]
    assert fitted == [*tried, (2, 0.003, TUNED.passes), *tried, (0, 0.003, TUNED.passes)]

    # One rate is not a choice.
    run(method, budget=STANDARD)
    assert fitted[8:] == [(2, 0.001, STANDARD.passes)]
    assert splits == {"train", "val"}, "no fit is given a test window"


@pytest.mark.parametrize("known_windows", [None, 2])
def test_slow_methods_forecast_only_recent_validation(known_windows):
    asked = []

    class Listening(Talking):
        def predict(self, views):
            asked.extend(view.window_id for view in views)
            return super().predict(views)

    method = make_method(fit=lambda inputs: Listening(), known_windows=known_windows)
    inputs = method_table.prepare_inputs(method, TRAIN, VAL, TUNED)
    method_table.score_seed(method, inputs, [Scope(subset="test", windows=TEST)], commit="abc")
    expected = [*VAL.views()[-(known_windows or len(VAL)) :], *TEST.views()]
    assert asked == [view.window_id for view in expected]


INPUTS = method_table.FitInputs(
    train=windows("train", 3),
    val=windows("val", 4, first_day=10),
    seed=0,
    budget=replace(QUICK, passes=1, rounds=3, round_windows=1),
    learning_rate=2e-3,
    news=news_pool(),
)


@pytest.fixture(autouse=True)
def use_tiny_models(monkeypatch, tmp_path):
    tiny = build_backbone()
    monkeypatch.setattr(backbone, "load_packaged", lambda: tiny)
    monkeypatch.setattr(encoder, "load_encoder", lambda name: HashingEncoder())
    monkeypatch.setattr(model_sources, "DEFAULT_CACHE", tmp_path)
    monkeypatch.setattr(text_networks, "SENTENCE_TOKENS", 4)


@pytest.mark.parametrize("name", ["gpt4mts", "gpt4mts-no-news", "ltp-llm"])
def test_a_network_stays_within_its_budget(name):
    method = method_table.METHODS[name]
    fitted = method.fit(INPUTS)

    assert (method.family, method.seeds, fitted.name) == ("news-aware", 3, name)
    assert np.isfinite(fitted.predict(windows("test", 1, first_day=20).views())).all()
    assert (fitted.report.passes, fitted.facts.learning_rate) == (1, 2e-3)
    assert fitted.facts.backbone == TINY


def test_news2forecast_makes_the_updates_of_the_budget(monkeypatch, spy):
    changes = {"population.agents": 1, "population.exposed_peers": 0, "forecast.decoder": "text"}
    config = tiny().with_overrides({**changes, "forecast.prior": "none", "evolution.form": "slots"})
    monkeypatch.setattr(fine_tuned, "configure_method", lambda *_: config)
    # The settings behind the rows' hash can be written next to them.
    assert method_table.METHODS["news2forecast"].configure(INPUTS) is config
    monkeypatch.setattr(Population, "sample", answer_in_numbers(Population.sample))
    taught = spy(News2Forecast, "measure_loss")

    fitted = method_table.METHODS["news2forecast"].fit(INPUTS)
    judged_by = [len(tried.views) for tried in fitted.tried_logics]

    assert fitted.name == "news2forecast"
    assert len(taught) == INPUTS.budget.round_windows * INPUTS.budget.rounds
    assert judged_by == [INPUTS.budget.rounds] * 3


@pytest.mark.parametrize("name", ["gpt4mts", "gpt4mts-no-news", "news2forecast"])
def test_a_news_method_is_refused_without_news(name):
    assert method_table.METHODS[name].reads_news
    with pytest.raises(ConfigError, match=f"{name} reads news"):
        method_table.METHODS[name].fit(replace(INPUTS, news=None))


# Methods with a language model have these tests on tiny backbones, in their own modules.
EVERY_METHOD = pytest.mark.parametrize(
    "name",
    [
        method.name
        for method in method_table.METHODS.values()
        if method.seeds != method_table.LANGUAGE_MODEL_SEEDS
        and not method.reads_news
        and all(method.is_applicable(part) for part in (TRAIN, VAL, TEST))
    ],
)


def inputs(**changes):
    return replace(method_table.FitInputs(train=TRAIN, val=VAL, seed=3, budget=SECONDS), **changes)


@cache
def fitted(name):
    """Return a method fitted on the train windows; one fit serves several tests."""
    return method_table.METHODS[name].fit(inputs())


@EVERY_METHOD
def test_every_window_is_forecast_once_in_order(name):
    method, again = fitted(name), method_table.METHODS[name].fit(inputs())
    parts = [WindowSet(TEST[i : i + 3], dataset=TEST.dataset) for i in range(0, len(TEST), 3)]

    together = method.predict(TEST.views())
    in_parts = np.concatenate([method.predict(part.views()) for part in parts])
    backwards = method.predict(TEST.views()[::-1])[::-1]

    assert together.shape == (len(TEST), DEFAULT_STEPS)
    assert np.isfinite(together).all() and method.predict([]).shape == (0, DEFAULT_STEPS)
    np.testing.assert_allclose(in_parts, together, rtol=1e-5)
    np.testing.assert_allclose(backwards, together, rtol=1e-5)
    assert together.tobytes() == again.predict(TEST.views()).tobytes(), "a seed settles a fit"


@EVERY_METHOD
@pytest.mark.parametrize("split", ["test", "inference"])
def test_no_method_is_fitted_on_a_later_split(name, split):
    with pytest.raises(LeakageError, match=split):
        method_table.METHODS[name].fit(inputs(train=windows(split, 12)))

    # Methods without a choice to make do not look at validation.
    if method_table.METHODS[name].has_budget:
        with pytest.raises(LeakageError, match=split):
            method_table.METHODS[name].fit(inputs(val=windows(split, 6, first_day=30)))
