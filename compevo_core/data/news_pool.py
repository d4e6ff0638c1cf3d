"""The news pool a model reads: articles with one embedding each, in a folder that can be checked.

What belongs here: the in-memory pool and its folder format. What does not: how embeddings are made or stored in
the database. Legend: N articles, D embedding size.
"""

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl
from safetensors.numpy import load_file, save_file

from compevo_core.errors import DataError

ARTICLES_FILE = "news.parquet"
EMBEDDINGS_FILE = "embeddings.safetensors"
MANIFEST_FILE = "manifest.json"
_NORM_TOLERANCE = 1e-3


class NewsPool:
    """Articles (ARTICLE_SCHEMA, unique ids) and their L2-normalised embeddings (N, D) in the same order."""

    def __init__(
        self, articles: pl.DataFrame, embeddings: npt.NDArray[np.float32], encoder_name: str
    ) -> None:
        """Check that rows and embeddings belong together.

        Raises:
            DataError: lengths differ, an id comes twice, or an embedding is not of unit length.
        """
        if embeddings.ndim != 2 or embeddings.shape[0] != articles.height:
            raise DataError(
                f"{articles.height} articles but embeddings of shape {embeddings.shape}; encode every article once"
            )
        if articles["article_id"].is_duplicated().any():
            raise DataError("the news pool was given an article id twice; run news.dedupe first")
        norms = np.linalg.norm(embeddings, axis=1)
        if articles.height and not np.allclose(norms, 1.0, atol=_NORM_TOLERANCE):
            raise DataError(
                f"embedding {int(np.argmax(np.abs(norms - 1)))} has length {norms[np.argmax(np.abs(norms - 1))]:.4f}; "
                "normalise embeddings to length one"
            )
        self.articles = articles
        self.embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
        self.encoder_name = encoder_name
        self._row = {name: i for i, name in enumerate(articles["article_id"].to_list())}

    def __len__(self) -> int:
        """Number of articles."""
        return self.articles.height

    def __contains__(self, article_id: object) -> bool:
        """Whether the pool holds this article."""
        return article_id in self._row

    def rows(self, ids: Iterable[str]) -> npt.NDArray[np.int64]:
        """Row numbers of the ids, in their order.

        Raises:
            DataError: an id is not in the pool.
        """
        wanted = list(ids)
        unknown = [name for name in wanted if name not in self._row]
        if unknown:
            raise DataError(
                f"{len(unknown)} candidate article(s) are not in the news pool, first {unknown[0]}; "
                "build the pool from the articles the windows were built with"
            )
        return np.array([self._row[name] for name in wanted], dtype=np.int64)

    def title(self, article_id: str) -> str:
        """Title of an article ("" if it has none)."""
        value = self.articles["title"][int(self.rows([article_id])[0])]
        return str(value) if value is not None else ""

    def date(self, article_id: str) -> datetime:
        """When the article became available, UTC."""
        value = self.articles["available_at"][int(self.rows([article_id])[0])]
        assert isinstance(value, datetime)
        return value

    def write(self, folder: Path) -> None:
        """Write ``news.parquet``, ``embeddings.safetensors`` and, last, ``manifest.json`` with their hashes."""
        folder.mkdir(parents=True, exist_ok=True)
        self.articles.write_parquet(folder / ARTICLES_FILE)
        save_file({"embeddings_ND": self.embeddings}, folder / EMBEDDINGS_FILE)
        manifest = {
            "encoder": self.encoder_name,
            "articles": len(self),
            "dimensions": int(self.embeddings.shape[1]),
            "sha256": {name: _sha256(folder / name) for name in (ARTICLES_FILE, EMBEDDINGS_FILE)},
        }
        (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1, sort_keys=True))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder :meth:`write` made.

        Raises:
            DataError: the folder has no manifest, or a file differs from it.
        """
        if not (folder / MANIFEST_FILE).exists():
            raise DataError(
                f"no complete news pool in {folder} ({MANIFEST_FILE} is missing); build the news assets"
            )
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
        for name, expected in manifest["sha256"].items():
            if _sha256(folder / name) != expected:
                raise DataError(
                    f"{folder / name} differs from its manifest; build the news pool again"
                )
        vectors = load_file(folder / EMBEDDINGS_FILE)["embeddings_ND"]
        return cls(pl.read_parquet(folder / ARTICLES_FILE), vectors, manifest["encoder"])


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
