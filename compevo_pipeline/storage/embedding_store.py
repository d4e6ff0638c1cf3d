"""Embeddings of texts, in files that only grow: one folder an encoder.

What belongs here: storing and finding vectors by the text they were made of. What does not: making
them (``compevo_core.lm.encoder``), which texts are worth it (``work.embedded_news``).

An embedding depends only on encoder and text, so the text is its key: an article whose title
changes needs another one, and a headline that a hundred papers print needs one. A folder holds
``vectors.f32``, one vector after the other, ``keys.u64``, the key of each, written after it, and
``manifest.json``, the length of a vector. A row counts when both its key and its vector are whole.

Why plain files: DuckDB takes 50 times as long for the candidates of a window (decision 19-stores).

Shapes: N texts, R rows of a folder, D numbers of a vector.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compevo_core.errors import DataError
from compevo_core.runtime.files import file_lock, hash_text, read_json, write_json

VECTORS_FILE = "vectors.f32"
KEYS_FILE = "keys.u64"
MANIFEST_FILE = "manifest.json"

Vectors = NDArray[np.float32]
Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]

_ABSENT = -1
_KEY_BYTES = 8
_VALUE_BYTES = 4


class EmbeddingStore:
    """The vectors of one encoder; safe to use from several threads and processes at a time."""

    def __init__(self, root: Path, encoder: str) -> None:
        """Use the folder of ``encoder`` below ``root``, which the first write makes."""
        self.encoder = encoder
        self.folder = root / hash_text(encoder)[:16]

    def __len__(self) -> int:
        """Return the number of vectors."""
        return len(self._read_keys(self._read_dimension()))

    def find_missing(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without a vector, each once, in their order."""
        distinct = list(dict.fromkeys(texts))
        rows = _find_rows(_hash_texts(distinct), self._read_keys(self._read_dimension()))
        return [text for text, row in zip(distinct, rows, strict=True) if row == _ABSENT]

    def read(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors (N, D) of texts, in their order; ``DataError`` if a text has none."""
        dimension = self._read_dimension()
        rows = _find_rows(_hash_texts(texts), self._read_keys(dimension))
        absent = int((rows == _ABSENT).sum())
        if absent:
            raise DataError(
                f"{absent} of {len(texts)} titles have no embedding of {self.encoder!r} in "
                f"{self.folder}; materialize news/embeddings"
            )

        vectors_ND = np.empty((len(rows), dimension), dtype=np.float32)
        if not len(rows):
            return vectors_ND
        # Read, not mapped: a mapping brings the pages around every vector into memory as well.
        with (self.folder / VECTORS_FILE).open("rb", buffering=0) as stream:
            for place, row in enumerate(rows.tolist()):
                os.preadv(stream.fileno(), [vectors_ND[place]], row * dimension * _VALUE_BYTES)
        return vectors_ND

    def append(self, texts: Sequence[str], vectors: Vectors) -> int:
        """Add the ``vectors`` (N, D) of texts that have none yet; return how many were added.

        They are on disk when this returns. DataError if shapes disagree, a value is not finite, or
        D differs from the stored one; StoreBusy if others wrote for too long.
        """
        matrix_ND = np.ascontiguousarray(vectors, dtype=np.float32)
        if matrix_ND.ndim != 2 or matrix_ND.shape[0] != len(texts):
            raise DataError(
                f"embeddings are {matrix_ND.shape} for {len(texts)} texts; give a row (D,) per text"
            )
        if not np.isfinite(matrix_ND).all():
            raise DataError(
                f"embeddings of {self.encoder} hold NaN or infinity; encode the texts again"
            )
        dimension = matrix_ND.shape[1]
        keys = _hash_texts(texts)
        self.folder.mkdir(parents=True, exist_ok=True)

        lock = self.folder.with_name(f"{self.folder.name}.lock")
        with file_lock(lock, exclusive=True):
            stored = self._read_dimension()
            if not stored:
                manifest = {"encoder": self.encoder, "dimensions": dimension}
                write_json(self.folder / MANIFEST_FILE, manifest)
            elif stored != dimension:
                raise DataError(
                    f"{self.encoder} has embeddings of {stored} numbers, not {dimension}; give "
                    "the other model another name"
                )

            # Looked up under the lock: another run may have stored the same texts meanwhile.
            known = self._read_keys(dimension)
            new, first = np.unique(keys, return_index=True)
            first = np.sort(first[_find_rows(new, known) == _ABSENT])
            if len(first):
                # Keys come last: a row without one does not count. Keys whose vectors a disk lost
                # go first, or a reader would find the new vectors by them.
                offset = len(known) * dimension * _VALUE_BYTES
                _write_at(self.folder / KEYS_FILE, len(known) * _KEY_BYTES, keys[:0])
                _write_at(self.folder / VECTORS_FILE, offset, matrix_ND[first])
                _write_at(self.folder / KEYS_FILE, len(known) * _KEY_BYTES, keys[first])
            return len(first)

    def _read_dimension(self) -> int:
        """Return the length of a vector; 0 where nothing is stored."""
        path = self.folder / MANIFEST_FILE
        if not path.exists():
            return 0
        remedy = "remove its folder and materialize news/embeddings"
        dimension = read_json(path, remedy).get("dimensions")
        if not isinstance(dimension, int):
            raise DataError(f"{path} is not a manifest of embeddings; {remedy}")
        return dimension

    def _read_keys(self, dimension: int) -> Keys:
        """Return the keys (R,) whose vectors are whole; what a disk has lost is embedded again."""
        path, vectors = self.folder / KEYS_FILE, self.folder / VECTORS_FILE
        if not path.exists() or not vectors.exists():
            return np.empty(0, dtype=np.uint64)
        whole_vectors = vectors.stat().st_size // (dimension * _VALUE_BYTES)
        return np.fromfile(path, dtype="<u8")[:whole_vectors].astype(np.uint64, copy=False)


def _hash_texts(texts: Sequence[str]) -> Keys:
    """Return the keys (N,): among 10^8 texts, two share one with a probability of 3 in 10,000."""
    digests = b"".join(hashlib.sha256(text.encode()).digest()[:_KEY_BYTES] for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _find_rows(wanted: Keys, stored: Keys) -> Rows:
    """Return the row (N,) of each wanted key among the stored ones (R,), -1 if absent."""
    distinct, places = np.unique(wanted, return_inverse=True)
    rows = np.full(len(distinct), _ABSENT, dtype=np.int64)
    if len(distinct):
        # The few are sorted, not the many: nothing needs to be kept in order on disk. The last 16
        # bits leave out nearly all of the many before that search.
        is_likely = np.zeros(2**16, dtype=bool)
        is_likely[distinct.astype(np.uint16)] = True
        likely = np.flatnonzero(is_likely[stored.astype(np.uint16)])
        nearest = np.minimum(np.searchsorted(distinct, stored[likely]), len(distinct) - 1)
        is_hit = distinct[nearest] == stored[likely]
        rows[nearest[is_hit]] = likely[is_hit]
    return rows[places]


def _write_at(path: Path, offset: int, values: NDArray[np.generic]) -> None:
    """Write values from an offset on, drop what follows, and flush to disk."""
    with path.open("r+b" if path.exists() else "w+b") as stream:
        stream.seek(offset)
        stream.write(np.ascontiguousarray(values).data)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())
