"""Where training runs: a process of its own, torchrun, or (``pods``) a Kubernetes pod.

What belongs here: starting the training command, following it, stopping it. What does not: what it computes
(``train_worker``). Every launcher speaks Dagster Pipes, so that rounds, losses and metrics reach the event log while
training runs; a launcher returns what the process reported about its asset.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import dagster as dg

from compevo_core.errors import CompEvoError
from compevo_pipeline.launchers.progress import RoundTail, observation
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.settings import child_environment

WORKER = "compevo_pipeline.launchers.worker"
POLL_SECONDS = 0.5
TERMINATION_SECONDS = 30.0


class TrainingError(CompEvoError):
    """The training process ended with an error; its own log says why."""


class Launcher(Protocol):
    """Runs trainings, one after the other in one process, and waits for them."""

    def launch(
        self, context: dg.AssetExecutionContext, jobs: Sequence[TrainJob]
    ) -> Mapping[str, Any]:
        """Runs the jobs to their end and returns the metadata they reported.

        Raises:
            TrainingError: a training did not reach its end.
        """


def worker_command(job_files: Sequence[str], *, python: str, processes: int) -> list[str]:
    """The training command; ``processes`` above 0 starts it under torchrun, that many times."""
    if processes < 1:
        return [python, "-m", WORKER, *job_files]
    torchrun = [
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    return [*torchrun, "-m", WORKER, *job_files]


def write_jobs(jobs: Sequence[TrainJob]) -> list[str]:
    """Writes each job into its run folder; returns the files."""
    return [str(job.write(Path(job.out) / "job.json")) for job in jobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLauncher:
    """A process on this machine; with ``processes`` above 0, torchrun starts that many and joins them."""

    processes: int = 0
    threads: int = 0
    observe_every: int = 1
    poll_seconds: float = POLL_SECONDS

    def launch(
        self, context: dg.AssetExecutionContext, jobs: Sequence[TrainJob]
    ) -> Mapping[str, Any]:
        """Starts the process, follows its rounds, stops it if the run is cancelled."""
        command = worker_command(write_jobs(jobs), python=sys.executable, processes=self.processes)
        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as session:
            env = child_environment(self.threads) | dict(session.get_bootstrap_env_vars())
            process = subprocess.Popen(command, env=env)
            try:
                code = self._follow(context, process, jobs)
            finally:
                stop(process)
        if code != 0:
            raise TrainingError(
                f"training for {jobs[0].out} {why(code)}; then materialize again: it goes on"
            )
        return reported(session.get_results())

    def _follow(
        self,
        context: dg.AssetExecutionContext,
        process: "subprocess.Popen[bytes]",
        jobs: Sequence[TrainJob],
    ) -> int:
        tails = [RoundTail(Path(job.out) / "rounds.jsonl") for job in jobs]
        while True:
            code = process.poll()
            for tail in tails:
                for record in tail.new():
                    if int(record["round"]) % self.observe_every == 0:
                        context.log_event(observation(context, record, tail.path.parent.name))
            if code is not None:
                return code
            time.sleep(self.poll_seconds)


def why(code: int) -> str:
    """What an exit code means, and what to do about it."""
    if code == -signal.SIGKILL:
        return "was killed, most often for want of memory: lower run.micro_windows or population.agents"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}: find out by whom"
    return f"ended with exit code {code}: read the process's log above and correct the cause"


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process that still runs: politely, then not."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(TERMINATION_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def reported(results: Sequence[object]) -> Mapping[str, Any]:
    """The metadata of the materialization that the process reported."""
    for result in results:
        if isinstance(result, dg.MaterializeResult):
            return dict(result.metadata or {})
    return {}
