"""News articles in one DuckDB file.

What belongs here: idempotent upserts and reads. What does not: the statements
(``storage.news_sql``), connections and locks (``storage.duckdb_file``), which articles count as
duplicates (``compevo_core.data.news``), embeddings (``storage.embedding_store``), candidate
selection.

Of an article given twice the version that was available first stays: a page edited later may know
more than anyone did at the time.

The table of an earlier version is taken over by whoever opens it first, month by month and in one
transaction.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl

from compevo_core.data.filelock import WAIT_SECONDS
from compevo_core.data.news import OWN_PUBLISHER, title_key_expr, validate_articles
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.errors import DataError
from compevo_pipeline.storage import news_sql
from compevo_pipeline.storage.duckdb_file import DuckDBFile

log = logging.getLogger(__name__)

_STAMPS = [name for name, kind in ARTICLE_SCHEMA.items() if kind == pl.Datetime("us", "UTC")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertReport:
    """Counts of an upsert; rows given = added + changed + unchanged."""

    rows: int
    added: int
    changed: int
    unchanged: int

    def as_dict(self) -> dict[str, int]:
        """Return the counts for metadata."""
        return asdict(self)


class NewsStore:
    """Articles; safe to use from several threads and processes at a time."""

    def __init__(self, path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """Use the DuckDB file at ``path``, which the first write makes.

        Args:
            path: the database file.
            wait_seconds: how long a call waits for other runs and programs.
        """
        self.path = path
        self._database = DuckDBFile(path, wait_seconds=wait_seconds)

    def upsert_articles(self, frame: pl.DataFrame) -> UpsertReport:
        """Add articles; of a stored one the version that was available earlier stays.

        Raises:
            DataError: the frame breaks ``ARTICLE_SCHEMA`` or its rules.
            StoreBusy: the store was not free in time.
        """
        articles = validate_articles(frame).sort("available_at", "fetched_at", maintain_order=True)
        earliest = articles.unique("article_id", keep="first", maintain_order=True)

        with self._writer() as connection:
            connection.register("incoming", _add_title_text(_drop_zone(earliest)))
            connection.execute(news_sql.FIND_KNOWN)
            known, changed = _read_counts(connection, news_sql.COUNT_KNOWN)
            if changed:
                connection.execute(news_sql.DELETE_LATER_VERSIONS)

            added = earliest.height - known
            if added or changed:
                connection.execute(news_sql.INSERT_ARTICLES)

        return UpsertReport(
            rows=frame.height,
            added=added,
            changed=changed,
            unchanged=frame.height - added - changed,
        )

    def read_articles(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> pl.DataFrame:
        """Read articles with since <= available_at < until, by availability.

        Raises:
            DataError: nothing was ever stored, or a bound has no time zone.
            StoreBusy: the store was not free in time.
        """
        bounds = {"since": _to_naive_utc(since), "until": _to_naive_utc(until)}
        with self._reader() as connection:
            return _add_zone(_read_frame(connection, news_sql.READ_ARTICLES, bounds))

    def read_first_printed(self, since: datetime, until: datetime, publisher: str) -> pl.DataFrame:
        """Read articles whose title no earlier article has, with since <= available_at < until.

        What is read is what ``deduplicate_articles`` keeps of all articles of the publisher, as far
        as it lies within the bounds; memory follows the bounds, and not the archive.

        Args:
            since: the first instant.
            until: the instant that follows the last.
            publisher: as for ``data.news.select_articles``.

        Raises:
            DataError: nothing was ever stored, or a bound has no time zone.
            StoreBusy: the store was not free in time.
        """
        values = {
            "since": _to_naive_utc(since),
            "until": _to_naive_utc(until),
            "publisher": publisher,
            "own": OWN_PUBLISHER,
        }
        with self._reader() as connection:
            return _add_zone(_read_frame(connection, news_sql.READ_FIRST_PRINTED, values))

    def count_titles(self, publisher: str) -> int:
        """Count the articles of a publisher, those with one title once."""
        values = {"publisher": publisher, "own": OWN_PUBLISHER}
        with self._reader() as connection:
            return int(_read_frame(connection, news_sql.COUNT_TITLES, values).item())

    def hash_content(self, publisher: str = "") -> str:
        """Return a text that changes with each article that comes, or is replaced.

        Args:
            publisher: whose articles count; "" for all.

        Raises:
            DataError: nothing was ever stored.
            StoreBusy: the store was not free in time.
        """
        with self._reader() as connection:
            counts = _read_frame(connection, news_sql.HASH_CONTENT, {"publisher": publisher})
        return " ".join(str(number) for number in counts.row(0))

    def read_repeated(self) -> pl.DataFrame:
        """Read the articles whose id is stored more than once; upserts leave none."""
        with self._reader() as connection:
            return _add_zone(_read_frame(connection, news_sql.READ_REPEATED_ARTICLES))

    def count_days(self) -> pl.DataFrame:
        """Return the days on which articles became available, by publisher.

        Returns:
            ``group`` (the publisher), ``day``, ``articles`` of the day, and whether live mode
            brought any (``is_live``).

        Raises:
            DataError: nothing was ever stored.
            StoreBusy: the store was not free in time.
        """
        with self._reader() as connection:
            return _read_frame(connection, news_sql.COUNT_DAYS, {})

    def read_named(self, ids: Iterable[str]) -> pl.DataFrame:
        """Read the articles of these ids, by availability; an id without an article is left out.

        Raises:
            DataError: nothing was ever stored.
            StoreBusy: the store was not free in time.
        """
        named = pl.DataFrame({"article_id": sorted(set(ids))}, schema={"article_id": pl.String()})
        with self._reader() as connection:
            connection.register("named", named)
            return _add_zone(_read_frame(connection, news_sql.READ_NAMED_ARTICLES))

    def count_by_month(self) -> pl.DataFrame:
        """Count the articles (``articles``) by the month that they became available in."""
        with self._reader() as connection:
            return _read_frame(connection, news_sql.COUNT_ARTICLES_BY_MONTH)

    def list_months(self) -> list[tuple[datetime, datetime]]:
        """Return the bounds of each month that articles became available in, the first one first.

        Reading month by month takes memory for the articles of one.
        """
        firsts = [first.replace(tzinfo=UTC) for first in self.count_by_month()["month"].to_list()]
        return [(first, _add_month(first)) for first in firsts]

    def read_newest(self, rows: int) -> pl.DataFrame:
        """Read the articles that became available last, the newest first."""
        with self._reader() as connection:
            newest = _read_frame(connection, news_sql.READ_NEWEST_ARTICLES, {"rows": rows})
            return _add_zone(newest)

    @contextmanager
    def _writer(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._database.writer() as connection:
            connection.execute(news_sql.CREATE_TABLES)
            if _has_earlier_table(connection):
                _take_over(connection)
            yield connection

    @contextmanager
    def _reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        nothing_stored = f"no news is stored at {self.path}: materialize news/articles first"
        if not self.path.exists():
            raise DataError(nothing_stored)

        with ExitStack() as stack:
            connection = stack.enter_context(self._database.reader())
            if not _has_table(connection):
                # The file exists without its tables, when the first write did not end.
                if not _has_earlier_table(connection):
                    raise DataError(nothing_stored)

                # A reader cannot write: it opens the file again when the writer is done.
                stack.close()
                with self._writer():
                    log.info("%s is taken over from an earlier version", self.path)
                connection = stack.enter_context(self._database.reader())
            yield connection


class StoredArticles:
    """The articles of one publisher as a data set's windows are cut with them: read in parts."""

    def __init__(self, store: NewsStore, publisher: str) -> None:
        """Take a store and the publisher whose articles are candidates."""
        self._store = store
        self._publisher = publisher

    def read(self, since: datetime, until: datetime) -> pl.DataFrame:
        """Return the articles of a part of time, each syndicated title once."""
        return self._store.read_first_printed(since, until, self._publisher)

    def count(self) -> int:
        """Return the number of articles, each syndicated title once."""
        return self._store.count_titles(self._publisher)


def _has_table(connection: duckdb.DuckDBPyConnection) -> bool:
    try:
        connection.execute(news_sql.FIND_TABLE)
    except duckdb.CatalogException:
        return False
    return True


def _has_earlier_table(connection: duckdb.DuckDBPyConnection) -> bool:
    return connection.execute(news_sql.FIND_EARLIER_TABLE).fetchone() is not None


def _take_over(connection: duckdb.DuckDBPyConnection) -> None:
    """Copy the table of an earlier version, and drop it."""
    for (month,) in connection.execute(news_sql.LIST_EARLIER_MONTHS).fetchall():
        of_month = _read_frame(connection, news_sql.READ_EARLIER_MONTH, {"month": month})
        connection.register("incoming", _add_title_text(of_month))
        connection.execute(news_sql.FIND_KNOWN)
        connection.execute(news_sql.INSERT_ARTICLES)
    connection.execute(news_sql.DROP_EARLIER_TABLE)


def _read_frame(
    connection: duckdb.DuckDBPyConnection, query: str, values: Mapping[str, object] | None = None
) -> pl.DataFrame:
    frame: pl.DataFrame = connection.sql(query, params=dict(values or {})).pl()
    return frame


def _read_counts(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, int]:
    row = connection.execute(query).fetchone()
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def _drop_zone(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(_STAMPS).dt.replace_time_zone(None))


def _add_title_text(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(title_key_expr().alias("title_text"))


def _add_zone(frame: pl.DataFrame) -> pl.DataFrame:
    zoned = frame.with_columns(pl.col(_STAMPS).dt.cast_time_unit("us").dt.replace_time_zone("UTC"))
    return zoned.select(pl.col(name).cast(kind) for name, kind in ARTICLE_SCHEMA.items())


def _add_month(first: datetime) -> datetime:
    return first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)


def _to_naive_utc(moment: datetime | None) -> datetime | None:
    """Return a bound in UTC without its zone, as the table stores times."""
    if moment is None:
        return None

    offset = moment.utcoffset()
    if offset is None:
        raise DataError(f"the bound {moment} has no time zone; give an aware datetime")
    return (moment - offset).replace(tzinfo=None)
