"""Values of a series that look wrong: fillers, a stuck sensor, an end that falls out of the rest.

What belongs here: what the values of one series show by themselves, in words. What does not: bounds
that a publisher's series has, and values that changed since (the pipeline).
"""

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import cast

import numpy as np
import polars as pl

from compevo_core.data.arrays import BoolArray, FloatArray, IntArray
from compevo_core.data.steps import DAY, WEEK

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FAR = 10.0  # spreads of the middle nine tenths, from the middle
_FEWEST_SAME, _MOST_SAME = 3, 0.4  # times a filler comes at least, and share of all at most
_APART = 0.25  # spreads of the middle nine tenths between a filler and the next value
_WEEKLY = 0.8  # share of equal values on one day of the week that are no filler
_JUMPS = 3.0  # times the usual step from one value to the next, into a filler or a collapse; times
# all values before that all later ones are, where their unit changed
_LONGEST_COLLAPSE = 24  # values
_HIGHEST_JUMP = 1.75  # times the highest step before, into the last values
_BEYOND = 0.25  # of the range of all earlier values, from which on the last ones are beyond it
_FEWEST_EARLIER = 60  # values that show a range
_LONE_SHARE = 0.002  # of values below zero, up to which a series has none of its own
_SPARSE = 0.1  # share of zeros from which on they are counts of nothing, as of sales
_FEWEST_LOW = 20  # low values whose neighbours are compared with those of a filler
_AMID = 0.25  # share of all values that a filler's neighbours are above those of low values
_FEWEST_DAYS, _LOW_DAY = 20, 0.6  # a last day below this share of the lowest of so many before
_SHORTEST_STUCK = 6  # values
_LONGER_STUCK = 2.0  # times the longest run before that a sensor is stuck from
_TAIL_SHARE = 0.1  # of all distances, whose heights show how far peaks reach
_TAIL_SCALES = 2.5  # mean logarithms of that tail, by which a peak may exceed the others
_CODES = r"^(-99+|999+)(\.9+|\.0|\.25)?$|^-32768(\.0)?$"  # what loggers write for a missing value
_ROUNDED = 1e-6  # by which a value that was written and read again may differ
_LONGEST_LAG = 24  # rows by which a table may be late
_MOST_ROWS = 0.9  # share of rows that show a lag, and whose ratios show a factor
_LEAST_SCALED = 0.015  # relative change by one factor, below which values are revised
_SAME_RATIO = 0.1  # spread of the ratios, as a share of that change
_LARGEST = 1e20  # values from here on are some format's fill value
# In AEMO's archive only the stuck meters of April 2019 repeat a value more than 4 times, and only
# the known fault of November 2025 jumps and returns by more than 2.7 times that quantile.
_STUCK_STEPS = 6
_FAULTY_JUMP = 4.0  # times the jump that 98 % are below
_FAULTY_STEPS = 4  # that a collapse lasts at most
_FEWEST_JUMPS = 96


def describe_faults(name: str, rows: pl.DataFrame, step: timedelta) -> list[str]:
    """Return a sentence for each kind of value that looks wrong.

    ``rows`` are the values of one series, in columns ``start_utc`` and ``value``.
    """
    known = rows.drop_nulls("value").sort("start_utc")
    if not known.height:
        return [f"{name} has no value"]
    if known["value"].n_unique() < 2:
        return [f"all values of {name} are equal, so there is nothing to forecast"]
    problems = (
        _describe_far(known, step),
        _describe_stuck(known, step),
        _describe_end(known, step),
        _describe_switch(known),
    )
    return [f"{name}: {problem}" for problem in problems if problem]


def is_code(value: str, by: str) -> pl.Expr:
    """Return the expression of "this is a code for a missing value, such as -9999 or 1e20".

    Of each series, named by the column ``by``, a code is further from all other values than these
    are from each other: 999 is a count among thousands of others.
    """
    cell = pl.col(value)
    is_like_one = (cell.abs() >= _LARGEST) | cell.cast(pl.String).str.contains(_CODES)
    others = pl.when(~is_like_one).then(cell)
    low, high = others.min().over(by), others.max().over(by)
    span = high - low
    is_apart = (cell < low - span) | (cell > high + span)
    return (is_like_one & is_apart).fill_null(value=False)


def describe_new_faults(
    name: str, rows: pl.DataFrame, step: timedelta, since: datetime
) -> list[str]:
    """Return the sentences of :func:`describe_faults` that rows before an instant do not give."""
    faults = describe_faults(name, rows, step)
    known = describe_faults(name, rows.filter(pl.col("start_utc") < since), step) if faults else []
    return [fault for fault in faults if fault not in known]


def describe_changes(name: str, before: pl.DataFrame, after: pl.DataFrame) -> list[str]:
    """Return a sentence if most values at the stamps that two tables share have changed.

    Both hold one series, in columns ``start_utc`` and ``value``.
    """
    both = before.join(after, on="start_utc", suffix="_after").sort("start_utc")
    both = both.drop_nulls(["value", "value_after"])
    # Zeros, as at night, are the same in any unit.
    both = both.filter((pl.col("value") != 0) | (pl.col("value_after") != 0))
    is_changed = ~np.isclose(both["value_after"], both["value"], rtol=_ROUNDED, atol=0.0)
    if len(both) < _FEWEST_SAME or 2 * is_changed.sum() <= len(both):
        return []

    how = "; the newer ones count"
    factor, lag = both.select(*find_move(pl.col("value"), pl.col("value_after"))).row(0)
    if factor is not None:
        how = f", {factor:.4g} times as high; if their unit changed, convert them"
    if lag is not None:
        sense = "before" if lag > 0 else "after"
        how = f", to those {abs(lag)} step(s) {sense}; if stamps were moved, move them back"
    return [f"{name}: {is_changed.sum():,} of {len(both):,} known values have changed{how}"]


def find_move(before: pl.Expr, after: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return by which factor values have changed (``factor``), and how many rows late they come.

    The second is ``lag``, below zero where they come early; both are null where there is no such.
    """
    ratio = (after / before).filter(before != 0)
    spread = ratio.quantile(_MOST_ROWS) - ratio.quantile(1 - _MOST_ROWS)
    change = (ratio.median() - 1).abs()
    is_scaled = (change > _LEAST_SCALED) & (spread < _SAME_RATIO * change)
    # By most of the rows that have a counterpart, which at least half of them have.
    lags = (lag for rows in range(1, _LONGEST_LAG + 1) for lag in (rows, -rows))
    same = {lag: (after == before.shift(lag)).mean() for lag in lags}
    moves = [
        pl.when((share > _MOST_ROWS) & (2 * abs(lag) <= pl.len())).then(lag)
        for lag, share in same.items()
    ]
    return pl.when(is_scaled).then(ratio.median()).alias("factor"), pl.coalesce(moves).alias("lag")


def find_faults(known: pl.DataFrame, step: timedelta) -> dict[str, BoolArray]:
    """Return which values of a steady series, such as a load, are faults, by kind.

    ``stuck``: all but the first of a run of one value. ``collapse``: a few values between two
    jumps, there and back, far above the usual ones. ``known`` has the values in order, in columns
    ``start_utc`` and ``value``.
    """
    run = pl.col("value").rle_id()
    is_stuck = known.select(
        (pl.len().over(run) >= _STUCK_STEPS) & (pl.int_range(pl.len()).over(run) > 0)
    ).to_series()

    jumps = np.diff(known["value"].to_numpy())
    jumps[(known["start_utc"].diff()[1:] != step).to_numpy()] = 0.0
    shows_usual = len(jumps) >= _FEWEST_JUMPS
    least = _FAULTY_JUMP * np.quantile(np.abs(jumps), 0.98) if shows_usual else np.inf
    is_collapsed = _find_collapses(jumps, least, _FAULTY_STEPS)
    return {"stuck": is_stuck.to_numpy(), "collapse": is_collapsed}


def _find_collapses(jumps: FloatArray, least: float, longest: int) -> BoolArray:
    """Return which of the values are between two jumps above ``least``, there and back."""
    is_collapsed = np.zeros(len(jumps) + 1, dtype=bool)
    for first, last in itertools.pairwise(np.flatnonzero(np.abs(jumps) > least)):
        if last - first <= longest and jumps[first] * jumps[last] < 0:
            is_collapsed[first + 1 : last + 1] = True
    return is_collapsed


def _describe_far(known: pl.DataFrame, step: timedelta) -> str:
    low, below, middle, above, high = (
        cast(float, known["value"].quantile(share)) for share in _QUANTILES
    )
    values = known["value"].to_numpy()
    # Where most values are one, as zeros are at night, nothing is far from them.
    distances = np.abs(values - middle)
    is_far = distances > (_FAR * (high - low) or np.inf)
    # Peaks that go on from lower ones, as of page views and prices, are the series' own.
    if is_far.any() and distances[is_far].min() <= _stretch(distances) * distances[~is_far].max():
        is_far[:] = False
    # Any series may have two jumps there and back that are far above all of its others.
    jumps = np.diff(values)
    if len(jumps) >= _FEWEST_EARLIER:
        others = np.delete(np.abs(jumps), np.argsort(np.abs(jumps))[-2:])
        # The highest ratio of a record to the one before, after the first tenth of values.
        records = np.maximum.accumulate(others)[int(_TAIL_SHARE * len(others)) :]
        before, after = records[:-1], records[1:]
        ratios = after[before > 0] / before[before > 0]
        apart = max(_JUMPS, min(_stretch(np.abs(jumps)), float(ratios.max(initial=1.0))))
        is_far |= _find_collapses(jumps, apart * others.max(), _LONGEST_COLLAPSE)
    if _is_sparse(known["value"]):
        is_far[:] = False
    # A few values below zero, and far below, where all others are above, as of sales.
    if (values < 0).sum() <= max(1, _LONE_SHARE * len(values)):
        is_far |= values < -max(0.0, float(np.quantile(values, _QUANTILES[0])))
    for value in _find_fillers(known, step):
        is_far |= values == value
    far = known.filter(is_far)
    if not far.height:
        return ""
    return (
        f"{far.height:,} value(s) are far from the others, first {far['value'][0]:,.10g} at "
        f"{_say(far, 0)}, where half of all are between {below:,g} and {above:,g}; if they are not "
        "measurements, empty their cells"
    )


def _stretch(distances: FloatArray) -> float:
    """Return the factor by which the highest distance may exceed the others: Hill's estimator.

    It is above 10 for page views, which have peaks of every height, and below 3 for loads.
    """
    count = max(2, int(_TAIL_SHARE * len(distances)))
    tail = np.sort(distances[distances > 0])[-count:]
    return float(np.exp(_TAIL_SCALES * np.log(tail / tail[0]).mean())) if len(tail) else 1.0


def _is_sparse(values: pl.Series) -> bool:
    """Whether many values are zero, and the others begin next to it: a filler is far from them."""
    lowest = values.unique().sort().head(3).to_list()
    is_beside = len(lowest) == 3 and lowest[1] <= _JUMPS * (lowest[2] - lowest[1])
    return lowest[0] == 0 and is_beside and cast(float, (values == 0).mean()) >= _SPARSE


def _find_fillers(known: pl.DataFrame, step: timedelta) -> Iterator[float]:
    """Yield the lowest or highest value where it comes again and again, apart from all others."""
    for lowest in (True, False):
        edge = cast(float, known["value"].min() if lowest else known["value"].max())
        same, others = known.filter(value=edge), known.filter(pl.col("value") != edge)["value"]
        if not _FEWEST_SAME <= same.height <= _MOST_SAME * known.height:
            continue
        distances = (others.unique() - edge).abs().sort()
        low, high = (cast(float, others.quantile(share)) for share in (0.05, 0.95))
        usual = others.diff().abs().quantile(0.99)
        before = known["value"].shift(1).filter(known["value"] == edge)
        jump = (before.filter(before != edge) - edge).abs().median()
        is_apart = distances[0] > _APART * (high - low)
        is_apart |= bool(usual and jump and cast(float, jump) > _JUMPS * usual)
        # A shop that is closed on Sundays sells nothing then.
        weekdays = same["start_utc"].dt.weekday().value_counts()["count"]
        is_weekly = step < WEEK and cast(int, weekdays.max()) > _WEEKLY * same.height
        # Counts of sales are a step apart, as their highest is from the next.
        is_next = len(distances) > 1 and distances[0] <= _JUMPS * (distances[1] - distances[0])
        is_apart &= len(distances) > 1  # as of two values, such as open and closed
        is_only_negative = edge < 0 <= cast(float, others.min())
        is_amid = lowest and _is_amid_usual(known["value"].to_numpy(), edge)
        if is_only_negative or ((is_amid or (is_apart and not is_next)) and not is_weekly):
            yield edge


def _is_amid_usual(values: FloatArray, lowest: float) -> bool:
    """Whether the lowest value comes among usual ones, and the next lowest among low ones."""
    is_filler = values == lowest
    rank = np.searchsorted(np.sort(values[~is_filler]), values) / (~is_filler).sum()
    count = max(_FEWEST_LOW, min(is_filler.sum(), len(values) // _FEWEST_LOW))
    next_lowest = np.where(is_filler, np.inf, values).argsort()[:count]

    def rank_neighbours(places: IntArray) -> float:
        adjacent = np.concatenate([places - 1, places + 1])
        adjacent = adjacent[(adjacent >= 0) & (adjacent < len(values))]
        adjacent = adjacent[~is_filler[adjacent]]
        return float(np.median(rank[adjacent])) if 2 * len(adjacent) > len(places) else 0.0

    fillers = np.flatnonzero(is_filler)
    return rank_neighbours(fillers) >= rank_neighbours(next_lowest) + _AMID


def _describe_stuck(known: pl.DataFrame, step: timedelta) -> str:
    """Describe a run of one value that is longer than all others, as of no rate held for months."""
    values = known["value"]
    runs = values.rle().struct.unnest()
    runs = runs.with_columns(first=pl.col("len").cum_sum() - pl.col("len"))
    usual = values.value_counts(sort=True).row(0)
    if usual[1] >= _SPARSE * len(values):  # as zeros are at night
        runs = runs.filter(pl.col("value") != usual[0])
    if runs.height < 2 or step > DAY:
        return ""
    longest = int(runs["len"].arg_max() or 0)
    length, others = runs["len"][longest], runs["len"].sort()[-2]
    if length < _SHORTEST_STUCK or length <= _LONGER_STUCK * others:
        return ""
    first = runs["first"][longest]
    return (
        f"{length:,} values in a row are {known['value'][first]:,.10g}, from {_say(known, first)}, "
        f"and no more than {others:,} are equal anywhere else; if a sensor was stuck, empty their "
        "cells"
    )


def _describe_end(known: pl.DataFrame, step: timedelta) -> str:
    """Describe values of the last day, or the last value, beyond all before or after a jump."""
    values = known["value"].to_numpy()
    last = max(_SHORTEST_STUCK, DAY // step)
    earlier, end = values[:-last], values[-last:]
    if len(earlier) < _FEWEST_EARLIER or _is_sparse(known["value"]):
        return ""
    is_odd = np.zeros(last, dtype=bool)
    for sign in (-1, 1):
        room = max(_BEYOND, _stretch(sign * (earlier - np.median(earlier))) - 1)
        is_odd |= sign * end > (sign * earlier).max() + room * float(np.ptp(earlier))
    jumps = np.abs(np.diff(values))
    is_odd |= jumps[-last:] > max(_HIGHEST_JUMP, _stretch(jumps[:-last])) * jumps[:-last].max()
    is_odd |= (end == 0) & (earlier.min() > 0)
    day = max(1, DAY // step)
    sums = values[len(values) % day :].reshape(-1, day).sum(axis=1)
    if len(sums) > _FEWEST_DAYS and values.min() >= 0 and sums[-1] < _LOW_DAY * sums[:-1].min():
        is_odd[-day:] = True
    if not is_odd.any():
        return ""
    first = known.height - last + int(np.argmax(is_odd))
    return (
        f"the last {known.height - first:,} value(s) do not go on from those before, the first "
        f"{values[first]:,.10g} at {_say(known, first)} after {values[first - 1]:,.10g}; if they "
        "are not whole yet, leave them out"
    )


def _describe_switch(known: pl.DataFrame) -> str:
    """Describe a step from which on all values are far above, or below, all before."""
    values = known["value"].to_numpy()
    if len(values) < 2 * _SHORTEST_STUCK or values.min() <= 0:
        return ""
    before, after = values[:-1], values[:0:-1]
    up = np.minimum.accumulate(after)[::-1] / np.maximum.accumulate(before)
    down = np.minimum.accumulate(before) / np.maximum.accumulate(after)[::-1]
    times = np.maximum(up, down)[_SHORTEST_STUCK - 1 : 1 - _SHORTEST_STUCK]
    first = _SHORTEST_STUCK + int(times.argmax())
    if times.max() <= _JUMPS:
        return ""
    return (
        f"all values from {_say(known, first)} on, the first {values[first]:,.10g}, are more than "
        f"{times.max():,.3g} times as {'high' if values[first] > values[0] else 'low'} as all "
        "before; if their unit changed, convert them"
    )


def _say(known: pl.DataFrame, row: int) -> str:
    return f"{cast(datetime, known['start_utc'][row]):%Y-%m-%d %H:%M} UTC"
