"""News articles in one DuckDB file.

What belongs here: idempotent upserts and reads. What does not: the statements
(``storage.news_sql``), connections and locks (``storage.duckdb_file``), which articles count as
duplicates (``compevo_core.data.news``), embeddings (``storage.embedding_store``), candidate
selection.

Of an article given twice the version that was available first stays: a page edited later may know
more than anyone did at the time.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import duckdb
import polars as pl

from compevo_core.data.filelock import WAIT_SECONDS
from compevo_core.data.news import validate_articles
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.errors import DataError
from compevo_pipeline.storage import news_sql
from compevo_pipeline.storage.duckdb_file import DuckDBFile

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
            connection.register("incoming", _drop_zone(earliest))
            added, changed = _read_counts(connection, news_sql.COUNT_ARTICLES)
            if added or changed:
                connection.execute(news_sql.UPSERT_ARTICLES)

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

    def count_days(self) -> pl.DataFrame:
        """Return the days on which articles became available, by publisher.

        Returns:
            ``group`` (the publisher), ``day``, and whether live mode brought any (``is_live``).

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

    def read_newest(self, rows: int) -> pl.DataFrame:
        """Read the articles that became available last, the newest first."""
        with self._reader() as connection:
            newest = _read_frame(connection, news_sql.READ_NEWEST_ARTICLES, {"rows": rows})
            return _add_zone(newest)

    @contextmanager
    def _writer(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._database.writer() as connection:
            connection.execute(news_sql.CREATE_TABLES)
            yield connection

    @contextmanager
    def _reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        nothing_stored = f"no news is stored at {self.path}: materialize news/articles first"
        if not self.path.exists():
            raise DataError(nothing_stored)

        with self._database.reader() as connection:
            try:
                yield connection
            except duckdb.CatalogException as error:
                # The file exists without its tables, when the first write did not end.
                raise DataError(nothing_stored) from error


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


def _add_zone(frame: pl.DataFrame) -> pl.DataFrame:
    zoned = frame.with_columns(pl.col(_STAMPS).dt.cast_time_unit("us").dt.replace_time_zone("UTC"))
    return zoned.select(pl.col(name).cast(kind) for name, kind in ARTICLE_SCHEMA.items())


def _to_naive_utc(moment: datetime | None) -> datetime | None:
    """Return a bound in UTC without its zone, as the table stores times."""
    if moment is None:
        return None

    offset = moment.utcoffset()
    if offset is None:
        raise DataError(f"the bound {moment} has no time zone; give an aware datetime")
    return (moment - offset).replace(tzinfo=None)
