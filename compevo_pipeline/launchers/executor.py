"""Dagster's executors, with an eye on runs that died.

What belongs here: what a run does before its first step and while it works, in whatever way it was
started (daemon, UI, shell). What does not: how a dead run is known (``launchers.dead_runs``), how
steps are run (Dagster's own executors).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

from compevo_pipeline.launchers.dead_runs import hold_run_lock, sweep_meanwhile

if TYPE_CHECKING:
    from dagster._core.execution.context.system import PlanOrchestrationContext
    from dagster._core.execution.plan.plan import ExecutionPlan
    from dagster._core.execution.retries import RetryMode
    from dagster._core.execution.step_dependency_config import StepDependencyConfig


class WatchfulExecutor(dg.Executor):
    """Another executor, whose run shows that it lives and takes back what dead runs claimed."""

    def __init__(self, inner: dg.Executor) -> None:
        self._inner = inner

    @property
    def retries(self) -> "RetryMode":
        """Whether steps may be retried."""
        return self._inner.retries

    @property
    def step_dependency_config(self) -> "StepDependencyConfig":
        """What a step waits for."""
        return self._inner.step_dependency_config

    def execute(
        self, plan_context: "PlanOrchestrationContext", execution_plan: "ExecutionPlan"
    ) -> Iterator[dg.DagsterEvent]:
        """Run the steps; yield their events."""
        instance = plan_context.instance
        hold_run_lock(instance, plan_context.run_id)
        with sweep_meanwhile(instance):
            yield from self._inner.execute(plan_context, execution_plan)


def watch_dead_runs(inner: dg.ExecutorDefinition) -> dg.ExecutorDefinition:
    """Return an executor that does as ``inner`` does, and watches for dead runs."""

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        # Dagster types it as optional; its own executors all have one.
        assert inner.executor_creation_fn is not None  # noqa: S101 - by construction
        return WatchfulExecutor(inner.executor_creation_fn(context))

    return dg.ExecutorDefinition(
        name=inner.name,
        config_schema=inner.config_schema.as_field(),
        requirements=inner.get_requirements,
        executor_creation_fn=create,
        description=inner.description,
    )
