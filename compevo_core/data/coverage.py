"""What windows cover, how much news they choose from, and the newest things that views know.

What belongs here: counts for manifests and tables; the instants of the newest value of each series,
published forecast and article, as far as the views know. What does not: cutting and building
(``data.cutting``, ``data.build``), how old is too old (the pipeline).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, cast

import polars as pl

from compevo_core.data.view import SPLITS, WindowView

CHOICE_SIZES = (1, 3, 5)
"""Articles k that an agent reads: a logic has a choice where a window has more candidates."""

Coverage = dict[str, dict[str, dict[str, int]]]
NewsChoice = dict[str, dict[str, float]]


def count_coverage(views: Iterable[WindowView]) -> Coverage:
    """Return the number of windows by split, entity and year of the target day.

    An entity that is in any split is listed under every split, without a year where it has no
    window.
    """
    counts = Counter(
        (view.split, view.entity, str(view.calendar.target_date.year)) for view in views
    )
    splits = [split for split in SPLITS if any(key[0] == split for key in counts)]
    entities = sorted({entity for _, entity, _ in counts})

    coverage: Coverage = {split: {entity: {} for entity in entities} for split in splits}
    for (split, entity, year), count in sorted(counts.items()):
        coverage[split][entity][year] = count
    return coverage


def measure_news_choice(views: Sequence[WindowView]) -> NewsChoice:
    """Return, by split, the mean number of candidates and the shares of windows with a choice.

    ``more_than_<k>`` is the share of windows with more candidates than k, for :data:`CHOICE_SIZES`:
    in the others every logic reads the same articles.
    """
    choice: NewsChoice = {}
    for split in SPLITS:
        counts = [len(view.candidate_ids) for view in views if view.split == split]
        if not counts:
            continue

        choice[split] = {"windows": len(counts), "mean_candidates": sum(counts) / len(counts)}
        for size in CHOICE_SIZES:
            choice[split][f"more_than_{size}"] = share_with_choice(counts, size)
    return choice


def share_with_choice(candidates: Sequence[int], articles: int) -> float:
    """Return the share of windows with more candidates than the articles that an agent reads."""
    return sum(count > articles for count in candidates) / len(candidates) if candidates else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestKnown:
    """Instants of the newest things that views of one origin know, UTC."""

    # By entity, the end of the newest interval that was measured; None where none was
    values: dict[str, datetime | None]
    # When the newest published forecast of the target steps came out; None where there is none
    publication: datetime | None
    article: datetime | None  # when the newest article became available; None where there is none

    def as_facts(self) -> dict[str, Any]:
        """Return the instants as text, ready for JSON."""
        facts: dict[str, Any] = json.loads(json.dumps(asdict(self), default=datetime.isoformat))
        return facts


def find_newest_known(
    views: Sequence[WindowView],
    series: pl.DataFrame,
    *,
    published: pl.DataFrame | None = None,
    articles: pl.DataFrame | None = None,
) -> NewestKnown:
    """Return the newest things that views of one origin and one instant know.

    The frames follow ``SERIES_SCHEMA``, ``PUBLISHED_SCHEMA`` and ``ARTICLE_SCHEMA``.
    """
    first = views[0]
    is_known = pl.col("available_at") < first.known_before
    is_of_views = pl.col("entity").is_in([view.entity for view in views])
    is_target = pl.col("start_utc").is_between(first.origin_utc, first.end_utc, closed="left")
    values = {}
    for view in views:
        observed = series.filter(
            (pl.col("series_id") == view.series_id)
            & (pl.col("variable") == view.variable)
            & (pl.col("flag") == "observed")
            & (pl.col("start_utc") < view.information_until)
        )
        newest = cast(datetime | None, observed["start_utc"].max())
        # Finer than the grid, as a sensor of minutes may be: its interval ends within the step.
        end = None if newest is None else min(newest + view.step, view.information_until)
        values[view.entity] = end
    return NewestKnown(
        values=values,
        publication=_find_newest(published, is_known & is_of_views & is_target),
        article=_find_newest(articles, is_known),
    )


def _find_newest(frame: pl.DataFrame | None, condition: pl.Expr) -> datetime | None:
    if frame is None:
        return None
    return cast(datetime | None, frame.filter(condition)["available_at"].max())
