"""Priors that are fitted anew as days become known (decision 59).

What belongs here: the windows whose truth is known, and when the next fit is due. What does not:
what is fitted (``training.prior``), when a truth becomes known (``data.replay``).

A prior that is never fitted again loses what it knew: solar panels are built and tariffs change. In
daily use every day that has ended may be learnt from; a setting is never chosen on it.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

from compevo_core.data.files import write_json
from compevo_core.data.splits import release_windows
from compevo_core.data.view import Window
from compevo_core.data.window import WindowSet

_FITTED_FILE = "fitted.json"


class RefitMemory:
    """All windows with a known truth, and the end of the newest one at the last fit.

    Args:
        days: days from one fit to the next.
        windows: what the priors were fitted on.
        fitted_utc: end of the newest window at the last fit; that of ``windows`` unless given.
    """

    def __init__(self, days: int, windows: WindowSet, fitted_utc: datetime | None = None) -> None:
        self.days = days
        self.windows = windows
        self.fitted_utc = fitted_utc or max(view.end_utc for view in windows.views())

    def add(self, windows: Sequence[Window]) -> bool:
        """Take up windows whose truth has become known; return whether a fit is due.

        It is due when the newest one ended so many days after the newest one of the last fit.
        """
        known = [*self.windows, *release_windows(windows)]
        self.windows = WindowSet(known, dataset=self.windows.dataset)

        newest_utc = max(window.view.end_utc for window in windows)
        if newest_utc - self.fitted_utc < timedelta(days=self.days):
            return False
        self.fitted_utc = newest_utc
        return True

    def save(self, folder: Path) -> None:
        """Write the windows and the time of the last fit into ``folder``."""
        self.windows.write(folder)
        write_json(folder / _FITTED_FILE, self.fitted_utc.isoformat())

    @classmethod
    def load(cls, days: int, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        fitted_utc = json.loads((folder / _FITTED_FILE).read_text(encoding="utf-8"))
        return cls(days, WindowSet.read(folder), datetime.fromisoformat(fitted_utc))
