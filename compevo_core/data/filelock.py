"""One writer or many readers of a file, across threads and processes, with bounded waiting.

What belongs here: the lock. What does not: what is locked (``data.files``, ``training.trainer``,
the pipeline's stores).

An advisory ``flock`` on a file next to the data: the kernel frees it when its holder dies, so a
crash leaves no stale lock. Every reader and writer of this project takes it; a foreign program does
not, and the pipeline's ``storage.duckdb_file`` retries for that case.

``fasteners.InterProcessReaderWriterLock`` is no replacement: it uses POSIX record locks
(``lockf``), which belong to a process. Two threads both get the writer's lock, and closing any
handle of the file in one thread frees the locks of all.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compevo_core.errors import SourceTransient

WAIT_SECONDS = 60.0
"""How long to wait for one other reader or writer before giving up."""

_MOST_TURNS = 10  # a waiter stays while the lock changes hands, for so many times its patience
_POLL_SECONDS = 0.02
_MODE = 0o644


class StoreBusy(SourceTransient):
    """Others used a store for longer than the caller would wait; another try may succeed."""


@contextmanager
def file_lock(path: Path, *, exclusive: bool, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold a lock on ``path`` (created if absent) for the length of the block.

    Args:
        path: the lock file.
        exclusive: whether to lock as the one writer, or as one of many readers.
        wait_seconds: how long to wait while the lock does not change hands; ten times as long
            in all.

    Raises:
        StoreBusy: it was not free in time.
    """
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    handle = _open_locked(path, kind, wait_seconds)
    try:
        yield
    finally:
        os.close(handle)


def _open_locked(path: Path, kind: int, wait_seconds: float) -> int:
    """Open and lock a file; return the handle."""
    while True:
        # A handle of its own for every caller: flock belongs to the handle, so that threads of one
        # process exclude each other too. It is never inherited by a child that would keep the lock.
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            _acquire(handle, path, kind, wait_seconds)
            # Whoever held the lock may have removed the file: then others lock a new one.
            if path.exists() and path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _acquire(handle: int, path: Path, kind: int, wait_seconds: float) -> None:
    # Polling, because flock itself cannot wait for a limited time.
    started = time.monotonic()
    deadline, latest = started + wait_seconds, started + _MOST_TURNS * wait_seconds
    seen = os.fstat(handle).st_mtime_ns
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            # Many short turns of others are work that goes on, one long turn may be none.
            changed = os.fstat(handle).st_mtime_ns
            if changed != seen:
                seen, deadline = changed, min(now + wait_seconds, latest)
            if now >= deadline:
                raise StoreBusy(
                    f"{path} was held by another run for {wait_seconds:.0f} s; "
                    "wait for it to end and retry"
                ) from None

            time.sleep(_POLL_SECONDS)
        else:
            # The others see by this that it is another's turn.
            os.utime(handle)
            return
