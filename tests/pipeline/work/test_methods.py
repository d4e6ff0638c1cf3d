"""Which method is meant by a launch or a command."""

import pytest

from compevo_core.errors import ConfigError
from compevo_pipeline.work import methods
from tests.support.population import windows


@pytest.mark.parametrize(
    ("dataset", "method", "preset", "meant"),
    [
        ("electricity", None, None, "compevo"),  # built-in data keep what they did
        ("my-load", None, None, "auto"),
        ("my-load", None, "tiny", "compevo"),  # a preset is for agents
        ("electricity", "auto", None, "auto"),
        ("my-load", "compevo", "tiny", "compevo"),
        ("my-load", "gbm", None, "gbm"),
    ],
)
def test_own_data_ask_validation_unless_something_is_named(dataset, method, preset, meant):
    assert methods.choose_name(dataset, method, preset) == meant


def test_a_preset_needs_agents():
    with pytest.raises(ConfigError, match=r"'tiny'.*'gbm'"):
        methods.choose_name("my-load", "gbm", "tiny")


@pytest.mark.parametrize("method", ["auto", "mixture", "persistence"])
def test_a_misspelt_setting_is_refused_first(method, monkeypatch):
    monkeypatch.setattr(methods, "choose_method", lambda *_, **__: pytest.fail("it was fitted"))
    train, changes = windows("train", 1), {"forecast.refit_dais": 3}
    with pytest.raises(ConfigError, match=r"forecast\.refit_dais"):
        methods.plan_method(None, "my-load", train, method, changes, fits=None, on_step=print)
