"""Which articles a logic retrieves for a window: the most similar candidates (paper 4.1).

What belongs here: ranking the candidate articles of a window by a logic (decision 06-news), and
what an agent gets to read of them. What does not: which articles are candidates (``data.context``),
embeddings (``lm.encoder``), forecasts under a logic (``agents.strategy``).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from compevo_core.agents.decoders import RetrievedArticle
from compevo_core.data.datasets import find_place
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import WindowView
from compevo_core.lm.encoder import Encoder

_KEPT_EMBEDDINGS = 4096
"""Logics whose embedding is kept: those of a few rounds. A run of the paper samples 175,000."""


class NewsRetriever:
    """Rank a window's articles by their embedding's similarity to the logic's."""

    def __init__(self, pool: NewsPool, encoder: Encoder, top_k: int) -> None:
        self.pool = pool
        self.encoder = encoder
        self.top_k = top_k

        # One logic ranks the articles of every window of a round: embed it once.
        self._embed = lru_cache(maxsize=_KEPT_EMBEDDINGS)(lambda logic: encoder.encode([logic])[0])

    def retrieve(self, logic: str, view: WindowView, scope: str = "all") -> tuple[str, ...]:
        """Return the ids of the top k articles of a window, most similar to the logic first.

        Only the window's candidates are ranked: articles that were available before its origin. The
        scope is ``population.members.news_scope``: all of them, those that name the series' own
        region ("place"), or none.
        """
        return self.rank(logic, view, scope)[: self.top_k] if self.top_k else ()

    def rank(self, logic: str, view: WindowView, scope: str = "all") -> tuple[str, ...]:
        """Return the ids of all the window's candidates, most similar to the logic first."""
        candidates = self._list_candidates(view, scope)
        if not candidates:
            return ()

        rows = self.pool.find_rows(candidates)
        similarity = self.pool.embeddings[rows] @ self._embed(logic)

        # Candidates come newest first, so a stable sort gives ties to the newer article.
        order = np.argsort(-similarity, kind="stable")
        return tuple(candidates[i] for i in order)

    def resolve(self, ids: Sequence[str]) -> tuple[RetrievedArticle, ...]:
        """Return what an agent reads of articles."""
        return tuple(
            RetrievedArticle(
                article_id=name,
                date=f"{self.pool.get_date(name):%d %b}",
                title=self.pool.get_title(name),
                embedding=self.pool.embeddings[row],
            )
            for name, row in zip(ids, self.pool.find_rows(ids), strict=True)
        )

    def _list_candidates(self, view: WindowView, scope: str) -> tuple[str, ...]:
        if scope == "none":
            return ()
        # The candidates of a user's own data set are chosen by the entity's own words already.
        if scope == "place" and not view.task:
            place = find_place(view.dataset, view.entity)
            return tuple(i for i in view.candidate_ids if self.pool.names_region(i, place))
        return view.candidate_ids
