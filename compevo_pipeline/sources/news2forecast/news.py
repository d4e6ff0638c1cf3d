"""News2Forecast's news tables: items that a language model picked from Australian news, 2019-20.

What belongs here: the merged table ``time,news,region,rationality,date`` as articles, and the count
of rows that were left out. What does not: the prompts (``news2forecast.prompts``), duplicates
across publishers (``compevo_core.data.news``).

Timestamps are local Sydney time. An item without a usable timestamp, or whose timestamp is not on
the day it was collected for, counts as available only from the end of that day. Rows that state in
some wording that there is no suitable news are dropped and counted. ``rationality`` is the model's
comment, not news; it goes into the body, named as such.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from compevo_core.data.files import hash_text
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.articles import NewsRecord, build_article_frame
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.tables import LINE, Quoting, read_table

SOURCE = "n2f_news"
PATTERN = "AU_load_merge_file_final_*.csv*"
HEADER = ("time", "news", "region", "rationality", "date")
ZONE = ZoneInfo("Australia/Sydney")
DOMAIN = "n2f"
"""Stands for the unnamed publishers; an item's address is ``n2f:`` and a hash of time and text."""

_HASH_DIGITS = 24
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_NO_NEWS = re.compile(
    r"(there (is|are) )?no "
    r"(suitable|relevant|applicable|appropriate|specific|direct|reported|real-time|news)\b.*"
    r"|no|n/?a|none|",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsItem:
    """One item.

    Attributes:
        text: the news.
        region: the region it names.
        comment: the language model's comment.
        published_at: its timestamp, if it has one.
        seen_at: when it counts as known, where the timestamp does not decide that.
    """

    text: str
    region: str
    comment: str
    published_at: datetime | None
    seen_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsTableReport:
    """Counts of reading a table; rows = no_news + repeats + articles.

    Attributes:
        rows: rows of the table.
        no_news: rows that state that there is no news.
        repeats: items that occur again.
        articles: articles in the frame.
        untimed: items without a timestamp, counted as available from the end of their day.
        redated: items whose timestamp is of another day, treated likewise.
    """

    rows: int
    no_news: int
    repeats: int
    articles: int
    untimed: int
    redated: int

    def as_dict(self) -> dict[str, int]:
        """Return the counts for metadata or a manifest."""
        return asdict(self)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse the merged table into ``ARTICLE_SCHEMA``; see :func:`parse_counted`."""
    return parse_counted(raw)[0]


def parse_counted(raw: RawFile) -> tuple[pl.DataFrame, NewsTableReport]:
    """Parse the merged table into ``ARTICLE_SCHEMA``, with counts.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: header, encoding, cells, a row without a usable date, or a table without a
            single item.
    """
    text = read_text(raw.content, raw.name)
    table = read_table(text, raw.name, HEADER, quoting=Quoting.LINES)

    items: list[NewsItem] = []
    no_news = 0
    untimed = 0
    redated = 0
    for row in table.iter_rows(named=True):
        has_stamp = _STAMP.fullmatch(row["time"].strip()) is not None
        if is_no_news(row["news"]) or (not has_stamp and _starts_with_no(row["news"])):
            no_news += 1
            continue

        item, is_on_its_day = _read_item(raw, row, has_stamp=has_stamp)
        untimed += item.published_at is None
        redated += item.published_at is not None and not is_on_its_day
        items.append(item)

    if not items:
        raise SchemaDrift(
            f"{raw.name}: no row holds a news item; an empty answer is not 'no news', "
            "fetch it again"
        )
    articles = build_item_frame(items, raw)
    report = NewsTableReport(
        rows=table.height,
        no_news=no_news,
        repeats=len(items) - articles.height,
        articles=articles.height,
        untimed=untimed,
        redated=redated,
    )
    return articles, report


def build_item_frame(items: Sequence[NewsItem], raw: RawFile) -> pl.DataFrame:
    """Build the article frame of ``items``; of a repeated one the version available first stays."""
    return build_article_frame(list(_make_records(items)), raw, raw.fetched_at)


def is_no_news(text: str) -> bool:
    """Whether a text states, in one of the model's wordings, that there was nothing to report."""
    return _NO_NEWS.fullmatch(text.strip()) is not None


def sydney_to_utc(text: str) -> datetime:
    """Return a Sydney wall-clock time in UTC; of a repeated hour the later one.

    Raises:
        ValueError: it is no time, or its UTC lies before the year 1.
    """
    local = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=ZONE, fold=1)
    try:
        return local.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text} has no UTC") from error


def end_of_day_utc(text: str) -> datetime:
    """Return the midnight that ends a Sydney day, in UTC.

    Raises:
        ValueError: it is no day, or the last one of the year 9999.
    """
    day = date.fromisoformat(text)
    try:
        # By the calendar and not by 24 hours: daylight saving makes days longer or shorter.
        return datetime.combine(day + timedelta(days=1), time(), ZONE).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text} has no next day") from error


def _starts_with_no(text: str) -> bool:
    # Without a timestamp the row is no item of a publisher, so any "no ..." is the model's answer;
    # with one, "NO ONE can dispute ..." is a headline.
    return re.match(r"no\b", text.strip(), re.IGNORECASE) is not None


def _read_item(raw: RawFile, row: dict[str, str], *, has_stamp: bool) -> tuple[NewsItem, bool]:
    """Return a row's item, and whether its timestamp is on the day it was collected for."""
    published_at = _read_stamp(raw, row, row["time"].strip()) if has_stamp else None
    day_text = row["date"].strip()
    day, end_of_day = _read_day(raw, row, day_text)
    is_on_its_day = published_at is not None and published_at.astimezone(ZONE).date() == day

    item = NewsItem(
        text=row["news"].strip(),
        region=row["region"].strip(),
        comment=row["rationality"].strip(),
        published_at=published_at,
        seen_at=None if is_on_its_day else end_of_day,
    )
    return item, is_on_its_day


def _make_records(items: Sequence[NewsItem]) -> Iterator[NewsRecord]:
    for item in items:
        known_at = item.published_at or item.seen_at
        # The comment is the model's, so it must not look like the publisher's words.
        body = (
            f"Region: {item.region}." if item.region else "",
            f"Comment: {item.comment}" if item.comment else "",
        )

        yield NewsRecord(
            url=f"n2f:{hash_text(f'{known_at}|{item.text}')[:_HASH_DIGITS]}",
            title=item.text,
            body=" ".join(part for part in body if part),
            domain=DOMAIN,
            language="English",
            country="Australia",
            published_at=item.published_at,
            seen_at=item.seen_at,
        )


def _read_stamp(raw: RawFile, row: dict[str, str], text: str) -> datetime:
    try:
        return sydney_to_utc(text)
    except ValueError as error:
        raise SchemaDrift(
            f"{raw.name}, line {row[LINE]}: time {text!r} is no timestamp; "
            "correct or empty the cell"
        ) from error


def _read_day(raw: RawFile, row: dict[str, str], text: str) -> tuple[date, datetime]:
    """Return a day and its end in UTC."""
    try:
        return date.fromisoformat(text), end_of_day_utc(text)
    except ValueError as error:
        raise SchemaDrift(
            f"{raw.name}, line {row[LINE]}: date {text!r} is not YYYY-MM-DD; correct the cell"
        ) from error
