"""The season that values show, where it is another than their grid suggests.

What belongs here: after how many steps the changes of series repeat. What does not: seasons of a
grid (``data.view``), features of a season (``baselines.features``).
"""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.series import regularise_series, resample_to_step
from compevo_core.data.view import find_season

_LOOKED_AT_SERIES = 20
_LOOKED_AT_SHARE = 0.6  # of the rows: what comes later chooses nothing, and train is as long
_LEAST_CORRELATION = 0.2  # least correlation of changes a season apart
_NEAR_BEST = 0.9
"""Of several seasons the shortest counts whose correlation is at least this share of the best."""
_NEAR_PEAK = 8  # part of a season within which its peak is looked for
_FEWEST_SEASONS = 4
_ROUNDING = 1e-9
_FAR_CHANGE = 6.0  # spreads at which a change is cut: one fault must not hide a season


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
