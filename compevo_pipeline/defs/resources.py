"""Dagster resources: the deployment in the mode of a run, and the launchers.

What belongs here: opening what ``settings`` names, and entering secrets; a training in a process,
under torchrun or in a pod, with a Dagster Pipes session, by which rounds, losses and metrics reach
the event log while training runs. What does not: reading other variables of the environment
(``config.settings``), the process, the pod's manifest (``launchers.process``). The mode is run
configuration of the ``workspace`` resource, so that one choice holds for a whole run. A launcher
returns what the process reported about its asset.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import dagster as dg
from pydantic import Field

from compevo_core.errors import ConfigError
from compevo_core.training.round_record import REWRITING_KEYS, RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.settings import Settings, child_environment
from compevo_pipeline.defs.dead_runs import hold_run_lock, sweep_meanwhile
from compevo_pipeline.defs.metadata import sketch_validation
from compevo_pipeline.launchers.process import (
    POLL_SECONDS,
    PodSpec,
    run_training,
    write_jobs,
)
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.work.deployment import Deployment

# Dagster offers an enumeration by its names; to a type checker they are texts.
if TYPE_CHECKING:
    ModeName = str
else:
    # Dagster shows the name of the type where a value is none of it.
    ModeName = StrEnum(" | ".join(Mode), {mode.value: mode.value for mode in Mode})

LauncherName = Literal["process", "torchrun", "kubernetes"]  # where training runs
OBSERVED_KEYS = (
    *("loss", "loss_pred", "loss_own", "loss_pg", "loss_div", "loss_prune"),
    *("kl", "grad_norm", "weight_entropy", "val_mae_scaled", "val_prior_mae_scaled"),
    *("error_correlation", "gain_over_best", "effective_agents"),
)
"""Keys of a round record that an asset observation holds, so that the UI plots them."""


class Workspace(dg.ConfigurableResource[Deployment]):
    """The deployment in the mode of a run; assets receive the plain :class:`Deployment`."""

    mode: ModeName | None = Field(
        default=None,
        description="where data comes from; left out: as the deployment says (COMPEVO_MODE)",
    )
    settings: dg.ResourceDependency[Settings]

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Deployment]:
        """Open the deployment; the run shows that it lives, and takes back what dead ones hold."""
        with contextlib.ExitStack() as while_used:
            if context.instance is not None and context.run is not None:
                hold_run_lock(context.instance, context.run.run_id)
                while_used.enter_context(sweep_meanwhile(context.instance))
            yield Deployment(settings=self.settings, mode=Mode(self.mode) if self.mode else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLauncher:
    """Trains in a process on this machine."""

    processes: int = 0  # above 0, torchrun starts that many processes, which share the agents
    poll_seconds: float = POLL_SECONDS  # seconds between two looks at the rounds and at the process

    def launch(
        self, context: dg.AssetExecutionContext, jobs: Sequence[TrainJob]
    ) -> Mapping[str, Any]:
        """Run the jobs one after the other and report their rounds; stop with a cancelled run.

        Raises:
            TrainingError: a training did not end well.
        """
        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as session:
            run_training(
                jobs,
                child_environment() | dict(session.get_bootstrap_env_vars()),
                lambda record, folder: context.log_event(
                    build_observation(context, record, folder)
                ),
                processes=self.processes,
                poll_seconds=self.poll_seconds,
            )
        return read_reported_metadata(session.get_results())


class PodClient(Protocol):
    """What starts a pod: ``PipesK8sClient`` of dagster-k8s, or a fake with the same method."""

    def run(self, **arguments: Any) -> dg.PipesClientCompletedInvocation:  # noqa: ANN401 - the client's
        """Start a pod and wait for its end; arguments as of ``PipesK8sClient.run``."""


class KubernetesPipes(dg.ConfigurableResource[None]):
    """``PipesK8sClient`` of the extra ``kubernetes``, imported when a pod is started.

    Definitions load, and training in a process works, where dagster-k8s is not installed.
    """

    in_cluster: bool | None = Field(
        default=None, description="read the cluster's own configuration, where Dagster runs in it"
    )
    kubeconfig_file: str | None = Field(default=None, description="kubeconfig; null: the user's")
    kube_context: str | None = Field(default=None, description="context of the kubeconfig")

    def run(self, **arguments: Any) -> dg.PipesClientCompletedInvocation:  # noqa: ANN401 - the client's
        """Start a pod and wait for its end; arguments as of ``PipesK8sClient.run``.

        Raises:
            ConfigError: dagster-k8s is not installed.
        """
        try:
            from dagster_k8s import PipesK8sClient
        except ModuleNotFoundError as error:
            raise ConfigError(
                "launcher 'kubernetes' needs the package dagster-k8s: pip install "
                "'compevo[kubernetes]'"
            ) from error

        client = PipesK8sClient(
            load_incluster_config=self.in_cluster,
            kubeconfig_file=self.kubeconfig_file,
            kube_context=self.kube_context,
        )
        invocation: dg.PipesClientCompletedInvocation = client.run(**arguments)
        return invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesLauncher:
    """Runs trainings in one pod."""

    pod: PodSpec
    client: PodClient

    def launch(
        self, context: dg.AssetExecutionContext, jobs: Sequence[TrainJob]
    ) -> Mapping[str, Any]:
        """Start the pod and wait for it; Pipes raises where the pod fails."""
        invocation = self.client.run(
            context=context,
            namespace=self.pod.namespace,
            command=self.pod.command(write_jobs(jobs)),
            base_pod_spec=self.pod.pod_spec(),
        )
        return read_reported_metadata(invocation.get_results())


class Launchers:
    """Makes the launcher a run asks for; without a pod none of Kubernetes."""

    def __init__(self, pod: PodSpec | None = None) -> None:
        self._pod = pod

    def get(
        self, kind: LauncherName, processes: int | None, pod_client: PodClient
    ) -> ProcessLauncher | KubernetesLauncher:
        """Return the launcher of a kind."""
        if kind == "process":
            return ProcessLauncher()
        if kind == "torchrun":
            return ProcessLauncher(processes=processes or 1)

        if self._pod is None:
            raise ConfigError(
                "launcher 'kubernetes' needs a pod: set COMPEVO_POD to the TOML file of a PodSpec "
                "(deploy/kubernetes/training-pod.toml is one)"
            )
        # The GPUs of the pod, not this argument, say how many processes it starts.
        return KubernetesLauncher(pod=self._pod, client=pod_client)


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


def read_reported_metadata(results: Sequence[object]) -> Mapping[str, Any]:
    """Return the metadata of the materialization that a process reported."""
    for result in results:
        # Checks that a process might report are results, too, and carry no metadata.
        if isinstance(result, dg.MaterializeResult):
            return dict(result.metadata or {})
    return {}
