"""The process of a training, on this machine or in a pod of Kubernetes.

What belongs here: its command, starting, following and stopping it on this machine, how its death
is reported; the settings of a pod. What does not: what it computes
(``launchers.worker``), the Dagster session that it reports to, starting a pod
(``defs.resources``), setting up the cluster. A pod and Dagster must see ``COMPEVO_HOME`` under the
same path, on one volume.
"""

import ctypes
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

from compevo_core.errors import CompEvoError, ConfigError
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.launchers.worker import TrainJob

WORKER = "compevo_pipeline.launchers.worker"
POLL_SECONDS = 0.5
TERMINATION_SECONDS = 30.0

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Loaded before any fork: a child may not load libraries.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

CONTAINER = "dagster-pipes-execution"  # the container name that `PipesK8sClient` fills in
IMAGE_GROUP = 1000
"""Group of the image's user (deploy/Dockerfile), which must be able to write to the volume."""


class TrainingError(CompEvoError):
    """The training process ended with an error; its own log says which."""


def worker_command(job_files: Sequence[str], *, python: str, processes: int) -> list[str]:
    """Return the training command; above 0, torchrun starts that many processes."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [python, *(torchrun if processes else []), "-m", WORKER, *job_files]


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

    TrainingError if it ended with an error.
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
    _reported: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Remember what the file holds now."""
        self._reported = self._read_lines()

    def read_new(self) -> Iterator[RoundRecord]:
        """Yield the new records; a half-written line is left for the next read."""
        lines = self._read_lines()

        # A resumed training cuts the file at its checkpoint, one that starts over replaces it, and
        # either may have written more than there was before anybody looks again.
        pairs = zip(self._reported, lines, strict=False)
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._reported = lines
        yield from map(RoundRecord.from_json_line, lines[known:])

    def _read_lines(self) -> list[bytes]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:  # not there yet, or started over at this moment
            return []
        return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def _end_with_parent() -> None:
    """Ask the kernel to terminate this process when the one that started it dies, on Linux.

    A killed run would otherwise leave its training running along with the training of its retry.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """A training pod: image, shared volume, resources."""

    image: str  # container image with this project installed
    volume_claim: str  # claim of the volume that Dagster and the pod share
    mount_path: str  # where the volume is mounted, as an absolute path
    namespace: str = "default"  # namespace of the pod
    gpus: int = 1  # GPUs, one training process each; 0 trains on the CPU
    cpu: str = "4"  # CPU limit in Kubernetes units
    memory: str = "24Gi"  # memory limit in Kubernetes units
    # Variables of the container, which everyone who may read the pod can read.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Name of a Kubernetes secret whose entries become variables as well, for example the token of a
    # model hub; empty: none.
    secret: str = ""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a pod from a TOML file with the attributes of this class.

        ConfigError if there is no such file, or it is not a table of these attributes.
        """
        try:
            return cls(**tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, TypeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(
                f"{path} does not describe a training pod: {error}; see "
                "deploy/kubernetes/training-pod.toml, and name your file in COMPEVO_POD"
            ) from error

    def __post_init__(self) -> None:
        """Check the bounds before any work starts."""
        if not self.image or not self.volume_claim or not self.mount_path.startswith("/"):
            raise ConfigError(
                "a training pod needs an image, a volume claim and an absolute mount path; "
                f"got image {self.image!r}, claim {self.volume_claim!r}, path {self.mount_path!r}"
            )
        if self.gpus < 0:
            raise ConfigError(
                f"a training pod cannot have {self.gpus} GPUs; set 0 to train on the CPU"
            )

    def command(self, job_files: Sequence[str]) -> list[str]:
        """Return the command line inside the pod; several GPUs get a process each by torchrun."""
        processes = self.gpus if self.gpus > 1 else 0
        return worker_command(job_files, python="python", processes=processes)

    def pod_spec(self) -> dict[str, Any]:
        """Return the ``base_pod_spec`` of ``PipesK8sClient.run``."""
        amounts = {"cpu": self.cpu, "memory": self.memory}
        if self.gpus:
            amounts["nvidia.com/gpu"] = str(self.gpus)

        container = {
            "name": CONTAINER,
            "image": self.image,
            # Limits equal requests: a training is neither evicted first nor slowed by a neighbour.
            "resources": {"limits": amounts, "requests": amounts},
            "env": [
                {"name": name, "value": value} for name, value in sorted(self.environment.items())
            ],
            "volumeMounts": [
                {"name": "home", "mountPath": self.mount_path},
                # NCCL and torch exchange through it, and a container's own has 64 MB.
                {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - of the container
            ],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        if self.secret:
            container["envFrom"] = [{"secretRef": {"name": self.secret}}]
        volumes = [
            {"name": "home", "persistentVolumeClaim": {"claimName": self.volume_claim}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ]

        return {
            # Dagster decides about retries: a pod that the cluster restarts would train twice.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": int(TERMINATION_SECONDS),
            # A training speaks to Dagster through its log: it needs no access to the cluster.
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": IMAGE_GROUP,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes,
        }
