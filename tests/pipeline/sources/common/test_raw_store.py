"""Raw files, kept once and packed by month without losing a byte, and the ledger of them."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from compevo_core.errors import SchemaDrift, SourceTransient, StorageError
from compevo_pipeline.sources.common import ledger as ledger_module
from compevo_pipeline.sources.common.ledger import EntryState, Ledger
from compevo_pipeline.sources.common.raw_store import RawStore
from tests.support.sources import raw
from tests.support.trees import read_tree


def make_raw(content=b"a,b\n1,2\n", name="x.csv"):
    return raw(name, content, "aemo")


def test_raw_bytes_are_kept_once_with_their_provenance(tmp_path):
    store = RawStore(tmp_path / "raw")
    path = store.write(make_raw())
    before = read_tree(tmp_path)
    assert store.write(replace(make_raw(), fetched_at=datetime(2030, 1, 1, tzinfo=UTC))) == path
    assert read_tree(tmp_path) == before
    assert path.read_bytes() == b"a,b\n1,2\n"
    sidecar = json.loads((path.parent / "x.csv.json").read_text())

    assert sidecar["sha256"] == make_raw().sha256
    assert sidecar["url"] == "file:x.csv"


def test_a_raw_file_stays_in_its_folder(tmp_path):
    store = RawStore(tmp_path / "home")
    for name, problem in (
        *((outside, "outside") for outside in ("../x.csv", "/etc/x.csv", "a/../../x.csv")),
        ("x" * 5000, "^aemo: .*5000"),
    ):
        with pytest.raises(SchemaDrift, match=problem) as caught:
            store.write(make_raw(name=name))
        assert len(str(caught.value)) < 300
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert store.write(make_raw(name="x" * 200)).exists()


NOW = datetime(2026, 7, 20, tzinfo=UTC)
URL = "https://nemweb.com.au/x.zip"


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "raw" / "ledger.sqlite")


def fetch(ledger, name="x.zip"):
    ledger.record_fetched("s", name, url=URL, sha256="0" * 64, now=NOW, etag='"1"')


def test_fetched_files_are_due_next_run(ledger):
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


def test_a_ledger_of_no_database_is_named(ledger):
    ledger.path.parent.mkdir(parents=True)
    ledger.path.write_bytes(b"not a database, and long enough to have a header" * 10)
    with pytest.raises(StorageError, match="move"):
        ledger.get("s", "x.zip")


def test_a_held_ledger_is_worth_another_try(ledger, monkeypatch):
    fetch(ledger)
    monkeypatch.setattr(ledger_module, "_WAIT_FOR_OTHERS_S", 0.05)
    with closing(sqlite3.connect(ledger.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SourceTransient, match="wait"):
            ledger.confirm()


def test_a_ledger_that_cannot_grow_says_so(ledger, monkeypatch):
    fetch(ledger)
    connect = sqlite3.connect

    def connect_to_a_full_disk(*args, **kwargs):
        connection = connect(*args, **kwargs)
        connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(ledger_module.sqlite3, "connect", connect_to_a_full_disk)
    with pytest.raises(StorageError, match="space"):
        for number in range(200):
            fetch(ledger, f"{number:0100}.zip")
