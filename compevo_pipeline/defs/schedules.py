"""When refreshes start by themselves, by the same rule for every data set.

What belongs here: when jobs start by themselves, and for which day. What does not: what they run
(``defs.jobs``), reports of failures (``defs.alerts``). Automation conditions do not suffice: a run
needs the cutoff of its forecast, which a condition cannot give, and the latest day of partitions
that reach tomorrow is not always the one to forecast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from compevo_core.data.datasets import ZonedSpec
from compevo_core.data.steps import DAY
from compevo_core.table.text_stamps import find_standard_offset, find_summer_offset
from compevo_pipeline.defs.asset_keys import OPERATIONAL, next_day_key
from compevo_pipeline.defs.jobs import job_name, step_name
from compevo_pipeline.sources.common.nem import NEM_ZONE
from compevo_pipeline.sources.registry import Night, RegisteredDataset
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import KnownTo, Origin

# The first tick of a night refreshes; the later ones try again if no forecast was issued. All but
# the last let the forecast wait for missing inputs.
RETRIES = (timedelta(0), timedelta(minutes=30), timedelta(minutes=75))
OWN_TICK = timedelta(minutes=15)  # after midnight of a declared data set's own clock
MIDNIGHT = Night(zone=NEM_ZONE, at=time(0, 30))  # once more, when the day before is over
_UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def build_schedules(jobs: Sequence[Any], deployment: Deployment) -> list[dg.ScheduleDefinition]:
    """Return all schedules of refreshes; they run from the start if the settings say so."""
    declared = deployment.registry.declared
    by_name = {job.name: job for job in jobs}
    refresh, evening = by_name["refresh"], declared[OPERATIONAL]
    midnight = replace(evening, night=MIDNIGHT)
    issue, over = KnownTo.ISSUE_TIME, KnownTo.MIDNIGHT
    return [
        build_refresh_schedule(refresh, "refresh_evening", evening, deployment, issue),
        build_refresh_schedule(refresh, "refresh_midnight", midnight, deployment, over),
        *(
            build_refresh_schedule(job, f"{job.name}_daily", dataset, deployment)
            for name, dataset in declared.items()
            if name != OPERATIONAL and (job := by_name[job_name("refresh", name)])
        ),
    ]


def find_unscheduled(deployment: Deployment) -> dict[str, str]:
    """Return why a name in ``COMPEVO_SCHEDULES`` starts nothing, by name.

    A declaration that was broken, renamed or removed must not end the nights of all others.
    """
    registry = deployment.registry
    reasons = {}
    for name in deployment.settings.schedules:
        if name != "on" and name not in registry.declared:
            known = f"no data set {name!r}; known: {', '.join(registry.declared)}"
            reasons[name] = f"COMPEVO_SCHEDULES: {registry.broken.get(name, known)}"
    return reasons


def build_refresh_schedule(
    job: Any,  # noqa: ANN401 - Dagster's unresolved job has no public type
    name: str,
    declared: RegisteredDataset,
    deployment: Deployment,
    known_to: KnownTo | None = None,
) -> dg.ScheduleDefinition:
    """Return a schedule that refreshes and forecasts a day, and tries again if that failed.

    Dagster retries a step, not those before it: a late forecast needs another run.
    """
    spec, night = declared.spec, declared.night
    blocks = deployment.registry.find_blocks(spec.name)
    starts = [_into_day(night.at)] if night.at else []
    if night.at is None:
        # Days begin at midnight of the place, or of a fixed clock: when the place changes its
        # clock, one of two ticks falls into a day that already ran, and is skipped.
        offsets = {find_standard_offset(night.zone), find_summer_offset(night.zone)}
        starts = sorted((OWN_TICK + offset - spec.market_offset) % DAY for offset in offsets)
        if isinstance(spec, ZonedSpec) and spec.market_zone == night.zone:
            starts = [OWN_TICK]
    retries = RETRIES if spec.starts_with_days else RETRIES[:1]
    ticks = {(start + retry) % DAY for start in starts for retry in retries}
    what = f"the forecast of {'tomorrow' if night.days_ahead else 'today'}, scores, "

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=[
            f"{tick.seconds // 60 % 60} {tick.seconds // 3600} * * *" for tick in sorted(ticks)
        ],
        execution_timezone=night.zone,
        default_status=dg.DefaultScheduleStatus(deployment.settings.default_status(spec.name)),
        description=(
            f"Sources of {spec.name}, {what if spec.starts_with_days else ''}the report. "
            "The later ticks try again if no forecast has been issued."
        ),
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        at = context.scheduled_execution_time.astimezone(ZoneInfo(night.zone))
        delay = (_into_day(at.time()) - _into_day(night.at)) % DAY if night.at else None
        # The data set's days begin on its market clock, not on the schedule's.
        begun = spec.to_market(at.astimezone(UTC) - (delay or timedelta(0)))
        day = begun.date() + timedelta(days=night.days_ahead)
        if not spec.starts_with_days:
            whole = [dg.RunRequest(f"{name}-{day}")]
            return [
                dg.RunRequest(f"{name}-{day}-{block}", partition_key=block) for block in blocks
            ] or whole

        is_last = delay is None or delay == RETRIES[-1]
        origin = Origin.of(spec, day, known_to)
        config = {"waits": not is_last} | ({"known_to": known_to.value} if known_to else {})
        if blocks:
            config |= {"day": day.isoformat()}
        step = step_name(next_day_key(spec.name))
        requests, reasons = [], set()
        for dataset in blocks or [spec.name]:
            partition = dataset if blocks else day.isoformat()
            is_first = delay == RETRIES[0]
            if not is_first and origin.is_issued_in(deployment.layout.issued(dataset)):
                reasons.add(f"the forecast of {day} has been issued")
                continue
            tags = {"dagster/partition": partition}
            runs = dg.RunsFilter(job_name=job.name, statuses=_UNDER_WAY, tags=tags)
            under_way = [] if is_first else context.instance.get_runs(runs)
            if any(_does_same(run, step, config) for run in under_way):
                reasons.add(f"a run for {day} is under way")
                continue
            run_key = f"{name}-{day}-{at:%H%M}" + (f"-{dataset}" if blocks else "")
            run_config = {"ops": {step: {"config": config}}}
            requests.append(dg.RunRequest(run_key, run_config, partition_key=partition))
        return requests or dg.SkipReason("; ".join(sorted(reasons)))

    return _schedule


def _does_same(run: dg.DagsterRun, step: str, config: Mapping[str, object]) -> bool:
    """Whether a run issues the forecast that the schedule would by a configuration of a step."""
    ops: Any = run.run_config.get("ops", {})
    other = ops.get(step, {}).get("config", {})
    # A launch by hand that leaves something out does as the schedule would.
    names = other.keys() & {"day", "known_to"}
    is_same = all(other[name] == config.get(name) for name in names)
    # The last tick does not wait for runs whose forecasts may wait.
    return is_same and (bool(config["waits"]) or not other.get("waits"))


def _into_day(at: time) -> timedelta:
    return timedelta(hours=at.hour, minutes=at.minute)
