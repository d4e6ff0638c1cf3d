"""One transaction: all of it or nothing."""

import pytest

from compevo_pipeline.storage.duckdb_file import DuckDBFile


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
