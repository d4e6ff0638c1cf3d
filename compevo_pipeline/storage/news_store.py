"""News articles and their embeddings in one DuckDB file.

What belongs here: idempotent upserts and reads of the two tables. What does not: the statements
(``storage.news_sql``), connections and locks (``storage.duckdb_file``), which articles count as
duplicates (``compevo_core.data.news``), making embeddings, candidate selection.

Of an article given twice the version that was available first stays: a page edited later may know
more than anyone did at the time.

Shapes: N articles, D numbers of an embedding.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

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
    """Articles and embeddings; safe to use from several threads and processes at a time."""

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

        When an earlier version with another text replaces the stored one, its embeddings are
        dropped.

        Raises:
            DataError: the frame breaks ``ARTICLE_SCHEMA`` or its rules.
            StoreBusy: the store was not free in time.
        """
        articles = validate_articles(frame).sort("available_at", "fetched_at", maintain_order=True)
        earliest = articles.unique("article_id", keep="first", maintain_order=True)

        with self._writer() as connection:
            connection.register("incoming", _drop_zone(earliest))
            added, changed = _read_counts(connection, news_sql.COUNT_ARTICLES)

            # Stale embeddings are found by comparing with the text that the upsert overwrites.
            if added or changed:
                connection.execute(news_sql.DELETE_STALE_EMBEDDINGS)
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

    def upsert_embeddings(
        self, model: str, ids: Sequence[str], vectors: NDArray[np.float32]
    ) -> UpsertReport:
        """Add or replace the embeddings of articles.

        Args:
            model: name of the model that made them.
            ids: N article ids.
            vectors: (N, D), one row an id.

        Raises:
            DataError: shapes disagree, a value is not finite, an id repeats or has no article, or D
                is not the model's.
            StoreBusy: the store was not free in time.
        """
        matrix_ND = _check_vectors(model, ids, vectors)
        dimension = matrix_ND.shape[1]
        vector = pl.Series("vector", matrix_ND, dtype=pl.Array(pl.Float32, dimension))
        rows = pl.DataFrame(
            {
                "article_id": list(ids),
                "model": [model] * len(ids),
                "vector": vector.arr.to_list(),
            }
        )

        # Checked inside the transaction: another run may store articles in between.
        with self._writer() as connection:
            connection.register("incoming", rows)
            _refuse_misfits(connection, model, dimension)
            added, changed = _read_counts(connection, news_sql.COUNT_EMBEDDINGS)
            if added or changed:
                connection.execute(news_sql.UPSERT_EMBEDDINGS)

        return UpsertReport(
            rows=len(ids), added=added, changed=changed, unchanged=len(ids) - added - changed
        )

    def read_embeddings(self, model: str) -> tuple[list[str], NDArray[np.float32]]:
        """Read the ids and the matrix (N, D) of a model, by id; (0, 0) if it has none."""
        with self._reader() as connection:
            frame = _read_frame(connection, news_sql.READ_EMBEDDINGS, {"model": model})
        if not frame.height:
            return [], np.zeros((0, 0), dtype=np.float32)

        # One flat column is reshaped: a list of lists would copy every number through Python.
        flat = frame["vector"].explode().to_numpy().astype(np.float32, copy=False)
        return frame["article_id"].to_list(), flat.reshape(frame.height, -1)

    def read_missing_embeddings(self, model: str) -> pl.DataFrame:
        """Read ``article_id, title, body`` of the articles without an embedding of ``model``."""
        with self._reader() as connection:
            return _read_frame(connection, news_sql.READ_MISSING_EMBEDDINGS, {"model": model})

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


def _check_vectors(
    model: str, ids: Sequence[str], vectors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the vectors as one float32 matrix (N, D)."""
    matrix_ND = np.ascontiguousarray(vectors, dtype=np.float32)
    distinct = len(set(ids))
    if matrix_ND.ndim != 2 or matrix_ND.shape[0] != len(ids) or distinct != len(ids):
        raise DataError(
            f"embeddings are {matrix_ND.shape} for {len(ids)} ids, {distinct} of them distinct; "
            "give one row (D,) for each distinct id"
        )
    if not np.isfinite(matrix_ND).all():
        raise DataError(f"embeddings of {model} hold NaN or infinity; encode the articles again")

    return matrix_ND


def _refuse_misfits(connection: duckdb.DuckDBPyConnection, model: str, dimension: int) -> None:
    """Refuse embeddings without an article, or of another length than the model's stored ones."""
    unknown = connection.execute(news_sql.FIND_UNKNOWN_ARTICLES).fetchall()
    if unknown:
        raise DataError(
            f"{len(unknown)} embeddings of unknown articles, first {unknown[0][0]}; "
            "store the articles first"
        )

    stored = connection.execute(news_sql.READ_DIMENSION, {"model": model}).fetchone()
    if stored is not None and stored[0] != dimension:
        raise DataError(
            f"{model} has embeddings of {stored[0]} numbers, not {dimension}; "
            "give another model name"
        )


def _read_frame(
    connection: duckdb.DuckDBPyConnection, query: str, values: Mapping[str, object]
) -> pl.DataFrame:
    frame: pl.DataFrame = connection.sql(query, params=dict(values)).pl()
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
