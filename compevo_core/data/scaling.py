"""Per-entity scaling, fitted only on the train split.

What belongs here: the scaler that makes agents, regions and data sets comparable. What does not:
features (``baselines.features``), priors, metrics. Scores are computed in physical units first.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import NO_BOUNDS, Window, WindowView, group_by_series
from compevo_core.errors import DataError

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """Mean and standard deviation of every entity, in that entity's unit."""

    mean: dict[str, float]
    std: dict[str, float]

    @classmethod
    def fit(cls, windows: Sequence[Window]) -> Self:
        """Fit on the known values (inputs and unmasked targets) of train windows.

        An entity whose values are all equal is scaled by one. DataError if a window of another
        split is given, or none.
        """
        grouped = group_train(windows, "the scaler")
        if not grouped:
            raise DataError("the scaler was given no windows; build the train split first")

        mean: dict[str, float] = {}
        std: dict[str, float] = {}
        for entity, of_entity in grouped.items():
            parts = [part for w in of_entity for part in (w.view.x, w.y[np.isfinite(w.y)])]
            known = np.concatenate(parts)
            mean[entity] = float(known.mean())
            # Of equal values nothing is left but rounding.
            spread = float(known.std())
            std[entity] = spread if spread > _ROUNDING * np.abs(known).max() else 1.0
        return cls(mean=mean, std=std)

    def scale(self, x: FloatArray, entity: str) -> FloatArray:
        """Centre values on the entity's train mean, in units of its train standard deviation."""
        self._raise_if_unknown(entity)
        return (np.asarray(x, dtype=np.float64) - self.mean[entity]) / self.std[entity]

    def unscale(self, z: FloatArray, entity: str) -> FloatArray:
        """Return scaled values in physical units."""
        self._raise_if_unknown(entity)
        return np.asarray(z, dtype=np.float64) * self.std[entity] + self.mean[entity]

    def keep_bounds(self, views: Sequence[WindowView], scaled: FloatArray) -> FloatArray:
        """Return scaled values (N, ...), moved into the bounds of the views' series."""
        rows = []
        for view, z in zip(views, scaled, strict=True):
            low, high = (
                None if bound is None else float(self.scale(np.array(bound), view.entity))
                for bound in view.bounds
            )
            rows.append(z if view.bounds == NO_BOUNDS else np.clip(z, low, high))
        return np.stack(rows) if rows else scaled

    def stack_spreads(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the train standard deviation of each view's entity, (N, 1)."""
        for view in views:
            self._raise_if_unknown(view.entity)
        return np.array([self.std[view.entity] for view in views]).reshape(-1, 1)

    def to_json(self) -> str:
        """Return text that :meth:`from_json` reads back exactly."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        return cls(**json.loads(text))

    def _raise_if_unknown(self, entity: str) -> None:
        if entity not in self.std:
            raise DataError(
                f"entity {entity!r} was not in the train split (known: "
                f"{', '.join(sorted(self.std))}); add its series to train or leave its windows out"
            )


def group_train(windows: Sequence[Window], what: str) -> dict[str, list[Window]]:
    """Return train windows by entity, sorted by name; DataError for a window of another split."""
    for window in windows:
        # A scale fitted on later splits would tell every model the level of the test year.
        if window.view.split != "train":
            raise DataError(
                f"{what} was given a window of split {window.view.split!r} "
                f"({window.view.entity}); give WindowSet.split('train') only"
            )
    return dict(sorted(group_by_series(windows).items()))
