"""Training in a process of this machine: its command, starting, following and stopping it.

What belongs here: the life of the process, and how its death is reported. What does not: what it
computes (``launchers.worker``), the Dagster session that it reports to (``defs.launchers``).
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compevo_core.errors import CompEvoError
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.launchers.worker import TrainJob

WORKER = "compevo_pipeline.launchers.worker"
POLL_SECONDS = 0.5
TERMINATION_SECONDS = 30.0

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Loaded before any fork: a child may not load libraries.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class TrainingError(CompEvoError):
    """The training process ended with an error; its own log says which."""


def worker_command(job_files: Sequence[str], *, python: str, processes: int) -> list[str]:
    """Return the training command; above 0, torchrun starts that many processes."""
    if processes < 1:
        return [python, "-m", WORKER, *job_files]

    return [
        *(python, "-m", "torch.distributed.run"),
        *("--standalone", f"--nproc-per-node={processes}"),
        *("-m", WORKER, *job_files),
    ]


def write_jobs(jobs: Sequence[TrainJob]) -> list[str]:
    """Write each job into its run folder; return the files."""
    return [str(job.write()) for job in jobs]


def run_training(
    jobs: Sequence[TrainJob],
    environment: Mapping[str, str],
    on_round: Callable[[RoundRecord, RunFolder], None],
    *,
    processes: int = 0,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Train in a process of its own, one job after the other, and wait for its end.

    ``on_round`` gets each new round while the process works; above 0, torchrun starts
    ``processes``.

    Raises:
        TrainingError: it ended with an error.
    """
    command = worker_command(write_jobs(jobs), python=sys.executable, processes=processes)
    process = subprocess.Popen(  # noqa: S603 -- our own command
        command, env=environment, preexec_fn=_end_with_parent
    )
    try:
        code = _follow(process, jobs, on_round, poll_seconds)
    finally:
        # Reached by an error, too: a cancelled run must not leave a training running.
        terminate(process)

    if code != 0:
        raise TrainingError(
            f"training for {jobs[0].out} {describe_exit_code(code)}; rerun to resume from the "
            "last checkpoint"
        )


def _follow(
    process: "subprocess.Popen[bytes]",
    jobs: Sequence[TrainJob],
    on_round: Callable[[RoundRecord, RunFolder], None],
    poll_seconds: float,
) -> int:
    """Report new rounds until the process ends; return its exit code."""
    tails = [(job.folder, RoundTail(job.folder.rounds_file)) for job in jobs]

    while True:
        # Asked before reading: rounds written just before the end are read after it.
        code = process.poll()
        for folder, tail in tails:
            for record in tail.read_new():
                on_round(record, folder)

        if code is not None:
            return code
        time.sleep(poll_seconds)


@dataclass(slots=True)
class RoundTail:
    """Reads the records added to a ``rounds.jsonl`` since the last read.

    It starts at the end of what an earlier, interrupted training has already reported.
    """

    path: Path
    _offset: int = field(init=False)

    def __post_init__(self) -> None:
        """Remember where the file ends now."""
        self._offset = self.path.stat().st_size if self.path.exists() else 0

    def read_new(self) -> Iterator[RoundRecord]:
        """Yield the new records; a half-written line is left for the next read."""
        if not self.path.exists():
            return

        # A training that starts over replaces the file, a resumed one cuts it at its checkpoint.
        if self.path.stat().st_size < self._offset:
            self._offset = 0

        with self.path.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield RoundRecord.from_json_line(line)


def _end_with_parent() -> None:
    """Ask the kernel to terminate this process when the one that started it dies, on Linux.

    A killed run would otherwise leave its training running, beside the training of its retry.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_with_run() -> None:
    """Let this process die with the run that started it, if it is the process of a step.

    A killed run would otherwise leave its steps working, beside the steps of its retry.
    """
    run = multiprocessing.parent_process()
    if run is None:
        return

    def wait() -> None:
        run.join()
        # As the run itself was: what a step leaves behind at any moment can be gone on from.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="end-with-run").start()


def describe_exit_code(code: int) -> str:
    """Return what an exit code means and what to do about it."""
    if code == -signal.SIGKILL:
        return (
            "was killed, most often because memory ran out: lower run.micro_batch_size or "
            "population.agents"
        )
    if code < 0:
        name = signal.Signals(-code).name
        return f"was terminated by {name}; check the scheduler's or system log"
    return f"ended with exit code {code}: read the process's log above and correct the cause"


def terminate(process: "subprocess.Popen[bytes]") -> None:
    """Terminate the process: SIGTERM, then SIGKILL after 30 s."""
    if process.poll() is not None:
        return

    process.terminate()
    try:
        process.wait(TERMINATION_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
