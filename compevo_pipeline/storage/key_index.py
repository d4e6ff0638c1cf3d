"""Rows by key, for a file of keys that only grows: sorted copies of its parts.

What belongs here: finding keys, and keeping the sorted copies. What does not: what the keys stand
for (``storage.embedding_store``).

A part is a million rows. Its copy is written anew while the part grows and never again, so that a
row costs as much among a hundred million as among a million. Copies hold nothing that the file
does not: what is torn or lost is sorted by whoever looks, until the next time that rows are added.

Shapes: N keys that are asked for, R rows.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compevo_core.data.files import write_atomically

Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]

ABSENT = -1
KEY_BYTES = 8

_ROWS_PER_PART = 2**20
_MOST_UNSORTED = 32_768  # rows of the last part that a reader sorts itself, in a millisecond
_NOTHING = np.empty((2, 0), dtype=np.uint64)
_OF_EARLIER_VERSIONS = "index.npy"


class KeyIndex:
    """Finds the rows of keys in a file of them, with sorted copies beside it."""

    def __init__(self, keys_file: Path) -> None:
        """Use the keys of a file and the folder that it lies in."""
        self._keys_file = keys_file

    def find(self, keys: Keys, rows: int) -> Rows:
        """Return the row (N,) of each key among the first ``rows``, -1 where there is none."""
        found = np.full(len(keys), ABSENT, dtype=np.int64)
        for part, first, end in _list_parts(rows):
            copy = self._map_copy(part, end - first)
            sorted_rows = copy.shape[1]
            newest = self._read_keys(first + sorted_rows, end)
            order = np.argsort(newest)

            for place in (
                _search(copy[0], copy[1], keys),
                _search(newest[order], order + first + sorted_rows, keys),
            ):
                found = np.where(place == ABSENT, found, place)
        return found

    def forget(self, rows: int) -> None:
        """Drop copies of rows beyond the first ``rows``: others are about to take their place."""
        kept = {part: end - first for part, first, end in _list_parts(rows)}
        for path in self._keys_file.parent.glob("index-*.npy"):
            count = kept.get(int(path.stem.removeprefix("index-")), 0)
            if _map_file(path).shape[1] > count:
                path.unlink()

    def grow(self, rows: int) -> None:
        """Write the copies that are missing, or too short, for the first ``rows``."""
        for part, first, end in _list_parts(rows):
            unsorted = end - first - self._map_copy(part, end - first).shape[1]
            if unsorted > (0 if end - first == _ROWS_PER_PART else _MOST_UNSORTED):
                self._write_copy(part, first, end)
        (self._keys_file.parent / _OF_EARLIER_VERSIONS).unlink(missing_ok=True)

    def _map_copy(self, part: int, rows: int) -> Keys:
        """Map a copy (2, R): sorted keys and the row of each; of nothing where it is no use."""
        copy = _map_file(self._path(part))
        return copy if copy.shape[1] <= rows else _NOTHING

    def _write_copy(self, part: int, first: int, end: int) -> None:
        keys = self._read_keys(first, end)
        order = np.argsort(keys)
        copy = np.stack([keys[order], (order + first).astype(np.uint64)])

        def write(place: Path) -> None:
            with place.open("wb") as stream:
                np.save(stream, copy, allow_pickle=False)

        write_atomically(self._path(part), write)

    def _read_keys(self, start: int, end: int) -> Keys:
        if start == end:
            return np.empty(0, dtype=np.uint64)
        with self._keys_file.open("rb") as stream:
            stream.seek(start * KEY_BYTES)
            keys = np.fromfile(stream, dtype="<u8", count=end - start)
        return keys.astype(np.uint64, copy=False)

    def _path(self, part: int) -> Path:
        return self._keys_file.with_name(f"index-{part:04d}.npy")


def _list_parts(rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, first row and end of each part of a file of so many rows."""
    for part, first in enumerate(range(0, rows, _ROWS_PER_PART)):
        yield part, first, min(first + _ROWS_PER_PART, rows)


def _map_file(path: Path) -> Keys:
    try:
        copy: Keys = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return _NOTHING  # none yet, or cut short
    return copy


def _search(sorted_keys: Keys, rows: NDArray[np.integer], wanted: Keys) -> Rows:
    """Return the row of each wanted key, -1 where there is none."""
    if not len(sorted_keys):
        return np.full(len(wanted), ABSENT, dtype=np.int64)
    place = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
    hit = sorted_keys[place] == wanted
    return np.where(hit, rows[place].astype(np.int64), ABSENT)
