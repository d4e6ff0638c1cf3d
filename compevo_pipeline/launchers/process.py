"""Training in a process of its own, or in several under torchrun.

What belongs here: starting the training command, following it, stopping it. What does not: what
it computes (``launchers.worker``). Every launcher speaks Dagster Pipes, so that rounds, losses
and metrics reach the event log while training runs; a launcher returns what the process reported
about its asset.
"""

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import dagster as dg

from compevo_core.errors import CompEvoError
from compevo_core.training.round_record import REWRITING_KEYS, RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.launchers.progress import RoundTail
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.settings import child_environment
from compevo_pipeline.sketch import sketch_validation

WORKER = "compevo_pipeline.launchers.worker"
POLL_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Loaded before any fork: a child may not load libraries.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
TERMINATION_SECONDS = 30.0

OBSERVED_KEYS = (
    *("loss", "loss_pred", "loss_own", "loss_pg", "loss_div", "loss_prune"),
    *("kl", "grad_norm", "weight_entropy", "val_mae_scaled", "val_prior_mae_scaled"),
    *("error_correlation", "gain_over_best", "effective_agents"),
)
"""Keys of a round record that an asset observation holds, so that the UI plots them."""


class TrainingError(CompEvoError):
    """The training process ended with an error; its own log says which."""


class Launcher(Protocol):
    """Runs trainings, one after the other in one process, and waits for them."""

    def launch(
        self, context: dg.AssetExecutionContext, jobs: Sequence[TrainJob]
    ) -> Mapping[str, Any]:
        """Run the jobs to their end and return the metadata they reported.

        Raises:
            TrainingError: a training did not end well.
        """


def worker_command(job_files: Sequence[str], *, python: str, processes: int) -> list[str]:
    """Return the training command.

    Args:
        job_files: a ``job.json`` for each training.
        python: the interpreter.
        processes: above 0, torchrun starts that many processes.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLauncher:
    """Trains in a process on this machine.

    Attributes:
        processes: above 0, torchrun starts that many processes, which share the agents.
        threads: OpenMP threads of a process; 0 leaves it to the environment.
        observe_every: rounds between two asset observations.
        poll_seconds: seconds between two looks at the rounds and at the process.
    """

    processes: int = 0
    threads: int = 0
    observe_every: int = 1
    poll_seconds: float = POLL_SECONDS

    def launch(
        self, context: dg.AssetExecutionContext, jobs: Sequence[TrainJob]
    ) -> Mapping[str, Any]:
        """Start the process, follow its rounds, stop it if the run is cancelled.

        Returns:
            The metadata that the process reported.

        Raises:
            TrainingError: it ended with an error.
        """
        command = worker_command(write_jobs(jobs), python=sys.executable, processes=self.processes)

        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as session:
            env = child_environment(self.threads) | dict(session.get_bootstrap_env_vars())
            process = subprocess.Popen(  # noqa: S603 -- our own command
                command,
                env=env,
                preexec_fn=_end_with_parent,
            )
            try:
                code = self._follow(context, process, jobs)
            finally:
                # Reached by an error, too: a cancelled run must not leave a training running.
                terminate(process)

        if code != 0:
            raise TrainingError(
                f"training for {jobs[0].out} {describe_exit_code(code)}; rerun to resume from the "
                "last checkpoint"
            )
        return read_reported_metadata(session.get_results())

    def _follow(
        self,
        context: dg.AssetExecutionContext,
        process: "subprocess.Popen[bytes]",
        jobs: Sequence[TrainJob],
    ) -> int:
        """Report new rounds until the process ends; return its exit code."""
        tails = [(job.folder, RoundTail(job.folder.rounds_file)) for job in jobs]

        while True:
            # Asked before reading: rounds written just before the end are read after it.
            code = process.poll()
            for folder, tail in tails:
                for record in tail.read_new():
                    if record.round % self.observe_every == 0:
                        context.log_event(build_observation(context, record, folder))

            if code is not None:
                return code
            time.sleep(self.poll_seconds)


def _end_with_parent() -> None:
    """Ask the kernel to terminate this process when the one that started it dies, on Linux.

    A killed run would otherwise leave its training running, beside the one of its retry.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def build_observation(
    context: dg.AssetExecutionContext, record: RoundRecord, folder: RunFolder
) -> dg.AssetObservation:
    """Return the asset observation of one round; after a validation with the curve so far."""
    metadata: dict[str, Any] = {
        "run": folder.name,
        "round": record.round + 1,
        "eta_seconds": record.eta_seconds,
    }
    for key in OBSERVED_KEYS:
        value = getattr(record, key)
        # A zero of a round that sampled no logic would pull the plot down as if it were measured.
        is_measured = record.evolved or key not in REWRITING_KEYS
        if value is not None and is_measured:
            metadata[key] = float(value)
    if record.val_mae_scaled is not None:
        metadata["validation_mae_by_round"] = sketch_validation(folder.read_rounds())
    for agent, reward in enumerate(record.rewards):
        metadata[f"reward_agent_{agent:02d}"] = reward

    return dg.AssetObservation(asset_key=context.asset_key, metadata=metadata)


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


def read_reported_metadata(results: Sequence[object]) -> Mapping[str, Any]:
    """Return the metadata of the materialization that a process reported."""
    for result in results:
        # Checks that a process might report are results, too, and carry no metadata.
        if isinstance(result, dg.MaterializeResult):
            return dict(result.metadata or {})
    return {}
