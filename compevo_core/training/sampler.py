"""The order in which training sees windows: days shuffled by a seed, the windows of one day together.

What belongs here: batches as a pure function of (seed, round). What does not: any state to save.
Paper: one step is one day of five regions; 2,193 steps = 3 epochs x 731 days (design decision 4).
"""

import numpy as np

from compevo_core.data.window import WindowSet


class DaySampler:
    """Batches of window indices; the batch of a round depends on the seed and the round alone."""

    def __init__(self, windows: WindowSet, batch: int, seed: int) -> None:
        self.batch, self.seed, self.size = batch, seed, len(windows)
        days: dict[object, list[int]] = {}
        for index, view in enumerate(windows.views()):
            days.setdefault(view.origin_utc, []).append(index)
        self._days = [days[origin] for origin in sorted(days, key=str)]
        self._epoch, self._order = -1, list[int]()

    @property
    def rounds_per_epoch(self) -> int:
        """Batches in one pass; the last one may be shorter, and none is dropped."""
        return -(-self.size // self.batch)

    def indices(self, round_number: int) -> list[int]:
        """Window indices of a round, counted from 0 over all epochs."""
        epoch, position = divmod(round_number, self.rounds_per_epoch)
        if epoch != self._epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self._days))
            self._epoch, self._order = epoch, [i for day in order for i in self._days[day]]
        return self._order[position * self.batch : (position + 1) * self.batch]
