"""News articles and their embeddings in one DuckDB file: the only SQL of the project.

What belongs here: the two tables, idempotent upserts, short connections. What does not: which articles count as
duplicates (``compevo_core.data.news``), making embeddings, candidate selection.

Connections last one call. A lock file lets one writer or many readers in at a time, across threads and processes, so
parallel runs wait instead of failing on DuckDB's own lock. Times are stored as UTC without a zone, so that reading them
needs no time-zone extension. Of an article seen twice the version that was available first is kept: a page edited later
may know more than anyone did at the time.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from compevo_core.data.news import validate_articles
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.errors import DataError
from compevo_pipeline.storage.filelock import WAIT_SECONDS, StoreBusy, file_lock

_RETRY_SECONDS = 0.05
_OFFLINE: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}

_CREATE = """
CREATE TABLE IF NOT EXISTS articles (
    article_id VARCHAR PRIMARY KEY, url VARCHAR NOT NULL, title VARCHAR NOT NULL, body VARCHAR, domain VARCHAR,
    language VARCHAR, country VARCHAR, published_at TIMESTAMP, seen_at TIMESTAMP, available_at TIMESTAMP NOT NULL,
    fetched_at TIMESTAMP NOT NULL, source VARCHAR NOT NULL);
CREATE TABLE IF NOT EXISTS embeddings (
    article_id VARCHAR NOT NULL, model VARCHAR NOT NULL, vector FLOAT[] NOT NULL, PRIMARY KEY (article_id, model));
"""
_COUNT_ARTICLES = """
SELECT count(*) FILTER (a.article_id IS NULL), count(*) FILTER (n.available_at < a.available_at)
FROM incoming n LEFT JOIN articles a USING (article_id)
"""
_UPSERT_ARTICLES = """
INSERT INTO articles BY NAME SELECT * FROM incoming
ON CONFLICT (article_id) DO UPDATE SET
    url = excluded.url, title = excluded.title, body = excluded.body, domain = excluded.domain,
    language = excluded.language, country = excluded.country, published_at = excluded.published_at,
    seen_at = excluded.seen_at, available_at = excluded.available_at, fetched_at = excluded.fetched_at,
    source = excluded.source
WHERE excluded.available_at < articles.available_at
"""
_STALE_EMBEDDINGS = """
DELETE FROM embeddings WHERE article_id IN (
    SELECT n.article_id FROM incoming n JOIN articles a USING (article_id)
    WHERE n.available_at < a.available_at AND (n.title IS DISTINCT FROM a.title OR n.body IS DISTINCT FROM a.body))
"""
_READ_ARTICLES = """
SELECT * FROM articles WHERE ($since IS NULL OR available_at >= $since) AND ($until IS NULL OR available_at < $until)
ORDER BY available_at, article_id
"""
_UNKNOWN_IDS = (
    "SELECT n.article_id FROM incoming n ANTI JOIN articles USING (article_id) ORDER BY 1"
)
_KNOWN_DIMENSION = "SELECT len(vector) FROM embeddings WHERE model = $model LIMIT 1"
_COUNT_EMBEDDINGS = """
SELECT count(*) FILTER (e.article_id IS NULL), count(*) FILTER (e.article_id IS NOT NULL AND e.vector <> n.vector)
FROM incoming n LEFT JOIN embeddings e ON e.article_id = n.article_id AND e.model = n.model
"""
_UPSERT_EMBEDDINGS = """
INSERT INTO embeddings BY NAME SELECT * FROM incoming
ON CONFLICT (article_id, model) DO UPDATE SET vector = excluded.vector
WHERE embeddings.vector IS DISTINCT FROM excluded.vector
"""
_READ_EMBEDDINGS = (
    "SELECT article_id, vector FROM embeddings WHERE model = $model ORDER BY article_id"
)
_MISSING_EMBEDDINGS = """
SELECT article_id, title, body FROM articles
WHERE article_id NOT IN (SELECT article_id FROM embeddings WHERE model = $model) ORDER BY article_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertReport:
    """What an upsert did: rows given = added + changed + unchanged."""

    rows: int
    added: int
    changed: int
    unchanged: int

    def as_dict(self) -> dict[str, int]:
        """Counts for metadata."""
        return asdict(self)


class NewsStore:
    """Articles and embeddings; safe to use from several threads and processes at a time."""

    def __init__(self, path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """``path`` is the DuckDB file, made by the first write; no call waits longer than ``wait_seconds``."""
        self.path = path
        self._wait = wait_seconds

    def upsert_articles(self, frame: pl.DataFrame) -> UpsertReport:
        """Add articles; of one known already the version that was available earlier is kept.

        When an earlier version with another text replaces the stored one, its embeddings are dropped with it.

        Raises:
            DataError: the frame breaks ``ARTICLE_SCHEMA`` or its rules.
            StoreBusy: the store was not free in time.
        """
        checked = validate_articles(frame).sort("available_at", "fetched_at", maintain_order=True)
        rows = _naive(checked.unique("article_id", keep="first", maintain_order=True))
        with self._writer() as connection:
            connection.register("incoming", rows)
            added, changed = _pair(connection, _COUNT_ARTICLES)
            if added or changed:
                connection.execute(_STALE_EMBEDDINGS)
                connection.execute(_UPSERT_ARTICLES)
        return UpsertReport(
            rows=frame.height,
            added=added,
            changed=changed,
            unchanged=frame.height - added - changed,
        )

    def read_articles(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> pl.DataFrame:
        """Read articles with since <= available_at < until, by availability; an empty frame if there are none.

        Raises:
            DataError: nothing was ever stored, or a bound has no time zone.
            StoreBusy: the store was not free in time.
        """
        bounds = {"since": _bound(since), "until": _bound(until)}
        with self._reader() as connection:
            return _aware(_frame(connection, _READ_ARTICLES, bounds))

    def upsert_embeddings(
        self, model: str, ids: Sequence[str], vectors: NDArray[np.float32]
    ) -> UpsertReport:
        """Add or replace the embeddings (N, D) that ``model`` gave to the articles ``ids``.

        Raises:
            DataError: shapes disagree, a value is not finite, an id repeats or has no article, or D is not the model's.
            StoreBusy: the store was not free in time.
        """
        matrix = np.ascontiguousarray(vectors, dtype=np.float32)
        if matrix.ndim != 2 or matrix.shape[0] != len(ids) or len(set(ids)) != len(ids):
            found = f"{matrix.shape} for {len(ids)} ids, {len(set(ids))} of them distinct"
            raise DataError(f"embeddings are {found}; give one row (D,) for each distinct id")
        if not np.isfinite(matrix).all():
            raise DataError(
                f"embeddings of {model} hold NaN or infinity; encode the articles again"
            )
        values = pl.Series(
            "vector", matrix, dtype=pl.Array(pl.Float32, matrix.shape[1])
        ).arr.to_list()
        rows = pl.DataFrame(
            {"article_id": list(ids), "model": [model] * len(ids), "vector": values}
        )
        with self._writer() as connection:
            connection.register("incoming", rows)
            self._refuse_embeddings(connection, model, matrix.shape[1])
            added, changed = _pair(connection, _COUNT_EMBEDDINGS)
            if added or changed:
                connection.execute(_UPSERT_EMBEDDINGS)
        return UpsertReport(
            rows=len(ids), added=added, changed=changed, unchanged=len(ids) - added - changed
        )

    def read_embeddings(self, model: str) -> tuple[list[str], NDArray[np.float32]]:
        """Read ids and the matrix (N, D) of a model, by id; (0, 0) if it has none."""
        with self._reader() as connection:
            frame = _frame(connection, _READ_EMBEDDINGS, {"model": model})
        if not frame.height:
            return [], np.zeros((0, 0), dtype=np.float32)
        flat = frame["vector"].explode().to_numpy().astype(np.float32, copy=False)
        return frame["article_id"].to_list(), flat.reshape(frame.height, -1)

    def missing_embeddings(self, model: str) -> pl.DataFrame:
        """Columns ``article_id, title, body`` of the articles that ``model`` has not encoded, by id."""
        with self._reader() as connection:
            return _frame(connection, _MISSING_EMBEDDINGS, {"model": model})

    def _refuse_embeddings(
        self, connection: duckdb.DuckDBPyConnection, model: str, dimension: int
    ) -> None:
        unknown = connection.execute(_UNKNOWN_IDS).fetchall()
        if unknown:
            first = unknown[0][0]
            raise DataError(
                f"{len(unknown)} embeddings of unknown articles, first {first}; store the articles first"
            )
        known = connection.execute(_KNOWN_DIMENSION, {"model": model}).fetchone()
        if known is not None and known[0] != dimension:
            raise DataError(
                f"{model} has embeddings of {known[0]} numbers, not {dimension}; give another model name"
            )

    @contextmanager
    def _writer(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """One transaction in a connection of its own; rolled back when the block raises."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(exclusive=True), self._connection(read_only=False) as connection:
            connection.execute(_CREATE)
            connection.begin()
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    @contextmanager
    def _reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        nothing = f"no news is stored at {self.path}: materialize news/articles first"
        if not self.path.exists():
            raise DataError(nothing)
        with self._locked(exclusive=False), self._connection(read_only=True) as connection:
            try:
                yield connection
            except duckdb.CatalogException as error:
                raise DataError(nothing) from error

    @contextmanager
    def _locked(self, *, exclusive: bool) -> Iterator[None]:
        lock = self.path.with_name(f"{self.path.name}.lock")
        with file_lock(lock, exclusive=exclusive, wait_seconds=self._wait):
            yield

    @contextmanager
    def _connection(self, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the file; where a foreign program holds DuckDB's own lock, retry until the time is up."""
        deadline = time.monotonic() + self._wait
        while True:
            try:
                connection = duckdb.connect(self.path, read_only=read_only, config=_OFFLINE)
                break
            except duckdb.IOException as error:
                if "lock" not in str(error).lower():
                    message = f"{self.path} cannot be opened ({error}); restore it from a copy or remove it"
                    raise DataError(message) from error
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"{self.path} is held by another program; close it and retry ({error})"
                    ) from error
                time.sleep(_RETRY_SECONDS)
        try:
            yield connection
        finally:
            connection.close()


def _frame(
    connection: duckdb.DuckDBPyConnection, query: str, values: Mapping[str, object]
) -> pl.DataFrame:
    frame: pl.DataFrame = connection.sql(query, params=dict(values)).pl()
    return frame


def _pair(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, int]:
    row = connection.execute(query).fetchone()
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def _naive(frame: pl.DataFrame) -> pl.DataFrame:
    """UTC stamps without their zone."""
    stamps = [name for name, kind in ARTICLE_SCHEMA.items() if kind == pl.Datetime("us", "UTC")]
    return frame.with_columns(pl.col(stamps).dt.replace_time_zone(None))


def _aware(frame: pl.DataFrame) -> pl.DataFrame:
    stamps = [name for name, kind in ARTICLE_SCHEMA.items() if kind == pl.Datetime("us", "UTC")]
    zoned = frame.with_columns(pl.col(stamps).dt.cast_time_unit("us").dt.replace_time_zone("UTC"))
    return zoned.select(pl.col(name).cast(kind) for name, kind in ARTICLE_SCHEMA.items())


def _bound(moment: datetime | None) -> datetime | None:
    """UTC without its zone, as the table stores it."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise DataError(f"the bound {moment} has no time zone; give an aware datetime")
    offset = moment.utcoffset()
    return (
        (moment - offset).replace(tzinfo=None)
        if offset is not None
        else moment.replace(tzinfo=None)
    )
