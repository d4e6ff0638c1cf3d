"""What the stores hold of each source, month by month, and fetching what is missing.

What belongs here: counts of slots from the stores (values of a grid, days of news and forecasts)
and from the ledger (files); the months of a past span that are asked for. What does not: showing
counts (``defs.assets.sources``, ``cli.data``), fetching and storing (``work.ingest``).

A slot of a series is a step of its grid for each of its series; if the publisher has only business
days, weekends have none. A slot of news, of a published forecast and of a covariate by step is a
day. Slots go from the first that is stored to the last, or today where live mode stores the source.
"""

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime

import polars as pl

from compevo_core.data.steps import DAY, MONTH, shift
from compevo_core.errors import ConfigError, DataError
from compevo_core.runtime.usage import Steps
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.common.ledger import Entry, EntryState
from compevo_pipeline.sources.feeds import Feed, FeedTable
from compevo_pipeline.sources.registry import RegisteredDataset
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import ingest_feed

COVERAGE_SCHEMA: dict[str, pl.DataType] = {
    "source": pl.String(),
    "counted": pl.String(),  # FILES, VALUES or DAYS
    "month": pl.String(),  # "2026-03"; "" for files whose names hold no month
    "expected": pl.Int64(),
    "stored": pl.Int64(),
    "absent": pl.Int64(),
    "frozen": pl.Int64(),
    "failed": pl.Int64(),
}
NEWS = "news"
FILES, VALUES, DAYS = "files", "values", "days"  # what slots are
_TOLERATED_SHARE = 0.01  # of a month's slots may be missing if a month is called whole
_HOLIDAYS = 3  # in a month, of publishers that publish only on business days
_MONTH_IN_NAME = re.compile(r"(?<!\d)((?:19|20)\d\d)[_-]?(0[1-9]|1[0-2])(?=\D|\d\d)")


def measure_coverage(deployment: Deployment) -> pl.DataFrame:
    """Return counts of ``COVERAGE_SCHEMA`` for every source that is stored or was asked.

    Slots of live sources are expected up to today.
    """
    today = deployment.clock().date()
    files = Counter(
        (entry.source, find_month(entry.name), entry.state) for entry in deployment.list_asked()
    )
    rows = []
    for source, month in sorted({key[:2] for key in files}):
        by_state = {state.value: files[source, month, state] for state in EntryState}
        row = {"source": source, "counted": FILES, "month": month} | by_state
        # The next run reads again what is fetched but not stored yet.
        row["stored"] = by_state["stored"] + by_state["short"] + by_state["fetched"]
        rows.append(row | {"expected": sum(by_state.values())})
    counted = [pl.DataFrame(rows, schema=COVERAGE_SCHEMA)]
    for name in (*deployment.registry.datasets, NEWS):
        for kind, days in _list_days(deployment, name):
            named = _sum_months(days, today).with_columns(
                source=pl.format(f"{name}: {{}}", "group"),
                counted=pl.lit(kind),
                absent=pl.col("expected") - pl.col("stored"),
                frozen=pl.lit(0),
                failed=pl.lit(0),
            )
            counted.append(named.select(pl.col(n).cast(t) for n, t in COVERAGE_SCHEMA.items()))
    return pl.concat(counted).sort("counted", "source", "month", descending=[True, False, False])


def find_stored_months(deployment: Deployment, dataset: str) -> dict[str, bool]:
    """Return the months of a data set, or of ``news``, and whether each is stored as a whole.

    Only data from live sources counts. Public holidays and one slot in a hundred may be missing.
    """
    today = deployment.clock().date()
    tolerated = pl.max_horizontal(
        pl.col("expected") * _TOLERATED_SHARE, _HOLIDAYS * pl.col("on_weekdays").cast(pl.Int64)
    )
    is_whole = (pl.col("expected") - pl.col("stored") <= tolerated).all()
    found: dict[str, bool] = {}
    for _, days in _list_days(deployment, dataset):
        live = days.filter(pl.col("is_live").any().over("group"))
        months = _sum_months(live, today).group_by("month").agg(is_whole.alias("is_whole"))
        for month, whole in months.sort("month").iter_rows():
            found[month] = found.get(month, True) and whole
    return found


def _list_days(deployment: Deployment, dataset: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Return what is counted (VALUES or DAYS) and the stored days of each group of a data set."""
    if dataset == NEWS:
        with contextlib.suppress(DataError):  # nothing of it is stored yet
            yield DAYS, deployment.news_store().count_days()
        return
    declared = deployment.registry[dataset]
    with contextlib.suppress(DataError):
        yield VALUES, _read_values(deployment, declared)
    # archive:aemo/file.csv is aemo's.
    publisher = pl.col("source").str.extract("^[^:]*:([^/]*)").alias("group")
    day = declared.spec.find_market_day().alias("day")
    is_live = pl.col("source").str.starts_with("live:").any().alias("is_live")
    for kind in (FrameKind.PUBLISHED, FrameKind.STEP_COVARIATES):
        days = deployment.series_store().read_frame(
            dataset, kind, lambda rows: rows.group_by(publisher, day).agg(is_live)
        )
        if days is not None:
            yield DAYS, days.with_columns(pl.format(f"{{}} ({kind})", "group").alias("group"))


def list_troubled(deployment: Deployment) -> list[Entry]:
    """Return the files that are absent, short or failed, newest first."""
    states = (EntryState.ABSENT, EntryState.SHORT, EntryState.FAILED)
    entries = [entry for entry in deployment.list_asked() if entry.state in states]
    return sorted(entries, key=lambda entry: entry.asked_at, reverse=True)


def pivot_months(counts: pl.DataFrame, months: int) -> pl.DataFrame:
    """Return a row for each source and a column for each of the last months, newest first.

    A cell shows how much of the month is stored, and how many files are not: ``97 %, 2 absent``.
    """
    # The newest first: a page cuts off what is on the right.
    names = sorted(set(counts["month"]) - {""}, reverse=True)[:months]
    percent = (100 * pl.col("stored") / pl.col("expected")).floor().cast(pl.Int64)
    notes = [
        pl.when((pl.col("counted") == FILES) & (pl.col(state) > 0))
        .then(pl.format(f", {{}} {state}", state))
        .otherwise(pl.lit(""))
        for state in ("absent", "frozen", "failed")
    ]
    cells = counts.filter(pl.col("month").is_in(names)).select(
        "source", "counted", "month", pl.format("{} %{}{}{}", percent, *notes).alias("cell")
    )
    wide = cells.pivot(on="month", on_columns=names, index=["source", "counted"], values="cell")
    return wide.with_columns(pl.col(names).fill_null(""))


def tabulate_files(entries: Iterable[Entry]) -> pl.DataFrame:
    """Return a row for each file of the ledger: what it is, when it is asked for again, why."""
    # A short one is final after the last pause.
    when = dict.fromkeys(EntryState, "next run") | {EntryState.SHORT: "never"}
    return pl.DataFrame(
        [
            {
                "file": f"{entry.source}/{entry.name}",
                "state": entry.state.value,
                "tries": entry.tries,
                "asked": f"{entry.asked_at:%Y-%m-%d %H:%M}",
                "again": f"{entry.due_at:%Y-%m-%d %H:%M}" if entry.due_at else when[entry.state],
                "why": entry.note,
            }
            for entry in entries
        ],
        schema=dict.fromkeys(("file", "state", "tries", "asked", "again", "why"), pl.String)
        | {"tries": pl.Int64},
    )


def find_month(name: str) -> str:
    """Return the first month in a file name, such as ``2026-03``, or ""."""
    match = _MONTH_IN_NAME.search(name)
    return f"{match[1]}-{match[2]}" if match else ""


def _read_values(deployment: Deployment, declared: RegisteredDataset) -> pl.DataFrame:
    """Return the values of each group of series by day of the market's clock."""
    # AEMO/TOTALDEMAND/NSW1 belongs to AEMO/TOTALDEMAND.
    group = pl.col("series_id").str.replace("/[^/]*$", "").alias("group")
    day = declared.spec.find_market_day().alias("day")
    counts = (
        pl.col("value").count().alias("stored"),
        pl.struct("series_id", "variable").n_unique().alias("series"),
        pl.col("source").str.starts_with("live:").any().alias("is_live"),
    )
    by_day = deployment.series_store().read(
        declared.name, lambda rows: rows.group_by(group, day).agg(counts)
    )
    per_day = max(1, DAY // declared.spec.step)
    prefixes = [prefix.rstrip("/") for prefix in declared.rules.weekdays_only]
    return by_day.with_columns(
        expected=per_day * pl.col("series").max().over("group"),
        on_weekdays=pl.col("group").is_in(prefixes),
    )


def _sum_months(days: pl.DataFrame, today: date) -> pl.DataFrame:
    """Count slots by group and month, from the first day of a group that is stored to its last.

    Unless ``days`` state how many slots of a day are ``stored`` and ``expected``, it is one.
    """
    one = {"stored": pl.lit(1), "expected": pl.lit(1), "on_weekdays": pl.lit(value=False)}
    slots = days.with_columns(**{name: cell for name, cell in one.items() if name not in days})
    end = pl.when(pl.col("is_live").any()).then(pl.lit(today))
    every = (
        slots.group_by("group")
        .agg(
            pl.col("day").min().alias("first"),
            pl.max_horizontal(pl.col("day").max(), end).alias("last"),
            pl.col("expected", "on_weekdays").max(),
        )
        .with_columns(day=pl.date_ranges("first", "last"))
        .explode("day")
        .filter(~pl.col("on_weekdays") | (pl.col("day").dt.weekday() < 6))
    )
    held = every.join(slots.select("group", "day", "stored"), on=["group", "day"], how="left")
    # Series that were collected at a finer step have more values than their grid.
    stored = pl.min_horizontal(pl.col("stored").fill_null(0), "expected")
    return held.group_by("group", pl.col("day").dt.strftime("%Y-%m").alias("month")).agg(
        pl.col("expected").sum(), stored.sum().alias("stored"), pl.col("on_weekdays").any()
    )


def backfill(
    deployment: Deployment,
    dataset: str,
    feeds: Sequence[Feed],
    *,
    since: datetime,
    until: datetime | None = None,
    log: logging.Logger,
    counts: dict[str, Counter[str]] | None = None,
) -> dict[str, Counter[str]]:
    """Fetch and store what is missing of a span, oldest month first; return counts by feed.

    ``feeds`` are as ``choose_feeds`` gives them; without ``until`` the span ends now. ``counts`` is
    filled month by month, so that it is known what was stored before a failure. ConfigError if
    the mode is not live or the span empty; SourceError if a feed failed, after earlier months.
    """
    if deployment.data_mode is not Mode.LIVE:
        raise ConfigError(
            f"a backfill asks publishers, and the mode is {deployment.data_mode}: set "
            "COMPEVO_MODE=live, or the mode of the resource workspace"
        )
    now = deployment.clock()
    # A month that has not begun has no file, and its absence would end the backfill as a failure.
    parts = list_parts(feeds, since, min(until or now, now))
    if not parts:
        raise ConfigError(f"nothing to fetch from {since:%Y-%m-%d} on; name a span that has begun")

    counts = {} if counts is None else counts
    steps = Steps([1.0] * len(parts), log.info)
    for feed, start, end in parts:
        steps.begin(f"{dataset}: {feed.name} from {start:%Y-%m-%d}")
        of_part = ingest_feed(deployment, feed, dataset, log=log, span=(start, end))
        counts.setdefault(feed.name, Counter()).update(of_part)
    return counts


def choose_feeds(feeds: FeedTable, dataset: str, names: Sequence[str] | None) -> list[Feed]:
    """Return the feeds of a data set that have an endpoint, or the named ones among them.

    ConfigError if a data set or feed is unknown, or none has an endpoint.
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


def list_parts(
    feeds: Sequence[Feed], since: datetime, until: datetime
) -> list[tuple[Feed, datetime, datetime]]:
    """Return start and end of each month of a span by feed; of the whole for a single request."""
    months, start = [], since
    while start < until:
        month = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        months.append((start, min(shift(month, 1, MONTH), until)))
        start = months[-1][1]
    return [
        (feed, start, end)
        for feed in feeds
        for start, end in ([(since, until)] if feed.is_whole and months else months)
    ]
