"""Which articles some window of a data set can name."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import polars as pl

from compevo_core.data.build import build_windows
from compevo_core.data.calendar import Place
from compevo_core.data.datasets import BITCOIN, ELECTRICITY
from compevo_core.data.nameable import find_news_spans, is_within, select_nameable
from compevo_core.data.schemas import ARTICLE_SCHEMA
from tests.support.window_samples import make_articles, make_series

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
