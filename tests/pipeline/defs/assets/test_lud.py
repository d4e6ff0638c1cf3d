"""``evaluation/lud`` offline and against a local server that speaks the OpenAI protocol."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from compevo_core.agents.logics import SLOT_SEED_LOGICS
from compevo_pipeline.cli.main import app, main
from compevo_pipeline.storage.runs import find_current_run, set_current_run
from tests.support.deployment import deploy
from tests.support.lud import finished_run

ASSET, KEY = "evaluation/lud", "s3cret-key"


class Endpoint(BaseHTTPRequestHandler):
    """Answers a chat completion with one verdict; the server records requests and has a status."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        status = self.server.status
        verdict = json.dumps({"strategy_shift": 1, "evidence_recombination": 0})
        answer = (
            json.dumps({"choices": [{"message": {"content": verdict}}]}).encode()
            if status == 200
            else b"{}"
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint():
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        server.asked, server.status = [], 200
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def address(server):
    return f"http://127.0.0.1:{server.server_port}/v1"


def with_run(home, endpoint=None):
    judge = {}
    if endpoint:
        judge = {"judge_url": address(endpoint), "judge_model": "m-1", "judge_key": "x"}
    deployment = deploy(home, settings=judge)
    finished_run(deployment.layout.run("done"))
    set_current_run(deployment.layout, "electricity", "done")
    return deployment


def materialize(deployment, **options):
    return deployment.materialize(
        ASSET, dataset="electricity", config={ASSET: {"pairs": 2}}, **options
    )


def metadata(result):
    (event,) = result.get_asset_materialization_events()
    return event.step_materialization_data.materialization.metadata


def test_without_an_endpoint_the_runs_own_backbone_judges_offline(tmp_path):
    deployment = with_run(tmp_path)
    shown = metadata(materialize(deployment))
    written = json.loads(
        (find_current_run(deployment.layout, "electricity") / "lud.json").read_text()
    )
    assert [judge["name"] for judge in written["judges"]] == ["local:tiny-random/float32"]
    assert shown["asked"].value == 2 and shown["failures"].value == 0
    columns = [column.name for column in shown["verdicts"].value.schema.columns]
    assert "mean_lud" in columns and "agreement" not in shown


def test_logics_with_slots_are_judged_by_rule_as_well(tmp_path):
    deployment = deploy(tmp_path)
    logics = tuple((seed,) for seed in SLOT_SEED_LOGICS[:4])
    run = finished_run(deployment.layout.run("done"), logics, form="slots")
    set_current_run(deployment.layout, "electricity", "done")
    shown = metadata(materialize(deployment))
    (agreement,) = (list(record.data.values()) for record in shown["agreement"].value.records)
    assert agreement[:3] == ["local:tiny-random/float32", "rule:slots", 2]

    arguments = ["lud", str(run), "--judge", "slots", "--pairs", "1"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    (judge,) = json.loads(done.stdout)["judges"]
    assert (judge["name"], judge["failures"]) == ("rule:slots", 0)
    # Every seed logic has a topic of its own.
    assert judge["agents"][0]["mean_evidence_recombination"] == 1.0


def test_with_an_endpoint_two_judges_are_asked_once_ever_and_their_agreement_is_shown(
    tmp_path, endpoint, monkeypatch
):
    monkeypatch.setenv("COMPEVO_JUDGE_KEY", KEY)
    deployment = with_run(tmp_path, endpoint)
    shown = metadata(materialize(deployment))
    assert len(endpoint.asked) == 2
    path, authorization, body = endpoint.asked[0]
    assert (path, authorization, body["temperature"], body["model"]) == (
        "/v1/chat/completions",
        f"Bearer {KEY}",
        0,
        "m-1",
    )
    (agreement,) = (list(record.data.values()) for record in shown["agreement"].value.records)
    assert agreement[:3] == ["local:tiny-random/float32", "endpoint:m-1", 2]
    again = metadata(materialize(deployment))
    assert len(endpoint.asked) == 2
    assert again["verdicts"].value == shown["verdicts"].value
    stored = "".join(p.read_text() for p in deployment.layout.root.rglob("*") if p.is_file())
    assert KEY not in stored and KEY not in str(shown)


def test_the_command_asks_the_endpoint_of_the_environment(tmp_path, endpoint, monkeypatch):
    run = finished_run(tmp_path / "run")
    monkeypatch.setenv("COMPEVO_JUDGE_URL", address(endpoint))
    monkeypatch.setenv("COMPEVO_JUDGE_MODEL", "m-1")
    result = CliRunner().invoke(app, ["lud", str(run), "--judge", "endpoint", "--pairs", "1"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert [judge["name"] for judge in summary["judges"]] == ["endpoint:m-1"]
    assert summary["judges"][0]["agents"][0]["mean_strategy_shift"] == 1.0


@pytest.mark.parametrize(
    ("judge", "remedy"),
    [
        ("endpoint", "set COMPEVO_JUDGE_URL"),
        ("gpt", "is not one of local, slots"),
        ("slots", "reads logics with slots"),
    ],
)
def test_a_judge_that_is_not_set_or_not_known_is_refused(
    tmp_path, monkeypatch, capsys, judge, remedy
):
    monkeypatch.delenv("COMPEVO_JUDGE_URL", raising=False)
    run = finished_run(tmp_path / "run")
    with pytest.raises(SystemExit):
        main(["lud", str(run), "--judge", judge])
    assert remedy in capsys.readouterr().err
