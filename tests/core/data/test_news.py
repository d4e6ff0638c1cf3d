"""Article identity, availability, duplicates, candidates and the news pool."""

import re
from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compevo_core.data import news
from compevo_core.data.news import (
    ArticleIndex,
    availability_expr,
    canonicalize_url,
    deduplicate_articles,
    derive_article_id,
    find_candidates,
    validate_articles,
)
from compevo_core.data.news_pool import NewsPool
from compevo_core.errors import DataError
from tests.support.window_samples import SYDNEY, from_nem, make_articles

ORIGIN = from_nem(2019, 3, 1)
HOUR = timedelta(hours=1)
WEEK = timedelta(days=7)
WORDS = "Storm cuts power to northern suburbs"


@pytest.mark.parametrize(
    "spelling",
    [
        "http://www.Example.org/a/",
        "https://example.org/a#top",
        "https://example.org:443/a?utm_source=x&fbclid=1",
        "  https://EXAMPLE.org/a  ",
    ],
)
def test_spellings_of_one_page_are_one_article(spelling):
    assert derive_article_id(spelling) == derive_article_id("https://example.org/a")


def test_other_pages_other_ports_and_other_queries_stay_apart():
    pages = [
        "https://example.org/a",
        "https://example.org/A",
        "https://example.org:8080/a",
        "https://example.org/a?id=2",
    ]
    assert len({derive_article_id(page) for page in pages}) == len(pages)
    assert len(derive_article_id(pages[0])) == 32


@given(
    st.from_regex(
        r"https?://(www\.)?[a-z0-9.-]{1,12}(:\d{1,4})?(/[A-Za-z0-9._~%+,=@!;\[\] -]{0,8}){0,3}"
        r"(\?[a-z=&]{0,5})?(#x)?",
        fullmatch=True,
    )
)
def test_the_short_way_to_a_canonical_address_is_the_long_one(url):
    def read():
        try:
            return canonicalize_url(url)
        except ValueError as error:
            return str(error)

    short = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(news, "_PLAIN_ADDRESS", re.compile("(?!)"))
        assert read() == short


@given(
    st.sampled_from(
        [
            "https://example.org/x?b=1&a=2",
            "n2f:2019-01-03/4",
            "http://www.a.au/",
            "https://a.au/p/?q",
        ]
    )
)
def test_a_canonical_address_is_its_own_canonical_address(url):
    assert canonicalize_url(canonicalize_url(url)) == canonicalize_url(url)


def test_an_article_seen_at_the_origin_is_too_late_and_one_microsecond_before_is_not():
    frame = make_articles([ORIGIN, ORIGIN - timedelta(microseconds=1), ORIGIN + HOUR])
    assert find_candidates(frame, ORIGIN, WEEK, 10) == ["a1"]


def test_candidates_come_newest_first_within_the_lookback_and_the_limit():
    frame = make_articles([ORIGIN - i * HOUR for i in (5, 1, 3, 2, 400)])
    assert find_candidates(frame, ORIGIN, WEEK, 10) == ["a1", "a3", "a2", "a0"]
    assert find_candidates(frame, ORIGIN, WEEK, 2) == ["a1", "a3"]


def test_candidates_do_not_depend_on_the_row_order():
    frame = make_articles([ORIGIN - HOUR] * 5)
    assert find_candidates(frame, ORIGIN, WEEK, 3) == find_candidates(
        frame.reverse(), ORIGIN, WEEK, 3
    )


def test_keywords_match_whole_words_of_title_or_body():
    frame = make_articles([ORIGIN - HOUR] * 3, ["Heat in Sydney", "Wheat prices", "Cold"])
    assert find_candidates(frame, ORIGIN, WEEK, 9, ["heat"]) == ["a0"]


def find_indexed(frame: pl.DataFrame, **filters: object) -> list[str]:
    return ArticleIndex(frame, **filters).find_before(ORIGIN, WEEK, 9)


def test_candidates_are_in_a_chosen_language_or_in_an_unknown_one():
    frame = make_articles([ORIGIN - i * HOUR for i in (1, 2, 3)]).with_columns(
        language=pl.Series(["Greek", "English", None])
    )
    assert find_indexed(frame, languages=("English",)) == ["a1", "a2"]
    assert find_indexed(frame) == ["a0", "a1", "a2"]


def test_candidates_are_the_news_of_the_country_by_any_of_three_signs():
    titles = ["Prices fall", "Prices rise", "Blackout in Queensland", "Prices stay"]
    frame = make_articles([ORIGIN - i * HOUR for i in (1, 2, 3, 4)], titles).with_columns(
        country=pl.Series(["Australia", None, "United Kingdom", None]),
        domain=pl.Series(["a.com", "abc.net.au", "b.co.uk", "au.com"]),
    )
    assert find_indexed(frame, country="AU") == ["a0", "a1", "a2"]


def test_a_window_with_few_articles_looks_further_back_and_no_further_than_needed():
    index = ArticleIndex(make_articles([ORIGIN - timedelta(days=d) for d in (1, 9, 10, 11, 40)]))
    month = timedelta(days=28)

    def find(fewest: int) -> list[str]:
        return index.find_before(ORIGIN, WEEK, 9, fewest=fewest, longest_lookback=month)

    assert (find(0), find(1)) == (["a0"], ["a0"])
    assert find(3) == ["a0", "a1", "a2"]
    assert find(9) == ["a0", "a1", "a2", "a3"]
    assert index.find_before(ORIGIN, WEEK, 2, fewest=3, longest_lookback=month) == ["a0", "a1"]


def test_an_origin_without_a_time_zone_is_refused():
    with pytest.raises(DataError, match="time zone"):
        find_candidates(make_articles([ORIGIN]), ORIGIN.replace(tzinfo=None), WEEK, 1)


def test_available_is_the_latest_of_published_and_seen():
    frame = make_articles([ORIGIN, ORIGIN]).with_columns(
        seen_at=pl.Series([ORIGIN + HOUR, None], dtype=pl.Datetime("us", "UTC"))
    )
    assert frame.with_columns(availability_expr())["available_at"].to_list() == [
        ORIGIN + HOUR,
        ORIGIN,
    ]
    with pytest.raises(DataError, match="before they were published or seen"):
        validate_articles(frame)


def test_of_a_syndicated_story_the_first_to_be_available_is_kept():
    frame = make_articles(
        [ORIGIN, ORIGIN - HOUR, ORIGIN + HOUR],
        [WORDS, WORDS.upper() + "!", "Another story is printed here"],
    )
    assert deduplicate_articles(frame)["article_id"].to_list() == ["a1", "a2"]
    assert deduplicate_articles(deduplicate_articles(frame)).equals(deduplicate_articles(frame))


def test_short_titles_are_not_taken_for_syndication():
    assert (
        deduplicate_articles(make_articles([ORIGIN, ORIGIN - HOUR], ["Weather", "Weather"])).height
        == 2
    )


def make_pool() -> NewsPool:
    return NewsPool(
        make_articles([ORIGIN - HOUR, ORIGIN]), np.eye(2, 3, dtype=np.float32), "hashing"
    )


def test_a_pool_is_read_back_as_it_was_written(tmp_path):
    make_pool().write(tmp_path)
    loaded = NewsPool.read(tmp_path)
    assert loaded.articles.equals(make_pool().articles)
    np.testing.assert_array_equal(loaded.embeddings, make_pool().embeddings)
    assert (loaded.encoder_name, loaded.get_title("a1"), loaded.get_date("a0")) == (
        "hashing",
        "Made up title number 1",
        ORIGIN - HOUR,
    )
    assert loaded.find_rows(["a1", "a0"]).tolist() == [1, 0]


def test_a_pool_says_what_is_of_a_places_country_and_what_names_its_region():
    frame = make_articles([ORIGIN] * 3, ["Heat in Adelaide", "Rain in Sydney", "Rain"])
    frame = frame.with_columns(country=pl.Series([None, "Australia", "United States"]))
    pool = NewsPool(frame, np.eye(3, dtype=np.float32), "hashing")
    assert [pool.is_local(name, SYDNEY) for name in ("a0", "a1", "a2")] == [True, True, False]
    assert [pool.names_region(name, SYDNEY) for name in ("a0", "a1", "a2")] == [False, True, False]
    with pytest.raises(DataError, match="not in the news pool"):
        pool.is_local("a9", SYDNEY)


def test_an_altered_pool_and_an_unknown_article_are_refused(tmp_path):
    make_pool().write(tmp_path)
    with pytest.raises(DataError, match="not in the news pool, first a9"):
        make_pool().find_rows(["a9"])
    next(tmp_path.glob("embeddings-*.safetensors")).write_bytes(b"x")
    with pytest.raises(DataError, match="differs from its manifest"):
        NewsPool.read(tmp_path)


def test_a_pool_of_an_earlier_version_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "manifest.json").write_text('{"encoder": "hashing", "sha256": {}}')
    with pytest.raises(DataError, match="earlier version; materialize models/compevo"):
        NewsPool.read(tmp_path)


def test_the_hash_of_articles_is_of_those_that_are_named_and_of_their_titles():
    pool, other = make_pool(), make_pool()
    titles = pl.Series(["Another title", "Made up title number 1"])
    other.articles = other.articles.with_columns(title=titles)
    assert pool.hash_articles(["a1", "a1"]) == other.hash_articles(["a1"])
    assert pool.hash_articles(["a0", "a1"]) != other.hash_articles(["a0", "a1"])
    assert pool.hash_articles(["a0"]) != pool.hash_articles(["a1"])
    with pytest.raises(DataError, match="not in the news pool"):
        pool.hash_articles(["a9"])


def test_embeddings_must_be_one_unit_vector_an_article():
    with pytest.raises(DataError, match="length"):
        NewsPool(make_articles([ORIGIN]), np.full((1, 3), 2.0, dtype=np.float32), "hashing")
    with pytest.raises(DataError, match="1 articles but"):
        NewsPool(make_articles([ORIGIN]), np.eye(2, 3, dtype=np.float32), "hashing")
