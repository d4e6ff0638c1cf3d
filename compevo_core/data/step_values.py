"""Values by target step that were known before an origin: published forecasts, covariates by step.

What belongs here: look-ups by entity, name and interval that return the newest value of each that
was available in time, and the errors that a published forecast made on days before. What does not:
daily covariates and news (``data.context``), models of these errors (``baselines``).

Shapes: H horizon (48), V values of one entity and name.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.cutting import GriddedSeries
from compevo_core.data.schemas import PUBLISHED_SCHEMA, STEP_COVARIATE_SCHEMA, validate_frame
from compevo_core.data.view import HORIZON, count_season_steps
from compevo_core.errors import DataError

MEDIAN = "0.5"
ERROR_LAGS = (1, 2)
"""Seasons back whose errors enter a view as they are."""
ERROR_MEANS = (7, 28)
"""Seasons over which known errors are averaged."""
PUBLISHED = "published"

SEASONS_BACK = max(*ERROR_LAGS, *ERROR_MEANS)
"""How many seasons before its origin the oldest values lie that a view holds anything of."""

_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Issued:
    """All values of one entity and name, by interval and then by availability.

    Times are in microseconds since 1970.
    """

    start_V: IntArray
    available_V: IntArray
    value_V: FloatArray

    def find(self, start_H: IntArray, before: int) -> FloatArray:
        """Return the newest value (H,) of each interval that was available before an instant."""
        low_H = np.searchsorted(self.start_V, start_H, side="left")
        high_H = np.searchsorted(self.start_V, start_H, side="right")
        values = np.full(len(start_H), np.nan)

        # Sorted by availability: of the values of an interval, the last one in time is the newest.
        for issue in range(int((high_H - low_H).max(initial=0))):
            step = np.flatnonzero(low_H + issue < high_H)
            row = low_H[step] + issue
            in_time = self.available_V[row] < before
            values[step[in_time]] = self.value_V[row[in_time]]
        return values


class StepValues:
    """Values by entity, name and interval, each with the instant from which it was available."""

    def __init__(self, frame: pl.DataFrame | None, step: timedelta) -> None:
        """Index a frame of ``STEP_COVARIATE_SCHEMA``; None means no values.

        Raises:
            DataError: the frame breaks its contract, or holds two values for one key.
        """
        self._step = step
        self._issued: dict[tuple[str, str], _Issued] = {}
        if frame is None:
            return

        known = validate_frame(frame, STEP_COVARIATE_SCHEMA, "step covariate frame").filter(
            pl.col("value").is_not_null()
        )
        keys = ["entity", "name", "start_utc", "available_at"]
        if known.select(keys).is_duplicated().any():
            raise DataError(
                "step covariate frame has two values for one entity, name, interval and "
                "availability; keep one"
            )

        parts = known.sort(keys).partition_by("entity", "name", as_dict=True)
        for (entity, name), part in parts.items():
            self._issued[entity, name] = _Issued(
                part["start_utc"].dt.epoch("us").to_numpy(),
                part["available_at"].dt.epoch("us").to_numpy(),
                part["value"].to_numpy(),
            )

    @classmethod
    def from_published(cls, frame: pl.DataFrame | None, step: timedelta) -> "StepValues":
        """Index a frame of ``PUBLISHED_SCHEMA``; the name of a value is its quantile."""
        if frame is None:
            return cls(None, step)

        known = validate_frame(frame, PUBLISHED_SCHEMA, "published forecast frame")
        return cls(known.with_columns(pl.col("quantile").cast(pl.String).alias("name")), step)

    def names(self, entity: str) -> list[str]:
        """Return the names that an entity has values of."""
        return sorted(name for other, name in self._issued if other == entity)

    def find(self, entity: str, name: str, origin_utc: datetime, before: datetime) -> FloatArray:
        """Return the newest value (H,) of each step that was available before an instant.

        NaN where none was. A revision replaces the value that it revises.
        """
        issued = self._issued.get((entity, name))
        if issued is None:
            return np.full(HORIZON, np.nan)

        step = self._step // _MICROSECOND
        start_H = _count_microseconds(origin_utc) + step * np.arange(HORIZON)
        return issued.find(start_H, _count_microseconds(before))


def find_published_errors(
    published: StepValues,
    series: GriddedSeries,
    entity: str,
    origin_utc: datetime,
    information_until: datetime,
    before: datetime,
) -> dict[str, FloatArray]:
    """Return what is known of a published forecast's errors, truth minus forecast, by step (H,).

    An error of an earlier season stands at the step of the same place in its own season, as it was
    for a forecaster who then stood where this one stands now. It counts where its truth was
    measured by ``information_until``; NaN where no season has one.

    Args:
        published: forecasts by quantile.
        series: the measured values.
        entity: whose forecasts.
        origin_utc: first target step.
        information_until: end of the last interval whose truth is known.
        before: instant before which the forecast of these steps must have been available; those of
            earlier seasons must have been so as many seasons earlier.

    Returns:
        ``published_error_lag<k>`` and ``published_error_mean<n>`` by name.
    """
    season = count_season_steps(series.step) * series.step
    errors = np.full((SEASONS_BACK + 1, HORIZON), np.nan)

    for back in range(1, SEASONS_BACK + 1):
        start = origin_utc - back * season
        forecast = published.find(entity, MEDIAN, start, before - back * season)
        errors[back] = _observe(series, start, information_until) - forecast

    found = {f"{PUBLISHED}_error_lag{lag}": errors[lag] for lag in ERROR_LAGS}
    return found | {
        f"{PUBLISHED}_error_mean{n}": _mean_of_known(errors[1 : n + 1]) for n in ERROR_MEANS
    }


def find_oldest_needed(origin_utc: datetime, step: timedelta) -> datetime:
    """Return the first interval whose published or covariate values a view of an origin holds."""
    return origin_utc - SEASONS_BACK * count_season_steps(step) * step


def _observe(series: GriddedSeries, start_utc: datetime, until: datetime) -> FloatArray:
    """Return the values (H,) from a start on that were measured until an instant, else NaN."""
    first = (start_utc - series.first_utc) // series.step
    known_end = min((until - series.first_utc) // series.step, len(series))

    values = np.full(HORIZON, np.nan)
    row_H = first + np.arange(HORIZON)
    is_known_H = (row_H >= 0) & (row_H < known_end)
    values[is_known_H] = series.observed[row_H[is_known_H]]
    return values


def _count_microseconds(instant: datetime) -> int:
    return (instant - _EPOCH_UTC) // _MICROSECOND


def _mean_of_known(rows: FloatArray) -> FloatArray:
    """Return the mean (H,) of the known values of each column, NaN where there is none."""
    is_known = np.isfinite(rows)
    count = is_known.sum(axis=0)
    total = np.where(is_known, rows, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
