"""From a feed's files to stored rows: series, the frames next to them, articles.

What belongs here: reading feeds in every mode, storing their rows, making them again from kept
files, finding what the stores have lost since a run. What does not: parsing (``sources``), files
(``storage``), what rows must fulfil (``work.row_rules``), windows (``work.stored_windows``).
Nothing is stored until every file of a feed has been parsed and checked.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from compevo_core.data.context import PUBLISHED
from compevo_core.data.news import NEAR, drop_near_identical, select_articles
from compevo_core.errors import DataError, SourceAbsent, SourceError, SourceTransient
from compevo_core.runtime.files import hash_file, hash_text
from compevo_pipeline.sources.common.base import FrameKind, Mode, RawFile
from compevo_pipeline.sources.common.ledger import Ledger
from compevo_pipeline.sources.common.live import name_entry
from compevo_pipeline.sources.feeds import Feed
from compevo_pipeline.storage.code_versions import code_version, hash_parts
from compevo_pipeline.storage.series_changes import describe_waiting
from compevo_pipeline.work import row_rules
from compevo_pipeline.work.deployment import Deployment

Span = tuple[datetime | None, datetime | None]  # start and end of a backfill in live mode
WHAT_IS_NEW: Span = (None, None)  # what a daily refresh fetches, instead of a backfill's span
DATA_VERSION_TAG = "dagster/data_version"  # by which Dagster reads the version in an event
_VERSION_DIGITS = 32
_SHOWN_LOST = 5
_INGEST_CODE = (
    "compevo_core/data",
    "compevo_pipeline/sources",
    "compevo_pipeline/storage",
    "compevo_pipeline/work/ingest.py",
    "compevo_pipeline/work/row_rules.py",
)

MAX_BATCH_BYTES = 256 * 2**20  # of files that are stored together; a backfill resumes after them
MIN_READABLE_SHARE = 0.5  # of the files of a batch: with fewer, the format has changed


def ingest_feed(
    deployment: Deployment,
    feed: Feed,
    dataset: str,
    *,
    log: logging.Logger,
    span: Span = WHAT_IS_NEW,
    is_whole: bool = False,
) -> dict[str, int]:
    """Parse the files of a feed, keep their bytes and store the frames; return counts by name.

    If the data set ``is_whole`` since it was last read, files on disk are not parsed again.
    """
    if deployment.data_mode is not Mode.LIVE or feed.fetch_live is None:
        ingest = _Ingest(deployment, feed, dataset, deployment.clock(), log)
        archive, clock = deployment.settings.archive, deployment.clock
        files = list(feed.read_files(deployment.data_mode, archive, clock))
        counts = _ingest_files(ingest, files, is_whole=is_whole)
    else:
        mend_store(deployment, dataset, log=log)
        live = deployment.live_context(since=span[0], until=span[1])
        ingest = _Ingest(deployment, feed, dataset, live.now, log)
        counts = _ingest_arriving(ingest, live.ledger, feed.fetch_live(live))

    described = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    log.info(f"{feed.name}: {described}")
    return dict(counts)


def _ingest_arriving(
    ingest: "_Ingest", ledger: Ledger, arriving: Iterator[RawFile]
) -> dict[str, int]:
    """Store what a publisher sends, batch by batch; batches before a failure are stored, too."""
    feed, dataset, log = ingest.feed, ingest.dataset, ingest.log
    counts = Counter(files=0)
    is_last = False
    failure: SourceError | None = None
    while not is_last and failure is None:
        batch: list[RawFile] = []
        size = 0
        try:
            for raw_file in arriving:
                batch.append(raw_file)
                size += len(raw_file.content)
                if size >= MAX_BATCH_BYTES:
                    break
            else:
                is_last = True
        except SourceError as error:
            is_last, failure = True, error

        if batch:
            read = ingest.read_batch(batch)
            # The next run fetches them again.
            for raw_file, fault in read.rejected:
                ledger.reject(*name_entry(raw_file), f"{type(fault).__name__}: {fault}")
                log.warning("%s is left out: %s", feed.name, fault)
            if read.error is not None and not read.files:
                raise read.error

            # The format seems to have changed: what can be read is stored, and the run fails.
            if len(read.files) < MIN_READABLE_SHARE * len(batch):
                failure = read.error
            counts.update(ingest.store(read))
            counts["rejected"] += len(read.rejected)
            # The next run also fetches the files with waiting changes of known values again.
            if FrameKind.SERIES in feed.parsers:
                waiting = ingest.deployment.series_store().read_waiting(dataset)
                by_source = waiting.partition_by("source", as_dict=True)
                for raw_file in read.files:
                    if (raw_file.label,) in by_source:
                        note = describe_waiting(by_source[raw_file.label,], dataset)
                        ledger.reject(*name_entry(raw_file), note)
                        log.warning("%s: %s: %s", feed.name, raw_file.name, note)
        # The last file may have more members than this batch holds.
        ledger.confirm(keep_last=not is_last)

    note_rows(ingest.deployment, dataset)
    if failure is not None:
        raise failure
    return counts


def _ingest_files(ingest: "_Ingest", files: Sequence[RawFile], *, is_whole: bool) -> dict[str, int]:
    """Parse and store the files of a feed, unless exactly these were, and all is still there."""
    deployment, feed, dataset = ingest.deployment, ingest.feed, ingest.dataset
    receipts, name = deployment.receipts(), f"feed {dataset} {feed.name} {feed.accepts_gaps}"
    declared = deployment.registry[dataset].declaration if dataset in deployment.registry else None
    read_by = (declared, deployment.settings.news_queries)
    made_of = hash_parts(
        [
            code_version(*_INGEST_CODE),
            *(hash_file(path) for path in read_by if path is not None),
            deployment.settings.pems_stations,
            *(f"{raw_file.label} {raw_file.sha256}" for raw_file in files),
        ]
    )
    if is_whole and receipts.find(name, made_of):
        return {**_measure(files), "known files": len(files)}

    # All parsers run, and all rows are looked at, before anything is stored.
    counts = ingest.store(ingest.read(files))
    # Reading the same files again later confirms changes that wait.
    is_dataset = dataset in deployment.registry
    if not is_dataset or deployment.series_store().read_waiting(dataset).is_empty():
        receipts.keep(name, made_of)
    return counts


def hash_stored(deployment: Deployment, dataset: str) -> str:
    """Return the version of the stored data of a data set, or of ``news``; empty without any.

    StoreBusy if a store was not free in time.
    """
    try:
        if dataset in deployment.registry:
            return hash_series(deployment, dataset)
        return hash_text(deployment.news_store().hash_content())[:_VERSION_DIGITS]
    except DataError:
        return ""


def ingest_dataset(
    deployment: Deployment,
    dataset: str,
    feeds: Sequence[Feed] | None = None,
    *,
    log: logging.Logger,
    span: Span = WHAT_IS_NEW,
) -> dict[str, dict[str, int]]:
    """Read feeds of a data set, or of ``news``, one after the other; return counts by feed.

    Without ``feeds`` all that exist in the mode are read.

    A feed that the archive lacks is left out with a warning, and so is an optional one that fails.
    In live mode all feeds are read before another failure is raised; in other modes the first one
    ends the call. ConfigError if there is no such data set; SourceError if another feed fails, or
    none brings series or articles.
    """
    if feeds is None:
        table = deployment.feeds()
        known = table[dataset] if dataset in table else table[deployment.registry[dataset].name]
        feeds = [feed for feed in known if feed.exists_in(deployment.data_mode)]
    if find_damaged(deployment, dataset):
        rebuild(deployment, dataset, log=log)
    receipts, receipt = deployment.receipts(), f"stored {dataset}"
    before = hash_stored(deployment, dataset)
    is_whole = receipts.find(receipt, before) is not None
    counts: dict[str, dict[str, int]] = {}
    left_out: SourceError | None = None
    failures: list[SourceError] = []
    for feed in feeds:
        try:
            counts[feed.name] = ingest_feed(
                deployment, feed, dataset, log=log, span=span, is_whole=is_whole
            )
        except SourceError as error:
            is_absent = isinstance(error, SourceAbsent) and deployment.data_mode is Mode.ARCHIVE
            if not feed.replaces and (is_absent or feed.is_optional):
                left_out = left_out or error
                log.warning(f"{feed.name} is left out: {type(error).__name__}: {error}")
            elif deployment.data_mode is Mode.LIVE and feed.fetch_live is not None:
                failures.append(error)
                log.warning(f"{feed.name} failed: {type(error).__name__}: {error}")
            else:
                raise

    if (stored := hash_stored(deployment, dataset)) != before or not is_whole:
        receipts.keep(receipt, stored)
    if failures:
        # A retry may cure a transient failure, so the run ends with this one.
        transient = [error for error in failures if isinstance(error, SourceTransient)]
        raise [*transient, *failures][0]

    # Weather by itself is no data set.
    brought = {kind for feed in feeds if feed.name in counts for kind in feed.parsers}
    if left_out is not None and not brought & {FrameKind.SERIES, FrameKind.ARTICLES}:
        raise left_out
    return counts


def find_damaged(deployment: Deployment, dataset: str, *, sets_aside: bool = False) -> list[Path]:
    """Return the damaged stored files of a data set."""
    if dataset not in deployment.registry:
        return []
    return deployment.series_store().set_aside_damaged(dataset, dry=not sets_aside)


def mend_store(
    deployment: Deployment, dataset: str, *, log: logging.Logger
) -> dict[str, dict[str, int]]:
    """Restore what a store has lost, from the kept files; return counts by feed.

    Files whose bytes are also gone are asked for again, as far as a refresh or a backfill reaches.
    """
    lost = find_lost(deployment, dataset)
    if not lost:
        return {}
    shown = ", ".join(f"{count:,} of {name}" for name, count in sorted(lost.items())[:_SHOWN_LOST])
    log.warning(f"{dataset} lacks rows that were stored ({shown}): its raw files are read again")
    counts = rebuild(deployment, dataset, log=log)
    gone = ask_for_gone(deployment, deployment.feeds()[dataset])
    if gone:
        log.warning(
            f"{dataset}: the bytes of {gone} stored files are gone too; they are requested again; "
            "for days that a refresh does not reach, run `compevo backfill`"
        )
    return counts


def rebuild(
    deployment: Deployment, dataset: str, *, log: logging.Logger
) -> dict[str, dict[str, int]]:
    """Store the rows of every kept raw file of a data set, or of ``news``, once more.

    Stored rows that are newer stay, but damaged files are set aside first. A file that was refused
    is refused again. SourceError if a user's own file cannot be read.
    """
    for path in find_damaged(deployment, dataset, sets_aside=True):
        log.warning(f"{path} is damaged: it is set aside and made again")
    counts: dict[str, dict[str, int]] = {}
    for feed in deployment.feeds()[dataset]:
        if feed.replaces:
            counts[feed.name] = ingest_feed(deployment, feed, dataset, log=log)
            continue
        of_feed: Counter[str] = Counter()
        ingest = _Ingest(deployment, feed, dataset, deployment.clock(), log)
        for batch in list_batches(deployment, feed, log):
            files: list[RawFile] = []
            for raw_file in batch:
                try:
                    files.extend(feed.unpack(raw_file))
                except SourceError as error:
                    of_feed["rejected"] += 1
                    log.warning(f"{raw_file.label} is left out: {error}")
            if not files:
                continue
            read = ingest.read_batch(files)
            if read.rejected:
                of_feed["rejected"] += len(read.rejected)
            if read.files:
                of_feed.update(ingest.store(read))
        if of_feed:
            counts[feed.name] = dict(of_feed)
            log.info(f"{feed.name}: " + ", ".join(f"{n:,} {name}" for name, n in of_feed.items()))

    note_rows(deployment, dataset)
    return counts


def hash_series(deployment: Deployment, dataset: str) -> str:
    """Return the version of what is stored of a data set.

    It covers series, the frames next to them, and articles of the data set's own.
    """
    parts = deployment.series_store().hash_files(dataset)
    publisher = deployment.registry[dataset].spec.news_source
    news = deployment.news_store()
    # A user's data set brings its articles with its series, if it has any.
    if publisher and news.path.exists():
        parts.append(news.hash_content(publisher))
    return hash_text("\n".join(parts))[:_VERSION_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Files that can be read with their contents, and the others."""

    files: Sequence[RawFile] = ()
    frames: Mapping[FrameKind, pl.DataFrame] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)  # counts of what was left out of them
    rejected: Sequence[tuple[RawFile, SourceError]] = ()
    error: SourceError | None = None  # of all files together


@dataclass(frozen=True, slots=True)
class _Ingest:
    """Reads files of a feed into the stores of a data set, as of one moment."""

    deployment: Deployment
    feed: Feed
    dataset: str
    now: datetime
    log: logging.Logger

    def read(self, raw_files: Sequence[RawFile]) -> _Batch:
        """Parse files, and refuse or leave out what cannot be true."""
        frames: dict[FrameKind, pl.DataFrame] = {}
        losses: dict[str, int] = {}
        for kind, parse in self.feed.parsers.items():
            parsed = parse(raw_files)
            frame, counts = parsed if isinstance(parsed, tuple) else (parsed, {})
            losses |= counts

            if kind is FrameKind.ARTICLES:
                in_time = frame.filter(row_rules.is_in_time(self.now))
                frame, losses["mistimed"] = in_time, frame.height - in_time.height
            elif kind is FrameKind.SERIES:
                rules = self.deployment.registry[self.dataset].rules
                frame, losses["out of bounds"] = row_rules.quarantine_outside(frame, rules)
                if any(rule.is_steady for rule in rules.variables.values()):
                    earlier = self._read_earlier(frame)
                    frame, losses["stuck or collapsed"] = row_rules.quarantine_faults(
                        frame, earlier, rules
                    )
                row_rules.refuse_series(frame, rules, self.now)
            elif not (kind is FrameKind.STEP_COVARIATES and self.feed.replaces):
                # A user's own plan or calendar may reach as far ahead as it likes.
                row_rules.refuse_future(frame, self.now)
            frames[kind] = frame

        self._refuse_far(frames, frames)
        return _Batch(files=raw_files, frames=frames, losses=losses)

    def read_batch(self, batch: Sequence[RawFile]) -> _Batch:
        """Read files together; if that fails, those that can be read one by one."""
        try:
            return self.read(batch)
        except SourceError as error:
            together = error

        rejected: list[tuple[RawFile, SourceError]] = []
        singles: list[tuple[RawFile, _Batch]] = []
        for raw_file in batch:
            try:
                singles.append((raw_file, self.read([raw_file])))
            except SourceError as error:
                rejected.append((raw_file, error))

        # Each by itself, and then together with what the others measured.
        measured = {
            kind: pl.concat([part.frames[kind] for _, part in singles])
            for kind in self.feed.parsers
            if singles
        }
        files: list[RawFile] = []
        for raw_file, parsed in singles:
            try:
                self._refuse_far(parsed.frames, measured)
                files.append(raw_file)
            except SourceError as error:
                rejected.append((raw_file, error))
        if not rejected:
            raise together  # several files together may fail even if each by itself does not
        readable = self.read(files) if files else _Batch()
        return replace(readable, rejected=rejected, error=together)

    def store(self, batch: _Batch) -> dict[str, int]:
        """Keep the bytes and store the rows; return what the log says about them."""
        store = self.deployment.raw_store()
        for raw_file in batch.files:
            # Files that came from a publisher just now were kept on arrival.
            if raw_file.mode is not Mode.LIVE:
                store.write(raw_file)

        counts = {**_measure(batch.files), **batch.losses}
        for kind, frame in batch.frames.items():
            counts |= self._store_frame(kind, frame)
        return counts

    def _read_earlier(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Read the stored values of the days up to the last row of a frame."""
        if not frame.height:
            return frame
        first, last = frame["start_utc"].min(), frame["start_utc"].max()
        is_near = pl.col("start_utc").is_between(
            pl.lit(first) - row_rules.LEVEL_REACH, pl.lit(last)
        )
        with contextlib.suppress(DataError):  # no series is stored yet
            return self.deployment.series_store().read(
                self.dataset, lambda rows: rows.filter(is_near)
            )
        return frame.clear()

    def _refuse_far(
        self, frames: Mapping[FrameKind, pl.DataFrame], others: Mapping[FrameKind, pl.DataFrame]
    ) -> None:
        """Refuse forecasts that are far from what is stored and from what other files hold."""
        dataset, store = self.dataset, self.deployment.series_store()
        for kind in {FrameKind.PUBLISHED, FrameKind.STEP_COVARIATES} & frames.keys():
            frame, declared = frames[kind], self.deployment.registry[dataset]
            if frame.is_empty():
                continue
            since = frame.select(pl.col("start_utc").min()).item() - row_rules.LEVEL_REACH

            def near(rows: pl.LazyFrame, since: datetime = since) -> pl.LazyFrame:
                return rows.filter(pl.col("start_utc") >= since)

            if kind is FrameKind.STEP_COVARIATES:
                known = [store.read_frame(dataset, kind, near), others.get(kind)]
            else:
                measured = [others.get(FrameKind.SERIES)]
                with contextlib.suppress(DataError):  # no series is stored yet
                    measured.append(store.read(dataset, near))
                is_target = pl.col("variable") == declared.spec.variable
                entity = pl.col("series_id").str.split("/").list.last().alias("entity")
                known = [
                    part.filter(is_target).with_columns(entity, pl.lit(PUBLISHED).alias("name"))
                    for part in measured
                    if part is not None
                ]

            empty = frame.clear().with_columns(pl.lit("").alias("name"))
            levels = [
                part.select(row_rules.LEVEL_COLUMNS) for part in [empty, *known] if part is not None
            ]
            row_rules.refuse_forecasts(frame, declared.rules, pl.concat(levels).drop_nulls("value"))

    def _store_frame(self, kind: FrameKind, frame: pl.DataFrame) -> dict[str, int]:
        deployment, replaces = self.deployment, self.feed.replaces
        if kind is FrameKind.SERIES:
            store = deployment.series_store()
            declared = deployment.registry[self.dataset].declaration if replaces else None
            report = store.write(
                self.dataset,
                frame,
                replace=replaces,
                # Changes by a new declaration are intended.
                accept=declared is not None and store.is_older(self.dataset, declared),
            )
            if replaces and report.waiting:
                note = describe_waiting(store.read_waiting(self.dataset), self.dataset)
                self.log.warning("%s waits: %s", self.feed.name, note)
            if replaces:
                # A user's own data set may have no news; windows are cut from an empty store then.
                deployment.news_store().create()
            return {
                "series rows": report.rows,
                "new": report.added,
                "changed": report.changed,
                "superseded": report.superseded,
                "nulls kept out": report.nulls_kept_out,
                "removed": report.removed,
                "absent": report.absent,
                "waiting": report.waiting,
            }

        if kind is FrameKind.ARTICLES:
            given = frame.height
            if self.feed.folds_titles and deployment.data_mode is Mode.LIVE and given:
                # Near-identical headlines stored on the days before. News of a user's own data set
                # is separate, and replaces none of the others.
                at = pl.col("available_at")
                first, last = frame.select(at.min().alias("first"), at.max().alias("last")).row(0)
                with contextlib.suppress(DataError):  # nothing is stored yet
                    known = deployment.news_store().read_articles(first - NEAR, last)
                    frame = drop_near_identical(frame, select_articles(known, ""))
            stored = deployment.news_store().upsert_articles(frame)
            return {
                "articles": frame.height,
                "new": stored.added,
                "changed": stored.changed,
                "told before": given - frame.height,
            }

        deployment.series_store().write_frame(self.dataset, kind, frame, replace=replaces)
        # Only of this batch, like the other counts, which are summed over batches and months.
        return {f"{kind} rows": frame.height}


def _measure(raw_files: Sequence[RawFile]) -> dict[str, int]:
    return {"files": len(raw_files), "bytes": sum(len(raw.content) for raw in raw_files)}


def list_batches(
    deployment: Deployment, feed: Feed, log: logging.Logger
) -> Iterator[list[RawFile]]:
    """Yield the kept files of a feed, oldest first, in batches that hold no name twice.

    Earlier versions of a file come in their turn, so what only they hold is stored, too. A file
    whose bytes have changed is left out with a warning.
    """
    batch: list[RawFile] = []
    size = 0
    for file in deployment.raw_store().list_kept():
        if not file.label.startswith(feed.labels):
            continue
        raw = file.load()
        if raw is None:
            log.warning("%s is damaged and left out", file.path)
            continue
        if batch and (size > MAX_BATCH_BYTES or any(raw.label == other.label for other in batch)):
            yield batch
            batch, size = [], 0
        batch.append(raw)
        size += len(raw.content)

    if batch:
        yield batch


def count_rows(deployment: Deployment, dataset: str) -> dict[str, int]:
    """Return the rows of each store that the feeds of a data set write, by the store's name."""
    counts = deployment.series_store().count_rows(dataset)
    kinds = {kind for feed in deployment.feeds()[dataset] for kind in feed.parsers}
    if FrameKind.ARTICLES in kinds:
        try:
            counts["articles"] = int(deployment.news_store().count_days()["articles"].sum())
        except DataError:
            counts["articles"] = 0
    return counts


def find_lost(deployment: Deployment, dataset: str) -> dict[str, int]:
    """Return how many rows each store has lost since the last run of a data set ended."""
    noted = deployment.receipts().find(f"rows {dataset}", "")
    if noted is None:
        return {}
    there = count_rows(deployment, dataset)
    return {
        name: rows - there.get(name, 0) for name, rows in noted.items() if rows > there.get(name, 0)
    }


def note_rows(deployment: Deployment, dataset: str) -> None:
    """Note how many rows are stored, for :func:`find_lost` of the next run."""
    deployment.receipts().keep(f"rows {dataset}", "", count_rows(deployment, dataset))


def ask_for_gone(deployment: Deployment, feeds: Sequence[Feed]) -> int:
    """Let the next fetch also ask for stored files whose bytes are gone; return their number."""
    labels = tuple(label for feed in feeds for label in feed.labels)
    ledger, raw = deployment.ledger(), deployment.raw_store()
    stored = [
        entry
        for entry in ledger.list_entries()
        if entry.is_stored
        and f"{Mode.LIVE}:{entry.source.removesuffix('-saved')}/".startswith(labels)
    ]
    gone = {entry.name for entry in stored if entry.sha256 and raw.read(entry) is None}
    # A report of a weekly zip has no bytes of its own.
    packs = {f"packed in {name}" for name in gone}
    lost = [entry for entry in stored if entry.name in gone or entry.note in packs]
    ledger.forget([(entry.source, entry.name) for entry in lost])
    return len(lost)
