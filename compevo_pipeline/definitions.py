"""The Dagster code location of the product: wiring only.

:func:`build_defs` is the one place where assets, checks, jobs, schedules and resources meet.
Tests call it with fakes for resources and get the same graph that runs in production. Research is a
location of its own (``compevo_pipeline.paper.definitions``), whose faults touch no night.
"""

from typing import Any

import dagster as dg

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs.alerts import build_alert_sensors
from compevo_pipeline.defs.asset_checks import build_asset_checks
from compevo_pipeline.defs.assets import evaluation, forecast, report, sources, training, windows
from compevo_pipeline.defs.dead_runs import dead_runs
from compevo_pipeline.defs.jobs import build_jobs
from compevo_pipeline.defs.resources import Launchers, build_location
from compevo_pipeline.defs.schedules import build_schedules, find_unscheduled
from compevo_pipeline.sources.common.base import Clock, FrameKind
from compevo_pipeline.sources.feeds import FeedTable
from compevo_pipeline.work.deployment import Deployment, utc_now
from compevo_pipeline.work.source_coverage import NEWS


def build_defs(
    settings: Settings,
    *,
    feeds: FeedTable | None = None,
    launchers: Launchers | None = None,
    clock: Clock | None = None,
) -> dg.Definitions:
    """Wire the graph of one deployment, without research.

    What is given takes the place of the project's own.
    """
    deployment = Deployment(settings=settings, clock=clock or utc_now)
    registry = deployment.registry
    broken = {**find_unscheduled(deployment), **registry.broken}
    table: FeedTable = {**deployment.feeds(), **(feeds or {})}

    declared = registry.declared
    daily = {name: each for name, each in declared.items() if each.spec.starts_with_days}
    blocks = {name: keys.make_blocks(registry.find_blocks(name)) for name in declared}
    own = [name for name, each in declared.items() if each.declaration and not blocks[name]]
    # Articles of own data sets are embedded, too.
    with_news = [
        keys.series_key(dataset.name)
        for dataset in declared.values()
        if any(FrameKind.ARTICLES in feed.parsers for feed in dataset.feeds)
    ]
    fetched = {
        name: keys.make_months(declared[name].spec if name != NEWS else None)
        for name in (*declared, NEWS)
        if sources.can_fetch(settings, table[name])
    }
    by_dataset = (
        windows.build_windows_asset,
        training.build_model_asset,
        evaluation.build_baselines_asset,
        evaluation.build_population_test_asset,
    )
    # The report shows the scores of own data sets and the forecasts of all, but no blocks.
    shown = [key for name in own for key in keys.score_keys(name)]
    of_forecasts = (keys.next_day_key, keys.scored_key)
    shown += [key(name) for name in daily if not blocks[name] for key in of_forecasts]
    assets = [
        *(
            sources.build_series_asset(each, table[name], blocks[name])
            for name, each in declared.items()
        ),
        sources.build_articles_asset(table[NEWS]),
        *(sources.build_months_asset(name, months) for name, months in fetched.items()),
        sources.build_embeddings_asset(with_news),
        *(build(name, blocks[name]) for name in declared for build in by_dataset),
        *(forecast.build_next_day_asset(each, blocks[name]) for name, each in daily.items()),
        *(forecast.build_scored_asset(name, blocks[name]) for name in daily),
        sources.coverage,
        report.build_site_asset(lambda home: _load_wing().write_research(home), shown),
        report.cleaned,
        *(sources.build_broken_asset(name, message) for name, message in broken.items()),
    ]

    jobs = build_jobs(registry)  # schedules name jobs by object, so both come from one list
    return build_location(
        deployment,
        launchers,
        assets=assets,
        asset_checks=[*build_asset_checks(registry), sources.check_coverage],
        jobs=[*jobs, sources.coverage_job, sources.backfill_job],
        schedules=[*build_schedules(jobs, deployment), sources.hourly_coverage],
        sensors=[dead_runs, *build_alert_sensors(deployment)],
        resources={"audit_news": lambda *news, **how: _load_wing().audit_news(*news, **how)},
    )


def _load_wing() -> Any:  # noqa: ANN401 - a module
    """Import the wing late: a fault of it fails only the step that needs it."""
    from compevo_pipeline.paper import assets

    return assets


defs = build_defs(Settings.from_environment())
