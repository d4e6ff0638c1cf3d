"""Which articles a logic retrieves for a window: the most similar candidates (paper 4.1).

What belongs here: selecting and ranking the candidate articles of a window by a logic (decision
06-news), and what an agent reads of them. What does not: which articles are candidates
(``data.context``), what a logic selects (``agents.logics``), embeddings (``lm.encoder``), forecasts
under a logic (``agents.strategy``).
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import compress

import numpy as np
import numpy.typing as npt

from compevo_core.agents.decoders import RetrievedArticle
from compevo_core.agents.logics import LogicQuery, read_query
from compevo_core.config.sections import MOST_ARTICLES, MemberConfig, NewsConfig
from compevo_core.data.calendar import Place
from compevo_core.data.datasets import DATASETS
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import WindowView
from compevo_core.lm.encoder import Encoder, load_encoder

_KEPT_EMBEDDINGS = 4096  # logics of a few rounds; a run of the paper samples 175,000
_RANKED = 4096  # articles ranked at a time, whose embeddings fit in the processor's cache
_KEPT_CANDIDATES = 16_384  # windows, so that all of train is kept


def build_retriever(news: NewsPool, settings: NewsConfig) -> "NewsRetriever":
    """Return a retriever for the articles of a pool, with the encoder of a run."""
    encoder = load_encoder(settings.encoder)
    return NewsRetriever(news, encoder, settings.top_k, selects=settings.selects)


class NewsRetriever:
    """Rank a window's articles by the similarity of their embedding to the logic.

    With ``selects`` a logic is a query: articles have to meet its conditions, and are ranked by
    their similarity to its nearest topic, not to the whole sentence.
    """

    def __init__(
        self, pool: NewsPool, encoder: Encoder, top_k: int, *, selects: bool = False
    ) -> None:
        self.pool = pool
        self.encoder = encoder
        self.top_k = top_k

        # A logic ranks the articles of every window of a round, but is embedded once.
        self._embeddings: dict[str, npt.NDArray[np.float32]] = {}
        self._query: Callable[[str], LogicQuery] = lru_cache(maxsize=_KEPT_EMBEDDINGS)(
            lambda logic: read_query(logic) if selects else LogicQuery(topics=(logic,))
        )

        def choose(ids: tuple[str, ...], place: Place) -> tuple[str, ...]:
            return tuple(compress(ids, pool.names_region(ids, place)))

        # Every logic of an agent chooses from the same articles of a window.
        self._choose_placed = lru_cache(maxsize=_KEPT_CANDIDATES)(choose)
        self._find_rows = lru_cache(maxsize=_KEPT_CANDIDATES)(pool.find_rows)

    def embed(self, logics: Iterable[str]) -> None:
        """Embed what logics rank by, in one batch, which is several times as fast."""
        wanted = (topic for logic in logics for topic in self._query(logic).topics)
        new = list(dict.fromkeys(topic for topic in wanted if topic not in self._embeddings))
        if len(self._embeddings) + len(new) > _KEPT_EMBEDDINGS:
            self._embeddings.clear()
        if new:
            self._embeddings |= zip(new, self.encoder.encode(new), strict=True)

    def _read(self, logic: str) -> tuple[LogicQuery, npt.NDArray[np.float32]]:
        query = self._query(logic)
        if any(topic not in self._embeddings for topic in query.topics):
            self.embed([logic])
        return query, np.stack([self._embeddings[topic] for topic in query.topics])

    def retrieve(self, logic: str, view: WindowView) -> tuple[str, ...]:
        """Return the ids of the top k articles of a window, most similar to the logic first."""
        return self.retrieve_for(MemberConfig(), logic, [view])[0]

    def retrieve_for(
        self, member: MemberConfig, logic: str, views: Sequence[WindowView]
    ) -> list[tuple[str, ...]]:
        """Return what an agent reads of each window; a generalist reads all of its scope, up to 64.

        Only candidates of the window are ranked: articles that were available before its origin.
        The scope is all of them, those that name the region of the series ("place"), or none.
        """
        most = MOST_ARTICLES
        if member.reads == "chosen":
            if not self.top_k:
                return [()] * len(views)
            most = min(self._read(logic)[0].most or self.top_k, self.top_k)
        return self._rank_each(logic, views, member.news_scope, most)

    def rank(self, logic: str, view: WindowView) -> tuple[str, ...]:
        """Return the ids of all candidates that a logic selects, most similar to it first."""
        return self._rank_each(logic, [view], "all", None)[0]

    def _rank_each(
        self, logic: str, views: Sequence[WindowView], scope: str, most: int | None
    ) -> list[tuple[str, ...]]:
        """Return the ids of the ``most`` similar candidates of each window."""
        query, topics_TE = self._read(logic)
        candidates = [self._select(query, view, scope) for view in views]
        by_count: dict[int, list[int]] = {}
        for n, names in enumerate(candidates):
            by_count.setdefault(len(names), []).append(n)

        # Windows with equally many candidates are ranked together.
        ranked: list[tuple[str, ...]] = [()] * len(views)
        by_count.pop(0, None)
        for count, of_count in by_count.items():
            size = max(1, _RANKED // count)
            for start in range(0, len(of_count), size):
                part = of_count[start : start + size]
                rows_BM = np.stack([self._find_rows(candidates[n]) for n in part])
                similarity_BM = (self.pool.embeddings[rows_BM] @ topics_TE.T).max(2)

                # Candidates come newest first, so a stable sort gives ties to the newer article.
                order_BM = np.argsort(-similarity_BM, axis=1, kind="stable")[:, :most]
                for n, order in zip(part, order_BM.tolist(), strict=True):
                    ranked[n] = tuple([candidates[n][i] for i in order])
        return ranked

    def resolve(self, ids: Sequence[str]) -> tuple[RetrievedArticle, ...]:
        """Return the articles as agents read them."""
        return tuple(
            RetrievedArticle(
                article_id=name,
                date=f"{self.pool.get_date(name):%d %b}",
                title=self.pool.get_title(name),
                embedding=self.pool.embeddings[row],
            )
            for name, row in zip(ids, self.pool.find_rows(ids), strict=True)
        )

    def _select(self, query: LogicQuery, view: WindowView, scope: str) -> tuple[str, ...]:
        """Return the candidates of a scope that pass what a logic selects by."""
        if scope == "none":
            return ()

        pool = self.pool
        passed: Sequence[str] = view.candidate_ids
        # Candidates of a user's data set were already chosen by the words of the entity.
        if query.is_home or (scope == "place" and not view.task):
            place = DATASETS[view.dataset].find_place(view.entity)
            passed = self._choose_placed(view.candidate_ids, place)
        if query.is_local:
            country = DATASETS[view.dataset].find_place(view.entity).country
            passed = [name for name in passed if pool.get_text(name, "country") == country]

        if query.region:
            wanted = query.region.lower()
            passed = [name for name in passed if wanted in pool.get_title(name).lower()]
        if query.days is not None:
            oldest = view.origin_utc - timedelta(days=query.days)
            passed = [name for name in passed if pool.get_date(name) >= oldest]
        return tuple(passed)
