"""News of another day: earlier, of the same series and split, and nothing else changed."""

import itertools
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError, LeakageError
from compevo_core.evaluation.leakage import raise_if_later_news
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper.gpt4mts import NEWS_DAYS, embed_days
from compevo_core.paper.news_changes import (
    LEAST_DISTANCE,
    NEWS_CHANGES,
    Relevance,
    change_news,
    swap_news,
)
from tests.support.population import article_ids, news_pool, windows
from tests.support.population import windows as make_windows
from tests.support.window_samples import change_views


def with_own_news(*parts):
    """Windows each of which has one article, named after it."""
    return change_views(itertools.chain(*parts), lambda view: {"candidate_ids": (view.window_id,)})


def lenders_of(windows, swapped):
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
        "least_days": 30,
        "n_left_without_articles": 60,
    }
    # The selection of a split must still say what was done to it.
    assert swapped.split("train").manifest["perturbation"]["name"] == "swap-news"


def test_in_the_sample_world_a_week_is_far_enough():
    windows = WindowSet(
        with_own_news(make_windows("train", 40)),
        dataset="electricity",
        manifest={"synthetic": True},
    )
    swapped = swap_news(windows, 0)
    assert sum(not window.view.candidate_ids for window in swapped) == 2 * 7
    assert swapped.manifest["perturbation"]["least_days"] == 7


def test_a_draw_depends_on_seed_and_window_but_not_on_other_splits_in_the_set():
    test = with_own_news(make_windows("test", 60, first_day=70))
    both = with_own_news(make_windows("train", 70), make_windows("test", 60, first_day=70))
    assert swap_news(both, 1).split("test").hash == swap_news(test, 1).hash
    assert swap_news(test, 1).hash == swap_news(test, 1).hash != swap_news(test, 2).hash
    # Not one and the same lender for all: each window draws for itself.
    lent = {article for window in swap_news(test, 1) for article in window.view.candidate_ids}
    assert len(lent) > 15


def with_pool_news(days):
    """Windows each of which has the first two articles of the pool."""
    ids = tuple(article_ids()[:2])
    return change_views(make_windows("test", days), lambda _: {"candidate_ids": ids})


def relevance():
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

    def read(name):
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
    window = with_pool_news(1)[0].change_view(origin_utc=early)
    drawn = relevance().sample_irrelevant(window, np.random.default_rng(0))
    # Of three articles that were out by then, two are its own.
    assert drawn == (article_ids()[2],)


def test_irrelevant_articles_cannot_be_drawn_without_knowing_what_is_relevant():
    with pytest.raises(ConfigError, match="needs the relevance"):
        change_news(with_pool_news(1), "irrelevant")
    with pytest.raises(ConfigError, match="known: own, none"):
        change_news(with_pool_news(1), "fake")


POOL = news_pool()
VIEW = windows("train", 1, entities=("NSW1",)).views()[0]


def view_at(hours, *ids):
    """A view that is made this long after the third article came out."""
    origin = POOL.get_date(article_ids()[2]) + timedelta(hours=hours)
    return replace(VIEW, origin_utc=origin, candidate_ids=ids)


def test_an_article_of_the_very_origin_is_refused_and_one_before_it_is_not():
    third = article_ids()[2]
    raise_if_later_news([view_at(0.01, third)], POOL)
    for hours in (0, -5):
        with pytest.raises(LeakageError, match="not available before"):
            raise_if_later_news([view_at(hours, third)], POOL)
        with pytest.raises(LeakageError):
            embed_days([view_at(hours, third)], POOL)


def test_a_view_that_is_made_before_its_origin_knows_no_news_of_the_hours_between():
    # Fourteen of its inputs are unknown: it is made seven hours before its origin.
    third = article_ids()[2]
    raise_if_later_news([replace(view_at(7.5, third), unknown_steps=14)], POOL)
    with pytest.raises(LeakageError):
        raise_if_later_news([replace(view_at(6.5, third), unknown_steps=14)], POOL)


def test_a_copy_of_a_published_leaky_prompt_keeps_its_news():
    raise_if_later_news([replace(view_at(-5, article_ids()[2]), leaky=True)], POOL)


def test_days_hold_the_mean_of_their_articles_oldest_first():
    # Articles come an hour after another: with the third 23.5 hours old, the first two are older.
    first, second, third = article_ids()[:3]
    days = embed_days([view_at(23.5, third, second, first)], POOL)[0]
    np.testing.assert_array_equal(days[-1], POOL.embeddings[2])
    np.testing.assert_allclose(days[-2], POOL.embeddings[:2].mean(axis=0), rtol=1e-6)
    assert not days[:-2].any()


def test_no_news_is_zeros_and_an_unknown_article_is_refused():
    assert not embed_days([view_at(1)], POOL).any()
    assert embed_days([], POOL).shape == (0, NEWS_DAYS, POOL.embeddings.shape[1])
    with pytest.raises(DataError, match="not in the news pool"):
        embed_days([view_at(1, "0" * 32)], POOL)
