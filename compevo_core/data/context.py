"""What surrounds a window's numbers: covariates, published forecasts and candidate news.

What belongs here: look-ups that return only what was available before the origin, or earlier where
a view was made earlier. What does not: cutting series (``data.cutting``), values by step
(``data.step_values``), candidate news (``data.candidates``), features (``baselines.features``).

A daily covariate enters a view under ``<name>_lag<d>``, d days before the target day (lag 0 is a
forecast for the day itself). A covariate by step enters as ``<name>``, and as ``<name>_lag1`` for
the same steps of the season before; not at all where both are unknown at every step.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.calendar import build_calendar
from compevo_core.data.candidates import Articles, CandidateFinder, NewsCutoff
from compevo_core.data.cutting import GriddedSeries, InputValues
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.schemas import COVARIATE_SCHEMA, validate_frame
from compevo_core.data.step_values import MEDIAN, PUBLISHED, StepValues, find_published_errors
from compevo_core.data.view import WindowView, count_season_steps, find_known_before
from compevo_core.errors import DataError


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

    def find_before(self, entity: str, target: date, before: datetime) -> dict[str, float]:
        """Return the newest value of each name and lag that was available before an instant."""
        values: dict[str, float] = {}
        for lag in range(self._max_lag_days + 1):
            day = target - timedelta(days=lag)
            # Rows are sorted by availability, so a revision replaces the value it revises.
            for name, value, available in self._rows.get((entity, day), ()):
                if available < before:
                    values[f"{name}_lag{lag}"] = value
        return values


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
    ) -> None:
        """Index every frame once."""
        self._spec = spec
        self._covariates = CovariateIndex(covariates, spec.covariate_days)
        self._published = StepValues.from_published(published, spec.step)
        self._step_covariates = StepValues(step_covariates, spec.step)

        self._candidates = CandidateFinder(spec, articles, news_cutoff)
        self._cutoff = news_cutoff

    def count_articles(self) -> int:
        """Return the number of articles that candidates were found among."""
        return self._candidates.count_articles()

    def build_view(
        self, labels: WindowLabels, inputs: InputValues, series: GriddedSeries | None = None
    ) -> WindowView:
        """Return one view; ``leaky`` is set where the news rule was relaxed on purpose.

        Args:
            labels: whose window it is.
            inputs: its numbers.
            series: what the numbers were cut from, for the errors of a published forecast; without
                it the view has none.
        """
        spec = self._spec
        origin_utc = inputs.origin_utc
        until = origin_utc - inputs.unknown_steps * spec.step
        before = find_known_before(origin_utc, until)
        calendar = build_calendar(origin_utc, spec.find_place(labels.entity))

        window_id = f"{spec.name}|{labels.series_id}|{origin_utc:%Y%m%dT%H%MZ}"
        if inputs.unknown_steps:
            window_id += f"|known-{until:%Y%m%dT%H%MZ}"

        return WindowView(
            window_id=window_id,
            dataset=spec.name,
            series_id=labels.series_id,
            entity=labels.entity,
            variable=labels.variable,
            unit=labels.unit,
            step_minutes=int(spec.step / timedelta(minutes=1)),
            origin_utc=origin_utc,
            x=inputs.x,
            calendar=calendar,
            covariates=self._covariates.find_before(labels.entity, calendar.target_date, before),
            published=self._find_published(labels.entity, origin_utc, before),
            candidate_ids=self._candidates.find(labels.entity, before),
            split=labels.split,
            fold=labels.fold,
            subsets=labels.subsets,
            leaky=self._cutoff != "origin",
            n_filled=inputs.n_filled,
            unknown_steps=inputs.unknown_steps,
            step_covariates=self._find_step_covariates(labels.entity, inputs, before, series),
            task=spec.task,
        )

    def _find_published(
        self, entity: str, origin_utc: datetime, before: datetime
    ) -> FloatArray | None:
        """Return the newest median (H,); None if any step lacks one.

        A part of a forecast cannot be compared with whole ones.
        """
        values = self._published.find(entity, MEDIAN, origin_utc, before)
        return values if np.isfinite(values).all() else None

    def _find_step_covariates(
        self, entity: str, inputs: InputValues, before: datetime, series: GriddedSeries | None
    ) -> dict[str, FloatArray]:
        """Return covariates by step, and what the published forecast said besides its median."""
        found: dict[str, FloatArray] = {}
        origin_utc = inputs.origin_utc
        season = count_season_steps(self._spec.step) * self._spec.step

        for name in self._step_covariates.names(entity):
            today = self._step_covariates.find(entity, name, origin_utc, before)
            yesterday = self._step_covariates.find(entity, name, origin_utc - season, before)
            # What begins to be stored one day, as forecast weather does, leaves the windows from
            # before it as they were, and with them every model that was trained on them.
            if np.isfinite([today, yesterday]).any():
                found |= {name: today, f"{name}_lag1": yesterday}
        if not self._spec.published_evidence or series is None:
            return found

        for quantile in self._published.names(entity):
            if quantile != MEDIAN:
                found[f"{PUBLISHED}_q{quantile}"] = self._published.find(
                    entity, quantile, origin_utc, before
                )
        found[f"{PUBLISHED}_lag1"] = self._published.find(
            entity, MEDIAN, origin_utc - season, before - season
        )
        return found | find_published_errors(
            self._published,
            series,
            entity,
            origin_utc,
            origin_utc - inputs.unknown_steps * self._spec.step,
            before,
        )
