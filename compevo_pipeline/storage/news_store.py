"""News articles in one DuckDB file.

What belongs here: short connections under a lock, idempotent upserts and reads, and the only SQL of
this project except the ledger. What does not: which articles count as duplicates
(``compevo_core.data.news``), embeddings (``storage.embedding_store``), candidate selection.

A connection lasts one call. A lock file lets one writer or many readers in at a time, across
threads and processes, so that parallel runs wait instead of failing on DuckDB's own lock
(https://duckdb.org/docs/stable/connect/concurrency).

Of an article given twice the version that was available first stays: a page edited later may hold
more than anyone knew at the time. Times are UTC without a zone, so that reading them needs no
time-zone extension. No column is indexed: an index of ten million ids takes most of a gigabyte. 64
bits of a hash represent each id and each title, and a scan of them finds the few that are wanted.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl

from compevo_core.data.news import OWN_PUBLISHER, title_key_expr, validate_articles
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.errors import DataError
from compevo_core.runtime import files

_RETRY_SECONDS = 0.05
_OF_STORAGE = (
    duckdb.IOException,
    duckdb.TransactionException,
    duckdb.FatalException,
    duckdb.OutOfMemoryException,
)
"""What a full or failing disk makes of a statement or a commit; the transaction is rolled back."""

_HOLDER = re.compile(r"lock is held in (?P<program>\S.*) \(PID (?P<id>\d+)\)")

MEMORY_LIMIT = "400MB"  # of a connection; larger sorts and joins use temporary files
_OPTIONS: dict[str, str | bool | int | float | list[str]] = {
    # DuckDB would download an extension at the first statement that needs one.
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": MEMORY_LIMIT,
}


def _create(path: Path) -> None:
    path.unlink()
    try:
        duckdb.connect(path, config=_OPTIONS).close()
    except _OF_STORAGE as error:
        raise files.describe_storage_error(error, str(path)) from error


# ``incoming`` is the frame of an upsert, with the text of each title's key in ``title_text``.

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS news_articles (
    id_key UBIGINT NOT NULL,
    title_key UBIGINT NOT NULL,
    publisher VARCHAR NOT NULL,
    article_id VARCHAR NOT NULL,
    url VARCHAR NOT NULL,
    title VARCHAR NOT NULL,
    body VARCHAR,
    domain VARCHAR,
    language VARCHAR,
    country VARCHAR,
    published_at TIMESTAMP,
    seen_at TIMESTAMP,
    available_at TIMESTAMP NOT NULL,
    fetched_at TIMESTAMP NOT NULL,
    source VARCHAR NOT NULL
);
"""

_UPSERT = """
MERGE INTO news_articles AS stored USING (
    SELECT
        md5_number_lower(article_id) AS id_key,
        md5_number_lower(title_text) AS title_key,
        regexp_extract(source, '^[^:]*:([^/]*)', 1) AS publisher,
        incoming.* EXCLUDE (title_text)
    FROM incoming
) AS given ON stored.id_key = given.id_key
WHEN MATCHED AND given.available_at < stored.available_at THEN UPDATE BY NAME
WHEN NOT MATCHED THEN INSERT BY NAME
RETURNING merge_action
"""
"""Adds new articles, and puts a version in the place of one that was available later."""

_READ_ARTICLES = """
SELECT * EXCLUDE (id_key, title_key, publisher) FROM news_articles
WHERE ($since IS NULL OR available_at >= $since) AND ($until IS NULL OR available_at < $until)
ORDER BY available_at, article_id
"""

_READ_FIRST_PRINTED = """
WITH published AS NOT MATERIALIZED (
    SELECT * FROM news_articles
    WHERE CASE WHEN $publisher = '' THEN NOT starts_with(publisher, $own)
        ELSE publisher = $publisher END
), within AS (
    SELECT * FROM published WHERE available_at >= $since AND available_at < $until
), printed_before AS (
    SELECT title_key FROM published SEMI JOIN within USING (title_key) WHERE available_at < $since
)
SELECT * EXCLUDE (id_key, title_key, publisher) FROM within ANTI JOIN printed_before
USING (title_key)
QUALIFY row_number() OVER (PARTITION BY title_key ORDER BY available_at, article_id) = 1
ORDER BY available_at, article_id
"""
"""Of a title the first article of a publisher, chosen as ``data.news.select_articles`` does."""

_COUNT_TITLES = """
SELECT count(DISTINCT title_key) FROM news_articles
WHERE CASE WHEN $publisher = '' THEN NOT starts_with(publisher, $own)
    ELSE publisher = $publisher END
"""

_HASH_MONTHS = """
SELECT
    strftime(available_at, '%Y-%m') AS month,
    CAST(sum(md5_number_lower(concat_ws(' ', id_key, epoch_us(available_at)))) AS VARCHAR) AS digest
FROM news_articles WHERE $publisher = '' OR publisher = $publisher GROUP BY ALL ORDER BY ALL
"""
"""A sum does not depend on the order of the rows, and takes no memory for them."""

_COUNT_DAYS = """
SELECT
    publisher AS "group",
    CAST(available_at AS DATE) AS day,
    count(*) AS articles,
    bool_or(starts_with(source, 'live:')) AS is_live
FROM news_articles GROUP BY ALL ORDER BY ALL
"""

_READ_NAMED_ARTICLES = """
SELECT * EXCLUDE (id_key, title_key, publisher) FROM news_articles
SEMI JOIN (SELECT md5_number_lower(article_id) AS id_key FROM named) USING (id_key)
ORDER BY available_at, article_id
"""
"""The articles whose ids the frame ``named`` lists."""

_READ_REPEATED_ARTICLES = """
SELECT * EXCLUDE (id_key, title_key, publisher) FROM news_articles
SEMI JOIN (SELECT id_key FROM news_articles GROUP BY id_key HAVING count(*) > 1) USING (id_key)
ORDER BY available_at, article_id
"""

_READ_NEWEST_ARTICLES = """
SELECT * EXCLUDE (id_key, title_key, publisher) FROM news_articles
ORDER BY available_at DESC, article_id LIMIT $rows
"""

_STAMPS = [name for name, kind in ARTICLE_SCHEMA.items() if kind == pl.Datetime("us", "UTC")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertReport:
    """Counts of an upsert; other rows were stored already."""

    added: int
    changed: int


class NewsStore:
    """Articles; safe to use from several threads and processes at a time."""

    def __init__(self, path: Path, *, wait_seconds: float = files.WAIT_SECONDS) -> None:
        """Use the DuckDB file at ``path``, which the first write makes."""
        self.path = path
        self._wait_seconds = wait_seconds

    def create(self) -> None:
        """Make the store where there is none, so that windows are cut without news.

        ``StoreBusy`` where it was not free in time.
        """
        if not self.path.exists():
            self.upsert_articles(pl.DataFrame(schema=ARTICLE_SCHEMA))

    def upsert_articles(self, frame: pl.DataFrame) -> UpsertReport:
        """Add articles; of a stored one the version that was available earlier stays.

        DataError if the frame breaks ``ARTICLE_SCHEMA`` or its rules, or the file is no database;
        StorageError if the disk failed, StoreBusy if it was busy too long: nothing is stored then.
        """
        articles = validate_articles(frame).sort("available_at", "fetched_at", maintain_order=True)
        earliest = articles.unique("article_id", keep="first", maintain_order=True)

        incoming = earliest.with_columns(
            pl.col(_STAMPS).dt.replace_time_zone(None), title_key_expr().alias("title_text")
        )

        with self.writer() as connection:
            connection.execute(_CREATE_TABLE)
            connection.register("incoming", incoming)
            rows = connection.execute(_UPSERT).fetchall()

        actions = Counter(action for (action,) in rows)
        return UpsertReport(added=actions["INSERT"], changed=actions["UPDATE"])

    def read_articles(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> pl.DataFrame:
        """Read articles with since <= available_at < until, by availability.

        As in every read here, DataError if nothing was ever stored, or a bound has no time zone;
        StoreBusy if the store was not free in time.
        """
        bounds = {"since": _to_naive_utc(since), "until": _to_naive_utc(until)}
        return _add_zone(self._read(_READ_ARTICLES, bounds))

    def hash_content(self, publisher: str = "") -> str:
        """Return a text that changes when an article of the publisher (default: of any) does."""
        return files.hash_text(json.dumps(self.hash_months(publisher)))

    def hash_months(self, publisher: str = "") -> dict[str, str]:
        """Return such a text for each month, like 2026-03, that articles became available in."""
        return dict(self._read(_HASH_MONTHS, {"publisher": publisher}).iter_rows())

    def read_repeated(self) -> pl.DataFrame:
        """Read the articles whose id is stored more than once; upserts leave none."""
        return _add_zone(self._read(_READ_REPEATED_ARTICLES))

    def count_days(self) -> pl.DataFrame:
        """Return ``group`` (the publisher), ``day``, ``articles`` and ``is_live`` of each day."""
        return self._read(_COUNT_DAYS)

    def read_named(self, ids: Iterable[str]) -> pl.DataFrame:
        """Read the articles of these ids, by availability; an id without an article is left out."""
        named = pl.DataFrame({"article_id": sorted(set(ids))}, schema={"article_id": pl.String()})
        with self.reader() as connection:
            connection.register("named", named)
            return _add_zone(connection.sql(_READ_NAMED_ARTICLES).pl())

    def count_by_month(self) -> pl.DataFrame:
        """Count the articles (``articles``) by the month that they became available in."""
        month = pl.col("day").dt.truncate("1mo").cast(pl.Datetime("us")).alias("month")
        return self.count_days().group_by(month).agg(pl.col("articles").sum()).sort("month")

    def list_months(self) -> list[tuple[datetime, datetime]]:
        """Return the bounds of each month that articles became available in, the first one first.

        Reading month by month takes memory for the articles of one.
        """
        firsts = self.count_by_month()["month"].dt.replace_time_zone("UTC")
        return list(zip(firsts, firsts.dt.offset_by("1mo"), strict=True))

    def read_newest(self, rows: int) -> pl.DataFrame:
        """Read the articles that became available last, the newest first."""
        return _add_zone(self._read(_READ_NEWEST_ARTICLES, {"rows": rows}))

    def _read(self, query: str, values: Mapping[str, object] | None = None) -> pl.DataFrame:
        with self.reader() as connection:
            frame: pl.DataFrame = connection.sql(query, params=dict(values or {})).pl()
        return frame

    @contextmanager
    def reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a read-only connection to the existing file."""
        nothing_stored = f"no news is stored at {self.path}: read it with `compevo refresh`"
        if not self.path.exists():
            raise DataError(nothing_stored)

        with self._open(read_only=True) as connection:
            try:
                connection.execute("SELECT 1 FROM news_articles LIMIT 0")
            except duckdb.CatalogException as error:
                # The file exists without its table, when the first write did not end.
                raise DataError(nothing_stored) from error
            yield connection

    @contextmanager
    def writer(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open one transaction in a connection of its own; it is dropped when the block raises."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open(read_only=False) as connection:
            connection.begin()
            yield connection
            connection.commit()

    @contextmanager
    def _open(self, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        lock = self.path.with_name(f"{self.path.name}.lock")
        # Our lock before DuckDB's: parallel runs wait here instead of failing there.
        with files.file_lock(lock, exclusive=not read_only, wait_seconds=self._wait_seconds):
            # A new file gets its name when it is whole: half a header could not be opened again.
            if not read_only and not self.path.exists():
                with files.translate_storage_errors():
                    files.write_atomically(self.path, _create)

            connection = self._connect(read_only=read_only)
            try:
                yield connection
            except _OF_STORAGE as error:
                raise files.describe_storage_error(error, str(self.path)) from error
            finally:
                # A transaction that was not committed ends with its connection.
                connection.close()

    def _connect(self, *, read_only: bool) -> duckdb.DuckDBPyConnection:
        """Open the file; retry while a foreign program holds DuckDB's own lock."""
        deadline = time.monotonic() + self._wait_seconds
        while True:
            try:
                return duckdb.connect(self.path, read_only=read_only, config=_OPTIONS)
            except duckdb.Error as error:
                # DuckDB has one class for a held lock, a damaged file and a full disk, and others
                # for a log that it cannot replay.
                if files.is_known_of_disk(error):
                    raise files.describe_storage_error(error, str(self.path)) from error
                if "lock" not in str(error).lower():
                    raise DataError(
                        f"{self.path} cannot be opened ({error}); "
                        "restore it from a backup, or remove it and run `compevo rebuild news`"
                    ) from error
                if time.monotonic() >= deadline:
                    holder = _HOLDER.search(str(error))
                    named = f" (process {holder['id']}, {holder['program']})" if holder else ""
                    raise files.StoreBusy(
                        f"{self.path} is held by another program{named}; close it and retry"
                    ) from error

                time.sleep(_RETRY_SECONDS)


class StoredArticles:
    """The articles of one publisher, each syndicated title once, the first time it was printed.

    These are the ones that ``deduplicate_articles`` keeps of all; windows are cut with a part of
    them at a time, so that memory follows the part, and not the archive.
    """

    def __init__(self, store: NewsStore, publisher: str) -> None:
        """Use the articles of a publisher as ``data.news.select_articles`` names it."""
        self._store = store
        self._publisher = {"publisher": publisher, "own": OWN_PUBLISHER}

    def read(self, since: datetime, until: datetime) -> pl.DataFrame:
        """Return those with since <= available_at < until."""
        bounds = {"since": _to_naive_utc(since), "until": _to_naive_utc(until)}
        return _add_zone(self._store._read(_READ_FIRST_PRINTED, {**bounds, **self._publisher}))

    def count(self) -> int:
        """Return the number of all of them."""
        return int(self._store._read(_COUNT_TITLES, self._publisher).item())


def _add_zone(frame: pl.DataFrame) -> pl.DataFrame:
    zoned = frame.with_columns(pl.col(_STAMPS).dt.cast_time_unit("us").dt.replace_time_zone("UTC"))
    return zoned.select(pl.col(name).cast(kind) for name, kind in ARTICLE_SCHEMA.items())


def _to_naive_utc(moment: datetime | None) -> datetime | None:
    """Return a bound in UTC without its zone, as the table stores times."""
    if moment is not None and moment.tzinfo is None:
        raise DataError(f"the bound {moment} has no time zone; give an aware datetime")
    return moment and moment.astimezone(UTC).replace(tzinfo=None)
