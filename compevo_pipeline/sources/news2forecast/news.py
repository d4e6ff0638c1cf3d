"""News2Forecast's news tables: items that a language model picked from Australian news, 2019 and 2020.

What belongs here: the merged table ``time,news,region,rationality,date`` as articles, and the count of what was left
out. What does not: the prompts (``n2f``), duplicates across publishers (``compevo_core.data.news``).

Stamps are local Sydney time. An item without a usable stamp, or whose stamp is not on the day it was collected for,
counts as available only from the end of that day. Rows that say in some wording that there is no suitable news are
dropped and counted. ``rationality`` is the model's comment, not news; it is kept in the body, named as such.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.articles import Record, article_frame
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.tables import read_table

SOURCE = "n2f_news"
PATTERN = "AU_load_merge_file_final_*.csv*"
HEADER = ("time", "news", "region", "rationality", "date")
ZONE = ZoneInfo("Australia/Sydney")
DOMAIN = "n2f"
"""Stands for the unnamed publishers; the address of an item is ``n2f:`` and a hash of its time and text."""

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_NO_NEWS = re.compile(
    r"(there (is|are) )?no (suitable|relevant|applicable|appropriate|specific|direct|reported|real-time|news)\b.*"
    r"|no|n/?a|none|",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsItem:
    """One item: its text, the region it names, the model's comment, and what is known of its time."""

    text: str
    region: str
    reason: str
    published: datetime | None
    seen: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsTableReport:
    """What a table held: rows = no_news + repeats + articles; the other two count kept rows dated conservatively."""

    rows: int
    no_news: int
    repeats: int
    articles: int
    untimed: int
    redated: int

    def as_dict(self) -> dict[str, int]:
        """Counts for metadata or a manifest."""
        return asdict(self)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse the merged table into ``ARTICLE_SCHEMA``; see :func:`parse_counted`."""
    return parse_counted(raw)[0]


def parse_counted(raw: RawFile) -> tuple[pl.DataFrame, NewsTableReport]:
    """Parse the merged table into ``ARTICLE_SCHEMA`` and count what was left out.

    Raises:
        SourceTransient: empty file.
        SchemaDrift: header, encoding, fields, a row without a usable date, or a table without a single item.
    """
    frame = read_table(raw, HEADER, quoted_newlines=True)
    items, no_news, untimed, redated = [], 0, 0, 0
    for row in frame.iter_rows(named=True):
        stamped = _STAMP.fullmatch(row["time"].strip()) is not None
        if says_no_news(row["news"]) or (
            not stamped and re.match(r"no\b", row["news"].strip(), re.IGNORECASE)
        ):
            no_news += 1
            continue
        published = _stamp(raw, row["_line"], row["time"].strip()) if stamped else None
        day = _day(raw, row["_line"], row["date"].strip())
        on_its_day = published is not None and published.astimezone(ZONE).date() == day
        untimed += published is None
        redated += published is not None and not on_its_day
        seen = None if on_its_day else end_of_day(row["date"].strip())
        text, region, reason = (row[key].strip() for key in ("news", "region", "rationality"))
        items.append(
            NewsItem(text=text, region=region, reason=reason, published=published, seen=seen)
        )
    if not items:
        raise SchemaDrift(
            f"{raw.name}: no row holds a news item; an empty answer is not 'no news', fetch it again"
        )
    articles = item_frame(items, raw)
    report = NewsTableReport(
        rows=frame.height,
        no_news=no_news,
        repeats=len(items) - articles.height,
        articles=articles.height,
        untimed=untimed,
        redated=redated,
    )
    return articles, report


def item_frame(items: Sequence[NewsItem], raw: RawFile) -> pl.DataFrame:
    """Build the article frame of ``items``; one that occurs twice is kept once, as of its earlier availability."""
    return article_frame(list(_records(items)), raw, raw.fetched_at)


def says_no_news(text: str) -> bool:
    """Whether a text says, in one of the model's wordings, that there was nothing to report."""
    return _NO_NEWS.fullmatch(text.strip()) is not None


def local_stamp(text: str) -> datetime:
    """UTC of a Sydney wall-clock stamp; of a repeated hour the later one."""
    local = datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
    return local.replace(tzinfo=ZONE, fold=1).astimezone(UTC)


def end_of_day(text: str) -> datetime:
    """UTC of the midnight that ends a Sydney day."""
    return datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), ZONE).astimezone(
        UTC
    )


def _records(items: Sequence[NewsItem]) -> Iterator[Record]:
    for item in items:
        known = item.published or item.seen
        name = hashlib.sha256(f"{known}|{item.text}".encode()).hexdigest()[:24]
        parts = (
            f"Region: {item.region}." if item.region else "",
            f"Comment: {item.reason}" if item.reason else "",
        )
        yield Record(
            url=f"n2f:{name}",
            title=item.text,
            body=" ".join(part for part in parts if part),
            domain=DOMAIN,
            language="English",
            country="Australia",
            published_at=item.published,
            seen_at=item.seen,
        )


def _stamp(raw: RawFile, line: int, text: str) -> datetime:
    try:
        return local_stamp(text)
    except ValueError as error:
        raise SchemaDrift(
            f"{raw.name}, line {line}: time {text!r} is no stamp; correct or empty the cell"
        ) from error


def _day(raw: RawFile, line: int, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise SchemaDrift(
            f"{raw.name}, line {line}: date {text!r} is not YYYY-MM-DD; correct the cell"
        ) from error
