"""The process of a training, on this machine or in a pod of Kubernetes.

What belongs here: its command, starting and stopping it on this machine, how its death is
reported; the settings of a pod. What does not: what it computes (``launchers.worker``), the Dagster
session that it reports to, starting a pod (``defs.resources``), setting up the cluster. A pod and
Dagster must see ``COMPEVO_HOME`` under the same path, on one volume.
"""

import ctypes
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compevo_core.errors import CompEvoError, ConfigError
from compevo_pipeline.launchers.worker import TrainJob

WORKER = "compevo_pipeline.launchers.worker"
POLL_SECONDS = 0.5
TERMINATION_SECONDS = 30.0

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Loaded before any fork: a child may not load libraries.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

CONTAINER = "dagster-pipes-execution"  # the container name that `PipesK8sClient` fills in
IMAGE_GROUP = 1000  # of the image's user (deploy/Dockerfile), who writes to the volume


class TrainingError(CompEvoError):
    """The training process ended with an error; its own log names it."""


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
    on_poll: Callable[[], None],
    *,
    processes: int = 0,
) -> None:
    """Train in a process of its own, one job after the other, and wait for its end.

    ``on_poll`` is called meanwhile; above 0, ``processes`` use torchrun. TrainingError if it fails.
    """
    command = worker_command(write_jobs(jobs), python=sys.executable, processes=processes)
    process = subprocess.Popen(  # noqa: S603 -- our own command
        command, env=environment, preexec_fn=_end_with_parent
    )
    try:
        while process.poll() is None:
            on_poll()
            time.sleep(POLL_SECONDS)
    finally:
        # Reached by an error, too: a cancelled run must not leave a training running.
        terminate(process)

    if process.returncode != 0:
        raise TrainingError(
            f"training for {jobs[0].out} {describe_exit_code(process.returncode)}; rerun to resume "
            "from the last checkpoint"
        )


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


class PodSpec(BaseModel):
    """A training pod: image, shared volume, resources."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = Field(min_length=1)  # container image with this project installed
    volume_claim: str = Field(min_length=1)  # of the volume that Dagster and the pod share
    mount_path: str = Field(pattern="^/")  # where the volume is mounted, as an absolute path
    namespace: str = "default"  # namespace of the pod
    gpus: int = Field(default=1, ge=0)  # one training process each; 0 trains on the CPU
    cpu: str = "4"  # CPU limit in Kubernetes units
    memory: str = "24Gi"  # memory limit in Kubernetes units
    # Variables of the container, which everyone who may read the pod can read.
    environment: Mapping[str, str] = Field(default_factory=dict)
    secret: str = ""  # Kubernetes secret whose entries become variables, too; empty: none

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a pod from a TOML file with the attributes of this class.

        ConfigError if there is no such file, or it is not a table of these attributes.
        """
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValidationError, tomllib.TOMLDecodeError) as error:
            why = " ".join(str(error).split())
            raise ConfigError(
                f"{path} does not describe a training pod: {why}; see "
                "deploy/kubernetes/training-pod.toml, and name your file in COMPEVO_POD"
            ) from error

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
                {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108 - of the container
            ],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        if self.secret:
            container["envFrom"] = [{"secretRef": {"name": self.secret}}]
        volumes = [
            {"name": "home", "persistentVolumeClaim": {"claimName": self.volume_claim}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {"name": "temporary", "emptyDir": {}},
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
