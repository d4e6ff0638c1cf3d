"""Days on which a publisher that writes every day has no article in the store.

What belongs here: finding such days. What does not: binding it to assets (``checks.asset_checks``).
A day of empty answers looks like this in the store: there is always news, so the day was lost.
"""

from datetime import timedelta

import polars as pl

MIN_USUAL_ARTICLES = 10
"""Median of the articles on a day with any, from which on a publisher writes every day."""

LONGEST_LOSS_DAYS = 7
"""A longer stretch without news was not collected."""


def find_days_without_news(days: pl.DataFrame) -> list[str]:
    """Return publisher and day of each loss, oldest first.

    Args:
        days: ``group`` (the publisher), ``day`` and ``articles``, as ``NewsStore.count_days``.
    """
    days = days.rename({"group": "publisher"}).sort("publisher", "day")
    usual = pl.col("articles").median().over("publisher")
    lost = pl.col("day").diff().over("publisher").dt.total_days() - 1
    gaps = days.with_columns(lost.alias("lost")).filter(
        (usual >= MIN_USUAL_ARTICLES) & pl.col("lost").is_between(1, LONGEST_LOSS_DAYS)
    )
    return [
        f"{publisher} {day - timedelta(days=back)}"
        for publisher, day, lost in gaps.select("publisher", "day", "lost").iter_rows()
        for back in range(lost, 0, -1)
    ]
