"""Schedules: the daily refresh, and the forecast of the next day, issued twice.

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
# clock; half an hour later it is out.
REFRESH_CRON = "30 17 * * *"
# After the refresh, and once more when the day before is over.
ISSUE_CRON = "45 17 * * *"
MIDNIGHT_CRON = "30 0 * * *"


def build_schedules(jobs: Sequence[Any]) -> list[dg.ScheduleDefinition]:
    """Return all schedules, switched off until somebody turns them on in the UI."""
    by_name = {job.name: job for job in jobs}

    refresh = dg.ScheduleDefinition(
        name="daily_refresh",
        job=by_name["refresh"],
        cron_schedule=REFRESH_CRON,
        execution_timezone=NEM_ZONE,
        description=(
            "Sources, news, windows, the 2026 inference and the report, after AEMO's day-ahead "
            "forecast."
        ),
    )
    next_day = by_name["next_day"]
    return [
        refresh,
        build_issue_schedule(next_day, "issue_tomorrow", ISSUE_CRON, KnownTo.ISSUE_TIME, days=1),
        build_issue_schedule(next_day, "issue_today", MIDNIGHT_CRON, KnownTo.MIDNIGHT, days=0),
    ]


def build_issue_schedule(
    job: Any,  # noqa: ANN401 - Dagster's unresolved job has no public type
    name: str,
    cron: str,
    known_to: KnownTo,
    *,
    days: int,
) -> dg.ScheduleDefinition:
    """Return a schedule that issues the forecast of the day so many days after its tick.

    Args:
        job: forecasts the day of its partition.
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
            f"The forecast of {'tomorrow' if days else 'today'} as known to the "
            f"{known_to.replace('-', ' ')}."
        ),
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        on_market_clock = context.scheduled_execution_time.astimezone(ZoneInfo(NEM_ZONE))
        day = (on_market_clock + timedelta(days=days)).date().isoformat()
        ops = {"forecast__next_day": {"config": {"known_to": known_to.name}}}
        return dg.RunRequest(run_key=f"{name}-{day}", partition_key=day, run_config={"ops": ops})

    return _schedule
