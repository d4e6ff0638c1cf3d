"""Errors of windows with what levels need to know of them.

What belongs here: this value and the level that follows from it. What does not: the arithmetic of
levels (``baselines.known_errors``), what is fitted to errors (``training.calibration``).

Shapes: A agents, B windows, E series, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.baselines.known_errors import LevelRule, estimate_level
from compevo_core.data.arrays import FloatArray


@dataclasses.dataclass(frozen=True)
class WindowErrors:
    """Errors of B windows, scaled.

    Attributes:
        examples: the windows.
        rows: number of each window's series.
        minutes: origin of each window, in minutes since 1970.
        error_ABH: truth minus blended forecast, NaN where the truth is missing.
    """

    examples: Sequence[ForecastExample]
    rows: list[int]
    minutes: list[int]
    error_ABH: FloatArray

    @property
    def entities(self) -> list[str]:
        """Series of each window."""
        return [example.view.entity for example in self.examples]

    def take(self, windows: npt.NDArray[np.intp]) -> "WindowErrors":
        """Return the errors of some of the windows."""
        return WindowErrors(
            [self.examples[i] for i in windows],
            [self.rows[i] for i in windows],
            [self.minutes[i] for i in windows],
            self.error_ABH[:, windows],
        )

    def after(self, earlier: "WindowErrors | None") -> "WindowErrors":
        """Return these errors with earlier ones before them."""
        if earlier is None:
            return self
        return WindowErrors(
            [*earlier.examples, *self.examples],
            earlier.rows + self.rows,
            earlier.minutes + self.minutes,
            np.concatenate([earlier.error_ABH, self.error_ABH], axis=1),
        )

    def level(self, rule: LevelRule, rows: Sequence[int], series: int) -> FloatArray:
        """Return the level (A, B, H) that these errors leave for windows of the given rows."""
        level_AEH = estimate_level(rule, series, self.minutes, self.rows, self.error_ABH)
        return level_AEH[:, rows]
