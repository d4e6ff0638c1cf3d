"""The table of methods: what it lists, and finding methods in it."""

from dataclasses import replace

import numpy as np
import pytest

from compevo_core.baselines import BASELINES
from compevo_core.baselines.base import MethodFacts
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scopes import Scope
from compevo_core.networks.forecaster import NETWORKS
from compevo_core.paper.method import BUDGETS, STANDARD, Method, find_budget
from compevo_core.paper.method_table import (
    METHODS,
    find_method,
    prepare_inputs,
    score_seed,
    select_methods,
)
from tests.support.window_samples import make_window


def test_every_baseline_and_every_network_is_a_method_with_its_own_number_of_seeds():
    assert {*BASELINES, *NETWORKS} <= set(METHODS)
    assert {name: METHODS[name].seeds for name in NETWORKS} == {
        name: kind.seeds for name, kind in NETWORKS.items()
    }
    assert METHODS["persistence"].seeds == 1
    assert METHODS["gbm"].seeds == 5


def test_methods_are_selected_once_by_name_by_family_or_all_together():
    assert select_methods(["all"]) == list(METHODS.values())
    numeric = select_methods(["dlinear", "numeric", "dlinear"])
    assert [method.name for method in numeric].count("dlinear") == 1
    assert {method.family for method in numeric} == {"numeric"}


@pytest.mark.parametrize("names", [[], ["lstm"], ["dlinear", "lstm"]])
def test_an_unknown_method_or_none_is_refused_with_the_names_that_are_known(names):
    with pytest.raises(ConfigError, match=r"known: persistence, .*dlinear"):
        select_methods(names)
    with pytest.raises(ConfigError, match="no method 'lstm'"):
        find_method("lstm")


def test_a_budget_is_found_by_its_name_and_limits_the_number_of_seeds():
    assert all(find_budget(name).name == name for name in BUDGETS)
    assert list(find_budget("quick").choose_seeds(5)) == [0]
    assert list(find_budget("standard").choose_seeds(3)) == [0, 1, 2]
    with pytest.raises(ConfigError, match="no budget 'huge'; known: quick, standard"):
        find_budget("huge")


TUNED = BUDGETS["tuned"]


def make_split(split, n, first=0):
    return WindowSet([make_window(first + i, split=split) for i in range(n)], dataset="electricity")


TRAIN, VAL, TEST = make_split("train", 4), make_split("val", 2, 10), make_split("test", 3, 20)


class Talking:
    """Repeats its input; one answer in four cannot be read, and it says what it is."""

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
    method = Method(name="talking", family="agents", fit=lambda inputs: Talking(), seeds=3)
    return replace(method, **changes)


def run(method, budget=TUNED, seed=2):
    inputs = prepare_inputs(method, TRAIN, VAL, budget)
    return score_seed(method, inputs, seed, [Scope(subset="test", windows=TEST)], commit="abc")


def test_rows_say_budget_seed_and_what_the_method_tells_about_itself():
    scores = run(make_method())
    (row,) = [row for row in scores.rows.to_dicts() if row["entity"] == POOLED]
    said = {name: row[name] for name in ("method", "seed", "budget", "backbone", "device")}
    assert said == {
        "method": "talking", "seed": 2, "budget": "tuned", "backbone": "b", "device": "cuda",
    }  # fmt: skip
    assert (row["trainable_parameters"], row["learning_rate"]) == (7, 0.5)
    assert row["parse_failure_rate"] == 0.25
    assert row["seconds_per_window"] == pytest.approx(row["seconds"] / len(TEST))
    assert 0 < row["peak_memory_gb"] < 100 and row["train_seconds"] >= 0
    np.testing.assert_array_equal(scores.forecasts[0]["talking"], [[v.x for v in TEST.views()]])

    without = run(make_method(has_budget=False))
    assert set(without.rows["budget"]) == {""}


def test_every_seed_is_fitted_with_the_rate_that_seed_zero_chose_on_validation():
    tuned, fitted = [], []

    def tune(inputs):
        tuned.append((inputs.seed, inputs.val is VAL))
        return 0.003

    def fit(inputs):
        fitted.append((inputs.seed, inputs.learning_rate))
        return Talking()

    method = make_method(tune=tune, fit=fit)
    for seed in (2, 0):
        run(method, seed=seed)
    assert tuned == [(0, True)] * 2
    assert fitted == [(2, 0.003), (0, 0.003)]

    # One rate is not a choice.
    run(method, budget=STANDARD)
    assert (len(tuned), fitted[-1]) == (2, (2, 0.001))


def test_no_fit_is_given_a_test_window():
    given = []

    def fit(inputs):
        given.extend(view.split for part in (inputs.train, inputs.val) for view in part.views())
        return Talking()

    run(make_method(fit=fit))
    assert set(given) == {"train", "val"}


@pytest.mark.parametrize(("known_windows", "first"), [(None, 10), (2, 12)])
def test_a_slow_method_forecasts_the_last_validation_windows_alone(known_windows, first):
    asked = []

    class Listening(Talking):
        def predict(self, views):
            asked.extend(view.window_id for view in views)
            return super().predict(views)

    method = make_method(fit=lambda inputs: Listening(), known_windows=known_windows)
    val = make_split("val", 4, 10)
    inputs = prepare_inputs(method, TRAIN, val, TUNED)
    score_seed(method, inputs, 0, [Scope(subset="test", windows=TEST)], commit="abc")
    expected = [*val.views()[first - 10 :], *TEST.views()]
    assert asked == [view.window_id for view in expected]
