"""Near-identical headlines."""

import itertools
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data import near_titles
from compevo_core.data.near_titles import drop_near_identical, split_words
from compevo_core.data.schemas import ARTICLE_SCHEMA

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TITLE = "Heatwave pushes power grid of South Australia to its limit"


def articles(*titles, hours=1, language="English"):
    rows = [
        {
            "article_id": f"{number:032x}",
            "url": f"https://example.org/{number}",
            "title": title,
            "language": language if isinstance(language, str) else language[number],
            "available_at": NOON + number * timedelta(hours=hours),
        }
        for number, title in enumerate(titles)
    ]
    columns = {name: kind for name, kind in pl.Schema(ARTICLE_SCHEMA).items() if name in rows[0]}
    return pl.DataFrame(rows, schema=columns)


def kept(frame):
    return drop_near_identical(frame)["title"].to_list()


@pytest.mark.parametrize(
    "other",
    [
        TITLE.upper(),
        f"{TITLE} | The Advertiser",
        f"{TITLE} - ABC News",
        "Heatwave pushes the power grid of South Australia to its limit",
    ],
)
def test_of_near_identical_titles_the_first_available_stays(other):
    frame = articles(TITLE, other)
    assert kept(frame) == [TITLE]
    assert kept(frame.reverse()) == [TITLE]


@pytest.mark.parametrize(
    "other",
    [
        "Heatwave pushes power grid of Victoria beyond all its limits",
        "Storm in South Australia: 20,000 homes lose power",
        "Prices of power fall",
    ],
)
def test_another_story_stays(other):
    assert kept(articles(TITLE, other)) == [TITLE, other]


def test_another_number_is_another_stage_of_a_story():
    stages = [f"Storm leaves {homes} homes without power across western Sydney" for homes in (3, 9)]
    assert kept(articles(*stages)) == stages


def test_the_same_words_later_or_in_another_language_are_other_news():
    assert len(kept(articles(TITLE, TITLE, hours=24 * 4))) == 2
    assert len(kept(articles(TITLE, TITLE, language=["English", "Dutch"]))) == 2


def test_short_titles_are_not_compared():
    assert len(kept(articles("Weather today in Sydney", "Weather today in Sydney"))) == 2


def test_a_word_that_all_titles_share_costs_no_more_than_the_newest_of_them(monkeypatch):
    monkeypatch.setattr(near_titles, "MOST_COMPARED", 3)
    seen = []
    compare = near_titles._are_near
    monkeypatch.setattr(near_titles, "_are_near", lambda *sets: seen.append(1) or compare(*sets))
    titles = [f"storm{n} flood{n} fire{n} quake{n} common" for n in range(40)]
    monkeypatch.setattr(near_titles, "_rarest_words", lambda own, _: ["common"])
    assert len(kept(articles(*titles, hours=0.1))) == 40
    assert len(seen) <= 3 * 40


def test_comparing_titles_of_a_rare_common_word_alone_finds_what_comparing_all_finds(monkeypatch):
    draw = np.random.default_rng(7)
    words = [f"word{letter}" for letter in "abcdefghijklmnop"]
    titles = [" ".join(draw.choice(words, draw.integers(5, 10), replace=False)) for _ in range(180)]
    fast = kept(articles(*titles, hours=0.1))

    monkeypatch.setattr(near_titles, "_rarest_words", lambda own, _: sorted(own))
    assert fast == kept(articles(*titles, hours=0.1))
    assert len(fast) < 180
    sets = [split_words(title) for title in fast]
    assert all(
        len(one & two) < 0.8 * len(one | two) for one, two in itertools.combinations(sets, 2)
    )


def test_a_known_headline_takes_the_place_of_a_later_one_and_of_no_earlier_one():
    known, later = articles(TITLE, f"{TITLE} | The Advertiser").partition_by("article_id")
    assert drop_near_identical(later, known).is_empty()
    assert drop_near_identical(known, later).equals(known)
    assert drop_near_identical(later, later).equals(later), "given again, it is no other's repeat"

    old = known.with_columns(available_at=pl.col("available_at") - near_titles.NEAR)
    assert drop_near_identical(later, old).equals(later)
