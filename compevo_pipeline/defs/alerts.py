"""Sensors that report faults: failed runs, failed checks, no forecast, silent sources.

What belongs here: looking at Dagster's records, the issued forecasts and the ledger. What does not:
sending them once a day (``work.alerts``), the checks themselves (``defs.asset_checks``).

The deadline is a sensor of its own: it fires although the refresh failed or never ran.
"""

import functools
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
)

from compevo_pipeline.defs.asset_checks import COVERAGE, DATA_AGE, DRIFT, NEWS_CHANGE
from compevo_pipeline.defs.asset_keys import OPERATIONAL
from compevo_pipeline.defs.assets.report import FREE_SPACE
from compevo_pipeline.defs.jobs import describe_failure
from compevo_pipeline.defs.schedules import find_unscheduled
from compevo_pipeline.sources.common.base import Clock
from compevo_pipeline.sources.common.nem import NEM_ZONE
from compevo_pipeline.work.alerts import NIGHTS, Alert, find_answering, find_failing, tell
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import Origin

TOLD_WARNINGS = frozenset({DRIFT, COVERAGE, DATA_AGE, NEWS_CHANGE, FREE_SPACE})  # worth an alert
CHECKS = "tell_failed_checks"  # each code location reports its own

_SECONDS = 60


def build_alert_sensors(deployment: Deployment) -> list[dg.SensorDefinition]:
    """Return the sensors; they run from the start where schedules do."""
    settings, clock = deployment.settings, deployment.clock
    status = dg.DefaultSensorStatus("RUNNING" if settings.schedules else "STOPPED")
    sensor = functools.partial(dg.sensor, minimum_interval_seconds=_SECONDS, default_status=status)

    def send(context: dg.SensorEvaluationContext, alerts: Iterable[Alert]) -> dg.SkipReason:
        count = tell(settings, alerts, _market_time(clock).date(), context.log)
        return dg.SkipReason(f"{count} new alert(s)")

    @dg.run_failure_sensor(
        name="tell_failed_runs",
        minimum_interval_seconds=_SECONDS,
        monitor_all_code_locations=True,
        default_status=status,
        description="Reports a run that failed and is not started again by itself.",
    )
    def failed_runs(context: dg.RunFailureSensorContext) -> None:
        run, steps = context.dagster_run, context.get_step_failure_events()
        if run.tags.get("dagster/will_retry") == "true":
            return
        day = run.tags.get("dagster/partition", "")
        where = ", ".join(str(event.step_key) for event in steps)
        ended = context.failure_event.message or "it ended"
        why = (describe_failure(steps[0]) if steps else ended).rstrip(". ")
        what = f"{run.job_name}{day and f' for {day}'} failed{where and f' at {where}'}"
        text = f"The run {what}: {why}. Open run {run.run_id[:8]} in Dagster."
        alert = Alert(fault=f"run {what}", text=text)
        tell(settings, [alert], _market_time(clock).date(), context.log)

    @sensor(
        name=CHECKS,
        description=(
            "Reports asset checks that failed as errors, drift, coverage, old data, news that "
            "moves a forecast far, a full disk."
        ),
    )
    def failed_checks(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        since = float(context.cursor or (clock() - timedelta(days=1)).timestamp())
        repository = context.repository_def
        nodes = repository.asset_graph.asset_check_nodes if repository is not None else ()
        # The records of all runs cannot be read in order if each has a file of its own (SQLite).
        log = context.instance.event_log_storage
        entries = []
        for node in nodes:
            blocks = node.partitions_def.get_partition_keys() if node.partitions_def else [""]
            # Not those of runs that wait or failed before the check, which may be any number.
            history = log.get_asset_check_execution_history(
                node.key, 2 * len(blocks), status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
            )
            newest = {one.partition: one.event for one in reversed(history) if one.event}
            entries += [entry for entry in newest.values() if entry.timestamp > since]
        # Sent before the cursor moves: an alert that could not be sent is looked at again.
        outcome = send(context, _find_failed_checks(entries))
        context.update_cursor(str(max([since, *(entry.timestamp for entry in entries)])))
        return outcome

    @sensor(
        name="tell_late_forecast",
        description=(
            "Reports at the deadline of a data set's night that its forecast was not issued, "
            "even if the refresh never ran."
        ),
    )
    def late_forecast(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        if not settings.schedules:
            return dg.SkipReason("COMPEVO_SCHEDULES names no data set: no forecast is watched")
        return send(context, _find_late_forecasts(deployment, clock()))

    @sensor(
        name="tell_failing_sources",
        minimum_interval_seconds=3600,
        description=(
            f"Reports a source that failed {NIGHTS} nights in a row, its recovery, and a "
            "name in COMPEVO_SCHEDULES that starts nothing."
        ),
    )
    def failing_sources(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        entries = deployment.list_asked()
        failing = find_failing(entries, clock())
        today = _market_time(clock).date()
        since = dict.fromkeys(failing, today.isoformat()) | json.loads(context.cursor or "{}")
        context.update_cursor(json.dumps({source: since[source] for source in failing}))

        alerts = [
            Alert(fault=f"schedule {name}", text=f"{why}; correct it and restart Dagster.")
            for name, why in find_unscheduled(deployment).items()
        ]
        oldest = (today - timedelta(days=NIGHTS - 1)).isoformat()
        long_since = {source: first for source, first in since.items() if first <= oldest}
        alerts += _find_source_changes(long_since, failing, find_answering(entries, clock()))
        return send(context, alerts)

    return [failed_runs, failed_checks, late_forecast, failing_sources]


def _market_time(clock: Clock) -> datetime:
    return clock().astimezone(ZoneInfo(NEM_ZONE))


def _find_failed_checks(entries: Iterable[dg.EventLogEntry]) -> Iterator[Alert]:
    """Report the checks among some events that failed as errors, or as warnings worth an alert."""
    for entry in entries:
        data = entry.get_dagster_event().asset_check_evaluation_data
        is_error = data.severity is dg.AssetCheckSeverity.ERROR
        if not data.passed and (is_error or data.check_name in TOLD_WARNINGS):
            block = f" for {data.partition}" if data.partition else ""
            name = f"{data.check_name} of {data.asset_key.to_user_string()}{block}"
            why = data.description or "see its page"
            text = f"The check {name} failed: {why}; open it in Dagster's catalog."
            yield Alert(fault=f"check {name}", text=text)


def _find_source_changes(
    since: Mapping[str, str], failing: Mapping[str, str], answering: Container[str]
) -> Iterator[Alert]:
    """Report sources that have failed ``since`` a day and still do, and those that answer again."""
    for source, first in since.items():
        if source in failing:
            text = (
                f"The source {source} has failed since {first}, last with {failing[source]}; "
                "run `compevo sources` to see its files, and read the page of the source."
            )
            yield Alert(fault=f"source {source}", text=text)
        elif source in answering:
            text = f"The source {source} answers again; it had failed since {first}."
            yield Alert(fault=f"recovered {source}", text=text)


def _find_late_forecasts(deployment: Deployment, now: datetime) -> Iterator[Alert]:
    """Report forecasts that were not issued by the deadline of their night; one for a family."""
    registry = deployment.registry
    for name, declared in registry.declared.items():
        spec, night = declared.spec, declared.night
        is_on = deployment.settings.default_status(name) == "RUNNING"
        if not is_on or night.at is None or night.deadline is None or not spec.starts_with_days:
            continue
        at = now.astimezone(ZoneInfo(night.zone))
        begun = datetime.combine(at, night.at, at.tzinfo)
        # A deadline may be after midnight.
        begun -= timedelta(days=begun > at)
        due = datetime.combine(begun, night.deadline, at.tzinfo)
        due += timedelta(days=due < begun)
        if at < due:
            continue
        day = spec.to_market(begun.astimezone(UTC)).date() + timedelta(days=night.days_ahead)
        origin = Origin.of(spec, day, None)
        missing = [
            dataset
            for dataset in registry.find_blocks(name) or [name]
            if not origin.is_issued_in(deployment.layout.issued(dataset))
        ]
        if not missing:
            continue
        first, *others = missing
        shown = f"{first} and {len(others)} more" if others else first
        is_default = name == OPERATIONAL
        refresh = "compevo refresh" if is_default else f"compevo refresh {first}"
        yield Alert(
            fault=f"late {day}" if is_default else f"late {name} {day}",
            text=(
                f"No forecast of {shown} for {day} was issued by {due:%H:%M} ({night.zone}): "
                f"look at the runs of refresh in Dagster, then run `{refresh} --day {day}`."
            ),
        )
