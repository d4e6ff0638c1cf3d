"""Both ends of the look-back: the first instant belongs to it, the origin does not."""

from datetime import timedelta

from compevo_core.data.news import ArticleIndex
from tests.support.window_samples import from_nem, make_articles

ORIGIN = from_nem(2019, 3, 1)
WEEK = timedelta(days=7)
INSTANT = timedelta(microseconds=1)


def test_an_article_of_the_first_instant_is_a_candidate_and_one_before_it_is_not():
    moments = [ORIGIN - WEEK - INSTANT, ORIGIN - WEEK, ORIGIN - INSTANT, ORIGIN]
    index = ArticleIndex(make_articles(moments))
    assert index.find_before(ORIGIN, WEEK, 10) == ["a2", "a1"]
