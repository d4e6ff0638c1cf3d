"""The weighted mean of calendar ridge and boosted trees, which err on different days.

The weights are the argmin of validation MAE over tenths (decision 13-baselines); the optimum is
flat. Shapes: N windows, H horizon.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from compevo_core.baselines.base import (
    Baseline,
    raise_if_held_out,
    read_baseline_file,
    write_baseline_file,
)
from compevo_core.baselines.gbm import BoostedTrees
from compevo_core.baselines.ridge import CalendarRidge
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView, find_horizon
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch

BLEND_WEIGHTS: Mapping[str, float] = {CalendarRidge.name: 0.3, BoostedTrees.name: 0.7}
"""Weight of each part by its name; they add up to 1."""


class Blend:
    """The mean of :data:`BLEND_WEIGHTS`."""

    name: ClassVar[str] = "blend"

    def __init__(self, ridge: CalendarRidge, trees: BoostedTrees) -> None:
        """Take fitted parts, which others may use as well."""
        self._parts: dict[str, Baseline] = {ridge.name: ridge, trees.name: trees}

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit both parts on the same windows, the trees with ``seed``; errors as for the parts."""
        raise_if_held_out(train, cls.name)
        return cls(CalendarRidge.fit(train, seed=seed), BoostedTrees.fit(train, seed=seed))

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        mean_NH = np.zeros((len(views), find_horizon(views)))
        for name, forecast_NH in self.components(views).items():
            mean_NH += BLEND_WEIGHTS[name] * forecast_NH
        return mean_NH

    def components(self, views: Sequence[WindowView]) -> dict[str, FloatArray]:
        """Return each part's own forecasts (N, H) by its name; where they differ is evidence."""
        return {name: part.predict(views) for name, part in self._parts.items()}

    def save(self, folder: Path) -> None:
        """Write each part into a folder of its name and, last, ``baseline.json``."""
        for name, part in self._parts.items():
            part.save(folder / name)
        write_baseline_file(folder, self.name, weights=dict(BLEND_WEIGHTS))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote; CheckpointMismatch also if it has other weights."""
        facts = read_baseline_file(folder, cls.name)
        if facts["weights"] != dict(BLEND_WEIGHTS):
            raise CheckpointMismatch(
                f"{folder} is a blend of {facts['weights']}, this version blends "
                f"{dict(BLEND_WEIGHTS)}; fit it again"
            )
        return cls(
            CalendarRidge.load(folder / CalendarRidge.name),
            BoostedTrees.load(folder / BoostedTrees.name),
        )
