"""What a deployment has stored for the forecast of a day, and whether that is enough.

What belongs here: reading the stores, views of the day, the newest things they know, what is
missing or too old. What does not: views (``compevo_core.data.build``), forecasting and issuing
(``compevo_pipeline.next_day``).
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

import polars as pl

from compevo_core.data.build import BuiltViews, build_views, build_windows
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.newest import NewestKnown, find_newest_known
from compevo_core.data.news import select_articles
from compevo_core.data.splits import resolve_spans
from compevo_core.data.step_values import find_oldest_needed
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_pipeline.resources import Workspace
from compevo_pipeline.sources.common.base import FrameKind

NEWS_LIMIT = timedelta(hours=72)
"""Age of the newest article that a forecast is made with unless a run says otherwise."""


class KnownTo(StrEnum):
    """Until when a forecast of a day may know."""

    MIDNIGHT = "midnight"
    ISSUE_TIME = "issue-time"


class StaleNews(StrEnum):
    """What to do where the newest article is too old."""

    WARN = "warn"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsRule:
    """How old the newest article may be when a forecast is made, and what happens if it is older.

    Where a data set has no news at all, nothing is asked.
    """

    limit: timedelta = NEWS_LIMIT
    action: StaleNews = StaleNews.WARN


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The day of a forecast: its first instant, and until when the forecast knows."""

    day: date
    origin_utc: datetime
    until: datetime

    @classmethod
    def of(cls, spec: DatasetSpec, day: date, known_to: KnownTo | None) -> "Origin":
        """Return a day on the market's clock.

        Raises:
            ConfigError: the data set's views know no such instant.
        """
        origin_utc = datetime.combine(day, time(), UTC) - spec.market_offset
        until = origin_utc - _count_unknown(spec, known_to) * spec.step
        return cls(day=day, origin_utc=origin_utc, until=until)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFrames:
    """Everything that is stored of a data set; reading it costs a second, so it is read once."""

    spec: DatasetSpec
    series: pl.DataFrame
    covariates: pl.DataFrame | None
    published: pl.DataFrame | None
    step_covariates: pl.DataFrame | None
    articles: pl.DataFrame

    @classmethod
    def read(cls, workspace: Workspace, spec: DatasetSpec) -> "StoredFrames":
        """Read the stores.

        Raises:
            DataError: there is no series, or no news.
        """
        # Nothing that is too old for any view that is made below: neither news nor values by step.
        first = _find_first_later(spec)
        since = None if first is None else first - spec.news_longest_lookback
        news = workspace.news_store()
        articles = news.read_articles(since)
        if not articles.height:
            articles = news.read_newest(1)  # its age is what a reader is warned of

        def cut(rows: pl.LazyFrame) -> pl.LazyFrame:
            if first is None:
                return rows
            return rows.filter(pl.col("start_utc") >= find_oldest_needed(first, spec.step))

        tables = workspace.frame_store()
        return cls(
            spec=spec,
            series=workspace.series_store().read(spec.name),
            covariates=tables.read(spec.name, FrameKind.COVARIATES),
            published=tables.read(spec.name, FrameKind.PUBLISHED, cut),
            step_covariates=tables.read(spec.name, FrameKind.STEP_COVARIATES, cut),
            articles=articles,
        )

    def build_views(self, origin: Origin) -> BuiltViews:
        """Make the views of a day."""
        return build_views(
            self.spec,
            self.series,
            covariates=self.covariates,
            articles=self.articles,
            published=self.published,
            origin_utc=origin.origin_utc,
            information_until=origin.until,
            step_covariates=self.step_covariates,
        )

    def build_later_windows(self) -> WindowSet:
        """Cut the windows after train, whose errors a population may have to take note of.

        From what is stored, not from the windows asset: that may be older than the series.
        """
        return build_windows(
            self.spec,
            self.series,
            covariates=self.covariates,
            articles=self.articles,
            published=self.published,
            step_covariates=self.step_covariates,
            first_origin=_find_first_later(self.spec),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DayInputs:
    """Views of a day, and what is wrong with them.

    Attributes:
        built: the views.
        newest: the newest things they know; None where no series has a view.
        missing: reasons why no forecast can be made.
        warnings: what a reader of the forecast should know.
    """

    built: BuiltViews
    newest: NewestKnown | None
    missing: tuple[str, ...]
    warnings: tuple[str, ...]


def check_inputs(frames: StoredFrames, origin: Origin, rule: NewsRule) -> DayInputs:
    """Make the views of a day and say what is missing or too old."""
    built = frames.build_views(origin)
    missing = [f"{entity}: {why}" for entity, why in built.left_out.items()]
    warnings: list[str] = []
    if not built.views:
        return DayInputs(built=built, newest=None, missing=(*missing, "no series"), warnings=())

    articles = select_articles(frames.articles, frames.spec.news_source)
    newest = find_newest_known(
        built.views, frames.series, published=frames.published, articles=articles
    )
    # A model of the published forecast's errors has nothing to correct without it.
    without = [view.entity for view in built.views if view.published is None]
    if frames.spec.published_evidence and without:
        missing.append(
            f"no published forecast of the whole day for {', '.join(without)} that was issued by "
            f"{origin.until:%Y-%m-%d %H:%M} UTC"
        )

    old_news = _describe_old_news(newest, origin, rule)
    if old_news and articles.height:
        (missing if rule.action is StaleNews.REFUSE else warnings).append(old_news)
    return DayInputs(built=built, newest=newest, missing=tuple(missing), warnings=tuple(warnings))


def _find_first_later(spec: DatasetSpec) -> datetime | None:
    """Return the first origin after the train split; None where the days decide, not the plan."""
    limits = resolve_spans(spec.spans, spec.step, spec.market_offset)
    starts = [start for span, (start, _) in limits.items() if span.split != "train"]
    return min(starts, default=None)


def _describe_old_news(newest: NewestKnown, origin: Origin, rule: NewsRule) -> str:
    """Return what is wrong with the age of the newest article; empty where nothing is."""
    if newest.article is None:
        return "no article is from before the forecast"

    age = origin.until - newest.article
    if age <= rule.limit:
        return ""
    hours = timedelta(hours=1)
    return (
        f"the newest article is of {newest.article:%Y-%m-%d %H:%M} UTC, {age / hours:.0f} hours "
        f"before the forecast; {rule.limit / hours:.0f} are allowed"
    )


def _count_unknown(spec: DatasetSpec, known_to: KnownTo | None) -> int:
    """Return how many steps before the origin nobody has measured."""
    if known_to is KnownTo.MIDNIGHT:
        return 0
    if known_to is None:
        return max(spec.unknown_steps)
    if max(spec.unknown_steps) == 0:
        raise ConfigError(f"views of {spec.name} all know to midnight; leave --known-to as it is")
    return max(spec.unknown_steps)
