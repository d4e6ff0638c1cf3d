"""Errors of point forecasts and scores of quantiles, with counts of what was left out.

What belongs here: MAE, MSE, RMSE, MAPE, WAPE, MASE and their counts (paper 5.1, metrics); pinball
loss, weighted quantile loss, coverage and width of bands. What does not: result rows
(``evaluation.result_rows``), paired tests (``evaluation.comparison``), making quantiles
(``data.quantiles``).

MAPE by itself would mislead where demand crosses zero, as in South Australia on sunny days:
small truths are left out of it and counted, and the other errors use every observed point. The
weighted quantile loss is GluonTS's ``mean_weighted_sum_quantile_loss`` (Alexandrov et al., JMLR
21(116), 2020), which fev calls WQL: at each of ``WQL_LEVELS`` twice the sum of the pinball losses
over the sum of absolute truths, then the mean over levels.

Shapes: N windows, Q levels, H horizon, P observed points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.quantiles import LEVELS
from compevo_core.data.scaling import group_train
from compevo_core.data.view import Window
from compevo_core.errors import DataError

_SMALLEST_TRUTH = float(np.finfo(np.float64).tiny)  # no truth of zero may divide an error


PUBLISHED_LEVELS = (0.1, 0.5, 0.9)
"""Levels that AEMO publishes (its POE90, POE50, POE10); all methods are compared on them."""
WQL_LEVELS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
BANDS = {"80": (0.1, 0.9), "95": (0.025, 0.975)}
"""Levels of both ends by the share, in percent, that a band is expected to hold."""


def name_level(level: float) -> str:
    """Return a level as the end of a column's name: ``q10`` for 0.1, ``q025`` for 0.025."""
    return f"q{level:.3f}".replace("0.", "").removesuffix("0")


PINBALL_COLUMNS = {level: f"pinball_{name_level(level)}" for level in LEVELS}
BELOW_COLUMNS = {level: f"below_{name_level(level)}" for level in LEVELS}
SUMMARY_COLUMNS = ("pinball_10_50_90", "wql", "coverage_80", "width_80", "coverage_95", "width_95")
QUANTILE_COLUMNS = (*SUMMARY_COLUMNS, *PINBALL_COLUMNS.values(), *BELOW_COLUMNS.values())
"""Columns of a result row that score quantiles; null if a method has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Errors of one group of windows."""

    n_windows: int  # number of windows
    n_points: int  # truths that were observed and scored
    n_masked: int  # truths that were missing and are in no error
    mae: float  # mean absolute error, in the unit of the data
    mse: float  # mean squared error
    rmse: float  # root of ``mse``
    # Mean absolute percentage error over large truths; None if there is none
    mape_pct: float | None
    mape_skipped: int  # truths left out of ``mape_pct``, below ``mape_threshold``
    mape_threshold: float  # smallest absolute truth that is in ``mape_pct``
    # Sum of errors over sum of absolute truths; None if all truths are zero
    wape_pct: float | None
    # Mean absolute error over the naive seasonal forecast's on train; None if a window lacks it
    mase: float | None


def score(
    y_NH: FloatArray,
    forecast_NH: FloatArray,
    *,
    mape_threshold: float = 0.0,
    mase_scale_N: FloatArray | None = None,
) -> Scores:
    """Score forecasts (N, H) against truths (N, H) in the same unit; NaN is masked and counted.

    Absolute truths below ``mape_threshold`` are left out of MAPE. Without ``mase_scale_N``, each
    window's entry of :func:`measure_naive_error`, there is no MASE. DataError if shapes differ, a
    forecast is not finite, or no truth is observed.
    """
    if y_NH.shape != forecast_NH.shape or y_NH.ndim != 2:
        raise DataError(
            f"truth is {y_NH.shape} but the forecast is {forecast_NH.shape}; "
            "give (N, H) for every window"
        )
    # Checked where the truth is masked too: a NaN there would pass today and not on other data.
    bad = np.argwhere(~np.isfinite(forecast_NH))
    if len(bad):
        raise DataError(
            f"forecast of window {bad[0][0]}, step {bad[0][1]} is not finite; "
            "a forecaster must return a number for every step"
        )

    is_observed_NH = np.isfinite(y_NH)
    if not is_observed_NH.any():
        raise DataError(f"none of the {y_NH.size} truths is observed; there is nothing to score")

    # Flat arrays of the observed points: every point of every window weighs the same.
    truth = y_NH[is_observed_NH]
    error = np.abs(forecast_NH[is_observed_NH] - truth)
    is_large = np.abs(truth) >= max(mape_threshold, _SMALLEST_TRUTH)
    shares = error[is_large] / np.abs(truth[is_large])
    total = float(np.abs(truth).sum())
    mse = float(np.mean(error**2))
    mase = None
    # One window without a scale makes the mean undefined; leaving it out would hide that.
    if mase_scale_N is not None and (np.isfinite(mase_scale_N) & (mase_scale_N > 0)).all():
        scale_NH = np.broadcast_to(mase_scale_N[:, None], y_NH.shape)
        mase = float(np.mean(error / scale_NH[is_observed_NH]))

    return Scores(
        n_windows=y_NH.shape[0],
        n_points=truth.size,
        n_masked=y_NH.size - truth.size,
        mae=float(error.mean()),
        mse=mse,
        rmse=float(np.sqrt(mse)),
        mape_pct=100 * float(shares.mean()) if shares.size else None,
        mape_skipped=int((~is_large).sum()),
        mape_threshold=mape_threshold,
        wape_pct=100 * float(error.sum()) / total if total > 0 else None,
        mase=mase,
    )


def measure_naive_error(train: Sequence[Window]) -> dict[str, float]:
    """Return the mean absolute seasonal difference of every entity: the denominator of MASE."""
    # One scale per entity: states of 8,000 and 1,500 MW would share a scale that fits neither.
    errors: dict[str, float] = {}
    for entity, windows in group_train(train, "the MASE scale").items():
        # Lookback and horizon together: a lookback of one season has no difference by itself.
        values = [(np.concatenate([w.view.x, w.y]), w.view.seasons.day) for w in windows]
        difference = np.concatenate([np.abs(of[day:] - of[:-day]) for of, day in values])
        errors[entity] = float(difference[np.isfinite(difference)].mean())
    return errors


def measure_window_errors(y_NH: FloatArray, forecast_NH: FloatArray) -> FloatArray:
    """Return the mean absolute error of every window (N,); NaN if all its truths are masked."""
    return mean_known(np.abs(forecast_NH - y_NH), axis=1)


def score_quantiles(y_NH: FloatArray, quantiles_NQH: FloatArray) -> dict[str, float | None]:
    """Return the score of each of ``QUANTILE_COLUMNS``, None where a window lacks a level of it.

    Quantiles are at ``LEVELS``, NaN where there is none; a masked truth is NaN. Pinball losses and
    widths are in the unit of the truths, coverages and shares in [0, 1]. DataError if shapes
    differ, or quantiles of a step cross.
    """
    if quantiles_NQH.shape != (len(y_NH), len(LEVELS), *y_NH.shape[1:]):
        raise DataError(
            f"truth is {y_NH.shape} but the quantiles are {quantiles_NQH.shape}; give (N, "
            f"{len(LEVELS)}, H): a quantile at each of {', '.join(map(str, LEVELS))}"
        )
    # A level that one window lacks is left out: its score would be one of other windows.
    has_level_Q = np.isfinite(quantiles_NQH).all(axis=(0, 2))
    known_NQH = quantiles_NQH[:, has_level_Q]
    crossings = np.argwhere(np.diff(known_NQH, axis=1) < 0)
    if len(crossings):
        window, _, step = crossings[0]
        raise DataError(
            f"quantiles of window {window}, step {step} cross; a higher level needs a higher value"
        )

    is_observed_NH = np.isfinite(y_NH)
    truth = y_NH[is_observed_NH]
    levels = np.array(LEVELS)[has_level_Q].tolist() if truth.size else []
    by_level = {level: known_NQH[:, row][is_observed_NH] for row, level in enumerate(levels)}

    scores: dict[str, float | None] = dict.fromkeys(QUANTILE_COLUMNS)
    pinball: dict[float, float] = {}
    for level, quantile in by_level.items():
        error = truth - quantile
        pinball[level] = float(np.maximum(level * error, (level - 1) * error).mean())
        scores[PINBALL_COLUMNS[level]] = pinball[level]
        scores[BELOW_COLUMNS[level]] = float((truth <= quantile).mean())
    if pinball.keys() >= set(PUBLISHED_LEVELS):
        scores["pinball_10_50_90"] = float(np.mean([pinball[level] for level in PUBLISHED_LEVELS]))
    if pinball.keys() >= set(WQL_LEVELS) and truth.any():
        loss = float(np.mean([pinball[level] for level in WQL_LEVELS]))
        scores["wql"] = 2 * loss / float(np.abs(truth).mean())
    for name, (low, high) in BANDS.items():
        if low in by_level and high in by_level:
            is_inside = (by_level[low] <= truth) & (truth <= by_level[high])
            scores[f"coverage_{name}"] = float(is_inside.mean())
            scores[f"width_{name}"] = float((by_level[high] - by_level[low]).mean())
    return scores
