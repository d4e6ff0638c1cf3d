"""The file lock: bounded waiting, many readers, one writer, across threads of one process too."""

import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from compevo_core.runtime.files import StoreBusy, file_lock


def test_a_lock_that_stays_taken_ends_in_an_error_that_names_it(tmp_path):
    lock = tmp_path / ".lock"
    second = file_lock(lock, exclusive=False, wait_seconds=0.1)
    with file_lock(lock, exclusive=True):
        # In another thread of this process too; a turn is shown by the time of the file.
        os.utime(lock, (0, 0))
        with ThreadPoolExecutor() as pool, pytest.raises(StoreBusy, match="lock"):
            pool.submit(hold_briefly, lock, wait_seconds=0.1).result()
        with pytest.raises(StoreBusy), second:
            pytest.fail("a reader came in while a writer held the lock")
    with file_lock(lock, exclusive=False), file_lock(lock, exclusive=False, wait_seconds=0.1):
        assert lock.stat().st_mtime > 0


def test_a_waiter_stays_while_others_take_turns_and_no_longer_than_ten_times_its_patience(tmp_path):
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
        with pytest.raises(StoreBusy):
            waiting.result()
        turns.set()
        others.result()


def test_a_reader_that_ends_does_not_free_the_lock_of_another_reader(tmp_path):
    lock = tmp_path / ".lock"
    with file_lock(lock, exclusive=False):
        with file_lock(lock, exclusive=False):
            pass
        writer = file_lock(lock, exclusive=True, wait_seconds=0.1)
        with pytest.raises(StoreBusy), writer:
            pytest.fail("a writer came in while a reader held the lock")


def test_a_lock_whose_file_its_holder_removed_excludes_those_that_lock_the_new_one(tmp_path):
    lock = tmp_path / "lock"
    with file_lock(lock, exclusive=True):
        waiting = ThreadPoolExecutor().submit(hold_briefly, lock)
        time.sleep(0.1)
        lock.unlink()
    entered = waiting.result()
    assert entered == lock.stat().st_ino


def hold_briefly(lock, wait_seconds=60.0):
    with file_lock(lock, exclusive=True, wait_seconds=wait_seconds):
        return lock.stat().st_ino if lock.exists() else None
