"""A run that is killed for real: the next one continues without help."""

import errno
import fcntl
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from compevo_pipeline.config.settings import REPOSITORY
from compevo_pipeline.defs.dead_runs import hold_run_lock, sweep_dead_runs
from compevo_pipeline.defs.jobs import run_job
from tests.pipeline.launchers.test_launchers import PATIENCE_S, is_running, wait_until

DEFINITIONS = REPOSITORY / "tests" / "support" / "pooled_defs.py"
OF_DAEMON = {".dagster/grpc_info": "{}"}
MACHINES = {
    "a reboot of this machine": (socket.gethostname(), "another", True),
    "a container made again": ("another", "{boot}", True),
    "another machine": ("another", "another", False),
}


def materialize(home, seconds):
    """Materialize the pooled asset from a shell, without a daemon."""
    command = [sys.executable, "-m", "dagster", "asset", "materialize"]
    return subprocess.Popen(
        [*command, "-f", str(DEFINITIONS), "--select", "pooled"],
        env={**os.environ, "DAGSTER_HOME": str(home), "WORK_SECONDS": str(seconds)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def home(tmp_path):
    """A deployment with the project's own settings of Dagster."""
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc about processes")
def test_a_killed_shell_run_frees_the_next(home):
    killed = materialize(home, seconds=600)
    wait_until((home / "step.pid").exists)
    step = int((home / "step.pid").read_text())
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    # The step dies with its run, and would otherwise work at the same time as the next one.
    wait_until(lambda: not is_running(step))

    again = materialize(home, seconds=0)
    output, _ = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, output

    with dg.DagsterInstance.from_config(str(home)) as instance:
        found = {run.status for run in instance.get_runs()}
        assert found == {dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.SUCCESS}
        assert not instance.event_log_storage.get_concurrency_run_ids()


@pytest.fixture
def instance(home):
    with dg.DagsterInstance.from_config(str(home)) as opened:
        yield opened


def claim(instance, status=dg.DagsterRunStatus.STARTED, **tags):
    """Register a run that has claimed the only slot of a pool."""
    run = dg.DagsterRun(job_name="job", run_id=os.urandom(4).hex(), status=status, tags=tags)
    instance.add_run(run)
    instance.event_log_storage.initialize_concurrency_limit_to_default("gpu")
    claimed = instance.event_log_storage.claim_concurrency_slot("gpu", run.run_id, "step")
    assert claimed.is_claimed
    return run.run_id


def test_a_run_with_its_lock_is_left(instance):
    run = claim(instance)
    # One that shows no lock may live elsewhere.
    assert sweep_dead_runs(instance) == []
    handle = hold_run_lock(instance, run)
    assert sweep_dead_runs(instance) == []
    assert instance.get_run_by_id(run).status is dg.DagsterRunStatus.STARTED
    assert instance.event_log_storage.get_concurrency_run_ids() == {run}

    # The kernel closes handles of a process that dies.
    os.close(handle)
    assert sweep_dead_runs(instance) == [run]
    assert instance.get_run_by_id(run).status is dg.DagsterRunStatus.CANCELED
    assert not instance.event_log_storage.get_concurrency_run_ids()
    assert sweep_dead_runs(instance) == []


@pytest.mark.parametrize(
    ("tags", "in_pods", "swept", "status"),
    [
        (OF_DAEMON, False, 1, "FAILURE"),
        (OF_DAEMON | {"status": dg.DagsterRunStatus.CANCELING}, False, 1, "CANCELED"),
        ({"status": dg.DagsterRunStatus.SUCCESS}, False, 0, "SUCCESS"),
        ({}, True, 0, "STARTED"),
    ],
    ids=["of the daemon", "was terminated", "has ended", "is monitored by the cluster"],
)
def test_a_dead_run_ends_as_its_launcher_says(instance, monkeypatch, tags, in_pods, swept, status):
    run = claim(instance, **tags)
    os.close(hold_run_lock(instance, run))
    launcher = type(instance.run_launcher)
    monkeypatch.setattr(launcher, "supports_check_run_worker_health", in_pods)
    assert sweep_dead_runs(instance) == [run] * swept
    assert instance.get_run_by_id(run).status.value == status
    locks = list((Path(instance.root_directory) / "run_locks").iterdir())
    assert len(locks) == in_pods


def test_slots_of_an_ended_run_are_freed(instance):
    run = claim(instance)
    instance.report_run_canceled(instance.get_run_by_id(run))
    sweep_dead_runs(instance)
    assert instance.event_log_storage.get_concurrency_run_ids() == {run}
    sweep_dead_runs(instance, clock=lambda: time.time() + 61)
    assert not instance.event_log_storage.get_concurrency_run_ids()

    instance.delete_run(claim(instance))
    sweep_dead_runs(instance)
    assert not instance.event_log_storage.get_concurrency_run_ids()


def test_a_run_takes_a_dead_ones_slot(home, instance, monkeypatch):
    dead = claim(instance)
    os.close(hold_run_lock(instance, dead))
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    defs = runpy.run_path(str(DEFINITIONS))["defs"]

    assert run_job(defs, "full", "electricity") == []
    (done,) = (run for run in instance.get_runs() if run.run_id != dead)
    assert instance.get_run_by_id(dead).status is dg.DagsterRunStatus.CANCELED
    assert not instance.event_log_storage.get_concurrency_run_ids()
    assert (home / "run_locks" / f"{done.run_id}.lock").exists()


@pytest.mark.parametrize(("host", "boot", "is_ended"), MACHINES.values(), ids=list(MACHINES))
def test_only_locks_of_this_machine_are_judged(instance, host, boot, is_ended):
    run = claim(instance)
    os.close(hold_run_lock(instance, run))
    path = Path(instance.root_directory) / "run_locks" / f"{run}.lock"
    assert path.read_text().startswith(f"{socket.gethostname()}\n")
    path.write_text(f"{host}\n{boot.format(boot=path.read_text().split()[-1])}")
    assert sweep_dead_runs(instance) == ([run] if is_ended else [])
    assert path.exists() is not is_ended


@pytest.mark.parametrize("error", [None, OSError(errno.ENOLCK, "No locks available")])
def test_a_volume_without_locks_is_refused(home, monkeypatch, error):
    def lock(*_):
        if error is not None:
            raise error

    monkeypatch.setenv("DAGSTER_HOME", str(home))
    defs = runpy.run_path(str(DEFINITIONS))["defs"]
    monkeypatch.setattr(fcntl, "flock", lock)
    (failure,) = run_job(defs, "full", "electricity")
    assert "locks" in failure and "mount" in failure


def test_queued_runs_outwait_a_dead_server(instance):
    queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None and queue.max_concurrent_runs == 2
    waited = queue.max_user_code_failure_retries * queue.user_code_failure_retry_delay
    # Dagster's daemon starts another server once a minute.
    assert waited >= 2 * 60
