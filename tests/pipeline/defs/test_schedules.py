"""What starts refreshes: each for the right day on the market's clock, and once it can succeed."""

import shutil
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import polars as pl
import pytest

from compevo_core.forecast.issued import FACTS_FILE, find_issued
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.defs.asset_keys import OPERATIONAL, target_days
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import FrameStore
from tests.support import operational
from tests.support import population as small
from tests.support.deployment import deploy
from tests.support.live import SetClock
from tests.support.window_samples import HALF_HOUR

MINUTES_45 = timedelta(minutes=45)
DAY = date(2026, 2, 23)
ISSUED = operational.issue_time(DAY)


@pytest.fixture(scope="module")
def repository(defs):
    return defs.get_repository_def()


def tick(repository, name, at):
    with dg.DagsterInstance.local_temp() as instance:
        (request,) = evaluate(instance, repository, name, at).run_requests
    return request


def evaluate(instance, repository, name, at):
    schedule = repository.get_schedule_def(name)
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=at, repository_def=repository
    ) as context:
        return schedule.evaluate_tick(context)


@pytest.mark.parametrize(
    ("name", "at", "day", "known_to"),
    [
        # 19:00 in Brisbane is 9:00 UTC of the same day, half past midnight 14:30 of the day before.
        ("refresh_evening", datetime(2026, 3, 30, 9, 0, tzinfo=UTC), "2026-03-31", "issue-time"),
        ("refresh_midnight", datetime(2026, 3, 30, 14, 30, tzinfo=UTC), "2026-03-31", "midnight"),
    ],
)
def test_a_day_is_forecast_at_the_issue_time_and_again_after_midnight(
    repository, name, at, day, known_to
):
    request = tick(repository, name, at)
    assert request.partition_key == day and request.run_key.startswith(f"{name}-{day}-")
    assert request.run_config == {"ops": {"forecast__next_day": {"config": {"known_to": known_to}}}}
    made = request.asset_selection
    assert made is None or dg.AssetKey(["forecast", "next_day"]) in made


def test_an_earlier_tick_of_the_evening_only_reads_the_publishers(repository):
    request = tick(repository, "refresh_evening", datetime(2026, 3, 30, 7, 45, tzinfo=UTC))
    read = {key.path[0] for key in request.asset_selection}
    assert request.partition_key == "2026-03-31" and request.run_config == {}
    assert read == {"series", "windows", "news"}


class Evening:
    """A deployment an hour after AEMO's issue time, whose ledger a test touches."""

    def __init__(self, home, instance):
        layout = Layout(root=home / "sample")
        operational.store_until(layout, ISSUED)
        shutil.rmtree(layout.tables)
        NewsStore(layout.news_database).upsert_articles(small.news_pool().articles)
        self.clock = SetClock(ISSUED + timedelta(hours=1))
        self.deployment = deploy(home, clock=self.clock)
        self.layout = self.deployment.layout
        self.ledger = Ledger(self.layout.ledger)
        self.repository = self.deployment.defs.get_repository_def()
        self._instance, self._cursor = instance, None

    def store_published(self, steps):
        """Stores the steps of the publisher's forecast that are the first after its issue."""
        _, published = operational.make_frames()
        known = published.filter(pl.col("start_utc") < ISSUED + steps * HALF_HOUR)
        FrameStore(self.layout.tables).write(OPERATIONAL, FrameKind.PUBLISHED, known)
        self.fetch(f"{steps}.zip")

    def fetch(self, name):
        self.ledger.record_fetched("aemo", name, url="u", sha256="0", now=self.clock())

    def look(self):
        sensor = self.repository.get_sensor_def("forecast_evening")
        with dg.build_sensor_context(
            instance=self._instance, cursor=self._cursor, repository_def=self.repository
        ) as context:
            found = sensor.evaluate_tick(context)
        self._cursor = found.cursor
        return found


def test_the_forecast_of_tomorrow_follows_the_one_that_it_corrects(tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        evening = Evening(tmp_path, instance)
        assert "nothing can be known" in evening.look().skip_message
        evening.store_published(steps=20)
        assert "no published forecast of the whole day for NSW1" in evening.look().skip_message
        assert "nothing was fetched" in evening.look().skip_message

        evening.store_published(steps=80)
        (request,) = evening.look().run_requests
        assert request.partition_key == f"{DAY}" and request.run_key.startswith(
            f"forecast_evening-{DAY}-"
        )
        made = {key.to_user_string() for key in request.asset_selection}
        assert made == {"forecast/next_day", "forecast/scored", "report/site", "report/cleaned"}
        assert request.run_config["ops"]["forecast__next_day"]["config"] == {
            "known_to": "issue-time"
        }

        evening.fetch("another.zip")
        instance.create_run_for_job(
            evening.repository.get_job("refresh"), tags={"dagster/partition": f"{DAY}"}
        )
        assert "under way" in evening.look().skip_message
        # Before the publisher's issue time nothing of tomorrow is known.
        evening.clock.now = ISSUED - timedelta(minutes=1)
        assert "nothing can be known" in evening.look().skip_message


@pytest.mark.parametrize(
    ("job", "day"),
    [
        # A quarter past one in Brisbane is a quarter past three of the day before in UTC, where
        # days of exchange rates begin.
        ("refresh_electricity", "2026-03-31"),
        ("refresh_exchange", "2026-03-30"),
        ("refresh_traffic", None),
    ],
)
def test_another_data_set_is_forecast_for_the_day_that_has_begun_on_its_clock(repository, job, day):
    at = datetime(2026, 3, 30, 15, 15, tzinfo=UTC)
    request = tick(repository, f"{job}_daily", at)
    assert request.partition_key == day and request.run_key.startswith(f"{job}_daily-2026-03-3")
    schedule = repository.get_schedule_def(f"{job}_daily")
    assert (schedule.job_name, schedule.cron_schedule) == (job, "15 1 * * *")
    days = repository.get_job(job).partitions_def
    assert days is None if day is None else day in days.get_partition_keys(current_time=at)


def test_a_later_tick_tries_again_unless_the_forecast_is_there_or_a_run_works_on_it(tmp_path):
    deployment = deploy(tmp_path)
    repository = deployment.defs.get_repository_def()
    first, second = (datetime(2026, 3, 30, 7 + i, 45 - 30 * i, tzinfo=UTC) for i in (0, 1))
    with dg.instance_for_test() as instance:

        def evaluate_at(at):
            return evaluate(instance, repository, "refresh_evening", at)

        (one,), (again,) = (evaluate_at(at).run_requests for at in (first, second))
        # Another key, or the daemon would take it for the run that it has started already.
        assert again.run_key != one.run_key and again.partition_key == one.partition_key

        run = instance.create_run_for_job(
            repository.get_job("refresh"), tags={"dagster/partition": "2026-03-31"}
        )
        assert "under way" in evaluate_at(second).skip_message
        assert evaluate_at(second + timedelta(days=1)).run_requests
        instance.report_run_failed(run)
        assert evaluate_at(second).run_requests

        origin = datetime(2026, 3, 30, 14, tzinfo=UTC)
        folder = find_issued(deployment.layout.issued(OPERATIONAL), origin, first - MINUTES_45)
        folder.mkdir(parents=True)
        (folder / FACTS_FILE).write_text("{}")
        assert "has been issued" in evaluate_at(second).skip_message
        # The first tick brings new values and scores all the same.
        assert evaluate_at(first).run_requests


def test_a_run_that_makes_another_forecast_or_none_keeps_no_tick_from_it(repository, tmp_path):
    # It waits in the queue, or a publisher is slow.
    first = datetime(2026, 3, 30, 7, 45, tzinfo=UTC)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        def evaluate_later(minutes, name="refresh_evening"):
            return evaluate(instance, repository, name, first + timedelta(minutes=minutes))

        read = frozenset(evaluate_later(0).run_requests[0].asset_selection)
        instance.create_run_for_job(
            repository.get_job("refresh").get_subset(asset_selection=read),
            asset_selection=read,
            tags={"dagster/partition": "2026-03-31"},
        )
        assert "under way" in evaluate_later(30).skip_message
        (request,) = evaluate_later(75).run_requests
        assert request.asset_selection is None

        # At two in the morning the evening's run of the same day is not what is wanted.
        tags = {"dagster/partition": "2026-03-31"}
        evening, job = request.run_config, repository.get_job("refresh")
        instance.create_run_for_job(job, run_config=evening, tags=tags)
        assert "under way" in evaluate_later(75).skip_message
        (request,) = evaluate_later(8 * 60 + 15, "refresh_midnight").run_requests
        instance.create_run_for_job(job, run_config=request.run_config, tags=tags)
        assert "under way" in evaluate_later(8 * 60 + 15, "refresh_midnight").skip_message


def test_tomorrow_is_a_partition_and_the_day_after_is_not():
    now = datetime(2026, 3, 30, 7, 45, tzinfo=UTC)
    keys = target_days.get_partition_keys(current_time=now)
    assert (keys[0], keys[-1]) == ("2026-02-19", "2026-03-31")
