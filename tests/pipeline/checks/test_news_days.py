"""A day whose answers were all empty."""

from datetime import UTC, datetime, timedelta

import polars as pl

from compevo_pipeline.checks.news_days import find_days_without_news

FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)


def store(days, each=12):
    stamps = [FIRST + timedelta(days=day) for day in days]
    return pl.DataFrame(
        {"group": "gdelt_doc", "day": [stamp.date() for stamp in stamps], "articles": each}
    )


def test_a_day_without_an_article_between_days_of_news_was_lost():
    assert find_days_without_news(store([0, 1, 3, 4, 7])) == [
        "gdelt_doc 2026-03-03",
        "gdelt_doc 2026-03-06",
        "gdelt_doc 2026-03-07",
    ]


def test_weeks_without_any_were_not_collected_and_a_publisher_of_few_items_has_days_off():
    assert find_days_without_news(store([0, 1, 20, 21])) == []
    assert find_days_without_news(store([0, 2, 4], each=2)) == []
