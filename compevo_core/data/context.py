"""What surrounds a window's numbers: covariates, published forecasts and candidate news.

What belongs here: look-ups that return only what was available before the origin. What does not:
cutting series (``data.cutting``), features (``baselines.features``).

A covariate enters a view under ``<name>_lag<d>``, d days before the target day (lag 0 is a forecast
for the day itself).
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.calendar import build_calendar
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.news import ArticleIndex
from compevo_core.data.schemas import COVARIATE_SCHEMA, PUBLISHED_SCHEMA, validate_frame
from compevo_core.data.window import HORIZON, WindowView
from compevo_core.errors import DataError

NewsCutoff = Literal["origin", "horizon-end"]
_MEDIAN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLabels:
    """Which series, split, fold and subsets a window belongs to."""

    series_id: str
    entity: str
    variable: str
    unit: str
    split: str
    subsets: tuple[str, ...] = ()
    fold: int = -1


class CovariateIndex:
    """Daily covariates by entity and date."""

    def __init__(self, frame: pl.DataFrame | None, max_lag_days: int) -> None:
        """Index the frame; None means no covariates.

        Raises:
            DataError: the frame breaks its contract or holds two values for one key.
        """
        self._max_lag_days = max_lag_days
        self._rows: dict[tuple[str, date], list[tuple[str, float, datetime]]] = {}
        if frame is None:
            return

        known = validate_frame(frame, COVARIATE_SCHEMA, "covariate frame").filter(
            pl.col("value").is_not_null()
        )
        keys = ["entity", "name", "valid_date", "available_at"]
        if known.select(keys).is_duplicated().any():
            raise DataError(
                "covariate frame has two values for one entity, name, date and availability; "
                "keep one"
            )

        for entity, name, day, value, available, _ in known.sort(keys).iter_rows():
            self._rows.setdefault((entity, day), []).append((name, value, available))

    def find_before(self, entity: str, target: date, origin_utc: datetime) -> dict[str, float]:
        """Return the newest value of each name and lag that was available before the origin."""
        values: dict[str, float] = {}
        for lag in range(self._max_lag_days + 1):
            day = target - timedelta(days=lag)
            # Rows are sorted by availability, so a revision replaces the value it revises.
            for name, value, available in self._rows.get((entity, day), ()):
                if available < origin_utc:
                    values[f"{name}_lag{lag}"] = value
        return values


class PublishedForecastIndex:
    """Published median forecasts by entity."""

    def __init__(self, frame: pl.DataFrame | None, step: timedelta) -> None:
        """Index the rows of quantile 0.5; None means no published forecasts."""
        self._step = step
        self._rows: dict[str, dict[datetime, list[tuple[datetime, float]]]] = {}
        if frame is None:
            return

        known = validate_frame(frame, PUBLISHED_SCHEMA, "published forecast frame")
        # The median is what a point forecast is scored against; other quantiles stay unused.
        medians = known.filter((pl.col("quantile") == _MEDIAN) & pl.col("value").is_not_null())

        ordered = medians.sort("entity", "start_utc", "available_at")
        for entity, start, value, available, _, _ in ordered.iter_rows():
            self._rows.setdefault(entity, {}).setdefault(start, []).append((available, value))

    def find_before(self, entity: str, origin_utc: datetime) -> FloatArray | None:
        """Return the newest forecast (48,) that was out before the origin.

        None if any step lacks one: a part of a forecast cannot be compared with whole ones.
        """
        rows = self._rows.get(entity)
        if rows is None:
            return None

        values = []
        for i in range(HORIZON):
            issued = [
                value
                for available, value in rows.get(origin_utc + i * self._step, ())
                if available < origin_utc
            ]
            if not issued:
                return None
            values.append(issued[-1])
        return np.array(values)


class ContextBuilder:
    """Builds views: the numbers of a window plus all that was known at its origin."""

    def __init__(
        self,
        spec: DatasetSpec,
        covariates: pl.DataFrame | None,
        articles: pl.DataFrame | None,
        published: pl.DataFrame | None,
        news_cutoff: NewsCutoff,
    ) -> None:
        """Index every frame once."""
        self._spec = spec
        self._covariates = CovariateIndex(covariates, spec.covariate_days)
        self._published = PublishedForecastIndex(published, spec.step)

        self._articles = articles
        self._article_indices: dict[tuple[str, tuple[str, ...]], ArticleIndex] = {}
        self._cutoff = news_cutoff

    def build_view(
        self, labels: WindowLabels, origin_utc: datetime, x: FloatArray, n_filled: int
    ) -> WindowView:
        """Return one view; ``leaky`` is set where the news rule was relaxed on purpose."""
        spec = self._spec
        calendar = build_calendar(origin_utc, spec.find_place(labels.entity))
        covariates = self._covariates.find_before(labels.entity, calendar.target_date, origin_utc)

        return WindowView(
            window_id=f"{spec.name}|{labels.series_id}|{origin_utc:%Y%m%dT%H%MZ}",
            dataset=spec.name,
            series_id=labels.series_id,
            entity=labels.entity,
            variable=labels.variable,
            unit=labels.unit,
            step_minutes=int(spec.step / timedelta(minutes=1)),
            origin_utc=origin_utc,
            x=x,
            calendar=calendar,
            covariates=covariates,
            published=self._published.find_before(labels.entity, origin_utc),
            candidate_ids=self._find_candidates(labels.entity, origin_utc),
            split=labels.split,
            fold=labels.fold,
            subsets=labels.subsets,
            leaky=self._cutoff != "origin",
            n_filled=n_filled,
        )

    def _find_candidates(self, entity: str, origin_utc: datetime) -> tuple[str, ...]:
        if self._articles is None:
            return ()

        # Entities with the same filters share an index: filtering reads every title and body.
        spec = self._spec
        country = spec.find_place(entity).country if spec.news_of_country else ""
        key = (country, spec.keywords.get(entity, ()))
        if key not in self._article_indices:
            self._article_indices[key] = ArticleIndex(
                self._articles, key[1] or None, languages=spec.news_languages, country=country
            )

        # "horizon-end" copies the leaky prompts of published work, to measure what the leak gives.
        end = origin_utc if self._cutoff == "origin" else origin_utc + HORIZON * spec.step
        return tuple(
            self._article_indices[key].find_before(
                end,
                spec.news_lookback,
                spec.news_limit,
                fewest=spec.news_fewest,
                longest_lookback=spec.news_longest_lookback,
            )
        )
