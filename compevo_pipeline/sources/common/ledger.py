"""The fetch log: files that were requested from publishers, that came, and that are absent.

What belongs here: one SQLite file with an entry for each file that was requested, by source and
name. What does not: the bytes (``common.raw_store``), requests (``common.http``), parsing.

A file is ``fetched`` when its bytes are kept, and ``stored`` when its rows are in the store too: a
run that is killed in between finds the bytes again. A file that did not exist is asked for again
after growing pauses, and given up (``frozen``) after the last. One that lacks some of its time is
``short``: its rows are stored, and it is asked for again after the same pauses.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from compevo_core.errors import SourceTransient, StorageError
from compevo_pipeline.sources.common.base import RawFile

ABSENT_PAUSES = tuple(
    timedelta(minutes=minutes) for minutes in (15, 60, 240, 24 * 60, 3 * 24 * 60, 7 * 24 * 60)
)
"""Before an absent or short file is requested again; then one is frozen, and the other final."""

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
_SELECT_ONE = "SELECT * FROM entries WHERE source = ? AND name = ?"
_SELECT_MANY = "SELECT * FROM entries WHERE source = ifnull(?, source) ORDER BY source, name"
_REPLACE = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class EntryState(StrEnum):
    """How far a file has come."""

    FETCHED = "fetched"  # its bytes are kept; its rows are not in the store yet
    STORED = "stored"  # its rows are in the store
    SHORT = "short"  # its rows are in the store, and it may grow until no `due_at` is left
    ABSENT = "absent"  # the publisher had no such file; it is asked for again at `due_at`
    FROZEN = "frozen"  # it was absent too often: it is not asked for again
    FAILED = "failed"  # asking for it failed; the next run asks again


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file that was asked for; the fields are the table's columns, in their order."""

    source: str  # the publisher's product
    name: str  # its file name
    state: EntryState  # how far it has come
    url: str  # its address
    asked_at: datetime  # when it was last asked for
    fetched_at: datetime | None = None  # when its bytes came
    sha256: str | None = None  # their hash
    etag: str | None = None  # the server's tag of them
    last_modified: str | None = None  # the server's time of them
    tries: int = 0  # how many times in a row it was absent, failed or as short as before
    due_at: datetime | None = None  # when an absent or short file is asked for again
    note: str = ""  # what went wrong, where something did

    @property
    def is_stored(self) -> bool:
        """Whether the rows of what came are in the store."""
        return self.state in (EntryState.STORED, EntryState.SHORT)

    @property
    def stored_at(self) -> datetime | None:
        """When the bytes came whose rows are stored; None where rows are not."""
        return self.fetched_at if self.is_stored else None


@dataclass(frozen=True)
class Ledger:
    """The entries of one home, and the names that this object has fetched but not confirmed."""

    path: Path
    # One list a fetched file: itself, then the files packed in it.
    _fetched: list[list[tuple[str, str]]] = field(default_factory=list, init=False, repr=False)
    _of_this_run: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)
    _short: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)

    def get(self, source: str, name: str) -> Entry | None:
        """Return the entry of a file, or None where it was never asked for."""
        return next(iter(self._select(_SELECT_ONE, (source, name))), None)

    def is_due(self, source: str, name: str, now: datetime) -> bool:
        """Whether a file that never changes should be asked for.

        It should not where its rows are stored, where this object has fetched it, on its own or
        packed in another file, or where it is absent or short and its pause is not over.
        """
        if (source, name) in self._of_this_run:
            return False
        entry = self.get(source, name)
        if entry is None:
            return True
        if entry.state in (EntryState.ABSENT, EntryState.SHORT):
            return entry.due_at is not None and entry.due_at <= now
        return entry.state in (EntryState.FETCHED, EntryState.FAILED)

    def list_entries(self, source: str | None = None) -> list[Entry]:
        """Return the entries of a source, or of all, by source and name."""
        return self._select(_SELECT_MANY, (source,))

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
        self.record_reread(source, name)
        content = {"sha256": sha256, "etag": etag, "last_modified": last_modified}
        self._write(EntryState.FETCHED, [(source, name, url)], now, fetched_at=now, **content)

    def record_reread(self, source: str, name: str) -> None:
        """Note that the kept bytes of a file are read again, to be confirmed with the others."""
        self._fetched.append([(source, name)])
        self._of_this_run.add((source, name))

    def record_unchanged(self, source: str, name: str, now: datetime) -> None:
        """Note that the publisher's bytes have not changed."""
        self._update("asked_at = ?, tries = 0, note = ''", [now.isoformat()], [(source, name)])

    def record_failure(self, source: str, name: str, *, url: str, note: str, now: datetime) -> None:
        """Note that asking failed; what was fetched before stays fetched or stored."""
        old = self.get(source, name)
        if old is None or old.sha256 is None:
            tries = old.tries + 1 if old else 1
            self._write(EntryState.FAILED, [(source, name, url)], now, tries=tries, note=note)
        else:
            values = [now.isoformat(), note]
            self._update("asked_at = ?, tries = tries + 1, note = ?", values, [(source, name)])

    def mark_absent(self, source: str, name: str, url: str, now: datetime) -> None:
        """Note that the publisher has no such file; it becomes due again after a longer pause."""
        old = self.get(source, name)
        tries = old.tries + 1 if old and old.state is EntryState.ABSENT else 1
        is_last = tries > len(ABSENT_PAUSES)

        state = EntryState.FROZEN if is_last else EntryState.ABSENT
        due_at = None if is_last else now + ABSENT_PAUSES[tries - 1]
        self._write(state, [(source, name, url)], now, tries=tries, due_at=due_at)

    def mark_short(
        self, source: str, name: str, *, note: str, now: datetime, unchanged: int = 0
    ) -> None:
        """Note that what came of a file lacks some of its time, as the note says.

        It becomes due again after a longer pause each time in a row that this was ``unchanged``;
        after the last pause it is final.
        """
        is_last = unchanged >= len(ABSENT_PAUSES)
        due_at = None if is_last else (now + ABSENT_PAUSES[unchanged]).isoformat()
        values = [unchanged, due_at, note]
        self._update("tries = ?, due_at = ?, note = ?", values, [(source, name)])
        self._short.add((source, name))

    def freeze(self, source: str, name: str) -> None:
        """Stop asking for an absent file."""
        self._update("state = ?, due_at = NULL", [EntryState.FROZEN.value], [(source, name)])

    def confirm(self, *, keep_last: bool = False) -> None:
        """Note that the rows of the files that this object fetched are in the store.

        With ``keep_last`` the last one, with what is packed in it, waits for the next call.
        """
        waiting = self._fetched[-1:] if keep_last else []
        done = [key for keys in self._fetched[: len(self._fetched) - len(waiting)] for key in keys]
        for state, keys in (
            (EntryState.STORED, [key for key in done if key not in self._short]),
            (EntryState.SHORT, [key for key in done if key in self._short]),
        ):
            self._update("state = ?", [state.value], keys)
        self._fetched[:] = waiting

    def record_members(self, source: str, names: Iterable[str], raw: RawFile) -> None:
        """Note the files packed in the one fetched last: they need not be fetched on their own."""
        members = [(source, name, f"{raw.url}!{name}") for name in names]
        at, note = raw.fetched_at, f"packed in {raw.name}"
        self._write(EntryState.FETCHED, members, at, fetched_at=at, note=note)
        keys = [member[:2] for member in members]
        self._fetched[-1].extend(keys)
        self._of_this_run.update(keys)

    def reject(self, source: str, name: str, note: str) -> None:
        """Note that a file this object fetched cannot be used: the next run fetches it again."""
        for keys in [keys for keys in self._fetched if keys[0] == (source, name)]:
            self._fetched.remove(keys)
            self._of_this_run.difference_update(keys)
            changes = "state = ?, sha256 = NULL, due_at = NULL, tries = tries + 1, note = ?"
            self._update(changes, [EntryState.FAILED.value, note], keys)

    def forget(self, keys: Iterable[tuple[str, str]]) -> None:
        """Note that the rows and the bytes of files are lost: they are asked for again."""
        changes = "state = ?, sha256 = NULL, due_at = NULL, note = ?"
        self._update(changes, [EntryState.FAILED.value, "lost, with the rows of it"], keys)

    def _update(
        self, changes: str, values: Sequence[str | int | None], keys: Iterable[tuple[str, str]]
    ) -> None:
        update = f"UPDATE entries SET {changes} WHERE source = ? AND name = ?"  # noqa: S608 - ours
        with self._transaction() as connection:
            connection.executemany(update, [(*values, *key) for key in keys])

    def _select(self, query: str, values: Sequence[str | None]) -> list[Entry]:
        with self._transaction() as connection:
            return [_read_entry(row) for row in connection.execute(query, values).fetchall()]

    def _write(
        self,
        state: EntryState,
        files: Iterable[tuple[str, str, str]],
        asked_at: datetime,
        **details: Any,  # noqa: ANN401 - other fields of an entry
    ) -> None:
        """Put new entries of one state in the place of old ones; files are source, name, url."""
        entries = [
            Entry(source=source, name=name, url=url, state=state, asked_at=asked_at, **details)
            for source, name, url in files
        ]
        rows = [
            [cell.isoformat() if isinstance(cell, datetime) else cell for cell in astuple(entry)]
            for entry in entries
        ]
        with self._transaction() as connection:
            connection.executemany(_REPLACE, rows)

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


def _read_entry(row: Sequence[Any]) -> Entry:
    cells = {column.name: cell for column, cell in zip(fields(Entry), row, strict=True)}
    for name in ("asked_at", "fetched_at", "due_at"):
        if cells[name] is not None:
            cells[name] = datetime.fromisoformat(cells[name])
    return Entry(**(cells | {"state": EntryState(cells["state"])}))
