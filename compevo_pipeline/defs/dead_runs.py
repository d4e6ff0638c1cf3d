"""Runs whose process is gone: what they claimed is given back, so that others go on.

What belongs here: how a run shows that its process lives, what is done about one whose process
does not, and the executor and the sensor that look for such runs. What does not: Dagster's own
monitoring (``dagster_home/dagster.yaml``), which sees only the runs that its daemon started.

A run holds a lock on a file below ``DAGSTER_HOME`` for as long as its process lives. The kernel
frees the lock when the process dies of whatever cause, so that no process id has to be remembered,
and none that was given to another process passes for a living run. The folder must be on a file
system whose locks are seen by all that share it (decision 20-operations).
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from dagster._core.execution.context.system import PlanOrchestrationContext
    from dagster._core.execution.plan.plan import ExecutionPlan
    from dagster._core.execution.retries import RetryMode
    from dagster._core.execution.step_dependency_config import StepDependencyConfig

log = logging.getLogger(__name__)

SWEEP_SECONDS = 15.0  # how often a run looks for dead ones while it works or waits
SLOT_GRACE_SECONDS = 60.0
"""How long after the end of a run its last steps may still give back what they claimed."""
FEW_STEPS = 2  # steps of a run that needs no process for each: an asset and its checks
_FOLDER = "run_locks"
_SUFFIX = ".lock"
_MODE = 0o644
_SENSOR_SECONDS = 60
_DAEMON_TAG = ".dagster/grpc_info"  # on every run that Dagster's own launcher started


def hold_run_lock(instance: dg.DagsterInstance, run_id: str) -> int:
    """Lock the file of a run until this process ends or the returned handle is closed.

    Returns:
        The handle. It is not closed where the run ends: between its last step and its last event
        the run would pass for dead.
    """
    path = _locks(instance) / f"{run_id}{_SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)

    # Locked under another name: nobody may find the file before it is locked.
    unnamed = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    fcntl.flock(handle, fcntl.LOCK_EX)
    unnamed.rename(path)
    return handle


@contextmanager
def sweep_meanwhile(instance: dg.DagsterInstance) -> Iterator[None]:
    """Look for dead runs now, and again and again until the block ends.

    A run that waits for a slot would otherwise wait for ever for one that dies meanwhile.
    """
    is_over = threading.Event()

    def keep_sweeping() -> None:
        with ThreadPoolExecutor(1) as once:
            while not is_over.wait(SWEEP_SECONDS):
                # The event log's database may be busy or away: the run itself must not end of it.
                error = once.submit(sweep_dead_runs, instance).exception()
                if error is not None:
                    log.warning("looking for dead runs failed, it is tried again: %s", error)

    sweep_dead_runs(instance)
    sweeper = threading.Thread(target=keep_sweeping, daemon=True, name="sweep-dead-runs")
    sweeper.start()
    try:
        yield
    finally:
        is_over.set()
        sweeper.join()


def sweep_dead_runs(
    instance: dg.DagsterInstance, *, clock: Callable[[], float] = time.time
) -> list[str]:
    """End the runs whose process is gone, return their ids, and free the slots of ended ones."""
    dead = []
    for path in sorted(_locks(instance).glob(f"*{_SUFFIX}")):
        with _take(path) as is_free:
            if not is_free:
                continue
            if _end(instance, path.stem):
                dead.append(path.stem)
            # Last: a sweep that is killed before it is done again.
            path.unlink()

    _free_slots_of_ended(instance, clock())
    return dead


def _locks(instance: dg.DagsterInstance) -> Path:
    return Path(instance.root_directory) / _FOLDER


@contextmanager
def _take(path: Path) -> Iterator[bool]:
    """Yield whether the lock of a run was free and is ours now."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another sweep may have removed the file after it was opened here.
        yield path.exists() and path.stat().st_ino == os.fstat(handle).st_ino
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


def _end(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Give the run an end if it has none, and free its slots; return whether it had none."""
    run = instance.get_run_by_id(run_id)
    is_dead = run is not None and not run.is_finished
    if run is not None and is_dead:
        message = (
            "The process of this run is gone: killed, out of memory, or the machine restarted."
        )
        # A failure is retried by Dagster's daemon, which started the run; nobody asked it to start
        # one from a shell again.
        if _DAEMON_TAG in run.tags:
            instance.report_run_failed(run, f"{message} It is started again.")
        else:
            instance.report_run_canceled(run, f"{message} Materialize again: it goes on.")
        log.warning("run %s: its process is gone; what it claimed is given back", run_id)

    instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return is_dead


def _free_slots_of_ended(instance: dg.DagsterInstance, now: float) -> None:
    """Free what runs still claim that have ended, or were deleted, where no daemon does it."""
    for run_id in instance.event_log_storage.get_concurrency_run_ids():
        record = instance.get_run_record_by_id(run_id)
        if record is None:
            instance.event_log_storage.free_concurrency_slots_for_run(run_id)
            continue

        is_over = record.dagster_run.is_finished and record.end_time is not None
        if is_over and now - (record.end_time or now) > SLOT_GRACE_SECONDS:
            instance.event_log_storage.free_concurrency_slots_for_run(run_id)


class WatchfulExecutor(dg.Executor):
    """Another executor, whose run shows that it lives and takes back what dead runs claimed.

    A run of few steps works in its own process: a step's process imports everything again.
    """

    def __init__(self, inner: dg.Executor, in_process: dg.Executor) -> None:
        self._inner = inner
        self._in_process = in_process

    @property
    def retries(self) -> "RetryMode":
        """Whether steps may be retried."""
        return self._inner.retries

    @property
    def step_dependency_config(self) -> "StepDependencyConfig":
        """What a step waits for."""
        return self._inner.step_dependency_config

    def execute(
        self, plan_context: "PlanOrchestrationContext", execution_plan: "ExecutionPlan"
    ) -> Iterator[dg.DagsterEvent]:
        """Run the steps; yield their events."""
        instance = plan_context.instance
        hold_run_lock(instance, plan_context.run_id)
        is_small = len(execution_plan.step_keys_to_execute) <= FEW_STEPS
        executor = self._in_process if is_small else self._inner
        with sweep_meanwhile(instance):
            yield from executor.execute(plan_context, execution_plan)


def watch_dead_runs(inner: dg.ExecutorDefinition) -> dg.ExecutorDefinition:
    """Return an executor that does as ``inner`` does, and watches for dead runs."""

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        executors = []
        for definition in (inner, dg.in_process_executor):
            # Dagster types it as optional; its own executors all have one.
            assert definition.executor_creation_fn is not None  # noqa: S101 - by construction
            executors.append(definition.executor_creation_fn(context))
        return WatchfulExecutor(*executors)

    return dg.ExecutorDefinition(
        name=inner.name,
        config_schema=inner.config_schema.as_field(),
        requirements=inner.get_requirements,
        executor_creation_fn=create,
        description=inner.description,
    )


@dg.sensor(
    name="dead_runs",
    minimum_interval_seconds=_SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Ends runs whose process is gone, and gives back what they claimed. Runs do so themselves "
        "where they start; this is for those that wait in the queue behind dead ones."
    ),
)
def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """End dead runs; request none."""
    dead = sweep_dead_runs(context.instance)
    return dg.SkipReason(f"ended: {', '.join(dead)}" if dead else "no run is dead")
