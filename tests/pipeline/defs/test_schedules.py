"""What starts refreshes, each for the right day, and what tells of those that failed."""

import errno
import json
import logging
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
import responses
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._utils.schedules import schedule_execution_time_iterator

from compevo_core.errors import SourceTransient
from compevo_core.forecast.issued import FACTS_FILE, find_issued
from compevo_core.runtime.files import write_json
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs.alerts import build_alert_sensors
from compevo_pipeline.defs.asset_keys import OPERATIONAL, target_days
from compevo_pipeline.defs.assets import forecast
from compevo_pipeline.defs.schedules import build_refresh_schedule
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.sources.registry import make_dataset
from compevo_pipeline.work import alerts
from compevo_pipeline.work.alerts import NIGHTS, Alert, find_answering, find_failing, tell
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import MissingInputError
from tests.pipeline.sources.test_registry import SOUND
from tests.pipeline.sources.test_registry import declare as declare_file
from tests.support.deployment import SetClock, deploy
from tests.support.own_tables import declare


@pytest.fixture(scope="module")
def repository(defs):
    return defs.get_repository_def()


@pytest.fixture(scope="module")
def idle():
    """An instance without a run, made once, for tests that start none."""
    with dg.DagsterInstance.local_temp() as instance:
        yield instance


def mark_issued(layout, origin, until):
    folder = find_issued(layout.issued(OPERATIONAL), origin, until)
    folder.mkdir(parents=True)
    (folder / FACTS_FILE).write_text("{}")


def evaluate(instance, repository, name, at):
    given = {"scheduled_execution_time": at, "repository_def": repository}
    with dg.build_schedule_context(instance, **given) as context:
        return repository.get_schedule_def(name).evaluate_tick(context)


@pytest.mark.parametrize(
    ("name", "at", "known_to", "waits"),
    [
        # 19:00 in Brisbane is 9:00 UTC of the same day, half past midnight 14:30 of the day before.
        ("refresh_evening", datetime(2026, 3, 30, 7, 45, tzinfo=UTC), "issue-time", True),
        ("refresh_evening", datetime(2026, 3, 30, 9, 0, tzinfo=UTC), "issue-time", False),
        ("refresh_midnight", datetime(2026, 3, 30, 14, 30, tzinfo=UTC), "midnight", True),
    ],
)
def test_a_day_is_forecast_twice(idle, repository, name, at, known_to, waits):
    day = "2026-03-31"
    (request,) = evaluate(idle, repository, name, at).run_requests
    assert request.partition_key == day and request.run_key.startswith(f"{name}-{day}-")
    config = {"waits": waits, "known_to": known_to}
    assert request.run_config == {"ops": {"forecast__next_day": {"config": config}}}


@pytest.mark.parametrize("waits", [True, False])
def test_a_waiting_forecast_fails_at_last(tmp_path, monkeypatch, waits):
    def refuse(*_, **__):
        raise MissingInputError("no published forecast of the whole day for NSW1")

    monkeypatch.setattr(forecast, "forecast_day", refuse)
    options = {"partition": "2026-03-31", "config": {"forecast/next_day": {"waits": waits}}}
    result = deploy(tmp_path).materialize("forecast/next_day", **options, raise_on_error=False)
    assert result.success is waits and not result.get_asset_materialization_events()


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
def test_other_data_are_forecast_by_their_clock(idle, repository, job, day):
    at = datetime(2026, 3, 30, 15, 15, tzinfo=UTC)
    (request,) = evaluate(idle, repository, f"{job}_daily", at).run_requests
    assert request.partition_key == day and request.run_key.startswith(f"{job}_daily-2026-03-3")
    days = repository.get_job(job).partitions_def
    assert days is None if day is None else day in days.get_partition_keys(current_time=at)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Asia/Kolkata", "2026-01-15", 24),
        ("Europe/Paris", "2026-01-15", 24),
        ("Europe/Paris", "2026-07-15", 24),
        ("Europe/Paris", "2026-03-29", 23),
        ("Europe/Paris", "2026-10-25", 25),
        ("America/Los_Angeles", "2026-07-15", 24),
        ("Australia/Sydney", "2026-01-15", 24),
        ("Australia/Sydney", "2026-07-15", 24),
        ("Australia/Sydney", "2026-04-05", 25),
        # Clocks skip midnight, or show it twice.
        ("America/Santiago", "2026-09-06", 23),
        ("America/Havana", "2026-11-01", 25),
    ],
)
def test_declared_data_are_forecast_after_their_midnight(idle, tmp_path, zone, day, hours):
    schedule, spec = build_own_schedule(tmp_path, zone)
    clock = ZoneInfo(zone)
    days = (date.fromisoformat(day) + timedelta(days=n) for n in (0, 1))
    begin, end = (spec.from_market(midnight).astimezone(clock) for midnight in days)
    assert (begin.date().isoformat(), begin.hour) == (day, zone == "America/Santiago")
    assert (end.astimezone(UTC) - begin.astimezone(UTC)) / timedelta(hours=1) == hours

    crons = schedule.cron_schedule
    ticks = schedule_execution_time_iterator(begin.timestamp() - 1, crons, zone, ascending=True)
    first, *later = (next(ticks) for _ in crons)
    assert first.astimezone(UTC) - begin.astimezone(UTC) == timedelta(minutes=15)
    for at in (first, *later):
        with dg.build_schedule_context(idle, scheduled_execution_time=at) as context:
            (request,) = schedule(context)
            assert request.partition_key == day


def build_own_schedule(home, zone, **keys):
    declaration = declare({"place": {"time_zone": zone}, "schedule": keys}, time_zone=zone)
    declared = make_dataset(declaration, home / "mine.toml")

    @dg.job(name="refresh_own")
    def job():
        pass

    deployment = Deployment(settings=Settings(home=home))
    return build_refresh_schedule(job, "own", declared, deployment), declared.spec


@pytest.mark.parametrize("month", [1, 7])
def test_a_declared_night_forecasts_tomorrow(idle, tmp_path, month):
    night = {"at": "18:00", "days_ahead": 1}
    schedule, spec = build_own_schedule(tmp_path, "Europe/Paris", **night)

    # Half-hours: twelve begin after 18:00, and the newest is late by one.
    assert spec.unknown_steps == (0, 13)
    day = datetime(2026, month, 15, tzinfo=ZoneInfo("Europe/Paris"))
    ticks = {}
    for cron in schedule.cron_schedule:
        minute, hour = map(int, cron.split()[:2])
        at = day.replace(hour=hour, minute=minute)
        with dg.build_schedule_context(idle, scheduled_execution_time=at) as context:
            (request,) = schedule(context)
        (op,) = request.run_config["ops"].values()
        ticks[f"{at:%H:%M}"] = (request.partition_key, op["config"]["waits"])
    tomorrow = f"2026-{month:02}-16"
    waits = {"18:00": True, "18:30": True, "19:15": False}
    assert ticks == {at: (tomorrow, is_waiting) for at, is_waiting in waits.items()}


def test_a_later_tick_tries_again(tmp_path):
    deployment = deploy(tmp_path)
    repository = deployment.defs.get_repository_def()
    first, second = (datetime(2026, 3, 30, 7 + i, 45 - 30 * i, tzinfo=UTC) for i in (0, 1))
    with dg.instance_for_test() as instance:

        def evaluate_at(at):
            return evaluate(instance, repository, "refresh_evening", at)

        (one,), (again,) = (evaluate_at(at).run_requests for at in (first, second))
        # Another key, or the daemon would take it for the run that it has started already.
        assert again.run_key != one.run_key and again.partition_key == one.partition_key

        job, tags = repository.get_job("refresh"), {"dagster/partition": "2026-03-31"}
        run = instance.create_run_for_job(job, tags=tags)
        assert "under way" in evaluate_at(second).skip_message
        assert evaluate_at(second + timedelta(days=1)).run_requests
        instance.report_run_failed(run)
        assert evaluate_at(second).run_requests

        origin, until = (datetime(2026, 3, 30, hour, tzinfo=UTC) for hour in (14, 7))
        mark_issued(deployment.layout, origin, until)
        assert "has been issued" in evaluate_at(second).skip_message
        # The first tick brings new values and scores all the same.
        assert evaluate_at(first).run_requests


def test_another_run_keeps_no_tick_back(repository, tmp_path):
    # It waits in the queue, or a publisher is slow.
    first = datetime(2026, 3, 30, 7, 45, tzinfo=UTC)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        def evaluate_later(minutes, name="refresh_evening"):
            return evaluate(instance, repository, name, first + timedelta(minutes=minutes))

        def start(data):
            (request,) = data.run_requests
            tags = {"dagster/partition": "2026-03-31"}
            job = repository.get_job("refresh")
            instance.create_run_for_job(job, run_config=request.run_config, tags=tags)

        start(evaluate_later(0))
        assert "under way" in evaluate_later(30).skip_message
        # The last one waits for none that may end without a forecast.
        start(evaluate_later(75))
        assert "under way" in evaluate_later(75).skip_message
        # At a quarter to two the evening's run of the same day is not what is wanted.
        start(evaluate_later(8 * 60, "refresh_midnight"))
        assert "under way" in evaluate_later(7 * 60 + 15, "refresh_midnight").skip_message


def test_tomorrow_is_the_last_partition():
    now = datetime(2026, 3, 30, 7, 45, tzinfo=UTC)
    keys = target_days.get_partition_keys(current_time=now)
    assert (keys[0], keys[-1]) == ("2026-02-19", "2026-03-31")


LOG = logging.getLogger("compevo.tests.alerts")
TOLD_DAY = date(2026, 4, 1)
SECRET = "canary"
# A quarter to seven in the evening in Brisbane.
DEADLINE = datetime(2026, 4, 1, 8, 45, tzinfo=UTC)


class Receiver:
    url = f"json://user:{SECRET}@hook.example/hook"

    def __init__(self):
        self.messages, self.status = [], 200

    def answer(self, request):
        if self.status == 200:
            self.messages.append(json.loads(request.body)["message"])
        return self.status, {}, ""


@pytest.fixture
def receiver():
    receiver = Receiver()
    with responses.RequestsMock(assert_all_requests_are_fired=False) as hosts:
        hosts.add_callback("POST", "http://hook.example/hook", callback=receiver.answer)
        yield receiver


def make_settings(home, *destinations, **others):
    return Settings(home=home, mode=Mode.LIVE, alerts=" ".join(destinations), **others)


@pytest.fixture
def settings(tmp_path, receiver):
    return make_settings(tmp_path, receiver.url, schedules="on")


def test_a_fault_is_told_once_a_day(settings, receiver, caplog):
    caplog.set_level(logging.DEBUG)
    fault = Alert(fault="a", text="The run\nfailed.")
    assert tell(settings, [fault, fault], TOLD_DAY, LOG) == 1
    assert tell(settings, [fault], TOLD_DAY, LOG) == 0
    assert receiver.messages == ["The run failed."]

    both, next_day = [fault, Alert(fault="b", text="B")], TOLD_DAY + timedelta(days=1)
    assert tell(settings, both, next_day, LOG) == 2
    assert len(receiver.messages) == 3
    told = settings.layout(Mode.LIVE).alerts
    kept = caplog.text + "".join(path.read_text() for path in told.glob("*.json"))
    assert SECRET not in kept + repr(settings)
    tell(settings, [], TOLD_DAY + timedelta(days=alerts.KEPT_DAYS + 1), LOG)
    assert len(list(told.glob("*.json"))) == 2


def test_an_absent_destination_is_told_later(tmp_path, receiver, caplog):
    program, told = tmp_path / "program", tmp_path / "told"
    program.write_text(f"#!/bin/sh\ncat >> {told}\n")
    program.chmod(0o700)
    settings = make_settings(tmp_path, receiver.url, f"command:{program}")
    receiver.status = 500
    for count in (1, 0):  # no sensor fails by it while others take alerts
        assert tell(settings, [Alert(fault="a", text="A")], TOLD_DAY, LOG) == count

    assert caplog.text.count("destination 1 of 2") == 2
    assert SECRET not in caplog.text
    receiver.status = 200
    assert tell(settings, [], TOLD_DAY, LOG) == 0
    assert receiver.messages == ["A"] and told.read_text() == "A"


def test_a_full_disk_is_told(settings, receiver, tmp_path, monkeypatch):
    home = settings.layout(Mode.LIVE).alerts
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))

    def fill(path, value):
        if path.is_relative_to(home):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_json(path, value)

    tell(settings, [Alert(fault="a", text="A")], TOLD_DAY, LOG)
    monkeypatch.setattr(alerts.files, "write_json", fill)
    fault = Alert(fault="b", text="B")
    assert [tell(settings, [fault], TOLD_DAY, LOG) for _ in range(2)] == [2, 0]
    assert tell(settings, [], TOLD_DAY, LOG) == 0
    disk, failed = sorted(receiver.messages[1:], key=len, reverse=True)
    assert "free space" in disk and str(home) in disk and failed == "B"
    assert len(receiver.messages) == 3


def test_a_wrong_address_is_named_by_number(tmp_path, caplog):
    with pytest.raises(SourceTransient, match="1 of 1"):
        tell(make_settings(tmp_path, SECRET), [Alert(fault="a", text="A")], TOLD_DAY, LOG)
    assert SECRET not in caplog.text


def evaluate_sensor(settings, name, instance, now, cursor=None, defs=None):
    """Evaluates a sensor as the daemon does; returns what it said and its new cursor."""
    sensors = build_alert_sensors(Deployment(settings=settings, clock=SetClock(now)))
    (sensor,) = (one for one in sensors if one.name == name)
    context = dg.build_sensor_context(instance=instance, cursor=cursor, definitions=defs)
    data = sensor.evaluate_tick(context)
    return data.skip_message, data.cursor


@dg.asset
def broken():
    raise dg.Failure("no value of today; read it again")


@dg.asset
def made():
    pass


def check(name, severity=dg.AssetCheckSeverity.WARN):
    @dg.asset_check(asset=made, name=name)
    def _check():
        return dg.AssetCheckResult(passed=False, severity=severity, description=f"{name}: bad")

    return _check


CHECKS = [check("schema", dg.AssetCheckSeverity.ERROR), check("drift"), check("gaps")]


def test_a_failed_run_is_told_with_why(settings, receiver):
    (sensor, *_) = build_alert_sensors(Deployment(settings=settings, clock=SetClock(DEADLINE)))
    instance = dg.DagsterInstance.ephemeral()
    result = dg.materialize([broken], instance=instance, raise_on_error=False)

    def evaluate_with(**tags):
        run = result.dagster_run.with_tags(tags)
        (event,) = result.filter_events(lambda one: one.is_run_failure)
        context = dg.build_run_status_sensor_context(sensor.name, event, instance, run)
        sensor(context.for_run_failure())

    evaluate_with(**{"dagster/will_retry": "true"})
    assert receiver.messages == []
    evaluate_with()
    evaluate_with()
    (message,) = receiver.messages
    assert "broken" in message and "value of today" in message


def test_a_long_alert_keeps_its_end(settings, receiver):
    text = f"The run failed: {'NSW1 is missing; ' * 60}read it again. Open run 1 in Dagster."
    tell(settings, [Alert(fault="a", text=text)], TOLD_DAY, LOG)
    (message,) = receiver.messages
    assert len(message) == alerts.LONGEST_TEXT and message.endswith(text[-20:])


def test_failed_checks_are_told_once(settings, receiver, tmp_path):
    defs = dg.Definitions(assets=[made], asset_checks=CHECKS)
    # On disk: there each run has a file of its own.
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        dg.materialize([made, *CHECKS], instance=instance, raise_on_error=False)

        def look(now, cursor=None):
            return evaluate_sensor(settings, "tell_failed_checks", instance, now, cursor, defs)

        now = datetime.now(UTC)
        _, cursor = look(now)
        assert sorted(message.split()[2] for message in receiver.messages) == ["drift", "schema"]
        assert look(now + timedelta(days=1), cursor)[0] == "0 new alert(s)"
        dg.materialize([made, *CHECKS], instance=instance, raise_on_error=False)
        # Runs that wait in the queue, such as those of a backfill, hide no check.
        for _ in range(3):
            instance.create_run_for_job(defs.resolve_implicit_global_asset_job_def())
        assert look(now + timedelta(days=1), cursor)[0] == "2 new alert(s)"


def test_each_block_of_a_family_is_told(settings, receiver, tmp_path):
    names = ["north", "south"]
    blocks = dg.StaticPartitionsDefinition(names)

    @dg.asset(partitions_def=blocks)
    def sales():
        pass

    @dg.asset_check(asset=sales, partitions_def=blocks)
    def schema(context):
        return dg.AssetCheckResult(passed=context.partition_key == "south", description="bad")

    job = dg.define_asset_job("job", [sales], executor_def=dg.in_process_executor)
    defs = dg.Definitions(assets=[sales], asset_checks=[schema], jobs=[job])
    job = defs.resolve_job_def("job")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        # A schedule makes all runs of a night before the first one begins.
        tags = [{"dagster/partition": name} for name in names]
        first, _ = (instance.create_run_for_job(job, tags=each) for each in tags)
        execute_run(InMemoryJob(job), first, instance)
        evaluate_sensor(settings, "tell_failed_checks", instance, datetime.now(UTC), defs=defs)

    (message,) = receiver.messages
    assert "schema of sales for north failed" in message


@pytest.mark.parametrize(
    ("minutes", "issued", "count"), [(-1, False, 0), (0, False, 1), (0, True, 0), (300, False, 1)]
)
def test_a_missed_deadline_is_told(settings, receiver, idle, minutes, issued, count):
    if issued:
        origin, until = (datetime(2026, 4, 1, hour, tzinfo=UTC) for hour in (14, 7))
        mark_issued(settings.layout(Mode.LIVE), origin, until)
    now = DEADLINE + timedelta(minutes=minutes)
    for _ in range(2):
        evaluate_sensor(settings, "tell_late_forecast", idle, now)

    assert len(receiver.messages) == count
    assert all("2026-04-02" in message for message in receiver.messages)


def test_without_schedules_no_deadline_is_watched(tmp_path, receiver, idle):
    settings = make_settings(tmp_path, receiver.url, schedules="off")
    said, _ = evaluate_sensor(settings, "tell_late_forecast", idle, DEADLINE)
    assert "no forecast is watched" in said and receiver.messages == []


@pytest.mark.parametrize(("hour", "count"), [(19, 0), (20, 1), (23, 1)])
def test_a_declared_deadline_has_its_own_clock(tmp_path, receiver, hour, count):
    schedule = 'at = "18:30"\ndays_ahead = 1\ndeadline = "19:45"'
    declare_file(tmp_path / "datasets", f"{SOUND}\n[schedule]\n{schedule}\n")
    settings = make_settings(tmp_path, receiver.url, schedules="demand")
    now = datetime(2026, 7, 1, hour, tzinfo=ZoneInfo("Europe/Paris")).astimezone(UTC)
    evaluate_sensor(settings, "tell_late_forecast", dg.DagsterInstance.ephemeral(), now)
    assert all("2026-07-02" in message for message in receiver.messages)
    assert len(receiver.messages) == count


def test_a_failing_source_and_its_recovery_are_told(settings, receiver):
    ledger = Ledger(settings.layout(Mode.LIVE).ledger)
    instance, cursor = dg.DagsterInstance.ephemeral(), None
    for night in range(NIGHTS + 1):
        now = DEADLINE + timedelta(days=night)
        # Another file every night: it is the source that fails.
        ledger.record_failure("a", f"{night}.zip", url="u", note="wrong length", now=now)
        if night != 1:
            ledger.record_failure("b", "b.csv", url="u", note="away", now=now)
        else:
            ledger.record_fetched("b", "b.csv", url="u", sha256="0", now=now)
        _, cursor = evaluate_sensor(settings, "tell_failing_sources", instance, now, cursor)
        assert len(receiver.messages) == max(0, night + 2 - NIGHTS)
    # It answers again: destinations that got the failure get its end, once.
    for number in range(NIGHTS + 1):
        ledger.record_fetched("a", f"{number}.zip", url="u", sha256="0", now=now)
    for _ in range(2):
        _, cursor = evaluate_sensor(settings, "tell_failing_sources", instance, now, cursor)

    assert len(receiver.messages) == 3 and "2026-04-01" in receiver.messages[-1]
    # A file that is no longer asked for is not a failing source.
    assert find_failing(ledger.list_entries(), now + timedelta(days=2)) == {}


def test_a_growing_file_is_an_answer(settings):
    ledger = Ledger(settings.layout(Mode.LIVE).ledger)
    ledger.record_fetched("a", "day.txt.gz", url="u", sha256="0", now=DEADLINE)
    ledger.mark_short("a", "day.txt.gz", note="240 of 288 slots", now=DEADLINE)
    ledger.confirm()
    assert find_answering(ledger.list_entries(), DEADLINE) == {"a"}
    assert find_failing(ledger.list_entries(), DEADLINE) == {}


def list_running(settings):
    repository = build_defs(settings).get_repository_def()
    ticking = (*repository.schedule_defs, *repository.sensor_defs)
    return {one.name for one in ticking if one.default_status.value == "RUNNING"}


def test_one_switch_turns_on_what_a_deployment_needs(tmp_path):
    def running(**settings):
        return list_running(Settings(home=tmp_path, **settings))

    assert running() == running(schedules="off") == {"dead_runs"}
    told = {f"tell_{what}" for what in ("failed_runs", "failed_checks", "late_forecast")}
    told.add("tell_failing_sources")
    evening = {"refresh_evening", "refresh_midnight"}
    assert running(schedules="exchange") == {"dead_runs", "refresh_exchange_daily"} | told
    on = running(schedules="on")
    assert on >= told | evening and "refresh_traffic_daily" not in on
    assert "refresh_traffic_daily" in running(schedules="on", pems_user="u")


def test_an_unknown_schedule_is_told(tmp_path, receiver, idle):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "mine.toml").write_text("name = 'mine'\n[series\n")
    # One was renamed, the other's declaration is broken.
    settings = make_settings(tmp_path, receiver.url, schedules="exchange,old name,mine")
    assert {"refresh_exchange_daily", "tell_failing_sources"} <= list_running(settings)
    assets = build_defs(settings).get_repository_def().asset_graph.get_all_asset_keys()
    assert {dg.AssetKey(["broken", name]) for name in ("old_name", "mine")} <= set(assets)

    for _ in range(2):
        evaluate_sensor(settings, "tell_failing_sources", idle, DEADLINE)
    broken, old = sorted(receiver.messages, key=len, reverse=True)
    assert "COMPEVO_SCHEDULES" in old and "'old name'" in old
    assert "mine.toml" in broken
