"""Embeddings of texts, in files that only grow: one folder an encoder.

What belongs here: storing and finding vectors by the text they were made of. What does not: making
them (``compevo_core.lm.encoder``), which texts are worth it (``compevo_pipeline.embedded_news``).

An embedding depends on nothing but encoder and text, so the text is its key: an article whose title
changes needs another one, and a headline that a hundred papers print needs one. A folder holds

    vectors.f32     vectors, one after the other, in the order they were made
    keys.u64        the key of each
    manifest.json   how many count; written last, so what a kill left behind is overwritten
    index-*.npy     sorted copies of the keys, for all but the newest (``storage.key_index``)

Finding N of R vectors takes N log R steps, and nothing but the vectors that are asked for is read.

Shapes: N texts, R rows of a folder, D numbers of a vector.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compevo_core.data.filelock import WAIT_SECONDS, file_lock
from compevo_core.data.files import hash_text, write_json
from compevo_core.errors import DataError
from compevo_pipeline.storage.key_index import ABSENT, KEY_BYTES, KeyIndex, Keys, Rows

VECTORS_FILE = "vectors.f32"
KEYS_FILE = "keys.u64"
MANIFEST_FILE = "manifest.json"

Vectors = NDArray[np.float32]

_FOLDER_DIGITS = 16


@dataclass(frozen=True, slots=True)
class _Extent:
    """How much of a folder counts: R rows of D numbers."""

    rows: int
    dimension: int


class EmbeddingStore:
    """The vectors of one encoder; safe to use from several threads and processes at a time."""

    def __init__(self, root: Path, encoder: str, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """Use the folder of an encoder below ``root``, which the first write makes.

        Args:
            root: holds a folder an encoder.
            encoder: its name.
            wait_seconds: how long a write waits for others.
        """
        self.encoder = encoder
        self.folder = root / hash_text(encoder)[:_FOLDER_DIGITS]
        self._index = KeyIndex(self.folder / KEYS_FILE)
        self._wait_seconds = wait_seconds

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self._read_extent().rows

    def find_missing(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without a vector, each once, in their order."""
        distinct = list(dict.fromkeys(texts))
        rows = self._index.find(_hash_texts(distinct), self._read_extent().rows)
        return [text for text, row in zip(distinct, rows, strict=True) if row == ABSENT]

    def read(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors (N, D) of texts, in their order; (0, 0) of none.

        Raises:
            DataError: a text has none.
        """
        extent = self._read_extent()
        rows = self._index.find(_hash_texts(texts), extent.rows)
        absent = int((rows == ABSENT).sum())
        if absent:
            raise DataError(
                f"{absent} of {len(texts)} titles have no embedding of {self.encoder!r} in "
                f"{self.folder}; materialize news/embeddings"
            )
        return self._read_vectors(rows, extent.dimension)

    def append(self, texts: Sequence[str], vectors: Vectors) -> int:
        """Add the vectors of texts that have none yet; on disk when this returns.

        Args:
            texts: N texts.
            vectors: (N, D), one row a text.

        Returns:
            How many were added.

        Raises:
            DataError: shapes disagree, a value is not finite, or D is not that of the others.
            StoreBusy: others wrote for too long.
        """
        matrix_ND = _check_vectors(texts, vectors, self.encoder)
        self.folder.mkdir(parents=True, exist_ok=True)

        with file_lock(
            self.folder.with_name(f"{self.folder.name}.lock"),
            exclusive=True,
            wait_seconds=self._wait_seconds,
        ):
            extent = self._read_extent()
            if extent.rows and extent.dimension != matrix_ND.shape[1]:
                raise DataError(
                    f"{self.encoder} has embeddings of {extent.dimension} numbers, not "
                    f"{matrix_ND.shape[1]}; give the other model another name"
                )
            return self._append(extent.rows, _hash_texts(texts), matrix_ND)

    def _append(self, rows: int, keys: Keys, matrix_ND: Vectors) -> int:
        # Looked up under the lock: another run may have stored the same texts meanwhile.
        new, first = np.unique(keys, return_index=True)
        first = np.sort(first[self._index.find(new, rows) == ABSENT])
        if not len(first):
            return 0

        self._index.forget(rows)
        _write_at(self.folder / VECTORS_FILE, rows * matrix_ND[:1].nbytes, matrix_ND[first])
        _write_at(self.folder / KEYS_FILE, rows * KEY_BYTES, keys[first])

        # From here on the new rows count.
        total = rows + len(first)
        dimension = matrix_ND.shape[1]
        manifest = {"encoder": self.encoder, "dimensions": dimension, "rows": total}
        write_json(self.folder / MANIFEST_FILE, manifest)

        self._index.grow(total)
        return len(first)

    def _read_extent(self) -> _Extent:
        """Return how many rows count, of how many numbers.

        Rows that a damaged disk has lost do not count, and are embedded again.
        """
        path = self.folder / MANIFEST_FILE
        if not path.exists():
            return _Extent(0, 0)
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            rows, dimension = int(manifest["rows"]), int(manifest["dimensions"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is no manifest of embeddings ({error}); remove its folder and materialize "
                "news/embeddings"
            ) from error

        whole_vectors = _size(self.folder / VECTORS_FILE) // (dimension * 4)
        whole_keys = _size(self.folder / KEYS_FILE) // KEY_BYTES
        return _Extent(min(rows, whole_vectors, whole_keys), dimension)

    def _read_vectors(self, rows: Rows, dimension: int) -> Vectors:
        vectors_ND = np.empty((len(rows), dimension), dtype=np.float32)
        if not len(rows):
            return vectors_ND

        # Read, not mapped: a mapping brings the pages around every vector into memory as well.
        with ExitStack() as stack:
            handle = os.open(self.folder / VECTORS_FILE, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            for place, row in enumerate(rows.tolist()):
                os.preadv(handle, [vectors_ND[place]], row * dimension * 4)
        return vectors_ND


def _hash_texts(texts: Sequence[str]) -> Keys:
    """Return the keys (N,): among 10^8 texts, two share one with a probability of 3 in 10,000."""
    digests = b"".join(hashlib.sha256(text.encode()).digest()[:KEY_BYTES] for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _write_at(path: Path, offset: int, values: NDArray[np.generic]) -> None:
    """Write values from an offset on, drop what follows, and flush to disk."""
    with path.open("r+b" if path.exists() else "w+b") as stream:
        stream.seek(offset)
        stream.write(np.ascontiguousarray(values).data)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check_vectors(texts: Sequence[str], vectors: Vectors, encoder: str) -> Vectors:
    """Return the vectors as one float32 matrix (N, D)."""
    matrix_ND = np.ascontiguousarray(vectors, dtype=np.float32)
    if matrix_ND.ndim != 2 or matrix_ND.shape[0] != len(texts):
        raise DataError(
            f"embeddings are {matrix_ND.shape} for {len(texts)} texts; give one row (D,) a text"
        )
    if not np.isfinite(matrix_ND).all():
        raise DataError(f"embeddings of {encoder} hold NaN or infinity; encode the texts again")
    return matrix_ND
