"""The context of a live fetch: client, fetch log, time, span, and tolerated failures.

What belongs here: these objects, and files that a person fetched by hand. What does not: what to
ask of whom (a source's own ``live`` module), how it is asked (``common.http``).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from compevo_core.errors import (
    ConfigError,
    SourceAbsent,
    SourceBlocked,
    SourceError,
    SourceRejected,
)
from compevo_pipeline.sources.common.base import Mode, RawFile, read_archive_file
from compevo_pipeline.sources.common.hosts import PemsAccess, QueryKey
from compevo_pipeline.sources.common.http import Client, FileRequest
from compevo_pipeline.sources.common.ledger import EntryState, Ledger

MAX_FAILED_FILES = 3  # files of one product that may fail before the rest is not asked for
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LiveContext:
    """One live fetch of one feed."""

    client: Client  # asks the publishers
    ledger: Ledger  # what was asked, what came, what is absent
    now: datetime  # present time in UTC
    since: datetime | None = None  # start of a backfill's span; None is what a daily refresh needs
    until: datetime | None = None  # end of a backfill's span; None is now
    saved: Path | None = None  # archive folder, whose files a person may have fetched by hand
    pems: PemsAccess | None = None  # the account at PeMS
    open_meteo: QueryKey | None = None  # the key of a paid plan at Open-Meteo
    news_queries: Path | None = None  # file of queries in place of the packaged one

    def __post_init__(self) -> None:
        """Reject a span that has no start or ends before it."""
        if self.until is not None and self.since is None:
            raise ConfigError("a span with until needs since as well; name both, or neither")
        if self.since is not None and self.since >= (self.until or self.now):
            raise ConfigError(f"since {self.since} is not before until {self.until or self.now}")

    def span(self, lookback: timedelta) -> tuple[datetime, datetime]:
        """Return the start and end to fetch: the backfill's, or the ``lookback`` up to now."""
        end = min(self.until or self.now, self.now)
        return (self.since or self.now - lookback), end

    def fetch(self, request: FileRequest) -> Iterator[RawFile]:
        """Yield a file, unless its rows are stored and the publisher has nothing newer."""
        raw = self.client.fetch(request)
        if raw is not None:
            yield raw


@dataclass
class Tolerance:
    """Tolerates failures of single files of a product, and stops when there are too many."""

    product: str
    arrived: int = 0
    failures: list[SourceError] = field(default_factory=list)

    @contextmanager
    def attempt(self, live: LiveContext, request: FileRequest) -> Iterator[None]:
        """Fetch one file in the block; if that fails, note it and continue with the next one.

        The absence of a final file, which never changes, is remembered. SourceBlocked and
        SourceRejected pass: the next file would meet the same. Of other failures the last of
        :data:`MAX_FAILED_FILES` passes; absent files do not count.
        """
        try:
            yield
            self.arrived += 1
        except SourceAbsent as error:
            self.failures.append(error)
            if request.is_final:
                live.ledger.mark_absent(request.source, request.name, request.url, live.now)
        except (SourceBlocked, SourceRejected):
            raise
        except SourceError as error:
            self.failures.append(error)
            note = f"{type(error).__name__}: {error}"
            live.ledger.reject(request.source, request.name, note)
            log.warning("%s: %s", self.product, error)
            failed = [error for error in self.failures if not isinstance(error, SourceAbsent)]
            if len(failed) >= MAX_FAILED_FILES:
                raise

    def raise_if_nothing_arrived(self) -> None:
        """Raise the first failure where at least one file was asked for and none came."""
        if self.failures and not self.arrived:
            raise self.failures[0]


def read_new_saved_files(
    live: LiveContext, folder: str, pattern: str, *, source: str
) -> Iterator[RawFile]:
    """Yield the files that a person saved below the archive folder, and that are not stored yet.

    A file counts as fetched when it was saved: it never replaces a value that was fetched later.
    """
    if live.saved is None:
        return

    for path in sorted((live.saved / folder).glob(pattern)):
        # What a person unpacked there may be a folder of the archive's name.
        if not path.is_file():
            continue
        saved_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        raw = read_archive_file(path, live.saved, source=source, clock=lambda: live.now)
        raw = replace(raw, fetched_at=min(saved_at, live.now))

        key = name_entry(raw)
        entry = live.ledger.get(*key)
        if entry is None or entry.state is not EntryState.STORED or entry.sha256 != raw.sha256:
            live.ledger.record_fetched(*key, url=raw.url, sha256=raw.sha256, now=live.now)
            yield raw


def name_entry(raw: RawFile) -> tuple[str, str]:
    """Return source and name of the ledger's entry of a file that live mode reads."""
    if raw.mode is Mode.LIVE:
        return raw.source, raw.packed_in or raw.name
    # Under a source of its own: the publisher's file of that name is another entry.
    return f"{raw.source}-saved", PurePosixPath(raw.url).name
