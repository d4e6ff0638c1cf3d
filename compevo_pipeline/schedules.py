"""Schedules: one, the daily refresh.

What belongs here: when jobs start by themselves. What does not: what they run (``jobs``).
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

# AEMO issues its day-ahead forecast at 17:00 NEM time, which is UTC+10 all year like Brisbane's
# clock; half an hour later it is out.
REFRESH_CRON = "30 17 * * *"
NEM_ZONE = "Australia/Brisbane"


def build_schedules(jobs: Sequence[Any]) -> list[dg.ScheduleDefinition]:
    """Return all schedules, switched off until somebody turns them on in the UI."""
    refresh = next(job for job in jobs if job.name == "refresh")

    return [
        dg.ScheduleDefinition(
            name="daily_refresh",
            job=refresh,
            cron_schedule=REFRESH_CRON,
            execution_timezone=NEM_ZONE,
            description=(
                "Sources, news, windows, the 2026 inference and the report, after AEMO's day-ahead "
                "forecast."
            ),
        )
    ]
