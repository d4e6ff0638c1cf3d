"""The endpoint that mutates logics is the deployment's, and only where a run names one."""

import json

import pytest
import responses

from compevo_core.config import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.experiments.controls import configure_experiment
from compevo_pipeline.judges.selector import read_selector
from tests.support.population import tiny


def with_endpoint() -> RunConfig:
    config = configure_experiment(tiny(), "mae-gpt")
    return config.with_overrides({"evolution.selector": "endpoint:writer"})


@responses.activate
def test_an_endpoint_is_asked_at_the_judges_address_with_its_key(monkeypatch) -> None:
    monkeypatch.setenv("COMPEVO_JUDGE_URL", "https://judge.example/v1")
    monkeypatch.setenv("COMPEVO_JUDGE_MODEL", "judge")
    monkeypatch.setenv("COMPEVO_JUDGE_KEY", "not-a-real-key")
    responses.post("https://judge.example/v1/chat/completions", json={"choices": []})

    selector = read_selector(with_endpoint())
    assert selector is not None and selector({"model": "writer"}) == {"choices": []}
    request = responses.calls[0].request
    assert request.headers["Authorization"] == "Bearer not-a-real-key"
    assert json.loads(request.body) == {"model": "writer"}


def test_a_run_that_names_no_endpoint_asks_none(monkeypatch) -> None:
    monkeypatch.setenv("COMPEVO_JUDGE_URL", "https://judge.example/v1")
    monkeypatch.setenv("COMPEVO_JUDGE_MODEL", "judge")
    assert read_selector(tiny()) is None
    assert read_selector(configure_experiment(tiny(), "mae-gpt")) is None


def test_a_run_that_names_one_without_an_address_is_refused(monkeypatch) -> None:
    monkeypatch.delenv("COMPEVO_JUDGE_URL", raising=False)
    monkeypatch.delenv("COMPEVO_JUDGE_MODEL", raising=False)
    with pytest.raises(ConfigError, match="set COMPEVO_JUDGE_URL"):
        read_selector(with_endpoint())
