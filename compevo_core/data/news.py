"""News articles: identity, availability, duplicates and the candidates of a window.

What belongs here: everything about articles that needs no network, no database and no language
model. What does not: fetching and parsing (the pipeline's sources), storage, embeddings
(``lm.encoder``), the pool a model reads (``data.news_pool``).

An article is a candidate for a window only if ``available_at < origin``: one that became available
at the origin itself is too late.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import polars as pl

from compevo_core.data.files import hash_text
from compevo_core.data.locality import is_of_country
from compevo_core.data.schemas import ARTICLE_SCHEMA, validate_frame
from compevo_core.errors import DataError

OWN_PUBLISHER = "own-"
"""Begins the publisher of what belongs to a data set of a user's own."""

_REQUIRED = ("article_id", "url", "title", "available_at", "fetched_at", "source")
_TRACKING = re.compile(r"^(utm_.*|fbclid|gclid|mc_[ce]id|igshid|cmpid|ref|ref_src)$")
_PLAIN_ADDRESS = re.compile(
    r"https?://(?:www\.)?(?!www\.)([a-z0-9-]+(?:\.[a-z0-9-]+)+)((?:/[A-Za-z0-9._~%+,=@!$'()*-]*)*)"
)
"""Host and path, where nothing but the scheme and ``www.`` has to change."""
_DEFAULT_PORT = {"http": 80, "https": 443}
_ID_DIGITS = 32
_FEWEST_TITLE_WORDS = 4  # shorter titles are often section names, which different articles share


def canonicalize_url(url: str) -> str:
    """Return one spelling for a page: https, lower-case host without ``www.``, no fragment.

    Tracking parameters and a trailing slash are dropped and the query is sorted. An address without
    a host (``n2f:2019-01-03/4``) is a name, not a page, and is only stripped.
    """
    plain = _PLAIN_ADDRESS.fullmatch(url)
    if plain:
        # Nine of ten addresses, and a tenth of the time.
        return f"https://{plain[1]}{plain[2].rstrip('/') or '/'}"

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

    Raises:
        DataError: the first rule broken, with the number of rows and the first address.
    """
    frame = validate_frame(frame, ARTICLE_SCHEMA, "article frame")

    for name in _REQUIRED:
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
    is_comparable = words.str.split(" ").list.len() >= _FEWEST_TITLE_WORDS
    return pl.when(is_comparable).then(key).otherwise("article_id")


def select_articles(frame: pl.DataFrame, publisher: str) -> pl.DataFrame:
    """Return the articles that windows of a data set may have as candidates.

    Args:
        frame: follows ``ARTICLE_SCHEMA``.
        publisher: the one whose articles are kept; "" keeps all but those that belong to one data
            set of a user's own.
    """
    # "archive:own-demand/articles.csv" is of the publisher "own-demand".
    published_by = pl.col("source").str.extract(r"^[^:]*:([^/]*)", 1).fill_null("")
    if publisher:
        return frame.filter(published_by == publisher)
    return frame.filter(~published_by.str.starts_with(OWN_PUBLISHER))


class ArticleIndex:
    """Articles sorted by availability, to find the candidates of many origins."""

    def __init__(
        self,
        frame: pl.DataFrame,
        keywords: Sequence[str] | None = None,
        *,
        languages: Sequence[str] = (),
        country: str = "",
    ) -> None:
        """Index the articles that pass every filter.

        Args:
            frame: follows ``ARTICLE_SCHEMA``.
            keywords: keep articles whose title or body holds one as a whole word; None keeps all.
            languages: keep articles in one of them, or of unknown language; empty keeps all.
            country: keep the news of this country (``data.locality``); "" keeps all.
        """
        if languages:
            is_readable = pl.col("language").fill_null("").is_in(["", *languages])
            frame = frame.filter(is_readable)
        frame = frame.filter(is_of_country(country))

        if keywords:
            text = pl.concat_str(
                pl.col("title").fill_null(""), pl.col("body").fill_null(""), separator=" "
            )
            pattern = "(?i)" + "|".join(rf"\b{re.escape(word)}\b" for word in keywords)
            frame = frame.filter(text.str.contains(pattern))

        # The id breaks ties, so the candidates do not depend on the row order of the frame.
        ordered = frame.sort("available_at", "article_id")
        self._available = ordered["available_at"]
        self._ids: list[str] = ordered["article_id"].to_list()

    def find_before(
        self,
        origin_utc: datetime,
        lookback: timedelta,
        limit: int,
        *,
        fewest: int = 0,
        longest_lookback: timedelta | None = None,
    ) -> list[str]:
        """Return at most ``limit`` ids with origin - lookback <= available_at < origin.

        The newest comes first.

        Args:
            origin_utc: the instant before which an article must have been available.
            lookback: how far back to look.
            limit: most ids to return.
            fewest: with fewer articles than this, look further back until there are as many.
            longest_lookback: how far back to look for those at most; None for ``lookback``.

        Raises:
            DataError: ``limit`` or ``lookback`` is not above zero, or the origin has no time zone.
        """
        if limit < 1 or lookback <= timedelta(0):
            raise DataError(f"limit {limit} and lookback {lookback} must both be above zero")
        if origin_utc.tzinfo is None:
            raise DataError("origin_utc has no time zone; give an aware UTC datetime")

        # side="left" at the end leaves out an article of the origin's own instant.
        first = self._available.search_sorted(origin_utc - lookback, side="left")
        end = self._available.search_sorted(origin_utc, side="left")

        if end - first < fewest and longest_lookback is not None:
            oldest = self._available.search_sorted(origin_utc - longest_lookback, side="left")
            first = max(oldest, end - fewest)
        return self._ids[max(first, end - limit) : end][::-1]


def find_candidates(
    frame: pl.DataFrame,
    origin_utc: datetime,
    lookback: timedelta,
    limit: int,
    keywords: Sequence[str] | None = None,
) -> list[str]:
    """Return the ids a forecast at ``origin_utc`` may use; see :class:`ArticleIndex`."""
    return ArticleIndex(frame, keywords).find_before(origin_utc, lookback, limit)
