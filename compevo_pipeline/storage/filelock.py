"""One writer or many readers of a file, across threads and processes, with bounded waiting.

What belongs here: the lock. What does not: what is locked (``storage``, ``news_store``).
An advisory ``flock`` on a file beside the data: it is freed by the kernel when its holder dies, so a crash leaves no
stale lock. Every reader and writer of this project takes it; a foreign program does not, and is met by retries there.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compevo_core.errors import SourceTransient

WAIT_SECONDS = 60.0
"""How long to wait for other readers and writers before giving up."""
_POLL_SECONDS = 0.02


class StoreBusy(SourceTransient):
    """Others held a store for longer than we were willing to wait; another try may succeed."""


@contextmanager
def file_lock(path: Path, *, exclusive: bool, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold a shared or exclusive lock on ``path`` (created if absent) for the length of the block.

    Raises:
        StoreBusy: it was not free within ``wait_seconds``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(handle, path, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, wait_seconds)
        yield
    finally:
        os.close(handle)


def _take(handle: int, path: Path, kind: int, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                message = f"{path} was held by another run for {wait_seconds:.0f} s; wait for it to end and retry"
                raise StoreBusy(message) from None
            time.sleep(_POLL_SECONDS)
        else:
            return
