"""Durations as text, compact for progress lines and spelled out for reports; and time left.

What belongs here: the time that known parts of a piece of work still take. What does not: rounds of
a training, whose kinds cost differently (``training.schedule``).
"""

import math
import time
from collections.abc import Callable, Sequence

OnStep = Callable[[str], None]  # gets a line before each step that takes time


def format_duration(seconds: float) -> str:
    """Format seconds as ``1h02m``, ``3m05s`` or ``12s``, for progress lines."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"

    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def describe_duration(seconds: float | None, *, missing: str = "") -> str:
    """Format seconds as ``0.4 s``, ``12 s``, ``5 min`` or ``2.1 h``, for reports."""
    if seconds is None or math.isnan(seconds):
        return missing
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"

    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Steps:
    """Steps one after the other: says before each how many there are and how long they take."""

    def __init__(
        self,
        costs: Sequence[float],
        on_step: OnStep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what each step costs beside the others, and who is told."""
        self._costs = tuple(costs)
        self._on_step = on_step
        self._clock = clock
        self._begun = 0
        self._started = clock()

    def begin(self, text: str) -> None:
        """Say that the next step begins, with the time that it and the later ones take."""
        done, left = sum(self._costs[: self._begun]), sum(self._costs[self._begun :])
        self._begun += 1
        seconds = (self._clock() - self._started) * left / done if done else math.nan
        remaining = "" if math.isnan(seconds) else f", about {format_duration(seconds)} left"
        self._on_step(f"{self._begun}/{len(self._costs)} {text}{remaining}")
