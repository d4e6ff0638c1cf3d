"""Persistence: the last season again.

What belongs here: this forecaster. What does not: weekly repetition (``baselines.weekly``).

On half-hourly and hourly grids it repeats yesterday; on daily grids the last value, which is the
forecast of a random walk. Nothing is fitted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    repeat_last_season,
    stack_rows,
    write_baseline_file,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet


class Persistence:
    """Repeats the last season of the input."""

    name: ClassVar[str] = "persistence"

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Check the split; there is nothing to fit and ``seed`` is not used."""
        # Checked although nothing is learned: a caller that passes a later split has a mistake.
        refuse_held_out_splits(train, cls.name)
        return cls()

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit."""
        return stack_rows([repeat_last_season(view) for view in views])

    def save(self, folder: Path) -> None:
        """Write the name."""
        write_baseline_file(folder, self.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        read_baseline_file(folder, cls.name)
        return cls()
