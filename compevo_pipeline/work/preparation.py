"""From feeds to what a training reads: stored frames, windows.

What belongs here: these steps for one data set, and what parsed rows must fulfil before any of them
is stored. What does not: parsing (``sources``), files (``storage``), how windows are cut
(``compevo_core.data.build``), news pools (``work.embedded_news``). Nothing is stored until every
file of a feed has been parsed and checked: a series with one impossible row is rejected whole, by
the name of its file. Of news, a single article is left out and counted, because one bad headline
must not cost a day of others.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import polars as pl

from compevo_core.data.build import build_windows
from compevo_core.data.calendar import HOLIDAYS_VERSION
from compevo_core.data.context import PUBLISHED
from compevo_core.data.news import NEAR, drop_near_identical, select_articles
from compevo_core.data.schemas import ARTICLE_SCHEMA, UTC_US
from compevo_core.data.view import Window
from compevo_core.data.window import WindowSet, read_hash
from compevo_core.errors import (
    ConfigError,
    DataError,
    SchemaDrift,
    SourceAbsent,
    SourceError,
    SourceTransient,
)
from compevo_core.runtime.files import hash_file, hash_text
from compevo_pipeline.sources.common.base import Clock, FrameKind, Mode, RawFile
from compevo_pipeline.sources.common.live import LiveContext, name_entry
from compevo_pipeline.sources.feeds import Feed
from compevo_pipeline.sources.registry import Rules, Variable
from compevo_pipeline.storage.code_versions import code_version
from compevo_pipeline.storage.news_store import NewsStore, StoredArticles
from compevo_pipeline.storage.receipts import hash_parts
from compevo_pipeline.storage.series_changes import describe_waiting
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.kept_files import ask_for_gone, find_lost, list_batches, note_rows

LONGEST_REACH = timedelta(days=17)
"""How far ahead anybody publishes a forecast, of the weather; a later stamp is a wrong one."""

MEASURED_REACH = timedelta(days=2)
"""How far ahead a series may reach: it holds the publisher's forecast of the next day."""

NEWS_REACH = timedelta(days=1)  # how far a publisher's clock may be ahead
FAR_PUBLISHED = 3.0
"""How many times the level of the days before a published forecast may have, up or down.

AEMO's of May 2025 to April 2026 lie between 0.74 and 1.46 times the median of seven days.
"""
FAR_COVARIATE = 30.0
"""The same for other quantities; one cloudy day of rooftop solar power had a tenth."""

_LEVEL_DAYS = 7
_LEVEL_REACH = timedelta(days=40)  # how far back values are read for it
_LEVEL_COLUMNS = ("entity", "name", "start_utc", "value")
_SHOWN_COLUMNS = (
    *("series_id", "entity", "name", "variable", "quantile"),
    *("start_utc", "value", "unit", "recent"),
)

FIRST_NEWS = datetime(1990, 1, 1, tzinfo=UTC)
"""No page of the web is older; a stamp before is a clock that nobody set."""


def refuse_series(frame: pl.DataFrame, rules: Rules, now: datetime) -> None:
    """Refuse rows that break the rules of their data set.

    Raises:
        SchemaDrift: a stamp off the grid or of the future, another unit, or a value out of bounds;
            names the file and the first such row.
    """
    held = frame.filter(pl.col("value").is_not_null())

    # Weeks begin where the first one does, which the rows of one file cannot show: with a day.
    step = int(min(rules.step, timedelta(days=1)).total_seconds())
    seconds = pl.col("start_utc").dt.epoch("s") + int(rules.clock.total_seconds())
    _refuse(held, seconds % step != 0, f"off the grid of {rules.step}", "correct the stamps")
    _refuse_unknowable(find_unknowable(held, now), "start_utc", now)

    for name in held["variable"].unique().sort():
        # A variable without a rule of its own counts or measures something, so it has a zero.
        rule = rules.variables.get(name) or Variable(unit="", low=0.0, high=None)
        rows = held.filter(pl.col("variable") == name)
        if rule.unit:
            problem = f"in another unit than {rule.unit}"
            _refuse(rows, pl.col("unit") != rule.unit, problem, "correct the file or the parser")

        _refuse_outside(rows, name, rule)


def _refuse_outside(rows: pl.DataFrame, name: str, rule: Variable) -> None:
    region = (
        pl.col("entity" if "entity" in rows.columns else "series_id").str.split("/").list.last()
    )

    is_outside = {
        (place, low, high): ~pl.col("value").is_between(low, high)
        & (region == place if place else pl.lit(value=True))
        for place, (low, high) in {"": rule.bounds, **rule.regions}.items()
    }
    if not rows.select(pl.any_horizontal(*is_outside.values()).any()).item():
        return

    for (place, low, high), is_bad in is_outside.items():
        _refuse(
            rows,
            is_bad,
            f"outside the bounds of {name}{f' in {place}' if place else ''}, {low:g} to {high:g}",
            "the file may be in another unit: correct it, or the bounds of the data set",
        )


def refuse_forecasts(frame: pl.DataFrame, rules: Rules, recent: pl.DataFrame) -> None:
    """Refuse forecasts of others that are impossible, or far from what the last days were like.

    A level is the median of a file's median forecast of the target. Of another quantity that has a
    zero it is the mean: at night that is zero. Temperatures have bounds alone.

    ``recent`` has ``_LEVEL_COLUMNS``: the target as measured, covariates as forecast before.

    Raises:
        SchemaDrift: a value that is not finite or out of bounds, quantiles in another order, or a
            file whose level is far off; names the file and the first such row.
    """
    is_target = "quantile" in frame.columns
    rows = frame.with_columns(pl.lit(PUBLISHED).alias("name")) if is_target else frame
    _refuse(rows, ~pl.col("value").is_finite(), "that are not numbers", "fetch the file again")
    for (name,), of_name in rows.partition_by("name", as_dict=True).items():
        if name in rules.forecasts:
            _refuse_outside(of_name, name, rules.forecasts[name])

    level = pl.col("value").mean()
    levelled = [name for name, rule in rules.forecasts.items() if rule.low == 0]
    if is_target:
        issue = ["source", "entity", "start_utc", "available_at"]
        below = pl.col("value").shift(1).over(issue, order_by="quantile")
        remedy = "columns may be swapped: correct the file or the parser"
        _refuse(rows, pl.col("value") < below, "below a lower quantile of the same issue", remedy)
        rows, level = rows.filter(pl.col("quantile") == 0.5), pl.col("value").median()
        levelled = [PUBLISHED] if PUBLISHED in rules.forecasts else []

    # A day counts from its end on, so no file is compared with itself.
    by_series = ["entity", "name"]
    end = pl.col("start_utc").dt.truncate("1d").dt.offset_by("1d")
    days = recent.group_by(*by_series, end).agg(level.alias("recent")).sort("start_utc")
    usual = pl.col("recent").rolling_median(_LEVEL_DAYS, min_samples=1).over(by_series)
    files = rows.filter(pl.col("name").is_in(levelled)).group_by("source", *by_series)
    pairs = (
        files.agg(pl.col("start_utc").min(), level)
        .sort("start_utc", "source")
        .join_asof(
            days.with_columns(usual),
            on="start_utc",
            by=by_series,
            tolerance="28d",
            check_sortedness=False,
        )
        .filter(pl.col("recent") > 0)
    )
    factor = FAR_PUBLISHED if is_target else FAR_COVARIATE
    _refuse(
        pairs,
        ~(pl.col("value") / pl.col("recent")).is_between(1 / factor, factor),
        f"with a level more than {factor:g} times the level of the days before, or less than a "
        f"{factor:g}th of it",
        "the unit or sign may be wrong: fetch the file again when its publisher has corrected it",
    )


def refuse_future(frame: pl.DataFrame, now: datetime) -> None:
    """Refuse covariates and published forecasts that lie further ahead than anybody publishes.

    Raises:
        SchemaDrift: names the file and the first such row.
    """
    for column, dtype in frame.schema.items():
        if dtype == UTC_US:
            unknowable = frame.filter(pl.col(column) > now + LONGEST_REACH)
            _refuse_unknowable(unknowable, column, now)


def find_unknowable(frame: pl.DataFrame, now: datetime) -> pl.DataFrame:
    """Return the rows of a series whose value nobody can know yet."""
    # A file that was fetched later than now comes from a clock that is ahead of this one.
    present = pl.max_horizontal(pl.lit(now), "fetched_at")
    is_unknowable = pl.col("start_utc") > present + MEASURED_REACH
    return frame.filter(pl.col("value").is_not_null() & is_unknowable)


def is_in_time(now: datetime) -> pl.Expr:
    """Return the expression of "this article is not from the future, nor from before the web"."""
    return pl.col("available_at").is_between(FIRST_NEWS, now + NEWS_REACH)


def _refuse_unknowable(unknowable: pl.DataFrame, column: str, now: datetime) -> None:
    _refuse(
        unknowable,
        pl.lit(value=True),
        f"with a {column} that cannot be known on {now:%Y-%m-%d}",
        "correct the year in the file, or the clock of this machine",
    )


def _refuse(frame: pl.DataFrame, is_bad: pl.Expr, problem: str, remedy: str) -> None:
    bad = frame.filter(is_bad)
    if not bad.height:
        return

    first = bad.row(0, named=True)
    shown = ", ".join(f"{name} {first[name]}" for name in _SHOWN_COLUMNS if name in first)
    raise SchemaDrift(
        f"{first['source']}: {bad.height} row(s) {problem}, first {shown}; {remedy}. "
        "Nothing was stored."
    )


log = logging.getLogger(__name__)

Span = tuple[datetime | None, datetime | None]  # start and end of a backfill in live mode
WHAT_IS_NEW: Span = (None, None)  # what a daily refresh fetches, in place of a backfill's span
DATA_VERSION_TAG = "dagster/data_version"
"""Tag by which an event that no asset returned gives the version; Dagster reads it by this name."""

_VERSION_DIGITS = 32
_SHOWN_LOST = 5
CUTTING_CODE = ("compevo_core/data",)
_FIRST_MONTH = "1970-01"  # of what belongs to no month
_INGEST_CODE = (
    *("compevo_core/data", "compevo_pipeline/sources", "compevo_pipeline/storage"),
    "compevo_pipeline/work/preparation.py",
)

MAX_BATCH_BYTES = 256 * 2**20
"""Bytes of fetched files that are parsed and stored together; a backfill goes on after the last."""

MIN_READABLE_SHARE = 0.5
"""Share of the files of a batch that must be readable: with less, the format changed."""


def ingest_feed(
    deployment: Deployment,
    feed: Feed,
    dataset: str,
    *,
    clock: Clock,
    log: logging.Logger,
    span: Span = WHAT_IS_NEW,
    is_whole: bool = False,
) -> dict[str, int]:
    """Parse the files of a feed, keep their bytes and store the frames; return counts by name.

    Where the data set ``is_whole`` since it was last read, files on disk that were parsed then are
    not parsed again.
    """
    if deployment.data_mode is not Mode.LIVE or feed.fetch_live is None:
        ingest = _Ingest(deployment, feed, dataset, clock())
        files = list(feed.read_files(deployment.data_mode, deployment.settings.archive, clock))
        counts = _ingest_files(ingest, files, is_whole=is_whole)
    else:
        mend_store(deployment, dataset, clock=clock, log=log)
        live = deployment.live_context(clock, since=span[0], until=span[1])
        ingest = _Ingest(deployment, feed, dataset, live.now)
        arriving = feed.fetch_live(live)
        counts = Counter(files=0)
        is_last = False
        failure: SourceError | None = None

        # Batch by batch; what came before a failure is stored too.
        while not is_last and failure is None:
            batch: list[RawFile] = []
            try:
                is_last = _fill_batch(batch, arriving)
            except SourceError as error:
                is_last, failure = True, error

            if batch:
                read = ingest.read_batch(batch)
                _reject(ingest, live, read.rejected)
                if read.error is not None and not read.files:
                    raise read.error
                # The format changed, it seems: what can be read is stored, and the run fails.
                if len(read.files) < MIN_READABLE_SHARE * len(batch):
                    failure = read.error
                counts.update(ingest.store(read.files, read.rows))
                counts["rejected"] += len(read.rejected)
                _ask_again(ingest, live, read.files)
            # The last file may have more members than this batch holds.
            live.ledger.confirm(keep_last=not is_last)

        note_rows(deployment, dataset, deployment.feeds()[dataset])
        if failure is not None:
            raise failure

    described = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    log.info(f"{feed.name}: {described}")
    return dict(counts)


def _ingest_files(ingest: "_Ingest", files: Sequence[RawFile], *, is_whole: bool) -> dict[str, int]:
    """Parse and store the files of a feed, unless these very files were and all is still there."""
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
    counts = ingest.store(files, ingest.read(files))
    # Changes that wait are confirmed by the same files, read again later.
    is_dataset = dataset in deployment.registry
    if not is_dataset or deployment.series_store().read_waiting(dataset).is_empty():
        receipts.keep(name, made_of)
    return counts


def read_changes(deployment: Deployment, dataset: str) -> pl.DataFrame:
    """Read the record of changes of known values of series and forecasts, ``CHANGE_SCHEMA``."""
    stores = (deployment.series_store(), deployment.frame_store())
    return pl.concat([store.read_changes(dataset) for store in stores])


def hash_stored(deployment: Deployment, dataset: str) -> str:
    """Return the version of what is stored of a data set, or of ``news``; empty before anything is.

    Raises:
        StoreBusy: a store was not free in time.
    """
    try:
        is_dataset = dataset in deployment.registry
        return hash_series(deployment, dataset) if is_dataset else hash_news(deployment)
    except DataError:
        return ""


def ingest_feeds(
    deployment: Deployment,
    feeds: Sequence[Feed],
    dataset: str,
    *,
    clock: Clock,
    log: logging.Logger,
    span: Span = WHAT_IS_NEW,
) -> dict[str, dict[str, int]]:
    """Read feeds one after the other; return their counts. One that fails leaves what others give.

    A feed that the archive lacks is left out with a warning, and so is an optional one that fails.
    In live mode all feeds are read before the failure of another one is raised.

    Raises:
        SourceError: of a feed that is not left out, or where none brings series or articles.
    """
    receipts, receipt = deployment.receipts(), f"stored {dataset}"
    before = hash_stored(deployment, dataset)
    is_whole = receipts.find(receipt, before) is not None
    counts: dict[str, dict[str, int]] = {}
    left_out: SourceError | None = None
    failures: list[SourceError] = []
    for feed in feeds:
        try:
            counts[feed.name] = ingest_feed(
                deployment, feed, dataset, clock=clock, log=log, span=span, is_whole=is_whole
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
        # A retry may cure a transient failure: it is the one that the run ends with.
        transient = [error for error in failures if isinstance(error, SourceTransient)]
        raise [*transient, *failures][0]

    # Weather alone is not a data set.
    brought = {kind for feed in feeds if feed.name in counts for kind in feed.parsers}
    if left_out is not None and not brought & {FrameKind.SERIES, FrameKind.ARTICLES}:
        raise left_out
    return counts


def mend_store(
    deployment: Deployment, dataset: str, *, clock: Clock, log: logging.Logger
) -> dict[str, dict[str, int]]:
    """Make again what a store has lost, from the files that are kept; return counts by feed.

    Files whose bytes are gone too are asked for again, as far as a refresh or a backfill reaches.
    """
    feeds = deployment.feeds()[dataset]
    lost = find_lost(deployment, dataset, feeds)
    if not lost:
        return {}
    shown = ", ".join(f"{count:,} of {name}" for name, count in sorted(lost.items())[:_SHOWN_LOST])
    log.warning(f"{dataset} lacks rows that were stored ({shown}): its raw files are read again")
    counts = rebuild(deployment, dataset, clock=clock, log=log)
    gone = ask_for_gone(deployment, feeds)
    if gone:
        log.warning(
            f"{dataset}: the bytes of {gone} stored files are gone too; they are requested again; "
            "for days that a refresh does not reach, run `compevo backfill`"
        )
    return counts


def rebuild(
    deployment: Deployment, dataset: str, *, clock: Clock, log: logging.Logger
) -> dict[str, dict[str, int]]:
    """Store the rows of every raw file that is kept of a data set, or of ``news``, once more.

    Rows that are stored and newer stay. A file that was refused is refused again.

    Raises:
        SourceError: a user's own file cannot be read.
    """
    counts: dict[str, dict[str, int]] = {}
    for feed in deployment.feeds()[dataset]:
        if feed.replaces:
            counts[feed.name] = ingest_feed(deployment, feed, dataset, clock=clock, log=log)
            continue
        of_feed: Counter[str] = Counter()
        ingest = _Ingest(deployment, feed, dataset, clock())
        for batch in list_batches(deployment, feed):
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
                of_feed.update(ingest.store(read.files, read.rows))
        if of_feed:
            counts[feed.name] = dict(of_feed)
            log.info(f"{feed.name}: " + ", ".join(f"{n:,} {name}" for name, n in of_feed.items()))

    note_rows(deployment, dataset, deployment.feeds()[dataset])
    return counts


def ingest_dataset(
    deployment: Deployment, dataset: str, *, clock: Clock, log: logging.Logger
) -> dict[str, dict[str, int]]:
    """Read every feed of a data set in the mode, and store what it gives; return counts by feed."""
    feeds = deployment.feeds()[deployment.registry[dataset].name]
    there = [feed for feed in feeds if feed.exists_in(deployment.data_mode)]
    return ingest_feeds(deployment, there, dataset, clock=clock, log=log)


def cut_windows(deployment: Deployment, dataset: str, news_cutoff: str = "origin") -> WindowSet:
    """Build the windows of a data set from what is stored.

    What the stored windows hold of months before the first that changed is taken from them.

    Raises:
        ConfigError: there is no such data set, or another cutoff than "origin" and "horizon-end".
        DataError: nothing of the data set is stored, or it is too short.
    """
    if news_cutoff not in ("origin", "horizon-end"):
        raise ConfigError(
            f"news_cutoff {news_cutoff!r} is neither 'origin' nor 'horizon-end'; correct the run "
            "configuration"
        )

    spec = deployment.registry[dataset].spec
    tables = deployment.frame_store()
    return build_windows(
        spec,
        deployment.series_store().read(dataset),
        covariates=tables.read(dataset, FrameKind.COVARIATES),
        articles=StoredArticles(deployment.news_store(), spec.news_source),
        published=tables.read(dataset, FrameKind.PUBLISHED),
        benchmark=tables.read(dataset, FrameKind.BENCHMARK),
        step_covariates=tables.read(dataset, FrameKind.STEP_COVARIATES),
        news_cutoff=news_cutoff,  # type: ignore[arg-type]  # checked just above
        unchanged=_find_unchanged(deployment, dataset, news_cutoff),
    )


def write_windows(deployment: Deployment, windows: WindowSet, news_cutoff: str = "origin") -> None:
    """Write windows that were just cut, with a receipt of what they were cut from."""
    dataset, receipts = windows.dataset, deployment.receipts()
    windows.write(deployment.layout.windows(dataset))
    receipts.keep(name_cut(dataset), hash_cut(deployment, dataset, news_cutoff), windows.hash)
    receipts.keep(
        _name_months(dataset),
        _hash_rules(deployment, dataset, news_cutoff),
        {"windows": windows.hash, "months": _hash_months(deployment, dataset)},
    )


def _find_unchanged(deployment: Deployment, dataset: str, news_cutoff: str) -> list[Window]:
    """Return the stored windows that end before the first month that has changed since."""
    folder, rules = (
        deployment.layout.windows(dataset),
        _hash_rules(deployment, dataset, news_cutoff),
    )
    before = deployment.receipts().find(_name_months(dataset), rules)
    if before is None or before["windows"] != read_hash(folder):
        return []

    then, now = before["months"], _hash_months(deployment, dataset)
    changed = [month for month in then.keys() | now.keys() if then.get(month) != now.get(month)]
    windows = WindowSet.read(folder)
    if not changed:
        return list(windows)
    # Days on a market's clock begin up to a day before those of UTC.
    until = datetime.strptime(min(changed), "%Y-%m").replace(tzinfo=UTC) - timedelta(days=1)
    return [window for window in windows if window.view.end_utc <= until]


def _hash_months(deployment: Deployment, dataset: str) -> dict[str, str]:
    """Return a hash of all that is stored of a data set by month, and of what has no month."""
    tables, news = deployment.frame_store(), deployment.news_store()
    parts: dict[str, list[str]] = {}
    for line in tables.hash_files(dataset):
        kind, _, name = line.partition(" ")
        if kind != FrameKind.COVARIATES:
            # A file a month; a benchmark has one file, which counts for all months.
            month = name[:7] if name[:4].isdigit() else _FIRST_MONTH
            parts.setdefault(month, []).append(line)

    frames = [(deployment.series_store().read(dataset), "start_utc")]
    covariates = tables.read(dataset, FrameKind.COVARIATES)
    frames += [(covariates, "valid_date")] if covariates is not None else []
    for frame, column in frames:
        rows = frame.select(pl.exclude("source", "fetched_at"))
        sums = rows.group_by(pl.col(column).dt.strftime("%Y-%m").alias("month")).agg(
            pl.struct(pl.all()).hash(seed=0).sum().alias("digest"), pl.len()
        )
        for month, *numbers in sums.iter_rows():
            parts.setdefault(month, []).append(f"{column} {numbers}")

    publisher = deployment.registry[dataset].spec.news_source
    if news.path.exists():
        for month, digest in news.hash_months(publisher).items():
            parts.setdefault(month, []).append(f"articles {digest}")
    return {month: hash_parts(sorted(of_month)) for month, of_month in parts.items()}


def _hash_rules(deployment: Deployment, dataset: str, news_cutoff: str) -> str:
    """Return a hash of how windows are cut, whatever they are cut from."""
    declared = deployment.registry[dataset].declaration
    return hash_parts(
        [
            # Another release of the library may know other holidays: windows are cut again then.
            code_version(*CUTTING_CODE, data_release=HOLIDAYS_VERSION),
            # Hashes of rows are those of a release.
            pl.__version__,
            news_cutoff,
            hash_file(declared) if declared is not None else "",
        ]
    )


def _name_months(dataset: str) -> str:
    return f"months {dataset}"


def find_current_windows(deployment: Deployment, dataset: str) -> WindowSet | None:
    """Return the stored windows if cutting them now would give the same ones, or None."""
    folder = deployment.layout.windows(dataset)
    made_of = hash_cut(deployment, dataset, "origin")
    is_current = deployment.receipts().find(name_cut(dataset), made_of) == read_hash(folder)
    return WindowSet.read(folder) if is_current else None


def name_cut(dataset: str) -> str:
    """Return the name of the receipt that says what windows were cut from."""
    return f"windows {dataset}"


def hash_cut(deployment: Deployment, dataset: str, news_cutoff: str) -> str:
    """Return a hash of all that the windows of a data set are cut from, and by which code."""
    news, publisher = deployment.news_store(), deployment.registry[dataset].spec.news_source
    return hash_parts(
        [
            _hash_rules(deployment, dataset, news_cutoff),
            hash_series(deployment, dataset),
            news.hash_content(publisher) if news.path.exists() else "",
        ]
    )


def hash_series(deployment: Deployment, dataset: str) -> str:
    """Return the version of what is stored of a data set.

    It covers series, the frames beside them, and articles of the data set's own.
    """
    parts = [
        *deployment.series_store().hash_files(dataset),
        *deployment.frame_store().hash_files(dataset),
    ]
    publisher = deployment.registry[dataset].spec.news_source
    news = deployment.news_store()
    # A user's data set brings its articles with its series, where it has any.
    if publisher and news.path.exists():
        parts.append(news.hash_content(publisher))
    return hash_text("\n".join(parts))[:_VERSION_DIGITS]


def hash_news(deployment: Deployment) -> str:
    """Return the version of all stored articles."""
    return hash_text(deployment.news_store().hash_content())[:_VERSION_DIGITS]


@dataclass(frozen=True, slots=True)
class _Rows:
    """What files hold: frames by kind, and the counts of what was left out of them."""

    frames: Mapping[FrameKind, pl.DataFrame] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Files that can be read, with their rows, and the others."""

    files: Sequence[RawFile]
    rows: _Rows
    rejected: Sequence[tuple[RawFile, SourceError]] = ()
    error: SourceError | None = None  # of all files together


@dataclass(frozen=True, slots=True)
class _Ingest:
    """Reads files of a feed into the stores of a data set, as of one moment."""

    deployment: Deployment
    feed: Feed
    dataset: str
    now: datetime

    def read(self, raw_files: Sequence[RawFile]) -> _Rows:
        """Parse files, and refuse or leave out what cannot be true."""
        frames: dict[FrameKind, pl.DataFrame] = {}
        losses: dict[str, int] = {}
        for kind, parse in self.feed.parsers.items():
            parsed = parse(raw_files)
            frame, counts = parsed if isinstance(parsed, tuple) else (parsed, {})
            losses |= counts

            if kind is FrameKind.ARTICLES:
                in_time = frame.filter(is_in_time(self.now))
                frame, losses["mistimed"] = in_time, frame.height - in_time.height
            elif kind is FrameKind.SERIES:
                refuse_series(frame, self.deployment.registry[self.dataset].rules, self.now)
            elif not (kind is FrameKind.STEP_COVARIATES and self.feed.replaces):
                # A user's own plan or calendar may reach as far ahead as it likes.
                refuse_future(frame, self.now)
            frames[kind] = frame

        self._refuse_far(frames, frames)
        return _Rows(frames, losses)

    def read_batch(self, batch: Sequence[RawFile]) -> _Batch:
        """Read files together; where that fails, those that can be read one by one."""
        try:
            return _Batch(files=batch, rows=self.read(batch))
        except SourceError as error:
            together = error

        rejected: list[tuple[RawFile, SourceError]] = []
        alone: list[tuple[RawFile, _Rows]] = []
        for raw_file in batch:
            try:
                alone.append((raw_file, self.read([raw_file])))
            except SourceError as error:
                rejected.append((raw_file, error))

        # Each alone, and then beside what the others measured.
        measured = {
            kind: pl.concat([part.frames[kind] for _, part in alone])
            for kind in self.feed.parsers
            if alone
        }
        files: list[RawFile] = []
        for raw_file, parsed in alone:
            try:
                self._refuse_far(parsed.frames, measured)
                files.append(raw_file)
            except SourceError as error:
                rejected.append((raw_file, error))
        if not rejected:
            raise together  # several files together may fail where each alone does not
        rows = self.read(files) if files else _Rows()
        return _Batch(files=files, rows=rows, rejected=rejected, error=together)

    def store(self, raw_files: Sequence[RawFile], rows: _Rows) -> dict[str, int]:
        """Keep the bytes and store the rows; return what the log says of them."""
        store = self.deployment.raw_store()
        for raw_file in raw_files:
            # What came from a publisher just now was kept on arrival.
            if raw_file.mode is not Mode.LIVE:
                store.write(raw_file)

        counts = {**_measure(raw_files), **rows.losses}
        for kind, frame in rows.frames.items():
            counts |= self._store_frame(kind, frame)
        return counts

    def _refuse_far(
        self,
        frames: Mapping[FrameKind, pl.DataFrame],
        others: Mapping[FrameKind, pl.DataFrame],
    ) -> None:
        """Refuse forecasts that are far from what is stored and from what other files hold."""
        for kind in {FrameKind.PUBLISHED, FrameKind.STEP_COVARIATES} & frames.keys():
            recent = self._find_recent(kind, frames[kind], others)
            rules = self.deployment.registry[self.dataset].rules
            refuse_forecasts(frames[kind], rules, recent)

    def _find_recent(
        self, kind: FrameKind, frame: pl.DataFrame, others: Mapping[FrameKind, pl.DataFrame]
    ) -> pl.DataFrame:
        """Return what a frame of forecasts is held against, stored or in other files."""
        deployment, dataset = self.deployment, self.dataset
        since = frame.select(pl.col("start_utc").min()).item()
        is_near = pl.col("start_utc") >= (since or FIRST_NEWS) - _LEVEL_REACH
        if kind is FrameKind.STEP_COVARIATES:
            stored = deployment.frame_store().read(dataset, kind, lambda rows: rows.filter(is_near))
            parts = [stored, others.get(kind)]
        else:
            is_target = pl.col("variable") == deployment.registry[dataset].spec.variable
            entity = pl.col("series_id").str.split("/").list.last().alias("entity")
            parts = [others.get(FrameKind.SERIES)]
            with contextlib.suppress(DataError):  # no series is stored yet
                parts.append(deployment.series_store().scan(dataset).filter(is_near).collect())
            parts = [
                part.filter(is_target).with_columns(entity, pl.lit(PUBLISHED).alias("name"))
                for part in parts
                if part is not None
            ]

        empty = frame.clear().with_columns(pl.lit("").alias("name"))
        known = [part.select(_LEVEL_COLUMNS) for part in [empty, *parts] if part is not None]
        return pl.concat(known).drop_nulls("value")

    def _store_frame(self, kind: FrameKind, frame: pl.DataFrame) -> dict[str, int]:
        deployment, replaces = self.deployment, self.feed.replaces
        if kind is FrameKind.SERIES:
            report = deployment.series_store().write(self.dataset, frame, replace=replaces)
            if replaces and not deployment.layout.news_database.exists():
                # A user's own data set may have no news; windows are cut from an empty store then.
                deployment.news_store().upsert_articles(pl.DataFrame(schema=ARTICLE_SCHEMA))
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
            folded = 0
            if self.feed.folds_titles and deployment.data_mode is Mode.LIVE:
                unfolded = _fold_titles(deployment.news_store(), frame)
                frame, folded = unfolded, frame.height - unfolded.height
            stored = deployment.news_store().upsert_articles(frame)
            return {
                "articles": frame.height,
                "new": stored.added,
                "changed": stored.changed,
                "told before": folded,
            }

        deployment.frame_store().write(self.dataset, kind, frame, replace=replaces)
        # Those of this batch, like the other counts, which are summed over batches and months.
        return {f"{kind} rows": frame.height}


def _measure(raw_files: Sequence[RawFile]) -> dict[str, int]:
    return {"files": len(raw_files), "bytes": sum(len(raw.content) for raw in raw_files)}


def _fill_batch(batch: list[RawFile], arriving: Iterator[RawFile]) -> bool:
    """Append arriving files up to the size of a batch; return whether the last has arrived."""
    size = 0
    for raw_file in arriving:
        batch.append(raw_file)
        size += len(raw_file.content)
        if size >= MAX_BATCH_BYTES:
            return False
    return True


def _reject(
    ingest: _Ingest, live: LiveContext, rejected: Sequence[tuple[RawFile, SourceError]]
) -> None:
    """Note the files that cannot be read: the next run fetches them anew."""
    for raw_file, error in rejected:
        live.ledger.reject(*name_entry(raw_file), f"{type(error).__name__}: {error}")
        log.warning("%s is left out: %s", ingest.feed.name, error)


def _ask_again(ingest: _Ingest, live: LiveContext, files: Sequence[RawFile]) -> None:
    """Let the next run fetch the files again whose changes of known values wait for it."""
    feed, dataset = ingest.feed, ingest.dataset
    if FrameKind.SERIES not in feed.parsers:
        return
    store = ingest.deployment.series_store()
    waiting = store.read_waiting(dataset).partition_by("source", as_dict=True)
    for raw_file in files:
        if (raw_file.label,) in waiting:
            note = describe_waiting(waiting[raw_file.label,], dataset)
            live.ledger.reject(*name_entry(raw_file), note)
            log.warning("%s: %s: %s", feed.name, raw_file.name, note)


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
