"""Schedules: the refresh in the evening and after midnight, each with the forecast of a day.

What belongs here: when jobs start by themselves, and for which day. What does not: what they run
(``jobs``).
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from compevo_pipeline.next_day_inputs import KnownTo
from compevo_pipeline.partitions import NEM_ZONE

# AEMO issues its day-ahead forecast at 17:00 NEM time, which is UTC+10 all year like Brisbane's
# clock; three quarters of an hour later it is out.
EVENING_CRON = "45 17 * * *"
# Once more when the day before is over.
MIDNIGHT_CRON = "30 0 * * *"


def build_schedules(jobs: Sequence[Any]) -> list[dg.ScheduleDefinition]:
    """Return all schedules, switched off until somebody turns them on in the UI."""
    refresh = next(job for job in jobs if job.name == "refresh")
    return [
        build_refresh_schedule(
            refresh, "refresh_evening", EVENING_CRON, KnownTo.ISSUE_TIME, days=1
        ),
        build_refresh_schedule(
            refresh, "refresh_midnight", MIDNIGHT_CRON, KnownTo.MIDNIGHT, days=0
        ),
    ]


def build_refresh_schedule(
    job: Any,  # noqa: ANN401 - Dagster's unresolved job has no public type
    name: str,
    cron: str,
    known_to: KnownTo,
    *,
    days: int,
) -> dg.ScheduleDefinition:
    """Return a schedule that refreshes, and forecasts the day so many days after its tick.

    Args:
        job: refreshes everything, and forecasts the day of its partition.
        name: of the schedule.
        cron: when it ticks, on the market's clock.
        known_to: what the forecast may know.
        days: 0 is the day of the tick, 1 the one after it.
    """

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=cron,
        execution_timezone=NEM_ZONE,
        description=(
            f"Sources, the forecast of {'tomorrow' if days else 'today'} as known to the "
            f"{known_to.replace('-', ' ')}, scores of the days before it, the report."
        ),
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        on_market_clock = context.scheduled_execution_time.astimezone(ZoneInfo(NEM_ZONE))
        day = (on_market_clock + timedelta(days=days)).date().isoformat()
        ops = {"forecast__next_day": {"config": {"known_to": known_to.value}}}
        return dg.RunRequest(run_key=f"{name}-{day}", partition_key=day, run_config={"ops": ops})

    return _schedule
