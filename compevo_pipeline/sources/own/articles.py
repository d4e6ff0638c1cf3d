"""A user's articles as ``ARTICLE_SCHEMA``: each known from its publication on.

What belongs here: rows of a table to articles, which words keep one, answers of GDELT to the
declared query. What does not: GDELT's format (``sources.gdelt``), candidates (``data.context``).

Articles belong to their data set alone: their publisher and their ids name it, so that the same
page in another data set's news is another article.
"""

import re
from collections.abc import Sequence
from datetime import datetime

import polars as pl

from compevo_core.data.news import deduplicate_articles, derive_article_id
from compevo_pipeline.sources.common.articles import NewsRecord, build_article_frame
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.own.declaration import DAY, Declaration
from compevo_pipeline.sources.own.stamps import read_stamps
from compevo_pipeline.sources.own.table import read_columns, refuse_row


def parse(raws: Sequence[RawFile], declaration: Declaration) -> pl.DataFrame:
    """Parse the table of articles.

    A date without a time is known when its day is over: nothing says that it was earlier.

    Raises:
        DataError: an article without a time or a headline.
    """
    raw = raws[0]
    news = declaration.news
    optional = [column for column in (news.url, news.body) if column]
    table = read_columns(raw.content, raw.name, [news.time, news.title, *optional])
    blank = pl.col(news.title).fill_null("").str.strip_chars() == ""
    refuse_row(table, raw.name, news.title, blank, "is no headline", "write one, or remove the row")
    if news.url:
        refuse_row(
            table,
            raw.name,
            news.url,
            ~pl.col(news.url).fill_null("").is_in(_find_addresses(table[news.url])),
            "is no address of a page, nor a name",
            "correct it, or leave the cell empty",
        )

    stamps, found = read_stamps(
        table,
        raw.name,
        news.time,
        zone=declaration.series.time_zone,
        time_format=news.time_format,
        # The later hour, where it cannot be told: an article is never known too early.
        repeated_hour="second",
    )
    if found.are_days:
        stamps = stamps + DAY

    records = [
        _make_record(row, moment, declaration)
        for row, moment in zip(table.iter_rows(named=True), stamps, strict=True)
    ]
    return claim(build_article_frame(records, raw, raw.fetched_at), declaration)


def claim(frame: pl.DataFrame, declaration: Declaration) -> pl.DataFrame:
    """Return the articles that the declared words keep, as articles of this data set alone."""
    words = declaration.news.keywords
    if words:
        text = pl.concat_str(
            pl.col("title").fill_null(""), pl.col("body").fill_null(""), separator=" "
        )
        pattern = "|".join(rf"\b{re.escape(word)}\b" for word in words)
        frame = frame.filter(text.str.contains(f"(?i){pattern}"))

    ids = [derive_article_id(f"{declaration.name}:{url}") for url in frame["url"]]
    named = frame.with_columns(pl.Series("article_id", ids, dtype=pl.String))
    return deduplicate_articles(named)


def _find_addresses(cells: pl.Series) -> list[str]:
    """Return the cells that have a canonical form."""
    found = []
    for cell in cells.fill_null("").unique():
        try:
            derive_article_id(cell)
        except ValueError:
            continue
        found.append(cell)
    return found


def _make_record(
    row: dict[str, str | None], moment: datetime, declaration: Declaration
) -> NewsRecord:
    news = declaration.news
    title = row[news.title] or ""
    url = (row[news.url] or "").strip() if news.url else ""
    return NewsRecord(
        # Without an address, the headline and its time say which article it is.
        url=url or f"{moment:%Y%m%dT%H%M%S}/{title}",
        title=title,
        body=(row[news.body] or "") if news.body else "",
        published_at=moment,
        seen_at=moment,
    )
