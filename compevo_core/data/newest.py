"""The newest things that views know: value of each series, published forecast, article.

What belongs here: their instants, from the frames that the views were made of. What does not:
making views (``data.build``), how old is too old (the pipeline).

Everything is cut off at what the views know. A forecast that is filled in later therefore has the
same newest things as one that was made on time.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, cast

import polars as pl

from compevo_core.data.view import HORIZON, WindowView


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestKnown:
    """Instants of the newest things that views of one origin know, UTC.

    Attributes:
        values: by entity, the end of the newest interval that was measured; None where none was.
        publication: when the newest published forecast of the target steps came out; None where
            there is none.
        article: when the newest article became available; None where there is none.
    """

    values: dict[str, datetime | None]
    publication: datetime | None
    article: datetime | None

    def as_facts(self) -> dict[str, Any]:
        """Return the instants as text, ready for JSON."""
        values = {entity: _format(instant) for entity, instant in self.values.items()}
        return asdict(self) | {
            "values": values,
            "publication": _format(self.publication),
            "article": _format(self.article),
        }


def find_newest_known(
    views: Sequence[WindowView],
    series: pl.DataFrame,
    *,
    published: pl.DataFrame | None = None,
    articles: pl.DataFrame | None = None,
) -> NewestKnown:
    """Return the newest things that views of one origin know.

    Args:
        views: of one data set and one origin, known until one instant; at least one.
        series: follows ``SERIES_SCHEMA``.
        published: follows ``PUBLISHED_SCHEMA``.
        articles: follows ``ARTICLE_SCHEMA``.
    """
    return NewestKnown(
        values={view.entity: _find_newest_value(view, series) for view in views},
        publication=_find_newest_publication(views, published),
        article=_find_newest_article(views[0].known_before, articles),
    )


def _find_newest_value(view: WindowView, series: pl.DataFrame) -> datetime | None:
    own = series.filter(
        (pl.col("series_id") == view.series_id)
        & (pl.col("variable") == view.variable)
        & (pl.col("flag") == "observed")
        & (pl.col("start_utc") < view.information_until)
    )
    newest = cast(datetime | None, own["start_utc"].max())
    # Finer than the grid, as a sensor of minutes may be: its interval ends within the step.
    return None if newest is None else min(newest + view.step, view.information_until)


def _find_newest_publication(
    views: Sequence[WindowView], published: pl.DataFrame | None
) -> datetime | None:
    if published is None:
        return None

    first = views[0]
    end_utc = first.origin_utc + HORIZON * first.step
    known = published.filter(
        pl.col("entity").is_in([view.entity for view in views])
        & (pl.col("available_at") < first.known_before)
        & (pl.col("start_utc") >= first.origin_utc)
        & (pl.col("start_utc") < end_utc)
    )
    return cast(datetime | None, known["available_at"].max())


def _find_newest_article(before: datetime, articles: pl.DataFrame | None) -> datetime | None:
    if articles is None:
        return None

    known = articles.filter(pl.col("available_at") < before)
    return cast(datetime | None, known["available_at"].max())


def _format(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
