"""Schedules: one, the daily refresh.

What belongs here: when jobs start by themselves. AEMO issues its day-ahead forecast at 17:00 NEM time (UTC+10 all year,
which is Brisbane's clock), so the refresh starts half an hour later and meets it.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

REFRESH_CRON = "30 17 * * *"
NEM_ZONE = "Australia/Brisbane"


def schedules(jobs: Sequence[Any]) -> list[dg.ScheduleDefinition]:
    """All schedules, switched off until somebody turns them on in the UI."""
    refresh = next(job for job in jobs if job.name == "refresh")
    return [
        dg.ScheduleDefinition(
            name="daily_refresh",
            job=refresh,
            cron_schedule=REFRESH_CRON,
            execution_timezone=NEM_ZONE,
            description="Sources, news, windows, the 2026 inference and the report, after AEMO's day-ahead forecast.",
        )
    ]
