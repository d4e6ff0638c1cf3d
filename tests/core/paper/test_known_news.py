"""What a view may know of the news, and by which day it came out."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from compevo_core.errors import DataError, LeakageError
from compevo_core.paper.known_news import NEWS_DAYS, embed_days, raise_if_later_news
from tests.support.population import article_ids, news_pool, windows

POOL = news_pool()
VIEW = windows("train", 1, entities=("NSW1",)).views()[0]


def view_at(hours: float, *ids: str):
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


def test_what_is_older_than_the_days_counts_to_the_oldest():
    days = embed_days([view_at(24 * 30, article_ids()[2])], POOL)[0]
    assert len(days) == NEWS_DAYS
    np.testing.assert_array_equal(days[0], POOL.embeddings[2])
    assert not days[1:].any()


def test_no_news_is_zeros_and_an_unknown_article_is_refused():
    assert not embed_days([view_at(1)], POOL).any()
    assert embed_days([], POOL).shape == (0, NEWS_DAYS, POOL.embeddings.shape[1])
    with pytest.raises(DataError, match="not in the news pool"):
        embed_days([view_at(1, "0" * 32)], POOL)
