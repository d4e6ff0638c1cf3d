"""Gradient-boosted trees (LightGBM): three models of the day to come, and a blend with the ridge.

Trees on lags, and any estimator in their place, forecast step by step; the others at once: on the
last day, on a longer past and forecast weather, and on a published forecast's error.
All regions and steps are one regression problem with a row per step. Settings were chosen by
validation errors: of 2020 for :class:`BoostedTrees`, though not blind, since test errors of an
earlier version had been seen; of September 2025 to 17 February 2026 for the others.
Shapes: N windows, H horizon.
"""

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from zoneinfo import ZoneInfo

import numpy as np
from safetensors.numpy import load_file, save

from compevo_core.baselines.base import (
    Baseline,
    Columns,
    History,
    RoutedBaseline,
    SpaceT,
    raise_if_held_out,
)
from compevo_core.baselines.features import (
    FeatureSpace,
    PastSpace,
    PublishedErrorSpace,
    list_own_covariates,
)
from compevo_core.baselines.ridge import CalendarRidge
from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.scaling import Scaler
from compevo_core.data.steps import DAY, WEEK, shift
from compevo_core.data.view import (
    Window,
    WindowView,
    find_horizon,
    group_by_series,
    keep_bounds,
    require_views,
    stack_by_step,
    stack_rows,
)
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, DataError, import_package
from compevo_core.runtime.files import hash_text
from compevo_core.runtime.usage import count_cores

if TYPE_CHECKING:
    import lightgbm as lgb

MOST_STEPS = 40_000  # target steps of a quick fit: seconds in place of minutes
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


class _Trees(RoutedBaseline[SpaceT, "lgb.Booster"]):
    """Trees for every route; the seed samples rows and columns.

    LightGBM is imported where it works: it brings pandas, and naming the baselines must be cheap.
    """

    cost = 20.0
    draws = True
    most_steps = MOST_STEPS
    _settings: ClassVar[dict[str, Any]]  # what it changes of ``SETTINGS``
    _rounds: ClassVar[int] = 400

    def _fit_model(self, windows: Sequence[Window], route: int, seed: int) -> "lgb.Booster":
        lgb = import_package("lightgbm")

        # One row per step, so a masked target costs that row and not its window.
        target = self._space.scale_targets(windows).reshape(-1)
        is_known = np.isfinite(target)

        views = [window.view for window in windows]
        columns = self._space.build_columns(views, route)
        rows = _build_rows(columns, find_horizon(views))[is_known]
        data = lgb.Dataset(rows, target[is_known], feature_name=["step", *columns])
        return lgb.train(SETTINGS | self._settings | {"seed": seed}, data, self._rounds)

    def _apply(self, views: Sequence[WindowView], route: int) -> FloatArray:
        rows = _build_rows(self._space.build_columns(views, route), find_horizon(views))
        # Rows are independent: the number of threads changes no bit.
        output = self._models[route].predict(rows, num_threads=count_cores())
        return np.asarray(output, dtype=np.float64).reshape(len(views), -1)

    def _to_files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        # LightGBM's text format is readable, and loading it runs no code. -1 writes all trees: the
        # default would stop at a "best" iteration, and none is chosen.
        texts = {
            f"trees_{int(route)}.txt": booster.model_to_string(num_iteration=-1).encode()
            for route, booster in self._models.items()
        }
        return {"space": self._space.to_dict(), "models": list(texts)}, texts

    @classmethod
    def _from_files(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        lgb = import_package("lightgbm")

        space = cls._space_class.from_dict(facts["space"])
        boosters = {
            route: lgb.Booster(model_str=(folder / f"trees_{int(route)}.txt").read_text("utf-8"))
            for route in space.routes
        }
        return cls(space, boosters)


class BoostedTrees(_Trees[FeatureSpace]):
    """Changes from the last season, with the same evidence as the calendar ridge.

    A second model without weather, of the same windows, forecasts views that have none: trees that
    always saw weather do not know what to do without it. One missing covariate is LightGBM's NaN.
    """

    name = "gbm"
    title = "Boosted trees"
    _space_class = FeatureSpace
    _settings: ClassVar[dict[str, Any]] = {}
    _rounds = 1000


class PublishedErrorTrees(_Trees[PublishedErrorSpace]):
    """The error of the published forecast, with trees for each number of unknown steps.

    Views that know less of yesterday have trees of their own: what is always missing cannot be
    learnt from what never is.
    """

    name = "published-error-gbm"
    title = "Trees on the published forecast's error"
    _space_class = PublishedErrorSpace
    # MAE is the first measure of every table
    _settings: ClassVar[dict[str, Any]] = {"objective": "regression_l1", "num_leaves": 31}


class OwnWeatherTrees(_Trees[PastSpace]):
    """Changes from the last fortnight, by past, calendar and weather, for each lead."""

    name = "own-weather-gbm"
    title = "Trees on own past and forecast weather"
    _space_class = PastSpace
    # Fewer bins are twice as fast, and no worse
    _settings: ClassVar[dict[str, Any]] = PublishedErrorTrees._settings | {"max_bin": 63}


_LONGEST_NAME = 80
_LAGGED_FILE, _ROWS_FILE = "lagged.txt", "rows.safetensors"


class LaggedTrees(Baseline):
    """One step ahead from lags, calendar and values known ahead, again and again to the horizon.

    Values are counted from the mean of the last season: trees follow no level beyond those seen.
    """

    name = "lagged-gbm"
    title = "Trees on lags"
    cost = 10.0
    draws = True
    is_scored = False
    _settings: ClassVar[dict[str, Any]] = PublishedErrorTrees._settings | {
        "min_data_in_leaf": 20,
        "max_bin": 127,
    }
    _rounds: ClassVar[int] = 300

    def __init__(self, space: FeatureSpace, names: Sequence[str], model: Any) -> None:  # noqa: ANN401 - what was fitted
        self._space = space
        self._names = tuple(names)
        self._model = model

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit one step ahead on the measured targets of train windows."""
        raise_if_held_out(train, cls.name)
        space = FeatureSpace(scaler=Scaler.fit(train), entities=train.entities, covariates=())
        own = list_own_covariates(train)
        names = [*own, *(f"{name}_lag1" for name in own)]
        grouped = group_by_series(train)
        rows, targets = [], []
        for entity, windows in grouped.items():
            history, view = History.from_windows(windows, names), windows[-1].view
            z_T = space.scaler.scale(history.values_T, entity)
            # The newest steps after a whole look-back.
            most = max(view.lookback + view.horizon, MOST_STEPS // len(grouped))
            first = max(0, len(z_T) - most) + view.lookback
            place_R = first + np.flatnonzero(history.is_target_T[first:])
            if not len(place_R):
                continue
            pasts_TL = np.lib.stride_tricks.sliding_window_view(z_T, view.lookback)
            row_RF, level_R = _build_lags(view, pasts_TL[place_R - view.lookback])
            calendar_RC = _encode_stamps(view, history.start_utc, place_R.tolist())
            known_RK = [history.covariates[name][place_R, None] for name in names]
            code_R1 = np.full((len(place_R), 1), space.entities.index(entity))
            rows.append(np.hstack([row_RF, calendar_RC, *known_RK, code_R1]))
            targets.append(z_T[place_R] - level_R)
        if not rows:
            raise DataError(f"{cls.name} needs targets after a whole look-back; give more rows")
        return cls(space, names, cls._fit_rows(np.concatenate(rows), np.concatenate(targets), seed))

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        require_views(views)
        if not views:
            return stack_rows([])
        horizon, lookback = find_horizon(views), views[0].lookback
        z_NT = np.hstack([self._space.scale_inputs(views), np.empty((len(views), horizon))])
        steps = range(horizon)
        calendar_NHC = np.stack([_encode_stamps(view, view.origin_utc, steps) for view in views])
        known_NHK = [stack_by_step(views, name)[..., None] for name in self._names]
        ahead_NHC = np.concatenate([calendar_NHC, *known_NHK], axis=2)
        code_N1 = self._space.encode_entities(views)[:, None]
        for step in steps:
            row_NF, level_N = _build_lags(views[0], z_NT[:, step : step + lookback])
            rows = np.hstack([row_NF, ahead_NHC[:, step], code_N1])
            z_NT[:, lookback + step] = level_N + self._apply(rows)
        scaler, pairs = self._space.scaler, zip(z_NT[:, lookback:], views, strict=True)
        forecast_NH = np.stack([scaler.unscale(z_H, view.entity) for z_H, view in pairs])
        return keep_bounds(views, forecast_NH)

    @classmethod
    def _fit_rows(cls, rows_RC: FloatArray, target_R: FloatArray, seed: int) -> Any:  # noqa: ANN401 - a model
        lgb = import_package("lightgbm")
        data = lgb.Dataset(rows_RC, target_R)
        return lgb.train(SETTINGS | cls._settings | {"seed": seed}, data, cls._rounds)

    def _apply(self, rows_NC: FloatArray) -> FloatArray:
        return np.asarray(self._model.predict(rows_NC, num_threads=1))

    def _to_files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        text = self._model.model_to_string(num_iteration=-1)
        facts = {"space": self._space.to_dict(), "names": self._names}
        return facts, {_LAGGED_FILE: text.encode()}

    @classmethod
    def _from_files(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        lgb = import_package("lightgbm")

        booster = lgb.Booster(model_str=(folder / _LAGGED_FILE).read_text("utf-8"))
        return cls(FeatureSpace.from_dict(facts["space"]), facts["names"], booster)


class FittedRows(NamedTuple):
    """An estimator, and what it was fitted on."""

    estimator: Any
    rows_RC: FloatArray
    target_R: FloatArray
    seed: int


class LaggedEstimator(LaggedTrees):
    """Any object with ``fit`` and ``predict`` as scikit-learn's in place of the trees on lags.

    The mean of train stands in for a value that is missing. Without pickle only its rows can be
    kept: where it is loaded it is fitted on them again, once in a process.
    """

    estimator: ClassVar[Any]
    _known: ClassVar[dict[str, FittedRows]]

    @classmethod
    def wrap(cls, estimator: Any, name: str = "", **facts: Any) -> type[Self]:  # noqa: ANN401 - of any library
        """Return a baseline of an estimator, by a name or as it prints itself."""
        shown, plain = " ".join(repr(estimator).split()), type(estimator).__name__
        if " at 0x" in shown or len(shown) > _LONGEST_NAME:
            shown = plain if " at 0x" in shown else f"{plain}-{hash_text(shown)[:8]}"
        name = name or shown
        kind = {"name": name, "title": name, "estimator": estimator, "_known": {}}
        return type(cls.__name__, (cls,), kind | facts)

    @classmethod
    def _fit_rows(cls, rows_RC: FloatArray, target_R: FloatArray, seed: int) -> FittedRows:
        digest = hashlib.sha256(b"%d" % seed)
        for values in (rows_RC, target_R):
            digest.update(np.ascontiguousarray(values).tobytes())
        if (key := digest.hexdigest()) not in cls._known:
            estimator = copy.deepcopy(cls.estimator)
            params = estimator.get_params() if hasattr(estimator, "get_params") else {}
            if params.get("random_state", 0) is None:
                estimator.set_params(random_state=seed)
            estimator.fit(_fill(rows_RC, rows_RC), target_R)
            cls._known[key] = FittedRows(estimator, rows_RC, target_R, seed)
        return cls._known[key]

    def _apply(self, rows_NC: FloatArray) -> FloatArray:
        filled_NC = _fill(rows_NC, self._model.rows_RC)
        return np.asarray(self._model.estimator.predict(filled_NC), dtype=np.float64).ravel()

    def _to_files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        model = self._model
        arrays = {"rows": np.ascontiguousarray(model.rows_RC), "targets": model.target_R}
        facts = {"space": self._space.to_dict(), "names": self._names, "seed": model.seed}
        return facts, {_ROWS_FILE: save(arrays)}

    @classmethod
    def _from_files(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        arrays = load_file(folder / _ROWS_FILE)
        model = cls._fit_rows(arrays["rows"], arrays["targets"], facts["seed"])
        return cls(FeatureSpace.from_dict(facts["space"]), facts["names"], model)


def _fill(rows_NC: FloatArray, known_RC: FloatArray) -> FloatArray:
    """Return rows whose missing values are the mean of a column in known ones, 0 without any."""
    return np.where(np.isnan(rows_NC), np.nan_to_num(mean_known(known_RC, axis=0)), rows_NC)


def _build_lags(view: WindowView, past_RL: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the columns (R, F) of the values before some steps, and the level (R,) they leave."""
    season, week = view.seasons.shortest, max(1, WEEK // view.step)
    lags = sorted({1, 2, 3, season, season + 1, 2 * season, week, 2 * week})
    season = min(season, view.lookback)
    level_R = past_RL[:, -season:].mean(axis=1)
    columns = [past_RL[:, -lag] - level_R for lag in lags if lag <= view.lookback]
    columns += [past_RL[:, -season:].std(axis=1), past_RL.mean(axis=1) - level_R]
    # Within days the level has its own meaning: the hour of a solar plant, a load's season.
    if view.step < DAY:
        columns.append(level_R)
    return np.stack(columns, axis=1), level_R


def _encode_stamps(view: WindowView, start: datetime, steps: Iterable[int]) -> FloatArray:
    """Return the hour, weekday and season of the year of steps (T, C) on the series' own clock."""
    zone = ZoneInfo(view.calendar.timezone)
    stamps = [shift(start, step, view.step).astimezone(zone) for step in steps]
    return np.array(
        [(s.hour * 60 + s.minute, s.weekday(), s.timetuple().tm_yday) for s in stamps], dtype=float
    )


def _build_rows(columns: Columns, horizon: int) -> FloatArray:
    """Return one row per window and step (N x H, F): the step, then the columns."""
    shape = (len(next(iter(columns.values()))), horizon)
    step_H = np.arange(horizon, dtype=np.float64)
    table = [np.broadcast_to(column, shape) for column in (step_H, *columns.values())]
    return np.stack(table, axis=2).reshape(-1, len(table))


_BLENDED: tuple[type[Baseline], ...] = (CalendarRidge, BoostedTrees)
BLEND_WEIGHTS: Mapping[str, float] = {CalendarRidge.name: 0.3, BoostedTrees.name: 0.7}
"""Weight of each part by its name; they add up to 1."""


class Blend(Baseline):
    """The mean of calendar ridge and boosted trees, which err on different days.

    The weights are the argmin of validation MAE in tenths, a flat optimum (decision 13-baselines).
    """

    name = "blend"
    title = "Ridge and trees blended"
    draws = True
    most_steps = MOST_STEPS

    def __init__(self, ridge: Baseline, trees: Baseline) -> None:
        self._parts = (ridge, trees)

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit both parts on the same windows, the trees with ``seed``; errors as for the parts."""
        raise_if_held_out(train, cls.name)
        return cls(*(part.fit(train, seed=seed) for part in _BLENDED))

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        weighted = [BLEND_WEIGHTS[part.name] * part.predict(views) for part in self._parts]
        return np.asarray(sum(weighted))

    def save(self, folder: Path) -> None:
        """Write each part into a folder of its name and, last, ``baseline.json``."""
        for part in self._parts:
            part.save(folder / part.name)
        super().save(folder)

    def _to_files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        return {"weights": dict(BLEND_WEIGHTS)}, {}

    @classmethod
    def _from_files(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        if facts["weights"] != dict(BLEND_WEIGHTS):
            raise CheckpointMismatch(
                f"{folder} is a blend of {facts['weights']}, this version blends "
                f"{dict(BLEND_WEIGHTS)}; fit it again"
            )
        return cls(*(part.load(folder / part.name) for part in _BLENDED))
