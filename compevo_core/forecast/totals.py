"""Series that are totals of others: forecasts moved so that they add up.

What belongs here: the reconciliation of points, and what it does to bands and parts. What does not:
which series are totals (``data.datasets``), their values (the pipeline's sources).

Source: Wickramasuriya, Athanasopoulos and Hyndman, "Optimal forecast reconciliation for
hierarchical and grouped time series through trace minimization", Journal of the American
Statistical Association, 2019, with variances on the diagonal alone (WLS): of all values that add
up, those nearest to the forecasts, where a series counts by the width of its own 80 % band. Past
errors are moved by the same map, which is linear, so bands belong to forecasts that add up.

Shapes: N series, of which M are not totals; A members, Q levels, H horizon; P past windows, G
origins of theirs.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.datasets import ALL_SERIES
from compevo_core.data.quantiles import LEVELS, PastErrors, estimate_quantiles
from compevo_core.data.view import WindowView, keep_bounds
from compevo_core.errors import DataError
from compevo_core.forecast.prediction import Prediction

_BAND = (0.1, 0.9)
_LEAST_SHARE = 1e-6  # of the widest band: a series without errors must not hold all others


def reconcile(
    prediction: Prediction,
    views: Sequence[WindowView],
    totals: Mapping[str, Sequence[str]],
    past: PastErrors,
) -> tuple[Prediction, PastErrors]:
    """Return the prediction of one origin with totals that are the sums of their members.

    Beside it the past errors as they would have been, had its weights been used then.

    The change is part of each member model's level, so that parts still add up to forecasts.
    ``totals`` names series by the name of their total, or is ``ALL_SERIES``; ``past`` are errors of
    forecasts that were not moved. DataError if a series of a total has no view.
    """
    names = [view.entity for view in views]
    alone = [name for name in names if name not in totals]
    by_total = {
        name: alone if list(parts) == [ALL_SERIES] else list(parts)
        for name, parts in totals.items()
    }
    missing = sorted({part for name in by_total for part in (name, *by_total[name])} - set(names))
    if missing:
        raise DataError(
            f"no forecast of {', '.join(missing)}, so that the totals cannot add up; read the "
            "newest values of every series, or take the total out of [totals]"
        )

    base = [names.index(name) for name in alone]
    sums_NM = np.array(
        [[float(part in by_total.get(name, [name])) for part in alone] for name in names]
    )
    low_NH, high_NH = (prediction.quantiles[:, LEVELS.index(level)] for level in _BAND)
    width_N = (high_NH - low_NH).mean(axis=1)
    if not np.isfinite(width_N).all():
        width_N = np.ones(len(names))  # too few errors are known yet: all series count alike
    weight_N = 1 / np.maximum(width_N, _LEAST_SHARE * width_N.max()) ** 2

    weighted_MN = sums_NM.T * weight_N
    parts_MN = np.linalg.solve(weighted_MN @ sums_NM, weighted_MN)
    base_MH = parts_MN @ prediction.aggregate
    moved_NH = sums_NM @ keep_bounds([views[row] for row in base], base_MH)
    change_NH = moved_NH - prediction.aggregate
    past = _move_errors(past, names, sums_NM @ parts_MN)
    return dataclasses.replace(
        prediction,
        aggregate=moved_NH,
        agents=prediction.agents + change_NH,
        levels=prediction.levels + change_NH,
        quantiles=estimate_quantiles(past, views, moved_NH),
    ), past


def _move_errors(past: PastErrors, names: Sequence[str], moved_by_NN: FloatArray) -> PastErrors:
    """Return past errors of forecasts moved as today's is; as they are where a series has none.

    What was true adds up, so that the error of a moved forecast is its error, moved.
    """
    if not len(past):
        return past
    moments_3P = np.stack([past.until_N, past.end_N, past.unknown_N])
    origins, origin_P = np.unique(moments_3P, axis=1, return_inverse=True)
    row_GN = np.full((origins.shape[1], len(names)), -1)
    for row, (origin, name) in enumerate(zip(origin_P, past.entities, strict=True)):
        if name in names:
            row_GN[origin, names.index(name)] = row
    row_GN = row_GN[(row_GN >= 0).all(axis=1)]

    error_PH = past.error_NH.copy()
    moved_GNH = np.einsum("nm,gmh->gnh", moved_by_NN, error_PH[row_GN])
    error_PH[row_GN] = np.where(np.isfinite(moved_GNH), moved_GNH, error_PH[row_GN])
    return dataclasses.replace(past, error_NH=error_PH)
