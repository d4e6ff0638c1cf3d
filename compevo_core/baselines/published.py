"""The forecast that was public before the origin: AEMO's day-ahead POE50, issued at 17:00.

What belongs here: handing on ``view.published``. What does not: reading it, or checking when it was
available (``data.context``).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    stack_published,
    write_baseline_file,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet


class PublishedForecast:
    """Forecasts with the published median."""

    name: ClassVar[str] = "published"

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Check the split; there is nothing to fit and ``seed`` is not used."""
        # Checked although nothing is learned: a caller that passes a later split has a mistake.
        refuse_held_out_splits(train, cls.name)
        return cls()

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit.

        Raises:
            DataError: a view has no published forecast.
        """
        # Leaving windows out would score this method on other windows than the rest of its table.
        return stack_published(views)

    def save(self, folder: Path) -> None:
        """Write the name."""
        write_baseline_file(folder, self.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        read_baseline_file(folder, cls.name)
        return cls()
