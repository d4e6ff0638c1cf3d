"""Runs whose process is gone: their claims are released, so that others can continue.

What belongs here: how a run shows that its process lives, what happens if it does not, and the
sensor that looks for such runs. What does not: Dagster's own monitoring
(``dagster_home/dagster.yaml``), which sees only the runs that its daemon started; if these are
pods, it sees all, and this module does nothing.

A run holds a lock on a file below ``DAGSTER_HOME`` for as long as its process lives. The kernel
frees the lock when the process dies for any reason, and no process id has to be remembered. The
file names machine and boot: only locks of this machine are judged, as a file system need not show
the locks of others (decision 20-operations).
"""

import errno
import fcntl
import logging
import operator
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from compevo_core.runtime.files import describe_storage_error

log = logging.getLogger(__name__)

SWEEP_SECONDS = 15.0  # how often a run looks for dead runs while it works or waits
SLOT_GRACE_SECONDS = 60.0  # after a run's end, in which its steps may still release claims
_SUFFIX = ".lock"
_DAEMON_TAG = ".dagster/grpc_info"  # on every run that Dagster's own launcher started


def hold_run_lock(instance: dg.DagsterInstance, run_id: str) -> int:
    """Lock the file of a run until this process ends or the returned handle is closed.

    The handle is not closed when the run ends: between its last step and its last event the run
    would look dead. StorageError if the file system has no locks, or they exclude no other process.
    """
    path = _locks(instance) / f"{run_id}{_SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)

    # Locked under another name: no process may find the file before it is locked.
    unnamed = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with _take(unnamed) as is_free:
            if is_free:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    except OSError as error:
        raise describe_storage_error(error, f"locking {path}") from None
    os.write(handle, "\n".join(_name_machine()).encode())
    unnamed.rename(path)
    return handle


def _name_machine() -> tuple[str, str]:
    """Return the name of this machine, and of its present boot if the kernel gives one."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname(), boot.read_text().strip() if boot.exists() else ""


@contextmanager
def sweep_meanwhile(instance: dg.DagsterInstance) -> Iterator[None]:
    """Look for dead runs now, and again and again until the block ends.

    A run that waits for a slot would otherwise never get the slot of one that dies meanwhile.
    """
    is_over = threading.Event()

    def keep_sweeping() -> None:
        with ThreadPoolExecutor(1) as once:
            while not is_over.wait(SWEEP_SECONDS):
                # The event log's database may be busy or away: this must not end the run itself.
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
    if instance.run_launcher.supports_check_run_worker_health:
        return []  # Dagster's monitoring asks the cluster which pods live
    dead = []
    for path in sorted(_locks(instance).glob(f"*{_SUFFIX}")):
        with _take(path) as is_free:
            # A container that was made again has another name and the same boot; a machine that was
            # restarted has the same name and another boot. A lock without a name comes from a
            # restored copy.
            names = path.read_text(encoding="utf-8").split("\n") if is_free else []
            if names != [""] and not any(map(operator.eq, names, _name_machine())):
                continue
            if _end(instance, path.stem):
                dead.append(path.stem)
            # Last: a sweep that is killed before it is done again.
            path.unlink()

    # Claims of runs that have ended, or were deleted, if no daemon frees them.
    for run_id in instance.event_log_storage.get_concurrency_run_ids():
        record = instance.get_run_record_by_id(run_id)
        if record is not None:
            if not record.dagster_run.is_finished or record.end_time is None:
                continue
            if clock() - record.end_time <= SLOT_GRACE_SECONDS:
                continue
        instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return dead


def _locks(instance: dg.DagsterInstance) -> Path:
    return Path(instance.root_directory) / "run_locks"


@contextmanager
def _take(path: Path) -> Iterator[bool]:
    """Yield whether the lock of a run was free and is now ours."""
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
        # Dagster's daemon retries failed runs: it would start again one from a shell unasked, and
        # one that somebody terminated.
        if _DAEMON_TAG in run.tags and run.status is not dg.DagsterRunStatus.CANCELING:
            instance.report_run_failed(run, f"{message} It is started again.")
        else:
            instance.report_run_canceled(run, f"{message} Materialize again: it resumes.")
        log.warning("run %s: its process is gone; its claims are released", run_id)

    instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return is_dead


@dg.sensor(
    name="dead_runs",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Ends runs whose process is gone, and releases their claims. Runs do so themselves "
        "when they start; this is for runs that wait in the queue behind dead ones."
    ),
)
def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """End dead runs; request none."""
    dead = sweep_dead_runs(context.instance)
    return dg.SkipReason(f"ended: {', '.join(dead)}" if dead else "no run is dead")
