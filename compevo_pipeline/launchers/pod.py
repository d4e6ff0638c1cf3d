"""A training pod of Kubernetes: its settings, and its manifest.

What belongs here: what a pod looks like. What does not: starting it (``defs.launchers``), setting
up the cluster. The pod and Dagster must see ``COMPEVO_HOME`` under the same path, on one volume.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from compevo_core.errors import ConfigError
from compevo_pipeline.launchers.process import TERMINATION_SECONDS, worker_command

CONTAINER = "dagster-pipes-execution"  # the container name that `PipesK8sClient` fills in
IMAGE_GROUP = 1000
"""Group of the image's user (deploy/Dockerfile), which must be able to write to the volume."""


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

        Raises:
            ConfigError: there is no such file, or it is not a table of these attributes.
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

    def manifest(self, name: str, job_files: Sequence[str]) -> dict[str, Any]:
        """Return a whole Pod, for ``kubectl apply`` without Dagster."""
        spec = self.pod_spec()
        spec["containers"][0] |= {"command": self.command(job_files)}

        labels = {"app.kubernetes.io/name": "compevo", "app.kubernetes.io/component": "training"}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
