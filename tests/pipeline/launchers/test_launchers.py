"""Starting, following and stopping the training process; the pod manifest."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest
from pydantic import ValidationError

from compevo_core.errors import ConfigError
from compevo_pipeline.defs.resources import Launchers
from compevo_pipeline.launchers import process as launch
from compevo_pipeline.launchers.worker import TrainJob, describe_round, main, select_scalars
from tests.support.deployment import read_materialization
from tests.support.round_records import round_record

REPO = Path(__file__).resolve().parents[3]
PATIENCE_S = 120.0
# A run that starts a training as the launcher does, and waits for it.
RUN = """
import subprocess, sys
from compevo_pipeline.launchers import process
child = [sys.executable, "-c", "import time; time.sleep(60)"]
started = subprocess.Popen(child, preexec_fn=process._end_with_parent)
print(started.pid, flush=True)
started.wait()
"""


def job(out, ending="well"):
    return TrainJob(config={}, windows="windows", news=ending, out=str(out))


def run(jobs, *chosen, pod=None):
    @dg.asset(key=["models", "compevo"])
    def trained(context: dg.AssetExecutionContext):
        return dg.MaterializeResult(metadata=Launchers(pod).launch(context, jobs, *chosen))

    return dg.materialize([trained], raise_on_error=False)


def observe(result):
    events = result.get_asset_observation_events()
    return [event.asset_observation_data.asset_observation.metadata for event in events]


@pytest.fixture
def shared_run(monkeypatch, tmp_path):
    """A job of three agents and two rounds on the tiny backbone, with its windows and news."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    from tests.support.population import join_windows, news_pool, tiny

    join_windows(("train", 4, 0), ("val", 2, 20)).write(tmp_path / "windows")
    news_pool().write(tmp_path / "news")
    places = {"windows": "windows", "news": "news", "out": "run"}
    paths = {key: str(tmp_path / name) for key, name in places.items()}
    return TrainJob(config=tiny(run__rounds=2).to_dict(), **paths)


@pytest.mark.slow
def test_two_processes_share_a_training(shared_run):
    result = run([shared_run], "torchrun", 2)

    assert result.success
    assert [shown["round"].value for shown in observe(result)] == [1, 2]
    shown = read_materialization(result).metadata
    assert (shown["processes"].value, shown["rounds"].value) == (2, 2)
    records = (Path(shared_run.out) / "rounds.jsonl").read_text().splitlines()
    exchanged = [sum(json.loads(line)["exchanged_bytes"].values()) for line in records]
    assert len(exchanged) == 2 and min(exchanged) > 0
    manifest = json.loads((Path(shared_run.out) / "model" / "manifest.json").read_text())
    adapters = [name for name in manifest["files"] if name.endswith("adapter_model.safetensors")]
    assert manifest["processes"] == 2 and len(adapters) == 6


@pytest.mark.slow
def test_the_command_trains_under_torchrun(shared_run):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    inputs = ["--windows", shared_run.windows, "--news", shared_run.news, "--out", shared_run.out]
    settings = ["--preset", "tiny", "--set", "run.rounds=2"]
    command = ["-m", "compevo_pipeline.cli.main", "paper", "train", *inputs, *settings]
    done = subprocess.run([*torchrun, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("round 1/2") == done.stdout.count("artifact_hash") == 1


def test_a_split_backbone_needs_several_processes(shared_run, capsys):
    job = dataclasses.replace(shared_run, shard_backbone=True)
    assert main([str(job.write())]) == 1
    assert "several" in capsys.readouterr().err


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(launch, "WORKER", "tests.support.pipes_worker")
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.02)
    monkeypatch.setenv("PYTHONPATH", str(REPO))


def test_a_training_process_reports_its_rounds(worker, tmp_path):
    result = run([job(tmp_path / "first"), job(tmp_path / "second")])
    assert result.success
    rounds = observe(result)
    expected = [(name, number) for name in ("first", "second") for number in (1, 2, 3)]
    assert [(shown["run"].value, shown["round"].value) for shown in rounds] == expected
    assert (rounds[0]["loss"].value, rounds[0]["reward_agent_01"].value) == (1.0, -0.25)
    assert read_materialization(result).metadata["rounds"].value == 3


@pytest.mark.parametrize(("ending", "reason"), [("fails", "exit code 3"), ("killed", "memory")])
def test_a_failed_training_fails_its_asset(worker, tmp_path, ending, reason):
    result = run([job(tmp_path, ending)])
    assert not result.success
    message = result.failure_data_for_node("models__compevo").error.cause.message
    assert reason in message and "rerun" in message


def test_a_terminated_process_is_gone():
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = time.monotonic()
    launch.terminate(sleeper)
    assert sleeper.poll() is not None and time.monotonic() - started < 10


def test_torchrun_is_used_where_asked_for():
    alone = "py -m compevo_pipeline.launchers.worker a b"
    assert launch.worker_command(["a", "b"], python="py", processes=0) == alone.split()
    joined = " ".join(launch.worker_command(["a"], python="py", processes=4))
    torchrun = "py -m torch.distributed.run --standalone --nproc-per-node=4"
    assert joined == f"{torchrun} -m compevo_pipeline.launchers.worker a"
    with pytest.raises(ConfigError, match="PodSpec"):
        Launchers().launch(None, [], "kubernetes")


def pod(**changes):
    sound = {"image": "compevo:1", "volume_claim": "home", "mount_path": "/home", "gpus": 2}
    return launch.PodSpec(**sound | changes)


def test_a_pod_asks_for_gpus_and_volume():
    spec = pod(environment={"HF_HUB_OFFLINE": "1"}).pod_spec()
    (container,) = spec["containers"]
    assert json.loads(json.dumps(spec)) == spec and container["name"] == launch.CONTAINER
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert pod().command(["a"])[:3] == ["python", "-m", "torch.distributed.run"]
    assert container["volumeMounts"][0]["name"] == spec["volumes"][0]["name"]
    assert spec["restartPolicy"] == "Never"
    assert "nvidia.com/gpu" not in pod(gpus=0).pod_spec()["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize("bad", [{"image": ""}, {"mount_path": "home"}, {"gpus": -1}])
def test_an_impossible_pod_is_refused_before_any_work(bad):
    with pytest.raises(ValidationError):
        pod(**bad)


def test_the_kubernetes_launcher_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "dagster_k8s", None)
    result = run([job(tmp_path)], "kubernetes", pod=pod())
    message = result.failure_data_for_node("models__compevo").error.cause.message
    assert "pip install 'compevo[kubernetes]'" in message


def test_the_kubernetes_launcher_starts_its_pod(monkeypatch, tmp_path):
    done, client = Mock(), Mock()
    done.get_materialize_result.return_value = dg.MaterializeResult(metadata={"rounds": 2})
    done.get_custom_messages.return_value = [["run", round_record(0).to_json_line()]]
    client.run.return_value = done
    monkeypatch.setitem(sys.modules, "dagster_k8s", Mock(PipesK8sClient=lambda: client))
    result = run([job(tmp_path / "run")], "kubernetes", pod=pod(namespace="train"))
    assert result.success
    assert [shown["round"].value for shown in observe(result)] == [1]

    given, job_file = client.run.call_args.kwargs, tmp_path / "run" / "job.json"
    assert given["namespace"] == "train" and given["base_pod_spec"] == pod().pod_spec()
    assert given["command"][-1] == str(job_file)
    assert TrainJob.read(job_file) == job(tmp_path / "run")
    assert read_materialization(result).metadata["rounds"].value == 2


def test_an_error_ends_the_process_with_one_line(tmp_path, capsys):
    written = TrainJob(config={"nowhere": {}}, windows="w", news="n", out=str(tmp_path)).write()
    assert main([str(written)]) == 1
    message = capsys.readouterr().err
    assert message.startswith("compevo: ") and "nowhere" in message and "Traceback" not in message


def test_a_job_survives_its_file(tmp_path):
    written = job(tmp_path)
    assert TrainJob.read(written.write()) == written
    summary = {"a": 1, "b": float("nan"), "c": [1], "d": "x", "e": None}
    assert select_scalars(summary) == {"a": 1, "d": "x"}


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().split()[2] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
def test_a_training_ends_when_its_run_is_killed():
    run = subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True)
    training = int(run.stdout.readline())
    assert is_running(training)
    run.kill()
    run.wait()

    try:
        wait_until(lambda: not is_running(training))
    finally:
        if is_running(training):
            os.kill(training, 9)


def test_a_round_is_one_line():
    changes = {"rounds": 60, "loss": 0.25, "loss_pred": 0.125, "seconds": 2.0, "rewards": [-2, -1]}
    ends = {"eta_seconds": 185.0, "val_mae_scaled": 0.5, "stage": "supervised"}

    line = describe_round(round_record(4, **changes, **ends))

    facts = ("5/60", "supervised", "0.2500", "0.1250", "-1.0000", "0.5000", "3m05s")
    assert [fact for fact in facts if fact not in line] == []
