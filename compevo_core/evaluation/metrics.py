"""Forecast errors in physical units, with counts of what was used and what was left out (paper 5.1; style, rule 8).

What belongs here: MAE, MSE, RMSE, MAPE, WAPE, MASE and their counts. What does not: rows, files, significance
(``evaluation``, ``significance``) or LUD (``lud``). Legend: N windows, H horizon.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Errors of one group of windows.

    ``mape_pct`` leaves out truths whose size is below ``mape_threshold`` (``mape_skipped`` of them); it is None where
    none is left, as ``wape_pct`` is where all truths are zero and ``mase`` where there is no train scale.
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
    """Score forecasts against truths, both (N, H) in one unit; NaN in the truth is masked and counted.

    ``mase_scale_N`` is each window's seasonal-naive error on train (:func:`naive_error`). A truth of zero is a truth.

    Raises:
        DataError: shapes differ, a forecast is not finite, or no truth is left.
    """
    if y_NH.shape != forecast_NH.shape or y_NH.ndim != 2:
        raise DataError(
            f"truth is {y_NH.shape} but the forecast is {forecast_NH.shape}; give (N, H) for every window"
        )
    if not np.isfinite(forecast_NH).all():
        at = np.argwhere(~np.isfinite(forecast_NH))[0]
        raise DataError(
            f"forecast of window {at[0]}, step {at[1]} is not finite; a forecaster must answer every step"
        )
    used = np.isfinite(y_NH)
    if not used.any():
        raise DataError(f"none of the {y_NH.size} truths is observed; there is nothing to score")
    truth, error = y_NH[used], np.abs(forecast_NH[used] - y_NH[used])
    large = np.abs(truth) >= max(mape_threshold, np.finfo(np.float64).tiny)
    total = float(np.abs(truth).sum())
    mse = float(np.mean(error**2))
    return Scores(
        n_windows=y_NH.shape[0],
        n_points=int(used.sum()),
        n_masked=int((~used).sum()),
        mae=float(error.mean()),
        mse=mse,
        rmse=float(np.sqrt(mse)),
        mape_pct=float(100 * np.mean(error[large] / np.abs(truth[large]))) if large.any() else None,
        mape_skipped=int((~large).sum()),
        mape_threshold=mape_threshold,
        wape_pct=100 * float(error.sum()) / total if total > 0 else None,
        mase=_mase(error, used, mase_scale_N),
    )


def _mase(
    error: FloatArray, used: npt.NDArray[np.bool_], scale_N: FloatArray | None
) -> float | None:
    if scale_N is None or not (np.isfinite(scale_N) & (scale_N > 0)).all():
        return None
    return float(np.mean(error / np.broadcast_to(scale_N[:, None], used.shape)[used]))


class _View(Protocol):
    @property
    def entity(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def x(self) -> FloatArray: ...
    @property
    def season_steps(self) -> int: ...


class _Window(Protocol):
    @property
    def view(self) -> Any: ...
    @property
    def y(self) -> FloatArray: ...


def naive_error(train: Iterable[_Window]) -> dict[str, float]:
    """Mean absolute seasonal difference of every entity on its train windows: the denominator of MASE.

    Raises:
        DataError: a window is not of the train split.
    """
    differences: dict[str, list[FloatArray]] = {}
    for window in train:
        view: _View = window.view
        if view.split != "train":
            raise DataError(
                f"the MASE scale was given a window of split {view.split!r}; give train windows only"
            )
        values = np.concatenate([view.x, window.y])
        gap = np.abs(values[view.season_steps :] - values[: -view.season_steps])
        differences.setdefault(view.entity, []).append(gap[np.isfinite(gap)])
    return {
        entity: float(np.concatenate(parts).mean()) for entity, parts in sorted(differences.items())
    }


def window_errors(y_NH: FloatArray, forecast_NH: FloatArray) -> FloatArray:
    """Mean absolute error of every window (N,), NaN where all its truths are masked."""
    with np.errstate(invalid="ignore"):
        used = np.isfinite(y_NH)
        total = np.where(used, np.abs(forecast_NH - y_NH), 0.0).sum(axis=1)
        return np.where(used.any(axis=1), total / np.maximum(used.sum(axis=1), 1), np.nan)
