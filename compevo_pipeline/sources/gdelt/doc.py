r"""GDELT DOC 2.0 article lists: the API's own JSON, and polls of it as a scheduled job stored them.

What belongs here: telling an article list from an empty answer, a throttle notice and a refused query; repairing the
JSON the API is known to break; both record layouts. What does not: asking the API (``live``), bulk files
(``gdelt_bulk``).

``seendate`` is when GDELT first saw a page, on a 15-minute grid; publication is not known, so that is also when an
article counts as available. The stored polls add fields of their own (category, country, place, guessed from
keywords), which are not GDELT's and are not read. Repair: a backslash that starts no JSON escape is doubled, control
characters are dropped; both are counted.
"""

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from compevo_core.errors import SchemaDrift, SourceRejected, SourceTransient
from compevo_pipeline.sources.common.articles import (
    EmptyNewsAnswer,
    NewsReport,
    Record,
    addressable,
    article_frame,
    check_unreadable,
)
from compevo_pipeline.sources.common.base import RawFile, decode_lossy

_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_THROTTLED = ("limit requests", "too many requests", "rate limit")
_NAMES = {"artlist": ("seendate", "domain"), "poll": ("timestamp", "source_name")}


def parse_doc(raw: RawFile) -> tuple[pl.DataFrame, NewsReport]:
    """Parse one answer into ``ARTICLE_SCHEMA`` and the count of what was met.

    Raises:
        EmptyNewsAnswer: an answer without articles.
        SourceTransient: an empty body, or a throttle notice.
        SourceRejected: GDELT's one-sentence refusal of the query.
        SchemaDrift: JSON beyond repair, or JSON that is no article list.
    """
    text, replaced = decode_lossy(raw.content)
    _refuse_notice(text, raw.name)
    document, repairs = loads_repaired(text, raw.name)
    entries, layout, fetched_at = _entries(document, raw)
    seen_key, domain_key = _NAMES[layout]
    records: list[Record] = []
    bad: list[int] = []
    untitled = 0
    for number, entry in enumerate(entries, 1):
        seen = _seen(entry.get(seen_key)) if isinstance(entry, dict) else None
        if seen is None or not addressable(entry.get("url")):
            bad.append(number)
        elif not str(entry.get("title") or "").strip():
            untitled += 1
        else:
            records.append(_record(entry, seen, entry.get(domain_key), layout))
    check_unreadable(
        bad, len(entries), raw.name, "an article with url and seendate (counted in records)"
    )
    frame = article_frame(records, raw, fetched_at)
    report = NewsReport(
        files=1,
        records=len(entries),
        articles=frame.height,
        untitled=untitled,
        unreadable=len(bad),
        repairs=repairs,
        replaced_bytes=replaced,
    )
    return frame, report


def loads_repaired(text: str, name: str) -> tuple[object, int]:
    """Decode JSON, repairing it where the strict reading fails; return the document and the number of repairs.

    Raises:
        SchemaDrift: still not JSON; names line and column.
    """
    try:
        return json.loads(text), 0
    except json.JSONDecodeError:
        pass
    clean, dropped = _CONTROL.subn("", text)
    escaped = 0

    def double(match: re.Match[str]) -> str:
        nonlocal escaped
        if len(match[0]) > 1:
            return match[0]
        escaped += 1
        return "\\\\"

    clean = _ESCAPE.sub(double, clean)
    try:
        return json.loads(clean, strict=False), dropped + escaped
    except json.JSONDecodeError as error:
        message = f"{name}, line {error.lineno}, column {error.colno}: not JSON even after repair ({error.msg})"
        raise SchemaDrift(
            message + "; the answer is cut or is no article list: ask again"
        ) from error


def parse_stamp(text: object, form: str) -> datetime | None:
    """Return the UTC time that ``text`` says in ``form``, or None where it says none."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        return None


def _seen(text: object) -> datetime | None:
    return parse_stamp(text, "%Y%m%dT%H%M%SZ")


def _refuse_notice(text: str, name: str) -> None:
    head = text.strip()[:300]
    if head.startswith(("{", "[")):
        return
    if not head:
        message = f"{name}: an empty body; GDELT is overloaded, ask again later"
        raise SourceTransient(message)
    if head.startswith("<") or any(sign in head.lower() for sign in _THROTTLED):
        message = f"{name}, line 1: a throttle notice or web page, not an article list: {head[:120]!r}; wait, then ask again"
        raise SourceTransient(message)
    message = f"{name}, line 1: GDELT refused the query: {head[:200]!r}; correct the query, asking again will not help"
    raise SourceRejected(message)


def _entries(document: object, raw: RawFile) -> tuple[list[Any], str, datetime]:
    """Return the listed entries, the layout they are in, and when they were fetched."""
    if not isinstance(document, dict):
        message = f"{raw.name}, line 1: a JSON {type(document).__name__}, not an object with articles; ask again"
        raise SchemaDrift(message)
    layout, key, fetched_at = "artlist", "articles", raw.fetched_at
    if "events" in document:
        layout, key = "poll", "events"
        fetched_at = _poll_time(document.get("fetched_at"), raw.name)
    elif document and "articles" not in document:
        message = f"{raw.name}, line 1: JSON with {sorted(document)[:6]} and no 'articles'; is mode=artlist set?"
        raise SchemaDrift(message)
    entries = document.get(key, [])
    if not isinstance(entries, list):
        message = (
            f"{raw.name}: {key!r} is a {type(entries).__name__}, not a list; the format changed"
        )
        raise SchemaDrift(message)
    if not entries:
        message = f"{raw.name}: an answer with no article; that is a rate limit or a failure, not 'no news': ask again later"
        raise EmptyNewsAnswer(message)
    return entries, layout, fetched_at


def _poll_time(text: object, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        message = f"{name}: fetched_at is {text!r}, not a time with a zone; the stored poll is damaged, copy it again"
        raise SchemaDrift(message)
    return moment.astimezone(UTC)


def _record(entry: dict[str, Any], seen: datetime, domain: object, layout: str) -> Record:
    country = entry.get("sourcecountry") if layout == "artlist" else None
    return Record(
        url=entry["url"],
        title=entry["title"],
        domain=str(domain or urlsplit(entry["url"]).hostname or ""),
        language=str(entry.get("language") or ""),
        country=str(country) if country else None,
        published_at=None,
        seen_at=seen,
    )
