"""Short connections to one DuckDB file, for one writer or many readers at a time.

What belongs here: opening, locking, transactions, waiting for foreign programs. What does not:
tables and statements (``storage.news_sql``).

A connection lasts one call. A lock file lets one writer or many readers in at a time, across
threads and processes, so that parallel runs wait instead of failing on DuckDB's own lock
(https://duckdb.org/docs/stable/connect/concurrency).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from compevo_core.data.filelock import WAIT_SECONDS, StoreBusy, file_lock
from compevo_core.data.files import write_atomically
from compevo_core.errors import DataError
from compevo_core.storage_errors import (
    describe_storage_error,
    is_known_of_disk,
    translate_storage_errors,
)

_RETRY_SECONDS = 0.05
_OF_STORAGE = (
    duckdb.IOException,
    duckdb.TransactionException,
    duckdb.FatalException,
    duckdb.OutOfMemoryException,
)
"""What a full or failing disk makes of a statement or a commit; the transaction is rolled back."""

MEMORY_LIMIT = "400MB"
"""What a connection keeps in memory; sorts and joins that need more go on in temporary files."""

_OPTIONS: dict[str, str | bool | int | float | list[str]] = {
    # DuckDB would download an extension at the first statement that needs one.
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": MEMORY_LIMIT,
}


class DuckDBFile:
    """One database file; safe to use from several threads and processes at a time."""

    def __init__(self, path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """Use the file at ``path``, which the first writer makes; wait at most ``wait_seconds``."""
        self.path = path
        self._wait_seconds = wait_seconds

    @contextmanager
    def writer(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open one transaction in a connection of its own; roll it back when the block raises.

        Raises:
            DataError: the file is no database.
            StorageError: the disk is full or failed; nothing of the block is stored.
            StoreBusy: the file was not free in time.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)

        # Our lock before DuckDB's: parallel runs wait here instead of failing there.
        with self._locked(exclusive=True), self._open_to_write() as connection:
            connection.begin()
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    @contextmanager
    def reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a read-only connection to the existing file.

        Raises:
            DataError: the file is no database.
            StoreBusy: the file was not free in time.
        """
        with self._locked(exclusive=False), self._open(read_only=True) as connection:
            yield connection

    @contextmanager
    def _locked(self, *, exclusive: bool) -> Iterator[None]:
        lock = self.path.with_name(f"{self.path.name}.lock")
        with file_lock(lock, exclusive=exclusive, wait_seconds=self._wait_seconds):
            yield

    @contextmanager
    def _open_to_write(self) -> Iterator[duckdb.DuckDBPyConnection]:
        # A new file gets its name when it is whole: half a header could not be opened again.
        if not self.path.exists():
            with translate_storage_errors():
                write_atomically(self.path, _create)
        with self._open(read_only=False) as connection:
            yield connection

    @contextmanager
    def _open(self, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        connection = self._connect(read_only=read_only)
        try:
            yield connection
        except _OF_STORAGE as error:
            raise describe_storage_error(error, str(self.path)) from error
        finally:
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
                if is_known_of_disk(error):
                    raise describe_storage_error(error, str(self.path)) from error
                if "lock" not in str(error).lower():
                    raise DataError(
                        f"{self.path} cannot be opened ({error}); "
                        "restore it from a copy or remove it"
                    ) from error
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"{self.path} is held by another program; close it and retry ({error})"
                    ) from error

                time.sleep(_RETRY_SECONDS)


def _create(path: Path) -> None:
    """Make an empty database in the place of an empty file."""
    path.unlink()
    try:
        duckdb.connect(path, config=_OPTIONS).close()
    except _OF_STORAGE as error:
        raise describe_storage_error(error, str(path)) from error
