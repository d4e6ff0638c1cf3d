"""The ledger: what is asked again and when, what is confirmed, and what a broken file says."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from compevo_core.errors import SourceTransient, StorageError
from compevo_pipeline.sources.common import ledger as ledger_module
from compevo_pipeline.sources.common.ledger import ABSENT_PAUSES, EntryState, Ledger
from tests.support.sources import raw

NOW = datetime(2026, 7, 20, tzinfo=UTC)
URL = "https://nemweb.com.au/x.zip"


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "raw" / "ledger.sqlite")


def fetch(ledger, name="x.zip"):
    ledger.record_fetched("s", name, url=URL, sha256="0" * 64, now=NOW, etag='"1"')


def is_stored(ledger, name):
    return ledger.get("s", name).state is EntryState.STORED


def test_an_absent_file_is_asked_for_after_growing_pauses_and_then_given_up(ledger):
    now, pauses = NOW, []
    while ledger.is_due("s", "x.zip", now):
        ledger.mark_absent("s", "x.zip", URL, now)
        entry = ledger.get("s", "x.zip")
        if entry.state is EntryState.FROZEN:
            break
        assert not ledger.is_due("s", "x.zip", entry.due_at - timedelta(seconds=1))
        pauses.append(entry.due_at - now)
        now = entry.due_at
    assert tuple(pauses) == ABSENT_PAUSES
    assert not ledger.is_due("s", "x.zip", NOW + timedelta(days=3650))


def test_a_file_counts_as_stored_once_its_rows_are_confirmed(ledger):
    fetch(ledger)
    assert not is_stored(ledger, "x.zip")
    ledger.confirm()
    assert is_stored(ledger, "x.zip")


def test_the_last_file_and_what_is_packed_in_it_wait_for_the_next_confirmation(ledger):
    fetch(ledger, "a.zip")
    fetch(ledger, "b.zip")
    ledger.record_members("s", ["b1.zip", "b2.zip"], raw("b.zip", b""))
    ledger.confirm(keep_last=True)
    assert [is_stored(ledger, name) for name in ("a.zip", "b.zip", "b1.zip")] == [
        True,
        False,
        False,
    ]
    ledger.confirm()
    assert [is_stored(ledger, name) for name in ("b.zip", "b1.zip", "b2.zip")] == [True] * 3


def test_what_this_run_has_fetched_is_not_due_and_to_the_next_run_it_is(ledger):
    fetch(ledger)
    assert not ledger.is_due("s", "x.zip", NOW)
    assert Ledger(ledger.path).is_due("s", "x.zip", NOW)


def test_a_rejected_file_is_fetched_anew_and_never_confirmed(ledger):
    fetch(ledger)
    ledger.reject("s", "x.zip", "SchemaDrift: x")
    ledger.confirm()
    entry = ledger.get("s", "x.zip")
    assert (entry.state, entry.sha256, entry.note) == (EntryState.FAILED, None, "SchemaDrift: x")


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
