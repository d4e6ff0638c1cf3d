"""Training in a Kubernetes pod: the manifest, and a launcher that uses ``dagster-k8s`` where it is installed.

What belongs here: what a training pod looks like. What does not: the cluster's own set-up. The pod and Dagster must see
``COMPEVO_HOME`` under the same path, on one volume.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from compevo_core.errors import ConfigError
from compevo_pipeline.launchers.process import (
    TERMINATION_SECONDS,
    reported,
    worker_command,
    write_jobs,
)
from compevo_pipeline.launchers.worker import TrainJob

CONTAINER = "dagster-pipes-execution"
"""The container name that ``PipesK8sClient`` fills in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """A training pod: image, shared volume, resources."""

    image: str
    volume_claim: str
    mount_path: str
    namespace: str = "default"
    gpus: int = 1
    cpu: str = "4"
    memory: str = "24Gi"
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the bounds before any work starts."""
        if not self.image or not self.volume_claim or not self.mount_path.startswith("/"):
            raise ConfigError(
                "a training pod needs an image, a volume claim and an absolute mount path; "
                f"got image {self.image!r}, claim {self.volume_claim!r}, path {self.mount_path!r}"
            )
        if self.gpus < 0:
            raise ConfigError(f"a training pod cannot have {self.gpus} GPUs; use 0 for a processor")

    def command(self, job_files: Sequence[str]) -> list[str]:
        """The command line inside the pod: under torchrun, one process a GPU, where there are several."""
        return worker_command(
            job_files, python="python", processes=self.gpus if self.gpus > 1 else 0
        )

    def pod_spec(self) -> dict[str, Any]:
        """The ``base_pod_spec`` of ``PipesK8sClient.run``."""
        amounts = {"cpu": self.cpu, "memory": self.memory} | (
            {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        )
        container = {
            "name": CONTAINER,
            "image": self.image,
            "resources": {"limits": amounts, "requests": amounts},
            "env": [
                {"name": name, "value": value} for name, value in sorted(self.environment.items())
            ],
            "volumeMounts": [{"name": "home", "mountPath": self.mount_path}],
            "securityContext": {"allowPrivilegeEscalation": False},
        }
        return {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": int(TERMINATION_SECONDS),
            "containers": [container],
            "volumes": [
                {"name": "home", "persistentVolumeClaim": {"claimName": self.volume_claim}}
            ],
        }

    def manifest(self, name: str, job_files: Sequence[str]) -> dict[str, Any]:
        """A whole Pod, for ``kubectl apply`` without Dagster."""
        spec = self.pod_spec()
        spec["containers"][0] |= {"command": self.command(job_files)}
        labels = {"app.kubernetes.io/name": "compevo", "app.kubernetes.io/component": "training"}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesLauncher:
    """A pod through the optional ``dagster-k8s`` (same version line as dagster)."""

    pod: PodSpec

    def launch(
        self, context: dg.AssetExecutionContext, jobs: Sequence[TrainJob]
    ) -> Mapping[str, Any]:
        """Starts the pod and waits for it; Pipes raises where the pod fails."""
        try:
            from dagster_k8s import PipesK8sClient  # type: ignore[import-not-found]  # optional, not installed
        except ModuleNotFoundError as error:
            raise ConfigError(
                "launcher 'kubernetes' needs dagster-k8s of the installed dagster version: pip install dagster-k8s"
            ) from error
        done = PipesK8sClient().run(
            context=context,
            namespace=self.pod.namespace,
            command=self.pod.command(write_jobs(jobs)),
            base_pod_spec=self.pod.pod_spec(),
        )
        return reported(done.get_results())
