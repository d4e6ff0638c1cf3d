r"""GDELT DOC 2.0 article lists: the API's own JSON, and polls of it as a scheduled job stored them.

What belongs here: telling an article list from an empty answer, a throttle notice and a refused
query; both record layouts. What does not: repairing JSON (``gdelt.json_repair``), asking the API
(``gdelt.doc_live``), bulk files (``gdelt.bulk``).

``seendate`` is when GDELT first saw a page, on a 15-minute grid; publication is not known, so that
is also when an article counts as available. The stored polls add fields of their own (category,
country, place, guessed from keywords), which are not GDELT's and are not read.

API: https://api.gdeltproject.org/api/v2/doc/doc.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from compevo_core.errors import SchemaDrift, SourceRejected, SourceTransient
from compevo_pipeline.failures import Throttled
from compevo_pipeline.sources.common.articles import (
    EmptyNewsAnswer,
    NewsRecord,
    NewsReport,
    build_article_frame,
    is_web_address,
    refuse_unreadable,
)
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import decode_lossy
from compevo_pipeline.sources.common.text import read_title
from compevo_pipeline.sources.gdelt.json_repair import load_json, parse_utc

_SEEN_FORMAT = "%Y%m%dT%H%M%SZ"
_HEAD_CHARACTERS = 300
_THROTTLE_PHRASES = ("limit requests", "too many requests", "rate limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Keys of one spelling of an article list.

    Attributes:
        entries: key of the list.
        seen: key of the time GDELT saw the page.
        domain: key of the site.
        has_country: whether ``sourcecountry`` is GDELT's own.
    """

    entries: str
    seen: str
    domain: str
    has_country: bool


_ARTICLE_LIST = _Layout(entries="articles", seen="seendate", domain="domain", has_country=True)
_STORED_POLL = _Layout(entries="events", seen="timestamp", domain="source_name", has_country=False)


def parse_doc(raw: RawFile) -> tuple[pl.DataFrame, NewsReport]:
    """Parse one answer into ``ARTICLE_SCHEMA``, with counts.

    Raises:
        EmptyNewsAnswer: an answer without articles.
        SourceTransient: an empty body, or a throttle notice.
        SourceRejected: GDELT's one-sentence refusal of the query.
        SchemaDrift: JSON beyond repair, or JSON that is no article list.
    """
    text, replaced = decode_lossy(raw.content)
    _refuse_notice(text, raw.name)
    document, repairs = load_json(text, raw.name)
    entries, layout, fetched_at = _read_entries(document, raw)

    records: list[NewsRecord] = []
    unreadable: list[int] = []
    untitled = 0
    for number, entry in enumerate(entries, 1):
        seen_at = (
            parse_utc(entry.get(layout.seen), _SEEN_FORMAT) if isinstance(entry, dict) else None
        )
        title = read_title(entry.get("title")) if isinstance(entry, dict) else None
        if seen_at is None or title is None or not is_web_address(entry.get("url")):
            # Counted by record: the JSON's lines are not the articles'.
            unreadable.append(number)
        elif not title:
            untitled += 1
        else:
            records.append(_make_record(entry, title, seen_at, layout))

    expected = "an article with url, seendate and a headline (counted in records)"
    refuse_unreadable(unreadable, len(entries), raw.name, expected)
    frame = build_article_frame(records, raw, fetched_at)
    report = NewsReport(
        files=1,
        records=len(entries),
        articles=frame.height,
        untitled=untitled,
        unreadable=len(unreadable),
        repairs=repairs,
        replaced_bytes=replaced,
    )
    return frame, report


def _refuse_notice(text: str, name: str) -> None:
    """Refuse an answer that is no JSON at all; GDELT sends its notices as one plain sentence."""
    head = text.strip()[:_HEAD_CHARACTERS]
    if head.startswith(("{", "[")):
        return
    if not head:
        raise SourceTransient(f"{name}: an empty body; GDELT is overloaded, ask again later")

    if _is_throttle_notice(head):
        raise SourceTransient(
            f"{name}, line 1: a throttle notice or web page, not an article list: {head[:120]!r}; "
            "wait, then ask again"
        )
    raise SourceRejected(
        f"{name}, line 1: GDELT refused the query: {head[:200]!r}; correct the query, "
        "asking again will not help"
    )


def refuse_throttled(start: bytes) -> None:
    """Refuse a throttle notice or a page that comes with status 200 in place of a list.

    Raises:
        Throttled: GDELT wants fewer requests.
    """
    head = start.decode("utf-8", "replace").strip()[:_HEAD_CHARACTERS]
    if _is_throttle_notice(head):
        raise Throttled(f"a throttle notice or web page, not an article list: {head[:120]!r}")


def _is_throttle_notice(head: str) -> bool:
    is_list = head.startswith(("{", "["))
    is_notice = any(phrase in head.lower() for phrase in _THROTTLE_PHRASES)
    return not is_list and (head.startswith("<") or is_notice)


def _read_entries(document: object, raw: RawFile) -> tuple[list[Any], _Layout, datetime]:
    """Return the listed entries, their layout, and when they were fetched."""
    if not isinstance(document, dict):
        raise SchemaDrift(
            f"{raw.name}, line 1: a JSON {type(document).__name__}, not an object with articles; "
            "ask again"
        )

    # A stored poll states its own fetch time; the archive was read much later.
    if _STORED_POLL.entries in document:
        layout = _STORED_POLL
        fetched_at = _read_poll_time(document.get("fetched_at"), raw.name)
    elif document and _ARTICLE_LIST.entries not in document:
        raise SchemaDrift(
            f"{raw.name}, line 1: JSON with {sorted(document)[:6]} and no 'articles'; "
            "check that the query sets mode=artlist"
        )
    else:
        layout = _ARTICLE_LIST
        fetched_at = raw.fetched_at

    entries = document.get(layout.entries, [])
    if not isinstance(entries, list):
        raise SchemaDrift(
            f"{raw.name}: {layout.entries!r} is a {type(entries).__name__}, not a list; "
            "the format changed, extend the parser"
        )
    if not entries:
        raise EmptyNewsAnswer(
            f"{raw.name}: an answer with no article; that is a rate limit or a failure, "
            "not 'no news': ask again later"
        )
    return entries, layout, fetched_at


def _read_poll_time(text: object, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass

    raise SchemaDrift(
        f"{name}: fetched_at is {text!r}, not a time with a zone; "
        "the stored poll is damaged, copy it again"
    )


def _make_record(
    entry: dict[str, Any], title: str, seen_at: datetime, layout: _Layout
) -> NewsRecord:
    country = entry.get("sourcecountry") if layout.has_country else None
    return NewsRecord(
        url=entry["url"],
        title=title,
        domain=str(entry.get(layout.domain) or urlsplit(entry["url"]).hostname or ""),
        language=str(entry.get("language") or ""),
        country=str(country) if country else None,
        published_at=None,
        seen_at=seen_at,
    )
