"""Controls: one change each, and none that repeats the full method."""

import pytest

from compevo_core.config import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.experiments.ablation import VARIANTS
from compevo_core.experiments.controls import (
    CONTROLS,
    EXPERIMENTS,
    changes_nothing,
    configure_experiment,
    prepare_windows,
)
from compevo_core.experiments.systems import SYSTEMS
from tests.support.population import tiny
from tests.support.population import windows as make_windows


def full_method() -> RunConfig:
    """Settings in which every control takes something away."""
    return tiny(
        population__agents=2,
        population__members=[{"prior": "gbm", "seed": 1}, {"lookback_steps": 24}],
        calibration__known_errors="mean",
    )


EXPECTED = {
    "random-layers": {"backbone.weights": "random"},
    "no-news": {"news.top_k": 0},
    "swapped-news": {},
    "fixed-logics": {"evolution.every": 0},
    "equal-weights": {"selection.uniform": True},
    "no-known-errors": {"calibration.known_errors": "none"},
    "alike-agents": {"population.members": ()},
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_control_changes_what_its_name_says_and_nothing_else(name: str) -> None:
    base, changed = full_method().to_dict(), configure_experiment(full_method(), name).to_dict()
    differing = {
        f"{section}.{key}": value
        for section, values in changed.items()
        for key, value in values.items()
        if value != base[section][key]
    }
    assert differing == EXPECTED[name]


def test_one_agent_is_the_first_member_alone() -> None:
    config = configure_experiment(full_method(), "one-agent")
    assert config.population.agents == 1
    assert config.population.members == full_method().population.members[:1]
    # A population of agents that are alike has no entry to keep.
    assert configure_experiment(tiny(), "one-agent").population.members == ()


def test_controls_and_variants_have_names_of_their_own() -> None:
    assert set(CONTROLS) == {*EXPECTED, "one-agent"}
    assert len(set(EXPERIMENTS)) == len(VARIANTS) + len(CONTROLS) + len(SYSTEMS)
    assert configure_experiment(tiny(), "no-grpo").grpo.enabled is False
    with pytest.raises(ConfigError, match="no variant or control 'no-new'; known: compevo"):
        configure_experiment(tiny(), "no-new")
    with pytest.raises(ConfigError, match="no variant or control 'swap'"):
        prepare_windows(make_windows("train", 2), "swap")


def test_what_would_repeat_the_full_method_is_known_before_it_trains() -> None:
    assert [name for name in EXPERIMENTS if changes_nothing(full_method(), name)] == []
    assert {name for name in EXPERIMENTS if changes_nothing(tiny(), name)} == {
        "no-known-errors",
        "alike-agents",
    }
    assert changes_nothing(tiny(news__top_k=0), "swapped-news")


def test_only_swapped_news_gets_other_windows() -> None:
    windows = make_windows("train", 40)
    assert prepare_windows(windows, "no-news") is windows
    swapped = prepare_windows(windows, "swapped-news")
    assert swapped.hash != windows.hash
    # Runs of several seeds are scored together, so all were trained on the same windows.
    assert prepare_windows(windows, "swapped-news").hash == swapped.hash
