"""News articles: identity, availability, duplicates, places and the candidates of an origin.

What belongs here: everything about articles that needs no network, no database and no language
model. What does not: fetching and parsing (the pipeline's sources), storage, the candidates of a
data set (``data.candidates``), the pool a model reads (``data.news_pool``).

An article is a candidate for a window only if ``available_at < origin``: one that became available
at the origin itself is too late.

Two titles are near-identical if their sets of words overlap by four fifths (Jaccard), every number
in one is in the other, and the language is the same. Only titles that share one of their rarest
words are compared, which finds every such pair (the prefix filter of set-similarity joins).

GDELT's stored polls carry no country of the publisher, so a country's news is known by the
publisher's country, the ending of its domain, or a word of the text. Words that other countries
share (Victoria, Newcastle, Perth, SA) only show the region within the news of a country.
"""

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import polars as pl

from compevo_core.data.calendar import Place
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.schemas import ARTICLE_SCHEMA, validate_frame
from compevo_core.errors import ConfigError, DataError
from compevo_core.runtime.files import hash_text, read_packaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """Signs of a country's news, as ``countries.toml`` describes them."""

    names: Sequence[str]
    domains: Sequence[str]
    words: Sequence[str]
    regions: Mapping[str, Sequence[str]]


COUNTRIES = {code: Country(**signs) for code, signs in read_packaged(__file__, "countries").items()}
"""Signs by ISO code."""

_ADD = "add it to compevo_core/data/countries.toml"


def is_of_country(country: str) -> pl.Expr:
    """Return the expression of "this article is the country's own news" over an article frame.

    Every article counts as news of the country "". ConfigError for an unknown country.
    """
    if not country:
        return pl.lit(value=True)
    signs = _find_signs(country)

    has_name = pl.col("country").fill_null("").str.to_lowercase().is_in(list(signs.names))
    has_domain = pl.any_horizontal(_DOMAIN.str.ends_with(ending) for ending in signs.domains)
    return has_name | has_domain | _holds_name(signs.words)


def names_region(place: Place) -> pl.Expr:
    """Return the expression of "this article names the place's own region".

    A place without a region is named by every article. ConfigError if nothing is known of it.
    """
    if not place.subdivision:
        return pl.lit(value=True)

    regions = _find_signs(place.country).regions
    if place.subdivision not in regions:
        raise ConfigError(
            f"no words are known of region {place.subdivision!r} of {place.country}; {_ADD}"
        )
    return _holds_name(regions[place.subdivision])


def _find_signs(country: str) -> Country:
    if country not in COUNTRIES:
        raise ConfigError(
            f"nothing is known of the news of country {country!r} (known: "
            f"{', '.join(COUNTRIES)}); {_ADD}"
        )
    return COUNTRIES[country]


_DOMAIN = pl.col("domain").fill_null("").str.to_lowercase()
_TEXT = pl.concat_str(pl.col("title").fill_null(""), pl.col("body").fill_null(""), separator=" ")


def holds_word(words: Sequence[str]) -> pl.Expr:
    """Return the expression of "title or body holds one of these whole words", in any capitals."""
    return _TEXT.str.contains(rf"(?i)\b(?:{'|'.join(map(re.escape, words))})\b")


def is_of_domain(domains: Sequence[str]) -> pl.Expr:
    """Return the expression of "its site has one of these domains, or one below"; empty: any."""
    inside = [_DOMAIN.eq(name) | _DOMAIN.str.ends_with(f".{name}") for name in domains]
    return pl.any_horizontal(pl.lit(not domains), *inside)


def is_in_language(languages: Sequence[str]) -> pl.Expr:
    """Return the expression of "this article may be in one of the languages"; of none, in any."""
    return pl.col("language").fill_null("").is_in(["", *languages]) | pl.lit(not languages)


def _holds_name(words: Sequence[str]) -> pl.Expr:
    # An acronym counts only in capitals: "sa" and "vic" are also parts of ordinary text.
    acronyms = {word for word in words if word.isupper() and len(word) <= 4}
    patterns = [
        re.escape(word) if word in acronyms else f"(?i:{re.escape(word)})" for word in words
    ]
    return _TEXT.str.contains(rf"\b(?:{'|'.join(patterns)})\b")


OWN_PUBLISHER = "own-"  # begins the publisher of what belongs to a data set of a user's own

_TRACKING = re.compile(r"^(utm_.*|fbclid|gclid|mc_[ce]id|igshid|cmpid|ref|ref_src)$")
_DEFAULT_PORT = {"http": 80, "https": 443}
_ID_DIGITS = 32
_FEWEST_TITLE_WORDS = 4  # shorter titles are often section names, which different articles share


def canonicalize_url(url: str) -> str:
    """Return one spelling for a page: https, lower-case host without ``www.``, no fragment.

    Tracking parameters and a trailing slash are dropped and the query is sorted. An address without
    a host (``n2f:2019-01-03/4``) is a name, not a page, and is only stripped.
    """
    parts = urlsplit(url.strip())
    if not parts.netloc:
        return url.strip()

    scheme = "https" if parts.scheme in ("http", "https", "") else parts.scheme
    host = (parts.hostname or "").removeprefix("www.")

    # The port of the original scheme counts as default too: http on port 80 becomes plain https.
    default_ports = (_DEFAULT_PORT.get(parts.scheme), _DEFAULT_PORT.get(scheme))
    if parts.port is not None and parts.port not in default_ports:
        host = f"{host}:{parts.port}"

    query = sorted(
        (key, value)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
        if not _TRACKING.match(key.lower())
    )
    return urlunsplit((scheme, host, parts.path.rstrip("/") or "/", urlencode(query), ""))


def derive_article_id(url: str) -> str:
    """Return the first 32 hex digits of the SHA-256 of the canonical address."""
    return hash_text(canonicalize_url(url))[:_ID_DIGITS]


def availability_expr() -> pl.Expr:
    """Return the expression of ``available_at``: the later of the known times."""
    return pl.max_horizontal("published_at", "seen_at").alias("available_at")


def validate_articles(frame: pl.DataFrame) -> pl.DataFrame:
    """Check an article frame: columns, types, required values, and availability.

    DataError for the first rule broken, with the number of rows and the first address.
    """
    frame = validate_frame(frame, ARTICLE_SCHEMA, "article frame")

    for name in ("article_id", "url", "title", "available_at", "fetched_at", "source"):
        nulls = frame.filter(pl.col(name).is_null())
        if nulls.height:
            raise DataError(
                f"{nulls.height} article(s) without {name}, first {nulls['url'][0]!r}; "
                "the parser must set it"
            )

    # Later is allowed: a source may know that an article was delayed. Earlier would be leakage.
    early = frame.filter(pl.col("available_at") < availability_expr())
    if early.height:
        raise DataError(
            f"{early.height} article(s) are marked available before they were published or seen, "
            f"first {early['url'][0]!r}; available_at is the later of the two"
        )
    return frame


def deduplicate_articles(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep one row per article: each id once, and a syndicated title once.

    Titles are syndicated if their words and language agree. The row that was available first stays;
    ties are broken by id, so the result does not depend on the row order. Titles of fewer than four
    words are not compared.
    """
    ordered = frame.sort("available_at", "article_id", "fetched_at", nulls_last=True)
    by_id = ordered.unique("article_id", keep="first", maintain_order=True)

    keyed = by_id.with_columns(title_key_expr().alias("_key"))
    return keyed.unique("_key", keep="first", maintain_order=True).drop("_key")


def title_key_expr() -> pl.Expr:
    """Return the expression of what syndicated copies of an article share.

    Articles of a user's own are not syndicated: warnings and notices repeat word for word.

    The pipeline stores a hash of it: another rule needs another table there.
    """
    words = (
        pl.col("title")
        .fill_null("")
        .str.to_lowercase()
        .str.replace_all(r"[^\p{L}\p{N}]+", " ")
        .str.strip_chars()
    )
    # The language is part of the key: the same words can be different news in two languages.
    key = pl.concat_str(words, pl.col("language").fill_null(""), separator="|")
    is_own = pl.col("source").fill_null("").str.contains(f":{OWN_PUBLISHER}", literal=True)
    is_comparable = (words.str.split(" ").list.len() >= _FEWEST_TITLE_WORDS) & ~is_own
    return pl.when(is_comparable).then(key).otherwise("article_id")


def select_articles(frame: pl.DataFrame, publisher: str) -> pl.DataFrame:
    """Return the articles of a publisher; "" selects all but the articles of own data sets."""
    # "archive:own-demand/articles.csv" comes from the publisher "own-demand".
    published_by = pl.col("source").str.extract(r"^[^:]*:([^/]*)", 1).fill_null("")
    if publisher:
        return frame.filter(published_by == publisher)
    return frame.filter(~published_by.str.starts_with(OWN_PUBLISHER))


def find_candidates(
    articles: pl.DataFrame, origin_utc: datetime, spec: DatasetSpec, *, is_spread: bool = False
) -> list[str]:
    """Return the ids of articles that came out before an origin, the newest first.

    ``articles`` are sorted by ``available_at``, then ``article_id``. At most ``news_limit`` of a
    look-back are returned. With fewer than ``news_fewest`` the search goes back as far as needed,
    at most ``news_longest_lookback``. With ``is_spread``, what crowds others out is passed over, as
    :func:`spread_over` says.
    """
    # side="left" at the end leaves out an article of the origin's own instant.
    available = articles["available_at"]
    first = available.search_sorted(origin_utc - spec.news_lookback, side="left")
    end = available.search_sorted(origin_utc, side="left")

    if end - first < spec.news_fewest:
        oldest = available.search_sorted(origin_utc - spec.news_longest_lookback, side="left")
        first = max(oldest, end - spec.news_fewest)
    if is_spread:
        return spread_over(articles[first:end].reverse(), spec.news_limit)
    return articles["article_id"][max(first, end - spec.news_limit) : end].reverse().to_list()


MOST_OF_DOMAIN = 0.25  # share of the candidates that one domain may have
MOST_ALIKE = 3  # candidates whose titles share most of their words
ALIKE = 0.6  # share of common words of such titles


def spread_over(articles: pl.DataFrame, limit: int) -> list[str]:
    """Return the first ids of articles, at most ``limit``, of many domains and stories.

    Anybody's page is indexed as news: of a domain, or of titles that are near to one another, only
    the first few count, so that whoever publishes a hundred headlines takes no one else's place.
    """
    chosen: list[str] = []
    titles: list[frozenset[str]] = []
    of_domain: Counter[str] = Counter()
    for name, domain, title in articles.select("article_id", "domain", "title").iter_rows():
        words = split_words(title)
        alike = sum(len(words & other) >= ALIKE * len(words | other) for other in titles)
        if alike >= MOST_ALIKE or of_domain[domain or name] >= MOST_OF_DOMAIN * limit:
            continue
        chosen.append(name)
        titles.append(words)
        of_domain[domain or name] += 1
        if len(chosen) == limit:
            break
    return chosen


LEAST_OVERLAP = 0.8  # share of common words from which two titles are one story
NEAR = timedelta(days=3)  # a title that comes back later is news of its own, such as a yearly event
MOST_COMPARED = 200  # kept titles that a title is compared with for one word, the newest ones

_KNOWN = "_is_known"
_FEWEST_WORDS = 5  # one word of difference in four is a different headline
_WORD = re.compile(r"\w+")
_OUTLET = re.compile("\\s+[|\u2013\u2014-]\\s+[^|\u2013\u2014-]{2,40}$")


def drop_near_identical(frame: pl.DataFrame, known: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the articles of which no near-identical one was available first, by time and id.

    Articles that are ``known``, as they are stored already, all stay.
    """
    given = frame.with_columns(pl.lit(value=False).alias(_KNOWN))
    if known is not None:
        # An article that is given again is not compared with its stored copy.
        others = known.join(frame, on="article_id", how="anti").select(frame.columns)
        given = pl.concat([given, others.with_columns(pl.lit(value=True).alias(_KNOWN))])
    ordered = given.sort("available_at", "article_id")
    is_known: list[bool] = ordered[_KNOWN].to_list()
    titles = [split_words(title or "") for title in ordered["title"]]
    frequency = Counter(word for words in titles for word in words)

    rows: list[int] = []
    by_word: dict[tuple[str, str], deque[int]] = defaultdict(lambda: deque(maxlen=MOST_COMPARED))
    moments: list[datetime] = ordered["available_at"].to_list()
    languages = ordered["language"].fill_null("").to_list()

    for row, words in enumerate(titles):
        keys = [(languages[row], word) for word in _rarest_words(words, frequency)]
        earlier = {other for key in keys for other in by_word[key]}
        if not is_known[row] and any(
            moments[row] - moments[other] <= NEAR and _are_near(words, titles[other])
            for other in earlier
        ):
            continue

        rows.append(row)
        for key in keys:
            by_word[key].append(row)
    return ordered[rows].filter(~pl.col(_KNOWN)).drop(_KNOWN)


def split_words(title: str) -> frozenset[str]:
    """Return the words of a headline in lower case, without the outlet's name at its end."""
    return frozenset(_WORD.findall(_OUTLET.sub("", title).lower()))


def _rarest_words(words: frozenset[str], frequency: Counter[str]) -> Sequence[str]:
    """Return the words of which two near-identical titles share at least one."""
    if len(words) < _FEWEST_WORDS:
        return []
    length = len(words) - math.ceil(LEAST_OVERLAP * len(words)) + 1
    return sorted(words, key=lambda word: (frequency[word], word))[:length]


def _are_near(words: frozenset[str], others: frozenset[str]) -> bool:
    common = len(words & others)
    if common < LEAST_OVERLAP * len(words | others):
        return False

    # "3,000 homes" and "5,000 homes" are two stages of a story.
    return not any(char.isdigit() for word in words ^ others for char in word)
