"""A ridge regression on the error of a published forecast.

What belongs here: this model. What does not: its features (``baselines.published_features``), the
regression (``baselines.linear_map``).

The 48 errors follow from yesterday's errors, the change of the published forecast and of covariates
against yesterday, and the calendar. An error that was not known yet is the mean of those of the
last week at its step, and zero where there is none either. Views that know less of yesterday have a
map of their own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    write_baseline_file,
)
from compevo_core.baselines.linear_map import LinearMap, read_maps, write_maps
from compevo_core.baselines.published_features import (
    ERRORS,
    LAST_ERROR,
    PublishedErrorSpace,
    choose_published,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.step_values import PUBLISHED
from compevo_core.data.view import HORIZON, WindowView
from compevo_core.data.window import WindowSet

_STAND_IN = ERRORS[2]  # the mean of a week


class PublishedErrorRidge:
    """Multi-output ridge regression on the scaled error of the published forecast."""

    name: ClassVar[str] = "published-error-ridge"

    def __init__(self, space: PublishedErrorSpace, maps: dict[int, LinearMap]) -> None:
        """Take a fitted model, a map by unknown steps; use :meth:`fit` or :meth:`load`."""
        self._space = space
        self._maps = maps

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit on the unmasked targets of days with a publication; ``seed`` is not used.

        Raises:
            LeakageError: a window is of the test or inference split.
            DataError: no window has a published forecast with its errors, or a step of the horizon
                is known in too few windows.
        """
        refuse_held_out_splits(train, cls.name)
        train = choose_published(train)
        space = PublishedErrorSpace.fit(train)

        maps = {}
        for lead, positions in space.route_by_lead(train.views()).items():
            windows = [train[i] for i in positions]
            views = [window.view for window in windows]
            maps[lead] = LinearMap.fit(
                views,
                _build_features(space, views),
                space.scale_targets(windows),
                space.encode_entities(views),
                len(space.entities),
            )
        return cls(space, maps)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit.

        Raises:
            DataError: a view has no published forecast, or knows less than those of train.
        """
        error_NH = np.zeros((len(views), HORIZON))
        for lead, positions in self._space.route_by_lead(views).items():
            if positions:
                routed = [views[i] for i in positions]
                error_NH[positions] = self._maps[lead].apply(
                    _build_features(self._space, routed), self._space.encode_entities(routed)
                )
        return self._space.add_errors(views, error_NH)

    def save(self, folder: Path) -> None:
        """Write ``ridge.safetensors`` and, last, ``baseline.json``."""
        penalties = write_maps(folder, self._maps)
        write_baseline_file(folder, self.name, space=self._space.to_dict(), penalties=penalties)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            CheckpointMismatch: the folder is incomplete or holds another baseline.
        """
        facts = read_baseline_file(folder, cls.name)
        maps = read_maps(folder, facts["penalties"])
        by_lead = {int(key): linear_map for key, linear_map in maps.items()}
        return cls(PublishedErrorSpace.from_dict(facts["space"]), by_lead)


def _build_features(space: PublishedErrorSpace, views: Sequence[WindowView]) -> FloatArray:
    """Return the columns (N, F): errors and changes by step, and what the day's steps share."""
    steps_NHF = space.encode_steps(views)
    column = dict(zip(space.step_names, np.moveaxis(steps_NHF, 2, 0), strict=True))

    known_NH = np.where(np.isnan(column[LAST_ERROR]), column[_STAND_IN], column[LAST_ERROR])
    # Covariates enter by day alone: at dawn, solar power hardly varies in winter, and a column in
    # units of that spread would run away in summer.
    parts = [np.nan_to_num(known_NH), column[f"{PUBLISHED}_change"], space.encode_days(views)]
    return np.concatenate(parts, axis=1)
