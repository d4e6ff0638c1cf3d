"""Alerts: one sentence for each fault and day, at a webhook, from Dagster's own sensors."""

import errno
import json
import logging
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest
import responses

from compevo_core.errors import SourceTransient
from compevo_core.forecast.issued import FACTS_FILE, find_issued
from compevo_core.runtime.files import write_json
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs.alerts import build_alert_sensors
from compevo_pipeline.defs.asset_keys import OPERATIONAL
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.work import alerts
from compevo_pipeline.work.alerts import (
    KEPT_DAYS,
    NIGHTS,
    Alert,
    find_answering,
    find_failing,
    tell,
)
from compevo_pipeline.work.deployment import Deployment
from tests.support.live import SetClock

LOG = logging.getLogger("compevo.tests.alerts")
DAY = date(2026, 4, 1)
SECRET = "canary"
# A quarter to seven in the evening in Brisbane.
DEADLINE = datetime(2026, 4, 1, 8, 45, tzinfo=UTC)


class Receiver:
    """A webhook that keeps what it is sent."""

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


def test_a_fault_is_told_once_a_day_and_its_secret_never(settings, receiver, caplog):
    caplog.set_level(logging.DEBUG)
    fault = Alert(fault="a", text="The run\nfailed.")
    assert [tell(settings, [fault, fault], DAY, LOG), tell(settings, [fault], DAY, LOG)] == [1, 0]
    assert receiver.messages == ["The run failed."]

    assert tell(settings, [fault, Alert(fault="b", text="B")], DAY + timedelta(days=1), LOG) == 2
    assert len(receiver.messages) == 3
    told = settings.layout(Mode.LIVE).alerts
    kept = caplog.text + "".join(path.read_text() for path in told.glob("*.json"))
    assert "The run failed." in caplog.text and SECRET not in kept + repr(settings)
    tell(settings, [], DAY + timedelta(days=KEPT_DAYS + 1), LOG)
    assert len(list(told.glob("*.json"))) == 2


def test_a_destination_that_is_away_gets_it_later_and_the_others_get_it_once(tmp_path, receiver):
    program, told = tmp_path / "program", tmp_path / "told"
    program.write_text(f"#!/bin/sh\ncat >> {told}\n")
    program.chmod(0o700)
    settings = make_settings(tmp_path, receiver.url, f"command:{program}")
    receiver.status = 500
    for _ in range(2):
        with pytest.raises(SourceTransient, match="destination 1 of 2") as caught:
            tell(settings, [Alert(fault="a", text="A")], DAY, LOG)
        assert SECRET not in str(caught.value)
    receiver.status = 200
    assert tell(settings, [], DAY, LOG) == 0
    assert receiver.messages == ["A"] and told.read_text() == "A"


def test_a_full_disk_is_told_although_nothing_can_be_kept_there(
    settings, receiver, tmp_path, monkeypatch
):
    home = settings.layout(Mode.LIVE).alerts
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))

    def fill(path, value):
        if path.is_relative_to(home):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_json(path, value)

    tell(settings, [Alert(fault="a", text="A")], DAY, LOG)
    monkeypatch.setattr(alerts, "write_json", fill)
    fault = Alert(fault="b", text="B")
    assert [tell(settings, [fault], DAY, LOG) for _ in range(2)] == [2, 0]
    assert tell(settings, [], DAY, LOG) == 0
    disk, failed = sorted(receiver.messages[1:], key=len, reverse=True)
    assert "the disk is full: free space" in disk and str(home) in disk and failed == "B"
    assert len(receiver.messages) == 3


def test_an_address_that_is_none_is_named_by_its_number(tmp_path, caplog):
    with pytest.raises(SourceTransient, match="destination 1 of 1"):
        tell(make_settings(tmp_path, SECRET), [Alert(fault="a", text="A")], DAY, LOG)
    assert SECRET not in caplog.text


def evaluate(settings, name, instance, now, cursor=None, defs=None):
    """Evaluates a sensor as the daemon does; returns what it said and its new cursor."""
    sensors = build_alert_sensors(Deployment(settings=settings), SetClock(now))
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


def check(name, severity):
    @dg.asset_check(asset=made, name=name)
    def _check():
        return dg.AssetCheckResult(passed=False, severity=severity, description=f"{name}: bad")

    return _check


CHECKS = [
    check("schema", dg.AssetCheckSeverity.ERROR),
    check("drift", dg.AssetCheckSeverity.WARN),
    check("gaps", dg.AssetCheckSeverity.WARN),
]


def test_a_run_that_failed_is_told_with_its_step_and_why(settings, receiver):
    (sensor, *_) = build_alert_sensors(Deployment(settings=settings), SetClock(DEADLINE))
    instance = dg.DagsterInstance.ephemeral()
    result = dg.materialize([broken], instance=instance, raise_on_error=False)

    def evaluate_with(**tags):
        run = result.dagster_run.with_tags(tags)
        (event,) = result.filter_events(lambda one: one.is_run_failure)
        sensor(
            dg.build_run_status_sensor_context(sensor.name, event, instance, run).for_run_failure()
        )

    evaluate_with(**{"dagster/will_retry": "true"})
    assert receiver.messages == []
    evaluate_with()
    evaluate_with()
    (message,) = receiver.messages
    assert "failed at broken: no value of today; read it again. Open run " in message


def test_a_long_alert_keeps_what_to_do_at_its_end(settings, receiver):
    text = f"The run failed: {'NSW1 is missing; ' * 60}read it again. Open run 1 in Dagster."
    tell(settings, [Alert(fault="a", text=text)], DAY, LOG)
    (message,) = receiver.messages
    assert len(message) == alerts.LONGEST_TEXT and message.startswith("The run failed: NSW1")
    assert " ... " in message and message.endswith("read it again. Open run 1 in Dagster.")


def test_failed_checks_are_told_as_errors_and_alarms_and_no_other_warning(
    settings, receiver, tmp_path
):
    defs = dg.Definitions(assets=[made], asset_checks=CHECKS)
    # On disk: there each run has a file of its own.
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        dg.materialize([made, *CHECKS], instance=instance, raise_on_error=False)

        def look(now, cursor=None):
            return evaluate(settings, "tell_failed_checks", instance, now, cursor, defs)

        now = datetime.now(UTC)
        _, cursor = look(now)
        assert sorted(message.split()[2] for message in receiver.messages) == ["drift", "schema"]
        assert all("made failed: " in message for message in receiver.messages)
        # What was seen is not looked at again, also on another day.
        assert look(now + timedelta(days=1), cursor)[0] == "0 new alert(s)"
        dg.materialize([made, *CHECKS], instance=instance, raise_on_error=False)
        assert look(now + timedelta(days=1), cursor)[0] == "2 new alert(s)"


@pytest.mark.parametrize(
    ("minutes", "issued", "count"), [(-1, False, 0), (0, False, 1), (0, True, 0), (300, False, 1)]
)
def test_no_forecast_by_the_deadline_is_told_although_nothing_ran(
    settings, receiver, minutes, issued, count
):
    if issued:
        until = datetime(2026, 4, 1, 7, tzinfo=UTC)
        folder = find_issued(
            settings.layout(Mode.LIVE).issued(OPERATIONAL), until + timedelta(hours=7), until
        )
        folder.mkdir(parents=True)
        (folder / FACTS_FILE).write_text("{}")
    instance = dg.DagsterInstance.ephemeral()
    now = DEADLINE + timedelta(minutes=minutes)
    for _ in range(2):
        evaluate(settings, "tell_late_forecast", instance, now)
    assert len(receiver.messages) == count
    assert all("2026-04-02" in message for message in receiver.messages)


def test_a_source_that_fails_three_nights_in_a_row_is_told_and_its_recovery_too(settings, receiver):
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
        _, cursor = evaluate(settings, "tell_failing_sources", instance, now, cursor)
        assert len(receiver.messages) == max(0, night + 2 - NIGHTS)
    assert all("source a has failed since 2026-04-01" in text for text in receiver.messages)
    # It answers once more: whoever was told of the failure is told of its end, once.
    for number in range(NIGHTS + 1):
        ledger.record_fetched("a", f"{number}.zip", url="u", sha256="0", now=now)
    for _ in range(2):
        _, cursor = evaluate(settings, "tell_failing_sources", instance, now, cursor)
    (again,) = receiver.messages[2:]
    assert again == "The source a answers again; it had failed since 2026-04-01."
    # A file that nobody asks for any more is not a failing source.
    assert find_failing(ledger.list_entries(), now + timedelta(days=2)) == {}


def test_a_source_answers_by_a_file_that_may_still_grow(settings):
    ledger = Ledger(settings.layout(Mode.LIVE).ledger)
    ledger.record_fetched("a", "day.txt.gz", url="u", sha256="0", now=DEADLINE)
    ledger.mark_short("a", "day.txt.gz", note="240 of 288 slots", now=DEADLINE)
    ledger.confirm()
    assert find_answering(ledger.list_entries(), DEADLINE) == {"a"}
    assert find_failing(ledger.list_entries(), DEADLINE) == {}


def list_running(settings):
    repository = build_defs(settings).get_repository_def()
    return {
        one.name
        for one in (*repository.schedule_defs, *repository.sensor_defs)
        if one.default_status.value == "RUNNING"
    }


def test_one_switch_turns_on_what_a_deployment_needs(tmp_path):
    def running(**settings):
        return list_running(Settings(home=tmp_path, **settings))

    assert running() == running(schedules="off") == {"dead_runs"}
    told = {"tell_failed_runs", "tell_failed_checks", "tell_failing_sources"}
    evening = {"refresh_evening", "refresh_midnight", "forecast_evening", "tell_late_forecast"}
    assert running(schedules="exchange") == {"dead_runs", "refresh_exchange_daily"} | told
    on = running(schedules="on")
    assert on >= told | evening and "refresh_traffic_daily" not in on
    assert "refresh_traffic_daily" in running(schedules="on", pems_user="u")


def test_a_name_that_starts_nothing_is_told_and_stops_no_other(tmp_path, receiver):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "mine.toml").write_text("name = 'mine'\n[series\n")
    # One was renamed, the other's declaration is broken.
    settings = make_settings(tmp_path, receiver.url, schedules="exchange,old name,mine")
    assert {"refresh_exchange_daily", "tell_failing_sources"} <= list_running(settings)
    assets = build_defs(settings).get_repository_def().asset_graph
    assert {dg.AssetKey(["broken", name]) for name in ("old_name", "mine")} <= set(
        assets.get_all_asset_keys()
    )

    instance = dg.DagsterInstance.ephemeral()
    for _ in range(2):
        evaluate(settings, "tell_failing_sources", instance, DEADLINE)
    broken, old = sorted(receiver.messages, key=len, reverse=True)
    assert "COMPEVO_SCHEDULES: no data set 'old name'; known: electricity, " in old
    assert "mine.toml: not TOML" in broken and "restart Dagster" in broken
