"""The table of methods: what it lists, and finding methods in it."""

from pathlib import Path

import pytest

from compevo_core.baselines import BASELINES
from compevo_core.benchmark.budgets import BUDGETS, find_budget
from compevo_core.benchmark.table import METHODS, find_method, select_methods
from compevo_core.errors import ConfigError
from compevo_core.networks.forecaster import NETWORKS


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


def test_a_pretrained_model_is_a_method_by_its_path():
    (method,) = select_methods(["zero-shot:/models/chronos-2"])
    assert (method.name, method.family) == ("zero-shot-chronos-2", "zero-shot")
    assert (method.seeds, method.has_budget) == (1, False)


def test_the_page_about_the_benchmark_explains_every_budget():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "run-the-benchmark.md"
    listed = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    assert sorted(line.split("`")[1] for line in listed) == sorted(BUDGETS)
