"""News of another day: earlier, of the same series and split, and nothing else changed."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from compevo_core.data.view import Window
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper.news_changes import (
    LEAST_DISTANCE,
    NEWS_CHANGES,
    Relevance,
    change_news,
    swap_news,
)
from tests.support.population import article_ids, news_pool
from tests.support.population import windows as make_windows


def with_own_news(*parts: WindowSet) -> WindowSet:
    """Windows each of which has one article, named after it."""
    owned = [
        replace(window, view=replace(window.view, candidate_ids=(window.view.window_id,)))
        for part in parts
        for window in part
    ]
    return WindowSet(owned, dataset="electricity")


def lenders_of(windows: WindowSet, swapped: WindowSet) -> list[tuple[Window, Window]]:
    """Each window with the one whose article it was given."""
    by_id = {window.view.window_id: window for window in windows}
    return [
        (by_id[new.view.window_id], by_id[article])
        for new in swapped
        for article in new.view.candidate_ids
    ]


def test_the_lending_day_is_of_the_same_series_and_split_and_thirty_days_earlier():
    windows = with_own_news(make_windows("train", 70), make_windows("test", 50, first_day=70))
    pairs = lenders_of(windows, swap_news(windows, 0))
    assert len(pairs) == 2 * (40 + 20)

    for window, lender in pairs:
        assert window.view.origin_utc - lender.view.origin_utc >= timedelta(days=30)
        assert (window.view.split, window.view.series_id) == (
            lender.view.split,
            lender.view.series_id,
        )
    # The nearest day that may lend does: a rule that is stricter by a day would waste windows.
    assert min(a.view.origin_utc - b.view.origin_utc for a, b in pairs) < LEAST_DISTANCE * 1.1


def test_windows_of_the_first_thirty_days_read_nothing_and_are_counted():
    windows = with_own_news(make_windows("train", 40))
    swapped = swap_news(windows, 0)
    without = [window for window in swapped if not window.view.candidate_ids]
    assert len(without) == 2 * 30
    assert swapped.manifest["perturbation"] == {
        "name": "swap-news",
        "seed": 0,
        "n_left_without_articles": 60,
    }
    # The selection of a split must still say what was done to it.
    assert swapped.split("train").manifest["perturbation"]["name"] == "swap-news"


def test_nothing_but_the_articles_changes_and_the_hash_tells_the_sets_apart():
    windows = with_own_news(make_windows("test", 40))
    swapped = swap_news(windows, 0)
    assert swapped.hash != windows.hash
    for old, new in zip(windows, swapped, strict=True):
        assert replace(new.view, candidate_ids=()).__repr__() == (
            replace(old.view, candidate_ids=()).__repr__()
        )
        assert np.array_equal(old.y, new.y) and np.array_equal(old.view.x, new.view.x)


def test_a_draw_depends_on_seed_and_window_but_not_on_other_splits_in_the_set():
    test = with_own_news(make_windows("test", 60, first_day=70))
    both = with_own_news(make_windows("train", 70), make_windows("test", 60, first_day=70))
    assert swap_news(both, 1).split("test").hash == swap_news(test, 1).hash
    assert swap_news(test, 1).hash == swap_news(test, 1).hash != swap_news(test, 2).hash
    # Not one and the same lender for all: each window draws for itself.
    lent = {article for window in swap_news(test, 1) for article in window.view.candidate_ids}
    assert len(lent) > 15


def with_pool_news(days: int) -> WindowSet:
    """Windows each of which has the first two articles of the pool."""
    owned = [
        replace(window, view=replace(window.view, candidate_ids=tuple(article_ids()[:2])))
        for window in make_windows("test", days)
    ]
    return WindowSet(owned, dataset="electricity")


def relevance() -> Relevance:
    return Relevance(news_pool(), HashingEncoder().encode(["Heatwave demand record", "power"]))


@pytest.mark.parametrize("name", NEWS_CHANGES)
def test_a_change_of_news_leaves_all_else_as_it_was(name):
    windows = with_pool_news(3)
    changed = change_news(windows, name, relevance())
    for old, new in zip(windows, changed, strict=True):
        assert new.view.window_id == old.view.window_id
        assert np.array_equal(new.view.x, old.view.x)
        assert np.array_equal(new.y, old.y)


def test_each_change_gives_what_its_name_says():
    windows = with_pool_news(2)
    own = windows[0].view.candidate_ids

    def read(name: str) -> tuple[str, ...]:
        return change_news(windows, name, relevance())[0].view.candidate_ids

    assert change_news(windows, "own") is windows
    assert read("none") == ()
    assert sorted(read("shuffled")) == sorted(own)
    irrelevant = read("irrelevant")
    assert len(irrelevant) == len(own)
    assert not set(irrelevant) & set(own)
    assert read("noisy") == (*own, *irrelevant)


def test_irrelevant_articles_were_available_to_the_window():
    pool = news_pool()
    early = min(pool.articles["available_at"]) + timedelta(hours=2, minutes=30)
    window = with_pool_news(1)[0]
    window = replace(window, view=replace(window.view, origin_utc=early))
    drawn = relevance().sample_irrelevant(window, np.random.default_rng(0))
    # Of three articles that were out by then, two are its own.
    assert drawn == (article_ids()[2],)


def test_irrelevant_articles_cannot_be_drawn_without_knowing_what_is_relevant():
    with pytest.raises(ConfigError, match="needs the relevance"):
        change_news(with_pool_news(1), "irrelevant")
    with pytest.raises(ConfigError, match="known: own, none"):
        change_news(with_pool_news(1), "fake")
