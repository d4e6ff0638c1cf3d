"""Candidates out of a store that is read month by month."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.candidates import CandidateFinder, FrameSource
from compevo_core.data.datasets import ELECTRICITY
from compevo_core.data.news import ArticleIndex
from tests.support.window_samples import make_articles

FIRST = datetime(2019, 1, 1, tzinfo=UTC)
HOURS = [timedelta(hours=5 * n) for n in range(600)]


class CountingSource(FrameSource):
    def __init__(self, frame):
        super().__init__(frame, "")
        self.reads = []

    def read(self, since, until):
        part = super().read(since, until)
        self.reads.append((since, until, part.height))
        return part


@pytest.fixture(scope="module")
def articles():
    return make_articles([FIRST + hours for hours in HOURS])


def find_in_all(articles, end):
    spec = ELECTRICITY
    index = ArticleIndex(articles, languages=spec.news_languages)
    return tuple(
        index.find_before(
            end,
            spec.news_lookback,
            spec.news_limit,
            fewest=spec.news_fewest,
            longest_lookback=spec.news_longest_lookback,
        )
    )


def test_what_is_found_in_months_is_what_is_found_in_all(articles):
    # The gap makes windows after it look further back, into the month before.
    cut = articles.filter(~pl.col("available_at").is_between(FIRST, FIRST + timedelta(days=40)))
    for frame in (articles, cut):
        finder = CandidateFinder(ELECTRICITY, frame, "origin")
        for day in (0, 1, 31, 32, 45, 58, 59, 60, 123, 130):
            end = FIRST + timedelta(days=day)
            assert finder.find("NSW1", end) == find_in_all(frame, end)


def test_a_month_is_read_once_for_all_entities_and_never_the_whole(articles):
    source = CountingSource(articles)
    finder = CandidateFinder(ELECTRICITY, source, "origin")
    for entity in ("NSW1", "VIC1"):
        for day in range(100):
            finder.find(entity, FIRST + timedelta(days=day))
    assert [(since.month, until.month) for since, until, _ in source.reads] == [
        (12, 2), (1, 3), (2, 4), (3, 5)
    ]  # fmt: skip
    assert max(height for *_, height in source.reads) < len(HOURS) / 2
    assert finder.count_articles() == len(HOURS)
