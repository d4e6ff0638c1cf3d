"""Gradient-boosted trees (LightGBM): one row a half-hour, the same evidence as the calendar ridge (design 4.2).

What belongs here: this model. What does not: features shared with the ridge (``features``).
All regions and steps are one problem; the step, the input at that step and its neighbours, the calendar and
yesterday's weather are columns. Settings were chosen by 2020 validation errors, though not blind: test errors of an
earlier version had been seen when rounds and weather changes were added. A second model without weather is fitted on
the same windows and answers views that have none, since trees that always saw weather do not know what to do without
it. A single missing covariate is LightGBM's NaN. One thread: on shared cores a second one was slower.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import lightgbm as lgb
import numpy as np

from compevo_core.baselines.base import read_baseline_file, refuse_held_out_splits, write_baseline_file
from compevo_core.baselines.features import (
    CALENDAR_NAMES,
    FeatureSpace,
    calendar_matrix,
    flat_inputs,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import HORIZON, LOOKBACK, WindowSet, WindowView

ROUNDS = 1000
SETTINGS: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 63,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}
NEIGHBOURS = (-4, -2, 0, 2, 4)
"""Steps around the target step whose inputs are columns."""
MODEL_FILES = {True: "with_weather.txt", False: "without_weather.txt"}


class BoostedTrees:
    """LightGBM on scaled changes from the last season."""

    name: ClassVar[str] = "gbm"

    def __init__(self, space: FeatureSpace, boosters: dict[bool, lgb.Booster]) -> None:
        """Keep a fitted model; use :meth:`fit` or :meth:`load`."""
        self._space = space
        self._boosters = boosters

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit on all unmasked targets of the windows; ``seed`` draws rows and columns."""
        refuse_held_out_splits(train, cls.name)
        space = FeatureSpace.fit(train)
        target = space.targets(train).reshape(-1)
        known = np.isfinite(target)
        boosters = {}
        for with_weather in (True, False) if space.covariates else (False,):
            rows = _rows(space, train.views(), with_weather)
            data = lgb.Dataset(rows[known], target[known], feature_name=_names(space, with_weather))
            boosters[with_weather] = lgb.train(SETTINGS | {"seed": seed}, data, ROUNDS)
        return cls(space, boosters)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecasts (N, 48) in each view's unit."""
        change = np.zeros((len(views), HORIZON))
        for kind, at in self._route(views).items():
            if at:
                rows = _rows(self._space, [views[i] for i in at], kind)
                answer = np.asarray(self._boosters[kind].predict(rows), dtype=np.float64)
                change[at] = answer.reshape(len(at), HORIZON)
        return self._space.to_physical(views, change)

    def coverage(self, views: Sequence[WindowView]) -> dict[str, int]:
        """How many windows have no weather at all, and how many single covariates were missing elsewhere."""
        routed = self._route(views)
        absent = np.isnan(self._space.weather([views[i] for i in routed[True]]))
        without = len(routed[False]) if self._space.covariates else 0
        return {"windows_without_covariates": without, "covariates_missing": int(absent.sum())}

    def save(self, folder: Path) -> None:
        """Write LightGBM's own text models and, last, ``baseline.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        for kind, booster in self._boosters.items():
            (folder / MODEL_FILES[kind]).write_text(booster.model_to_string(num_iteration=-1))
        facts = {
            "space": self._space.to_dict(),
            "models": [MODEL_FILES[kind] for kind in self._boosters],
        }
        write_baseline_file(folder, self.name, **facts)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        facts = read_baseline_file(folder, cls.name)
        kinds = {name: kind for kind, name in MODEL_FILES.items()}
        boosters = {
            kinds[name]: lgb.Booster(model_str=(folder / name).read_text())
            for name in facts["models"]
        }
        return cls(FeatureSpace.from_dict(json.loads(json.dumps(facts["space"]))), boosters)

    def _route(self, views: Sequence[WindowView]) -> dict[bool, list[int]]:
        known = [self._space.has_weather(view) for view in views]
        return {kind: [i for i, has in enumerate(known) if has is kind] for kind in (True, False)}


def _names(space: FeatureSpace, with_weather: bool) -> list[str]:
    local = [f"input_{offset:+d}" for offset in NEIGHBOURS]
    day = ["day_mean", "day_min", "day_max", "day_last", "day_change", "night", "midday", "evening"]
    weather = (
        [*space.covariates, *(f"{stem}_change" for stem in space.change_names)]
        if with_weather
        else []
    )
    return ["step", *local, "entity", *day, *CALENDAR_NAMES, *weather]


def _rows(space: FeatureSpace, views: Sequence[WindowView], with_weather: bool) -> FloatArray:
    """One row a window and step, (N x 48, features)."""
    z_NH = space.scaled_inputs(views)
    columns = np.clip(np.arange(HORIZON)[:, None] + np.array(NEIGHBOURS), 0, LOOKBACK - 1)
    step = np.tile(np.arange(HORIZON, dtype=np.float64), len(views))[:, None]
    near = z_NH[:, columns].reshape(-1, len(NEIGHBOURS))
    day = [
        space.entity_codes(views)[:, None].astype(np.float64),
        flat_inputs(z_NH),
        calendar_matrix(views),
    ]
    if with_weather:
        weather = space.weather(views)
        day += [weather, space.changes(weather)]
    return np.concatenate(
        [step, near, np.repeat(np.concatenate(day, axis=1), HORIZON, axis=0)], axis=1
    )
