"""Forecast errors in physical units, with counts of what was used and what was left out.

What belongs here: MAE, MSE, RMSE, MAPE, WAPE, MASE and their counts (paper 5.1, metrics). What does
not: result rows (``evaluation.result_rows``), significance (``evaluation.significance``).

MAPE alone would mislead where demand crosses zero, as it does in South Australia on sunny days:
small truths are left out of it and counted, and the other errors use every observed point.

Shapes: N windows, H horizon.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import Window
from compevo_core.errors import DataError

_SMALLEST_TRUTH = float(np.finfo(np.float64).tiny)  # no truth of zero may divide an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Errors of one group of windows.

    Attributes:
        n_windows: number of windows.
        n_points: truths that were observed and scored.
        n_masked: truths that were missing and are in no error.
        mae: mean absolute error, in the unit of the data.
        mse: mean squared error.
        rmse: root of ``mse``.
        mape_pct: mean absolute percentage error over large truths; None where there is none.
        mape_skipped: truths left out of ``mape_pct`` since they are below ``mape_threshold``.
        mape_threshold: smallest absolute truth that is in ``mape_pct``.
        wape_pct: sum of errors over sum of absolute truths; None where all truths are zero.
        mase: mean absolute error over that of the seasonal naive forecast on train; None where a
            window has no such scale.
    """

    n_windows: int
    n_points: int
    n_masked: int
    mae: float
    mse: float
    rmse: float
    mape_pct: float | None
    mape_skipped: int
    mape_threshold: float
    wape_pct: float | None
    mase: float | None


def score(
    y_NH: FloatArray,
    forecast_NH: FloatArray,
    *,
    mape_threshold: float = 0.0,
    mase_scale_N: FloatArray | None = None,
) -> Scores:
    """Score forecasts against truths.

    Args:
        y_NH: truths (N, H); NaN is masked and counted. Zero is a valid observation.
        forecast_NH: forecasts (N, H) in the same unit.
        mape_threshold: absolute truths below it are left out of MAPE.
        mase_scale_N: each window's error of the seasonal naive forecast on train, from
            :func:`measure_naive_error`; None: no MASE.

    Raises:
        DataError: shapes differ, a forecast is not finite, or no truth is observed.
    """
    if y_NH.shape != forecast_NH.shape or y_NH.ndim != 2:
        raise DataError(
            f"truth is {y_NH.shape} but the forecast is {forecast_NH.shape}; "
            "give (N, H) for every window"
        )
    _require_finite(forecast_NH)

    is_observed_NH = np.isfinite(y_NH)
    if not is_observed_NH.any():
        raise DataError(f"none of the {y_NH.size} truths is observed; there is nothing to score")

    # Flat arrays of the observed points: every point weighs the same, whatever its window.
    truth = y_NH[is_observed_NH]
    error = np.abs(forecast_NH[is_observed_NH] - truth)
    is_large = np.abs(truth) >= max(mape_threshold, _SMALLEST_TRUTH)
    total = float(np.abs(truth).sum())
    mse = float(np.mean(error**2))

    return Scores(
        n_windows=y_NH.shape[0],
        n_points=truth.size,
        n_masked=y_NH.size - truth.size,
        mae=float(error.mean()),
        mse=mse,
        rmse=float(np.sqrt(mse)),
        mape_pct=_mape_pct(error[is_large], truth[is_large]),
        mape_skipped=int((~is_large).sum()),
        mape_threshold=mape_threshold,
        wape_pct=100 * float(error.sum()) / total if total > 0 else None,
        mase=_mase(error, is_observed_NH, mase_scale_N),
    )


def _require_finite(forecast_NH: FloatArray) -> None:
    # Checked where the truth is masked too: a NaN there would pass today and not on other data.
    bad = np.argwhere(~np.isfinite(forecast_NH))
    if len(bad):
        raise DataError(
            f"forecast of window {bad[0][0]}, step {bad[0][1]} is not finite; "
            "a forecaster must return a number for every step"
        )


def _mape_pct(error: FloatArray, truth: FloatArray) -> float | None:
    return float(100 * np.mean(error / np.abs(truth))) if truth.size else None


def _mase(
    error: FloatArray, is_observed_NH: npt.NDArray[np.bool_], scale_N: FloatArray | None
) -> float | None:
    # One window without a scale makes the mean undefined; leaving it out would hide that.
    if scale_N is None or not (np.isfinite(scale_N) & (scale_N > 0)).all():
        return None

    scale_NH = np.broadcast_to(scale_N[:, None], is_observed_NH.shape)
    return float(np.mean(error / scale_NH[is_observed_NH]))


def measure_naive_error(train: Iterable[Window]) -> dict[str, float]:
    """Return the mean absolute seasonal difference of every entity: the denominator of MASE.

    Raises:
        DataError: a window is not of the train split.
    """
    differences: dict[str, list[FloatArray]] = {}
    for window in train:
        view = window.view
        if view.split != "train":
            raise DataError(
                f"the MASE scale was given a window of split {view.split!r}; "
                "give train windows only"
            )

        # Lookback and horizon together: a lookback of one season alone has no difference.
        values = np.concatenate([view.x, window.y])
        difference = np.abs(values[view.season_steps :] - values[: -view.season_steps])
        differences.setdefault(view.entity, []).append(difference[np.isfinite(difference)])

    # One scale an entity: states of 8,000 and 1,500 MW would share a scale that fits neither.
    return {
        entity: float(np.concatenate(parts).mean()) for entity, parts in sorted(differences.items())
    }


def measure_window_errors(y_NH: FloatArray, forecast_NH: FloatArray) -> FloatArray:
    """Return the mean absolute error of every window (N,); NaN where all its truths are masked."""
    is_observed_NH = np.isfinite(y_NH)
    n_observed_N = is_observed_NH.sum(axis=1)

    with np.errstate(invalid="ignore"):  # masked truths give NaN differences, which are not used
        difference_NH = np.abs(forecast_NH - y_NH)
    # Sum and count in place of nanmean, which warns for every window without an observation.
    total_N = np.where(is_observed_NH, difference_NH, 0.0).sum(axis=1)
    return np.where(n_observed_N > 0, total_N / np.maximum(n_observed_N, 1), np.nan)
