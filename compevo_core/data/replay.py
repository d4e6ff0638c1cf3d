"""Days as they happened: what is forecast when, and when its truth becomes known.

What belongs here: the order of these events. What does not: forecasts, what is learnt from a truth.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

from compevo_core.data.view import WindowView

Positions = list[int]


def replay_days(
    views: Sequence[WindowView],
    forecast: Callable[[Positions], None],
    observe: Callable[[Positions], None],
) -> Positions:
    """Call ``forecast`` and ``observe`` in the order in which they could have happened.

    Each call of ``forecast`` gets the views of one instant, after ``observe`` was given every view
    whose target had ended by then. A view is thus forecast before it is observed.

    Args:
        views: in any order.
        forecast: gets positions of views that know until the same instant.
        observe: gets positions of views whose targets ended since the last call, in order of time.

    Returns:
        the positions of views that were forecast and not observed: nothing came after their end.
    """
    by_time = sorted(range(len(views)), key=lambda i: views[i].information_until)
    by_end = sorted(by_time, key=lambda i: views[i].end_utc)

    n_known = 0
    for instant, group in groupby(by_time, key=lambda i: views[i].information_until):
        first = n_known
        # A view ends after its own instant, so that this stops before those of today.
        while views[by_end[n_known]].end_utc <= instant:
            n_known += 1
        if n_known > first:
            observe(by_end[first:n_known])
        forecast(list(group))
    return by_end[n_known:]
