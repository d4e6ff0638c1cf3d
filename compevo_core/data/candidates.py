"""The candidate news of many origins, from a frame of articles or a store that is read in parts.

What belongs here: which part of the articles an origin needs, and the filters of an entity. What
does not: the rule of availability (``data.news``), the rest of a view (``data.context``), reading
a store (the pipeline's).

A store is read month by month, since an archive of all articles may be larger than memory. Origins
come series by series, each from its first to its last: what is found for an origin is kept, and a
month is read again only for entities with other filters.
"""

from datetime import datetime
from typing import Literal, Protocol

import polars as pl

from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.news import ArticleIndex, select_articles
from compevo_core.data.view import HORIZON

NewsCutoff = Literal["origin", "horizon-end"]

_Filters = tuple[str, tuple[str, ...]]
"""Country and keywords."""


class ArticleSource(Protocol):
    """Articles of one publisher, each syndicated title once, the first time that it was printed."""

    def read(self, since: datetime, until: datetime) -> pl.DataFrame:
        """Return those with since <= available_at < until; follows ``ARTICLE_SCHEMA``."""
        ...

    def count(self) -> int:
        """Return the number of all of them."""
        ...


class FrameSource:
    """Articles that are in memory already."""

    def __init__(self, frame: pl.DataFrame, publisher: str) -> None:
        """Take a frame without duplicates.

        Args:
            frame: follows ``ARTICLE_SCHEMA``.
            publisher: whose articles are candidates; see ``data.news.select_articles``.
        """
        self._frame = frame
        self._publisher = publisher

    def read(self, since: datetime, until: datetime) -> pl.DataFrame:
        """Return the articles of a part of time."""
        within = (pl.col("available_at") >= since) & (pl.col("available_at") < until)
        return select_articles(self._frame, self._publisher).filter(within)

    def count(self) -> int:
        """Return the number of articles, whoever published them."""
        return self._frame.height


Articles = pl.DataFrame | ArticleSource


class CandidateFinder:
    """Finds the candidates of the views of one data set."""

    def __init__(self, spec: DatasetSpec, articles: Articles | None, cutoff: NewsCutoff) -> None:
        """Take the articles of a data set; None means no news.

        Args:
            spec: its declaration.
            articles: a frame without duplicates, or what reads a store.
            cutoff: with "horizon-end" candidates reach to the end of the horizon.
        """
        if isinstance(articles, pl.DataFrame):
            articles = FrameSource(articles, spec.news_source)
        self._spec = spec
        self._source = articles
        self._cutoff = cutoff
        self._found: dict[tuple[_Filters, datetime], tuple[str, ...]] = {}

        # What was read last: the articles that origins of one month need, and their indices.
        self._month: tuple[int, int] | None = None
        self._of_month = pl.DataFrame()
        self._indices: dict[_Filters, ArticleIndex] = {}

    def count_articles(self) -> int:
        """Return the number of articles that there are, each syndicated title once."""
        return 0 if self._source is None else self._source.count()

    def find(self, entity: str, before: datetime) -> tuple[str, ...]:
        """Return the ids of an entity's candidates, the newest first."""
        if self._source is None:
            return ()

        # Entities with the same filters share what is found: filtering reads titles and bodies.
        spec = self._spec
        country = spec.find_place(entity).country if spec.news_of_country else ""
        filters = (country, spec.keywords.get(entity, ()))

        # "horizon-end" copies the leaky prompts of published work, to measure what the leak gives.
        end = before if self._cutoff == "origin" else before + HORIZON * spec.step
        if (filters, end) not in self._found:
            found = self._index(self._source, filters, end).find_before(
                end,
                spec.news_lookback,
                spec.news_limit,
                fewest=spec.news_fewest,
                longest_lookback=spec.news_longest_lookback,
            )
            self._found[filters, end] = tuple(found)
        return self._found[filters, end]

    def _index(self, source: ArticleSource, filters: _Filters, end: datetime) -> ArticleIndex:
        """Return the index of articles around the month that an instant lies in."""
        month = (end.year, end.month)
        if month != self._month:
            first = end.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            following = first.replace(year=end.year + end.month // 12, month=end.month % 12 + 1)
            self._of_month = source.read(first - self._spec.news_longest_lookback, following)
            self._month, self._indices = month, {}

        if filters not in self._indices:
            country, keywords = filters
            self._indices[filters] = ArticleIndex(
                self._of_month,
                keywords or None,
                languages=self._spec.news_languages,
                country=country,
            )
        return self._indices[filters]
