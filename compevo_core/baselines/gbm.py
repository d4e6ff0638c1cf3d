"""Gradient-boosted trees (LightGBM), with the same evidence as the calendar ridge.

What belongs here: this model. What does not: features shared with the ridge
(``baselines.features``).

All regions and steps are one regression problem with a row per step; the step, the input at that
step and its neighbours, the calendar and yesterday's weather are columns. Settings were chosen by
2020 validation errors, though not blind: test errors of an earlier version had been seen when
boosting rounds and weather changes were added.

A second model without weather is fitted on the same windows and forecasts views that have none:
trees that always saw weather do not know what to do without it. A single missing covariate is
LightGBM's NaN.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import lightgbm as lgb
import numpy as np

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    write_baseline_file,
)
from compevo_core.baselines.features import (
    CALENDAR_NAMES,
    FeatureSpace,
    encode_calendars,
    summarize_inputs,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import write_text
from compevo_core.data.view import HORIZON, LOOKBACK, WindowView
from compevo_core.data.window import WindowSet

BOOSTING_ROUNDS = 1000
SETTINGS: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 63,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "num_threads": 1,  # on shared cores a second thread was slower
    # The next two make a second fit give the same trees, bit by bit.
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}
NEIGHBOURS = (-4, -2, 0, 2, 4)
"""Steps around the target step whose inputs are columns."""
# LightGBM's text format: readable, and loading it runs no code.
MODEL_FILES = {True: "with_weather.txt", False: "without_weather.txt"}

_INPUT_NAMES = (
    "day_mean",
    "day_min",
    "day_max",
    "day_last",
    "day_change",
    "night",
    "midday",
    "evening",
)


class BoostedTrees:
    """LightGBM on scaled changes from the last season."""

    name: ClassVar[str] = "gbm"

    def __init__(self, space: FeatureSpace, boosters: dict[bool, lgb.Booster]) -> None:
        """Take a fitted model; use :meth:`fit` or :meth:`load`."""
        self._space = space
        self._boosters = boosters

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit on all unmasked targets of the windows; ``seed`` draws rows and columns.

        Raises:
            LeakageError: a window is of the test or inference split.
        """
        refuse_held_out_splits(train, cls.name)
        space = FeatureSpace.fit(train)
        # One row per step, so a masked target costs that row and not its window.
        target = space.scale_targets(train).reshape(-1)
        is_known = np.isfinite(target)

        boosters = {}
        for with_weather in (True, False) if space.covariates else (False,):
            rows = _build_rows(space, train.views(), with_weather)
            names = _name_columns(space, with_weather)
            data = lgb.Dataset(rows[is_known], target[is_known], feature_name=names)
            boosters[with_weather] = lgb.train(SETTINGS | {"seed": seed}, data, BOOSTING_ROUNDS)
        return cls(space, boosters)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit."""
        change_NH = np.zeros((len(views), HORIZON))

        for with_weather, positions in self._space.route_by_weather(views).items():
            if positions:
                routed = [views[i] for i in positions]
                rows = _build_rows(self._space, routed, with_weather)
                output = np.asarray(self._boosters[with_weather].predict(rows), dtype=np.float64)
                change_NH[positions] = output.reshape(len(positions), HORIZON)

        return self._space.unscale_changes(views, change_NH)

    def count_missing_covariates(self, views: Sequence[WindowView]) -> dict[str, int]:
        """Count windows without any weather, and single covariates that are missing elsewhere."""
        routes = self._space.route_by_weather(views)
        weather = self._space.extract_weather([views[i] for i in routes[True]])
        without = len(routes[False]) if self._space.covariates else 0
        return {
            "windows_without_covariates": without,
            "covariates_missing": int(np.isnan(weather).sum()),
        }

    def save(self, folder: Path) -> None:
        """Write LightGBM's own text models and, last, ``baseline.json``."""
        for with_weather, booster in self._boosters.items():
            # -1 writes all trees: the default would stop at a "best" iteration, and none is chosen.
            text = booster.model_to_string(num_iteration=-1)
            write_text(folder / MODEL_FILES[with_weather], text)

        write_baseline_file(
            folder,
            self.name,
            space=self._space.to_dict(),
            models=[MODEL_FILES[with_weather] for with_weather in self._boosters],
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            CheckpointMismatch: the folder is incomplete or holds another baseline.
        """
        facts = read_baseline_file(folder, cls.name)
        kinds = {file: with_weather for with_weather, file in MODEL_FILES.items()}
        boosters = {
            kinds[file]: lgb.Booster(model_str=(folder / file).read_text(encoding="utf-8"))
            for file in facts["models"]
        }
        return cls(FeatureSpace.from_dict(facts["space"]), boosters)


def _name_columns(space: FeatureSpace, with_weather: bool) -> list[str]:
    neighbours = [f"input_{offset:+d}" for offset in NEIGHBOURS]
    weather: list[str] = []
    if with_weather:
        weather = [*space.covariates, *(f"{stem}_change" for stem in space.change_names)]

    return ["step", *neighbours, "entity", *_INPUT_NAMES, *CALENDAR_NAMES, *weather]


def _build_rows(space: FeatureSpace, views: Sequence[WindowView], with_weather: bool) -> FloatArray:
    """Return one row per window and step, (N x 48, features)."""
    z_NH = space.scale_inputs(views)

    # Columns that differ between the steps of a window. At either end of the day the outermost
    # input stands in for neighbours that do not exist.
    columns = np.clip(np.arange(HORIZON)[:, None] + np.array(NEIGHBOURS), 0, LOOKBACK - 1)
    neighbours = z_NH[:, columns].reshape(-1, len(NEIGHBOURS))
    step = np.tile(np.arange(HORIZON, dtype=np.float64), len(views))[:, None]

    # Columns that all steps of a window share.
    shared = [
        space.encode_entities(views)[:, None].astype(np.float64),
        summarize_inputs(z_NH),
        encode_calendars(views),
    ]
    if with_weather:
        weather_NC = space.extract_weather(views)
        shared += [weather_NC, space.compute_changes(weather_NC)]

    repeated = np.repeat(np.concatenate(shared, axis=1), HORIZON, axis=0)
    return np.concatenate([step, neighbours, repeated], axis=1)
