"""Weekly persistence: the value of the same weekday last week, where the lookback holds a week.

What belongs here: this forecaster. What does not: reaching beyond the 48 inputs for an older week;
every method has the same lookback.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    repeat_last_values,
    stack_rows,
    write_baseline_file,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import LOOKBACK, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError

WEEK_MINUTES = 7 * 24 * 60


def has_full_week(view: WindowView) -> bool:
    """Return whether the 48 inputs cover seven days."""
    # 48 half-hours are one day and 48 hours two, so only daily grids hold a week.
    return LOOKBACK * view.step_minutes >= WEEK_MINUTES


class WeeklyPersistence:
    """Repeats the last seven days of the input."""

    name: ClassVar[str] = "weekly"

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Check the split; there is nothing to fit and ``seed`` is not used."""
        # Checked although nothing is learned: a caller that passes a later split has a mistake.
        refuse_held_out_splits(train, cls.name)
        return cls()

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit.

        Raises:
            DataError: the lookback of a view is shorter than a week.
        """
        short = [view for view in views if not has_full_week(view)]
        if short:
            raise DataError(
                f"weekly persistence needs 7 days of input; {short[0].dataset} has {LOOKBACK} x "
                f"{short[0].step_minutes} min: leave this baseline out of its table"
            )

        return stack_rows(
            [repeat_last_values(view.x, WEEK_MINUTES // view.step_minutes) for view in views]
        )

    def save(self, folder: Path) -> None:
        """Write the name."""
        write_baseline_file(folder, self.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        read_baseline_file(folder, cls.name)
        return cls()
