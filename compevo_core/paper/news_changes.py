"""Windows whose candidate articles are replaced: no news, another day's, irrelevant ones.

A population is trained and scored on the changed set in place of the real one; all else is as it
was.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError

OWN, NONE, SWAPPED, IRRELEVANT = "own", "none", "swapped", "irrelevant"
SHUFFLED, NOISY = "shuffled", "noisy"
NEWS_CHANGES = (OWN, NONE, SWAPPED, IRRELEVANT, SHUFFLED, NOISY)
"""What a window may be given in place of its own candidates."""

SEED = 0
"""Seed of the draws. Which news a window gets is part of a change: the seeds of a method differ
only by training, and are scored on the same windows."""

IRRELEVANT_SHARE = 0.25
"""Irrelevant articles are sampled from this share of the available ones: those furthest from every
topic that a logic can name."""

LEAST_DISTANCE = timedelta(days=30)
"""Age of the day that lends its news: after a month hardly any of it is still news."""

LEAST_DISTANCE_OF_SAMPLES = timedelta(days=7)
"""The same in the sample world, whose events last a day and whose splits last a month."""


class Relevance:
    """How near each article is to any topic (T, D) that a logic can name, by one encoder."""

    def __init__(self, news: NewsPool, topics: npt.NDArray[np.float32]) -> None:
        self._ids = np.array(news.articles["article_id"].to_list())
        available = news.articles["available_at"].to_list()
        nearness_NT = news.embeddings @ topics.T

        # By time, so that the articles available to a window are a prefix.
        self._order = sorted(range(len(self._ids)), key=lambda row: available[row])
        self._times = [available[row] for row in self._order]
        self._nearness = nearness_NT.max(1)

    def sample_irrelevant(self, window: Window, rng: np.random.Generator) -> tuple[str, ...]:
        """Return as many articles as a window has: available, not its own, far from every topic.

        There are fewer if the pool does not hold as many.
        """
        # News of the future would be a leak, not a control.
        candidates = set(window.view.candidate_ids)
        n_available = bisect_left(self._times, window.view.known_before)
        rows = [row for row in self._order[:n_available] if self._ids[row] not in candidates]
        if not rows:
            return ()

        furthest = sorted(rows, key=lambda row: self._nearness[row])
        pool = furthest[: max(len(candidates), round(IRRELEVANT_SHARE * len(furthest)))]
        chosen = rng.permutation(len(pool))[: len(candidates)]
        return tuple(str(self._ids[pool[i]]) for i in chosen)


def change_news(windows: WindowSet, name: str, relevance: Relevance | None = None) -> WindowSet:
    """Return the windows with other candidate articles and everything else unchanged.

    ``name`` is one of :data:`NEWS_CHANGES`: their own news; none; news of another day; as many
    irrelevant articles; their own in another order; their own and as many irrelevant ones. The two
    with irrelevant ones need the ``relevance`` of the articles, else ConfigError.
    """
    if name not in NEWS_CHANGES:
        raise ConfigError(f"no news {name!r}; known: {', '.join(NEWS_CHANGES)}")
    if name == OWN:
        return windows
    if name == SWAPPED:
        return swap_news(windows, SEED)
    if name in (IRRELEVANT, NOISY) and relevance is None:
        raise ConfigError(f"news {name!r} needs the relevance of the articles")

    changed = [
        window.change_view(candidate_ids=_change_ids(window, name, relevance)) for window in windows
    ]
    return windows.with_windows(changed, perturbation={"name": f"news-{name}", "seed": SEED})


def _change_ids(window: Window, name: str, relevance: Relevance | None) -> tuple[str, ...]:
    candidates = window.view.candidate_ids
    if name == NONE or not candidates:
        return ()
    rng = _make_rng(window.view, SEED)
    if name == SHUFFLED:
        return tuple(candidates[i] for i in rng.permutation(len(candidates)))

    irrelevant = relevance.sample_irrelevant(window, rng) if relevance else ()
    return (*candidates, *irrelevant) if name == NOISY else irrelevant


def swap_news(windows: WindowSet, seed: int) -> WindowSet:
    """Give each window the candidate articles of another day; everything else is unchanged.

    The day is sampled from the same series and split at least 30 days earlier, 7 in the
    sample world. Never a later day: its articles were not available at the window's origin, and
    news of the future would be a leak, not a control. A window of the first days of a split has no
    such day and is left without articles; the manifest counts them.

    A draw depends only on the seed, the window and the windows of its series and split: a split
    swapped by itself equals its part of the swapped whole. Ids and truths stay; the hash differs if
    any article does.
    """
    swapped = [
        window.change_view(candidate_ids=lender.view.candidate_ids if lender else ())
        for window, lender in zip(windows, find_lenders(windows, seed), strict=True)
    ]
    n_without = sum(
        bool(old.view.candidate_ids) and not new.view.candidate_ids
        for old, new in zip(windows, swapped, strict=True)
    )

    about = {
        "name": "swap-news",
        "seed": seed,
        "least_days": _find_distance(windows).days,
        "n_left_without_articles": n_without,
    }
    return windows.with_windows(swapped, perturbation=about)


def find_lenders(windows: WindowSet, seed: int) -> list[Window | None]:
    """Return the window whose news each window gets when news is swapped; None if there is none."""
    distance = _find_distance(windows)
    by_series: defaultdict[tuple[str, str], list[Window]] = defaultdict(list)
    for window in windows:  # in the order of their origins
        by_series[window.view.split, window.view.series_id].append(window)
    views = windows.views()
    return [draw_lender(v, by_series[v.split, v.series_id], distance, seed) for v in views]


def lend_news(views: Sequence[WindowView], lenders: WindowSet) -> list[WindowView]:
    """Return views with the candidates of a window of their series, at least 30 days earlier.

    ``lenders`` are train windows, so that views of any split get news that was available in
    training. A view without an earlier window is left without articles.
    """
    lent = [
        draw_lender(
            view, [w for w in lenders if w.view.series_id == view.series_id], LEAST_DISTANCE, SEED
        )
        for view in views
    ]
    return [
        replace(view, candidate_ids=lender.view.candidate_ids if lender else ())
        for view, lender in zip(views, lent, strict=True)
    ]


def _find_distance(windows: WindowSet) -> timedelta:
    is_sample = windows.manifest.get("synthetic", False)
    return LEAST_DISTANCE_OF_SAMPLES if is_sample else LEAST_DISTANCE


def draw_lender(
    view: WindowView, lenders: list[Window], distance: timedelta, seed: int
) -> Window | None:
    """Return one of the windows that begin at least so long before a view; None if none does.

    ``lenders`` are in the order of their origins.
    """
    latest = view.origin_utc - distance
    n_earlier = bisect_right(lenders, latest, key=lambda other: other.view.origin_utc)
    if not n_earlier:
        return None
    return lenders[int(_make_rng(view, seed).integers(n_earlier))]


def _make_rng(view: WindowView, seed: int) -> np.random.Generator:
    """Return a generator of this window's own, so that a draw does not depend on the others."""
    digest = hashlib.sha256(view.window_id.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8])])
