"""Ridge regressions: on the last day, on a longer past, and on a published forecast's error.

What belongs here: the multi-output regression that regions share, each with a shrunken map of its
own, its penalty, and the models. What does not: features (``baselines.features``).

``REGIONAL_SCALE`` and ``TOLERANCE`` are the argmin, over 90 settings, of the mean 2020 validation
MAE of both maps of the calendar ridge. Shapes: N windows, H horizon, F features, E entities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from safetensors.numpy import load_file, save

from compevo_core.baselines.base import RoutedBaseline, SpaceT
from compevo_core.baselines.features import FeatureSpace, PastSpace, PublishedErrorSpace
from compevo_core.data.arrays import FloatArray, IntArray, mean_known
from compevo_core.data.splits import leave_out_blocks
from compevo_core.data.view import Window, WindowView
from compevo_core.errors import CheckpointMismatch, DataError

# Exact solutions are cheap, so a coarse grid is tried in full.
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 1e5, 1e6)
BLOCKS = 5  # contiguous parts of train that are left out in turn to choose the penalty
TOLERANCE = 0.05
"""Take the strongest penalty within this share of the best left-out error.

It carries over to other years better than the best one."""
REGIONAL_SCALE = 0.4  # scale of a region's own map relative to the shared one: 0 is fully pooled
MAX_REGIONAL_MAPS = 8  # above this number of entities only the shared map is fitted
MAX_COLUMNS = 2000
"""Nor are maps of regions fitted where they would give more columns: solving takes their cube."""

TENSORS_FILE = "ridge.safetensors"
_ARRAYS = ("mean", "spread", "offset", "weights")

_PART = 4096  # windows
_SMALLEST_SPREAD = 1e-9  # a column with less is constant and must not be divided by it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearMap:
    """One fitted map.

    ``mean`` and ``spread`` (F,) come from train, ``offset`` is (H,), and ``weights`` is
    (E, F + 1, H), with E = 1 if all entities are pooled.
    """

    penalty: float
    mean: FloatArray
    spread: FloatArray
    offset: FloatArray
    weights: FloatArray

    def build_design(self, features_NF: FloatArray) -> FloatArray:
        """Return standardised columns and a one (N, F + 1); a missing value is the train mean."""
        design = np.ones((len(features_NF), features_NF.shape[1] + 1))
        columns = design[:, :-1]
        columns[:] = np.where(np.isnan(features_NF), self.mean, features_NF)
        columns -= self.mean
        columns /= self.spread
        return design

    def apply(self, features_NF: FloatArray, codes: IntArray) -> FloatArray:
        """Return outputs (N, H) for windows of the entities of these numbers."""
        # Pooled maps have one matrix, which serves every entity.
        if len(self.weights) == 1:
            codes = np.zeros_like(codes)

        # One matrix product per window: a larger product may sum in another order, and then a
        # forecast would depend on what else is in the batch.
        rows = [
            self.offset + row @ self.weights[code]
            for row, code in zip(self.build_design(features_NF), codes, strict=True)
        ]
        return np.stack(rows)


class _Ridge(RoutedBaseline[SpaceT, LinearMap]):
    """A map for every route; the fit is exact, so the seed is not used."""

    _least_spread: ClassVar[float] = 0.0  # by which every column counts as varying

    def _fit_model(self, windows: Sequence[Window], route: int, seed: int) -> LinearMap:
        """Fit a map on the known targets; DataError if a step is known in too few windows.

        A step that is known in none, as at night in a shop, has an output of zero. A missing
        feature (NaN) is the train mean, a masked target is left out.
        """
        views = [window.view for window in windows]
        # Part by part: what the columns are made of is larger than they are.
        starts = range(0, len(views), _PART)
        parts = [self._space.build_features(views[at : at + _PART], route) for at in starts]
        features_NF = np.concatenate(parts)
        target_NH = _mask_partial_windows(self._space.scale_targets(windows))

        # Missing covariates and masked targets must not pull the means.
        spread = np.maximum(np.nanstd(features_NF, axis=0), self._least_spread)
        unfitted = LinearMap(
            penalty=0.0,
            mean=np.nanmean(features_NF, axis=0),
            spread=np.where(spread > _SMALLEST_SPREAD, spread, 1.0),
            offset=np.nan_to_num(mean_known(target_NH, axis=0)),
            weights=np.empty(0),
        )

        design = unfitted.build_design(features_NF)
        width, entities = design.shape[1], len(self._space.entities)
        if 1 < entities <= MAX_REGIONAL_MAPS and (1 + entities) * width <= MAX_COLUMNS:
            # A copy of all columns for each region, zero for the others. The penalty then applies
            # to the deviation of a region from the shared map, more strongly the smaller the scale.
            codes = self._space.encode_entities(views)
            is_of_region = [(codes == code)[:, None] for code in range(entities)]
            copies = [np.where(is_of, REGIONAL_SCALE * design, 0.0) for is_of in is_of_region]
            design = np.concatenate([design, *copies], axis=1)
        centred_NH = target_NH - unfitted.offset
        penalty, solution = _fit_map(views, design, centred_NH)

        # The regional columns were scaled, so their part of the solution is scaled back.
        shared = solution[None, :width]
        regional = solution[width:].reshape(-1, width, target_NH.shape[1])
        weights = shared + REGIONAL_SCALE * regional if len(regional) else shared
        return replace(unfitted, penalty=penalty, weights=weights)

    def _apply(self, views: Sequence[WindowView], route: int) -> FloatArray:
        features_NF, linear_map = self._space.build_features(views, route), self._models[route]
        if features_NF.shape[1] != len(linear_map.mean):
            raise CheckpointMismatch(
                f"this version's {self.name} has {features_NF.shape[1]} columns of "
                f"{views[0].dataset}, the fitted one {len(linear_map.mean)}; fit it again"
            )
        return linear_map.apply(features_NF, self._space.encode_entities(views))

    def _to_files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        tensors = {
            f"{route}.{array}": np.ascontiguousarray(getattr(linear_map, array))
            for route, linear_map in self._models.items()
            for array in _ARRAYS
        }
        penalties = {str(route): linear_map.penalty for route, linear_map in self._models.items()}
        facts = {"space": self._space.to_dict(), "penalties": penalties}
        return facts, {TENSORS_FILE: save(tensors)}

    @classmethod
    def _from_files(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        tensors = load_file(folder / TENSORS_FILE)
        space = cls._space_class.from_dict(facts["space"])
        maps = {
            route: LinearMap(
                penalty=facts["penalties"][str(route)],
                **{array: tensors[f"{route}.{array}"] for array in _ARRAYS},
            )
            for route in space.routes
        }
        return cls(space, maps)


class CalendarRidge(_Ridge[FeatureSpace]):
    """Changes from the last season as a linear map of the last day, calendar and weather.

    Two maps are fitted on the same windows: one with weather, and one for views that have none. A
    single missing covariate is set to its train mean. Where inputs hold two weeks, a last day that
    jumps away from the usual week has columns of its own. Nothing holds inputs to the range seen on
    train: clipping them, and shrinking the shape of the day more, were tried after 2026 errors had
    been seen, lost on validation, and were taken out again.
    """

    name = "calendar-ridge"
    title = "Calendar ridge"
    _space_class = FeatureSpace


class PublishedErrorRidge(_Ridge[PublishedErrorSpace]):
    """The error of the published forecast, from yesterday's errors and changes, and the calendar.

    An error that was not known yet is the mean of the last week at its step, and zero where there
    is none either. Views that know less of yesterday have a map of their own.
    """

    name = "published-error-ridge"
    title = "Ridge on the published forecast's error"
    _space_class = PublishedErrorSpace


class OwnWeatherRidge(_Ridge[PastSpace]):
    """Changes from the last fortnight, by past, calendar and weather, for each lead.

    Columns are means over parts of the day. In spring the first warm days lie far outside what a
    train split of winter held: a column that hardly varied there is not divided by its spread.
    """

    name = "own-weather-ridge"
    title = "Ridge on own past and forecast weather"
    _space_class = PastSpace
    _least_spread = 0.3


def _mask_partial_windows(target_NH: FloatArray) -> FloatArray:
    """Return targets with partly known windows masked, if at least half are wholly known.

    One set of rows for all steps lets one solution serve all. Where most windows have masked steps
    (weekends of the exchange rate) every step keeps the windows it is known in.
    """
    is_whole = np.asarray(np.isfinite(target_NH).all(axis=1))
    if 2 * is_whole.sum() >= len(target_NH):
        target_NH = np.where(is_whole[:, None], target_NH, np.nan)

    known_H = np.isfinite(target_NH).sum(axis=0)
    fewest = int(min(known_H[known_H > 0], default=0))
    if fewest < 2 * BLOCKS:
        raise DataError(
            f"a step of the horizon is known in {fewest} train windows; the ridge needs "
            f"{2 * BLOCKS}: give more history, or a shorter horizon"
        )
    return target_NH


def _fit_map(
    views: Sequence[WindowView], design: FloatArray, target_NH: FloatArray
) -> tuple[float, FloatArray]:
    """Return a penalty and the ridge solution (F, H) under it.

    It is the largest penalty within ``TOLERANCE`` of the least absolute error when contiguous
    blocks of origins are left out in turn.
    """
    blocks = list(leave_out_blocks(views, BLOCKS))
    errors = np.zeros(len(PENALTIES))
    sums: list[tuple[IntArray, FloatArray, FloatArray]] = []

    # Steps that are known in the same windows share one matrix to invert.
    patterns, owner = np.unique(np.isfinite(target_NH), axis=1, return_inverse=True)
    for i in range(patterns.shape[1]):
        is_known, steps = patterns[:, i], np.flatnonzero(owner.reshape(-1) == i)
        truth, known = target_NH[:, steps], design[is_known]
        gram, moment = known.T @ known, known.T @ truth[is_known]
        sums.append((steps, gram, moment))

        for is_held_out, is_kept in blocks:
            if not is_kept.any():
                continue

            # What is left out is a fifth of the windows: less to multiply than the others.
            is_left_out, is_judged = is_known & ~is_kept, is_known & is_held_out
            left_out = design[is_left_out]
            kept_gram = gram - left_out.T @ left_out
            kept_moment = moment - left_out.T @ truth[is_left_out]
            judged, expected = design[is_judged], truth[is_judged]
            for j, penalty in enumerate(PENALTIES):
                missed = judged @ _solve(kept_gram, kept_moment, penalty) - expected
                errors[j] += np.abs(missed).sum()  # MAE is the first measure of every table

    penalty = PENALTIES[int(np.flatnonzero(errors <= (1 + TOLERANCE) * errors.min())[-1])]
    solution = np.zeros((design.shape[1], target_NH.shape[1]))
    for steps, gram, moment in sums:
        solution[:, steps] = _solve(gram, moment, penalty)
    return penalty, solution


def _solve(gram: FloatArray, moment: FloatArray, penalty: float) -> FloatArray:
    return np.asarray(np.linalg.solve(gram + penalty * np.eye(len(gram)), moment))
