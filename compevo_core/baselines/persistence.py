"""Persistence: the last season again (yesterday's half-hours; on daily grids the last value, a random walk).

What belongs here: this forecaster. What does not: weekly repetition (``weekly``). Nothing is fitted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from compevo_core.baselines.base import (
    read_kind,
    refuse_unseen_splits,
    seasonal_base,
    stack,
    write_kind,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import WindowSet, WindowView


class Persistence:
    """Repeats the last season of the input."""

    name: ClassVar[str] = "persistence"

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Check the split; there is nothing to fit and ``seed`` is not used."""
        refuse_unseen_splits(train, cls.name)
        return cls()

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecasts (N, 48) in each view's unit."""
        return stack([seasonal_base(view) for view in views])

    def save(self, folder: Path) -> None:
        """Write the name."""
        write_kind(folder, self.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        read_kind(folder, cls.name)
        return cls()
