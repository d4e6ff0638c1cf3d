"""Gradient-boosted trees (LightGBM): on the day to come, and on a published forecast's error.

All regions and steps are one regression problem with a row per step. Settings were chosen by
validation errors: of 2020 for :class:`BoostedTrees`, though not blind, since test errors of an
earlier version had been seen; of 2025 for :class:`PublishedErrorTrees`. Shapes: N windows, H
horizon.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import lightgbm as lgb
import numpy as np

from compevo_core.baselines.base import (
    RoutedBaseline,
    SpaceT,
    read_baseline_file,
    write_baseline_file,
)
from compevo_core.baselines.features import (
    CALENDAR_NAMES,
    FeatureSpace,
    PublishedErrorSpace,
    encode_calendars,
    summarize_inputs,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON, LOOKBACK, Window, WindowView
from compevo_core.runtime.files import write_text

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
ERROR_ROUNDS = 100
ERROR_SETTINGS: dict[str, Any] = {
    "objective": "regression_l1",  # MAE is the first measure of every table
    "learning_rate": 0.03,
    "num_leaves": 31,
}
"""What the trees of a published forecast's error change of :data:`SETTINGS`."""

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


class _Trees(RoutedBaseline[SpaceT, lgb.Booster]):
    """Trees for every route; the seed samples rows and columns."""

    _settings: ClassVar[dict[str, Any]]
    _rounds: ClassVar[int]

    @staticmethod
    @abstractmethod
    def _name_file(route: int) -> str: ...

    @staticmethod
    @abstractmethod
    def _name_columns(space: SpaceT, route: int) -> list[str]: ...

    @staticmethod
    @abstractmethod
    def _build_rows(space: SpaceT, views: Sequence[WindowView], route: int) -> FloatArray:
        """Return one row per window and step, (N x 48, features)."""

    @classmethod
    def _fit_model(
        cls, space: SpaceT, windows: Sequence[Window], route: int, seed: int
    ) -> lgb.Booster:
        # One row per step, so a masked target costs that row and not its window.
        target = space.scale_targets(windows).reshape(-1)
        is_known = np.isfinite(target)

        rows = cls._build_rows(space, [window.view for window in windows], route)
        names = cls._name_columns(space, route)
        data = lgb.Dataset(rows[is_known], target[is_known], feature_name=names)
        return lgb.train(SETTINGS | cls._settings | {"seed": seed}, data, cls._rounds)

    def _apply(self, views: Sequence[WindowView], route: int) -> FloatArray:
        rows = self._build_rows(self._space, views, route)
        output = np.asarray(self._models[route].predict(rows), dtype=np.float64)
        return output.reshape(len(views), HORIZON)

    def save(self, folder: Path) -> None:
        """Write LightGBM's own text models and, last, ``baseline.json``."""
        for route, booster in self._models.items():
            # -1 writes all trees: the default would stop at a "best" iteration, and none is chosen.
            text = booster.model_to_string(num_iteration=-1)
            write_text(folder / self._name_file(route), text)
        write_baseline_file(folder, self.name, space=self._space.to_dict(), **self._list_files())

    def _list_files(self) -> dict[str, list[str]]:
        return {}

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote; CheckpointMismatch if it is incomplete or another's."""
        facts = read_baseline_file(folder, cls.name)
        space = cls._space_class.from_dict(facts["space"])
        files = {route: folder / cls._name_file(route) for route in space.routes}
        boosters = {
            route: lgb.Booster(model_str=file.read_text(encoding="utf-8"))
            for route, file in files.items()
        }
        return cls(space, boosters)


class BoostedTrees(_Trees[FeatureSpace]):
    """Changes from the last season, with the same evidence as the calendar ridge.

    A second model without weather is fitted on the same windows and forecasts views that have none:
    trees that always saw weather do not know what to do without it. A single missing covariate is
    LightGBM's NaN.
    """

    name: ClassVar[str] = "gbm"
    _space_class = FeatureSpace
    _settings: ClassVar[dict[str, Any]] = {}
    _rounds = BOOSTING_ROUNDS

    @staticmethod
    def _name_file(route: int) -> str:
        return MODEL_FILES[bool(route)]

    def _list_files(self) -> dict[str, list[str]]:
        return {"models": [self._name_file(route) for route in self._models]}

    @staticmethod
    def _name_columns(space: FeatureSpace, route: int) -> list[str]:
        neighbours = [f"input_{offset:+d}" for offset in NEIGHBOURS]
        changes = [f"{stem}_change" for stem in space.change_names]
        weather = [*space.covariates, *changes] if route else []
        return ["step", *neighbours, "entity", *_INPUT_NAMES, *CALENDAR_NAMES, *weather]

    @staticmethod
    def _build_rows(space: FeatureSpace, views: Sequence[WindowView], route: int) -> FloatArray:
        z_NH = space.scale_inputs(views)

        # Columns that differ between the steps of a window. At either end of the day the outermost
        # input stands in for neighbours that do not exist.
        columns = np.clip(np.arange(HORIZON)[:, None] + np.array(NEIGHBOURS), 0, LOOKBACK - 1)
        neighbours = z_NH[:, columns].reshape(-1, len(NEIGHBOURS))

        # Columns that all steps of a window share.
        shared = [
            space.encode_entities(views)[:, None].astype(np.float64),
            summarize_inputs(z_NH),
            encode_calendars(views),
        ]
        if route:
            weather_NC = space.extract_weather(views)
            shared += [weather_NC, space.compute_changes(weather_NC)]
        return _append_shared(neighbours, np.concatenate(shared, axis=1))


class PublishedErrorTrees(_Trees[PublishedErrorSpace]):
    """The error of the published forecast, with trees for each number of unknown steps.

    Views that know less of yesterday have trees of their own: what is always missing cannot be
    learnt from what never is.
    """

    name: ClassVar[str] = "published-error-gbm"
    _space_class = PublishedErrorSpace
    _settings = ERROR_SETTINGS
    _rounds = ERROR_ROUNDS

    @staticmethod
    def _name_file(route: int) -> str:
        return f"trees_{route}_unknown.txt"

    @staticmethod
    def _name_columns(space: PublishedErrorSpace, route: int) -> list[str]:
        return ["step", *space.step_names, "entity", *space.day_names]

    @staticmethod
    def _build_rows(
        space: PublishedErrorSpace, views: Sequence[WindowView], route: int
    ) -> FloatArray:
        steps_NHF = space.encode_steps(views)
        entity_N1 = space.encode_entities(views)[:, None].astype(np.float64)
        shared_NF = np.concatenate([entity_N1, space.encode_days(views)], axis=1)
        return _append_shared(steps_NHF.reshape(-1, steps_NHF.shape[2]), shared_NF)


def _append_shared(by_step: FloatArray, shared_NF: FloatArray) -> FloatArray:
    """Return the step, its own columns (N x 48, F) and those its window shares, a row a step."""
    step = np.tile(np.arange(HORIZON, dtype=np.float64), len(shared_NF))[:, None]
    repeated = np.repeat(shared_NF, HORIZON, axis=0)
    return np.concatenate([step, by_step, repeated], axis=1)
