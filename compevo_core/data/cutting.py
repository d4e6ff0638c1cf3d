"""Cutting one series into windows: known faults, origins, filled inputs, masked targets.

What belongs here: the numbers of one series, without bad readings (``known_faults.toml``). What
does not: finding unknown faults (the pipeline's checks), calendar, news and covariates
(``data.context``), split plans (``data.splits``), joining all of it (``data.build``).

Inputs and targets treat a gap differently. An input is filled from the past, because a forecaster
in operation would have to do the same; a target that was filled or nulled is NaN, because a score
against an invented value means nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray, keep_last_run, mean_known
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.series import regularise_series, resample_to_step
from compevo_core.data.steps import DAY, WEEK, count_steps, shift
from compevo_core.data.view import MOST_PAST, count_season_steps, find_seasons
from compevo_core.errors import DataError
from compevo_core.runtime.files import read_packaged


@dataclass(frozen=True, slots=True)
class Fault:
    """Known wrong values of the matching series, with start in [first_utc, end_utc).

    ``series_pattern`` is a regular expression for ``series_id``. ``min_decimals`` restricts the
    fault to values written with at least so many decimals.
    """

    reason: str
    series_pattern: str
    first_utc: datetime
    end_utc: datetime
    min_decimals: int | None = None


KNOWN_FAULTS = tuple(Fault(**fault) for fault in read_packaged(__file__, "known_faults")["fault"])


def apply_known_faults(frame: pl.DataFrame) -> pl.DataFrame:
    """Null the values that the table names and flag them ``nulled:<reason>``.

    Rows and their order stay as they are. A row that is missing or nulled already keeps its flag,
    so applying the table twice changes nothing.
    """
    series = frame["series_id"].unique()
    for fault in KNOWN_FAULTS:
        if not series.str.contains(fault.series_pattern).any():
            continue
        # One fault after the other: a row nulled by the first is null for the second, which then
        # keeps its flag.
        is_wrong = (
            pl.col("series_id").str.contains(fault.series_pattern)
            & pl.col("start_utc").is_between(fault.first_utc, fault.end_utc, closed="left")
            & pl.col("value").is_not_null()
        )
        if fault.min_decimals is not None:
            # A value with fewer decimals equals its rounding, up to the error of binary fractions,
            # which is far below the last decimal that counts.
            rounded = pl.col("value").round(fault.min_decimals - 1)
            tolerance = 10.0 ** -(fault.min_decimals + 6)
            is_wrong &= (pl.col("value") - rounded).abs() > tolerance
        frame = frame.with_columns(
            value=pl.when(~is_wrong).then("value"),
            flag=pl.when(is_wrong).then(pl.lit(f"nulled:{fault.reason}")).otherwise("flag"),
        )
    return frame


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
    gaps: Mapping[str, int]  # counts by flag, for the manifest

    def __len__(self) -> int:
        return len(self.observed)

    def locate_start(self, position: int) -> datetime:
        """Return the start of a step; it may be beyond either end."""
        return shift(self.first_utc, position, self.step)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputValues:
    """Inputs ``x`` (L,) before an origin; the last ``unknown_steps`` were not measured yet."""

    origin_utc: datetime
    x: FloatArray
    n_filled: int
    n_repeated: int = 0  # inputs of a gap beyond the fill limit, which repeat the season before
    unknown_steps: int = 0
    past: FloatArray = field(default_factory=lambda: np.zeros(0))  # before the inputs


def grid_series(frame: pl.DataFrame, spec: DatasetSpec) -> GriddedSeries:
    """Resample a series, null known faults, put it on its data set's grid and fill from the past.

    DataError if the rows are not one series, or not on a regular grid.
    """
    # Faults are nulled before the grid is made, so that a fill never starts from a bad reading.
    resampled = apply_known_faults(resample_to_step(frame, spec.step))
    regular, gaps = regularise_series(resampled, spec.step)

    # Interpolation would use a later row, which is not known at the origin.
    filled = pl.col("value").fill_null(strategy="forward", limit=spec.max_fill_steps)
    columns = regular.select(
        observed=pl.when(pl.col("flag") == "observed").then(pl.col("value")).cast(pl.Float64),
        filled=filled.cast(pl.Float64),
    ).fill_null(float("nan"))

    # Windows share these numbers, so they are read-only.
    observed, known = (np.array(columns[name], np.float64) for name in columns.columns)
    for numbers in (observed, known):
        numbers.setflags(write=False)
    return GriddedSeries(
        series_id=regular["series_id"][0],
        variable=regular["variable"][0],
        unit=regular["unit"][0],
        first_utc=cast(datetime, regular["start_utc"][0]),
        step=spec.step,
        observed=observed,
        filled=known,
        gaps=gaps,
    )


def find_origins(series: GriddedSeries, spec: DatasetSpec, stride_steps: int) -> list[int]:
    """Return the positions whose inputs and targets are on the grid, a stride apart.

    Where windows start with a day of the market's clock, its days start at an origin, and strides
    that divide a day follow from there; elsewhere the first origin is the first possible step.
    DataError if origins that follow the market's days would be at other times each day.
    """
    possible = range(spec.lookback_steps, len(series) - spec.horizon_steps + 1)
    if spec.align_to_market_day and stride_steps > 1:
        stride = stride_steps * series.step
        if DAY % series.step or (stride % DAY and DAY % stride):
            raise DataError(
                f"{series.series_id}: a stride of {stride_steps} x {series.step} is not a number "
                "of days, nor divides one; correct stride_steps of the data set"
            )
        # Days are a whole number of steps, and of 23 or 25 hours where clocks change.
        ends = (spec.lookback_steps, len(series))
        first, last = (spec.to_market(series.locate_start(at)) for at in ends)
        apart = min(stride, DAY)
        midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
        starts = [
            spec.from_market(midnight + number * apart)
            for number in range((last - midnight) // apart + 1)
        ]
        # A time that clocks skip is the next one.
        places = dict.fromkeys(count_steps(series.first_utc, at, series.step) for at in starts)
        return [place for place in places if place in possible][:: stride // apart]

    return list(possible[::stride_steps])


def locate_origin(series: GriddedSeries, origin_utc: datetime) -> int:
    """Return the position of an origin on the grid of a series; it may be after its end.

    DataError if the origin is not a step of the grid.
    """
    position = count_steps(series.first_utc, origin_utc, series.step)
    if series.locate_start(position) != origin_utc:
        raise DataError(
            f"{series.series_id}: origin {origin_utc} is not a step of the {series.step} grid that "
            f"starts {series.first_utc}; give the start of an interval"
        )
    return position


def cut_inputs(
    series: GriddedSeries,
    position: int,
    spec: DatasetSpec,
    unknown_steps: int = 0,
    *,
    repeats: bool = False,
) -> InputValues | str:
    """Return the inputs before a position, or the reason why there are none.

    Later values are not read. The last ``unknown_steps`` inputs were not measured yet; the same
    steps of the day before, or of the day before that, replace them. With ``repeats`` the season
    before a gap replaces what is longer than the fill limit, or nearer to it than the last value.
    """
    # These texts are keys of the manifest: changing one changes the published counts.
    start, known_end = position - spec.lookback_steps, position - unknown_steps
    if start < 0 or known_end > len(series):
        return "the series does not reach over the inputs"

    n_filled = int(np.isnan(series.observed[start:known_end]).sum())
    filled, n_repeated = series.filled[:known_end], 0
    if repeats and n_filled:
        filled = _repeat_season(series, start, known_end, spec)
        n_repeated = int((filled != series.filled[:known_end])[start:].sum())
    x = filled[start:]
    if unknown_steps:
        # The last season repeated; NaN before the series.
        season = count_season_steps(series.step)
        places = [known_end + i - season * (i // season + 1) for i in range(unknown_steps)]
        x = np.concatenate([x, [filled[at] if at >= 0 else np.nan for at in places]])

    if np.isnan(x).any():
        return "input gap longer than the fill limit"
    if n_filled > spec.max_filled_inputs:
        return "too many filled inputs"

    most_past = MOST_PAST if spec.year_evidence else 0
    return InputValues(
        origin_utc=series.locate_start(position),
        x=x,
        n_filled=n_filled,
        n_repeated=n_repeated,
        unknown_steps=unknown_steps,
        past=keep_last_run(series.filled[max(0, start - most_past) : start]),
    )


def _repeat_season(
    series: GriddedSeries, start: int, known_end: int, spec: DatasetSpec
) -> FloatArray:
    """Return the values before a step (T,), with the season before in gaps of the inputs.

    It is there where a gap is longer than the fill limit, or where the inputs, from ``start`` on,
    change less in a season than in half the gap. Steps without a value a week before, such as
    nights of a shop, keep what was carried over.
    """
    sizes = (spec.lookback_steps, spec.horizon_steps, spec.season_steps)
    season = find_seasons(spec.step, *sizes).reference
    week = max(season, WEEK // spec.step)
    observed, filled = series.observed[:known_end], series.filled[:known_end].copy()
    is_missing = np.isnan(observed)
    is_closed = is_missing & np.isfinite(filled)
    is_closed[:week] = False
    is_closed[week:] &= is_missing[:-week]

    def measure_change(steps: int) -> float:
        return float(mean_known(np.abs(observed[start + steps :] - observed[start:-steps]), axis=0))

    in_season = measure_change(season)
    gaps = np.flatnonzero(np.diff(is_missing, prepend=False, append=False)).reshape(-1, 2)
    for first, end in gaps[gaps[:, 1] > start - week]:
        is_long = np.isnan(filled[end - 1])
        if not (is_long or in_season < measure_change((end - first + 1) // 2)):
            continue
        # The oldest first: the season before may be in the gap, too.
        for at in range(max(first, season), end):
            before = at - (week if is_closed[at - season] else season)
            if not is_closed[at] and np.isfinite(filled[before]):
                filled[at] = filled[before]
    return filled
