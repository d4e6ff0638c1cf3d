"""The order in which training visits windows: days shuffled, the windows of one day together.

What belongs here: batches as a pure function of seed and round. What does not: any state to save.

In the paper a step is one day of five regions: 2,193 steps are 3 epochs of 731 days (decision 4).
"""

from datetime import datetime

import numpy as np

from compevo_core.data.window import WindowSet


class DaySampler:
    """Batches of window indices; the batch of a round depends on the seed and the round alone.

    Args:
        windows: the train windows; those with one origin are a day.
        batch_size: windows of a batch.
        seed: seed of the order.
    """

    def __init__(self, windows: WindowSet, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.size = len(windows)

        # Days are shuffled, not windows: the regions of one day share its news (decision 4).
        days: dict[datetime, list[int]] = {}
        for index, view in enumerate(windows.views()):
            days.setdefault(view.origin_utc, []).append(index)
        self._days = [days[origin] for origin in sorted(days, key=str)]

        # The order of one epoch is kept, as its rounds are asked for one after the other.
        self._epoch = -1
        self._order: list[int] = []

    @property
    def rounds_per_epoch(self) -> int:
        """Batches in one pass; the last one may be shorter, and none is dropped."""
        return -(-self.size // self.batch_size)

    def indices(self, round_number: int) -> list[int]:
        """Return the window indices of a round, counted from 0 over all epochs."""
        # The order is drawn from seed and epoch, not kept in a generator: a resumed run needs no
        # state to see the same batches.
        epoch, position = divmod(round_number, self.rounds_per_epoch)
        if epoch != self._epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self._days))
            self._order = [index for day in order for index in self._days[day]]
            self._epoch = epoch

        return self._order[position * self.batch_size : (position + 1) * self.batch_size]
