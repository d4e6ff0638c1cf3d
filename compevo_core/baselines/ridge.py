"""Calendar ridge: a linear map from the last day, the calendar and yesterday's weather.

What belongs here: this model. What does not: features (``baselines.features``) or the choice of a
prior (``training.prior``).

The map (``baselines.linear_map``) gives 48 changes from the last season. Two maps are fitted on the
same windows: one with weather, and one without that forecasts views that have none. A single
missing covariate is set to its train mean. :meth:`CalendarRidge.count_missing_covariates` counts
both cases.

Nothing holds inputs to the range seen on train: clipping them, and shrinking the shape of the day
more, were tried after 2026 errors had been seen, lost on validation, and were taken out again.

Shapes: N windows, H horizon, F features, E entities.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    write_baseline_file,
)
from compevo_core.baselines.features import FeatureSpace, encode_calendars
from compevo_core.baselines.linear_map import LinearMap, read_maps, write_maps
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON, Window, WindowView
from compevo_core.data.window import WindowSet


class CalendarRidge:
    """Multi-output ridge regression on scaled changes from the last season."""

    name: ClassVar[str] = "calendar-ridge"

    def __init__(self, space: FeatureSpace, maps: Mapping[bool, LinearMap]) -> None:
        """Take a model, with weather (True) or without; use :meth:`fit` or :meth:`load`."""
        self._space = space
        self._maps = dict(maps)

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
        return cls(space, {kind: _fit_map(space, train, kind) for kind in kinds})

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit."""
        change_NH = np.zeros((len(views), HORIZON))

        for with_weather, positions in self._space.route_by_weather(views).items():
            routed = [views[i] for i in positions]
            if routed:
                change_NH[positions] = self._maps[with_weather].apply(
                    _build_features(self._space, routed, with_weather),
                    self._space.encode_entities(routed),
                )

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
        by_kind = {key == "True": linear_map for key, linear_map in maps.items()}
        return cls(FeatureSpace.from_dict(facts["space"]), by_kind)


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
    return LinearMap.fit(
        views,
        _build_features(space, views, with_weather),
        space.scale_targets(windows),
        space.encode_entities(views),
        len(space.entities),
    )
