"""A forecast of windows with its parts, and forecasts adjusted so that totals add up.

What belongs here: these values in the windows' own unit; the reconciliation of points, and what it
does to bands and parts. What does not: making forecasts (``forecast.forecaster``), keeping them
(``forecast.issued``), which series are totals (``data.datasets``), their values (the pipeline's
sources).

Source of the reconciliation: Wickramasuriya, Athanasopoulos and Hyndman, "Optimal forecast
reconciliation for hierarchical and grouped time series through trace minimization", Journal of the
American Statistical Association, 2019: of all values that add up, take the nearest to the
forecasts. A series counts by the width of its own 80 % band (``wls``), by the covariance of past
errors (``mint``, shrunk to its diagonal as by Schaefer and Strimmer), or as any other (``ols``); or
the parts stay, and are added up (``bottom-up``). Past errors are moved by the same map, which is
linear, so bands belong to forecasts that add up.

Shapes: A agents, N windows or series, M of them not totals, Q quantile levels, H horizon; P past
windows, G their origins.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import numpy as np

from compevo_core.data.arrays import FloatArray, IntArray
from compevo_core.data.datasets import ALL_SERIES, BOTTOM_UP, MINT, OLS, WLS
from compevo_core.data.quantiles import LEVELS, PastErrors, estimate_quantiles
from compevo_core.data.view import WindowView, keep_bounds
from compevo_core.errors import DataError

_AXIS_OF_WINDOWS = {
    **dict.fromkeys(("aggregate", "step_weights", "quantiles"), 0),
    **dict.fromkeys(("agents", "bases", "levels"), 1),
}

_MOST_OTHERS = 0.5  # of the inputs, above which the point of least absolute error is one value
_UNEXPLAINED = 0.5  # of the variance: a season that explains less does not predict this value
_LEAST_SHARE = 1e-6  # of the widest band: a series without errors must not hold all others


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Forecasts in the windows' own unit, with their parts."""

    # (N, H) the population's forecast, the weighted sum of the agents' (Eq. 6)
    aggregate: FloatArray
    agents: FloatArray  # (A, N, H) each agent's own forecast, calibrated (decision 08-calibration)
    # (N, A, H) weight of each agent by window and step (Eq. 5), or of the calibration's fallback;
    # they sum to 1 over the agents
    step_weights: FloatArray
    # (N, Q, H) quantiles at ``quantiles.LEVELS`` from errors of earlier days; NaN for windows with
    # too few of them
    quantiles: FloatArray
    # Ids of the articles each agent read, by agent and window, best match first
    chosen_news: list[list[tuple[str, ...]]]
    # (A, N, H) the forecast that each agent corrects: its mixture of the base models
    bases: FloatArray
    # (A, N, H) by how much bounds, and totals that add up, move each agent's forecast
    levels: FloatArray
    # (N, H) the base that validated best, as it is; None without any base model
    prior: FloatArray | None
    # Number of answers of the text decoder that could not be parsed; the base model stands in for
    # each. 0 for the head
    n_unparsed: int

    @classmethod
    def join(cls, parts: Sequence[tuple[Sequence[int], Self]]) -> Self:
        """Put predictions of parts of the windows together."""
        order = np.argsort(np.concatenate([positions for positions, _ in parts])).tolist()
        made = [prediction for _, prediction in parts]
        priors = [of_block.prior for of_block in made if of_block.prior is not None]
        by_agent = zip(*(of_block.chosen_news for of_block in made), strict=True)
        joined = cls(
            chosen_news=[[choice for part in agent for choice in part] for agent in by_agent],
            prior=np.concatenate(priors) if priors else None,
            n_unparsed=sum(of_block.n_unparsed for of_block in made),
            **{
                name: np.concatenate([getattr(of_block, name) for of_block in made], axis=axis)
                for name, axis in _AXIS_OF_WINDOWS.items()
            },
        )
        return joined.take(order)

    def take(self, windows: Sequence[int]) -> Self:
        """Return the predictions of some windows, in the order given; counts stay as they are."""
        rows = list(windows)
        taken: dict[str, Any] = {
            name: np.take(getattr(self, name), rows, axis=axis)
            for name, axis in _AXIS_OF_WINDOWS.items()
        }
        return dataclasses.replace(
            self,
            chosen_news=[[choices[i] for i in rows] for choices in self.chosen_news],
            prior=None if self.prior is None else self.prior[rows],
            **taken,
        )

    @property
    def weights(self) -> FloatArray:
        """The mean weight of each agent over each window, (N, A)."""
        return np.asarray(self.step_weights.mean(axis=2))

    @property
    def equal(self) -> FloatArray:
        """The plain mean of the agents' forecasts, (N, H)."""
        return np.asarray(self.agents.mean(axis=0))


def centre_sparse(
    prediction: Prediction, views: Sequence[WindowView], totals: Mapping[str, Sequence[str]]
) -> Prediction:
    """Return forecasts with the mean of the inputs where most of these are one, as sparse sales.

    The point of least absolute error is then that value, and a planner who adds it up orders none.
    Solar power stays as it is, since the hour says when it is zero. ``totals`` change as their
    parts do.
    """
    points_NH = prediction.aggregate.copy()
    for row, view in enumerate(views):
        if _is_sparse(view):
            points_NH[row] += view.x.mean() - points_NH[row].mean()
    points_NH = keep_bounds(views, points_NH)

    change_NH = points_NH - prediction.aggregate
    for row, view in enumerate(views):
        if view.entity in totals:
            are_parts = [
                other.origin_utc == view.origin_utc
                and other.entity not in totals
                and {other.entity, ALL_SERIES} & {*totals[view.entity]} != set()
                for other in views
            ]
            points_NH[row] = prediction.aggregate[row] + change_NH[are_parts].sum(axis=0)
    return _move(prediction, points_NH)


def _is_sparse(view: WindowView) -> bool:
    """Whether most inputs are one value, and the season explains less than half of when."""
    values, counts = np.unique(view.x, return_counts=True)
    is_other_T = view.x != values[counts.argmax()]
    share, season = is_other_T.mean(), view.seasons.shortest
    if share >= _MOST_OTHERS or view.lookback < 2 * season:
        return bool(share < _MOST_OTHERS)
    place_T = np.arange(view.lookback) % season
    share_S = np.bincount(place_T, is_other_T) / np.bincount(place_T)
    variance = ((is_other_T - share_S[place_T]) ** 2).sum() / (view.lookback - season)
    return bool(variance >= _UNEXPLAINED * share * (1 - share))


def reconcile(
    prediction: Prediction,
    views: Sequence[WindowView],
    totals: Mapping[str, Sequence[str]],
    past: PastErrors,
    method: str = WLS,
) -> tuple[Prediction, PastErrors]:
    """Return the prediction of one origin with totals that are the sums of their members.

    Also return the past errors that its weights would have made.

    The change is part of each member model's level, so that parts still add up to forecasts.
    ``totals`` names series by the name of their total, or is ``ALL_SERIES``; ``past`` are errors of
    forecasts that were not moved. DataError if a series of a total has no view.
    """
    names = [view.entity for view in views]
    parts_only = [name for name in names if name not in totals]
    by_total = {
        name: parts_only if list(parts) == [ALL_SERIES] else list(parts)
        for name, parts in totals.items()
    }
    missing = sorted({part for name in by_total for part in (name, *by_total[name])} - set(names))
    if missing:
        raise DataError(
            f"no forecast of {', '.join(missing)}, so that the totals cannot add up; read the "
            "newest values of every series, or take the total out of [totals]"
        )

    base = [names.index(name) for name in parts_only]
    sums_NM = np.array(
        [[float(part in by_total.get(name, [name])) for part in parts_only] for name in names]
    )
    low_NH, high_NH = (prediction.quantiles[:, LEVELS.index(level)] for level in (0.1, 0.9))
    width_N = (high_NH - low_NH).mean(axis=1)
    if method == OLS or not np.isfinite(width_N).all():
        width_N = np.ones(len(names))  # too few errors are known yet: all series count alike
    weight_N = 1 / np.maximum(width_N, _LEAST_SHARE * width_N.max()) ** 2

    weighted_MN = sums_NM.T * weight_N
    if method == MINT and (covariance_NN := _estimate_covariance(past, names)) is not None:
        weighted_MN = sums_NM.T @ np.linalg.pinv(covariance_NN)
    parts_MN = np.linalg.solve(weighted_MN @ sums_NM, weighted_MN)
    if method == BOTTOM_UP:
        parts_MN = np.eye(len(names))[base]
    base_MH = parts_MN @ prediction.aggregate
    moved_NH = sums_NM @ keep_bounds([views[row] for row in base], base_MH)
    past = _move_errors(past, names, sums_NM @ parts_MN)
    quantiles_NQH = estimate_quantiles(past, views, moved_NH)
    return dataclasses.replace(_move(prediction, moved_NH), quantiles=quantiles_NQH), past


def _move(prediction: Prediction, moved_NH: FloatArray) -> Prediction:
    """Return a prediction with another sum; the change is part of each member's level."""
    change_NH = moved_NH - prediction.aggregate
    return dataclasses.replace(
        prediction,
        aggregate=moved_NH,
        agents=prediction.agents + change_NH,
        levels=prediction.levels + change_NH,
    )


def _move_errors(past: PastErrors, names: Sequence[str], moved_by_NN: FloatArray) -> PastErrors:
    """Return past errors of forecasts adjusted as today's; unchanged if a series has none.

    Truths add up, so that the error of an adjusted forecast is its adjusted error.
    """
    if not len(past):
        return past
    row_GN = _list_origins(past, names)
    error_PH = past.error_NH.copy()
    moved_GNH = np.einsum("nm,gmh->gnh", moved_by_NN, error_PH[row_GN])
    error_PH[row_GN] = np.where(np.isfinite(moved_GNH), moved_GNH, error_PH[row_GN])
    return dataclasses.replace(past, error_NH=error_PH)


def _list_origins(past: PastErrors, names: Sequence[str]) -> IntArray:
    """Return the place of each series' window for each origin that all series share (G, N)."""
    moments_3P = np.stack([past.until_N, past.end_N, past.unknown_N])
    origins, origin_P = np.unique(moments_3P, axis=1, return_inverse=True)
    row_GN = np.full((origins.shape[1], len(names)), -1)
    for row, (origin, name) in enumerate(zip(origin_P, past.entities, strict=True)):
        if name in names:
            row_GN[origin, names.index(name)] = row
    return row_GN[(row_GN >= 0).all(axis=1)]


def _estimate_covariance(past: PastErrors, names: Sequence[str]) -> FloatArray | None:
    """Return the covariance of past errors of all steps (N, N), its correlations shrunk."""
    if not len(past):
        return None
    error_TN = past.error_NH[_list_origins(past, names)].swapaxes(1, 2).reshape(-1, len(names))
    error_TN = error_TN[np.isfinite(error_TN).all(axis=1)]
    spread_N = error_TN.std(axis=0) if len(error_TN) > 2 else np.zeros(len(names))
    if not spread_N.all():
        return None
    scaled_TN = (error_TN - error_TN.mean(axis=0)) / spread_N
    products_TNN = scaled_TN[:, :, None] * scaled_TN[:, None]
    correlation_NN = products_TNN.mean(axis=0)
    is_other_NN = ~np.eye(len(names), dtype=bool)
    doubt = products_TNN.var(axis=0)[is_other_NN].sum() / len(scaled_TN)
    kept = 1 - min(1.0, doubt / (correlation_NN[is_other_NN] ** 2).sum())
    shrunk_NN = np.where(is_other_NN, kept * correlation_NN, 1.0)
    return np.asarray(shrunk_NN * np.outer(spread_N, spread_N))


def reconcile_origins(
    prediction: Prediction,
    views: Sequence[WindowView],
    totals: Mapping[str, Sequence[str]],
    past: PastErrors,
    method: str,
) -> Prediction:
    """Return what :func:`reconcile` gives for several origins; unchanged without totals."""
    if not totals:
        return prediction
    rows: dict[datetime, list[int]] = {}
    for row, view in enumerate(views):
        rows.setdefault(view.origin_utc, []).append(row)
    parts = []
    for some in rows.values():
        of_one, alike = prediction.take(some), [views[row] for row in some]
        moved, _ = reconcile(of_one, alike, totals, past, method)
        parts.append((some, moved))
    return Prediction.join(parts)
