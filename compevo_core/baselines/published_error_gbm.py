"""Boosted trees (LightGBM) on the error of a published forecast.

What belongs here: this model. What does not: its features (``baselines.published_features``).

All regions and steps are one regression problem with a row per step. Views that know less of
yesterday have trees of their own: what is always missing cannot be learnt from what never is.
Settings were chosen on the validation days of 2025.
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
from compevo_core.baselines.published_features import PublishedErrorSpace, choose_published
from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import write_text
from compevo_core.data.view import HORIZON, WindowView
from compevo_core.data.window import WindowSet

BOOSTING_ROUNDS = 100
SETTINGS: dict[str, Any] = {
    "objective": "regression_l1",  # MAE is the first measure of every table
    "learning_rate": 0.03,
    "num_leaves": 31,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "num_threads": 1,
    # The next two make a second fit give the same trees, bit by bit.
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


class PublishedErrorTrees:
    """LightGBM on the scaled error of the published forecast."""

    name: ClassVar[str] = "published-error-gbm"

    def __init__(self, space: PublishedErrorSpace, boosters: dict[int, lgb.Booster]) -> None:
        """Take a fitted model, trees by unknown steps; use :meth:`fit` or :meth:`load`."""
        self._space = space
        self._boosters = boosters

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit on all unmasked targets of days with a publication; ``seed`` draws rows and columns.

        Raises:
            LeakageError: a window is of the test or inference split.
            DataError: no window has a published forecast with its errors.
        """
        refuse_held_out_splits(train, cls.name)
        train = choose_published(train)
        space = PublishedErrorSpace.fit(train)

        boosters = {}
        for lead, positions in space.route_by_lead(train.views()).items():
            windows = [train[i] for i in positions]
            target = space.scale_targets(windows).reshape(-1)
            is_known = np.isfinite(target)
            rows = _build_rows(space, [window.view for window in windows])
            data = lgb.Dataset(
                rows[is_known], target[is_known], feature_name=list(_name_columns(space))
            )
            boosters[lead] = lgb.train(SETTINGS | {"seed": seed}, data, BOOSTING_ROUNDS)
        return cls(space, boosters)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit.

        Raises:
            DataError: a view has no published forecast, or knows less than those of train.
        """
        error_NH = np.zeros((len(views), HORIZON))
        for lead, positions in self._space.route_by_lead(views).items():
            if positions:
                rows = _build_rows(self._space, [views[i] for i in positions])
                output = np.asarray(self._boosters[lead].predict(rows), dtype=np.float64)
                error_NH[positions] = output.reshape(len(positions), HORIZON)
        return self._space.add_errors(views, error_NH)

    def save(self, folder: Path) -> None:
        """Write LightGBM's own text models and, last, ``baseline.json``."""
        for lead, booster in self._boosters.items():
            write_text(folder / _name_file(lead), booster.model_to_string(num_iteration=-1))
        write_baseline_file(folder, self.name, space=self._space.to_dict())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            CheckpointMismatch: the folder is incomplete or holds another baseline.
        """
        facts = read_baseline_file(folder, cls.name)
        space = PublishedErrorSpace.from_dict(facts["space"])
        boosters = {
            lead: lgb.Booster(model_str=(folder / _name_file(lead)).read_text(encoding="utf-8"))
            for lead in space.leads
        }
        return cls(space, boosters)


def _name_file(lead: int) -> str:
    return f"trees_{lead}_unknown.txt"


def _name_columns(space: PublishedErrorSpace) -> tuple[str, ...]:
    return ("step", *space.step_names, "entity", *space.day_names)


def _build_rows(space: PublishedErrorSpace, views: Sequence[WindowView]) -> FloatArray:
    """Return one row per window and step, (N x 48, features)."""
    steps_NHF = space.encode_steps(views)
    step = np.tile(np.arange(HORIZON, dtype=np.float64), len(views))[:, None]

    entity_N1 = space.encode_entities(views)[:, None].astype(np.float64)
    shared_NF = np.concatenate([entity_N1, space.encode_days(views)], axis=1)
    repeated = np.repeat(shared_NF, HORIZON, axis=0)
    return np.concatenate([step, steps_NHF.reshape(-1, steps_NHF.shape[2]), repeated], axis=1)
