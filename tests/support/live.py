"""A deployment in live mode whose publishers are the replay server; no test lives here."""

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg

from compevo_pipeline.defs.assets.sources import build_series_asset
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.work.ingest import WHAT_IS_NEW, ingest_dataset
from tests.support.deployment import QUIET, open_home

LOG = logging.getLogger("compevo.tests.live")


@dataclass
class LiveHome:
    home: Path
    now: datetime
    settings: dict = field(default_factory=dict)

    def __post_init__(self):
        self.workspace = open_home(self.home, Mode.LIVE, now=self.now, **self.settings)
        self.clock = self.workspace.clock

    @property
    def ledger(self):
        return Ledger(self.workspace.layout.ledger)

    def wait(self, **times):
        self.clock.now += timedelta(**times)

    def ingest(self, dataset, *, only=None, span=WHAT_IS_NEW):
        """Reads the live feeds of a data set as its asset does; returns counts by feed."""
        feeds = [feed for feed in self.workspace.feeds()[dataset] if feed.exists_in(Mode.LIVE)]
        chosen = [feed for feed in feeds if not only or feed.name in only]
        return ingest_dataset(self.workspace, dataset, chosen, log=LOG, span=span)

    def series(self, dataset):
        return self.workspace.series_store().read(dataset)

    def articles(self):
        return self.workspace.news_store().read_articles()

    def materialize(self, dataset):
        feeds = self.workspace.feeds()
        asset = build_series_asset(self.workspace.registry[dataset], feeds[dataset])
        options = {"resources": {"workspace": self.workspace}, "run_config": {"loggers": QUIET}}
        return dg.materialize([asset], **options, raise_on_error=False)
