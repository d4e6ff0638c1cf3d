"""Schedules: the refresh in the evening and after midnight, and that of each other data set.

What belongs here: when jobs start by themselves, and for which day. What does not: what they run
(``defs.jobs``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from compevo_core.data.datasets import DatasetSpec
from compevo_core.forecast.issued import find_issued, is_issued
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.defs.asset_keys import NEM_ZONE, OPERATIONAL
from compevo_pipeline.defs.jobs import job_name
from compevo_pipeline.sources.registry import Registry
from compevo_pipeline.work.next_day import KnownTo, Origin

# AEMO issues its day-ahead forecast at 17:00 NEM time, which is UTC+10 all year like Brisbane's
# clock; three quarters of an hour later it is out, or else a little later.
EVENING_TICKS = (time(17, 45), time(18, 15), time(19, 0))
# Once more when the day before is over.
MIDNIGHT_TICKS = (time(0, 30), time(2, 0))
# After the refresh of midnight, so that they do not ask for the same news at once.
OTHERS_CRON = "15 1 * * *"

_UNDER_WAY = [
    *(dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED),
    *(dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED),
]


def build_schedules(
    jobs: Sequence[Any], registry: Registry, layout: Layout
) -> list[dg.ScheduleDefinition]:
    """Return all schedules, switched off until somebody turns them on in the UI.

    Args:
        jobs: all jobs.
        registry: the data sets of the deployment.
        layout: where its forecasts are issued.
    """
    by_name = {job.name: job for job in jobs}
    refresh = by_name["refresh"]
    others = [registry[name].spec for name in registry if name != OPERATIONAL]
    spec, issued = registry[OPERATIONAL].spec, layout.issued(OPERATIONAL)
    evening = DayTicks(times=EVENING_TICKS, known_to=KnownTo.ISSUE_TIME, days=1)
    midnight = DayTicks(times=MIDNIGHT_TICKS, known_to=KnownTo.MIDNIGHT, days=0)
    return [
        build_refresh_schedule(refresh, "refresh_evening", evening, spec, issued),
        build_refresh_schedule(refresh, "refresh_midnight", midnight, spec, issued),
        *(build_daily_schedule(by_name[job_name("refresh", spec.name)], spec) for spec in others),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTicks:
    """When a day is forecast, and from what.

    Attributes:
        times: of the ticks, on the market's clock. The first one refreshes; the later ones are
            further tries where the forecast has not been issued by then.
        known_to: what the forecast may know.
        days: 0 forecasts the day of the tick, 1 the one after it.
    """

    times: tuple[time, ...]
    known_to: KnownTo
    days: int

    @property
    def crons(self) -> list[str]:
        """The ticks as cron expressions."""
        return [f"{tick.minute} {tick.hour} * * *" for tick in self.times]


def build_refresh_schedule(
    job: Any,  # noqa: ANN401 - Dagster's unresolved job has no public type
    name: str,
    ticks: DayTicks,
    spec: DatasetSpec,
    issued: Path,
) -> dg.ScheduleDefinition:
    """Return a schedule that refreshes and forecasts a day, and tries again where that failed.

    Dagster retries a step, and the step that would have to read the publisher again has ended well
    by then: a forecast that is late needs another run.

    Args:
        job: refreshes, and forecasts the day of its partition.
        name: of the schedule.
        ticks: when, and for which day.
        spec: of the data set that is forecast.
        issued: folder of its issued forecasts.
    """

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=ticks.crons,
        execution_timezone=NEM_ZONE,
        description=(
            f"Sources, the forecast of {'tomorrow' if ticks.days else 'today'} as known to the "
            f"{ticks.known_to.replace('-', ' ')}, scores of the days before it, the report. "
            "The later ticks try again where no forecast has been issued."
        ),
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        at = context.scheduled_execution_time.astimezone(ZoneInfo(NEM_ZONE))
        day = at.date() + timedelta(days=ticks.days)
        tick = at.time().replace(second=0, microsecond=0)
        if tick != ticks.times[0]:
            origin = Origin.of(spec, day, ticks.known_to)
            if is_issued(find_issued(issued, origin.origin_utc, origin.until)):
                return dg.SkipReason(f"the forecast of {day} has been issued")
            if _is_under_way(context.instance, job.name, day.isoformat()):
                return dg.SkipReason(f"a run for {day} is under way")

        ops = {"forecast__next_day": {"config": {"known_to": ticks.known_to.value}}}
        return dg.RunRequest(
            run_key=f"{name}-{day}-{tick:%H%M}",
            partition_key=day.isoformat(),
            run_config={"ops": ops},
        )

    return _schedule


def _is_under_way(instance: dg.DagsterInstance, job_name: str, partition: str) -> bool:
    runs = instance.get_runs(
        dg.RunsFilter(
            job_name=job_name, statuses=_UNDER_WAY, tags={"dagster/partition": partition}
        ),
        limit=1,
    )
    return bool(runs)


def build_daily_schedule(
    job: Any,  # noqa: ANN401 - Dagster's unresolved job has no public type
    spec: DatasetSpec,
) -> dg.ScheduleDefinition:
    """Return a schedule that refreshes one data set, and forecasts the day of its tick.

    Args:
        job: refreshes the data set.
        spec: how its windows are cut; it says on which clock its days begin.
    """
    name = f"{job.name}_daily"
    forecast = " the forecast of the day that has begun, scores," if spec.starts_with_days else ""

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=OTHERS_CRON,
        execution_timezone=NEM_ZONE,
        description=f"Sources of {spec.name},{forecast} the report.",
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        # Its partitions are days on its own clock: what is known to this one's midnight is over.
        on_its_clock = context.scheduled_execution_time.astimezone(UTC) + spec.market_offset
        day = on_its_clock.date().isoformat()
        partition = day if spec.starts_with_days else None
        return dg.RunRequest(run_key=f"{name}-{day}", partition_key=partition)

    return _schedule
