"""The endpoint of a deployment: one POST, what each failure means, and who asks it."""

import json
import logging
from unittest.mock import Mock

import pytest
import requests
import responses
from requests import ConnectionError, Timeout

from compevo_core import errors
from compevo_core.paper.changes import find_variant
from compevo_pipeline.config import endpoints as judge_transport
from compevo_pipeline.config.endpoints import endpoint_transport, read_selector
from compevo_pipeline.config.settings import Settings
from tests.support.population import tiny

BASE = "https://judge.example/v1"
URL = f"{BASE}/chat/completions"
KEY = "not-a-real-key"


ECHO = {"headers": {"Location": "https://elsewhere.example/"}, "json": {"echo": KEY}}
ANSWERS = [
    *(({"status": status} | ECHO, errors.SourceTransient) for status in (429, 503)),
    *(({"status": status} | ECHO, errors.SourceBlocked) for status in (401, 403)),
    *(({"status": status} | ECHO, errors.SourceRejected) for status in (400, 307)),
    *(({"body": error()}, errors.SourceTransient) for error in (Timeout, ConnectionError)),
    *(({"body": body}, errors.SchemaDrift) for body in (b"<html>", b"[]", b"\xff\xfe", b"")),
    ({"body": json.dumps({"text": "x" * 100})}, errors.SchemaDrift),
]


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(("answer", "error"), ANSWERS)
@responses.activate
def test_faults_of_an_endpoint_have_their_classes(monkeypatch, caplog, answer, error, key):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(judge_transport, "MAX_REPLY_BYTES", 50)
    responses.post(URL, **answer)
    said = str(answer["status"]) if "status" in answer else None
    with pytest.raises(error, match=said) as caught:
        endpoint_transport(BASE, api_key=key)({})
    assert KEY not in f"{caught.value} {caplog.text}"
    (call,) = responses.calls
    assert ("Authorization" in call.request.headers) is (key is not None)


def test_a_request_has_a_time_limit(monkeypatch):
    stall = Mock(side_effect=requests.ReadTimeout)
    monkeypatch.setattr(requests.Session, "request", stall)
    with pytest.raises(errors.SourceTransient):
        endpoint_transport(BASE, api_key=None)({})
    assert stall.call_args.kwargs["timeout"] == judge_transport.TIMEOUT_SECONDS


@pytest.mark.parametrize("url", ["ftp://x/v1", "judge.example/v1", "https://me:pw@x/v1", ""])
def test_an_odd_address_is_refused_before_any_request(url):
    with pytest.raises(errors.ConfigError, match="address"):
        endpoint_transport(url, api_key=None)


def test_a_key_goes_in_clear_only_here():
    with pytest.raises(errors.ConfigError, match="clear"):
        endpoint_transport("http://judge.example/v1", api_key=KEY)
    for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
        endpoint_transport(f"http://{host}/v1", api_key=KEY)
    endpoint_transport("http://judge.example/v1", api_key=None)


def with_endpoint():
    config = find_variant("mae-gpt").configure(tiny())
    return config.with_overrides({"evolution.selector": "endpoint:writer"})


@responses.activate
def test_an_endpoint_is_asked_with_its_key(monkeypatch):
    monkeypatch.setenv("COMPEVO_JUDGE_URL", f"{BASE}/")
    monkeypatch.setenv("COMPEVO_JUDGE_MODEL", "judge")
    monkeypatch.setenv("COMPEVO_JUDGE_KEY", KEY)
    responses.post(URL, json={"choices": []})

    selector = read_selector(with_endpoint())
    assert selector is not None and selector({"model": "writer"}) == {"choices": []}
    request = responses.calls[0].request
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert json.loads(request.body) == {"model": "writer"}
    assert KEY not in repr(Settings.from_environment())


def test_an_endpoint_is_asked_where_named(monkeypatch):
    monkeypatch.setenv("COMPEVO_JUDGE_URL", BASE)
    monkeypatch.setenv("COMPEVO_JUDGE_MODEL", "judge")
    assert read_selector(tiny()) is None
    assert read_selector(find_variant("mae-gpt").configure(tiny())) is None

    for name in ("URL", "MODEL"):
        monkeypatch.delenv(f"COMPEVO_JUDGE_{name}")
    with pytest.raises(errors.ConfigError, match="COMPEVO_JUDGE_URL"):
        read_selector(with_endpoint())
