"""The forecast of one day from what is stored: views, known errors, the sealed record.

What belongs here: the way from stores and the current run to an issued forecast, whether the stored
inputs suffice, and the comparison of an issued forecast with what is stored now. What does not:
views (``compevo_core.data.build``), the record (``compevo_core.forecast.issued``).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data import build
from compevo_core.data.arrays import FloatArray
from compevo_core.data.content import describe_new_faults
from compevo_core.data.context import OWN, NewestKnown, find_newest_known, find_oldest_needed
from compevo_core.data.cutting import GriddedSeries, locate_origin
from compevo_core.data.datasets import DATASETS, DatasetSpec
from compevo_core.data.news import MOST_OF_DOMAIN, is_of_domain, select_articles
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.quantiles import describe_missing
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.data.splits import resolve_spans
from compevo_core.data.steps import DAY, WEEK, count_year, name_step
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import CompEvoError, ConfigError, DataError
from compevo_core.evaluation.issued_scores import repeat_known
from compevo_core.forecast import issued
from compevo_core.forecast.daily_state import Snapshots
from compevo_core.forecast.explain import BAND_80, describe_outside, select_band
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.runtime.usage import OnStep
from compevo_core.training.ensemble import read_scaler
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.sources.registry import Rules, Variable
from compevo_pipeline.storage.code_versions import fitting_version, read_commit
from compevo_pipeline.storage.runs import find_current_run, has_current_run, hash_model
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import find_encoder, read_news
from compevo_pipeline.work.stored_windows import find_current_windows

MOST_SPREADS = 4.0
"""Mean distance, in spreads of the newest week, at which a forecast is not sealed.

Of operational demand from May 2025 to April 2026 no day was further than 2.0 from the nearer one of
yesterday and last week, or 2.7 from AEMO's forecast. With a wrong sign the regions are 2.7 to 15
away, divided by 1,000 they are 1.4 to 6.9: one file in a wrong unit stops the day.
"""
LEAST_SPREAD = 0.05  # A spread is at least this part of the level: a steady series may move, too
LEAST_NEWS_CHANGE = 0.005  # share of the mean that news may move without a note
CROWD_DAYS = 28  # that show how many articles come on a usual day
TIMES_USUAL_NEWS = 2.0  # from which a day of news counts as a crowd
UNBOUNDED = Variable(unit="", low=None, high=None)
LATEST_DAYS = 14  # days that are tried for the newest one with a published forecast
DAY_BEGINS = (
    "days begin at midnight of their clock, {origin:%H:%M} UTC: with grid.stride = 1 in the "
    "declaration, and fit again, forecasts begin where the file ends"
)
OLD_STATE = (
    "continues from what an earlier version of the code learnt from past days; compevo refit "
    "{dataset} learns them again with this version"
)

NEWS_LIMIT = timedelta(hours=72)  # age of the newest article, unless a run sets another


class MissingInputError(DataError):
    """An input of a forecast is not stored, but may still come."""


class KnownTo(StrEnum):
    """The time up to which a forecast of a day may use information."""

    MIDNIGHT = "midnight"
    ISSUE_TIME = "issue-time"


class StaleNews(StrEnum):
    """What to do if the newest article is too old."""

    WARN = "warn"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsRule:
    """How old the newest article may be when a forecast is made, and what happens if it is older.

    Ignored for data sets without news.
    """

    limit: timedelta = NEWS_LIMIT
    action: StaleNews = StaleNews.WARN


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The day of a forecast: its first instant, and until when the forecast knows.

    If a day has several origins, a day without a time means the one at midnight.
    """

    day: date
    origin_utc: datetime
    until: datetime

    @classmethod
    def of(cls, spec: DatasetSpec, day: date, known_to: KnownTo | None) -> "Origin":
        """Return a day on the market's clock.

        ConfigError if the data set's views know no such instant, or begin at other times.
        """
        # Steps before the origin that are not measured yet at the issue time.
        unknown = max(spec.unknown_steps)
        if known_to is KnownTo.ISSUE_TIME and not unknown:
            raise ConfigError(
                f"forecasts of {spec.name} always use data up to midnight; leave --known-to out"
            )

        start = day if isinstance(day, datetime) else datetime.combine(day, time())
        into_day = timedelta(hours=start.hour, minutes=start.minute, seconds=start.second)
        apart = spec.stride_steps * spec.step if spec.has_origins_within_days else DAY
        origin_utc = spec.from_market(start)
        if spec.from_market(start - into_day % apart) != origin_utc:
            also = f" and every {name_step(apart)} after it" if apart < DAY else ""
            raise ConfigError(
                f"no window of {spec.name} begins at {start:%H:%M}, so the model has learnt none: "
                f"forecasts begin at 00:00{also}"
            )
        until = origin_utc if known_to is KnownTo.MIDNIGHT else origin_utc - unknown * spec.step
        return cls(day=start.date(), origin_utc=origin_utc, until=until)

    def is_issued_in(self, folder: Path) -> bool:
        """Whether the forecast is among a data set's issued ones."""
        return issued.is_issued(issued.find_issued(folder, self.origin_utc, self.until))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFrames:
    """Everything that is stored of a data set; reading it costs a second, so it is read once.

    Without news its store is not opened, which another program may hold.
    """

    spec: DatasetSpec
    reads_news: bool
    series: pl.DataFrame
    covariates: pl.DataFrame | None
    published: pl.DataFrame | None
    step_covariates: pl.DataFrame | None
    articles: pl.DataFrame

    @classmethod
    def read(cls, deployment: Deployment, spec: DatasetSpec, *, reads_news: bool) -> "StoredFrames":
        """Read the stores.

        DataError if there is no series; StoreBusy if another program holds the news.
        """
        # Nothing too old for all views that are made below: neither news nor values by step.
        first = _find_first_later(spec)
        since = None if first is None else first - spec.news_longest_lookback
        news = deployment.news_store()
        articles = pl.DataFrame(schema=ARTICLE_SCHEMA)
        if reads_news and news.path.exists():
            articles = news.read_articles(since)
            if not articles.height:
                articles = news.read_newest(1)  # needed only for the warning about old news
            if not spec.news_source:
                articles = articles.filter(is_of_domain(deployment.settings.news_domains))

        def cut(rows: pl.LazyFrame) -> pl.LazyFrame:
            if first is None:
                return rows
            return rows.filter(pl.col("start_utc") >= find_oldest_needed(first, spec.step))

        store = deployment.series_store()
        return cls(
            spec=spec,
            reads_news=reads_news,
            series=read_live_series(deployment, spec)[0],
            covariates=store.read_frame(spec.name, FrameKind.COVARIATES, is_verified=True),
            published=store.read_frame(spec.name, FrameKind.PUBLISHED, cut, is_verified=True),
            step_covariates=store.read_frame(
                spec.name, FrameKind.STEP_COVARIATES, cut, is_verified=True
            ),
            articles=articles,
        )

    @property
    def _beside_series(self) -> dict[str, Any]:
        names = ("covariates", "articles", "published", "step_covariates")
        return {name: getattr(self, name) for name in names}

    def build_views(self, origin: Origin) -> build.BuiltViews:
        """Make the views of a day."""
        return build.build_views(
            self.spec,
            self.series,
            **self._beside_series,
            origin_utc=origin.origin_utc,
            information_until=origin.until,
            # A publisher's values may still come; what a user's file lacks is lost.
            repeats=self.spec.name not in DATASETS,
        )

    def build_later_windows(self, stored: WindowSet | None = None) -> WindowSet:
        """Cut the windows after train, whose errors a population may have to take note of.

        If the windows asset is as new as the series, it is ``stored``, and none is cut again.
        """
        first = _find_first_later(self.spec)
        if stored is not None:
            ids = set(self.series["series_id"])
            later = [
                window
                if self.reads_news or not window.view.candidate_ids
                else window.change_view(candidate_ids=())
                for window in stored
                if window.view.series_id in ids
                and (first is None or window.view.origin_utc >= first)
            ]
            return WindowSet(later, dataset=stored.dataset)
        return build.build_windows(
            self.spec, self.series, **self._beside_series, first_origin=first
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DayInputs:
    """Views of a day, and what is wrong with them."""

    built: build.BuiltViews
    newest: NewestKnown | None  # the newest inputs they know; None if no series has a view
    missing: tuple[str, ...]  # reasons why no forecast can be made
    warnings: tuple[str, ...]  # what a reader of the forecast should know


def find_news_rule(
    deployment: Deployment, dataset: str, rule: NewsRule, run: Path | None = None
) -> NewsRule | None:
    """Return the rule for a run, the current one unless given; None if it reads no news."""
    if run is None and has_current_run(deployment.layout, dataset):
        run = find_current_run(deployment.layout, dataset)
    return rule if run is None or find_encoder(run) else None


def reads_news(deployment: Deployment, datasets: Iterable[str]) -> bool:
    """Whether the current model of a data set reads news; also True without a model."""
    layout = deployment.layout
    trained = [name for name in datasets if has_current_run(layout, name)]
    runs = [find_current_run(layout, name) for name in trained]
    return not runs or any(map(find_encoder, runs))


def check_inputs(frames: StoredFrames, origin: Origin, rule: NewsRule | None) -> DayInputs:
    """Make the views of a day and say what is missing or too old; news only with a rule."""
    built = frames.build_views(origin)
    missing = build.describe_left_out(built.left_out)
    warnings = build.describe_repeated(built)
    if not built.views:
        return DayInputs(built=built, newest=None, missing=tuple(missing), warnings=())

    articles = select_articles(frames.articles, frames.spec.news_source)
    newest = find_newest_known(
        built.views, frames.series, published=frames.published, articles=articles
    )
    # A model of the published forecast's errors needs it.
    without = [view.entity for view in built.views if view.published is None]
    if frames.spec.published_evidence and without:
        missing.append(
            f"no published forecast of the whole day for {', '.join(without)} that was issued by "
            f"{origin.until:%Y-%m-%d %H:%M} UTC"
        )

    if rule is not None and not frames.spec.news_source:
        warnings.extend(_describe_crowds(articles, frames.spec, origin.until))
    if rule is not None and articles.height:
        old_news, hour = "", timedelta(hours=1)
        if newest.article is None:
            old_news = "no article is from before the forecast"
        elif (age := origin.until - newest.article) > rule.limit:
            old_news = (
                f"the newest article is from {newest.article:%Y-%m-%d %H:%M} UTC, "
                f"{age / hour:.0f} hours before the forecast; {rule.limit / hour:.0f} are allowed"
            )
        if old_news:
            (missing if rule.action is StaleNews.REFUSE else warnings).append(old_news)
    elif rule is not None and not frames.spec.news_source:
        # Only the shared news must exist: a data set with its own may have no articles.
        missing.append("no news is stored, or none of a domain in COMPEVO_NEWS_DOMAINS")
    return DayInputs(built=built, newest=newest, missing=tuple(missing), warnings=tuple(warnings))


def _describe_crowds(articles: pl.DataFrame, spec: DatasetSpec, until: datetime) -> Iterator[str]:
    """Say if so much was published on one day that other articles would have no place."""
    day = pl.col("available_at").dt.date()
    earliest = until - CROWD_DAYS * DAY - spec.news_lookback
    recent = articles.filter(pl.col("available_at").is_between(earliest, until, closed="left"))
    in_time = recent.filter(pl.col("available_at") >= until - spec.news_lookback)
    by_site = in_time.group_by("domain", day).len()
    for domain, day_of_site, count in (
        by_site.filter(pl.col("len") > spec.news_limit // 2).sort("domain").rows()
    ):
        yield (
            f"{count} articles of {domain} on {day_of_site}: "
            f"{int(MOST_OF_DOMAIN * spec.news_limit)} of a "
            "site are read at most; COMPEVO_NEWS_DOMAINS names the sites that may be read at all"
        )

    # Many sites with a headline each do not crowd like one site.
    hours = (until - pl.col("available_at")).dt.total_hours()
    by_day = recent.group_by((hours // 24).alias("ago")).len()
    usual = by_day.filter(pl.col("ago") > 0).select(pl.col("len").median()).item()
    newest = by_day.filter(pl.col("ago") == 0)["len"].sum()
    if in_time.height > spec.news_limit and usual and newest > TIMES_USUAL_NEWS * usual:
        yield (
            f"{newest} articles came in the last day, {usual:g} on a usual one, and "
            f"{spec.news_limit} are read at most: made-up ones may take the place of others; "
            "COMPEVO_NEWS_DOMAINS names the sites that may be read"
        )


def _find_first_later(spec: DatasetSpec) -> datetime | None:
    """Return the first origin after the train split; None if the plan does not decide it."""
    limits = resolve_spans(spec)
    starts = [start for span, (start, _) in limits.items() if span.split != "train"]
    return min(starts, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayForecast:
    """The forecast of a day, as it was issued."""

    forecast: issued.IssuedForecast
    folder: Path  # where it is stored
    is_new: bool  # whether it was issued just now
    notes: tuple[str, ...] = ()  # what a reader should know, such as old news or changed data


def forecast_day(
    deployment: Deployment,
    dataset: str,
    day: date | None,
    known_to: KnownTo | None,
    *,
    log: logging.Logger,
    on_step: OnStep = lambda _: None,
    run: Path | None = None,
    news_rule: NewsRule | None = None,
    supersede: bool = False,
) -> DayForecast:
    """Issue the forecast of a day, or read the one that was issued before.

    A day that was issued is verified and returned without inference; notes say whether the stored
    data or the model have changed since.

    ``day``, on the market's clock, has a time if days have several origins: without one the
    forecast begins at midnight. None is the newest day that can be forecast. Without ``known_to``
    it is the earlier instant that the data set's views know. With ``supersede`` a day that was
    issued before is issued again; the older record stays.

    ConfigError if there is no such data set, or its views know no such instant; DataError if an
    input is missing or stale, no run has finished, or the forecast is far from all that is known of
    the series; CheckpointMismatch if the issued forecast was altered since.
    """
    spec = find_daily_spec(deployment, dataset)
    of_start: list[str] = []
    if day is None:
        # Why the newest day of declared files is earlier than a reader may expect.
        series, ended = read_live_series(deployment, spec)
        day = find_next_day(deployment, spec, known_to, series)
        of_start.extend([ended] if ended else [])
        start = Origin.of(spec, day, known_to).origin_utc
        known = build.find_common_end(spec, series) - start
        if spec.name not in DATASETS and spec.align_to_market_day and 2 * known >= DAY:
            of_start.append(
                f"{known / timedelta(hours=1):g} hours of this forecast are in the file, as "
                + DAY_BEGINS.format(origin=start)
            )
    origin = Origin.of(spec, day, known_to)
    day = origin.day
    folder = issued.find_issued(deployment.layout.issued(dataset), origin.origin_utc, origin.until)

    if not issued.is_issued(folder):
        issued.finish_killed(folder.parents[1])
    was_issued = issued.is_issued(folder)
    if was_issued and not supersede:
        forecast = issued.read_issued(folder)
        notes = _compare_with_stored(deployment, spec, origin, forecast, run)
        result = DayForecast(forecast=forecast, folder=folder, is_new=False, notes=notes)
        issued_at = forecast.facts["issued_at"]
        log.info(f"{dataset}, {day}: was issued {issued_at}, and is returned as it is: {folder}")
    else:
        rule = news_rule or NewsRule()
        result = _issue(deployment, spec, origin, rule, log, on_step, run, supersede=supersede)
        result = replace(result, is_new=result.folder != folder or not was_issued)
        log.info(f"{dataset}, {day}, known until {origin.until:%Y-%m-%d %H:%M} UTC: {folder}")

    return replace(result, notes=(*of_start, *result.notes, *_describe_news(result.forecast)))


def find_next_day(
    deployment: Deployment,
    spec: DatasetSpec,
    known_to: KnownTo | None = None,
    series: pl.DataFrame | None = None,
) -> date:
    """Return the newest day, on the market's clock, for which every series can be forecast.

    If days have several origins it is the newest of them, with its time. If models correct a
    published forecast it is the newest of the last ``LATEST_DAYS`` with a publication for the whole
    day; without any, the newest by the series, whose forecast then reports what is missing.
    ``series``, if given, are the stored ones that continue.
    """
    if series is None:
        series, _ = read_live_series(deployment, spec)
    start = spec.to_market(build.find_next_origin(spec, series))
    newest = start if spec.has_origins_within_days else start.date()
    if not spec.published_evidence:
        return newest

    published = deployment.series_store().read_frame(spec.name, FrameKind.PUBLISHED)
    for back in range(LATEST_DAYS):
        origin = Origin.of(spec, newest - timedelta(days=back), known_to)
        built = build.build_views(
            spec,
            series,
            published=published,
            origin_utc=origin.origin_utc,
            information_until=origin.until,
        )
        if built.views and all(view.published is not None for view in built.views):
            return origin.day
    return newest


def read_live_series(deployment: Deployment, spec: DatasetSpec) -> tuple[pl.DataFrame, str]:
    """Read the series of a data set; if it is declared, those that continue, and which ended.

    A publisher's series that ends is a fault; in a user's file a shop may have closed.
    """
    series = deployment.series_store().read(spec.name)
    return (series, "") if spec.name in DATASETS else build.select_live(spec, series)


def choose_dataset(deployment: Deployment) -> str:
    """Return the data set that was trained last, which is forecast if none is named.

    ``ConfigError`` if none has a trained model.
    """
    layout, registry = deployment.layout, deployment.registry
    daily = [name for name in registry if registry[name].spec.starts_with_days]
    trained = [name for name in daily if has_current_run(layout, name)]
    if not trained:
        raise ConfigError(
            f"no data set has a trained model in {layout.root}: train one with `compevo fit "
            "DATASET`, or name another home with COMPEVO_HOME and mode with COMPEVO_MODE"
        )
    return max(trained, key=lambda name: find_current_run(layout, name).stat().st_mtime)


def find_daily_spec(deployment: Deployment, dataset: str) -> DatasetSpec:
    """Return the declaration of a data set whose windows start with a day.

    ConfigError if there is no such data set.
    """
    registry = deployment.registry
    spec = registry[dataset].spec
    if not spec.starts_with_days:
        can = [name for name in registry if registry[name].spec.starts_with_days]
        raise ConfigError(
            f"{dataset} has no windows that start with a day; forecast one of {', '.join(can)}"
        )
    return spec


def _issue(
    deployment: Deployment,
    spec: DatasetSpec,
    origin: Origin,
    news_rule: NewsRule,
    log: logging.Logger,
    on_step: OnStep,
    run: Path | None,
    *,
    supersede: bool,
) -> DayForecast:
    on_step(f"reading what is stored of {spec.name}")
    is_own = spec.name not in DATASETS
    rule = find_news_rule(deployment, spec.name, news_rule, run)  # checks the model's files first
    stored = StoredFrames.read(deployment, spec, reads_news=rule is not None)
    run = run or find_current_run(deployment.layout, spec.name)
    rows, others = build.select_entities(spec, stored.series, read_scaler(run).mean)
    learnt = replace(stored, series=rows)
    inputs = check_inputs(learnt, origin, rule)
    if inputs.missing or inputs.newest is None:
        # A declared file that ends with a day of its own clock may end before our day begins.
        gap, because = origin.origin_utc - build.find_common_end(spec, rows), ""
        if is_own and spec.align_to_market_day and timedelta(0) < gap < DAY / 2:
            because = (
                f"; {gap / timedelta(hours=1):g} h before it is missing, as "
                f"{DAY_BEGINS.format(origin=origin.origin_utc)}"
            )
        raise MissingInputError(
            f"{spec.name} cannot be forecast for {origin.day} as known until "
            f"{origin.until:%Y-%m-%d %H:%M} UTC ({'; '.join(inputs.missing)}): read the newest "
            f"values, name another day, or take out of the table what has ended{because}"
        )

    # Errors that have become known since validation: the levels of the priors move on with them.
    forecaster, news, notes, _ = _load_daily(
        deployment, run, learnt, origin.until, inputs.built.views, log, on_step
    )

    on_step(f"forecasting {origin.day}")
    day_views = inputs.built.views
    unknown = dict.fromkeys(others, ("not learnt by the model", ""))
    if others and is_own:
        # A user's new series are forecast, too, by what the model learnt of the others.
        unlearnt = stored.series.join(rows, on="series_id", how="anti")
        built = replace(stored, series=unlearnt).build_views(origin)
        rows, unknown = stored.series, dict(built.left_out)
        day_views = (*day_views, *built.views)
        forecaster.takes_new = True
    series = build.grid_chosen(spec, rows)

    before = rows.filter(pl.col("start_utc") < origin.until)
    data = None
    if is_own:
        known = before.drop_nulls("value")["start_utc"]
        span = {"first": known.min(), "last": known.max(), "fitted_until": _find_fitted_until(spec)}
        data = {name: str(at) for name, at in span.items()}
    forecast = issued.issue_forecast(
        forecaster,
        day_views,
        news=news,
        market_offset=spec.to_market(origin.origin_utc).replace(tzinfo=UTC) - origin.origin_utc,
        issued_at=deployment.clock(),
        commit=read_commit(),
        newest=inputs.newest._asdict(),
        totals=spec.totals,
        reconciliation=deployment.registry[spec.name].reconciliation,
        data=data,
        last_week={v.entity: _repeat(v, series[v.series_id], count_week(v)) for v in day_views},
    )
    rules = deployment.registry[spec.name].rules
    refuse_implausible(forecast, day_views, series, rules)
    folder = issued.write_issued(deployment.layout.issued(spec.name), forecast, supersede=supersede)
    new = [view.entity for view in day_views if view.entity in others]
    notes = (*inputs.warnings, *notes)
    notes += tuple(f"no forecast of {reason}" for reason in build.describe_left_out(unknown))
    if new:
        notes += (f"{build.describe_new(new)}, once a whole window of theirs is in train",)
    if origin.origin_utc < _find_fitted_until(spec):
        notes += (
            f"the model was fitted and chosen on values after {origin.day}, so its error there "
            "will be too small",
        )
    if is_own:
        # Notes on the days before are not repeated.
        since = origin.until - max(DAY, spec.step)
        for entity, part in build.select_newest(build.select_series(spec, before)[0]):
            notes += tuple(describe_new_faults(entity, part, spec.step, since))
        notes += tuple(_describe_own_forecast(forecast, day_views, len(forecaster.past_errors)))
    # The record that is kept: if two runs issue at once, the first one's.
    return DayForecast(forecast=issued.read_issued(folder), folder=folder, is_new=True, notes=notes)


def _describe_own_forecast(
    forecast: issued.IssuedForecast, views: Iterable[WindowView], known: int
) -> Iterator[str]:
    """Say what a user's table lacks, and where a mean is outside its own band.

    ``known`` is the number of windows whose errors can make bands.
    """
    for view in views:
        for name, values in view.step_covariates.items():
            missing = int(np.isnan(values[: view.horizon]).sum())
            if name.startswith(OWN) and not name.startswith(f"{OWN}@") and missing:
                yield (
                    f"{name.removeprefix(OWN)!r} is not known ahead for {missing} of the "
                    f"{view.horizon} steps of {view.entity}: add them to its table, and forecast "
                    "again with --supersede"
                )
    if without := sum(not entry["day_quantiles"] for entry in forecast.facts["series"]):
        yield describe_missing(without, known)
    points = {entity: forecast.select_points(entity)[issued.METHOD] for entity in forecast.entities}
    bands = {entity: select_band(forecast, entity, BAND_80) for entity in points}
    yield from describe_outside(points, {e: band for e, band in bands.items() if band})


def _find_fitted_until(spec: DatasetSpec) -> datetime:
    """Return where validation ends, on which a model is fitted, too."""
    limits = resolve_spans(spec)
    ends = [end for span, (_, end) in limits.items() if span.split in ("train", "val")]
    return max(ends, default=datetime.min.replace(tzinfo=UTC))


def _describe_news(forecast: issued.IssuedForecast) -> Iterator[str]:
    """Say which series news moves far from the same forecast without news."""
    changes = {
        entity: f"{entity} by {change:+.1%}"
        for entity, change in issued.list_news_changes(forecast).items()
        if abs(change) > LEAST_NEWS_CHANGE
    }
    if changes:
        yield (
            f"news moves {', '.join(changes.values())} against the same forecast without it; "
            f"compevo explain {forecast.origin:%Y-%m-%d} {next(iter(changes))} names the articles"
        )


def _load_daily(
    deployment: Deployment,
    run: Path,
    frames: StoredFrames,
    until: datetime,
    views: Sequence[WindowView],
    log: logging.Logger,
    on_step: OnStep = lambda _: None,
    *,
    is_fresh: bool = False,
) -> tuple[CompEvoForecaster, NewsPool | None, tuple[str, ...], int]:
    """Load a model that has observed all windows whose errors are known by an instant.

    It continues from the state of an earlier night, if ``is_fresh`` only from one by this version.
    Also return the news of ``views``, what a reader should know, and the number of windows.
    """
    dataset = frames.spec.name
    on_step(f"cutting the windows of {dataset} since validation")
    stored = None
    # Windows of a published benchmark are in the asset, and are not past days.
    if deployment.series_store().read_frame(dataset, FrameKind.BENCHMARK) is None:
        first, counts_news = _find_first_later(frames.spec), frames.reads_news
        stored = find_current_windows(deployment, dataset, first, counts_news=counts_news)
    later = frames.build_later_windows(stored)

    on_step(f"loading {run.name}")
    states = open_states(run)
    state = states.find(later, until)
    if state is not None and is_fresh and state.facts["made_by"] != states.version:
        state = None

    # Only windows that are still to be forecast need their news.
    ahead = [w.view for w in state.replay.list_forecast(state.step)] if state else later.views()
    news = read_news(deployment, find_encoder(run), (*views, *ahead), log=log)
    forecaster = CompEvoForecaster.load(run, news, fit=deployment.shared_fits())
    known, forecast = forecaster.catch_up(later, until, states, state, on_step)
    log.info(
        f"{dataset}: errors of {known} windows since validation are known, {forecast} of "
        "them forecast just now"
    )
    is_old = state is not None and state.facts["made_by"] != states.version
    notes = [OLD_STATE.format(dataset=dataset)] if is_old else []
    notes += [f"the kept state {name} was damaged and is learnt again" for name in states.damaged]
    return forecaster, news, tuple(notes), known


def open_states(run: Path) -> Snapshots:
    """Return the states that nights have kept of a run."""
    return Snapshots(RunFolder(run).daily, hash_model(run), fitting_version())


def list_damaged_states(deployment: Deployment, dataset: str) -> list[Path]:
    """Return the damaged states of a data set's current run."""
    if not has_current_run(deployment.layout, dataset):
        return []
    return open_states(find_current_run(deployment.layout, dataset)).list_damaged()


def renew_state(
    deployment: Deployment, dataset: str, day: date | None, *, log: logging.Logger
) -> int:
    """Make the state of daily use again with this version; return the number of its windows."""
    spec = find_daily_spec(deployment, dataset)
    origin = Origin.of(spec, day or find_next_day(deployment, spec), None)
    run = find_current_run(deployment.layout, dataset)
    frames = StoredFrames.read(deployment, spec, reads_news=bool(find_encoder(run)))
    _, _, _, known = _load_daily(deployment, run, frames, origin.until, (), log, is_fresh=True)
    return known


def refuse_implausible(
    forecast: issued.IssuedForecast,
    views: Sequence[WindowView],
    series: Mapping[str, GriddedSeries],
    rules: Rules,
) -> None:
    """Raise DataError for a forecast that cannot be true, so that it is not sealed.

    It must be within ``MOST_SPREADS`` of the nearer one of yesterday and the same time last week,
    and of the published forecast, by the mean distance over its steps. ``series`` are by id.
    """
    finite = forecast.rows.group_by("entity").agg(pl.col("value").is_finite().all())
    is_finite = dict(finite.iter_rows())
    for view in views:
        values_H = forecast.select_points(view.entity)[issued.METHOD]
        grid = series[view.series_id]
        known_end = locate_origin(grid, view.origin_utc) - view.unknown_steps
        week = count_week(view)
        # The spread of the newest week, or of as many steps as a view has if a week has fewer.
        known = grid.filled[max(0, known_end - max(week, view.lookback)) : known_end]
        level = float(np.nanmean(known))
        spread = max(float(np.nanstd(known)), LEAST_SPREAD * abs(level)) or 1.0

        naive_NH = np.stack([_repeat(view, grid, period) for period in (view.seasons.day, week)])
        far_N = np.abs(values_H - naive_NH).mean(axis=1)
        nearest = float(np.nanmin(far_N)) / spread if np.isfinite(far_N).any() else 0.0
        published = values_H if view.published is None else view.published
        far = float(np.abs(values_H - published).mean()) / spread

        low, high = rules.variables.get(view.variable, UNBOUNDED).bounds
        problem, allowed = "", f" ({MOST_SPREADS:g} are allowed)"
        if not is_finite[view.entity]:
            problem = "holds values that are not numbers"
        elif not (low <= values_H.min() and values_H.max() <= high):
            problem = f"leaves the bounds of {view.variable}, {low:g} to {high:g}"
        elif nearest > MOST_SPREADS:
            season = "yesterday" if view.step <= DAY else "the season before"
            far_season = "last week" if view.step < WEEK else "last year"
            problem = f"is {nearest:.1f} spreads from {season} and from {far_season}{allowed}"
        elif far > MOST_SPREADS:
            problem = f"is {far:.1f} spreads from the published forecast{allowed}"
        if problem:
            if is_finite[view.entity]:
                problem += f", {values_H.mean():.5g} {view.unit} on average after {level:.5g},"
            raise DataError(
                f"the forecast of {view.entity} for {forecast.origin:%Y-%m-%d} {problem} and was "
                "not sealed: look at the newest published and measured values; the next run tries "
                "again"
            )


def count_week(view: WindowView) -> int:
    """Return the steps of a week; of a year if a step is a week or longer."""
    return WEEK // view.step if view.step < WEEK else count_year(view.step)


def _repeat(view: WindowView, grid: GriddedSeries, period: int) -> FloatArray:
    """Return the newest values (H,) known to a view that are whole periods before its steps."""
    origin = locate_origin(grid, view.origin_utc)
    known_end = origin - view.unknown_steps
    return repeat_known(grid, origin, known_end, period, view.horizon)


def _compare_with_stored(
    deployment: Deployment,
    spec: DatasetSpec,
    origin: Origin,
    forecast: issued.IssuedForecast,
    run: Path | None,
) -> tuple[str, ...]:
    """Return what would be different today; the record stays as it is."""
    notes = []
    had_news = forecast.facts["newest"].get("article") is not None
    try:
        frames = StoredFrames.read(deployment, spec, reads_news=had_news)
        views = frames.build_views(origin).views
        revised = not views or issued.hash_views(views) != forecast.facts["views_hash"]
    except CompEvoError as error:
        notes.append(f"its inputs are no longer stored: {error}")
    else:
        if revised:
            notes.append(
                "the stored data were revised since: views made of them today have another hash"
            )

    if run is not None or has_current_run(deployment.layout, spec.name):
        run = run or find_current_run(deployment.layout, spec.name)
        model_hash = hash_model(run)
        if model_hash != forecast.facts["artifact_hash"]:
            notes.append(
                f"model {model_hash[:16]} would forecast it today; it was issued by "
                f"{str(forecast.facts['artifact_hash'])[:16]}"
            )
    return tuple(notes)
