"""Fetching what is missing of a past span, month by month.

What belongs here: the months of a span, their order, progress with the time that is left. What does
not: what a feed asks its publisher for (``sources``), storing (``work.ingest``), Dagster
(``defs.assets.sources``).

A month is fetched, parsed and stored before the next begins. A backfill that was stopped or failed
is started again with the same words: files that are stored are not asked for again, files that were
fetched and not stored are read from disk, and files that were absent when their pause ends.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from compevo_core.errors import ConfigError
from compevo_core.runtime.usage import format_duration
from compevo_pipeline.sources.common.base import Clock, Mode
from compevo_pipeline.sources.feeds import Feed, FeedTable
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import ingest_feed

_MONTHS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPart:
    """One feed and one part of the span; both bounds in UTC, the end not included."""

    feed: Feed
    since: datetime
    until: datetime

    def __str__(self) -> str:
        """Return the feed and the first day, for progress lines."""
        return f"{self.feed.name} from {self.since:%Y-%m-%d}"


def backfill(
    deployment: Deployment,
    dataset: str,
    feeds: Sequence[Feed],
    *,
    since: datetime,
    until: datetime | None = None,
    clock: Clock,
    log: logging.Logger,
    counts: dict[str, Counter[str]] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Counter[str]]:
    """Fetch and store what is missing of a span, oldest month first; return counts by feed.

    ``feeds`` are as ``choose_feeds`` gives them; without ``until`` the span ends now. ``counts`` is
    filled month by month, for whoever must know what was stored before a failure.

    Raises:
        ConfigError: not live mode, or an empty span.
        SourceError: a feed failed; the months before it are stored.
    """
    if deployment.data_mode is not Mode.LIVE:
        raise ConfigError(
            f"a backfill asks publishers, and the mode is {deployment.data_mode}: set "
            "COMPEVO_MODE=live, or the mode of the resource deployment"
        )
    now = clock()
    # A month that has not begun has no file, and its absence would end the backfill as a failure.
    parts = list_parts(feeds, since, min(until or now, now))
    if not parts:
        raise ConfigError(f"nothing to fetch from {since:%Y-%m-%d} on; name a span that has begun")

    counts = {} if counts is None else counts
    started = monotonic()
    for number, part in enumerate(parts, start=1):
        span = (part.since, part.until)
        part_counts = ingest_feed(deployment, part.feed, dataset, clock=clock, log=log, span=span)
        counts.setdefault(part.feed.name, Counter()).update(part_counts)

        left_s = (monotonic() - started) / number * (len(parts) - number)
        log.info(
            f"{dataset}: {part} done, {number} of {len(parts)} parts, "
            f"about {format_duration(left_s)} left"
        )
    return counts


def choose_feeds(feeds: FeedTable, dataset: str, names: Sequence[str] | None) -> list[Feed]:
    """Return the feeds of a data set that have an endpoint, or the named ones among them.

    Raises:
        ConfigError: an unknown data set or feed, or none with an endpoint.
    """
    if dataset not in feeds:
        raise ConfigError(f"no sources of {dataset!r}; known: {', '.join(feeds)}")

    connected = {feed.name: feed for feed in feeds[dataset] if feed.fetch_live is not None}
    unknown = sorted(set(names or ()) - set(connected))
    if unknown or not connected:
        known = ", ".join(connected) or "none"
        raise ConfigError(
            f"no feed {', '.join(unknown)} of {dataset} has an endpoint; those that have: {known}"
        )
    return [connected[name] for name in names or connected]


def list_parts(feeds: Sequence[Feed], since: datetime, until: datetime) -> list[BackfillPart]:
    """Return the months of a span for each feed; one part for a feed that is asked at once."""
    months = list(_list_months(since, until))
    return [
        BackfillPart(feed=feed, since=start, until=end)
        for feed in feeds
        for start, end in ([(since, until)] if feed.is_whole and months else months)
    ]


def _list_months(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    start = since
    while start < until:
        years, month = divmod(start.month, _MONTHS)
        following = start.replace(year=start.year + years, month=month + 1, day=1)
        end = min(following.replace(hour=0, minute=0, second=0, microsecond=0), until)
        yield start, end
        start = end
