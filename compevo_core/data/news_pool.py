"""The news pool a model reads: articles with one embedding each, in a folder that can be checked.

What belongs here: the in-memory pool and its folder format. What does not: how embeddings are
computed (``lm.encoder``), and the store of all embeddings (the pipeline). A pool
holds only the articles that the windows of a run name.

Shapes: N articles, D embedding size.
"""

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Self, cast

import numpy as np
import numpy.typing as npt
import polars as pl
from safetensors.numpy import load_file, save_file

from compevo_core.data.arrays import BoolArray, IntArray
from compevo_core.data.calendar import Place
from compevo_core.data.news import names_region
from compevo_core.errors import DataError
from compevo_core.runtime.files import FileSet, hash_text, read_together, replace_together

ARTICLES_FILE = "news.parquet"
EMBEDDINGS_FILE = "embeddings.safetensors"

_NORM_TOLERANCE = 1e-3  # float32 rounding of a few thousand dimensions stays far below it


class NewsPool:
    """Articles (``ARTICLE_SCHEMA``, unique ids) and their L2-normalised embeddings (N, D)."""

    def __init__(
        self, articles: pl.DataFrame, embeddings: npt.NDArray[np.float32], encoder_name: str
    ) -> None:
        """Check that rows and embeddings belong together; both are in the same order.

        DataError if lengths differ, an id comes twice, or an embedding is not of unit length.
        """
        if embeddings.ndim != 2 or embeddings.shape[0] != articles.height:
            raise DataError(
                f"{articles.height} articles but embeddings of shape {embeddings.shape}; "
                "encode every article once"
            )
        if articles["article_id"].is_duplicated().any():
            raise DataError(
                "the news pool was given an article id twice; run news.deduplicate_articles first"
            )
        # The selection scores are cosine similarities, dot products of unit vectors only.
        norms = np.linalg.norm(embeddings, axis=1)
        if len(norms) and not np.allclose(norms, 1.0, atol=_NORM_TOLERANCE):
            worst = int(np.argmax(np.abs(norms - 1)))
            raise DataError(
                f"embedding {worst} has length {norms[worst]:.4f}; normalise embeddings to length "
                "one"
            )

        self.articles = articles
        self.embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
        self.encoder_name = encoder_name
        self._row = {name: row for row, name in enumerate(articles["article_id"].to_list())}
        self._names_region: dict[Place, BoolArray] = {}
        self._columns: dict[str, list[object]] = {}

    def __repr__(self) -> str:
        return f"NewsPool: {len(self):,} articles, encoder {self.encoder_name!r}"

    def __len__(self) -> int:
        return self.articles.height

    def __contains__(self, article_id: object) -> bool:
        return article_id in self._row

    def find_rows(self, ids: Iterable[str]) -> IntArray:
        """Return the row numbers of the ids, in their order.

        DataError if an id is not in the pool.
        """
        wanted = list(ids)
        try:
            return np.array([self._row[name] for name in wanted], dtype=np.int64)
        except KeyError:
            unknown = [name for name in wanted if name not in self._row]
        raise DataError(
            f"{len(unknown)} candidate article(s) are not in the news pool, first {unknown[0]}; "
            "build the pool from the articles the windows were built with"
        )

    def get_title(self, article_id: str) -> str:
        """Return the title of an article ("" if it has none)."""
        return self.get_text(article_id, "title")

    def get_text(self, article_id: str, column: str) -> str:
        """Return a text of an article, such as its "domain" or "country" ("" if not known)."""
        return str(self._get(article_id, column) or "")

    def get_date(self, article_id: str) -> datetime:
        """Return when the article became available, UTC."""
        return cast(datetime, self._get(article_id, "available_at"))

    def _get(self, article_id: str, column: str) -> object:
        # As a list, once: a cell of a frame costs more than all else that a look-up does.
        if column not in self._columns:
            self._columns[column] = self.articles[column].to_list()
        return self._columns[column][int(self.find_rows([article_id])[0])]

    def names_region(self, ids: Iterable[str], place: Place) -> BoolArray:
        """Return which of M articles name the place's own region, such as its state (M,).

        DataError if an id is not in the pool.
        """
        # One pass over all articles for each place: a look-up for each article would read its text
        # again for every window.
        if place not in self._names_region:
            marked = self.articles.with_columns(names_region(place).alias("_names_region"))
            self._names_region[place] = marked["_names_region"].to_numpy()
        return self._names_region[place][self.find_rows(ids)]

    def hash_articles(self, ids: Iterable[str]) -> str:
        """Return the hash of the ids and titles of these articles, not of others in the pool.

        DataError if an id is not in the pool.
        """
        rows = self.find_rows(sorted(set(ids)))
        named = self.articles.select("article_id", "title")[rows]
        return hash_text(named.write_ndjson())

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Put articles, embeddings and manifest in the place of those that the folder holds."""
        tensors = {"embeddings_ND": self.embeddings}
        facts = {
            "encoder": self.encoder_name,
            "articles": len(self),
            "dimensions": int(self.embeddings.shape[1]),
        }
        files: dict[str, Callable[[Path], object]] = {
            ARTICLES_FILE: self.articles.write_parquet,
            EMBEDDINGS_FILE: lambda part: save_file(tensors, part),
        }
        replace_together(Path(folder), files, facts)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a folder that :meth:`write` wrote.

        DataError if the folder has no manifest, or a file differs.
        """
        remedy = "give a folder that NewsPool.write wrote, or train again, which writes it"
        return read_together(Path(folder), cls._from_files, remedy=remedy)

    @classmethod
    def _from_files(cls, files: FileSet) -> Self:
        vectors = load_file(files.paths[EMBEDDINGS_FILE])["embeddings_ND"]
        return cls(pl.read_parquet(files.paths[ARTICLES_FILE]), vectors, files.facts["encoder"])
