"""The forecast that was public before the origin: AEMO's day-ahead POE50, issued 17:00 the day before (design 4.2).

What belongs here: handing on ``view.published``. What does not: reading it or checking when it was out (``context``).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    stack,
    write_baseline_file,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import WindowSet, WindowView
from compevo_core.errors import DataError


class PublishedForecast:
    """Answers with the published median forecast."""

    name: ClassVar[str] = "published"

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Check the split; there is nothing to fit and ``seed`` is not used."""
        refuse_held_out_splits(train, cls.name)
        return cls()

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecasts (N, 48) in each view's unit.

        Raises:
            DataError: a view has no published forecast.
        """
        without = [view for view in views if view.published is None]
        if without:
            raise DataError(
                f"{len(without)} of {len(views)} windows have no published forecast, first {without[0].window_id}; "
                "use it only where every window has one"
            )
        return stack([view.published for view in views if view.published is not None])

    def save(self, folder: Path) -> None:
        """Write the name."""
        write_baseline_file(folder, self.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        read_baseline_file(folder, cls.name)
        return cls()
