"""Calendar ridge: a linear map from the last day, the calendar and yesterday's weather to 48 changes (design 4.2).

What belongs here: this model. What does not: features (``features``) or the choice of a prior (the trainer).
Regions share one map and add a shrunken one of their own. The penalty is chosen by contiguous blocks of the train
split with embargo. ``TAU`` and ``TOLERANCE`` are the argmin, over a grid of 90 settings, of the mean 2020 validation
MAE of the two maps: one with weather, and one without that is fitted on the same windows and answers views that have
none. A single missing covariate is set to its train mean. :meth:`CalendarRidge.coverage` counts both.
Nothing holds inputs to the range seen on train: clipping them, and shrinking the shape of the day more, were tried
after 2026 errors had been seen, lost on validation, and were taken out again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from safetensors.numpy import load_file, save_file

from compevo_core.baselines.base import read_baseline_file, refuse_held_out_splits, write_baseline_file
from compevo_core.baselines.features import FeatureSpace, calendar_matrix
from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import HORIZON, Window, WindowSet, WindowView
from compevo_core.errors import DataError

PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 1e5, 1e6)
BLOCKS = 5
TOLERANCE = 0.05
"""The strongest penalty within this share of the best left-out error is taken: it carries over to other years."""
TAU = 0.4
"""Size of a region's own map beside the shared one: 0 is fully pooled."""
MAX_OWN_MAPS = 8
"""Above this number of entities only the shared map is fitted."""
TENSORS_FILE = "ridge.safetensors"
_ARRAYS = ("mean", "spread", "offset", "weights")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearMap:
    """Mean and spread on train (F,), offset (H,), one weight matrix an entity (E, F + 1, H); E = 1 if pooled."""

    with_weather: bool
    penalty: float
    mean: FloatArray
    spread: FloatArray
    offset: FloatArray
    weights: FloatArray

    def design(self, raw: FloatArray) -> FloatArray:
        """Standardised columns and a one (N, F + 1); what is missing is the mean."""
        known = np.where(np.isnan(raw), self.mean, raw)
        scaled = (known - self.mean) / self.spread
        return np.concatenate([scaled, np.ones((len(raw), 1))], axis=1)


class CalendarRidge:
    """Multi-output ridge regression on scaled changes from the last season."""

    name: ClassVar[str] = "calendar-ridge"

    def __init__(self, space: FeatureSpace, maps: Sequence[LinearMap]) -> None:
        """Keep a fitted model; use :meth:`fit` or :meth:`load`."""
        self._space = space
        self._maps = {m.with_weather: m for m in maps}

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
        return cls(space, [_fit_map(space, train, kind) for kind in kinds])

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecasts (N, 48) in each view's unit."""
        change = np.zeros((len(views), HORIZON))
        for kind, rows in self._route(views).items():
            chosen = [views[i] for i in rows]
            if chosen:
                change[rows] = _apply(self._space, self._maps[kind], chosen)
        return self._space.to_physical(views, change)

    def coverage(self, views: Sequence[WindowView]) -> dict[str, int]:
        """How many windows have no weather at all, and how many single covariates were set to train means."""
        routed = self._route(views)
        absent = np.isnan(self._space.weather([views[i] for i in routed[True]]))
        without = len(routed[False]) if self._space.covariates else 0
        return {"windows_without_covariates": without, "covariates_imputed": int(absent.sum())}

    def save(self, folder: Path) -> None:
        """Write ``ridge.safetensors`` and, last, ``baseline.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{kind}.{field}": np.ascontiguousarray(getattr(one, field))
            for kind, one in self._maps.items()
            for field in _ARRAYS
        }
        save_file(tensors, folder / TENSORS_FILE)
        penalties = {str(kind): one.penalty for kind, one in self._maps.items()}
        write_baseline_file(folder, self.name, space=self._space.to_dict(), penalties=penalties)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        facts = read_baseline_file(folder, cls.name)
        tensors = load_file(folder / TENSORS_FILE)
        maps = [
            LinearMap(
                with_weather=kind == "True",
                penalty=penalty,
                **{field: tensors[f"{kind}.{field}"] for field in _ARRAYS},
            )
            for kind, penalty in facts["penalties"].items()
        ]
        return cls(FeatureSpace.from_dict(json.loads(json.dumps(facts["space"]))), maps)

    def _route(self, views: Sequence[WindowView]) -> dict[bool, list[int]]:
        known = [self._space.has_weather(view) for view in views]
        return {kind: [i for i, has in enumerate(known) if has is kind] for kind in (True, False)}


def _features(space: FeatureSpace, views: Sequence[WindowView], with_weather: bool) -> FloatArray:
    z_NH = space.scaled_inputs(views)
    level = z_NH.mean(axis=1, keepdims=True)
    parts = [z_NH - level, level, calendar_matrix(views)]
    if with_weather:
        weather = space.weather(views)
        parts += [weather, space.hinges(weather)]
    return np.concatenate(parts, axis=1)


def _fit_map(space: FeatureSpace, windows: Sequence[Window], with_weather: bool) -> LinearMap:
    views = [w.view for w in windows]
    raw, target = _features(space, views, with_weather), _usable(space.targets(windows))
    spread = np.nanstd(raw, axis=0)
    bare = LinearMap(
        with_weather=with_weather,
        penalty=0.0,
        mean=np.nanmean(raw, axis=0),
        spread=np.where(spread > 1e-9, spread, 1.0),
        offset=np.nanmean(target, axis=0),
        weights=np.empty(0),
    )
    design = _with_own_maps(bare.design(raw), space.entity_codes(views), len(space.entities))
    penalty = _choose_penalty(views, design, target - bare.offset)
    solved = _solve(design, target - bare.offset, (penalty,))[0]
    width = raw.shape[1] + 1
    shared, own = solved[:width], solved[width:].reshape(-1, width, HORIZON)
    return replace(
        bare, penalty=penalty, weights=shared[None] + TAU * own if len(own) else shared[None]
    )


def _usable(target: FloatArray) -> FloatArray:
    """Targets with windows blanked that miss some steps, as long as at least half of the windows are whole.

    One set of rows for all steps makes one solution serve all. Where most windows have masked steps (weekends of the
    exchange rate) every step keeps the windows it is known in.
    """
    known = np.isfinite(target)
    whole = known.sum(axis=1) == HORIZON
    used = np.where(whole[:, None], target, np.nan) if 2 * whole.sum() >= len(target) else target
    fewest = int(np.isfinite(used).sum(axis=0).min())
    if fewest < 2 * BLOCKS:
        raise DataError(
            f"a step of the horizon is known in {fewest} train windows; the ridge needs {2 * BLOCKS}"
        )
    return used


def _apply(space: FeatureSpace, one: LinearMap, views: Sequence[WindowView]) -> FloatArray:
    design = one.design(_features(space, views, one.with_weather))
    codes = (
        space.entity_codes(views) if len(one.weights) > 1 else np.zeros(len(views), dtype=np.int64)
    )
    # one matrix product a window: a forecast must not depend on what else is in the batch
    return np.stack(
        [one.offset + row @ one.weights[code] for row, code in zip(design, codes, strict=True)]
    )


def _with_own_maps(
    design: FloatArray, codes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], n: int
) -> FloatArray:
    if not 1 < n <= MAX_OWN_MAPS:
        return design
    own = [np.where((codes == code)[:, None], TAU * design, 0.0) for code in range(n)]
    return np.concatenate([design, *own], axis=1)


def _solve(design: FloatArray, target: FloatArray, penalties: Sequence[float]) -> FloatArray:
    """Ridge solutions (penalties, F, H); steps that are known in the same windows share one matrix."""
    solved = np.zeros((len(penalties), design.shape[1], HORIZON))
    patterns, owner = np.unique(np.isfinite(target), axis=1, return_inverse=True)
    for i in range(patterns.shape[1]):
        rows, steps = patterns[:, i], np.flatnonzero(owner.reshape(-1) == i)
        known = design[rows]
        gram, moment = known.T @ known, known.T @ target[np.ix_(rows, steps)]
        for j, penalty in enumerate(penalties):
            solved[j][:, steps] = np.linalg.solve(gram + penalty * np.eye(len(gram)), moment)
    return solved


def _choose_penalty(views: Sequence[WindowView], design: FloatArray, target: FloatArray) -> float:
    """The largest penalty within ``TOLERANCE`` of the least absolute error over contiguous blocks left out in turn."""
    origins = sorted({view.origin_utc for view in views})
    errors = np.zeros(len(PENALTIES))
    for block in np.array_split(np.arange(len(origins)), BLOCKS):
        if not block.size:
            continue
        first, last = origins[block[0]], origins[block[-1]]
        embargo: timedelta = 2 * HORIZON * views[0].step
        held = np.array([first <= v.origin_utc <= last for v in views])
        near = np.array([first - embargo < v.origin_utc < last + embargo for v in views])
        if near.all():
            continue
        for i, solved in enumerate(_solve(design[~near], target[~near], PENALTIES)):
            errors[i] += np.nansum(np.abs(design[held] @ solved - target[held]))
    good = np.flatnonzero(errors <= (1 + TOLERANCE) * errors.min())
    return PENALTIES[int(good[-1])]
