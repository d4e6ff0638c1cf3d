"""Quantiles of a forecast from the errors that the same forecaster made before.

What belongs here: the levels, the past errors of a forecaster, quantiles from them and how they
adapt. What does not: forecasting, scores of quantiles (``evaluation.metrics``).

Conformal prediction: the errors of the last windows of a series, at the step and its neighbours,
say how far the next forecast may err, as the forecaster was not fitted on them. The level at which
a quantile is read follows the misses of the days before (adaptive conformal inference, Gibbs and
Candes 2021, arXiv:2106.00170, here by pairs of levels).

Shapes: N windows, H horizon, Q levels, W past windows of a series, S errors of a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from compevo_core.data.arrays import FloatArray, IntArray, mean_known
from compevo_core.data.view import (
    Window,
    WindowView,
    count_minutes,
    find_horizon,
    keep_bounds,
    stack_by_step,
)
from compevo_core.errors import DataError

LEVELS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.975)
"""Probabilities that the truth is at or below a quantile; symmetric about the median."""

# Chosen on September to December 2025 of electricity-operational only (decision
# 15-issued-forecasts).
MEMORY = 60  # past windows of a series whose errors make its quantiles
NEIGHBOURS = 2  # steps to either side whose errors count for a step as well
GAIN = 0.05  # how fast a pair of levels follows the misses of its band, per window of new truths
DAY_MEMORY = 120  # of which a day's mean or peak has the errors of the MEMORY most alike
FEWEST = 14  # past windows that a series needs for quantiles of its own; else series are pooled
_OUTERMOST = 0.002  # no level leaves [0.002, 0.998], however often its band was missed

PUBLISHED_QUANTILE = "published_q"  # begins the names of covariates that are such quantiles
PUBLISHED_BAND = tuple(f"{PUBLISHED_QUANTILE}{level}" for level in (0.1, 0.9))
"""Covariates by step whose difference says how sure the publisher of a forecast is."""

_MEDIAN = LEVELS.index(0.5)
_LOWER = np.array(LEVELS[:_MEDIAN])
_LOW, _HIGH = LEVELS.index(0.1), LEVELS.index(0.9)  # the 80 % band


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PastErrors:
    """Errors of one forecaster on windows whose truth has become known, in part at least."""

    entities: tuple[str, ...]  # of each window
    until_N: IntArray  # until when each view knew, in minutes since 1970
    # When each window ended, in minutes since 1970: its errors are known from then on
    end_N: IntArray
    # Inputs that the view did not know; errors of views that know less are others
    unknown_N: IntArray
    # Truth minus forecast in the windows' unit, NaN where the truth is not known
    error_NH: FloatArray
    forecast_NH: FloatArray  # in the same unit
    # What errors grow with, from the published band; NaN in windows without one
    scale_NH: FloatArray
    spread_N: FloatArray  # standard deviation of the view's inputs, by which series are compared
    # Whether the forecaster has learnt from these windows since: errors to one side only say how
    # far it may err, and no longer to which side
    is_learnt: bool = False

    @classmethod
    def from_windows(cls, windows: Sequence[Window], forecast_NH: FloatArray) -> Self:
        """Return the errors of forecasts; windows without any known truth are left out.

        The forecaster was fitted on none of the windows; its forecasts are in their unit. DataError
        if there is not one forecast for each window, or a window is given twice.
        """
        views = [window.view for window in windows]
        horizon = find_horizon(views) if views else forecast_NH.shape[-1]
        keys = {(w.view.entity, w.view.origin_utc, w.view.unknown_steps) for w in windows}
        if forecast_NH.shape != (len(windows), horizon) or len(keys) < len(windows):
            raise DataError(
                f"forecasts of shape {forecast_NH.shape} for {len(windows)} windows, {len(keys)} "
                "of them different; give the forecast of every window once"
            )

        known = [i for i, window in enumerate(windows) if np.isfinite(window.y).any()]
        views = [windows[i].view for i in known]
        truth_NH = np.array([windows[i].y for i in known]).reshape(-1, horizon)
        return cls(
            entities=tuple(view.entity for view in views),
            until_N=count_minutes(views, "information_until"),
            end_N=count_minutes(views, "end_utc"),
            unknown_N=np.array([view.unknown_steps for view in views], dtype=np.int64),
            error_NH=truth_NH - forecast_NH[known],
            forecast_NH=forecast_NH[known],
            scale_NH=find_scale(views),
            spread_N=measure_spread(views),
        )

    def __len__(self) -> int:
        return len(self.entities)


def estimate_quantiles(
    past: PastErrors, views: Sequence[WindowView], forecast_NH: FloatArray
) -> FloatArray:
    """Return quantiles of each window at ``LEVELS`` from the errors known by its view.

    An error counts for a view if its window ended by the view's ``information_until`` and its own
    view knew as little of yesterday; all others in ``past`` change nothing, and their order does
    not matter. The quantile at 0.5 is the forecast and the median of its errors. Where the
    forecaster has learnt from its errors since, it is the forecast itself, unless the median would
    have made earlier forecasts of the series better; and the forecast is in its 80 % band.

    They are (N, Q, H) in the windows' unit, ascending along Q. A window before which fewer than
    ``FEWEST`` windows of its kind had ended, in all series together, has NaN. DataError if there is
    not one finite forecast for each view.
    """
    horizon = find_horizon(views) if views else forecast_NH.shape[-1]
    if forecast_NH.shape != (len(views), horizon) or not np.isfinite(forecast_NH).all():
        raise DataError(
            f"forecasts of shape {forecast_NH.shape} for {len(views)} views, or some are not "
            "finite; give a number for every step of every view"
        )

    offset_NQH = np.full((len(views), len(LEVELS), horizon), np.nan)
    if not len(past):
        return offset_NQH
    until_N = count_minutes(views, "information_until")
    kind_N = np.array([view.unknown_steps for view in views])
    series_N = np.array([view.entity for view in views])
    past_series = np.array(past.entities, dtype=str)

    # Where a band was published errors are divided by its scale, elsewhere they are as they are.
    scale_NH = find_scale(views)
    is_scaled_N = np.asarray(np.isfinite(scale_NH).all(axis=1))
    kinds = zip(kind_N.tolist(), series_N.tolist(), is_scaled_N.tolist(), strict=True)
    for unknown, entity, is_scaled in sorted(set(kinds)):
        rows = np.flatnonzero(
            (kind_N == unknown) & (series_N == entity) & (is_scaled_N == is_scaled)
        )
        of_series = np.flatnonzero((past.unknown_N == unknown) & (past_series == entity))
        offset_NQH[rows] = _follow_series(past, of_series, until_N[rows], is_scaled=is_scaled)
    offset_NQH *= np.where(is_scaled_N[:, None], scale_NH, 1.0)[:, None]

    # Pooled errors are the same for all series that know as much at one instant.
    is_pooled_N = ~np.isfinite(offset_NQH).all(axis=(1, 2))
    spread_N = measure_spread(views)
    pairs = zip(kind_N[is_pooled_N].tolist(), until_N[is_pooled_N].tolist(), strict=True)
    for unknown, until in sorted(set(pairs)):
        rows = np.flatnonzero(is_pooled_N & (kind_N == unknown) & (until_N == until))
        pooled_QH = _pool_series(past, np.flatnonzero(past.unknown_N == unknown), until)
        offset_NQH[rows] = pooled_QH * spread_N[rows, None, None]

    # A step without any known error makes the whole window unknown: half a band misleads.
    is_whole_N = np.isfinite(offset_NQH).all(axis=(1, 2))
    quantiles_NQH = np.where(is_whole_N[:, None, None], forecast_NH[:, None] + offset_NQH, np.nan)
    return keep_bounds(views, quantiles_NQH)


def describe_missing(without: int, known: int) -> str:
    """Return why some series have no bands, where the errors of some windows are known."""
    return (
        f"no bands of {without} series: they need the errors of {FEWEST} windows that were not "
        f"fitted, and {known} are known; give more rows or a shorter horizon"
    )


def estimate_day_quantiles(
    past: PastErrors, views: Sequence[WindowView], forecast_NH: FloatArray
) -> dict[str, FloatArray]:
    """Return quantiles at ``LEVELS`` of the mean over each window's steps, and of its highest step.

    The errors of a past window, step by step, are added to the forecast: neighbouring steps err
    alike, so neither quantity has the band that the bounds of its steps would give. The errors are
    those that :func:`estimate_quantiles` may use, of windows without a gap, or where there are too
    few, as on business days, of windows with at least half of the steps that others know. Of a
    series' newest ``DAY_MEMORY`` windows those count whose forecasts were most alike: a day of high
    demand errs more than others. Where the forecaster has learnt from its errors since, the mean of
    the forecast is the median of ``mean``. ``mean`` and ``peak`` are each (N, Q) in the windows'
    unit; NaN where fewer than ``FEWEST`` windows of the series, or of all series together, had
    ended.
    """
    day_NQ = {name: np.full((len(views), len(LEVELS)), np.nan) for name in ("mean", "peak")}
    until_N = count_minutes(views, "information_until")
    scale_NH, spread_N = find_scale(views), measure_spread(views)
    known_P = np.isfinite(past.error_NH).sum(axis=1)
    is_usable_P = known_P == past.error_NH.shape[1]
    if is_usable_P.sum() < FEWEST:
        is_usable_P = 2 * known_P >= known_P.max(initial=0)
    # Where a step has no truth, the window erred as in the mean over the others.
    mean_P1 = mean_known(past.error_NH, axis=1)[:, None]
    error_PH = np.where(np.isfinite(past.error_NH), past.error_NH, mean_P1)
    past_series = np.array(past.entities, dtype=str)

    for row, view in enumerate(views):
        is_scaled = bool(np.isfinite(scale_NH[row]).all())
        is_alike_P = is_usable_P & (past.unknown_N == view.unknown_steps)
        is_alike_P &= past.end_N <= until_N[row]
        is_own_P = is_alike_P & (past_series == view.entity)
        if is_scaled:
            is_own_P &= np.isfinite(past.scale_NH).all(axis=1)

        places = np.flatnonzero(is_own_P)
        places = places[np.argsort(-past.end_N[places], kind="stable")][:DAY_MEMORY]
        is_pooled = len(places) < FEWEST
        error_WH = error_PH[places] * (scale_NH[row] / past.scale_NH[places] if is_scaled else 1.0)
        if is_pooled:
            ends = np.unique(past.end_N[is_alike_P])[-MEMORY:]
            pooled = np.flatnonzero(is_alike_P & np.isin(past.end_N, ends))
            error_WH = error_PH[pooled] / past.spread_N[pooled, None] * spread_N[row]
        if len(error_WH) < FEWEST:
            continue
        for name, reduce in (("mean", np.mean), ("peak", np.max)):
            sample_WH = error_WH
            if not is_pooled:
                distance_W = np.abs(
                    reduce(past.forecast_NH[places], axis=1) - reduce(forecast_NH[row])
                )
                sample_WH = error_WH[np.argsort(distance_W, kind="stable")[:MEMORY]]
            value_W = reduce(forecast_NH[row] + sample_WH, axis=1)
            # Of n past values and the next one each is as likely to have any rank: (n + 1) p.
            value_Q = np.quantile(value_W, LEVELS, method="weibull")
            if past.is_learnt and not value_Q[_LOW] <= reduce(forecast_NH[row]) <= value_Q[_HIGH]:
                mirrored_W = reduce(forecast_NH[row] - sample_WH, axis=1)
                both = np.concatenate([value_W, mirrored_W])
                value_Q = np.quantile(both, LEVELS, method="weibull")
            elif past.is_learnt and name == "mean":
                value_Q += forecast_NH[row].mean() - value_Q[_MEDIAN]
            day_NQ[name][row] = value_Q
    return day_NQ


def stack_published_quantiles(views: Sequence[WindowView]) -> FloatArray:
    """Return what a publisher gave (N, Q, H) at ``LEVELS``: median and band; NaN where nothing."""
    levels = [stack_by_step(views, f"{PUBLISHED_QUANTILE}{level}") for level in LEVELS]
    for row, view in enumerate(views):
        if view.published is not None:
            levels[_MEDIAN][row] = view.published
    return np.stack(levels, axis=1)


def drop_crossing(quantiles_NQH: FloatArray) -> FloatArray:
    """Return a publisher's quantiles, NaN in windows where some of them cross.

    Scoring raises for quantiles that cross: one faulty publication would end the scores of all
    other windows.
    """
    checked_NQH = quantiles_NQH.copy()
    for row, quantiles_QH in enumerate(quantiles_NQH):
        known_QH = quantiles_QH[np.isfinite(quantiles_QH).all(axis=1)]
        if (np.diff(known_QH, axis=0) < 0).any():
            checked_NQH[row] = np.nan
    return checked_NQH


def _follow_series(
    past: PastErrors, of_series: IntArray, until_R: IntArray, *, is_scaled: bool
) -> FloatArray:
    """Return the quantiles (R, Q, H) of one series' errors as known at some instants.

    The past is gone through once in the order of time: each window gets the quantiles that it
    would have had, and as soon as it has ended the levels learn from how many of its truths they
    held.
    """
    order = of_series[np.argsort(past.until_N[of_series])]
    until_W, end_W = past.until_N[order], past.end_N[order]
    error_WH = past.error_NH[order] / (past.scale_NH[order] if is_scaled else 1.0)
    horizon = past.error_NH.shape[1]
    # Windows that overlap share truths, and each miss is to count once.
    length_W = (end_W - until_W) * horizon / (horizon + past.unknown_N[order])
    share_W = np.minimum(1.0, np.diff(end_W, prepend=-np.inf) / length_W)
    quantile_WQH = np.full((len(order), len(LEVELS), horizon), np.nan)
    asked_RQH = np.full((len(until_R), len(LEVELS), horizon), np.nan)
    median_WH = np.full((len(order), horizon), np.nan)

    lower = _LOWER
    n_ended, gained = 0, 0.0
    for instant in sorted({*until_W.tolist(), *until_R.tolist()}):
        while n_ended < len(order) and end_W[n_ended] <= instant:
            error_H, share = error_WH[n_ended], share_W[n_ended]
            lower = _adapt_levels(lower, GAIN * share, error_H, quantile_WQH[n_ended])
            gained += share * np.nansum(np.abs(error_H) - np.abs(error_H - median_WH[n_ended]))
            n_ended += 1

        if n_ended >= FEWEST:
            first = max(n_ended - MEMORY, 0)
            newest_WH = error_WH[first:n_ended]
            apart = 1 + (end_W[n_ended - 1] - end_W[first]) / length_W[first]
            independent = _count_independent(newest_WH, apart) if past.is_learnt else None
            quantile_QH = _read_quantiles(newest_WH, lower, independent)
            median_WH[until_W == instant] = quantile_QH[_MEDIAN]
            if past.is_learnt and gained <= 0:
                quantile_QH = quantile_QH - quantile_QH[_MEDIAN]
            quantile_WQH[until_W == instant] = quantile_QH
            asked_RQH[until_R == instant] = quantile_QH
    return asked_RQH


def _count_independent(error_WH: FloatArray, apart: float) -> float:
    """Return how many windows that do not overlap would say as much as these: ``apart`` or more.

    Windows that share steps need not err alike. How far each errs as the one before it says what it
    adds: n (1 - r) / (1 + r) of n windows, as in an autoregression of order one.
    """
    before, after = error_WH[:-1], error_WH[1:]
    is_known = np.isfinite(before) & np.isfinite(after)
    before, after = before[is_known], after[is_known]
    size = np.linalg.norm(before) * np.linalg.norm(after)
    alike = np.clip(before @ after / size, 0.0, 1.0) if size > 0 else 1.0
    return float(min(len(error_WH), max(apart, len(error_WH) * (1 - alike) / (1 + alike))))


def _pool_series(past: PastErrors, alike: IntArray, until: int) -> FloatArray:
    """Return the quantiles (Q, H) of all series' errors in units of each series' spread."""
    ended = alike[past.end_N[alike] <= until]
    recent = ended[np.isin(past.end_N[ended], np.unique(past.end_N[ended])[-MEMORY:])]
    if len(recent) < FEWEST:
        return np.full((len(LEVELS), past.error_NH.shape[1]), np.nan)
    error_WH = past.error_NH[recent] / past.spread_N[recent, None]
    quantile_QH = _read_quantiles(error_WH, _LOWER, len(recent) if past.is_learnt else None)
    return quantile_QH - quantile_QH[_MEDIAN] if past.is_learnt else quantile_QH


def _adapt_levels(
    lower: FloatArray, gain: float, error_H: FloatArray, quantile_QH: FloatArray
) -> FloatArray:
    """Return the lower levels after one more window: wider where a band held too few truths."""
    is_known_H = np.isfinite(error_H) & np.isfinite(quantile_QH).all(axis=0)
    if not is_known_H.any():
        return lower

    error, quantile = error_H[is_known_H], quantile_QH[:, is_known_H]
    is_inside = (quantile[:_MEDIAN] <= error) & (error <= quantile[: -_MEDIAN - 1 : -1])
    deficit = (1 - 2 * _LOWER) - is_inside.mean(axis=1)
    adapted: FloatArray = np.clip(lower - gain / 2 * deficit, _OUTERMOST, 0.5)
    return adapted


def _read_quantiles(
    error_WH: FloatArray, lower: FloatArray, independent: float | None = None
) -> FloatArray:
    """Return the quantiles (Q, H) of errors at each step and its neighbours, ascending.

    ``independent`` is given for a forecaster that has learnt since, the number of windows that do
    not err alike: the next error may have any rank among theirs, and errors that lie to one side
    count for both. A step without any error, as at night in a shop, has the quantiles of the
    nearest step with one; all are NaN where no step has an error.
    """
    padded = np.pad(error_WH, ((0, 0), (NEIGHBOURS, NEIGHBOURS)), constant_values=np.nan)
    shifts = range(2 * NEIGHBOURS + 1)
    horizon = error_WH.shape[1]
    sample_SH = np.concatenate([padded[:, shift : shift + horizon] for shift in shifts])

    # Sorted once for all levels: NaN is last, so the first `count` of each column are errors.
    sample_SH = np.sort(sample_SH, axis=0)
    last_H = np.isfinite(sample_SH).sum(axis=0) - 1
    level_Q = np.concatenate([lower, [0.5], 1 - lower[::-1]])
    if independent is not None:
        wider = (independent + 1) / max(independent - 1, 1)
        level_Q = np.clip(0.5 + wider * (level_Q - 0.5), 0.0, 1.0)
    place_QH = level_Q[:, None] * np.maximum(last_H, 0)
    below_QH = np.floor(place_QH).astype(np.int64)
    above_QH = np.minimum(below_QH + 1, np.maximum(last_H, 0))

    low_QH = np.take_along_axis(sample_SH, below_QH, axis=0)
    high_QH = np.take_along_axis(sample_SH, above_QH, axis=0)
    quantile_QH = low_QH + (place_QH - below_QH) * (high_QH - low_QH)
    # Levels that adapted at different speeds may have passed each other; quantiles never do.
    quantile_QH = np.sort(quantile_QH, axis=0)
    is_aside_H = (quantile_QH[_LOW] > 0) | (quantile_QH[_HIGH] < 0)
    if independent is not None and is_aside_H.any():
        mirrored_WH = np.concatenate([error_WH, -error_WH])
        widened = level_Q[: len(lower)]
        quantile_QH[:, is_aside_H] = _read_quantiles(mirrored_WH, widened)[:, is_aside_H]
    with_errors = np.flatnonzero(last_H >= 0)
    if 0 < len(with_errors) < horizon:
        distance_HK = np.abs(np.arange(horizon)[:, None] - with_errors)
        quantile_QH = quantile_QH[:, with_errors[distance_HK.argmin(axis=1)]]
    return quantile_QH


def find_scale(views: Sequence[WindowView]) -> FloatArray:
    """Return the root of the published band's width (N, H), NaN for views without one.

    The root: where a publisher is twice as unsure, errors are larger, and less than twice.
    """
    low_NH, high_NH = (stack_by_step(views, name) for name in PUBLISHED_BAND)
    width_NH = high_NH - low_NH
    is_whole_N1 = np.isfinite(width_NH).all(axis=1, keepdims=True)
    return np.where(is_whole_N1, np.sqrt(np.maximum(width_NH, 1.0)), np.nan)


def measure_spread(views: Sequence[WindowView]) -> FloatArray:
    """Return the standard deviation (N,) of each view's inputs; one where all are equal."""
    spread_N = np.array([view.x.std() for view in views], dtype=np.float64)
    return np.where(spread_N > 0, spread_N, 1.0)
