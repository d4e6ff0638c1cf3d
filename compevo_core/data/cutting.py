"""Cutting one series into windows: origins, filled inputs, masked targets.

What belongs here: the numbers of one series. What does not: calendar, news and covariates
(``data.context``), split plans (``data.splits``), joining all of it (``data.build``).

Inputs and targets treat a gap differently. An input is filled from the past, because a forecaster
in operation would have to do the same; a target that was filled or nulled is NaN, because a score
against an invented value means nothing.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.faults import apply_known_faults
from compevo_core.data.series import (
    GapReport,
    fill_forward,
    regularise_series,
    resample_to_step,
)
from compevo_core.data.window import HORIZON, LOOKBACK
from compevo_core.errors import DataError

_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GriddedSeries:
    """One series on its full grid of T steps.

    ``observed`` (T,) is NaN wherever nothing was measured; ``filled`` (T,) carries the past forward
    over short gaps.
    """

    series_id: str
    variable: str
    unit: str
    first_utc: datetime
    step: timedelta
    observed: FloatArray
    filled: FloatArray
    gaps: GapReport

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.observed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowValues:
    """Inputs ``x`` (48,) and targets ``y`` (48,) of one window; ``y`` is NaN where masked."""

    origin_utc: datetime
    x: FloatArray
    y: FloatArray
    n_filled: int


@dataclass(slots=True)
class DroppedOrigins:
    """Number of origins that gave no window, by reason."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        """Count one origin."""
        self.counts[reason] = self.counts.get(reason, 0) + 1


def grid_series(frame: pl.DataFrame, step: timedelta, max_fill_steps: int) -> GriddedSeries:
    """Resample to ``step``, null known faults, put the series on its grid and fill from the past.

    Raises:
        DataError: the rows are not one series, or not on a regular grid.
    """
    # Faults are nulled before the grid is made, so that a fill never starts from a bad reading.
    resampled = apply_known_faults(resample_to_step(frame, step))
    regular, gaps = regularise_series(resampled, step)

    is_observed = pl.col("flag") == "observed"
    observed = regular.select(
        pl.when(is_observed).then(pl.col("value")).fill_null(float("nan"))
    ).to_series()
    filled = fill_forward(regular, max_fill_steps)["value"].fill_null(float("nan"))

    return GriddedSeries(
        series_id=regular["series_id"][0],
        variable=regular["variable"][0],
        unit=regular["unit"][0],
        first_utc=cast(datetime, regular["start_utc"][0]),
        step=step,
        observed=observed.to_numpy().astype(np.float64),
        filled=filled.to_numpy().astype(np.float64),
        gaps=gaps,
    )


def find_origins(
    series: GriddedSeries, stride_steps: int, market_offset: timedelta | None
) -> list[int]:
    """Return the positions whose 48 inputs and 48 targets lie on the grid.

    Args:
        series: the series to cut.
        stride_steps: steps from one origin to the next.
        market_offset: UTC offset of the market clock whose days start at an origin; None to start
            at the first possible step.

    Raises:
        DataError: the stride is not a number of days although origins follow the market's days.
    """
    start = LOOKBACK

    if market_offset is not None:
        if _DAY % series.step or stride_steps * series.step % _DAY:
            raise DataError(
                f"{series.series_id}: a stride of {stride_steps} x {series.step} is not a number "
                "of days; correct stride_steps of the data set"
            )
        # Shifted by the offset, a UTC instant reads as the market's wall clock.
        earliest = series.first_utc + LOOKBACK * series.step + market_offset
        time_of_day = (earliest - _EPOCH) % _DAY
        start += int(((_DAY - time_of_day) % _DAY) / series.step)

    return list(range(start, len(series) - HORIZON + 1, stride_steps))


def cut_window(
    series: GriddedSeries, position: int, max_filled_inputs: int, dropped: DroppedOrigins
) -> WindowValues | None:
    """Return the window whose first target is ``position``, or None with its reason counted."""
    x = series.filled[position - LOOKBACK : position]
    y = series.observed[position : position + HORIZON]
    n_filled = int(np.isnan(series.observed[position - LOOKBACK : position]).sum())

    # These texts are keys of the manifest: changing one changes the published counts.
    if np.isnan(x).any():
        dropped.add("input gap longer than the fill limit")
        return None
    if n_filled > max_filled_inputs:
        dropped.add("too many filled inputs")
        return None
    if np.isnan(y).all():
        dropped.add("no observed target")
        return None

    origin_utc = series.first_utc + position * series.step
    return WindowValues(origin_utc=origin_utc, x=x, y=y, n_filled=n_filled)
