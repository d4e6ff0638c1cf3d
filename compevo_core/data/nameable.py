"""Which articles a window of a data set can name at all, as far as its declaration says.

What belongs here: bounds of time and the filters that hold for every entity. What does not: which
articles a window names (``data.context``), which are duplicates (``data.news``).
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta

import polars as pl

from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.locality import is_of_country
from compevo_core.data.news import select_articles
from compevo_core.data.splits import resolve_spans
from compevo_core.data.view import HORIZON

Span = tuple[datetime, datetime]


def find_news_spans(spec: DatasetSpec, values: Span | None) -> list[Span]:
    """Return the spans of time that articles must be available in, to be named by any window.

    Args:
        spec: the declaration of the data set.
        values: stamps of its first and its last stored value; None where there is none.

    Returns:
        First instants, and the ends that follow the last ones.
    """
    back = max(spec.news_lookback, spec.news_longest_lookback)
    if spec.spans:
        limits = resolve_spans(spec.spans, spec.step, spec.market_offset).values()
        return [(start - back, end) for start, end in limits]
    if values is None:
        return []

    # Without a split plan, windows lie where values are, within the days of the declaration; the
    # last view follows them, and its horizon.
    first, end = values[0], values[1] + (1 + max(spec.unknown_steps) + HORIZON) * spec.step
    if spec.first_day is not None:
        first = max(first, _midnight(spec.first_day, spec))
    if spec.last_day is not None:
        end = min(end, _midnight(spec.last_day + timedelta(days=1), spec))
    return [(first - back, end)]


def select_nameable(spec: DatasetSpec, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the articles of a frame that some window of a data set could name.

    Keywords are left to the windows: which entities there are, the declaration does not say.
    """
    frame = select_articles(frame, spec.news_source)
    if spec.news_languages:
        frame = frame.filter(pl.col("language").fill_null("").is_in(["", *spec.news_languages]))
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


def _midnight(day: date, spec: DatasetSpec) -> datetime:
    return datetime.combine(day, time(), UTC) - spec.market_offset
