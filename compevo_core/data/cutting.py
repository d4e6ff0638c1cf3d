"""Cuts one series into windows: origins, inputs with their fill, masked targets (design 3; style, rules 4 and 12).

What belongs here: numbers of one series. What does not: calendar, news, covariates (``windows``), split plans
(``splits``). A target that was filled or nulled is NaN; an input gap is filled from the past only.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.series import GapReport, apply_known_faults, causal_fill, regularise, to_step
from compevo_core.data.window import HORIZON, LOOKBACK
from compevo_core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """One series on its full grid: observed values (NaN elsewhere) and causally filled ones, both (T,)."""

    series_id: str
    variable: str
    unit: str
    first_utc: datetime
    step: timedelta
    observed: FloatArray
    filled: FloatArray
    gaps: GapReport

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.observed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """Numbers of one window; ``y`` is NaN where masked."""

    origin_utc: datetime
    x: FloatArray
    y: FloatArray
    n_filled: int


@dataclass(slots=True)
class Dropped:
    """Origins that gave no window, by reason."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        """Count one."""
        self.counts[reason] = self.counts.get(reason, 0) + 1


def to_grid(frame: pl.DataFrame, step: timedelta, max_fill_steps: int) -> Grid:
    """Resample to ``step``, null known faults, put on the grid and fill from the past.

    Raises:
        DataError: the rows are not one series, or not on a regular grid.
    """
    regular, gaps = regularise(apply_known_faults(to_step(frame, step)), step)
    filled = causal_fill(regular, max_fill_steps)
    truth = regular.select(
        pl.when(pl.col("flag") == "observed").then(pl.col("value")).fill_null(float("nan"))
    )
    first = regular["start_utc"][0]
    assert isinstance(first, datetime)
    return Grid(
        series_id=regular["series_id"][0],
        variable=regular["variable"][0],
        unit=regular["unit"][0],
        first_utc=first,
        step=step,
        observed=truth.to_series().to_numpy().astype(np.float64),
        filled=filled["value"].fill_null(float("nan")).to_numpy().astype(np.float64),
        gaps=gaps,
    )


def origin_positions(grid: Grid, stride_steps: int, day_offset: timedelta | None) -> list[int]:
    """Positions whose 48 inputs and 48 targets lie on the grid.

    With ``day_offset`` (the market clock's UTC offset) origins are aligned to the start of a market day; without it
    they start at the first possible step.
    """
    start = LOOKBACK
    if day_offset is not None:
        day = timedelta(days=1)
        if day % grid.step or stride_steps * grid.step % day:
            raise DataError(
                f"{grid.series_id}: a stride of {stride_steps} x {grid.step} is not a number of days"
            )
        earliest = grid.first_utc + LOOKBACK * grid.step + day_offset
        phase = (earliest - datetime(1970, 1, 1, tzinfo=UTC)) % day
        start += int(((day - phase) % day) / grid.step)
    return list(range(start, len(grid) - HORIZON + 1, stride_steps))


def cut(grid: Grid, position: int, max_filled_inputs: int, dropped: Dropped) -> Cut | None:
    """The window whose first target is ``position``, or None with its reason counted."""
    x = grid.filled[position - LOOKBACK : position]
    y = grid.observed[position : position + HORIZON]
    n_filled = int(np.isnan(grid.observed[position - LOOKBACK : position]).sum())
    if np.isnan(x).any():
        dropped.add("input gap longer than the fill limit")
        return None
    if n_filled > max_filled_inputs:
        dropped.add("too many filled inputs")
        return None
    if np.isnan(y).all():
        dropped.add("no observed target")
        return None
    return Cut(origin_utc=grid.first_utc + position * grid.step, x=x, y=y, n_filled=n_filled)
