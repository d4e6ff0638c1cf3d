"""Calendar ridge: a linear map from the last day, the calendar and yesterday's weather.

What belongs here: this model. What does not: features (``baselines.features``) or the choice of a
prior (``training.prior``).

The map gives 48 changes from the last season. Regions share one map and add a shrunken one of their
own. The penalty is chosen by contiguous blocks of the train split with an embargo. Two maps are
fitted on the same windows: one with weather, and one without that forecasts views that have none.
A single missing covariate is set to its train mean. :meth:`CalendarRidge.count_missing_covariates`
counts both cases.

``REGIONAL_SCALE`` and ``TOLERANCE`` are the argmin, over a grid of 90 settings, of the mean 2020
validation MAE of the two maps. Nothing holds inputs to the range seen on train: clipping them, and
shrinking the shape of the day more, were tried after 2026 errors had been seen, lost on validation,
and were taken out again.

Shapes: N windows, H horizon, F features, E entities.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    write_baseline_file,
)
from compevo_core.baselines.features import FeatureSpace, encode_calendars
from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import write_atomically
from compevo_core.data.window import HORIZON, Window, WindowSet, WindowView
from compevo_core.errors import DataError

# Exact solutions are cheap, so a coarse grid is tried in full.
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 1e5, 1e6)
BLOCKS = 5  # contiguous parts of train that are left out in turn to choose the penalty
TOLERANCE = 0.05
"""Take the strongest penalty within this share of the best left-out error.

It carries over to other years better than the best one."""
REGIONAL_SCALE = 0.4
"""Scale of a region's own map beside the shared one: 0 is fully pooled."""
MAX_REGIONAL_MAPS = 8
"""Above this number of entities only the shared map is fitted."""
TENSORS_FILE = "ridge.safetensors"

_ARRAYS = ("mean", "spread", "offset", "weights")
_SMALLEST_SPREAD = 1e-9  # a column with less is constant and must not be divided by it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearMap:
    """One fitted map.

    ``mean`` and ``spread`` (F,) are those of train, ``offset`` is (H,), and ``weights`` is
    (E, F + 1, H), with E = 1 if all entities are pooled.
    """

    with_weather: bool
    penalty: float
    mean: FloatArray
    spread: FloatArray
    offset: FloatArray
    weights: FloatArray

    def build_design(self, features_NF: FloatArray) -> FloatArray:
        """Return standardised columns and a one (N, F + 1); a missing value is the train mean."""
        known = np.where(np.isnan(features_NF), self.mean, features_NF)
        standardised = (known - self.mean) / self.spread
        return np.concatenate([standardised, np.ones((len(features_NF), 1))], axis=1)


class CalendarRidge:
    """Multi-output ridge regression on scaled changes from the last season."""

    name: ClassVar[str] = "calendar-ridge"

    def __init__(self, space: FeatureSpace, maps: Sequence[LinearMap]) -> None:
        """Take a fitted model; use :meth:`fit` or :meth:`load`."""
        self._space = space
        self._maps = {linear_map.with_weather: linear_map for linear_map in maps}

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit on the unmasked targets; the fit is exact, so ``seed`` is not used.

        Raises:
            LeakageError: a window is of the test or inference split.
            DataError: a step of the horizon is known in too few windows.
        """
        refuse_held_out_splits(train, cls.name)
        space = FeatureSpace.fit(train)
        kinds = (True, False) if space.covariates else (False,)
        return cls(space, [_fit_map(space, train, with_weather) for with_weather in kinds])

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit."""
        change_NH = np.zeros((len(views), HORIZON))

        for with_weather, positions in self._space.route_by_weather(views).items():
            routed = [views[i] for i in positions]
            if routed:
                change_NH[positions] = _apply_map(self._space, self._maps[with_weather], routed)

        return self._space.unscale_changes(views, change_NH)

    def count_missing_covariates(self, views: Sequence[WindowView]) -> dict[str, int]:
        """Count windows without any weather, and single covariates set to their train means."""
        routes = self._space.route_by_weather(views)
        weather = self._space.extract_weather([views[i] for i in routes[True]])
        without = len(routes[False]) if self._space.covariates else 0
        return {
            "windows_without_covariates": without,
            "covariates_imputed": int(np.isnan(weather).sum()),
        }

    def save(self, folder: Path) -> None:
        """Write ``ridge.safetensors`` and, last, ``baseline.json``."""
        tensors = {
            f"{with_weather}.{array}": np.ascontiguousarray(getattr(linear_map, array))
            for with_weather, linear_map in self._maps.items()
            for array in _ARRAYS
        }
        write_atomically(folder / TENSORS_FILE, lambda part: save_file(tensors, part))

        penalties = {str(kind): linear_map.penalty for kind, linear_map in self._maps.items()}
        write_baseline_file(folder, self.name, space=self._space.to_dict(), penalties=penalties)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            CheckpointMismatch: the folder is incomplete or holds another baseline.
        """
        facts = read_baseline_file(folder, cls.name)
        tensors = load_file(folder / TENSORS_FILE)

        maps = [
            LinearMap(
                with_weather=kind == "True",
                penalty=penalty,
                **{array: tensors[f"{kind}.{array}"] for array in _ARRAYS},
            )
            for kind, penalty in facts["penalties"].items()
        ]
        return cls(FeatureSpace.from_dict(facts["space"]), maps)


def _build_features(
    space: FeatureSpace, views: Sequence[WindowView], with_weather: bool
) -> FloatArray:
    z_NH = space.scale_inputs(views)
    level = z_NH.mean(axis=1, keepdims=True)

    # Shape and level are separate columns: the penalty may shrink one and leave the other.
    parts = [z_NH - level, level, encode_calendars(views)]
    if with_weather:
        weather_NC = space.extract_weather(views)
        parts += [weather_NC, space.compute_hinges(weather_NC)]
    return np.concatenate(parts, axis=1)


def _fit_map(space: FeatureSpace, windows: Sequence[Window], with_weather: bool) -> LinearMap:
    views = [window.view for window in windows]
    features_NF = _build_features(space, views, with_weather)
    target_NH = _mask_partial_windows(space.scale_targets(windows))

    # Missing covariates and masked targets must not pull the means.
    spread = np.nanstd(features_NF, axis=0)
    unfitted = LinearMap(
        with_weather=with_weather,
        penalty=0.0,
        mean=np.nanmean(features_NF, axis=0),
        spread=np.where(spread > _SMALLEST_SPREAD, spread, 1.0),
        offset=np.nanmean(target_NH, axis=0),
        weights=np.empty(0),
    )

    design = _append_regional_columns(
        unfitted.build_design(features_NF), space.encode_entities(views), len(space.entities)
    )
    centred_NH = target_NH - unfitted.offset
    penalty = _choose_penalty(views, design, centred_NH)
    solution = _solve(design, centred_NH, (penalty,))[0]

    # The regional columns were scaled, so their part of the solution is scaled back.
    width = features_NF.shape[1] + 1
    shared = solution[None, :width]
    regional = solution[width:].reshape(-1, width, HORIZON)
    weights = shared + REGIONAL_SCALE * regional if len(regional) else shared
    return replace(unfitted, penalty=penalty, weights=weights)


def _mask_partial_windows(target_NH: FloatArray) -> FloatArray:
    """Return targets with partly known windows masked, if at least half are wholly known.

    One set of rows for all steps lets one solution serve all. Where most windows have masked steps
    (weekends of the exchange rate) every step keeps the windows it is known in.

    Raises:
        DataError: a step of the horizon is known in too few windows.
    """
    is_whole = np.isfinite(target_NH).sum(axis=1) == HORIZON
    if 2 * is_whole.sum() >= len(target_NH):
        target_NH = np.where(is_whole[:, None], target_NH, np.nan)

    fewest = int(np.isfinite(target_NH).sum(axis=0).min())
    if fewest < 2 * BLOCKS:
        raise DataError(
            f"a step of the horizon is known in {fewest} train windows; the ridge needs "
            f"{2 * BLOCKS}: use a longer train split"
        )
    return target_NH


def _apply_map(
    space: FeatureSpace, linear_map: LinearMap, views: Sequence[WindowView]
) -> FloatArray:
    design = linear_map.build_design(_build_features(space, views, linear_map.with_weather))

    # Pooled maps have one matrix, which serves every entity.
    codes = np.zeros(len(views), dtype=np.int64)
    if len(linear_map.weights) > 1:
        codes = space.encode_entities(views)

    # One matrix product per window: a larger product may sum in another order, and then a forecast
    # would depend on what else is in the batch.
    rows = [
        linear_map.offset + row @ linear_map.weights[code]
        for row, code in zip(design, codes, strict=True)
    ]
    return np.stack(rows)


def _append_regional_columns(
    design: FloatArray, codes: npt.NDArray[np.int64], entities: int
) -> FloatArray:
    if not 1 < entities <= MAX_REGIONAL_MAPS:
        return design

    # A copy of all columns for each region, zero for the others. The penalty then applies to the
    # deviation of a region from the shared map, more strongly the smaller the scale.
    regional = [
        np.where((codes == code)[:, None], REGIONAL_SCALE * design, 0.0) for code in range(entities)
    ]
    return np.concatenate([design, *regional], axis=1)


def _solve(design: FloatArray, target_NH: FloatArray, penalties: Sequence[float]) -> FloatArray:
    """Return the ridge solutions (penalties, F, H)."""
    solutions = np.zeros((len(penalties), design.shape[1], HORIZON))

    # Steps that are known in the same windows share one matrix to invert.
    patterns, owner = np.unique(np.isfinite(target_NH), axis=1, return_inverse=True)
    for i in range(patterns.shape[1]):
        rows = patterns[:, i]
        steps = np.flatnonzero(owner.reshape(-1) == i)

        known = design[rows]
        gram = known.T @ known
        moment = known.T @ target_NH[np.ix_(rows, steps)]
        for j, penalty in enumerate(penalties):
            solutions[j][:, steps] = np.linalg.solve(gram + penalty * np.eye(len(gram)), moment)
    return solutions


def _choose_penalty(
    views: Sequence[WindowView], design: FloatArray, target_NH: FloatArray
) -> float:
    """Return the largest penalty within ``TOLERANCE`` of the least absolute error.

    Contiguous blocks of origins are left out in turn.
    """
    origins = sorted({view.origin_utc for view in views})
    errors = np.zeros(len(PENALTIES))

    for block in np.array_split(np.arange(len(origins)), BLOCKS):
        if not block.size:
            continue
        first = origins[block[0]]
        last = origins[block[-1]]

        # Two windows less than two horizons apart share steps, which would make too small a
        # penalty look good.
        embargo: timedelta = 2 * HORIZON * views[0].step
        is_held_out = np.array([first <= v.origin_utc <= last for v in views])
        is_near = np.array([first - embargo < v.origin_utc < last + embargo for v in views])
        # In a short sample the embargo of a block can cover all of train.
        if is_near.all():
            continue

        for i, solution in enumerate(_solve(design[~is_near], target_NH[~is_near], PENALTIES)):
            # Absolute error, since MAE is the first measure of every table.
            errors[i] += np.nansum(np.abs(design[is_held_out] @ solution - target_NH[is_held_out]))

    is_good = errors <= (1 + TOLERANCE) * errors.min()
    return PENALTIES[int(np.flatnonzero(is_good)[-1])]
