"""What surrounds a window's numbers: covariates, published forecasts and candidate news.

What belongs here: look-ups that return only what was available when a view was made; the errors
that a published forecast made on days before; the instants of the newest things that views know.
What does not: cutting series (``data.cutting``), candidate news (``data.candidates``), features and
models (``baselines``).

A daily covariate enters a view under ``<name>_lag<d>``, d days before the target day. A covariate
by step enters as ``<name>``, and as ``<name>_lag1`` for the same steps of the season before; the
season of those that a user's table gives (``OWN``) is the one that changes are counted from. Where
a data set asks for its past, means over the last seasons enter as ``<name>_mean14``, and the
series' own values as ``past``; where it asks for its year, last year's values and the holidays of
each step enter as own covariates.

Shapes: H horizon, S earlier seasons, V values of one entity and name, T steps from the oldest on.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray, IntArray, mean_known
from compevo_core.data.calendar import Place, build_calendar, count_holidays
from compevo_core.data.candidates import Articles, CandidateFinder, NewsCutoff
from compevo_core.data.cutting import GriddedSeries, InputValues
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.schemas import (
    COVARIATE_SCHEMA,
    PUBLISHED_SCHEMA,
    STEP_COVARIATE_SCHEMA,
    UTC_US,
    validate_frame,
)
from compevo_core.data.steps import DAY, count_steps, count_year, is_calendar_step, shift
from compevo_core.data.view import (
    DEFAULT_STEPS,
    WindowView,
    count_season_steps,
    find_known_before,
    find_season,
    find_seasons,
)
from compevo_core.errors import DataError

MEDIAN = "0.5"
ERROR_LAGS = (1, 2)  # seasons back whose errors enter a view as they are
ERROR_MEANS = (7, 28)  # seasons over which known errors are averaged
PUBLISHED = "published"
OWN = "own_"  # what the names of covariates by step begin with that a user's own table gives

LAST_YEAR = f"{OWN}@last_year"
"""Own values of these steps a year before; no column of a table has such a name."""
HOLIDAY = f"{OWN}@holiday"  # public holidays in each step

PAST = "past"
PAST_LAGS = (1, 2, 7)
"""Seasons back whose own values enter a view: yesterday, the day before, the same day last week."""
PAST_SEASONS = 14  # seasons over which own values and covariates are averaged: a fortnight of days
PAST_MEAN = f"_mean{PAST_SEASONS}"

# How many seasons before its origin the oldest values of a view lie
SEASONS_BACK = max(*ERROR_LAGS, *ERROR_MEANS)

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class StepValues:
    """Values by entity, name and interval, each with the instant from which it was available."""

    def __init__(
        self, frame: pl.DataFrame | None, step: timedelta, horizon: int = DEFAULT_STEPS
    ) -> None:
        """Index a frame of ``STEP_COVARIATE_SCHEMA``, with rows in any order; None: no values.

        DataError if the frame breaks its contract, or holds two values for one key.
        """
        self._step = step
        self._horizon = horizon
        # Of each entity and name, by interval and then by availability: microseconds since 1970 of
        # both, and the values.
        self._known: dict[tuple[str, str], tuple[IntArray, IntArray, FloatArray]] = {}
        if frame is None:
            return

        known = validate_frame(frame, STEP_COVARIATE_SCHEMA, "covariate frame")
        known = known.drop_nulls("value")
        keys = ["entity", "name", "start_utc", "available_at"]
        if known.select(keys).is_duplicated().any():
            raise DataError(f"covariates have two values for one {', '.join(keys)}; keep one")
        known = known.sort(keys)
        for (entity, name), part in known.partition_by("entity", "name", as_dict=True).items():
            self._known[entity, name] = (
                part["start_utc"].dt.epoch("us").to_numpy(),
                part["available_at"].dt.epoch("us").to_numpy(),
                part["value"].to_numpy(),
            )

    def names(self, entity: str) -> list[str]:
        """Return the names that an entity has values of."""
        return sorted(name for other, name in self._known if other == entity)

    def find(self, entity: str, name: str, origin_utc: datetime, before: datetime) -> FloatArray:
        """Return the newest value (H,) of each step that was available before an instant.

        NaN where none was. A revision replaces the value that it revises.
        """
        return np.asarray(self.find_seasons(entity, name, origin_utc, before, 0, 1)[0])

    def find_seasons(
        self,
        entity: str,
        name: str,
        origin_utc: datetime,
        before: datetime,
        seasons: int,
        season: int,
    ) -> FloatArray:
        """Return the same with the steps of earlier seasons (1 + seasons, H), the newest first.

        ``season`` is the length of one in steps.
        """
        if (entity, name) not in self._known:
            return np.full((seasons + 1, self._horizon), np.nan)

        places = range(-seasons * season, self._horizon)
        if is_calendar_step(self._step):
            moments = [shift(origin_utc, place, self._step) for place in places]
            start_T = np.array([_count_microseconds(moment) for moment in moments])
        else:
            first, step = _count_microseconds(origin_utc), self._step // _MICROSECOND
            start_T = first + step * np.array(places)

        start_V, available_V, value_V = self._known[entity, name]
        rows = slice(*np.searchsorted(start_V, [start_T[0], start_T[-1] + 1]))
        in_time = available_V[rows] < _count_microseconds(before)
        start_R, value_R = start_V[rows][in_time], value_V[rows][in_time]

        # Sorted by availability: of the values of an interval, the last one in time is the newest.
        values_T = np.full(len(start_T), np.nan)
        if len(start_R):
            last_T = np.searchsorted(start_R, start_T, side="right") - 1
            is_known_T = start_R[last_T] == start_T  # before the first it is the last, and later
            values_T[is_known_T] = value_R[last_T[is_known_T]]
        return np.stack(
            [values_T[back * season :][: self._horizon] for back in range(seasons, -1, -1)]
        )


def find_oldest_needed(origin_utc: datetime, step: timedelta) -> datetime:
    """Return the first interval whose published or covariate values a view of an origin holds."""
    return origin_utc - max(SEASONS_BACK * count_season_steps(step), find_season(step)) * step


def _observe(
    series: GriddedSeries, start_utc: datetime, until: datetime, horizon: int
) -> FloatArray:
    """Return the values (H,) from a start on that were measured until an instant, else NaN."""
    first = count_steps(series.first_utc, start_utc, series.step)
    known_end = min(count_steps(series.first_utc, until, series.step), len(series))

    values = np.full(horizon, np.nan)
    row_H = first + np.arange(horizon)
    is_known_H = (row_H >= 0) & (row_H < known_end)
    values[is_known_H] = series.observed[row_H[is_known_H]]
    return values


def _count_microseconds(instant: datetime) -> int:
    return (instant - _EPOCH_UTC) // _MICROSECOND


def index_daily(frame: pl.DataFrame | None) -> StepValues:
    """Index a frame of ``COVARIATE_SCHEMA``: a day is a step, from midnight UTC."""
    if frame is not None:
        frame = validate_frame(frame, COVARIATE_SCHEMA, "covariate frame")
        frame = frame.with_columns(start_utc=pl.col("valid_date").cast(UTC_US))
    return StepValues(frame, DAY, 1)


class ContextBuilder:
    """Builds views: the numbers of a window plus all that was known when the view was made."""

    def __init__(
        self,
        spec: DatasetSpec,
        covariates: pl.DataFrame | None,
        articles: Articles | None,
        published: pl.DataFrame | None,
        news_cutoff: NewsCutoff = "origin",
        step_covariates: pl.DataFrame | None = None,
        *,
        spreads_news: bool = False,
    ) -> None:
        """Index every frame once; with ``spreads_news`` no domain or story crowds others out."""
        self._spec = spec
        self._covariates = index_daily(covariates)
        if published is not None:
            published = validate_frame(published, PUBLISHED_SCHEMA, "published forecast frame")
            published = published.with_columns(name=pl.col("quantile").cast(pl.String))
        self._published = StepValues(published, spec.step, spec.horizon_steps)
        self._step_covariates = StepValues(step_covariates, spec.step, spec.horizon_steps)
        self.candidates = CandidateFinder(spec, articles, news_cutoff, is_spread=spreads_news)
        self._cutoff = news_cutoff
        self._holidays: dict[tuple[Place, datetime], FloatArray] = {}  # which series share

    def build_view(
        self,
        series: GriddedSeries,
        entity: str,
        inputs: InputValues,
        split: str,
        subsets: tuple[str, ...] = (),
    ) -> WindowView:
        """Return one view; ``leaky`` is set where the news rule was relaxed on purpose.

        ``series`` is what the numbers were cut from, for the errors of a published forecast.
        """
        spec = self._spec
        origin_utc = inputs.origin_utc
        until = shift(origin_utc, -inputs.unknown_steps, spec.step)
        before = find_known_before(origin_utc, until)
        calendar = build_calendar(origin_utc, spec.find_place(entity), spec.horizon)
        median_H = self._published.find(entity, MEDIAN, origin_utc, before)
        # The newest daily value of each name and lag, two days at most, that was available in time.
        daily: dict[str, float] = {}
        days = (datetime.combine(calendar.target_date, time(), UTC), before, 2, 1)
        for name in self._covariates.names(entity):
            lags = enumerate(self._covariates.find_seasons(entity, name, *days)[:, 0].tolist())
            daily |= {f"{name}_lag{lag}": value for lag, value in lags if np.isfinite(value)}

        window_id = f"{spec.name}|{series.series_id}|{origin_utc:%Y%m%dT%H%MZ}"
        if inputs.unknown_steps:
            window_id += f"|known-{until:%Y%m%dT%H%MZ}"

        return WindowView(
            window_id=window_id,
            dataset=spec.name,
            step_minutes=int(spec.step / timedelta(minutes=1)),
            origin_utc=origin_utc,
            x=inputs.x,
            past=inputs.past,
            calendar=calendar,
            covariates=daily,
            # A part of a forecast cannot be compared with whole ones.
            published=median_H if np.isfinite(median_H).all() else None,
            candidate_ids=self.candidates.find(entity, before),
            leaky=self._cutoff != "origin",
            n_filled=inputs.n_filled,
            unknown_steps=inputs.unknown_steps,
            step_covariates=self._find_step_covariates(entity, inputs, before, series),
            task=spec.task,
            horizon=spec.horizon_steps,
            bounds=spec.bounds,
            season=spec.season_steps,
            series_id=series.series_id,
            entity=entity,
            variable=series.variable,
            unit=series.unit,
            split=split,
            subsets=subsets,
        )

    def _find_step_covariates(
        self, entity: str, inputs: InputValues, before: datetime, series: GriddedSeries
    ) -> dict[str, FloatArray]:
        """Return covariates by step, own past values, and a published forecast's other quantiles.

        Its errors, truth minus forecast, are those that a forecaster of each earlier season knew of
        the same steps: the forecast was available as many seasons ``before``, and the truth was
        measured when the view was made; NaN where it was not.
        """
        by_step: dict[str, FloatArray] = {}
        spec, origin_utc, step = self._spec, inputs.origin_utc, self._spec.step
        seasons = find_seasons(step, spec.lookback_steps, spec.horizon_steps, spec.season_steps)
        most_back = PAST_SEASONS if spec.past_evidence else 1
        for name in self._step_covariates.names(entity):
            season = seasons.reference if name.startswith(OWN) else seasons.day
            known = self._step_covariates.find_seasons(
                entity, name, origin_utc, before, most_back, season
            )
            # What begins to be stored one day, as forecast weather does, leaves the windows from
            # before it as they were, and with them every model that was trained on them.
            if np.isfinite(known[:2]).any():
                by_step |= {name: known[0], f"{name}_lag1": known[1]}
                if spec.past_evidence:
                    by_step[f"{name}{PAST_MEAN}"] = mean_known(known[1:], axis=0)

        if spec.year_evidence:
            by_step |= self._find_last_year(inputs, series, seasons.reference)
            by_step |= self._find_holidays(entity, origin_utc, seasons.reference)
        if not spec.past_evidence and not spec.published_evidence:
            return by_step

        until = origin_utc - inputs.unknown_steps * step
        count = SEASONS_BACK if spec.published_evidence else PAST_SEASONS
        backs = [number * seasons.day * step for number in range(1, count + 1)]
        past = [_observe(series, origin_utc - back, until, spec.horizon_steps) for back in backs]
        past_SH = np.stack(past)
        if spec.past_evidence:
            by_step |= {f"{PAST}_lag{lag}": past_SH[lag - 1] for lag in PAST_LAGS}
            by_step[f"{PAST}{PAST_MEAN}"] = mean_known(past_SH[:PAST_SEASONS], axis=0)
        if not spec.published_evidence:
            return by_step

        find = partial(self._published.find, entity)
        for quantile in self._published.names(entity):
            if quantile != MEDIAN:
                by_step[f"{PUBLISHED}_q{quantile}"] = find(quantile, origin_utc, before)
        published_SH = np.stack([find(MEDIAN, origin_utc - back, before - back) for back in backs])
        error_SH = past_SH - published_SH
        by_step[f"{PUBLISHED}_lag1"] = published_SH[0]
        by_step |= {f"{PUBLISHED}_error_lag{lag}": error_SH[lag - 1] for lag in ERROR_LAGS}
        return by_step | {
            f"{PUBLISHED}_error_mean{n}": mean_known(error_SH[:n], axis=0) for n in ERROR_MEANS
        }

    def _find_last_year(
        self, inputs: InputValues, series: GriddedSeries, reference: int
    ) -> dict[str, FloatArray]:
        """Return what was measured at these steps a year before, and the season before those."""
        year, horizon = count_year(series.step), self._spec.horizon_steps
        if year <= max(reference, self._spec.lookback_steps):
            return {}  # the inputs hold them
        until = shift(inputs.origin_utc, -inputs.unknown_steps, series.step)
        now_H, before_H = (
            _observe(series, shift(inputs.origin_utc, -back, series.step), until, horizon)
            for back in (year, year + reference)
        )
        if not np.isfinite([now_H, before_H]).any():
            return {}
        return {LAST_YEAR: now_H, f"{LAST_YEAR}_lag1": before_H}

    def _find_holidays(
        self, entity: str, origin_utc: datetime, reference: int
    ) -> dict[str, FloatArray]:
        """Return the public holidays in each step, and in each step of the season before.

        A step within a day counts one where its day is a holiday.
        """
        place = self._spec.find_place(entity)
        if not place.country:
            return {}
        key, step, horizon = (place, origin_utc), self._spec.step, self._spec.horizon_steps
        if key not in self._holidays:
            counts = [
                count_holidays(shift(origin_utc, i, step), shift(origin_utc, i + 1, step), place)
                for i in range(-reference, horizon)
            ]
            self._holidays[key] = np.array(counts, dtype=np.float64)
        counts_T = self._holidays[key]
        return {HOLIDAY: counts_T[reference:], f"{HOLIDAY}_lag1": counts_T[:horizon]}


class NewestKnown(NamedTuple):
    """Instants of the newest things that views of one origin know, UTC; None where is none."""

    values: dict[str, datetime | None]  # by entity, the end of the newest measured interval
    publication: datetime | None  # when the newest published forecast of the target steps came out
    article: datetime | None  # when the newest article became available


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
        own = series.filter(series_id=view.series_id, variable=view.variable, flag="observed")
        known = own.filter(pl.col("start_utc") < view.information_until)
        newest = cast(datetime | None, known["start_utc"].max())
        # Finer than the grid, as a sensor of minutes may be: its interval ends within the step.
        values[view.entity] = newest and min(newest + view.step, view.information_until)
    publication, article = (
        None if frame is None else cast(datetime | None, frame.filter(rule)["available_at"].max())
        for frame, rule in ((published, is_known & is_of_views & is_target), (articles, is_known))
    )
    return NewestKnown(values, publication, article)
