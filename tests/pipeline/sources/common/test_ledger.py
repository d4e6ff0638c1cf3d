"""The ledger: what is asked again, and what a broken file says."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest

from compevo_core.errors import SourceTransient, StorageError
from compevo_pipeline.sources.common import ledger as ledger_module
from compevo_pipeline.sources.common.ledger import EntryState, Ledger

NOW = datetime(2026, 7, 20, tzinfo=UTC)
URL = "https://nemweb.com.au/x.zip"


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "raw" / "ledger.sqlite")


def fetch(ledger, name="x.zip"):
    ledger.record_fetched("s", name, url=URL, sha256="0" * 64, now=NOW, etag='"1"')


def test_what_this_run_has_fetched_is_not_due_and_to_the_next_run_it_is(ledger):
    fetch(ledger)
    assert not ledger.is_due("s", "x.zip", NOW)
    assert Ledger(ledger.path).is_due("s", "x.zip", NOW)


def test_a_failure_leaves_a_stored_file_stored(ledger):
    fetch(ledger)
    ledger.confirm()
    ledger.reject("s", "x.zip", "not of this run")
    ledger.record_failure("s", "x.zip", url=URL, note="SourceTransient: x", now=NOW)
    entry = ledger.get("s", "x.zip")
    assert (entry.state, entry.etag, entry.note) == (EntryState.STORED, '"1"', "SourceTransient: x")


def test_a_ledger_that_is_no_database_says_what_to_do(ledger):
    ledger.path.parent.mkdir(parents=True)
    ledger.path.write_bytes(b"not a database, and long enough to have a header" * 10)
    with pytest.raises(StorageError, match="move it away"):
        ledger.get("s", "x.zip")


def test_a_ledger_that_another_run_holds_is_worth_another_try(ledger, monkeypatch):
    fetch(ledger)
    monkeypatch.setattr(ledger_module, "_WAIT_FOR_OTHERS_S", 0.05)
    with closing(sqlite3.connect(ledger.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SourceTransient, match="wait for other runs"):
            ledger.confirm()


def test_a_ledger_that_cannot_grow_says_so(ledger, monkeypatch):
    fetch(ledger)
    connect = sqlite3.connect

    def connect_to_a_full_disk(*args, **kwargs):
        connection = connect(*args, **kwargs)
        connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(ledger_module.sqlite3, "connect", connect_to_a_full_disk)
    with pytest.raises(StorageError, match="disk space"):
        for number in range(200):
            fetch(ledger, f"{number:0100}.zip")
