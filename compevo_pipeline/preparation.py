"""From feeds to what a training reads: stored frames, windows.

What belongs here: these steps for one data set, for assets and the command line alike. What does
not: Dagster (``assets``), parsing (``sources``), files (``storage``), how windows are cut
(``compevo_core.data.build``), news pools (``compevo_pipeline.embedded_news``). Nothing is stored
until every file of a feed has been parsed, so a torn file leaves what was stored as it was.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from compevo_core.data.build import build_windows
from compevo_core.data.near_titles import NEAR, drop_near_identical
from compevo_core.data.news import select_articles
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError, SourceAbsent, SourceError, SourceTransient
from compevo_pipeline.admission import drop_mistimed, refuse_future, refuse_series
from compevo_pipeline.feeds import Feed, default_feeds
from compevo_pipeline.resources import Workspace
from compevo_pipeline.sources.common.base import Clock, FrameKind, Mode, RawFile
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.saved import name_entry
from compevo_pipeline.storage.news_store import NewsStore, StoredArticles

log = logging.getLogger(__name__)

Span = tuple[datetime | None, datetime | None]
"""Start and end of a backfill in live mode."""

WHAT_IS_NEW: Span = (None, None)
"""What a daily refresh fetches, in place of a backfill's span."""

MAX_BATCH_BYTES = 256 * 2**20
"""Bytes of fetched files that are parsed and stored together; a backfill goes on after the last."""

MIN_READABLE_SHARE = 0.5
"""Share of the files of a batch that must be readable: with less, the format changed."""


def ingest_feed(
    workspace: Workspace,
    feed: Feed,
    dataset: str,
    *,
    clock: Clock,
    log: logging.Logger,
    span: Span = WHAT_IS_NEW,
) -> dict[str, int]:
    """Parse all files of a feed, then keep the raw bytes and store the frames.

    Returns:
        Files, bytes and stored rows by name.
    """
    if workspace.data_mode is Mode.LIVE and feed.fetch_live is not None:
        live = workspace.live_context(clock, since=span[0], until=span[1])
        counts = _ingest_live(workspace, feed, dataset, feed.fetch_live(live), live)
    else:
        raw_files = list(feed.read_files(workspace.data_mode, workspace.settings.archive, clock))
        # All parsers run, and all rows are looked at, before anything is stored.
        rows = _read_rows(workspace, feed, dataset, clock(), raw_files)
        counts = _store_rows(workspace, feed, dataset, raw_files, rows)

    described = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    log.info(f"{feed.name}: {described}")
    return counts


def ingest_feeds(
    workspace: Workspace,
    feeds: Sequence[Feed],
    dataset: str,
    *,
    clock: Clock,
    log: logging.Logger,
    span: Span = WHAT_IS_NEW,
) -> dict[str, dict[str, int]]:
    """Read feeds one after the other; one that fails leaves what the others give.

    A feed that the archive lacks is left out with a warning, and so is an optional one that fails.
    In live mode all feeds are read before the failure of another one is raised.

    Returns:
        Counts by feed.

    Raises:
        SourceError: of a feed that is not left out, or where none brings series or articles.
    """
    counts: dict[str, dict[str, int]] = {}
    left_out: SourceError | None = None
    failures: list[SourceError] = []
    for feed in feeds:
        try:
            counts[feed.name] = ingest_feed(
                workspace, feed, dataset, clock=clock, log=log, span=span
            )
        except SourceError as error:
            is_absent = isinstance(error, SourceAbsent) and workspace.data_mode is Mode.ARCHIVE
            if not feed.replaces and (is_absent or feed.is_optional):
                left_out = left_out or error
                log.warning(f"{feed.name} is left out: {type(error).__name__}: {error}")
            elif workspace.data_mode is Mode.LIVE and feed.fetch_live is not None:
                failures.append(error)
                log.warning(f"{feed.name} failed: {type(error).__name__}: {error}")
            else:
                raise

    if failures:
        # A retry may cure a transient failure: it is the one that the run ends with.
        transient = [error for error in failures if isinstance(error, SourceTransient)]
        raise [*transient, *failures][0]

    # Weather alone is no data set.
    brought = {kind for feed in feeds if feed.name in counts for kind in feed.parsers}
    if left_out is not None and not brought & {FrameKind.SERIES, FrameKind.ARTICLES}:
        raise left_out
    return counts


def ingest_dataset(
    workspace: Workspace, dataset: str, *, clock: Clock, log: logging.Logger
) -> dict[str, dict[str, int]]:
    """Read every feed of a data set that exists in the mode, and store what it gives.

    Returns:
        Counts by feed.

    Raises:
        ConfigError: there is no such data set, or its declaration is broken.
    """
    declared = workspace.registry()[dataset]
    settings = workspace.settings
    built_in = default_feeds(settings.news_queries, settings.pems_stations)
    feeds = declared.feeds or built_in[dataset]
    there = [feed for feed in feeds if feed.exists_in(workspace.data_mode)]
    return ingest_feeds(workspace, there, dataset, clock=clock, log=log)


def cut_windows(workspace: Workspace, dataset: str, news_cutoff: str = "origin") -> WindowSet:
    """Build the windows of a data set from what is stored.

    Raises:
        ConfigError: there is no such data set, or another cutoff than "origin" and "horizon-end".
        DataError: nothing of the data set is stored, or it is too short.
    """
    if news_cutoff not in ("origin", "horizon-end"):
        raise ConfigError(
            f"news_cutoff {news_cutoff!r} is neither 'origin' nor 'horizon-end'; correct the run "
            "configuration"
        )

    spec = workspace.registry()[dataset].spec
    tables = workspace.frame_store()
    return build_windows(
        spec,
        workspace.series_store().read(dataset),
        covariates=tables.read(dataset, FrameKind.COVARIATES),
        articles=StoredArticles(workspace.news_store(), spec.news_source),
        published=tables.read(dataset, FrameKind.PUBLISHED),
        benchmark=tables.read(dataset, FrameKind.BENCHMARK),
        step_covariates=tables.read(dataset, FrameKind.STEP_COVARIATES),
        news_cutoff=news_cutoff,  # type: ignore[arg-type]  # checked just above
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What files hold: frames by kind, and the counts of what was left out of them."""

    frames: Mapping[FrameKind, pl.DataFrame]
    losses: Mapping[str, int]


def _ingest_live(
    workspace: Workspace, feed: Feed, dataset: str, arriving: Iterator[RawFile], live: LiveContext
) -> dict[str, int]:
    """Store files as they arrive, batch by batch; what came before a failure is stored too."""
    read = functools.partial(_read_rows, workspace, feed, dataset, live.now)
    counts: Counter[str] = Counter(files=0)
    is_last = False
    failure: SourceError | None = None

    while not is_last:
        batch: list[RawFile] = []
        try:
            is_last = _fill_batch(batch, arriving)
        except SourceError as error:
            is_last, failure = True, error

        if batch:
            readable, rows = _read_arrived(feed, batch, read, live.ledger)
            counts.update(_store_rows(workspace, feed, dataset, readable, rows))
            counts["rejected"] += len(batch) - len(readable)
        # The last file may have more members than this batch holds.
        live.ledger.confirm(keep_last=not is_last)

    if failure is not None:
        raise failure
    return dict(counts)


def _fill_batch(batch: list[RawFile], arriving: Iterator[RawFile]) -> bool:
    """Append arriving files up to the size of a batch; return whether the last has arrived."""
    size = 0
    for raw_file in arriving:
        batch.append(raw_file)
        size += len(raw_file.content)
        if size >= MAX_BATCH_BYTES:
            return False
    return True


def _read_arrived(
    feed: Feed,
    batch: Sequence[RawFile],
    read: Callable[[Sequence[RawFile]], _Rows],
    ledger: Ledger,
) -> tuple[Sequence[RawFile], _Rows]:
    """Read a batch; a file that cannot be read is rejected, and is fetched anew by the next run.

    Raises:
        SourceError: less than :data:`MIN_READABLE_SHARE` of the files can be read.
    """
    try:
        return batch, read(batch)
    except SourceError:
        readable = [raw_file for raw_file in batch if _is_readable(feed, raw_file, read, ledger)]
        # Several files together may fail where each alone does not: that is no one file's fault.
        is_one_files_fault = len(readable) < len(batch)
        if not is_one_files_fault or len(readable) < MIN_READABLE_SHARE * len(batch):
            raise

    return readable, read(readable)


def _is_readable(
    feed: Feed, raw_file: RawFile, read: Callable[[Sequence[RawFile]], _Rows], ledger: Ledger
) -> bool:
    try:
        read([raw_file])
    except SourceError as error:
        ledger.reject(*name_entry(raw_file), f"{type(error).__name__}: {error}")
        log.warning("%s is left out: %s", feed.name, error)
        return False
    return True


def _read_rows(
    workspace: Workspace, feed: Feed, dataset: str, now: datetime, raw_files: Sequence[RawFile]
) -> _Rows:
    """Parse files, and refuse or leave out what cannot be true."""
    frames: dict[FrameKind, pl.DataFrame] = {}
    losses: dict[str, int] = {}
    for kind, parse in feed.parsers.items():
        parsed = parse(raw_files)
        frame, counts = parsed if isinstance(parsed, tuple) else (parsed, {})
        losses |= counts

        if kind is FrameKind.ARTICLES:
            frame, losses["mistimed"] = drop_mistimed(frame, now)
        elif kind is FrameKind.SERIES:
            refuse_series(frame, workspace.registry()[dataset].rules, now)
        else:
            refuse_future(frame, now)
        frames[kind] = frame
    return _Rows(frames, losses)


def _store_rows(
    workspace: Workspace, feed: Feed, dataset: str, raw_files: Sequence[RawFile], rows: _Rows
) -> dict[str, int]:
    store = workspace.raw_store()
    for raw_file in raw_files:
        # What came from a publisher just now was kept on arrival.
        if raw_file.mode is not Mode.LIVE:
            store.write(raw_file)

    counts = {"files": len(raw_files), "bytes": sum(len(raw.content) for raw in raw_files)}
    counts |= rows.losses
    for kind, frame in rows.frames.items():
        counts |= _store_frame(workspace, feed, dataset, kind, frame)
    return counts


def _store_frame(
    workspace: Workspace, feed: Feed, dataset: str, kind: FrameKind, frame: pl.DataFrame
) -> dict[str, int]:
    if kind is FrameKind.SERIES:
        report = workspace.series_store().write(dataset, frame, replace=feed.replaces)
        if feed.replaces and not workspace.layout.news_database.exists():
            # A user's own data set may have no news; windows are cut from an empty store then.
            workspace.news_store().upsert_articles(pl.DataFrame(schema=ARTICLE_SCHEMA))
        return {
            "series rows": report.rows,
            "new": report.added,
            "changed": report.changed,
            "superseded": report.superseded,
            "nulls kept out": report.nulls_kept_out,
            "removed": report.removed,
            "absent": report.absent,
        }

    if kind is FrameKind.ARTICLES:
        folded = 0
        if feed.folds_titles and workspace.data_mode is Mode.LIVE:
            kept = _fold_titles(workspace.news_store(), frame)
            frame, folded = kept, frame.height - kept.height
        stored = workspace.news_store().upsert_articles(frame)
        return {
            "articles": frame.height,
            "new": stored.added,
            "changed": stored.changed,
            "told before": folded,
        }

    workspace.frame_store().write(dataset, kind, frame, replace=feed.replaces)
    # Those of this batch, like the other counts, which are summed over batches and months.
    return {f"{kind} rows": frame.height}


def _fold_titles(store: NewsStore, frame: pl.DataFrame) -> pl.DataFrame:
    """Leave out articles whose headline is stored, near-identical, from the days before."""
    if not frame.height:
        return frame
    first, last = frame.select(
        pl.col("available_at").min().alias("first"), pl.col("available_at").max().alias("last")
    ).row(0)
    try:
        known = store.read_articles(first - NEAR, last)
    except DataError:
        return frame  # nothing is stored yet

    # News of a user's own data set is no other's, and folds away nothing of theirs.
    return drop_near_identical(frame, select_articles(known, ""))
