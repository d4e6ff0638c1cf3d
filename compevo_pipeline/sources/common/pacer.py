"""One pace a host, kept by every process that works below the same home.

What belongs here: turns at a host, in one small SQLite file. What does not: which pause a host
needs (``common.hosts``), what an answer means (``compevo_pipeline.failures``).

A process takes the host's next free turn and sleeps until then, so two processes never share a
turn, and neither holds a lock while it sleeps.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from compevo_pipeline.failures import MAX_RETRY_AFTER_S, MAX_TURN_WAIT_S, Throttled

_SCHEMA = "CREATE TABLE IF NOT EXISTS turns (host TEXT PRIMARY KEY, free_at REAL NOT NULL)"
_WAIT_FOR_OTHERS_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Pacer:
    """Gives out turns at hosts.

    Attributes:
        path: the file that processes share.
        now_s: seconds since the epoch, which all processes agree on.
        sleep: waits for a turn.
    """

    path: Path
    now_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def wait_for_turn(self, host: str, pause_s: float) -> None:
        """Sleep until the host's next free turn, and take it.

        Raises:
            Throttled: the host asked for a pause that is too long to sleep through.
        """
        with closing(self._connect()) as connection, connection:
            # Immediate: the next process reads the turn after this one was taken.
            connection.execute("BEGIN IMMEDIATE")
            now = self.now_s()
            wait = self._read_free_at(connection, host, now) - now

            if wait > MAX_TURN_WAIT_S:
                raise Throttled(
                    f"{host} asked for a pause, {wait:.0f} s of it left; try again after it", wait
                )
            self._write_free_at(connection, host, now + max(0.0, wait) + pause_s)

        if wait > 0:
            self.sleep(wait)

    def postpone(self, host: str, seconds: float) -> None:
        """Give out no turn at a host for some time, because it asked for a pause."""
        with closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            now = self.now_s()
            free_at = self._read_free_at(connection, host, now)
            self._write_free_at(connection, host, max(free_at, now + seconds))

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=_WAIT_FOR_OTHERS_S, isolation_level=None)
        connection.execute(_SCHEMA)
        return connection

    @staticmethod
    def _read_free_at(connection: sqlite3.Connection, host: str, now: float) -> float:
        row = connection.execute("SELECT free_at FROM turns WHERE host = ?", (host,)).fetchone()
        free_at = float(row[0]) if row else now
        # A turn further away than any pause was written by a clock that has been set back since.
        return free_at if free_at <= now + MAX_RETRY_AFTER_S else now

    @staticmethod
    def _write_free_at(connection: sqlite3.Connection, host: str, free_at: float) -> None:
        connection.execute(
            "INSERT INTO turns VALUES (?, ?) ON CONFLICT (host) DO UPDATE SET free_at = ?",
            (host, free_at, free_at),
        )
