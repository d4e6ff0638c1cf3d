"""When refreshes start: by the clock, and the evening's forecast once AEMO's is stored.

What belongs here: when jobs start by themselves, and for which day. What does not: what they run
(``defs.jobs``), who is told when they fail (``defs.alerts``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from compevo_core.data.datasets import DATASETS, DatasetSpec
from compevo_core.data.steps import DAY
from compevo_core.errors import DataError
from compevo_core.forecast.issued import find_issued, is_issued
from compevo_core.table.text_stamps import find_standard_offset, find_summer_offset
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs.asset_keys import NEM_ZONE, OPERATIONAL, next_day_key
from compevo_pipeline.defs.jobs import job_name, list_collected, list_refreshed
from compevo_pipeline.sources.common.base import Clock
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import (
    KnownTo,
    NewsRule,
    Origin,
    StoredFrames,
    check_inputs,
    find_news_rule,
)

# AEMO issues its day-ahead forecast at 17:00 NEM time, which is UTC+10 all year like Brisbane's
# clock; three quarters of an hour later it is out, or else a little later. These ticks only read
# the publishers: the forecast follows when AEMO's is stored. The last one forecasts in any case.
EVENING_TICKS = (time(17, 45), time(18, 15), time(19, 0))
# Once more when the day before is over.
MIDNIGHT_TICKS = (time(0, 30), time(2, 0))
# After the refresh of midnight, so that they do not ask for the same news at once.
OTHERS_CRON = "15 1 * * *"
OWN_TICK = timedelta(minutes=15)  # after midnight of a declared data set's own clock

_SENSOR_SECONDS = 60
_UNDER_WAY = [
    *(dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED),
    *(dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED),
]


def build_schedules(jobs: Sequence[Any], deployment: Deployment) -> list[dg.ScheduleDefinition]:
    """Return all schedules of refreshes; they run from the start where the settings say so."""
    settings, registry = deployment.settings, deployment.registry
    by_name = {job.name: job for job in jobs}
    refresh = by_name["refresh"]
    others = [registry[name].spec for name in registry if name != OPERATIONAL]
    collected = list_collected(registry, OPERATIONAL, deployment.layout)
    evening = DayTicks(
        times=EVENING_TICKS, known_to=KnownTo.ISSUE_TIME, days=1, collected=collected
    )
    midnight = DayTicks(times=MIDNIGHT_TICKS, known_to=KnownTo.MIDNIGHT, days=0)
    return [
        build_refresh_schedule(refresh, "refresh_evening", evening, deployment),
        build_refresh_schedule(refresh, "refresh_midnight", midnight, deployment),
        *(
            build_daily_schedule(by_name[job_name("refresh", spec.name)], spec, settings)
            for spec in others
        ),
    ]


def find_unscheduled(deployment: Deployment) -> dict[str, str]:
    """Return why a name in ``COMPEVO_SCHEDULES`` starts nothing, by name.

    A declaration that was broken, renamed or removed must not end the nights of all others.
    """
    registry = deployment.registry
    reasons = {}
    for name in deployment.settings.schedules:
        if name != "on" and name not in registry.datasets:
            known = f"no data set {name!r}; known: {', '.join(registry)}"
            reasons[name] = f"COMPEVO_SCHEDULES: {registry.broken.get(name, known)}"
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTicks:
    """When a day is forecast, and from what."""

    # Of the ticks, on the market's clock. The first one refreshes; the later ones are further tries
    # where the forecast has not been issued by then.
    times: tuple[time, ...]
    known_to: KnownTo  # up to when the forecast may use information
    days: int  # 0 forecasts the day of the tick, 1 the one after it
    # All that ticks before the last one make, where a sensor does the rest.
    collected: Sequence[dg.AssetKey] = ()

    @property
    def crons(self) -> list[str]:
        """The ticks as cron expressions."""
        return [f"{tick.minute} {tick.hour} * * *" for tick in self.times]


def build_refresh_schedule(
    job: Any,  # noqa: ANN401 - Dagster's unresolved job has no public type
    name: str,
    ticks: DayTicks,
    deployment: Deployment,
) -> dg.ScheduleDefinition:
    """Return a schedule that refreshes and forecasts a day, and tries again where that failed.

    Dagster retries a step, and the step that would have to read the publisher again has ended well
    by then: a forecast that is late needs another run.
    """
    spec = deployment.registry[OPERATIONAL].spec

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=ticks.crons,
        execution_timezone=NEM_ZONE,
        default_status=dg.DefaultScheduleStatus(deployment.settings.default_status(OPERATIONAL)),
        description=(
            f"Sources, the forecast of {'tomorrow' if ticks.days else 'today'} as known to the "
            f"{ticks.known_to.replace('-', ' ')}, scores of the days before it, the report. "
            "The later ticks try again where no forecast has been issued."
        ),
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        at = context.scheduled_execution_time.astimezone(ZoneInfo(NEM_ZONE))
        day = at.date() + timedelta(days=ticks.days)
        tick = at.time().replace(second=0, microsecond=0)
        only_reads = bool(ticks.collected) and tick != ticks.times[-1]
        if tick != ticks.times[0]:
            origin = Origin.of(spec, day, ticks.known_to)
            wanted = None if only_reads else ticks.known_to
            if reason := _find_no_need(context.instance, deployment, origin, wanted):
                return dg.SkipReason(reason)

        return dg.RunRequest(
            run_key=f"{name}-{day}-{tick:%H%M}",
            partition_key=day.isoformat(),
            asset_selection=ticks.collected if only_reads else None,
            run_config={} if only_reads else _configure_forecast(ticks.known_to),
        )

    return _schedule


def build_evening_sensor(
    job: Any,  # noqa: ANN401 - Dagster's unresolved job has no public type
    deployment: Deployment,
    clock: Clock,
) -> dg.SensorDefinition:
    """Return the sensor that forecasts tomorrow once all that the forecast needs is stored.

    ``job`` is the refresh, of which it requests what the ticks of the evening leave out.
    """
    registry, layout = deployment.registry, deployment.layout
    spec = registry[OPERATIONAL].spec
    collected = list_collected(registry, OPERATIONAL, layout)
    made = [key for key in list_refreshed(registry, OPERATIONAL, layout) if key not in collected]

    @dg.sensor(
        name="forecast_evening",
        job=job,
        minimum_interval_seconds=_SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus(deployment.settings.default_status(OPERATIONAL)),
        description=(
            "Forecasts tomorrow as known to the issue time as soon as AEMO's forecast of the whole "
            "day is stored, and again when another one is, until the forecast is issued."
        ),
    )
    def _sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        now = clock()
        day = (now + spec.market_offset).date() + timedelta(days=1)
        origin = Origin.of(spec, day, KnownTo.ISSUE_TIME)
        if now < origin.until or not layout.ledger.exists():
            return dg.SkipReason(f"nothing can be known of {day} yet")
        if reason := _find_no_need(context.instance, deployment, origin, None):
            return dg.SkipReason(reason)

        # What is stored is read only where the publishers were asked since the last look.
        seen = f"{day} {layout.ledger.stat().st_mtime_ns}"
        if context.cursor == seen:
            return dg.SkipReason("nothing was fetched since the last look")
        context.update_cursor(seen)
        try:
            rule = find_news_rule(deployment, OPERATIONAL, NewsRule())
            frames = StoredFrames.read(deployment, spec, reads_news=rule is not None)
            inputs = check_inputs(frames, origin, rule)
        except DataError as error:
            return dg.SkipReason(str(error))
        if inputs.missing or inputs.newest is None:
            return dg.SkipReason("; ".join(inputs.missing))
        return dg.RunRequest(
            run_key=f"forecast_evening-{day}-{inputs.newest.publication}",
            partition_key=day.isoformat(),
            asset_selection=made,
            run_config=_configure_forecast(KnownTo.ISSUE_TIME),
        )

    return _sensor


def _configure_forecast(known_to: KnownTo) -> dict[str, Any]:
    return {"ops": {"forecast__next_day": {"config": {"known_to": known_to.value}}}}


def _find_no_need(
    instance: dg.DagsterInstance, deployment: Deployment, origin: Origin, wanted: KnownTo | None
) -> str:
    """Return why a forecast of operational demand need not be started; empty where it must.

    ``wanted`` is what the forecast knows of which a run is waited for; None waits for any run.
    """
    issued = deployment.layout.issued(OPERATIONAL)
    if is_issued(find_issued(issued, origin.origin_utc, origin.until)):
        return f"the forecast of {origin.day} has been issued"
    of_day = dg.RunsFilter(
        job_name=job_name("refresh", OPERATIONAL),
        statuses=_UNDER_WAY,
        tags={"dagster/partition": origin.day.isoformat()},
    )
    if any(_makes(run, wanted) for run in instance.get_runs(of_day)):
        return f"a run for {origin.day} is under way"
    return ""


def _makes(run: dg.DagsterRun, wanted: KnownTo | None) -> bool:
    """Whether a run makes the forecast as known to an instant; any run does where that is None."""
    if wanted is None:
        return True
    if run.asset_selection and next_day_key(OPERATIONAL) not in run.asset_selection:
        return False  # it only reads the publishers
    ops: Any = run.run_config.get("ops", {})
    config = ops.get("forecast__next_day", {}).get("config", {})
    return bool(config.get("known_to", wanted) == wanted)


def build_daily_schedule(
    job: Any,  # noqa: ANN401 - Dagster's unresolved job has no public type
    spec: DatasetSpec,
    settings: Settings,
) -> dg.ScheduleDefinition:
    """Return a schedule that refreshes one data set, and forecasts the day of its tick."""
    name = f"{job.name}_daily"
    zone, crons = NEM_ZONE, [OTHERS_CRON]
    if spec.name not in DATASETS:
        zone = spec.default_place.timezone
        # Days begin at midnight of a clock without daylight saving. Where the place has it, one of
        # two ticks falls into a day that was run, and is skipped by its run key.
        offsets = {find_standard_offset(zone), find_summer_offset(zone)}
        ticks = sorted((OWN_TICK + offset - spec.market_offset) % DAY for offset in offsets)
        crons = [f"{tick.seconds // 60 % 60} {tick.seconds // 3600} * * *" for tick in ticks]
    forecast = " the forecast of the day that has begun, scores," if spec.starts_with_days else ""

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=crons,
        execution_timezone=zone,
        default_status=dg.DefaultScheduleStatus(settings.default_status(spec.name)),
        description=f"Sources of {spec.name},{forecast} the report.",
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        # Its partitions are days on its own clock: what is known to this one's midnight is over.
        on_its_clock = context.scheduled_execution_time.astimezone(UTC) + spec.market_offset
        day = on_its_clock.date().isoformat()
        partition = day if spec.starts_with_days else None
        return dg.RunRequest(run_key=f"{name}-{day}", partition_key=partition)

    return _schedule
