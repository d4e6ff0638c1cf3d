"""The Dagster code location: wiring only.

:func:`build_defs` is the one place where assets, checks, jobs, schedules and resources meet. Tests call it with fakes
for resources and get the same graph that runs in production.
"""

import dagster as dg

from compevo_pipeline.assets.ablation import variants
from compevo_pipeline.assets.evaluation import baselines, population
from compevo_pipeline.assets.leakage import inference_2026
from compevo_pipeline.assets.lud import lud
from compevo_pipeline.assets.news import articles, embeddings
from compevo_pipeline.assets.report import site
from compevo_pipeline.assets.series import series_assets
from compevo_pipeline.assets.training import compevo
from compevo_pipeline.assets.windows import windows_assets
from compevo_pipeline.checks.asset_checks import all_checks
from compevo_pipeline.feeds import FeedTable, default_feeds
from compevo_pipeline.jobs import jobs
from compevo_pipeline.launchers.kubernetes import PodSpec
from compevo_pipeline.loggers import plain_logger
from compevo_pipeline.resources import Clock, Launchers, Workspace
from compevo_pipeline.schedules import schedules
from compevo_pipeline.settings import Settings


def build_defs(
    settings: Settings,
    *,
    feeds: FeedTable | None = None,
    launchers: Launchers | None = None,
    clock: Clock | None = None,
    pod: PodSpec | None = None,
) -> dg.Definitions:
    """Wires the whole graph for one deployment; every argument after ``settings`` replaces a default."""
    every_job = jobs()
    scored = [baselines, population, lud, variants, inference_2026, site]
    return dg.Definitions(
        assets=[*series_assets(), articles, embeddings, *windows_assets(), compevo, *scored],
        asset_checks=all_checks(),
        jobs=every_job,
        schedules=schedules(every_job),
        loggers={"console": dg.colored_console_logger, "plain": plain_logger},
        resources={
            "workspace": Workspace(settings=settings),
            "feeds": default_feeds() if feeds is None else feeds,
            "launchers": launchers or Launchers(pod),
            "clock": clock or Clock(),
        },
    )


defs = build_defs(Settings.from_environment())
