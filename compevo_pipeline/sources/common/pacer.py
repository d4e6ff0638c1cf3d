"""One pace a host, kept by every process that works below the same home.

What belongs here: turns at a host, one small file a host. What does not: which pause a host needs
(``common.hosts``), what an answer means (``compevo_pipeline.failures``).

A process takes the host's next free turn and sleeps until then, so two processes never share a
turn, and neither holds the lock while it sleeps.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compevo_core.data.filelock import file_lock
from compevo_pipeline.failures import MAX_TURN_WAIT_S, Throttled


@dataclass(frozen=True, kw_only=True)
class Pacer:
    """Gives out turns at hosts.

    Attributes:
        folder: the files that processes share, one a host: when it was written, and the time of
            its next free turn.
        now_s: seconds since the epoch, which all processes agree on.
        sleep: waits for a turn.
    """

    folder: Path
    now_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def wait_for_turn(self, host: str, pause_s: float) -> None:
        """Sleep until the host's next free turn, and take it.

        Raises:
            Throttled: the host asked for a pause that is too long to sleep through.
            StoreBusy: other processes held the host's file for too long.
        """
        with self._locked(host) as path:
            now = self.now_s()
            wait = max(0.0, _read_free_at(path, now) - now)
            if wait > MAX_TURN_WAIT_S:
                raise Throttled(
                    f"{host} asked for a pause, {wait:.0f} s of it left; try again after it", wait
                )
            _write_free_at(path, now, now + wait + pause_s)

        if wait > 0:
            self.sleep(wait)

    def postpone(self, host: str, seconds: float) -> None:
        """Give out no turn at a host for some time, because it asked for a pause."""
        with self._locked(host) as path:
            now = self.now_s()
            free_at = max(_read_free_at(path, now), now + seconds)
            _write_free_at(path, now, free_at)

    @contextmanager
    def _locked(self, host: str) -> Iterator[Path]:
        path = self.folder / f"{host}.turn"
        with file_lock(path.with_suffix(".lock"), exclusive=True):
            yield path


def _write_free_at(path: Path, now: float, free_at: float) -> None:
    path.write_text(f"{now!r} {free_at!r}", encoding="ascii")


def _read_free_at(path: Path, now: float) -> float:
    try:
        written_at, free_at = map(float, path.read_text(encoding="ascii").split())
    except (FileNotFoundError, ValueError):
        return now  # no turn was taken yet, or a process was killed while it wrote one
    # Written in the future: by a clock that has been set back since, not one a little ahead.
    return now if written_at > now + MAX_TURN_WAIT_S else free_at
