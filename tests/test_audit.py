"""The question for known faults of dependencies: a finding fails, no answer does not."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "audit.py"
FAULT = {"id": "PYSEC-1", "fix_versions": ["2.0"]}


@pytest.fixture
def audit():
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ({"dependencies": [{"name": "a", "version": "1", "vulns": [FAULT]}]}, 1, "a 1: PYSEC-1"),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0, "0 known fault"),
        ({"dependencies": [{"name": "a", "skip_reason": "local"}]}, 0, "0 known fault"),
        (None, 0, "could not ask for known faults (no route to host)"),
    ],
)
def test_a_finding_fails_and_an_unreachable_database_is_said(
    audit, monkeypatch, capsys, answer, code, said
):
    output = "" if answer is None else json.dumps(answer)
    done = subprocess.CompletedProcess([], 1, stdout=output, stderr="trace\nno route to host")
    monkeypatch.setattr(audit, "ask", lambda lock: done)
    assert audit.main([]) == code
    assert said in capsys.readouterr().out
    # On demand no answer is red, too.
    assert audit.main(["--must-answer"]) == (1 if answer is None else code)
