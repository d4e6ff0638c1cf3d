"""Candidates out of a store that is read month by month."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.build import build_windows
from compevo_core.data.calendar import Place
from compevo_core.data.candidates import (
    CandidateFinder,
    FrameSource,
    find_news_spans,
    is_within,
    select_nameable,
)
from compevo_core.data.datasets import BITCOIN, ELECTRICITY
from compevo_core.data.news import ArticleIndex
from compevo_core.data.schemas import ARTICLE_SCHEMA
from tests.support.window_samples import make_articles, make_series

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


DAY = timedelta(days=1)


def test_dated_splits_reach_back_as_far_as_a_window_looks_at_most():
    spans = find_news_spans(ELECTRICITY, None)
    train, first = ELECTRICITY.spans[0], datetime(2018, 11, 30, 14, tzinfo=UTC)
    assert train.first_day == date(2018, 12, 1)
    assert min(start for start, _ in spans) == first - ELECTRICITY.news_longest_lookback
    assert max(end for _, end in spans).year == 2099


def test_without_a_split_plan_the_stored_values_and_the_days_of_the_declaration_bound_it():
    values = (datetime(2019, 6, 1, tzinfo=UTC), datetime(2020, 6, 1, tzinfo=UTC))
    assert find_news_spans(BITCOIN, None) == []
    back = BITCOIN.news_longest_lookback
    assert find_news_spans(BITCOIN, values) == [(values[0] - back, values[1] + 49 * DAY)]

    narrow = replace(BITCOIN, first_day=date(2019, 7, 1), last_day=date(2020, 1, 31))
    first, end = datetime(2019, 7, 1, tzinfo=UTC), datetime(2020, 2, 1, tzinfo=UTC)
    assert find_news_spans(narrow, values) == [(first - back, end)]


def test_publisher_language_and_country_decide_and_unknown_languages_stay():
    frame = make_articles([datetime(2020, 1, 1, tzinfo=UTC)] * 5, ["Heat"] * 5).with_columns(
        language=pl.Series(["English", None, "French", "English", "English"]),
        country=pl.Series(["Australia", "Australia", "Australia", "France", "Australia"]),
        source=pl.Series([*["archive:gdelt/x"] * 4, "archive:own-mine/x"]),
    )
    assert select_nameable(ELECTRICITY, frame)["article_id"].to_list() == ["a0", "a1"]
    assert select_nameable(BITCOIN, frame).height == 4
    own = replace(BITCOIN, news_source="own-mine")
    assert select_nameable(own, frame)["article_id"].to_list() == ["a4"]


def test_every_article_that_a_window_names_is_nameable():
    values = [float(value) for value in range(800)]
    first = datetime(2019, 2, 1, tzinfo=UTC)
    series = make_series(values, first=first, series_id="BITINFOCHARTS/price", step=DAY)
    series = series.with_columns(variable=pl.lit("price_usd"))
    spec = replace(BITCOIN, default_place=Place(timezone="UTC"), news_limit=1000)
    stamps = [first + DAY * (number - 60) for number in range(1000)]
    articles = make_articles(stamps)

    windows = build_windows(spec, series, articles=articles)
    named = {name for view in windows.views() for name in view.candidate_ids}
    spans = find_news_spans(spec, (first, first + 799 * DAY))
    nameable = select_nameable(spec, articles.filter(is_within(spans)))
    assert named and named <= set(nameable["article_id"])
    assert nameable.height < articles.height
    assert nameable.schema == ARTICLE_SCHEMA
