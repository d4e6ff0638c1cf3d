"""What surrounds a window's numbers: covariates, published forecasts and candidate news, all before the origin.

What belongs here: look-ups that apply the availability rule (style, rule 5). What does not: cutting series, features.
A covariate enters a view under ``<name>_lag<d>``, d days before the target day (lag 0 is a forecast for the day).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.calendar import calendar_for
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.news import ArticleIndex
from compevo_core.data.series import COVARIATE_SCHEMA, PUBLISHED_SCHEMA, validate_frame
from compevo_core.data.window import HORIZON, WindowView
from compevo_core.errors import DataError

NewsCutoff = Literal["origin", "horizon-end"]
MEDIAN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of one window: which series, split and subsets it belongs to."""

    series_id: str
    entity: str
    variable: str
    unit: str
    split: str
    subsets: tuple[str, ...] = ()
    fold: int = -1


class Covariates:
    """Daily covariates by entity and date."""

    def __init__(self, frame: pl.DataFrame | None, days: int) -> None:
        """Index the frame; ``days`` is the largest lag used."""
        self._days = days
        self._rows: dict[tuple[str, date], list[tuple[str, float, datetime]]] = {}
        if frame is None:
            return
        known = validate_frame(frame, COVARIATE_SCHEMA, "covariate frame").filter(
            pl.col("value").is_not_null()
        )
        keys = ["entity", "name", "valid_date", "available_at"]
        if known.select(keys).is_duplicated().any():
            raise DataError(
                "covariate frame has two values for one entity, name, date and availability; keep one"
            )
        for entity, name, day, value, available, _ in known.sort(keys).iter_rows():
            self._rows.setdefault((entity, day), []).append((name, value, available))

    def before(self, entity: str, target: date, origin_utc: datetime) -> dict[str, float]:
        """The newest value of each name and lag that was available before the origin."""
        found: dict[str, float] = {}
        for lag in range(self._days + 1):
            for name, value, available in self._rows.get(
                (entity, target - timedelta(days=lag)), ()
            ):
                if available < origin_utc:
                    found[f"{name}_lag{lag}"] = value
        return found


class Published:
    """Published forecasts (the median) by entity."""

    def __init__(self, frame: pl.DataFrame | None, step: timedelta) -> None:
        """Index the rows of quantile 0.5."""
        self._step = step
        self._rows: dict[str, dict[datetime, list[tuple[datetime, float]]]] = {}
        if frame is None:
            return
        known = validate_frame(frame, PUBLISHED_SCHEMA, "published forecast frame")
        known = known.filter((pl.col("quantile") == MEDIAN) & pl.col("value").is_not_null())
        for entity, start, value, available, _, _ in known.sort(
            "entity", "start_utc", "available_at"
        ).iter_rows():
            self._rows.setdefault(entity, {}).setdefault(start, []).append((available, value))

    def before(self, entity: str, origin_utc: datetime) -> FloatArray | None:
        """The newest forecast of all 48 steps that was out before the origin, or None if any step lacks one."""
        rows = self._rows.get(entity)
        if rows is None:
            return None
        values = []
        for i in range(HORIZON):
            out = [
                value
                for available, value in rows.get(origin_utc + i * self._step, ())
                if available < origin_utc
            ]
            if not out:
                return None
            values.append(out[-1])
        return np.array(values)


class Context:
    """Makes views: numbers of a cut plus all that was known at its origin."""

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
        self._covariates = Covariates(covariates, spec.covariate_days)
        self._published = Published(published, spec.step)
        self._articles = articles
        self._indices: dict[tuple[str, ...], ArticleIndex] = {}
        self._cutoff = news_cutoff

    def view(self, names: Names, origin_utc: datetime, x: FloatArray, n_filled: int) -> WindowView:
        """One view; ``leaky`` is set where the news rule was relaxed on purpose."""
        spec = self._spec
        calendar = calendar_for(origin_utc, spec.place(names.entity))
        return WindowView(
            window_id=f"{spec.name}|{names.series_id}|{origin_utc:%Y%m%dT%H%MZ}",
            dataset=spec.name,
            series_id=names.series_id,
            entity=names.entity,
            variable=names.variable,
            unit=names.unit,
            step_minutes=int(spec.step / timedelta(minutes=1)),
            origin_utc=origin_utc,
            x=x,
            calendar=calendar,
            covariates=self._covariates.before(names.entity, calendar.target_date, origin_utc),
            published=self._published.before(names.entity, origin_utc),
            candidate_ids=self._candidates(names.entity, origin_utc),
            split=names.split,
            fold=names.fold,
            subsets=names.subsets,
            leaky=self._cutoff != "origin",
            n_filled=n_filled,
        )

    def _candidates(self, entity: str, origin_utc: datetime) -> tuple[str, ...]:
        if self._articles is None:
            return ()
        words: Sequence[str] = self._spec.keywords.get(entity, ())
        key = tuple(words)
        if key not in self._indices:
            self._indices[key] = ArticleIndex(self._articles, words or None)
        end = origin_utc if self._cutoff == "origin" else origin_utc + HORIZON * self._spec.step
        return tuple(
            self._indices[key].before(end, self._spec.news_lookback, self._spec.news_limit)
        )
