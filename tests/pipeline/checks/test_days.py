"""Days that look wrong: a profile that jumps by hours, a day without news."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_pipeline.checks.days import find_days_without_news, find_jumps

HALF_HOUR = timedelta(minutes=30)
FIRST = datetime(2025, 5, 1, tzinfo=UTC)


def demand(days=120, move=None, seed=3):
    """A double-humped day with noise; ``move`` takes (first day, end day, hours)."""
    hours = np.arange(days * 48) / 2
    if move is not None:
        first, end, by = move
        inside = (hours >= 24 * first) & (hours < 24 * end)
        hours = np.where(inside, hours - by, hours)
    day = hours * 2 * np.pi / 24
    values = 7000 - 900 * np.cos(day) + 500 * np.sin(2 * day)
    values += np.random.default_rng(seed).normal(scale=150, size=values.size)
    return pl.DataFrame(
        {
            "series_id": "AEMO/TOTALDEMAND/NSW1",
            "variable": "demand_mw",
            "start_utc": [FIRST + HALF_HOUR * k for k in range(values.size)],
            "value": values,
            "unit": "MW",
            "flag": "observed",
            "source": "archive:test",
            "fetched_at": FIRST,
        },
        schema=SERIES_SCHEMA,
    )


def test_a_month_moved_by_an_hour_is_found_where_it_begins_and_where_it_ends():
    jumps = find_jumps(demand(move=(45, 75, 1)), HALF_HOUR)
    assert [jump.hours for jump in jumps] == [1, -1]
    days = [date(2025, 5, 1) + timedelta(days=k) for k in (45, 75)]
    assert all(
        abs(jump.day - day) <= timedelta(days=2) for jump, day in zip(jumps, days, strict=True)
    )


@pytest.mark.parametrize(
    "frame",
    [
        demand(),
        demand().with_columns(pl.col("value") * pl.int_range(pl.len()) / 1000),
        demand(days=20, move=(10, 20, 1)),
    ],
    ids=["nothing", "a level that rises", "too short to say"],
)
def test_what_is_no_jump_is_not_reported(frame):
    assert find_jumps(frame, HALF_HOUR) == []


def test_a_day_with_a_gap_has_no_profile_and_does_not_hide_the_others():
    frame = demand(move=(45, 75, 1)).gather_every(1).filter(pl.col("start_utc").dt.day() != 7)
    assert [jump.hours for jump in find_jumps(frame, HALF_HOUR)] == [1, -1]


def test_people_whose_clocks_change_move_their_days_and_that_is_no_error():
    # Sydney's clocks go back on 6 April and forward on 5 October: from 1 May it is day 157.
    moved = demand(days=200, move=(157, 200, -1))
    assert find_jumps(moved, HALF_HOUR, ("Australia/Sydney",)) == []
    assert len(find_jumps(moved, HALF_HOUR)) == 1


def test_a_daily_series_has_no_profile():
    assert find_jumps(demand(), timedelta(days=1)) == []


FIRST_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def store(days, each=12):
    stamps = [FIRST_NOON + timedelta(days=day) for day in days]
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
