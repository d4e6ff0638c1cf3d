"""One transaction: all of it or nothing."""

import errno
import os

import duckdb
import pytest

from compevo_core.errors import DataError, StorageError
from compevo_pipeline.storage import news_store as duckdb_file
from compevo_pipeline.storage.news_store import DuckDBFile


def test_what_a_failed_block_wrote_is_gone_and_what_was_there_stays(tmp_path):
    database = DuckDBFile(tmp_path / "x.duckdb")
    with database.writer() as connection:
        connection.execute("CREATE TABLE numbers (n INTEGER)")
        connection.execute("INSERT INTO numbers VALUES (1)")

    with pytest.raises(RuntimeError, match="on purpose"), database.writer() as connection:
        connection.execute("INSERT INTO numbers VALUES (2)")
        raise RuntimeError("on purpose")

    with database.reader() as connection:
        assert connection.execute("SELECT n FROM numbers").fetchall() == [(1,)]


def test_a_database_whose_making_was_cut_short_is_made_by_the_next_writer(tmp_path, monkeypatch):
    path = tmp_path / "x.duckdb"

    def make_half(part):
        part.write_bytes(b"half a header")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(duckdb_file, "_create", make_half)
        with pytest.raises(StorageError, match="free space"), DuckDBFile(path).writer():
            pass
    assert not path.exists()
    with DuckDBFile(path).writer() as connection:
        connection.execute("CREATE TABLE numbers (n INTEGER)")


def test_what_a_full_disk_does_to_a_commit_is_an_error_of_storage(tmp_path):
    database = DuckDBFile(tmp_path / "x.duckdb")
    with pytest.raises(StorageError, match="free space"), database.writer():
        raise duckdb.TransactionException("Failed to commit: No space left on device")


def test_a_database_that_a_full_disk_keeps_from_being_made_says_so(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise duckdb.IOException("IO Error: Could not write file: File too large")

    monkeypatch.setattr(duckdb, "connect", refuse)
    with pytest.raises(StorageError, match="ulimit -f"), DuckDBFile(tmp_path / "x.duckdb").writer():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["x.duckdb.lock"]


def test_a_log_that_cannot_be_replayed_says_what_to_do(tmp_path, monkeypatch):
    database = DuckDBFile(tmp_path / "x.duckdb")
    with database.writer():
        pass

    def refuse(*_, **__):
        raise duckdb.TransactionException("Failure while replaying WAL file")

    monkeypatch.setattr(duckdb, "connect", refuse)
    with (
        pytest.raises(DataError, match="restore it from a backup, or remove it"),
        database.reader(),
    ):
        pass
