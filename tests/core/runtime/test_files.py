"""Atomic writes and hashes."""

import errno
import fcntl
import hashlib
import json
import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from compevo_core.errors import DataError, StorageError
from compevo_core.runtime import files


def test_new_files_are_readable_and_deterministic(tmp_path):
    path = files.write_json(tmp_path / "a" / "b" / "file.json", {"b": "é", "a": [2]})
    assert path.stat().st_mode & 0o777 == 0o644
    before = os.umask(0o077)
    try:
        assert files.write_text(tmp_path / "mine", "").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert path.read_bytes() == files.write_json(tmp_path / "x", {"a": [2], "b": "é"}).read_bytes()
    text = path.read_text(encoding="utf-8")
    expected = hashlib.sha256(text.encode()).hexdigest()

    assert files.hash_file(path) == files.hash_text(text) == expected


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_durable_file_is_flushed_before_renaming(is_durable, tmp_path, monkeypatch):
    calls = []
    rename = Path.replace
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("flush"))
    monkeypatch.setattr(Path, "replace", lambda a, b: (calls.append("rename"), rename(a, b))[1])
    files.write_bytes(tmp_path / "x", b"1", is_durable=is_durable)
    assert calls == (["flush", "rename"] if is_durable else ["rename"])


REMEDY = "build it again"


class Killed(BaseException):
    """A kill, which no code catches by accident."""


def write_pair(folder, text):
    writers = {name: lambda part: part.write_text(text) for name in ("a.txt", "b.txt")}
    files.replace_together(folder, writers, {"text": text})


def read_pair(folder):
    """Return the texts that one reading sees."""

    def read(found):
        return {found.facts["text"], *(path.read_text() for path in found.paths.values())}

    return files.read_together(folder, read, remedy=REMEDY)


@pytest.fixture
def folder(tmp_path):
    write_pair(tmp_path, "old")
    return tmp_path


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("at", range(6))
def test_a_killed_writer_leaves_one_whole_set(at, folder, monkeypatch):
    rename, done = Path.replace, iter(range(100))

    def kill(source, target):
        before = next(done) * 2
        if before == at:
            raise Killed
        result = rename(source, target)
        if before + 1 == at:
            raise Killed
        return result

    monkeypatch.setattr(Path, "replace", kill)
    with pytest.raises(Killed):
        write_pair(folder, "new")
    monkeypatch.undo()

    assert read_pair(folder) == {"new" if at == 5 else "old"}
    write_pair(folder, "last")
    assert read_pair(folder) == {"last"}
    assert len(visible(folder)) == 3


def test_a_reader_of_replaced_files_reads_anew(folder):
    seen = []

    def read(found):
        seen.append(found.facts["text"])
        if len(seen) == 1:
            write_pair(folder, "new")
        return "".join(path.read_text() for path in found.paths.values())

    assert files.read_together(folder, read, remedy=REMEDY) == "newnew"
    assert seen == ["old", "new"]


def test_readers_beside_writers_never_see_a_mix(folder):
    def write(number):
        for n in range(10):
            write_pair(folder, f"{number}-{n}")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    sizes = {len(read_pair(folder)) for _ in range(50)}
    for writer in writers:
        writer.join()
    assert sizes == {1} and len(visible(folder)) == 3


def test_a_broken_manifest_says_the_remedy(folder):
    altered, missing = sorted(folder.glob("*.txt"))
    kept = altered.read_text()
    altered.write_text("other")
    with pytest.raises(DataError, match=f"{altered.name} differs from its manifest; {REMEDY}"):
        read_pair(folder)

    altered.write_text(kept)
    missing.unlink()
    with pytest.raises(DataError, match=f"{missing.name} is missing; {REMEDY}"):
        read_pair(folder)

    (folder / files.MANIFEST_FILE).write_text(json.dumps({"text": "old"}))
    with pytest.raises(DataError, match=f"torn; {REMEDY}"):
        read_pair(folder)
    (folder / files.MANIFEST_FILE).unlink()
    with pytest.raises(DataError, match=f"is missing\\); {REMEDY}"):
        read_pair(folder)


def test_a_lock_that_stays_taken_is_named(tmp_path):
    lock = tmp_path / ".lock"
    second = files.file_lock(lock, exclusive=False, wait_seconds=0.1)
    with files.file_lock(lock, exclusive=True):
        # In another thread of this process too.
        with ThreadPoolExecutor() as pool, pytest.raises(files.StoreBusy, match="lock"):
            pool.submit(hold_briefly, lock, wait_seconds=0.1).result()
        with pytest.raises(files.StoreBusy), second:
            pytest.fail("a reader came in while a writer held the lock")


def test_a_waiter_stays_within_bounded_patience(tmp_path):
    lock, turns = tmp_path / ".lock", threading.Event()

    def take_turns(handle):
        while not turns.wait(0.03):
            os.utime(handle)

    with ThreadPoolExecutor() as pool, lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        others = pool.submit(take_turns, handle.fileno())
        waiting = pool.submit(hold_briefly, lock, wait_seconds=0.2)
        time.sleep(0.6)
        assert not waiting.done()
        with pytest.raises(files.StoreBusy):
            waiting.result()
        turns.set()
        others.result()


def test_a_reader_frees_no_other_readers_lock(tmp_path):
    lock = tmp_path / ".lock"
    with files.file_lock(lock, exclusive=False):
        os.utime(lock, (0, 0))
        with files.file_lock(lock, exclusive=False, wait_seconds=0.1):
            assert lock.stat().st_mtime > 0  # its turn is shown
        writer = files.file_lock(lock, exclusive=True, wait_seconds=0.1)
        with pytest.raises(files.StoreBusy), writer:
            pytest.fail("a writer came in while a reader held the lock")


def test_a_removed_lock_file_still_excludes(tmp_path):
    lock = tmp_path / "lock"
    with files.file_lock(lock, exclusive=True):
        waiting = ThreadPoolExecutor().submit(hold_briefly, lock)
        time.sleep(0.1)
        lock.unlink()
    entered = waiting.result()
    assert entered == lock.stat().st_ino


def hold_briefly(lock, wait_seconds=60.0):
    with files.file_lock(lock, exclusive=True, wait_seconds=wait_seconds):
        return lock.stat().st_ino if lock.exists() else None


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free space"), (errno.EMFILE, "ulimit -n"), (errno.EXDEV, "correct the cause")],
)
def test_a_disk_error_says_place_and_remedy(number, remedy):
    with pytest.raises(StorageError) as caught, files.translate_storage_errors("writing windows"):
        raise OSError(number, os.strerror(number), "/home/x/windows.parquet")
    text = str(caught.value)
    assert text.startswith("writing windows: ")
    facts = (os.strerror(number), "/home/x/windows.parquet", remedy)
    assert [fact for fact in facts if fact not in text] == []


def test_only_errors_of_storage_are_translated():
    # The number of an error may be hidden in its text.
    for text in ("I/O error: x (os error 28)", "could not write: No space left on device"):
        with pytest.raises(StorageError, match="free space"), files.translate_storage_errors():
            raise OSError(text)
    for kind in (ConnectionResetError, TimeoutError):
        with pytest.raises(kind), files.translate_storage_errors():
            raise kind


@pytest.mark.parametrize(
    ("write", "read", "said"),
    [
        (lambda path: save_file({"a": np.zeros(100)}, path), load_file, ""),
        (pl.DataFrame({"a": [1, 2]}).write_parquet, pl.read_parquet, "torn"),
    ],
)
def test_a_torn_file_is_an_error_of_storage(tmp_path, write, read, said):
    path = tmp_path / "x"
    write(path)
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(StorageError, match=said), files.translate_storage_errors():
        read(path)
    with pytest.raises(pl.exceptions.PolarsError), files.translate_storage_errors():
        pl.select(pl.lit("x").cast(pl.Int64))


def test_a_file_grown_too_large_says_why(tmp_path):
    path = tmp_path / "frame.parquet"
    files.write_atomically(path, pl.DataFrame({"a": [1]}).write_parquet)
    noise = pl.DataFrame({"a": np.random.default_rng(0).normal(size=100_000)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with (
            pytest.raises(StorageError, match="ulimit -f"),
            files.translate_storage_errors("frames"),
        ):
            files.write_atomically(path, noise.write_parquet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert pl.read_parquet(path)["a"].to_list() == [1]
    assert [file.name for file in tmp_path.iterdir()] == ["frame.parquet"]
