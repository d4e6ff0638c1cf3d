"""The candidate news of a data set: what its windows can name, and what one origin finds.

What belongs here: bounds of time and filters of a declaration, which part of the articles an origin
needs, and the filter of an entity. What does not: the rule of availability and duplicates
(``data.news``), the rest of a view (``data.context``), reading a store (the pipeline).

A store is read month by month, since an archive of all articles may be larger than memory. Origins
come series by series, each from its first to its last: the candidates of an origin are remembered,
and a month is read once for all entities.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol

import polars as pl

from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.news import find_candidates, is_in_language, is_of_country, select_articles
from compevo_core.data.splits import resolve_spans

Span = tuple[datetime, datetime]


def find_news_spans(spec: DatasetSpec, values: Span | None) -> list[Span]:
    """Return the spans of time that articles must be available in, to be named by any window.

    ``values`` are the stamps of the first and the last stored value, None where there is none. A
    span is its first instant and the end that follows its last one.
    """
    back = spec.news_longest_lookback
    if spec.spans:
        return [(start - back, end) for start, end in resolve_spans(spec).values()]
    if values is None:
        return []

    # Without a split plan, windows lie where values are, within the days of the declaration; the
    # last view follows them, and its horizon.
    first, last = values
    end = last + (1 + max(spec.unknown_steps) + spec.horizon_steps) * spec.step
    if spec.first_day is not None:
        first = max(first, spec.from_market(spec.first_day))
    if spec.last_day is not None:
        end = min(end, spec.from_market(spec.last_day + timedelta(days=1)))
    return [(first - back, end)]


def select_nameable(spec: DatasetSpec, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the articles of a frame that some window of a data set could name."""
    frame = select_articles(frame, spec.news_source).filter(is_in_language(spec.news_languages))
    if not spec.news_of_country:
        return frame

    countries = {place.country for place in (*spec.places.values(), spec.default_place)}
    return frame.filter(pl.any_horizontal(is_of_country(name) for name in sorted(countries)))


def is_within(spans: Sequence[Span]) -> pl.Expr:
    """Return the expression of "this article became available within one of the spans"."""
    available = pl.col("available_at")
    return pl.any_horizontal(
        pl.lit(value=False), *((available >= first) & (available < end) for first, end in spans)
    )


NewsCutoff = Literal["origin", "horizon-end"]


class ArticleSource(Protocol):
    """Articles of one publisher, each syndicated title once, the first time that it was printed."""

    def read(self, since: datetime, until: datetime) -> pl.DataFrame:
        """Return those with since <= available_at < until; follows ``ARTICLE_SCHEMA``."""

    def count(self) -> int:
        """Return the number of all of them."""


class FrameSource:
    """Articles that are in memory already."""

    def __init__(self, frame: pl.DataFrame, publisher: str) -> None:
        """Take articles without duplicates and a publisher; see :func:`select_articles`."""
        self._frame = frame
        self._publisher = publisher

    def read(self, since: datetime, until: datetime) -> pl.DataFrame:
        """Return the articles of a part of time."""
        return select_articles(self._frame, self._publisher).filter(is_within([(since, until)]))

    def count(self) -> int:
        """Return the number of articles, whoever published them."""
        return self._frame.height


Articles = pl.DataFrame | ArticleSource


class CandidateFinder:
    """Finds the candidates of the views of one data set."""

    def __init__(
        self,
        spec: DatasetSpec,
        articles: Articles | None,
        cutoff: NewsCutoff,
        *,
        is_spread: bool = False,
    ) -> None:
        """Take the articles of a data set, a frame without duplicates or a store; None: no news.

        With ``is_spread``, candidates come from many domains and stories (``news.spread_over``).
        """
        if isinstance(articles, pl.DataFrame):
            articles = FrameSource(articles, spec.news_source)
        self._spec = spec
        self._source = articles
        self._cutoff = cutoff
        self._is_spread = is_spread
        self._candidates: dict[tuple[str, datetime], tuple[str, ...]] = {}

        # What was read last: the articles that origins of one month need, and those of countries.
        self._month: tuple[int, int] | None = None
        self._of_month = pl.DataFrame()
        self._of_country: dict[str, pl.DataFrame] = {}

    def count_articles(self) -> int:
        """Return the number of articles that there are, each syndicated title once."""
        return 0 if self._source is None else self._source.count()

    def find(self, entity: str, before: datetime) -> tuple[str, ...]:
        """Return the ids of an entity's candidates, the newest first."""
        if self._source is None:
            return ()

        # Entities of a country share their candidates: filtering reads titles and bodies.
        spec = self._spec
        country = spec.find_place(entity).country if spec.news_of_country else ""

        # "horizon-end" copies the leaky prompts of published work, to measure what the leak gives.
        end = before if self._cutoff == "origin" else before + spec.horizon
        if (country, end) not in self._candidates:
            month = (end.year, end.month)
            if month != self._month:
                first = end.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
                following = first.replace(year=end.year + end.month // 12, month=end.month % 12 + 1)
                self._of_month = self._source.read(first - spec.news_longest_lookback, following)
                self._month, self._of_country = month, {}
                if self._of_month.is_empty() and not self._source.count():
                    self._source = None  # reading every month of nothing takes seconds

            if country not in self._of_country:
                nameable = self._of_month.filter(
                    is_in_language(spec.news_languages), is_of_country(country)
                )
                # The id breaks ties: candidates do not depend on the order of rows.
                self._of_country[country] = nameable.sort("available_at", "article_id")
            articles = self._of_country[country]
            ids = find_candidates(articles, end, spec, is_spread=self._is_spread)
            self._candidates[country, end] = tuple(ids)
        return self._candidates[country, end]
