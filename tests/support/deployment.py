"""A whole deployment in a temporary folder: the real graph, synthetic data, a tiny backbone."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from compevo_pipeline.config.settings import Layout, Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs.jobs import step_name
from compevo_pipeline.defs.resources import Launchers
from compevo_pipeline.paper import definitions as research
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.work.deployment import Deployment

NOW = datetime(2026, 4, 1, 8, 0, tzinfo=UTC)
QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}
"""Loggers of a run whose log is not read."""


class SetClock:
    def __init__(self, now=NOW):
        self.now = now

    def __call__(self):
        return self.now


class InlineLauncher(Launchers):
    def launch(self, context, jobs, kind="process", processes=None):
        return super().launch(context, jobs, "inline")


def open_home(home, mode="sample", *, now=NOW, **settings):
    """Open a home without Dagster, at an instant."""
    return Deployment(settings=Settings(home=home, mode=mode, **settings), clock=SetClock(now))


def few_feeds():
    """Everything electricity needs, and one news source."""
    feeds = default_feeds()
    return {**feeds, "news": tuple(feed for feed in feeds["news"] if feed.name == "news2forecast")}


def read_materialization(result, key=None):
    """Returns the only materialization of a run, or the one of an asset."""
    events = result.get_asset_materialization_events()
    (event,) = (one for one in events if key in (None, one.asset_key.to_user_string()))
    return event.step_materialization_data.materialization


@dataclass
class DagsterHome:
    home: Path
    defs: dg.Definitions
    research: dg.Definitions
    instance: dg.DagsterInstance

    @property
    def layout(self):
        return Layout(root=self.home / "sample")

    def materialize(self, *keys, dataset=None, partition=None, config=None, raise_on_error=True):
        """Materializes assets of one location by key, without the data set if that is given."""
        is_research = keys[0].startswith("research/")
        location = self.research if is_research else self.defs
        job = location.resolve_implicit_global_asset_job_def()
        if dataset is not None:
            keys = [f"{key}/{dataset}" for key in keys]
            config = {f"{key}/{dataset}": values for key, values in (config or {}).items()}
        ops = {
            step_name(dg.AssetKey(key.split("/"))): {"config": values}
            for key, values in (config or {}).items()
        }
        return job.execute_in_process(
            asset_selection=[dg.AssetKey(key.split("/")) for key in keys],
            partition_key=partition,
            run_config={"ops": ops, "loggers": QUIET},
            instance=self.instance,
            raise_on_error=raise_on_error,
        )


def deploy(home, *, settings=(), **overrides):
    settings = Settings(home=home, mode=Mode.SAMPLE, preset="tiny", **dict(settings))
    wired = {"feeds": few_feeds(), "launchers": InlineLauncher(), "clock": SetClock()} | overrides
    return DagsterHome(
        home=home,
        defs=build_defs(settings, **wired),
        research=research.build_defs(settings, launchers=wired["launchers"], clock=wired["clock"]),
        instance=dg.DagsterInstance.ephemeral(),
    )
