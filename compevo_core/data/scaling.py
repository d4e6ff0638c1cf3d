"""Per-entity scaling, fitted on the train split alone (design 4.7).

What belongs here: the scaler that makes agents, regions and data sets comparable.
What does not: features, priors, metrics. Scores are computed in physical units first (style, rule 2).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError


class _ViewLike(Protocol):
    @property
    def entity(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def x(self) -> FloatArray: ...


class _WindowLike(Protocol):
    @property
    def view(self) -> Any: ...
    @property
    def y(self) -> FloatArray: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """Mean and standard deviation of every entity, in that entity's unit."""

    mean: dict[str, float]
    std: dict[str, float]

    @classmethod
    def fit(cls, windows: Iterable[_WindowLike]) -> Self:
        """Fit on the known values (inputs and unmasked targets) of train windows.

        Raises:
            DataError: a window of another split is given, or an entity has no spread.
        """
        values: dict[str, list[FloatArray]] = {}
        for window in windows:
            view: _ViewLike = window.view
            if view.split != "train":
                raise DataError(
                    f"the scaler was given a window of split {view.split!r} ({view.entity}); "
                    "fit it on WindowSet.split('train') only"
                )
            values.setdefault(view.entity, []).extend((view.x, window.y[np.isfinite(window.y)]))
        if not values:
            raise DataError("the scaler was given no windows; build the train split first")
        mean, std = {}, {}
        for entity in sorted(values):
            known = np.concatenate(values[entity])
            mean[entity], std[entity] = float(known.mean()), float(known.std())
            if not std[entity] > 0:
                raise DataError(
                    f"all train values of entity {entity!r} are equal; it cannot be scaled: check its series"
                )
        return cls(mean=mean, std=std)

    def scale(self, x: FloatArray, entity: str) -> FloatArray:
        """Values in units of the entity's train standard deviation, centred on its train mean."""
        self._require(entity)
        return (np.asarray(x, dtype=np.float64) - self.mean[entity]) / self.std[entity]

    def unscale(self, z: FloatArray, entity: str) -> FloatArray:
        """Scaled values back in physical units."""
        self._require(entity)
        return np.asarray(z, dtype=np.float64) * self.std[entity] + self.mean[entity]

    def to_json(self) -> str:
        """Text that :meth:`from_json` reads back exactly."""
        return json.dumps({"mean": self.mean, "std": self.std}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        raw = json.loads(text)
        return cls(mean=dict(raw["mean"]), std=dict(raw["std"]))

    def _require(self, entity: str) -> None:
        if entity not in self.std:
            raise DataError(
                f"entity {entity!r} was not in the train split (known: {', '.join(sorted(self.std))}); "
                "add its series to train or leave its windows out"
            )
