"""What was asked of a publisher, what came, what is absent: one SQLite file beside the raw files.

What belongs here: one entry a file that was asked for, by source and name. What does not: the bytes
(``common.raw_store``), requests (``common.http``).

A file is ``fetched`` when its bytes are kept, and ``stored`` when its rows are in the store too: a
run that is killed in between finds the bytes again. A file that did not exist is asked for again
after growing pauses, and given up (``frozen``) after the last.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from compevo_core.errors import SourceTransient, StorageError
from compevo_pipeline.sources.common.base import RawFile

ABSENT_PAUSES = tuple(
    timedelta(minutes=minutes) for minutes in (15, 60, 240, 24 * 60, 3 * 24 * 60, 7 * 24 * 60)
)
"""How long an absent file is left alone before it is asked for again; after the last, frozen."""

_WAIT_FOR_OTHERS_S = 60.0
_PRIMARY_CODE = 0xFF  # SQLite adds details above the first byte of an error code
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    source TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, url TEXT NOT NULL,
    asked_at TEXT NOT NULL, fetched_at TEXT, sha256 TEXT, etag TEXT, last_modified TEXT,
    tries INTEGER NOT NULL, due_at TEXT, note TEXT NOT NULL,
    PRIMARY KEY (source, name)
)
"""
_COLUMNS = (
    "source, name, state, url, asked_at, fetched_at, sha256, etag, last_modified, "
    "tries, due_at, note"
)


class EntryState(StrEnum):
    """How far a file has come."""

    FETCHED = "fetched"
    """Its bytes are kept; its rows are not in the store yet."""
    STORED = "stored"
    """Its rows are in the store."""
    ABSENT = "absent"
    """The publisher had no such file; it is asked for again at ``due_at``."""
    FROZEN = "frozen"
    """It was absent too often: it is not asked for again."""
    FAILED = "failed"
    """Asking for it failed; the next run asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file that was asked for.

    Attributes:
        source: the publisher's product.
        name: its file name.
        state: how far it has come.
        url: its address.
        asked_at: when it was last asked for.
        fetched_at: when its bytes came.
        sha256: their hash.
        etag: the server's tag of them.
        last_modified: the server's time of them.
        tries: how many times it was absent or failed in a row.
        due_at: when an absent file is asked for again.
        note: what went wrong, where something did.
    """

    source: str
    name: str
    state: EntryState
    url: str
    asked_at: datetime
    fetched_at: datetime | None = None
    sha256: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    tries: int = 0
    due_at: datetime | None = None
    note: str = ""

    @property
    def stored_at(self) -> datetime | None:
        """When the bytes came whose rows are stored; None where rows are not."""
        return self.fetched_at if self.state is EntryState.STORED else None


@dataclass(frozen=True)
class Ledger:
    """The entries of one home, and the names that this object has fetched but not confirmed."""

    path: Path
    # One list a fetched file: itself, then the files packed in it.
    _fetched: list[list[tuple[str, str]]] = field(default_factory=list, init=False, repr=False)
    _of_this_run: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)

    def get(self, source: str, name: str) -> Entry | None:
        """Return the entry of a file, or None where it was never asked for."""
        return next(self._select("source = ? AND name = ?", (source, name)), None)

    def is_due(self, source: str, name: str, now: datetime) -> bool:
        """Whether a file that never changes should be asked for.

        It should not where its rows are stored, where this object has fetched it, on its own or
        packed in another file, or where it is absent and its pause is not over.
        """
        if (source, name) in self._of_this_run:
            return False
        entry = self.get(source, name)
        if entry is None:
            return True
        if entry.state is EntryState.ABSENT:
            return entry.due_at is None or entry.due_at <= now
        return entry.state in (EntryState.FETCHED, EntryState.FAILED)

    def list_entries(self, source: str | None = None) -> list[Entry]:
        """Return the entries of a source, or of all, by source and name."""
        if source is None:
            return list(self._select("1", ()))
        return list(self._select("source = ?", (source,)))

    def record_fetched(
        self,
        source: str,
        name: str,
        *,
        url: str,
        sha256: str,
        now: datetime,
        etag: str | None = None,
        last_modified: str | None = None,
    ) -> None:
        """Note that a file's bytes are kept."""
        self._fetched.append([(source, name)])
        self._of_this_run.add((source, name))
        self._upsert(
            Entry(
                source=source,
                name=name,
                state=EntryState.FETCHED,
                url=url,
                asked_at=now,
                fetched_at=now,
                sha256=sha256,
                etag=etag,
                last_modified=last_modified,
            )
        )

    def record_reread(self, source: str, name: str) -> None:
        """Note that the kept bytes of a file are read again, to be confirmed with the others."""
        self._fetched.append([(source, name)])
        self._of_this_run.add((source, name))

    def record_unchanged(self, source: str, name: str, now: datetime) -> None:
        """Note that the publisher still has the bytes that are kept."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE entries SET asked_at = ?, tries = 0, note = '' "
                "WHERE source = ? AND name = ?",
                (now.isoformat(), source, name),
            )

    def record_failure(self, source: str, name: str, *, url: str, note: str, now: datetime) -> None:
        """Note that asking failed; what was fetched before stays fetched or stored."""
        old = self.get(source, name)
        with self._transaction() as connection:
            if old is not None and old.sha256 is not None:
                connection.execute(
                    "UPDATE entries SET asked_at = ?, tries = tries + 1, note = ? "
                    "WHERE source = ? AND name = ?",
                    (now.isoformat(), note, source, name),
                )
                return

            tries = old.tries + 1 if old else 1
            failed = Entry(
                source=source,
                name=name,
                state=EntryState.FAILED,
                url=url,
                asked_at=now,
                tries=tries,
                note=note,
            )
            self._write(connection, failed)

    def mark_absent(self, source: str, name: str, url: str, now: datetime) -> None:
        """Note that the publisher has no such file; it becomes due again after a longer pause."""
        old = self.get(source, name)
        tries = old.tries + 1 if old and old.state is EntryState.ABSENT else 1
        is_last = tries > len(ABSENT_PAUSES)

        self._upsert(
            Entry(
                source=source,
                name=name,
                state=EntryState.FROZEN if is_last else EntryState.ABSENT,
                url=url,
                asked_at=now,
                tries=tries,
                due_at=None if is_last else now + ABSENT_PAUSES[tries - 1],
            )
        )

    def freeze(self, source: str, name: str) -> None:
        """Stop asking for an absent file."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE entries SET state = ?, due_at = NULL WHERE source = ? AND name = ?",
                (EntryState.FROZEN.value, source, name),
            )

    def confirm(self, *, keep_last: bool = False) -> None:
        """Note that the rows of the files that this object fetched are in the store.

        Args:
            keep_last: whether the last one, with what is packed in it, waits for the next call.
        """
        kept = self._fetched[-1:] if keep_last else []
        done = [key for keys in self._fetched[: len(self._fetched) - len(kept)] for key in keys]
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE entries SET state = ? WHERE source = ? AND name = ?",
                [(EntryState.STORED.value, *key) for key in done],
            )
        self._fetched[:] = kept

    def record_members(self, source: str, names: Iterable[str], raw: RawFile) -> None:
        """Note the files packed in the one fetched last: they need not be fetched on their own."""
        names = list(names)
        with self._transaction() as connection:
            for name in names:
                member = Entry(
                    source=source,
                    name=name,
                    state=EntryState.FETCHED,
                    url=f"{raw.url}!{name}",
                    asked_at=raw.fetched_at,
                    fetched_at=raw.fetched_at,
                    note=f"packed in {raw.name}",
                )
                self._write(connection, member)
        self._fetched[-1].extend((source, name) for name in names)
        self._of_this_run.update((source, name) for name in names)

    def reject(self, source: str, name: str, note: str) -> None:
        """Note that a file this object fetched cannot be used: the next run fetches it anew."""
        for keys in [keys for keys in self._fetched if keys[0] == (source, name)]:
            self._fetched.remove(keys)
            self._of_this_run.difference_update(keys)
            with self._transaction() as connection:
                connection.executemany(
                    "UPDATE entries SET state = ?, sha256 = NULL, tries = tries + 1, note = ? "
                    "WHERE source = ? AND name = ?",
                    [(EntryState.FAILED.value, note, *key) for key in keys],
                )

    def _select(self, where: str, values: Sequence[str]) -> Iterator[Entry]:
        # The condition is one of this module's own texts; values are always parameters.
        query = f"SELECT {_COLUMNS} FROM entries WHERE {where} ORDER BY source, name"  # noqa: S608
        with self._transaction() as connection:
            rows = connection.execute(query, values).fetchall()
        return map(_read_entry, rows)

    def _upsert(self, entry: Entry) -> None:
        with self._transaction() as connection:
            self._write(connection, entry)

    @staticmethod
    def _write(connection: sqlite3.Connection, entry: Entry) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.source,
                entry.name,
                entry.state.value,
                entry.url,
                entry.asked_at.isoformat(),
                _write_time(entry.fetched_at),
                entry.sha256,
                entry.etag,
                entry.last_modified,
                entry.tries,
                _write_time(entry.due_at),
                entry.note,
            ),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            opened = sqlite3.connect(self.path, timeout=_WAIT_FOR_OTHERS_S)
            with closing(opened) as connection, connection:
                connection.execute(_SCHEMA)
                yield connection
        except sqlite3.DatabaseError as error:
            raise _translate(error, self.path) from error


def _translate(error: sqlite3.DatabaseError, path: Path) -> SourceTransient | StorageError:
    code = error.sqlite_errorcode & _PRIMARY_CODE
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return SourceTransient(f"{path}: {error}; wait for other runs to end")
    if isinstance(error, sqlite3.OperationalError):
        return StorageError(
            f"{path}: {error}; look at disk space and the folder's rights, then run again: what "
            "was confirmed is not asked for again"
        )
    return StorageError(
        f"{path} cannot be read ({error}); move it away: a new one is started, and files are "
        "asked for again"
    )


def _read_entry(row: tuple[str, ...]) -> Entry:
    source, name, state, url, asked_at, fetched_at, sha256, etag, modified, tries, due, note = row
    return Entry(
        source=source,
        name=name,
        state=EntryState(state),
        url=url,
        asked_at=datetime.fromisoformat(asked_at),
        fetched_at=_read_time(fetched_at),
        sha256=sha256,
        etag=etag,
        last_modified=modified,
        tries=int(tries),
        due_at=_read_time(due),
        note=note,
    )


def _write_time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _read_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
