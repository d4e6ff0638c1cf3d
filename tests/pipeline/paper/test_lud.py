"""``research/lud`` offline and with an endpoint."""

import json

import pytest
import responses

from compevo_core.agents.logics import SLOT_SEED_LOGICS
from compevo_core.errors import CompEvoError
from compevo_pipeline.storage.runs import set_current_run
from tests.support.commands import invoke
from tests.support.deployment import deploy, read_materialization
from tests.support.lud import finished_run

ASSET, KEY = "research/lud", "s3cret-key"
JUDGE = "https://judge.example/v1"


@pytest.fixture
def asked():
    """The requests that a judge gets, which speaks the OpenAI protocol and gives one verdict."""
    verdict = json.dumps({"strategy_shift": 1, "evidence_recombination": 0})
    with responses.RequestsMock(assert_all_requests_are_fired=False) as hosts:
        answer = {"choices": [{"message": {"content": verdict}}]}
        hosts.post(f"{JUDGE}/chat/completions", json=answer)
        yield hosts.calls


def with_run(home, judge=(), **made):
    deployment = deploy(home, settings=judge)
    finished_run(deployment.layout.run("done"), **made)
    set_current_run(deployment.layout, "electricity", "done")
    return deployment


def materialize(deployment):
    return deployment.materialize(ASSET, dataset="electricity", config={ASSET: {"pairs": 2}})


def test_the_backbone_judges_without_an_endpoint(tmp_path):
    deployment = with_run(tmp_path)
    shown = read_materialization(materialize(deployment)).metadata
    written = json.loads((deployment.layout.run("done") / "lud.json").read_text())
    assert [judge["name"] for judge in written["judges"]] == ["local:tiny-random/float32"]
    assert shown["asked"].value == 2 and shown["failures"].value == 0
    columns = [column.name for column in shown["verdicts"].value.schema.columns]

    assert "mean_lud" in columns and "agreement" not in shown


def test_logics_with_slots_are_judged_by_rule(tmp_path):
    logics = tuple((seed,) for seed in SLOT_SEED_LOGICS[:4])
    deployment = with_run(tmp_path, logics=logics, form="slots")
    shown = read_materialization(materialize(deployment)).metadata
    (agreement,) = (list(record.data.values()) for record in shown["agreement"].value.records)
    assert agreement[:3] == ["local:tiny-random/float32", "rule:slots", 2]

    run = deployment.layout.run("done")
    shown = invoke("paper", "lud", run, "--judge", "slots", "--pairs", "1")
    (judge,) = json.loads(shown)["judges"]
    assert (judge["name"], judge["failures"]) == ("rule:slots", 0)
    # Every seed logic has a topic of its own.
    assert judge["agents"][0]["mean_evidence_recombination"] == 1.0


def test_an_endpoint_is_asked_once_ever(tmp_path, asked):
    judge = {"judge_url": JUDGE, "judge_model": "m-1", "judge_key": KEY}
    deployment = with_run(tmp_path, judge)
    shown = read_materialization(materialize(deployment)).metadata

    assert len(asked) == 2
    request = asked[0].request
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert json.loads(request.body).items() >= {"temperature": 0, "model": "m-1"}.items()
    (agreement,) = (list(record.data.values()) for record in shown["agreement"].value.records)
    assert agreement[:3] == ["local:tiny-random/float32", "endpoint:m-1", 2]
    again = read_materialization(materialize(deployment)).metadata
    assert len(asked) == 2
    assert again["verdicts"].value == shown["verdicts"].value
    stored = "".join(p.read_text() for p in deployment.layout.root.rglob("*") if p.is_file())
    assert KEY not in stored and KEY not in str(shown)


def test_the_command_asks_the_environments_endpoint(tmp_path, asked, monkeypatch):
    run = finished_run(tmp_path / "run")
    monkeypatch.setenv("COMPEVO_JUDGE_URL", JUDGE)
    monkeypatch.setenv("COMPEVO_JUDGE_MODEL", "m-1")

    summary = json.loads(invoke("paper", "lud", run, "--judge", "endpoint", "--pairs", "1"))

    assert [judge["name"] for judge in summary["judges"]] == ["endpoint:m-1"]
    assert summary["judges"][0]["agents"][0]["mean_strategy_shift"] == 1.0


@pytest.mark.parametrize(
    ("judge", "remedy"), [("endpoint", "COMPEVO_JUDGE_URL"), ("gpt", "slots"), ("slots", "slots")]
)
def test_an_unknown_judge_is_refused(tmp_path, monkeypatch, judge, remedy):
    monkeypatch.delenv("COMPEVO_JUDGE_URL", raising=False)
    run = finished_run(tmp_path / "run")
    with pytest.raises(CompEvoError, match=remedy):
        invoke("paper", "lud", run, "--judge", judge)
