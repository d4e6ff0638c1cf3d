"""Series, articles, embeddings, how much of each month is stored, the job ``backfill``.

What belongs here: which feeds a launch reads, storing what they give, showing it, declarations
that cannot be read. What does not: parsing (``sources``), SQL and files (``storage``), storing and
the months of a backfill (``work``), quality rules (``checks``).
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, Self

import dagster as dg
import polars as pl
from pydantic import Field, model_validator

from compevo_core.config.run import RunConfig
from compevo_core.errors import (
    ConfigError,
    SourceAbsent,
    SourceBlocked,
    SourceRejected,
    SourceTransient,
)
from compevo_core.runtime.files import StoreBusy
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs import definition, metadata
from compevo_pipeline.defs.definition import Blocks, Context, Result, WorkspaceParam
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.common.nem import NEM_ZONE
from compevo_pipeline.sources.feeds import Feed
from compevo_pipeline.sources.registry import RegisteredDataset
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import embed_nameable
from compevo_pipeline.work.ingest import DATA_VERSION_TAG, hash_stored, ingest_dataset
from compevo_pipeline.work.next_day import reads_news
from compevo_pipeline.work.source_coverage import (
    NEWS,
    backfill,
    choose_feeds,
    find_stored_months,
    list_troubled,
    measure_coverage,
    pivot_months,
    tabulate_files,
)

_UNREACHABLE = (SourceTransient, SourceAbsent, SourceRejected, SourceBlocked)  # may end by itself


class SpanConfig(definition.LaunchConfig):
    """A span of days to fetch."""

    since: str | None = None
    """live mode: first day of a backfill, such as 2026-01-31; left out: what is new since the last
    run"""
    until: str | None = None
    """live mode: the day after the backfill's last day"""

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        since, until = self.read_span()
        if since and until and since >= until:
            raise ValueError(f"since {self.since} is not before until {self.until}")
        return self

    def read_span(self) -> tuple[datetime | None, datetime | None]:
        """Return start and end in UTC, None where not named."""
        return _read_day(self.since, "since"), _read_day(self.until, "until")


def _read_day(text: str | None, name: str) -> datetime | None:
    """Return a day, such as 2026-01-31, or an instant in UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{name} {text!r} is not a day like 2026-01-31") from error
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _define_ingest(
    name: str,
    own_feeds: Sequence[Feed],
    blocks: Blocks = None,
    **arguments: Any,  # noqa: ANN401 - of define_asset
) -> dg.AssetsDefinition:
    """Return the asset that reads the feeds of a launch, and stores what they give."""
    feed_name: Any = Literal[tuple(feed.name for feed in own_feeds)]

    class IngestConfig(SpanConfig):
        """What to read."""

        feeds: list[feed_name] | None = Field(default=None, min_length=1)
        """feeds to read; left out: all that exist in the run's mode"""
        tolerate_gaps: bool = False
        """accept files whose publisher left rows out: their values are missing, and counted as
        gaps"""

    @definition.define_asset(
        stored_key(name),
        freshness_policy=definition.DAILY_REFRESH,
        dataset="" if name == NEWS else name,
        config=IngestConfig,
        partitions_def=blocks,
        **arguments,
    )
    def _ingest(context: Context, workspace: WorkspaceParam) -> Result:
        dataset = context.partition_key if blocks else name
        # A file on disk does not mend itself: only a live source is worth another try.
        is_live = workspace.data_mode is Mode.LIVE
        is_refresh = context.run.tags.get("compevo/job") == "refresh"
        if is_live and is_refresh and dataset == NEWS:
            refreshed = context.run.tags["dataset"]
            if not reads_news(workspace, [refreshed]):
                workspace.news_store().create()
                unread = {"unread": f"no model of {refreshed} reads news"}
                return describe_stored(workspace, dataset, {}, unread)
        with definition.translate_errors(attempt=context.retry_number, retry=is_live):
            config = IngestConfig.read(context)
            mode = workspace.data_mode
            feeds = workspace.registry[dataset].feeds if blocks else own_feeds
            there = [feed for feed in feeds if feed.exists_in(mode)]
            selected = [feed for feed in there if not config.feeds or feed.name in config.feeds]
            # Some sources have no endpoint that a program may call, so live mode lacks them.
            if not selected:
                known = ", ".join(feed.name for feed in own_feeds)
                raise SourceAbsent(
                    f"none of the feeds {known} exists in {mode} mode; choose another mode"
                )
            if config.tolerate_gaps:
                selected = [feed.accept_gaps() for feed in selected]
            unread = {}
            try:
                counts = ingest_dataset(
                    workspace, dataset, selected, log=context.log, span=config.read_span()
                )
            except _UNREACHABLE as error:
                # A forecast does not wait for a publisher of news. How old its news may be, if it
                # reads any, is its own rule (``stale_news``).
                answer = definition.to_dagster(error, attempt=context.retry_number, retry=is_live)
                has_articles = dataset == NEWS and workspace.layout.news_database.exists()
                if not (has_articles and isinstance(answer, dg.Failure)):
                    raise
                counts, unread = {}, {"unread": f"{type(error).__name__}: {error}"}
                context.log.error(f"articles stay as they were stored: {unread['unread']}")
        report_months(context.instance, workspace, dataset, context.log)
        return describe_stored(workspace, dataset, counts, unread)

    return _ingest


def describe_stored(
    workspace: Deployment,
    dataset: str,
    counts: Mapping[str, Mapping[str, int]],
    notes: Mapping[str, str] = MappingProxyType({}),
) -> Result:
    """Return what the UI shows of a data set or of the news after ``counts`` were read by feed.

    The version depends on the stored data, not on another reading: equal data keep windows fresh.
    """
    shown = (
        _describe_articles(workspace, counts)
        if dataset == NEWS
        else _describe_series(workspace, dataset, counts)
    )
    version = dg.DataVersion(hash_stored(workspace, dataset))
    return dg.MaterializeResult(metadata=shown | dict(notes), data_version=version)


def stored_key(dataset: str) -> dg.AssetKey:
    """Return the key of what is stored of a data set, or of the news."""
    return keys.NEWS_ARTICLES if dataset == NEWS else keys.series_key(dataset)


SERIES_CODE = (
    "compevo_pipeline/work/ingest.py",
    "compevo_pipeline/work/row_rules.py",
    "compevo_core/data/series.py",
    "compevo_core/data/cutting.py",
    "compevo_core/data/known_faults.toml",
    "compevo_pipeline/sources",
    "compevo_pipeline/storage/series_store.py",
    "compevo_pipeline/storage/series_changes.py",
)

_SHOWN_CHANGES = 20
_COVERED = ("rows", "first", "last", "not observed")
_DRAWN_VALUES = 336  # a week of half-hours, two weeks of hours, most of a year of days


def build_series_asset(
    declared: RegisteredDataset, own_feeds: Sequence[Feed], blocks: Blocks = None
) -> dg.AssetsDefinition:
    """Return the series asset of one data set; a launch chooses from its feeds."""
    dataset = declared.name
    # News of a data set's own goes into the one news file, whose writers wait for each other.
    writes_news = any(FrameKind.ARTICLES in feed.parsers for feed in declared.feeds)
    return _define_ingest(
        dataset,
        own_feeds,
        blocks,
        description=metadata.escape_markdown(declared.description),
        kinds={"polars", "parquet"},
        code=SERIES_CODE,
        pool=definition.DUCKDB_POOL if writes_news else None,
    )


def _describe_series(
    workspace: Deployment, dataset: str, counts_by_feed: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    frame = workspace.series_store().read(dataset)
    by_series = frame.group_by("series_id", "variable", "unit", maintain_order=True).agg(
        pl.len().alias("rows"),
        pl.col("start_utc").min().dt.date().alias("first"),
        pl.col("start_utc").max().dt.date().alias("last"),
        (pl.col("flag") != "observed").sum().alias("not observed"),
        pl.col("value").min().alias("lowest"),
        pl.col("value").max().alias("highest"),
    )
    changes = workspace.series_store().read_changes(dataset).sort("fetched_at", descending=True)
    series_id = frame["series_id"][0] if frame.height else ""
    newest = frame.filter(pl.col("series_id") == series_id).tail(_DRAWN_VALUES)
    drawn = {f"{series_id}, last {newest.height} values": newest["value"].to_list()}
    days = newest["start_utc"].dt.date()
    return {
        "newest": metadata.render_sketch(drawn, ends=(days.min(), days.max())),
        **metadata.describe_table(frame),
        "mode": workspace.data_mode.value,
        # Sources of the sample mode mark each row; real data must show 0 here.
        "synthetic_rows": int(frame["source"].str.starts_with("sample:").sum()),
        "series": by_series.height,
        "folder": dg.MetadataValue.path(workspace.layout.series / dataset),
        "feeds": metadata.render_feeds(counts_by_feed),
        "coverage": metadata.render_table(by_series.select("series_id", *_COVERED), rows=12),
        "values": metadata.render_table(by_series.drop(_COVERED), rows=12),
        "changes_of_known_values": metadata.render_table(changes, rows=_SHOWN_CHANGES),
        "preview": metadata.render_preview(frame),
    }


ARTICLES_CODE = (
    "compevo_pipeline/work/ingest.py",
    "compevo_pipeline/work/row_rules.py",
    "compevo_core/data/news.py",
    "compevo_core/data/countries.toml",
    "compevo_pipeline/sources",
    "compevo_pipeline/storage/news_store.py",
)
EMBEDDINGS_CODE = (
    "compevo_core/data/candidates.py",
    "compevo_core/lm/encoder.py",
    "compevo_pipeline/work/embedded_news.py",
    "compevo_pipeline/storage/embedding_store.py",
)


class EmbeddingConfig(definition.LaunchConfig):
    """Which encoder embeds the articles."""

    encoder: str | None = None
    """packaged:minilm, hashing, a folder or a hub id; left out: the training preset's"""
    ahead: bool = True
    """false embeds nothing here: every later step embeds what its own windows name"""


def build_articles_asset(own_feeds: Sequence[Feed]) -> dg.AssetsDefinition:
    """Return the asset that reads the news feeds that a launch chooses, and stores what is new."""
    return _define_ingest(
        NEWS,
        own_feeds,
        description=(
            "Articles with the time from which each was available; an article has one row, however "
            "many feeds carried it."
        ),
        kinds={"duckdb"},
        code=ARTICLES_CODE,
        pool=definition.DUCKDB_POOL,
        # Of what waits for nothing the last: values come first.
        op_tags={"dagster/priority": "-1"},
    )


def _describe_articles(
    workspace: Deployment, counts_by_feed: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    store = workspace.news_store()
    by_month = store.count_by_month()
    counted = {"articles a month": by_month["articles"].to_list()}
    months = by_month["month"].dt.date()
    newest = store.read_newest(metadata.PREVIEW_ROWS)

    return {
        "dagster/row_count": int(by_month["articles"].sum()),
        "dagster/column_schema": metadata.make_column_schema(newest.schema),
        "mode": workspace.data_mode.value,
        "database": dg.MetadataValue.path(workspace.layout.news_database),
        "feeds": metadata.render_feeds(counts_by_feed),
        "newest": metadata.render_table(
            newest.select("available_at", "title", "domain", "language")
        ),
        "by_month": metadata.render_sketch(counted, ends=(months.min(), months.max())),
    }


def build_embeddings_asset(series: Sequence[dg.AssetKey] = ()) -> dg.AssetsDefinition:
    """Return the asset that embeds titles that windows can name, as far as they are new.

    ``series`` belong to own data sets with articles. A run takes its steps in the order of the
    inputs that an asset is made with; later inputs change only the graph.
    """

    @definition.define_asset(
        keys.NEWS_EMBEDDINGS,
        deps=[keys.NEWS_ARTICLES, *series],
        description="A sentence embedding of every title that some window can name.",
        kinds={"numpy", "huggingface"},
        code=EMBEDDINGS_CODE,
        freshness_policy=definition.DAILY_REFRESH,
        pool=definition.EMBEDDINGS_POOL,
        config=EmbeddingConfig,
    )
    def _embeddings(context: Context, workspace: WorkspaceParam) -> Result:
        config = EmbeddingConfig.read(context)
        name = config.encoder or RunConfig.preset(workspace.preset_for()).news.encoder
        counts = embed_nameable(workspace, name, log=context.log) if config.ahead else None
        store = workspace.embedding_store(name)

        return dg.MaterializeResult(
            metadata={
                "dagster/row_count": len(store),
                **(asdict(counts) if counts else {}),
                "encoder": name,
                "folder": dg.MetadataValue.path(store.folder),
            },
            # Vectors of an encoder never change, and which articles a model reads is in its
            # windows: a day of new articles marks no model that has the windows it had.
            data_version=dg.DataVersion(name),
        )

    return _embeddings


class MonthsConfig(definition.LaunchConfig):
    """What to fetch of missing months."""

    feeds: list[str] | None = Field(default=None, min_length=1)
    """feeds to read; left out: all of the data set that have an endpoint"""


class BackfillConfig(SpanConfig, MonthsConfig):
    """What to fetch of a span."""

    dataset: str
    """data set, such as electricity-operational, or news"""
    since: str
    """first day, such as 2025-05-01 (UTC)"""
    until: str | None = None
    """the day after the last one; left out: up to now"""


# In no pool: it may take days, and what it writes takes turns with others by short locks.
@dg.op(config_schema=BackfillConfig.schema_of_launch(), out=dg.Out(dg.Nothing))
def fetch_missing(context: dg.OpExecutionContext, workspace: WorkspaceParam) -> None:
    """Fetch and store the months of the span that are missing."""
    config = BackfillConfig.model_validate(context.op_config)
    since, until = config.read_span()
    assert since is not None  # noqa: S101 - the launch requires it
    _fetch_span(context, workspace, config.dataset, config.feeds, since, until)
    report_months(context.instance, workspace, config.dataset, context.log)


def _fetch_span(
    context: dg.OpExecutionContext | Context,
    workspace: Deployment,
    dataset: str,
    feeds: Sequence[str] | None,
    since: datetime,
    until: datetime | None,
) -> dict[str, Any]:
    """Fetch what is missing of a span; log what the catalog shows of it, and return it."""
    counts: dict[str, Counter[str]] = {}
    try:
        with definition.translate_errors(attempt=context.retry_number):
            backfill(
                workspace,
                dataset,
                choose_feeds(workspace.feeds(), dataset, feeds),
                since=since,
                until=until,
                log=context.log,
                counts=counts,
            )
    finally:
        shown: dict[str, Any] = {
            "feeds": metadata.render_feeds(counts),
            "backfill_since": f"{since:%Y-%m-%d}",
            "mode": workspace.data_mode.value,
        }
        # Months before a failure are stored too: what is made of them is out of date now.
        if counts:
            version = {DATA_VERSION_TAG: hash_stored(workspace, dataset)}
            key = stored_key(dataset)
            context.log_event(dg.AssetMaterialization(key, metadata=shown, tags=version))
    return shown


def build_months_asset(dataset: str, months: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    """Return the asset whose partitions are the months that are stored of a data set, or of news.

    One run fetches the months of a gap: the ledger knows what was asked for.
    """

    @definition.define_asset(
        keys.months_key(dataset),
        partitions_def=months,
        backfill_policy=dg.BackfillPolicy.single_run(),
        description=(
            f"Months of {dataset} that are stored, as every refresh finds them. Materialize those "
            "that are missing: they are fetched from the publishers."
        ),
        kinds={"parquet" if dataset != NEWS else "duckdb"},
        dataset="" if dataset == NEWS else dataset,
        config=MonthsConfig,
    )
    def _months(context: Context, workspace: WorkspaceParam) -> Result:
        config = MonthsConfig.read(context)
        since, until = context.partition_time_window
        shown = _fetch_span(context, workspace, dataset, config.feeds, since, until)
        return dg.MaterializeResult(metadata=shown)

    return _months


def can_fetch(settings: Settings, feeds: Sequence[Feed]) -> bool:
    """Whether a deployment asks a publisher for one of the feeds: files on disk are read whole."""
    return settings.mode is Mode.LIVE and any(feed.fetch_live for feed in feeds)


def report_months(
    instance: dg.DagsterInstance, workspace: Deployment, dataset: str, log: logging.Logger
) -> None:
    """Report whole stored months to Dagster that it does not know yet."""
    if not can_fetch(workspace.settings, workspace.feeds()[dataset]):
        return
    key, declared = keys.months_key(dataset), workspace.registry.datasets.get(dataset)
    fetched = keys.make_months(declared.spec if declared else None)
    try:
        stored = find_stored_months(workspace, dataset)
    except StoreBusy as error:
        log.warning(f"months of {dataset} are shown by the next run: {error}")
        return
    whole = {f"{month}-01" for month, is_whole in stored.items() if is_whole}
    whole &= set(fetched.get_partition_keys(workspace.clock()))
    for month in sorted(whole - instance.get_materialized_partitions(key)):
        shown = {"mode": workspace.data_mode.value}
        event = dg.AssetMaterialization(key, partition=month, metadata=shown)
        instance.report_runless_asset_event(event)


@dg.job(
    name="backfill",
    description=(
        "Fetch what is missing of a past span from the publishers, month by month. Stopped or "
        "failed, it resumes where it was when it is launched again."
    ),
    tags={"compevo/job": "backfill"},
)
def backfill_job() -> None:
    """Fetch what a launch names."""
    fetch_missing()


def build_broken_asset(name: str, message: str) -> dg.AssetsDefinition:
    """Return the asset of a broken declaration, which shows its error and fails with it."""

    @definition.define_asset(
        keys.broken_key(name),
        description=(
            "This declaration of a data set is broken; correct it and reload the code location. "
            + metadata.escape_markdown(message)
        ),
        kinds={"toml"},
    )
    def _broken(context: Context) -> Result:
        raise ConfigError(message)

    return _broken


SHOWN_MONTHS = 12
HOURLY_CRON = "50 * * * *"

_MAX_ROWS = 60


@definition.define_asset(
    keys.SOURCE_COVERAGE,
    description=(
        "How much of each month is stored, by source: values of the grid, days of news and "
        "forecasts, files that were asked for; and which files were absent or failed. The job "
        "`backfill` fetches what is missing."
    ),
    kinds={"polars"},
    code=("compevo_pipeline/work/source_coverage.py",),
)
def coverage(workspace: WorkspaceParam) -> Result:
    """Count slots by source and month."""
    counts = measure_coverage(workspace)
    troubled = tabulate_files(list_troubled(workspace))

    shown = {
        "months": metadata.render_table(pivot_months(counts, SHOWN_MONTHS), rows=_MAX_ROWS),
        "missing_files": metadata.render_table(troubled, rows=_MAX_ROWS),
        "mode": workspace.data_mode.value,
        "dagster/row_count": counts.height,
    }
    return dg.MaterializeResult(metadata=shown)


@dg.asset_check(
    asset=keys.SOURCE_COVERAGE,
    name="no_failed_file",
    description="No file that was asked for last failed; absent ones are asked for again.",
)
def check_coverage(workspace: WorkspaceParam) -> dg.AssetCheckResult:
    """Warn where asking for a file failed and nothing has come since."""
    troubled = list_troubled(workspace)
    failed = [entry for entry in troubled if entry.state is EntryState.FAILED]
    return dg.AssetCheckResult(
        passed=not failed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "failed": len(failed),
            "absent": sum(entry.state is EntryState.ABSENT for entry in troubled),
            "files": metadata.render_table(tabulate_files(failed), rows=_MAX_ROWS),
        },
    )


coverage_job = dg.define_asset_job(
    "coverage",
    dg.AssetSelection.assets(keys.SOURCE_COVERAGE),
    description="Counts what is stored of every source by month; takes seconds.",
    tags={"compevo/job": "coverage"},
)
hourly_coverage = dg.ScheduleDefinition(
    name="coverage_hourly",
    job=coverage_job,
    cron_schedule=HOURLY_CRON,
    execution_timezone=NEM_ZONE,
    description="What is stored of every source, and which files are missing.",
)
