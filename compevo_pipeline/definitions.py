"""The Dagster code location: wiring only.

:func:`build_defs` is the one place where assets, checks, jobs, schedules and resources meet.
Tests call it with fakes for resources and get the same graph that runs in production.
"""

import functools
from collections.abc import Collection, Mapping

import dagster as dg

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs.alerts import build_alert_sensors
from compevo_pipeline.defs.asset_checks import build_asset_checks
from compevo_pipeline.defs.assets import evaluation, forecast, report, sources, training, windows
from compevo_pipeline.defs.dead_runs import dead_runs
from compevo_pipeline.defs.definition import DAILY_REFRESH
from compevo_pipeline.defs.jobs import build_jobs
from compevo_pipeline.defs.loggers import progress_logger
from compevo_pipeline.defs.resources import Launchers, Workspace
from compevo_pipeline.defs.schedules import build_schedules, find_unscheduled
from compevo_pipeline.launchers.process import PodSpec
from compevo_pipeline.paper import assets as paper
from compevo_pipeline.sources.common.base import Clock, FrameKind, Mode, describe_data
from compevo_pipeline.sources.feeds import FeedTable
from compevo_pipeline.sources.registry import Registry
from compevo_pipeline.work.deployment import Deployment, utc_now
from compevo_pipeline.work.source_coverage import NEWS


def build_defs(
    settings: Settings,
    *,
    feeds: FeedTable | None = None,
    launchers: Launchers | None = None,
    clock: Clock | None = None,
) -> dg.Definitions:
    """Wire the whole graph for one deployment.

    What is given takes the place of the project's own.
    """
    # Schedules name jobs by object, so both come from one list.
    deployment = Deployment(settings=settings, clock=clock or utc_now)
    registry = deployment.registry
    broken = {**find_unscheduled(deployment), **registry.broken}
    table: FeedTable = {**deployment.feeds(), **(feeds or {})}
    pod = PodSpec.read(settings.pod) if settings.pod else None
    jobs = build_jobs(registry, deployment.layout)
    names = frozenset(dataset.name for dataset in registry.own)
    return dg.Definitions(
        assets=dg.map_asset_specs(
            functools.partial(_fit_to_deployment, settings, names),
            _build_assets(registry, table, broken),
        ),
        metadata={"mode": describe_data(settings.mode).strip("[]")},
        asset_checks=[*build_asset_checks(registry), sources.check_coverage],
        jobs=[*jobs, sources.coverage_job, sources.backfill_job],
        schedules=[*build_schedules(jobs, deployment), sources.hourly_coverage],
        sensors=[
            dead_runs,
            *build_alert_sensors(deployment),
        ],
        # A process for each step would import everything again: seconds of processor each.
        executor=dg.in_process_executor,
        loggers={"console": dg.colored_console_logger, "progress": progress_logger},
        resources={
            "workspace": Workspace(
                settings=settings, mode=settings.mode.value, clock=deployment.clock
            ),
            "launchers": launchers or Launchers(pod),
            "audit_news": paper.audit_news,
        },
    )


def _build_assets(
    registry: Registry, table: FeedTable, broken: Mapping[str, str]
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return the assets of every data set, and those that belong to no data set."""
    daily = [name for name in registry if registry[name].spec.starts_with_days]
    # Articles of own data sets are embedded, too.
    with_news = [
        keys.series_key(dataset.name)
        for dataset in registry.own
        if any(FrameKind.ARTICLES in feed.parsers for feed in dataset.feeds)
    ]
    by_dataset = (
        training.build_model_asset,
        evaluation.build_baselines_asset,
        evaluation.build_population_test_asset,
        paper.build_lud_asset,
        paper.build_ablation_asset,
        paper.build_benchmark_asset,
    )

    return [
        *(sources.build_series_asset(registry[name], table[name]) for name in registry),
        sources.build_articles_asset(table[NEWS]),
        sources.build_embeddings_asset(with_news),
        *(windows.build_windows_asset(name) for name in registry),
        *(build(dataset) for dataset in registry for build in by_dataset),
        paper.inference_2026,
        paper.control,
        paper.text,
        *(forecast.build_next_day_asset(registry[name]) for name in daily),
        *(forecast.build_scored_asset(name) for name in daily),
        sources.coverage,
        # The report shows the scores of own data sets and the forecasts of all.
        report.build_site_asset(
            paper.write_research,
            [
                *(key for dataset in registry.own for key in keys.score_keys(dataset.name)),
                *(
                    key
                    for name in daily
                    for key in (keys.next_day_key(name), keys.scored_key(name))
                ),
            ],
        ),
        report.cleaned,
        *(sources.build_broken_asset(name, message) for name, message in broken.items()),
    ]


def _fit_to_deployment(
    settings: Settings, own: Collection[str], spec: dg.AssetSpec
) -> dg.AssetSpec:
    """Return an asset that says where its data comes from, and is due only where data come daily.

    Graph and catalog show kind and description, and synthetic data must not pass for real. Files of
    a sample, an archive or a user do not change by the day: a policy would always warn of them.
    """
    mode, dataset = settings.mode, spec.tags.get("dataset", "")
    # A forecast from a file that has a deadline is due by it all the same.
    is_due = mode is Mode.LIVE and (dataset not in own or spec.freshness_policy != DAILY_REFRESH)
    return spec.replace_attributes(
        description=f"{describe_data(mode, dataset)} {spec.description}",
        kinds={*spec.kinds, mode.value},
        freshness_policy=spec.freshness_policy if is_due else None,
    )


defs = build_defs(Settings.from_environment())
