"""Dagster resources: the deployment in the mode of a run, and the launchers; a code location.

What belongs here: what code locations have in common; opening what ``settings`` names; a training
in a process, under torchrun or in a pod, with a Dagster Pipes session, by which rounds, losses and
metrics reach the event log while training runs. What does not: reading other variables of the
environment (``config.settings``), the process, the pod's manifest (``launchers.process``), which
assets, jobs, schedules and sensors there are (``compevo_pipeline.definitions``,
``compevo_pipeline.paper.definitions``). The mode is run configuration of the ``workspace``
resource, so that one choice holds for a whole run.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field

from compevo_core.errors import ConfigError
from compevo_core.training.round_record import REWRITING_KEYS, RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.settings import Settings, child_environment
from compevo_pipeline.defs.dead_runs import hold_run_lock, sweep_meanwhile
from compevo_pipeline.defs.definition import DAILY_REFRESH
from compevo_pipeline.defs.loggers import progress_logger
from compevo_pipeline.defs.metadata import sketch_validation
from compevo_pipeline.launchers.process import PodSpec, TrainingError, run_training, write_jobs
from compevo_pipeline.launchers.worker import TrainJob, run_jobs
from compevo_pipeline.sources.common.base import Clock, Mode, describe_data
from compevo_pipeline.work.deployment import Deployment

# Dagster offers an enumeration by its names; to a type checker they are texts.
if TYPE_CHECKING:
    ModeName = str
else:
    # Dagster shows the name of the type if a value does not fit it.
    ModeName = StrEnum(" | ".join(Mode), {mode.value: mode.value for mode in Mode})

LauncherName = Literal["process", "inline", "torchrun", "kubernetes"]  # where training runs
_LOSSES = ("loss", "loss_pred", "loss_own", "loss_pg", "loss_div", "loss_prune")
_ERRORS = ("val_mae_scaled", "val_prior_mae_scaled")
_OF_AGENTS = ("error_correlation", "gain_over_best", "effective_agents")
_OF_STEP = (*_LOSSES, "kl", "grad_norm")  # 0 in a round without a gradient step
OBSERVED_KEYS = (*_OF_STEP, "weight_entropy", *_ERRORS, *_OF_AGENTS)
"""Keys of a round record that an asset observation holds, so that the UI plots them."""


class Workspace(dg.ConfigurableResource[Deployment]):
    """The deployment in the mode of a run; assets receive the plain :class:`Deployment`."""

    mode: ModeName | None = Field(
        default=None,
        description="where data comes from; left out: as the deployment says (COMPEVO_MODE)",
    )
    settings: dg.ResourceDependency[Settings]
    clock: dg.ResourceDependency[Clock]

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Deployment]:
        """Open the deployment; the run shows that it lives, and frees what dead ones hold."""
        with contextlib.ExitStack() as while_used:
            if context.instance is not None and context.run is not None:
                hold_run_lock(context.instance, context.run.run_id)
                while_used.enter_context(sweep_meanwhile(context.instance))
            mode = Mode(self.mode) if self.mode else None
            yield Deployment(settings=self.settings, mode=mode, clock=self.clock)


@dataclass(frozen=True, slots=True)
class Launchers:
    """Trains as a launch asks: in a process here, the step's own, several, or a pod."""

    pod: PodSpec | None = None  # None: no pod can be asked for

    def launch(
        self,
        context: dg.AssetExecutionContext,
        jobs: Sequence[TrainJob],
        kind: LauncherName = "process",
        processes: int | None = None,
    ) -> Mapping[str, Any]:
        """Run the jobs one after the other; return the metadata that their process reported.

        Rounds become observations of the asset: during training on this machine, or at the end of a
        pod. A run that is cancelled stops its process. ConfigError if no pod is described, or
        dagster-k8s is not installed; TrainingError, or Pipes' error, if a training failed.
        """
        if kind == "kubernetes":
            if self.pod is None:
                raise ConfigError(
                    "launcher 'kubernetes' needs a pod: set COMPEVO_POD to the TOML file of a "
                    "PodSpec (deploy/kubernetes/training-pod.toml is one)"
                )
            try:
                from dagster_k8s import PipesK8sClient
            except ModuleNotFoundError as error:
                raise ConfigError(
                    "launcher 'kubernetes' needs the package dagster-k8s: pip install "
                    "'compevo[kubernetes]'"
                ) from error

            # The GPUs of the pod, not the launch, say how many processes it starts.
            invocation = PipesK8sClient().run(
                context=context,
                namespace=self.pod.namespace,
                command=self.pod.command(write_jobs(jobs)),
                base_pod_spec=self.pod.pod_spec(),
            )
            _report_rounds(context, invocation.get_custom_messages())
            return invocation.get_materialize_result().metadata or {}

        if kind == "inline":
            write_jobs(jobs)

            def report(job: TrainJob, record: RoundRecord) -> None:
                _report_rounds(context, [(job.out, record.to_json_line())])

            return run_jobs(jobs, context.log, report)

        reported, failure = 0, None

        def report_new() -> None:
            nonlocal reported
            messages = session.get_custom_messages()
            _report_rounds(context, messages[reported:])
            reported = len(messages)

        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as session:
            environment = child_environment() | dict(session.get_bootstrap_env_vars())
            count = (processes or 1) if kind == "torchrun" else 0
            try:
                run_training(jobs, environment, report_new, processes=count)
            except TrainingError as error:
                failure = error

        # The last rounds have arrived when the session has ended.
        report_new()
        if failure is not None:
            raise failure
        finished = dg.PipesClientCompletedInvocation(session)
        return finished.get_materialize_result().metadata or {}


def _report_rounds(context: dg.AssetExecutionContext, messages: Sequence[Any]) -> None:
    """Log the rounds that a training process reported: run folder and record."""
    for folder, line in messages:
        record = RoundRecord.from_json_line(line)
        context.log_event(build_observation(context, record, RunFolder(folder)))


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
        # A zero of a round that sampled no logic, or took no step of the gradient, would pull the
        # plot down as if it were measured.
        is_measured = record.evolved or key not in REWRITING_KEYS
        is_measured &= record.grad_norm > 0 or key not in _OF_STEP
        if value is not None and is_measured:
            metadata[key] = float(value)
    if record.val_mae_scaled is not None:
        metadata["validation_mae_by_round"] = sketch_validation(folder.read_rounds())
    for agent, reward in enumerate(record.rewards):
        metadata[f"reward_agent_{agent:02d}"] = reward

    return dg.AssetObservation(asset_key=context.asset_key, metadata=metadata)


def build_location(
    deployment: Deployment,
    launchers: Launchers | None,
    *,
    assets: Sequence[dg.AssetsDefinition],
    resources: Mapping[str, Any] | None = None,
    **definitions: Any,  # noqa: ANN401 - of dg.Definitions
) -> dg.Definitions:
    """Return the definitions of a code location.

    ``resources`` are those that the other location lacks.
    """
    settings, declared = deployment.settings, deployment.registry.declared
    pod = PodSpec.read(settings.pod) if settings.pod else None

    def fit_to_deployment(spec: dg.AssetSpec) -> dg.AssetSpec:
        # Graph and catalog show kind and description, and synthetic data must not pass for real.
        mode, dataset = settings.mode, spec.tags.get("dataset", "")
        is_own = dataset in declared and declared[dataset].declaration is not None
        # Files of a sample, an archive or a user do not change daily: a policy would always warn.
        # A forecast from a file with a deadline is still due by it.
        is_due = mode is Mode.LIVE and not (is_own and spec.freshness_policy == DAILY_REFRESH)
        return spec.replace_attributes(
            description=f"{describe_data(mode, dataset)} {spec.description}",
            kinds={*spec.kinds, mode.value},
            freshness_policy=spec.freshness_policy if is_due else None,
        )

    return dg.Definitions(
        assets=dg.map_asset_specs(fit_to_deployment, assets),
        metadata={"mode": describe_data(settings.mode).strip("[]")},
        # A process for each step would import everything again: seconds of processor each.
        executor=dg.in_process_executor,
        loggers={"console": dg.colored_console_logger, "progress": progress_logger},
        resources={
            "workspace": Workspace(
                settings=settings, mode=settings.mode.value, clock=deployment.clock
            ),
            "launchers": launchers or Launchers(pod),
            **(resources or {}),
        },
        **definitions,
    )
