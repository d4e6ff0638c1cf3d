"""Sensors: what Dagster's daemon looks at, whether a run starts or not.

What belongs here: when it looks. What does not: what it then does (``launchers.dead_runs``).
"""

import dagster as dg

from compevo_pipeline.launchers.dead_runs import sweep_dead_runs

_INTERVAL_SECONDS = 60


@dg.sensor(
    name="dead_runs",
    minimum_interval_seconds=_INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Ends runs whose process is gone, and gives back what they claimed. Runs do so themselves "
        "where they start; this is for those that wait in the queue behind dead ones."
    ),
)
def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """End dead runs; request none."""
    found = sweep_dead_runs(context.instance)
    return dg.SkipReason(f"ended: {', '.join(found)}" if found else "no run is dead")
