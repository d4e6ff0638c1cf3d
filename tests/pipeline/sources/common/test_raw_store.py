"""Raw files, kept once and packed by month without losing a byte, and the ledger of them."""

import json
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compevo_core.errors import SchemaDrift, SourceTransient, StorageError
from compevo_pipeline.sources.common import ledger as ledger_module
from compevo_pipeline.sources.common import raw_store
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.ledger import Entry, EntryState, Ledger
from compevo_pipeline.sources.common.raw_store import RawStore

FETCHED = datetime(2026, 1, 1, tzinfo=UTC)


def make_raw(content=b"a,b\n1,2\n", name="x.csv"):
    return RawFile(
        source="aemo",
        name=name,
        content=content,
        url="file:x",
        fetched_at=FETCHED,
        mode=Mode.ARCHIVE,
    )


def tree(root):
    # A lock's time says who took it last; it holds nothing.
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_raw_bytes_are_kept_once_with_their_provenance(tmp_path):
    store = RawStore(tmp_path / "raw")
    path = store.write(make_raw())
    before = tree(tmp_path)
    assert store.write(replace(make_raw(), fetched_at=datetime(2030, 1, 1, tzinfo=UTC))) == path
    assert tree(tmp_path) == before
    assert path.read_bytes() == b"a,b\n1,2\n"
    sidecar = json.loads((path.parent / "x.csv.json").read_text())
    assert sidecar["sha256"] == make_raw().sha256
    assert sidecar["url"] == "file:x"


def test_a_revised_raw_file_does_not_erase_the_one_before(tmp_path):
    store = RawStore(tmp_path / "raw")
    old, new = make_raw(), make_raw(b"a,b\n1,3\n")
    store.write(old)
    path = store.write(new)
    assert path.read_bytes() == new.content
    kept = path.with_name(f"x.csv.{old.sha256[:8]}")
    assert kept.read_bytes() == old.content
    assert json.loads(kept.with_name(f"{kept.name}.json").read_text())["sha256"] == old.sha256


@pytest.mark.parametrize("name", ["../x.csv", "/etc/x.csv", "a/../../x.csv"])
def test_a_raw_file_cannot_be_stored_outside_its_folder(tmp_path, name):
    with pytest.raises(SchemaDrift, match="outside its folder"):
        RawStore(tmp_path / "home").write(make_raw(name=name))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_listed_name_that_no_folder_takes_is_refused_in_one_line(tmp_path):
    with pytest.raises(SchemaDrift, match=r"^aemo: a file name of 5000 bytes, 'xxx") as caught:
        RawStore(tmp_path / "home").write(make_raw(name="x" * 5000))
    assert len(str(caught.value)) < 300
    assert RawStore(tmp_path / "home").write(make_raw(name="x" * 200)).exists()


NEXT_YEAR = datetime(2026, 3, 1, tzinfo=UTC)
"""The first day on which what came in January is packed."""


def make_live(name, content, month=1):
    raw = make_raw(content, name)
    return replace(raw, mode=Mode.LIVE, fetched_at=datetime(2026, month, 28, tzinfo=UTC))


@pytest.fixture
def kept(tmp_path):
    """A store with two versions of a file, a compressed one, one of February, one from disk."""
    store = RawStore(tmp_path / "raw")
    files = [
        make_live("a.csv", b"1,2\n" * 5000),
        make_live("a.csv", b"1,3\n" * 5000),
        make_live("b.gz", b"\x1f\x8bxyz"),
        make_live("c.csv", b"5\n", month=2),
        make_raw(b"6\n", "d.csv"),
    ]
    for file in files:
        store.write(file)
    return store


def read_all(store):
    return {
        (file.label, file.fetched_at, file.sha256, file.load().content)
        for file in store.list_kept()
    }


def list_loose(store):
    return sorted(path.name for path in store.root.glob("aemo/[!.]*"))


def test_what_came_live_is_packed_by_month_and_read_as_before(kept):
    before = read_all(kept)
    assert len(before) == 5
    assert kept.pack(datetime(2026, 2, 28, 23, tzinfo=UTC)) == []

    assert kept.pack(NEXT_YEAR, dry=True) == [(kept.root / "packed/aemo-2026-01.zip", 3, 40_005)]
    assert len(list_loose(kept)) == 10
    ((pack, count, _),) = kept.pack(NEXT_YEAR)
    assert count == 3 and list_loose(kept) == ["c.csv", "c.csv.json", "d.csv", "d.csv.json"]
    assert pack.stat().st_size < 4000
    assert read_all(kept) == before
    with zipfile.ZipFile(pack) as bundle:
        assert bundle.read("a.csv") == b"1,3\n" * 5000

    # The next month gets a zip of its own; the first one stays as it is.
    content = pack.read_bytes()
    assert [one.name for one, *_ in kept.pack(datetime(2026, 4, 2, tzinfo=UTC))] == [
        "aemo-2026-02.zip"
    ]
    assert pack.read_bytes() == content and read_all(kept) == before


def test_a_packed_file_is_found_for_its_entry_and_a_newer_version_beside_it(kept):
    old = make_live("a.csv", b"1,3\n" * 5000)
    entry = Entry(
        source="aemo",
        name="a.csv",
        state=EntryState.FETCHED,
        url="u",
        asked_at=NEXT_YEAR,
        fetched_at=old.fetched_at,
        sha256=old.sha256,
    )
    kept.pack(NEXT_YEAR)
    assert kept.read(entry).content == old.content
    assert kept.read(replace(entry, sha256="0" * 64)) is None

    before = read_all(kept)
    new = replace(old, content=b"7\n", fetched_at=NEXT_YEAR)
    kept.write(new)
    assert kept.read(entry).content == old.content
    assert len(read_all(kept)) == len(before) + 1


@pytest.mark.parametrize("step", range(8))
def test_a_packing_that_is_killed_loses_nothing_and_goes_on(kept, step, monkeypatch):
    before = read_all(kept)
    steps = iter(range(8))

    def die_in_time(function):
        def wrapped(*args, **kwargs):
            if next(steps, None) == step:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "writestr", die_in_time(zipfile.ZipFile.writestr))
        patch.setattr(Path, "unlink", die_in_time(Path.unlink))
        with pytest.raises(KeyboardInterrupt):
            kept.pack(NEXT_YEAR)
    assert read_all(kept) == before
    kept.pack(NEXT_YEAR)
    assert read_all(kept) == before
    assert list_loose(kept) == ["c.csv", "c.csv.json", "d.csv", "d.csv.json"]


def test_a_version_that_comes_while_the_older_one_is_packed_stays(kept, monkeypatch):
    write = raw_store.write_atomically

    def write_and_receive(pack, fill):
        write(pack, fill)
        (kept.root / "aemo/a.csv").write_bytes(b"7\n")

    monkeypatch.setattr(raw_store, "write_atomically", write_and_receive)
    kept.pack(NEXT_YEAR)
    assert (kept.root / "aemo/a.csv").read_bytes() == b"7\n"


def test_a_file_whose_name_the_zip_has_with_other_bytes_stays(kept):
    pack = kept.root / "packed/aemo-2026-01.zip"
    pack.parent.mkdir()
    with zipfile.ZipFile(pack, "w") as bundle:
        bundle.writestr("a.csv", b"other")
        bundle.writestr("a.csv.json", b"{}")
    before = read_all(kept)
    kept.pack(NEXT_YEAR)
    assert "a.csv" in list_loose(kept) and read_all(kept) == before


def test_a_damaged_file_stays_unpacked_and_a_damaged_zip_is_named(kept, caplog):
    (kept.root / "aemo/b.gz").write_bytes(b"other")
    kept.pack(NEXT_YEAR)
    assert "b.gz" in list_loose(kept)
    pack = kept.root / "packed/aemo-2026-01.zip"
    pack.write_bytes(pack.read_bytes()[:-30])
    assert len(kept.list_kept()) == 3
    assert "aemo-2026-01.zip is damaged" in caplog.text


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
