"""News articles: schema, the availability rule, duplicates, candidates and the pool a model reads (design 3, 4.10).

What belongs here: everything about articles that needs no network, no database and no language model.
What does not: fetching and parsing (the pipeline's sources), storage (DuckDB), embedding (``encoder``).
An article is a candidate for a window only if ``available_at < origin``; equality is too late.
"""

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import polars as pl

from compevo_core.data.news_pool import NewsPool
from compevo_core.data.series import UTC_US, validate_frame
from compevo_core.errors import DataError

__all__ = ["ARTICLE_SCHEMA", "ArticleIndex", "NewsPool", "article_id", "availability", "candidates", "canonical_url",
           "dedupe", "validate_articles"]  # fmt: skip

ARTICLE_SCHEMA: dict[str, pl.DataType] = {
    "article_id": pl.String(),
    "url": pl.String(),
    "title": pl.String(),
    "body": pl.String(),
    "domain": pl.String(),
    "language": pl.String(),
    "country": pl.String(),
    "published_at": UTC_US,
    "seen_at": UTC_US,
    "available_at": UTC_US,
    "fetched_at": UTC_US,
    "source": pl.String(),
}
_REQUIRED = ("article_id", "url", "title", "available_at", "fetched_at", "source")
_TRACKING = re.compile(r"^(utm_.*|fbclid|gclid|mc_[ce]id|igshid|cmpid|ref|ref_src)$")
_DEFAULT_PORT = {"http": 80, "https": 443}


def canonical_url(url: str) -> str:
    """One spelling for a page: https, lower-case host without ``www.``, no fragment, tracking or trailing slash.

    Addresses without a host (``n2f:2019-01-03/4``) are returned stripped, since they are names, not pages.
    """
    parts = urlsplit(url.strip())
    if not parts.netloc:
        return url.strip()
    scheme = "https" if parts.scheme in ("http", "https", "") else parts.scheme
    host = (parts.hostname or "").removeprefix("www.")
    port = parts.port
    if port is not None and port not in (
        _DEFAULT_PORT.get(parts.scheme),
        _DEFAULT_PORT.get(scheme),
    ):
        host = f"{host}:{port}"
    query = sorted(
        (k, v)
        for k, v in parse_qsl(parts.query, keep_blank_values=True)
        if not _TRACKING.match(k.lower())
    )
    return urlunsplit((scheme, host, parts.path.rstrip("/") or "/", urlencode(query), ""))


def article_id(url: str) -> str:
    """First 32 hex digits of the SHA-256 of the canonical address."""
    return hashlib.sha256(canonical_url(url).encode()).hexdigest()[:32]


def availability() -> pl.Expr:
    """``available_at``: the latest of what is known of published and seen."""
    return pl.max_horizontal("published_at", "seen_at").alias("available_at")


def validate_articles(frame: pl.DataFrame) -> pl.DataFrame:
    """Check an article frame: columns, types, required values, and no availability before what is known.

    Raises:
        DataError: the first rule broken, with the number of rows and the first address.
    """
    frame = validate_frame(frame, ARTICLE_SCHEMA, "article frame")
    for name in _REQUIRED:
        bad = frame.filter(pl.col(name).is_null())
        if bad.height:
            raise DataError(
                f"{bad.height} article(s) without {name}, first {bad['url'][0]!r}; the parser must set it"
            )
    early = frame.filter(pl.col("available_at") < pl.max_horizontal("published_at", "seen_at"))
    if early.height:
        raise DataError(
            f"{early.height} article(s) are marked available before they were published or seen, first "
            f"{early['url'][0]!r}; available_at is the latest of the two"
        )
    return frame


def dedupe(frame: pl.DataFrame) -> pl.DataFrame:
    """One row an article: the same id once, and a syndicated title (same words, same language) once.

    The row that was available first is kept, ties by id, so the result does not depend on the row order. Titles
    shorter than four words are not compared, since they are often section names.
    """
    ordered = frame.sort("available_at", "article_id", "fetched_at", nulls_last=True)
    once = ordered.unique("article_id", keep="first", maintain_order=True)
    plain = (
        pl.col("title")
        .fill_null("")
        .str.to_lowercase()
        .str.replace_all(r"[^\p{L}\p{N}]+", " ")
        .str.strip_chars()
    )
    keyed = once.with_columns(plain.alias("_plain")).with_columns(
        pl.when(pl.col("_plain").str.split(" ").list.len() >= 4)
        .then(pl.concat_str("_plain", pl.col("language").fill_null(""), separator="|"))
        .otherwise("article_id")
        .alias("_key")
    )
    return keyed.unique("_key", keep="first", maintain_order=True).drop("_plain", "_key")


class ArticleIndex:
    """Articles sorted by availability, for many origins at a time."""

    def __init__(self, frame: pl.DataFrame, keywords: Sequence[str] | None = None) -> None:
        kept = frame
        if keywords:
            text = pl.concat_str(
                pl.col("title").fill_null(""), pl.col("body").fill_null(""), separator=" "
            )
            pattern = "(?i)" + "|".join(rf"\b{re.escape(word)}\b" for word in keywords)
            kept = frame.filter(text.str.contains(pattern))
        ordered = kept.sort("available_at", "article_id")
        self._available = ordered["available_at"]
        self._ids: list[str] = ordered["article_id"].to_list()

    def before(self, origin_utc: datetime, lookback: timedelta, limit: int) -> list[str]:
        """Ids with origin - lookback <= available_at < origin, newest first, at most ``limit``."""
        if limit < 1 or lookback <= timedelta(0):
            raise DataError(f"limit {limit} and lookback {lookback} must both be above zero")
        if origin_utc.tzinfo is None:
            raise DataError("origin_utc has no time zone; give an aware UTC datetime")
        first = self._available.search_sorted(origin_utc - lookback, side="left")
        end = self._available.search_sorted(origin_utc, side="left")
        return self._ids[max(first, end - limit) : end][::-1]


def candidates(
    frame: pl.DataFrame,
    origin_utc: datetime,
    lookback: timedelta,
    limit: int,
    keywords: Sequence[str] | None = None,
) -> list[str]:
    """Ids of the articles a forecast at ``origin_utc`` may use, newest first; see :class:`ArticleIndex`."""
    return ArticleIndex(frame, keywords).before(origin_utc, lookback, limit)
