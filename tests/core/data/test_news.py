"""Article identity, availability, duplicates, candidates and the news pool."""

import itertools
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data import candidates, news
from compevo_core.data.build import build_windows
from compevo_core.data.calendar import Place
from compevo_core.data.datasets import BITCOIN, DATASETS, ELECTRICITY
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.errors import ConfigError, DataError
from tests.support.window_samples import DAY, NOW, SYDNEY, from_nem, make_articles, make_series

ORIGIN = from_nem(2019, 3, 1)
HOUR = timedelta(hours=1)
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
    assert news.derive_article_id(spelling) == news.derive_article_id("https://example.org/a")


def test_pages_ports_and_queries_stay_apart():
    pages = [f"https://example.org{end}" for end in ("/a", "/A", ":8080/a", "/a?id=2")]
    assert len({news.derive_article_id(page) for page in pages}) == len(pages)
    canonical = [news.canonicalize_url(page) for page in (*pages, "n2f:2019-01-03/4")]

    assert [news.canonicalize_url(address) for address in canonical] == canonical
    assert len(news.derive_article_id(pages[0])) == 32


def find_indexed(frame, limit=9):
    ordered = frame.sort("available_at", "article_id")
    return news.find_candidates(ordered, ORIGIN, replace(BITCOIN, news_limit=limit))


def test_candidates_are_newest_first_within_limits():
    instant, oldest = timedelta(microseconds=1), ORIGIN - timedelta(days=7)
    # At the origin it is too late; the first instant of the look-back counts, the one before not.
    stamps = [ORIGIN, ORIGIN - instant, ORIGIN + HOUR, oldest, oldest - instant, ORIGIN - HOUR]
    frame = make_articles(stamps)
    assert find_indexed(frame) == ["a1", "a5", "a3"]
    assert find_indexed(frame, 2) == ["a1", "a5"]


def test_words_are_found_whole_in_any_capitals():
    frame = make_articles([ORIGIN - HOUR] * 3, ["Heat in Sydney", "Wheat prices", "Cold"])
    assert frame.filter(news.holds_word(["heat"]))["article_id"].to_list() == ["a0"]


def test_few_articles_widen_the_search_as_needed():
    frame = make_articles([ORIGIN - timedelta(days=d) for d in (1, 9, 10, 11, 40)]).reverse()

    def find(fewest, limit=9):
        spec = replace(BITCOIN, news_fewest=fewest, news_limit=limit)
        return news.find_candidates(frame, ORIGIN, spec)

    assert (find(0), find(1)) == (["a0"], ["a0"])
    assert find(3) == ["a0", "a1", "a2"]
    assert find(9) == ["a0", "a1", "a2", "a3"]
    assert find(3, limit=2) == ["a0", "a1"]


def test_available_is_the_latest_of_published_and_seen():
    frame = make_articles([ORIGIN, ORIGIN]).with_columns(
        seen_at=pl.Series([ORIGIN + HOUR, None], dtype=pl.Datetime("us", "UTC"))
    )
    available = frame.with_columns(news.availability_expr())["available_at"]
    assert available.to_list() == [ORIGIN + HOUR, ORIGIN]
    with pytest.raises(DataError, match="before they were"):
        news.validate_articles(frame)


def test_the_first_copy_of_a_story_is_kept():
    # A short title is not taken for syndication.
    titles = [WORDS, WORDS.upper() + "!", "Another story is printed here", "Weather", "Weather"]
    hours = (0, -1, 1, 0, -1)
    frame = make_articles([ORIGIN + number * HOUR for number in hours], titles)

    once = news.deduplicate_articles(frame)

    assert once["article_id"].to_list() == ["a1", "a4", "a3", "a2"]
    assert news.deduplicate_articles(once).equals(once)


def make_pool():
    frame = make_articles([ORIGIN - HOUR, ORIGIN])
    return NewsPool(frame, np.eye(2, 3, dtype=np.float32), "hashing")


def test_a_pool_is_read_back_unchanged(tmp_path):
    make_pool().write(tmp_path)
    loaded = NewsPool.read(tmp_path)
    assert loaded.articles.equals(make_pool().articles)
    np.testing.assert_array_equal(loaded.embeddings, make_pool().embeddings)
    assert (loaded.encoder_name, loaded.get_date("a0")) == ("hashing", ORIGIN - HOUR)
    assert loaded.get_title("a1") == "Made up title number 1"
    assert loaded.find_rows(["a1", "a0"]).tolist() == [1, 0]


def test_a_pool_says_which_articles_name_a_region():
    frame = make_articles([ORIGIN] * 3, ["Heat in Adelaide", "Rain in Sydney", "Rain"])
    frame = frame.with_columns(country=pl.Series([None, "Australia", "United States"]))
    pool = NewsPool(frame, np.eye(3, dtype=np.float32), "hashing")
    assert pool.names_region(["a0", "a1", "a2"], SYDNEY).tolist() == [False, True, False]


def test_unfit_pools_and_unknown_articles_are_refused(tmp_path):
    make_pool().write(tmp_path)
    with pytest.raises(DataError, match="first a9"):
        make_pool().find_rows(["a9"])
    next(tmp_path.glob("embeddings-*.safetensors")).write_bytes(b"x")
    with pytest.raises(DataError, match="its manifest"):
        NewsPool.read(tmp_path)
    with pytest.raises(DataError, match="length"):
        NewsPool(make_articles([ORIGIN]), np.full((1, 3), 2.0, dtype=np.float32), "hashing")
    with pytest.raises(DataError, match="1 articles but"):
        NewsPool(make_articles([ORIGIN]), np.eye(2, 3, dtype=np.float32), "hashing")


def test_the_article_hash_covers_named_ones_and_titles():
    pool, other = make_pool(), make_pool()
    titles = pl.Series(["Another title", "Made up title number 1"])
    other.articles = other.articles.with_columns(title=titles)
    assert pool.hash_articles(["a1", "a1"]) == other.hash_articles(["a1"])
    assert pool.hash_articles(["a0", "a1"]) != other.hash_articles(["a0", "a1"])
    assert pool.hash_articles(["a0"]) != pool.hash_articles(["a1"])


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TITLE = "Heatwave pushes power grid of South Australia to its limit"


def headlines(*titles, hours=1, language=("English",)):
    times = [NOON + number * timedelta(hours=hours) for number in range(len(titles))]
    languages = itertools.islice(itertools.cycle(language), len(titles))
    return make_articles(times, titles).with_columns(language=pl.Series(list(languages)))


def kept(frame):
    return news.drop_near_identical(frame)["title"].to_list()


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
    frame = headlines(TITLE, other)
    assert kept(frame) == [TITLE]
    assert kept(frame.reverse()) == [TITLE]


STAGE = "Storm leaves {} homes without power across western Sydney"


@pytest.mark.parametrize(
    ("titles", "options"),
    [
        ((TITLE, "Heatwave pushes power grid of Victoria beyond all its limits"), {}),
        ((TITLE, "Storm in South Australia: 20,000 homes lose power"), {}),
        ((TITLE, "Prices of power fall"), {}),
        ((STAGE.format(3), STAGE.format(9)), {}),
        ((TITLE, TITLE), {"hours": 24 * 4}),
        ((TITLE, TITLE), {"language": ["English", "Dutch"]}),
        (("Weather today in Sydney", "Weather today in Sydney"), {}),
    ],
)
def test_another_story_stays(titles, options):
    assert kept(headlines(*titles, **options)) == list(titles)


def test_a_word_in_all_titles_costs_little(monkeypatch, spy):
    monkeypatch.setattr(news, "MOST_COMPARED", 3)
    seen = spy(news, "_are_near")
    titles = [f"storm{n} flood{n} fire{n} quake{n} common" for n in range(40)]
    monkeypatch.setattr(news, "_rarest_words", lambda own, _: ["common"])
    assert len(kept(headlines(*titles, hours=0.1))) == 40
    assert len(seen) <= 3 * 40


def test_comparing_rare_words_finds_every_copy(monkeypatch):
    draw = np.random.default_rng(7)
    words = [f"word{letter}" for letter in "abcdefghijklmnop"]
    titles = [" ".join(draw.choice(words, draw.integers(5, 10), replace=False)) for _ in range(180)]
    fast = kept(headlines(*titles, hours=0.1))

    monkeypatch.setattr(news, "_rarest_words", lambda own, _: sorted(own))
    assert fast == kept(headlines(*titles, hours=0.1))
    assert len(fast) < 180
    sets = [news.split_words(title) for title in fast]
    pairs = itertools.combinations(sets, 2)
    assert all(len(one & two) < 0.8 * len(one | two) for one, two in pairs)


def test_known_headlines_replace_only_later_ones():
    known, later = headlines(TITLE, f"{TITLE} | The Advertiser").partition_by("article_id")
    assert news.drop_near_identical(later, known).is_empty()
    assert news.drop_near_identical(known, later).equals(known)
    assert news.drop_near_identical(later, later).equals(later), (
        "given again, it is no other's repeat"
    )

    old = known.with_columns(available_at=pl.col("available_at") - news.NEAR)
    assert news.drop_near_identical(later, old).equals(later)


ADELAIDE = Place(timezone="Australia/Adelaide", country="AU", subdivision="SA")


def test_domains_and_stories_replace_no_others():
    """Of 150 false headlines of one site a quarter of the places, of one text three of them."""
    true = make_articles([ORIGIN - 2 * HOUR] * 40).with_columns(
        article_id=pl.format("true-{}", pl.col("article_id")),
        domain=pl.format("paper-{}.example", pl.int_range(40)),
        title=pl.format("story{0} of{0} town{0} told{0}", pl.int_range(40)),
    )
    sites = pl.format("site-{}.example", pl.int_range(150))
    varied = pl.format("heat{0} wave{0} black{0} out{0}", pl.int_range(150))
    false = make_articles([ORIGIN - HOUR] * 150, ["Extreme heatwave, blackout feared"] * 150)

    for attack in (false.with_columns(domain=sites), false.with_columns(title=varied)):
        articles = pl.concat([true, attack]).sort("available_at", "article_id")
        rule = replace(BITCOIN, news_limit=32)
        assert len(news.find_candidates(articles, ORIGIN, rule)) == 32
        named = news.find_candidates(articles, ORIGIN, rule, is_spread=True)
        n_false = sum(not name.startswith("true") for name in named)
        assert (len(named), n_false) == (32, 3 if attack["title"].n_unique() == 1 else 8)
    # An article of no known site is of a site of its own, and what is not crowded stays as it was.
    assert news.spread_over(true.with_columns(domain=None), 99) == true["article_id"].to_list()


def test_a_site_is_its_domain_or_below():
    sites = ["abc.net.au", "news.ABC.net.au", "notabc.net.au", None]
    frame = pl.DataFrame({"domain": sites}, schema={"domain": pl.String()})
    assert frame.filter(news.is_of_domain(["abc.net.au"]))["domain"].to_list() == sites[:2]
    assert frame.filter(news.is_of_domain([]))["domain"].to_list() == sites


def holds(expression, title, **columns):
    values = {"country": None, "domain": "example.com"} | columns
    article = make_articles([NOW], [title]).with_columns(
        **{name: pl.lit(value, dtype=pl.String) for name, value in values.items()}
    )
    return bool(article.select(expression.alias("holds"))["holds"][0])


@pytest.mark.parametrize(
    ("title", "columns", "expected"),
    [
        ("Prices fall", {}, False),
        ("Prices fall", {"country": "Australia"}, True),
        ("Prices fall", {"country": "AU"}, True),
        ("Prices fall", {"country": "Austria"}, False),
        ("Prices fall", {"domain": "SMH.com.au"}, True),
        ("Prices fall", {"domain": "beau"}, False),
        ("Outage across sydney suburbs", {}, True),
        ("Australians buy batteries", {"country": "Japan"}, True),
        ("Newcastle beats Perth in the cup", {}, False),
        ("Menswear sale", {}, False),
        ("Prices fall", {"body": "Region: NSW."}, True),
    ],
)
def test_one_sign_of_a_country_is_enough(title, columns, expected):
    assert holds(news.is_of_country("AU"), title, **columns) is expected


@pytest.mark.parametrize(
    ("place", "title", "expected"),
    [
        (ADELAIDE, "Fire bans in SA on Saturday", True),
        (ADELAIDE, "Fire bans in south australia", True),
        (ADELAIDE, "Sa va bien", False),
        (SYDNEY, "Fire bans in SA on Saturday", False),
        (Place(timezone="UTC"), "Prices fall", True),
    ],
)
def test_regions_are_named_in_full_or_capitals(place, title, expected):
    assert holds(news.names_region(place), title) is expected
    assert holds(news.is_of_country(Place(timezone="UTC").country), title)


@pytest.mark.parametrize("spec", DATASETS.values(), ids=lambda spec: spec.name)
def test_every_place_of_a_data_set_is_known(spec):
    for place in (spec.default_place, *spec.places.values()):
        holds(news.is_of_country(place.country), "Prices fall")
        holds(news.names_region(place), "Prices fall")


def test_an_unknown_country_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"'NZ'.*countries\.toml"):
        news.is_of_country("NZ")
    with pytest.raises(ConfigError, match=r"region 'WA' of AU.*countries\.toml"):
        news.names_region(Place(timezone="Australia/Perth", country="AU", subdivision="WA"))
    assert set(news.COUNTRIES) == {"AU", "US"}


FIRST = datetime(2019, 1, 1, tzinfo=UTC)
HOURS = [timedelta(hours=5 * n) for n in range(600)]


@pytest.fixture(scope="module")
def articles():
    return make_articles([FIRST + hours for hours in HOURS])


def test_monthly_search_finds_what_a_whole_one_finds(articles):
    # The gap makes windows after it look further back, into the month before.
    cut = articles.filter(~pl.col("available_at").is_between(FIRST, FIRST + timedelta(days=40)))
    spec = ELECTRICITY

    for frame in (articles, cut):
        finder = candidates.CandidateFinder(spec, frame, "origin")
        for day in (0, 1, 31, 32, 45, 58, 59, 60, 123, 130):
            end = FIRST + timedelta(days=day)
            found = news.find_candidates(frame, end, spec)
            assert finder.find("NSW1", end) == tuple(found)


def test_each_month_is_read_once_for_all(articles, spy):
    source = candidates.FrameSource(articles, "")
    reads = spy(source, "read")
    finder = candidates.CandidateFinder(ELECTRICITY, source, "origin")
    for entity in ("NSW1", "VIC1"):
        for day in range(100):
            finder.find(entity, FIRST + timedelta(days=day))
    spans = [span for span, _ in reads]
    months = [(since.month, until.month) for since, until in spans]
    assert months == [(12, 2), (1, 3), (2, 4), (3, 5)]
    assert max(source.read(*span).height for span in spans) < len(HOURS) / 2
    assert finder.count_articles() == len(HOURS)


def test_news_spans_reach_the_longest_lookback():
    spans = candidates.find_news_spans(ELECTRICITY, None)
    train, first = ELECTRICITY.spans[0], datetime(2018, 11, 30, 14, tzinfo=UTC)
    assert train.first_day == date(2018, 12, 1)
    assert min(start for start, _ in spans) == first - ELECTRICITY.news_longest_lookback
    assert max(end for _, end in spans).year == 2099

    # Without a plan the values that are stored bound it.
    values = (datetime(2019, 6, 1, tzinfo=UTC), datetime(2020, 6, 1, tzinfo=UTC))
    assert candidates.find_news_spans(BITCOIN, None) == []
    back = BITCOIN.news_longest_lookback
    assert candidates.find_news_spans(BITCOIN, values) == [(values[0] - back, values[1] + 49 * DAY)]
    narrow = replace(BITCOIN, first_day=date(2019, 7, 1), last_day=date(2020, 1, 31))
    first, end = datetime(2019, 7, 1, tzinfo=UTC), datetime(2020, 2, 1, tzinfo=UTC)
    assert candidates.find_news_spans(narrow, values) == [(first - back, end)]


def test_publisher_language_and_country_decide():
    frame = make_articles([datetime(2020, 1, 1, tzinfo=UTC)] * 5, ["Heat"] * 5).with_columns(
        language=pl.Series(["English", None, "French", "English", "English"]),
        country=pl.Series(["Australia", "Australia", "Australia", "France", "Australia"]),
        source=pl.Series([*["archive:gdelt/x"] * 4, "archive:own-mine/x"]),
    )
    assert candidates.select_nameable(ELECTRICITY, frame)["article_id"].to_list() == ["a0", "a1"]
    assert candidates.select_nameable(BITCOIN, frame).height == 4
    own = replace(BITCOIN, news_source="own-mine")
    assert candidates.select_nameable(own, frame)["article_id"].to_list() == ["a4"]


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
    spans = candidates.find_news_spans(spec, (first, first + 799 * DAY))
    nameable = candidates.select_nameable(spec, articles.filter(candidates.is_within(spans)))
    assert named and named <= set(nameable["article_id"])
    assert nameable.height < articles.height
    assert nameable.schema == ARTICLE_SCHEMA
