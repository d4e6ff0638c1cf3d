"""The training process: its end with its run, and following its rounds."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compevo_pipeline.launchers.process import RoundTail
from compevo_pipeline.launchers.worker import describe_round
from tests.support.round_records import round_record

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


def line(number):
    return round_record(number).to_json_line() + "\n"


def test_rounds_reported_before_a_resume_are_not_reported_again(tmp_path):
    rounds = tmp_path / "rounds.jsonl"
    rounds.write_text(line(0))
    tail = RoundTail(rounds)

    half = line(2)[:20]
    with rounds.open("a") as stream:
        stream.write(line(1) + half)
    assert [record.round for record in tail.read_new()] == [1]

    with rounds.open("a") as stream:
        stream.write(line(2)[20:])
    assert [record.round for record in tail.read_new()] == [2]

    rounds.write_text(line(0))
    assert [record.round for record in tail.read_new()] == [0]


def test_a_training_that_has_not_started_has_no_rounds(tmp_path):
    assert list(RoundTail(tmp_path / "rounds.jsonl").read_new()) == []


def test_a_round_is_one_line_with_its_losses_and_the_time_left():
    record = round_record(
        4,
        rounds=60,
        loss=0.25,
        loss_pred=0.125,
        seconds=2.0,
        eta_seconds=185.0,
        rewards=[-2, -1],
        val_mae_scaled=0.5,
    )
    assert describe_round(record) == (
        "round 5/60, loss 0.2500, loss_pred 0.1250, best reward -1.0000, "
        "validation MAE 0.5000 (scaled), 2.0 s, about 3m05s left"
    )


def test_before_the_middle_the_time_left_is_a_guess_and_says_so():
    def end(gone, left):
        return describe_round(round_record(0, train_seconds=gone, eta_seconds=left)).split(", ")[-1]

    assert end(60.0, 61.0) == "about 1m01s left"
    assert end(61.0, 60.0) == "1m00s left"


def test_a_round_without_validation_says_nothing_of_it():
    assert "validation" not in describe_round(round_record(0, val_mae_scaled=None))


def test_a_supervised_round_says_so_and_others_do_not():
    assert describe_round(round_record(0, stage="supervised")).startswith(
        "round 1/10 (supervised), loss"
    )
    assert "(supervised)" not in describe_round(round_record(0))
