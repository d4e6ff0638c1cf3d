"""Windows with one source of information replaced, for controls.

What belongs here: changes of a window set that a population is trained and scored on in place of
the real one. What does not: changes of settings (``experiments.controls``), the detectors of leaks
(``evaluation.leakage``).
"""

import hashlib
from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta

import numpy as np

from compevo_core.data.view import Window
from compevo_core.data.window import WindowSet

LEAST_DISTANCE = timedelta(days=30)
"""How far the day that lends its news lies back: what is still news after a month is rare."""


def swap_news(windows: WindowSet, seed: int) -> WindowSet:
    """Give each window the candidate articles of another day, with all else as it was.

    The day is drawn among those of the same series and split at least 30 days earlier. Never a
    later one: its articles were not available at the window's origin, and news of the future would
    be a leak, not a control. A window of the first 30 days of a split has no such day and is left
    without articles; the manifest counts them.

    A draw depends on the seed, the window and the windows of its series and split alone: a split
    swapped by itself is that of the swapped whole.

    Args:
        windows: windows of one or more splits.
        seed: of the draws.

    Returns:
        windows with the same ids and truths; the hash differs where any article does.
    """
    lenders: defaultdict[tuple[str, str], list[Window]] = defaultdict(list)
    for window in windows:  # in the order of their origins
        lenders[window.view.split, window.view.series_id].append(window)

    swapped = [
        _lend_news(window, lenders[window.view.split, window.view.series_id], seed)
        for window in windows
    ]
    n_without = sum(
        bool(old.view.candidate_ids) and not new.view.candidate_ids
        for old, new in zip(windows, swapped, strict=True)
    )

    about = {"name": "swap-news", "seed": seed, "n_left_without_articles": n_without}
    return WindowSet(
        swapped, dataset=windows.dataset, manifest=windows.manifest | {"perturbation": about}
    )


def _lend_news(window: Window, lenders: list[Window], seed: int) -> Window:
    view = window.view
    latest = view.origin_utc - LEAST_DISTANCE
    n_earlier = bisect_right(lenders, latest, key=lambda other: other.view.origin_utc)
    if not n_earlier:
        return replace(window, view=replace(view, candidate_ids=()))

    # A generator a window: the draw must not depend on which others are in the set.
    digest = hashlib.sha256(view.window_id.encode()).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest[:8])])
    lender = lenders[int(rng.integers(n_earlier))]
    return replace(window, view=replace(view, candidate_ids=lender.view.candidate_ids))
