"""What a run that died leaves behind: no training, and no second one in the same folder."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from compevo_core.data.filelock import StoreBusy, file_lock
from compevo_core.training import trainer
from compevo_pipeline.launchers import worker
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.settings import REPOSITORY

# A run that starts a training as the launcher does, and waits for it.
RUN = """
import subprocess, sys
from compevo_pipeline.launchers import process
child = [sys.executable, "-c", "import time; time.sleep(60)"]
started = subprocess.Popen(child, preexec_fn=process._end_with_parent)
print(started.pid, flush=True)
started.wait()
"""


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

    deadline = time.monotonic() + 10
    while is_running(training) and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        assert not is_running(training)
    finally:
        if is_running(training):
            os.kill(training, 9)


def test_a_training_holds_the_lock_of_its_folder_until_it_ends(tmp_path, monkeypatch):
    job = TrainJob(config={}, windows="w", news="n", out=str(tmp_path / "runs" / "one"))
    lock = tmp_path / "runs" / "one.lock"

    def train(*_, **__):
        with pytest.raises(StoreBusy), file_lock(lock, exclusive=True, wait_seconds=0.0):
            pass
        return {"rounds": 1}

    monkeypatch.setattr(trainer, "train", train)
    nothing = SimpleNamespace(split=lambda name: [])
    inputs = SimpleNamespace(windows=lambda _: nothing, news=lambda _: None, fits=lambda _: None)
    assert worker.run_job(job, inputs, logging.getLogger("test")) == {"rounds": 1}
    with file_lock(lock, exclusive=True, wait_seconds=0.0):
        pass


def test_slots_of_runs_that_ended_are_taken_back():
    settings = yaml.safe_load((REPOSITORY / "dagster_home" / "dagster.yaml").read_text())
    assert settings["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
