"""Schedules: off until somebody turns them on, and each for the right day on the market's clock."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from compevo_pipeline.partitions import OPERATIONAL, target_days
from tests.support.deployment import deploy


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> dg.RepositoryDefinition:
    return deploy(tmp_path_factory.mktemp("home")).defs.get_repository_def()


def tick(repository: dg.RepositoryDefinition, name: str, at: datetime) -> dg.RunRequest:
    schedule = repository.get_schedule_def(name)
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_schedule_context(
            instance=instance, scheduled_execution_time=at, repository_def=repository
        ) as context,
    ):
        (request,) = schedule.evaluate_tick(context).run_requests
    return request


def test_every_schedule_is_off_and_runs_on_the_markets_clock(repository):
    schedules = {schedule.name: schedule for schedule in repository.schedule_defs}
    assert set(schedules) == {"refresh_evening", "refresh_midnight", "coverage_hourly"}
    for schedule in schedules.values():
        assert schedule.execution_timezone == "Australia/Brisbane"
        assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


@pytest.mark.parametrize(
    ("name", "at", "day", "known_to"),
    [
        # 17:45 in Brisbane is 7:45 UTC of the same day, half past midnight 14:30 of the day before.
        ("refresh_evening", datetime(2026, 3, 30, 7, 45, tzinfo=UTC), "2026-03-31", "issue-time"),
        ("refresh_midnight", datetime(2026, 3, 30, 14, 30, tzinfo=UTC), "2026-03-31", "midnight"),
    ],
)
def test_a_day_is_forecast_at_the_issue_time_and_again_after_midnight(
    repository, name, at, day, known_to
):
    request = tick(repository, name, at)
    assert (request.partition_key, request.run_key) == (day, f"{name}-{day}")
    assert request.run_config == {"ops": {"forecast__next_day": {"config": {"known_to": known_to}}}}


def test_tomorrow_is_a_partition_and_the_day_after_is_not():
    now = datetime(2026, 3, 30, 7, 45, tzinfo=UTC)
    keys = target_days.get_partition_keys(current_time=now)
    assert (keys[0], keys[-1]) == ("2026-02-19", "2026-03-31")


def test_both_schedules_start_the_refresh_of_sources_forecast_scores_and_report(repository):
    for name in ("refresh_evening", "refresh_midnight"):
        assert repository.get_schedule_def(name).job_name == "refresh"
    keys = repository.get_job("refresh").asset_layer.executable_asset_keys
    assert {
        f"series/{OPERATIONAL}",
        f"windows/{OPERATIONAL}",
        "news/embeddings",
        "forecast/next_day",
        "forecast/scored",
        "leakage/inference_2026",
        "report/site",
    } < {key.to_user_string() for key in keys}
