"""A deployment: its settings, and the stores and folders of one mode.

What belongs here: opening what the settings name. What does not: reading the environment
(``config.settings``), Dagster (``defs.resources`` hands a deployment to the assets). Every use case
takes a deployment, whether an asset, a command or the demo calls it.
"""

import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from compevo_core.baselines import SharedFits
from compevo_pipeline.config.settings import Layout, Settings
from compevo_pipeline.sources.common.base import Clock, Mode
from compevo_pipeline.sources.common.hosts import Pacer
from compevo_pipeline.sources.common.http import FEED_TIMEOUT_S, Client
from compevo_pipeline.sources.common.ledger import Entry, Ledger
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.raw_store import RawStore
from compevo_pipeline.sources.feeds import FeedTable, default_feeds
from compevo_pipeline.sources.registry import Registry, load_registry
from compevo_pipeline.storage.code_versions import Receipts, fits_folder
from compevo_pipeline.storage.embedding_store import EmbeddingStore
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import SeriesStore


def utc_now() -> datetime:
    """Return the present time in UTC: the clock of a deployment, unless another is set."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Stores, folders and clock of a mode; synthetic and real data never share a folder."""

    settings: Settings  # what the environment says
    mode: Mode | None = None  # where data comes from; None: as the settings say
    clock: Clock = utc_now  # what time it is

    @property
    def data_mode(self) -> Mode:
        """The mode in force."""
        return Mode(self.mode) if self.mode else self.settings.mode

    @property
    def is_aside(self) -> bool:
        """Whether a live deployment reads other data here, such as a demo on sample data."""
        return self.settings.mode is Mode.LIVE and self.data_mode is not Mode.LIVE

    @property
    def layout(self) -> Layout:
        """The folders of the mode."""
        return self.settings.layout(self.data_mode)

    @cached_property
    def registry(self) -> Registry:
        """The data sets: built-in ones and the user's own, read once."""
        return load_registry(self.settings.datasets_folder)

    def feeds(self) -> FeedTable:
        """Return the feeds of all data sets, built-in ones and the user's own, and of news."""
        built_in = default_feeds(self.settings.news_queries, self.settings.pems_stations)
        own = (*self.registry.own, *self.registry.families.values())
        return {**built_in, **{dataset.name: dataset.feeds for dataset in own}}

    def preset_for(self, dataset: str = "") -> str:
        """Return the training preset of a data set, or the usual one."""
        return self.settings.preset_for(self.data_mode, dataset)

    def live_context(
        self, *, since: datetime | None = None, until: datetime | None = None
    ) -> LiveContext:
        """Open a client and the ledger of live mode, for the given span.

        Requests of a refresh have ``FEED_TIMEOUT_S``, a backfill all the time that it needs.
        """
        ledger = self.ledger()
        client = Client(
            user_agent=self.settings.user_agent,
            clock=self.clock,
            ledger=ledger,
            raw=self.raw_store(),
            # All processes of a home take turns at a publisher's host.
            pacer=Pacer(folder=self.settings.home / "locks" / "hosts"),
            deadline=time.monotonic() + FEED_TIMEOUT_S if since is None else math.inf,
        )

        return LiveContext(
            client=client,
            ledger=ledger,
            now=self.clock(),
            since=since,
            until=until,
            saved=self.settings.archive,
            pems=self.settings.pems,
            open_meteo=self.settings.open_meteo,
            news_queries=self.settings.news_queries,
        )

    def shared_fits(self) -> SharedFits:
        """Open the fitted baselines, shared by all who need the same fits."""
        return SharedFits(fits_folder(self.layout))

    def receipts(self) -> Receipts:
        """Open the receipts that show which products need not be made again."""
        return Receipts(self.layout.receipts)

    def ledger(self) -> Ledger:
        """Open the record of what was asked of the publishers."""
        return Ledger(self.layout.ledger)

    def list_asked(self) -> list[Entry]:
        """Return the entries of the ledger; reading must not create it."""
        return self.ledger().list_entries() if self.layout.ledger.exists() else []

    def raw_store(self) -> RawStore:
        """Open the bytes as the publishers sent them."""
        return RawStore(self.layout.raw)

    def series_store(self) -> SeriesStore:
        """Open the Parquet series, and the frames next to them."""
        return SeriesStore(self.layout.root)

    def news_store(self) -> NewsStore:
        """Open the articles."""
        return NewsStore(self.layout.news_database)

    def embedding_store(self, encoder: str) -> EmbeddingStore:
        """Open the embeddings of an encoder."""
        return EmbeddingStore(self.layout.embeddings, encoder)
