"""A run that is killed for real: the next one goes on without anybody's help."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from compevo_pipeline.config.settings import REPOSITORY
from compevo_pipeline.defs.dead_runs import hold_run_lock, sweep_dead_runs
from compevo_pipeline.defs.jobs import run_job
from compevo_pipeline.defs.loggers import progress_logger
from tests.pipeline.launchers.test_launchers import is_running

DEFINITIONS = REPOSITORY / "tests" / "support" / "pooled_defs.py"
PATIENCE_S = 120.0


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


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def home(tmp_path):
    """A deployment with the project's own settings of Dagster."""
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc about processes")
def test_after_a_shell_run_was_killed_the_next_materialization_goes_on(home):
    killed = materialize(home, seconds=600)
    wait_until((home / "step.pid").exists)
    step = int((home / "step.pid").read_text())
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    # The step dies with its run, and would otherwise work beside the next one.
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
    run = instance.add_run(
        dg.DagsterRun(job_name="job", run_id=os.urandom(4).hex(), status=status, tags=tags)
    )
    instance.event_log_storage.initialize_concurrency_limit_to_default("gpu")
    claimed = instance.event_log_storage.claim_concurrency_slot("gpu", run.run_id, "step")
    assert claimed.is_claimed
    return run.run_id


def test_a_run_whose_lock_is_held_is_left_alone(instance):
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


def test_a_dead_run_of_the_daemon_fails_so_that_the_daemon_starts_it_again(instance):
    run = claim(instance, **{".dagster/grpc_info": "{}"})
    os.close(hold_run_lock(instance, run))
    sweep_dead_runs(instance)
    assert instance.get_run_by_id(run).status is dg.DagsterRunStatus.FAILURE


def test_slots_of_a_run_that_ended_are_freed_after_a_while_and_of_a_deleted_one_at_once(instance):
    run = claim(instance)
    instance.report_run_canceled(instance.get_run_by_id(run))
    sweep_dead_runs(instance)
    assert instance.event_log_storage.get_concurrency_run_ids() == {run}
    sweep_dead_runs(instance, clock=lambda: time.time() + 61)
    assert not instance.event_log_storage.get_concurrency_run_ids()

    deleted = claim(instance)
    instance.delete_run(deleted)
    sweep_dead_runs(instance)
    assert not instance.event_log_storage.get_concurrency_run_ids()


def test_the_lock_of_a_run_that_ended_well_is_removed(instance):
    run = claim(instance, status=dg.DagsterRunStatus.SUCCESS)
    os.close(hold_run_lock(instance, run))
    assert sweep_dead_runs(instance) == []
    assert instance.get_run_by_id(run).status is dg.DagsterRunStatus.SUCCESS
    assert list((Path(instance.root_directory) / "run_locks").iterdir()) == []


def test_a_run_in_this_process_takes_back_what_a_dead_run_claimed(home, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        dead = claim(instance)
        os.close(hold_run_lock(instance, dead))

    @dg.asset(pool="gpu")
    def pooled() -> None:
        """Ask for the slot."""

    full = dg.define_asset_job("full", executor_def=dg.in_process_executor)
    defs = dg.Definitions(assets=[pooled], jobs=[full], loggers={"progress": progress_logger})
    assert run_job(defs, "full", "electricity") == []
    with dg.DagsterInstance.get() as instance:
        assert instance.get_run_by_id(dead).status is dg.DagsterRunStatus.CANCELED
        assert not instance.event_log_storage.get_concurrency_run_ids()


def test_runs_in_the_queue_wait_for_a_code_server_that_died(home):
    with dg.DagsterInstance.from_config(str(home)) as instance:
        queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None and queue.max_concurrent_runs == 2
    waited = queue.max_user_code_failure_retries * queue.user_code_failure_retry_delay
    # Dagster's daemon starts another server once a minute.
    assert waited >= 2 * 60
