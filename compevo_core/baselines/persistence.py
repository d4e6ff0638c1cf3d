"""Persistence: the last season again (yesterday's half-hours; on daily grids the last value, a random walk).

What belongs here: this forecaster. What does not: weekly repetition (``weekly``). Nothing is fitted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    repeat_last_season,
    stack,
    write_baseline_file,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import WindowSet, WindowView


class Persistence:
    """Repeats the last season of the input."""

    name: ClassVar[str] = "persistence"

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Check the split; there is nothing to fit and ``seed`` is not used."""
        refuse_held_out_splits(train, cls.name)
        return cls()

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecasts (N, 48) in each view's unit."""
        return stack([repeat_last_season(view) for view in views])

    def save(self, folder: Path) -> None:
        """Write the name."""
        write_baseline_file(folder, self.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        read_baseline_file(folder, cls.name)
        return cls()
