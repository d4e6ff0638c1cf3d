"""A multi-output ridge regression that regions share, each with a shrunken map of its own.

What belongs here: choosing the penalty, the solution, applying it, its tensors. What does not:
which columns and targets a model has (``baselines.ridge``, ``baselines.published_error_ridge``).

The penalty is chosen by contiguous blocks of the train split with an embargo.
``REGIONAL_SCALE`` and ``TOLERANCE`` are the argmin, over a grid of 90 settings, of the mean 2020
validation MAE of the two maps of the calendar ridge.

Shapes: N windows, H horizon, F features, E entities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from threadpoolctl import threadpool_limits

from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import write_atomically
from compevo_core.data.view import HORIZON, WindowView
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

    penalty: float
    mean: FloatArray
    spread: FloatArray
    offset: FloatArray
    weights: FloatArray

    @classmethod
    def fit(
        cls,
        views: Sequence[WindowView],
        features_NF: FloatArray,
        target_NH: FloatArray,
        codes: npt.NDArray[np.int64],
        entities: int,
    ) -> "LinearMap":
        """Fit a map on the known targets.

        Args:
            views: the windows, for their time.
            features_NF: NaN where a value is missing: the train mean stands in for it.
            target_NH: NaN where masked.
            codes: number of each window's entity.
            entities: number of entities E.

        Raises:
            DataError: a step of the horizon is known in too few windows.
        """
        target_NH = _mask_partial_windows(target_NH)

        # Missing covariates and masked targets must not pull the means.
        spread = np.nanstd(features_NF, axis=0)
        unfitted = cls(
            penalty=0.0,
            mean=np.nanmean(features_NF, axis=0),
            spread=np.where(spread > _SMALLEST_SPREAD, spread, 1.0),
            offset=np.nanmean(target_NH, axis=0),
            weights=np.empty(0),
        )

        design = _append_regional_columns(unfitted.build_design(features_NF), codes, entities)
        centred_NH = target_NH - unfitted.offset
        # Where other processes keep the cores busy, threads that wait for each other make these
        # small matrices ten times slower.
        with threadpool_limits(limits=1, user_api="blas"):
            penalty = _choose_penalty(views, design, centred_NH)
            solution = _solve(design, centred_NH, (penalty,))[0]

        # The regional columns were scaled, so their part of the solution is scaled back.
        width = features_NF.shape[1] + 1
        shared = solution[None, :width]
        regional = solution[width:].reshape(-1, width, HORIZON)
        weights = shared + REGIONAL_SCALE * regional if len(regional) else shared
        return replace(unfitted, penalty=penalty, weights=weights)

    def build_design(self, features_NF: FloatArray) -> FloatArray:
        """Return standardised columns and a one (N, F + 1); a missing value is the train mean."""
        known = np.where(np.isnan(features_NF), self.mean, features_NF)
        standardised = (known - self.mean) / self.spread
        return np.concatenate([standardised, np.ones((len(features_NF), 1))], axis=1)

    def apply(self, features_NF: FloatArray, codes: npt.NDArray[np.int64]) -> FloatArray:
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


def write_maps(
    folder: Path, maps: Mapping[int, LinearMap] | Mapping[bool, LinearMap]
) -> dict[str, float]:
    """Write the tensors of a model's maps; return their penalties by key, for its own file."""
    tensors = {
        f"{key}.{array}": np.ascontiguousarray(getattr(linear_map, array))
        for key, linear_map in maps.items()
        for array in _ARRAYS
    }
    write_atomically(folder / TENSORS_FILE, lambda part: save_file(tensors, part))
    return {str(key): linear_map.penalty for key, linear_map in maps.items()}


def read_maps(folder: Path, penalties: Mapping[str, float]) -> dict[str, LinearMap]:
    """Read what :func:`write_maps` wrote, by the text of each key."""
    tensors = load_file(folder / TENSORS_FILE)
    return {
        key: LinearMap(penalty=penalty, **{array: tensors[f"{key}.{array}"] for array in _ARRAYS})
        for key, penalty in penalties.items()
    }


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
