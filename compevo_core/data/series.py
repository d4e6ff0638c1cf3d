"""Series on a regular grid: value rules, resampling, gaps, causal fill, the season they show.

What belongs here: what may be done to a series before windows are cut, and after how many steps its
changes repeat. What does not: parsing (the pipeline's sources), column contracts
(``data.schemas``), known bad readings (``data.cutting``), seasons of a grid (``data.view``),
windows and features.

Two rules hold throughout: nothing is filled from the future, and nothing is filled or nulled
without a flag.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import cast

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.schemas import FLAG_PATTERN, SERIES_SCHEMA, UTC_US, validate_frame
from compevo_core.data.steps import DAY, MONTH, WEEK, count_steps, is_calendar_step, shift
from compevo_core.data.view import find_season
from compevo_core.errors import DataError

_KEY = ("series_id", "variable", "start_utc")
_CONSTANT_COLUMNS = ("series_id", "variable", "unit", "source", "fetched_at")
_SHORTEST_MONTH = 28 * DAY
_LEAST_WEEKS = 8  # after which a time of the week without a value has none
_MONTHS = (1, 2, 3, 4, 6, 12)  # that a step may have

_LOOKED_AT_SERIES = 20
_LOOKED_AT_SHARE = 0.6  # of the rows: what comes later chooses nothing, and train is as long
_LEAST_CORRELATION = 0.2  # least correlation of changes a season apart
_NEAR_BEST = 0.9  # share of the best correlation from which on the shortest season counts
_NEAR_PEAK = 8  # part of a season within which its peak is looked for
_FEWEST_SEASONS = 4
_ROUNDING = 1e-9
_FAR_CHANGE = 6.0  # spreads at which a change is cut: one fault must not hide a season


def find_calendar_step(distances: pl.Series) -> timedelta | None:
    """Return the months that stamps are apart, None where they are another length apart."""
    usual = cast(timedelta, distances.mode().min())
    months = round(usual / MONTH)
    # Four weeks, and five in places, are not months, which differ by days.
    if (
        usual < _SHORTEST_MONTH
        or months not in _MONTHS
        or not any(distance % WEEK for distance in distances.unique())
    ):
        return None
    return months * MONTH


def measure_gaps(stamps: pl.Series, step: timedelta) -> tuple[int, int, int]:
    """Return the steps from the first to the last of two or more stamps, and two gaps in steps.

    They are the longest, and the longest that comes once in a fortnight, as weekends do.
    """
    ordered = stamps.sort()
    steps = count_steps(ordered[0], ordered[-1], step) + 1
    apart = ordered.diff().drop_nulls().sort(descending=True)
    fortnights = (ordered[-1] - ordered[0]) // (2 * WEEK)
    longest, usual = apart[0], apart[min(fortnights, len(apart) - 1)]
    return steps, round(longest / step) - 1, round(usual / step) - 1


def find_minutes(starts: pl.Series, step: timedelta, zone: str) -> pl.Series:
    """Return the minute of the week, from Monday on, at which each step begins in a zone."""
    local = starts.dt.convert_time_zone(zone).dt
    days, hours, minutes = (
        part.cast(pl.Int32) for part in (local.weekday() - 1, local.hour(), local.minute())
    )
    minutes += 60 * (24 * days + hours)
    # Days that begin at one instant all year begin at two times of the clock.
    return minutes - minutes % (step // timedelta(minutes=1))


def find_closed(starts: pl.Series, step: timedelta, zone: str) -> tuple[int, ...]:
    """Return the minutes of the week at which no step has a value, such as nights of a shop.

    ``starts`` are the starts of steps with one. None are closed before eight weeks are known, nor
    on grids coarser than a day.
    """
    if step > DAY or len(starts) < 2 or starts.max() - starts.min() < _LEAST_WEEKS * WEEK:  # type: ignore[operator]
        return ()
    is_open = set(find_minutes(starts, step, zone).unique())
    possible = range(0, WEEK // timedelta(minutes=1), step // timedelta(minutes=1))
    return tuple(minute for minute in possible if minute not in is_open)


def skip_closed(instant: datetime, step: timedelta, zone: str, closed: Sequence[int]) -> datetime:
    """Return the start of the first step, from an instant on, that is not closed."""
    if not closed:
        return instant
    # Of two weeks: a change of clocks may take the one open hour of a week.
    starts = [instant + number * step for number in range(2 * WEEK // step)]
    is_closed = find_minutes(pl.Series(starts, dtype=UTC_US), step, zone).is_in(list(closed))
    return starts[int((~is_closed).arg_max() or 0)]


def select_going_on(
    ends: Mapping[str, datetime], horizon: int, step: timedelta
) -> dict[str, datetime]:
    """Return the ends of the series that go on: less than a horizon before the last end.

    The forecast of any other, such as a shop that closed, would be over before that.
    """
    newest = max(ends.values())
    return {name: end for name, end in ends.items() if shift(end, horizon, step) > newest}


def split_series(series: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the rows of each series by its id; of a sorted frame without a copy of them."""
    runs = series["series_id"].rle().struct.unnest()
    if runs["value"].n_unique() < runs.height:
        series = series.sort("series_id", maintain_order=True)
        runs = series["series_id"].rle().struct.unnest()
    first = 0
    for length, name in runs.iter_rows():
        yield name, series.slice(first, length)
        first += length


def validate_series(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame sorted by series, variable and time, checked by ``SERIES_SCHEMA`` and values.

    DataError for wrong columns or types, unknown flags, null keys, duplicates, non-finite values,
    or a flag that contradicts the value (a value where the flag says missing or nulled, none where
    it says observed or filled).
    """
    frame = validate_frame(frame, SERIES_SCHEMA, "series frame")
    for name, nulls in frame.null_count().row(0, named=True).items():
        if nulls and name != "value":
            raise DataError(f"series frame has {nulls} null(s) in {name}; the parser must set it")

    has_value = pl.col("value").is_not_null()
    flag_has_value = (pl.col("flag") == "observed") | pl.col("flag").str.starts_with("filled:")
    faults = {
        "an unknown flag; see FLAG_PATTERN": ~pl.col("flag").str.contains(FLAG_PATTERN),
        # Null is the one way to say "no value". NaN would pass through means and comparisons.
        "a NaN or infinite value; use null with a flag": ~pl.col("value").is_finite(),
        "a flag that contradicts the value": has_value != flag_has_value,
    }
    is_wrong = frame.select(wrong.any().alias(fault) for fault, wrong in faults.items())
    for fault in (name for name, wrong in is_wrong.row(0, named=True).items() if wrong):
        wrong = frame.filter(faults[fault])
        row = wrong.row(0, named=True)
        raise DataError(
            f"series frame: {wrong.height} row(s) with {fault}; first {row['series_id']} at "
            f"{row['start_utc']}, value {row['value']}, flag {row['flag']}"
        )

    duplicates = frame.filter(frame.select(_KEY).is_duplicated())
    if duplicates.height:
        row = duplicates.row(0, named=True)
        raise DataError(
            f"{duplicates.height} rows share a key, first {row['series_id']} {row['variable']} at "
            f"{row['start_utc']}; keep one row for each (series_id, variable, start_utc)"
        )
    return frame.sort(_KEY)


def is_synthetic(frame: pl.DataFrame) -> bool:
    """Return whether any row comes from the sample mode of a source."""
    return bool(frame["source"].str.starts_with("sample:").any())


def resample_to_step(frame: pl.DataFrame, step: timedelta) -> pl.DataFrame:
    """Average a finer regular grid to ``step``; an interval counts only if all its parts exist.

    Interval starts are floored, so six 5-minute rows 00:00 to 00:25 make the half-hour from 00:00,
    as in AEMO's own rule. A series whose rows already lie ``step`` or more apart is returned as it
    is. An incomplete interval is dropped here; :func:`regularise_series` gives it back as
    ``missing``.

    Steps of the calendar are not made of finer rows. DataError if the row distance does not divide
    ``step``.
    """
    if frame.height < 2 or is_calendar_step(step):
        return frame

    frame = frame.sort("start_utc")
    finest = frame["start_utc"].diff().drop_nulls().min()
    if not isinstance(finest, timedelta) or finest >= step:
        return frame
    if step % finest:
        raise DataError(
            f"rows {finest} apart do not divide into steps of {step}; resample in the parser"
        )

    # AEMO changed from half-hours to five minutes within a series (2021-10-01). A row that lies a
    # full step from both neighbours is a whole interval already and must not count as one part. It
    # starts where a step does: any other is a single reading of minutes in an outage.
    stamp = pl.col("start_utc")
    step_before = (stamp - stamp.shift(1)).fill_null(step) >= step
    step_after = (stamp.shift(-1) - stamp).fill_null(step) >= step
    binned = frame.with_columns(
        (step_before & step_after & (stamp == stamp.dt.truncate(step))).alias("is_whole_step"),
        # Rows are as long as the finest so far: two half-hours are an hour although minutes follow.
        # After minutes no row is longer: two readings in an outage would pass for half-hours.
        stamp.diff().cum_min().alias("finest_so_far"),
        stamp.dt.truncate(step).alias("bin"),
    )

    averaged = binned.group_by("bin", maintain_order=True).agg(
        pl.len().alias("parts"),
        pl.col("finest_so_far").min(),
        pl.col("value").null_count().alias("nulls"),
        pl.col("value").mean(),
        pl.col("is_whole_step").first(),
        pl.col(*_CONSTANT_COLUMNS, "flag").first(),
    )
    fills_step = (pl.col("parts") > 1) & (pl.col("parts") * pl.col("finest_so_far") == step)
    is_complete = fills_step & (pl.col("nulls") == 0)

    return (
        averaged.filter(is_complete | pl.col("is_whole_step"))
        .rename({"bin": "start_utc"})
        .select(list(SERIES_SCHEMA))
    )


def regularise_series(frame: pl.DataFrame, step: timedelta) -> tuple[pl.DataFrame, dict[str, int]]:
    """Put one series on the full grid from its first to its last row.

    Absent rows are added, null and flagged ``missing``. The second value has its counts by flag and
    its longest run without a value, for a manifest. DataError for more than one series, no row, or
    a stamp off the grid.
    """
    frame = validate_series(frame)
    if frame.height == 0:
        raise DataError("cannot put an empty series on a grid; read the source first")
    if frame.select("series_id", "variable").n_unique() != 1:
        raise DataError("regularise_series takes one series; filter by series_id and variable")

    first, last = (cast(datetime, frame["start_utc"][row]) for row in (0, -1))
    if is_calendar_step(step):
        months = [shift(first, i, step) for i in range(count_steps(first, last, step) + 1)]
        stamps = pl.Series(months, dtype=UTC_US)
    else:
        stamps = pl.datetime_range(first, last, step, time_unit="us", time_zone="UTC", eager=True)
    grid = pl.DataFrame({"start_utc": stamps})
    full = grid.join(frame, on="start_utc", how="left", maintain_order="left")
    if full.height - full["source"].null_count() != frame.height:
        off_grid = frame.join(grid, on="start_utc", how="anti", maintain_order="left")
        raise DataError(
            f"{off_grid.height} stamp(s) of {frame['series_id'][0]} are off the {step} grid that "
            f"starts {frame['start_utc'][0]}, first {off_grid['start_utc'][0]}; resample with "
            "resample_to_step or correct the parser"
        )

    full = full.select(list(SERIES_SCHEMA)).with_columns(
        pl.col("flag").fill_null("missing"),
        # An added row takes names and units from the row before it; its value stays null.
        *(pl.col(name).fill_null(strategy="forward") for name in _CONSTANT_COLUMNS),
    )
    # rle() turns the column of "is empty" into runs of equal values with their lengths.
    runs = full["value"].is_null().rle().struct.unnest()
    longest = runs.filter(pl.col("value"))["len"].max()
    return full, {
        "rows": full.height,
        "missing": int((full["flag"] == "missing").sum()),
        "nulled": int(full["flag"].str.starts_with("nulled:").sum()),
        "filled": int(full["flag"].str.starts_with("filled:").sum()),
        "longest_gap_steps": longest if isinstance(longest, int) else 0,
    }


def choose_season(series: Sequence[pl.DataFrame], step: timedelta, lookback: int) -> int:
    """Return the steps of the season that the first values of series show.

    0 where it is the season of the grid, or a look-back does not hold two of it. Each frame follows
    ``SERIES_SCHEMA``.
    """
    values = [
        regularise_series(resample_to_step(part.head(length), step), step)[0]["value"]
        .cast(pl.Float64)
        .fill_null(float("nan"))
        .to_numpy()
        for part in series[:_LOOKED_AT_SERIES]
        if (length := int(part.height * _LOOKED_AT_SHARE)) > 1
    ]
    usual = find_season(step)
    season = find_shown_season(values, usual)
    return 0 if season == usual or 2 * season > lookback else season


def find_shown_season(series: Sequence[FloatArray], usual: int) -> int:
    """Return the steps after which the changes of series repeat; each series counts alike.

    The usual season, in steps, counts where changes repeat after it; another only where they do
    not. Without any that repeats it is the usual one. Values are on their grid, NaN if unknown.
    """
    longest = max((len(values) for values in series), default=0) // _FEWEST_SEASONS
    if longest < 3:
        return usual

    correlations = [_correlate(values, longest + 2) for values in series]
    correlation = mean_known(np.stack(correlations), axis=0)
    noise = 4 / np.sqrt(max(len(values) for values in series))

    # Noise moves the top of a smooth day in fine steps by a few of them.
    least = max(_LEAST_CORRELATION, noise)
    near = correlation[usual - usual // _NEAR_PEAK : usual + usual // _NEAR_PEAK + 1]
    if usual <= longest and correlation[usual] >= max(least, near.max() - noise):
        return usual

    peaks = [
        lag
        for lag in range(2, longest + 1)
        if correlation[lag] >= max(least, correlation[lag - 1])
        and correlation[lag] > correlation[lag + 1]
    ]
    best = max((correlation[lag] for lag in peaks), default=0.0)
    # Of many lags one is over the least by chance, above all a multiple of the usual season.
    if usual <= longest and correlation[usual] >= max(noise, best - 1.5 * noise):
        return usual
    return next((lag for lag in peaks if correlation[lag] >= _NEAR_BEST * best), usual)


def _correlate(values: FloatArray, lags: int) -> FloatArray:
    """Return the correlation of changes so many steps apart (lags,), NaN where none is known.

    A series says nothing of seasons that it does not hold ``_FEWEST_SEASONS`` of.
    """
    change = np.diff(values)
    known = np.isfinite(change)
    centred = change - (np.median(change[known]) if known.any() else 0.0)
    # More than half of the changes are zero where an article sells slowly.
    spread = float(np.median(np.abs(centred[known])) if known.any() else 0.0)
    spread = spread or float(np.std(centred[known]) if known.any() else 0.0)
    # Of a level or a straight line nothing is left but rounding.
    if spread <= _ROUNDING * np.abs(values[np.isfinite(values)]).max(initial=0.0):
        return np.full(lags, np.nan)
    cut = np.where(known, np.clip(centred, -_FAR_CHANGE * spread, _FAR_CHANGE * spread), 0.0)
    cut = cut - np.where(known, cut[known].mean(), 0.0)

    # A power of two long enough that the end does not meet the beginning.
    size = 1 << (2 * len(cut)).bit_length()
    power = np.abs(np.fft.rfft(cut, size)) ** 2
    total = np.fft.irfft(power, size)[: min(lags, len(values) // _FEWEST_SEASONS + 2)]
    by_lag = np.full(lags, np.nan)
    # Fewer pairs lie further apart: each sum is set against as many.
    pairs = len(cut) - np.arange(len(total))
    by_lag[: len(total)] = total / total[0] * len(cut) / pairs
    return by_lag
