"""What a run that died leaves behind: no training, and no second one in the same folder."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

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


def test_slots_of_runs_that_ended_are_taken_back():
    settings = yaml.safe_load((REPOSITORY / "dagster_home" / "dagster.yaml").read_text())
    assert settings["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
