r"""GDELT's formats: DOC 2.0 article lists, GKG 2.1 (zipped tab-separated text), GAL (JSON lines).

What belongs here: these formats, and repairing GDELT's JSON, which is known to be broken at times.
What does not: dispatch (``gdelt.source``), asking GDELT (``gdelt.live``).

DOC: the API's own JSON, and polls of it as a scheduled job stored them, whose own fields (category,
country, place) are not GDELT's and are not read. ``seendate`` is when GDELT first saw a page, on a
15-minute grid; publication is not known, so an article counts as available from then.

GKG has 27 columns without header or quoting, split on newlines only; the title is in the last one
as ``<PAGE_TITLE>``, and not every row has one. In GKG and GAL the timestamp of a file is when GDELT
had seen its pages; a publication time inside may be wrong, so availability is the later of the two.
"""

import html
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import polars as pl
from pydantic import BaseModel

from compevo_core.errors import SchemaDrift, SourceRejected, SourceTransient
from compevo_pipeline.errors import Throttled
from compevo_pipeline.sources.common import decode
from compevo_pipeline.sources.common.articles import (
    EmptyNewsAnswer,
    NewsRecord,
    build_article_frame,
    is_web_address,
)
from compevo_pipeline.sources.common.base import RawFile

GKG_COLUMNS = 27
GAL_SUFFIXES = (".gal.json.gz", ".gal.json")
BULK_SUFFIXES = (*GAL_SUFFIXES, ".gkg.csv.zip", ".gkg.csv")
MAX_UNREADABLE_SHARE = 0.1  # of a file's records; above it the file is at fault
MAX_BULK_BYTES = 256 * 2**20  # unpacked; a quarter hour of GKG is about 26 MB
# Columns of a GKG row, from 0.
_DATE = 1
_COLLECTION = 2
_SITE = 3
_ADDRESS = 4
_TRANSLATION = 25
_EXTRAS = 26

_WEB_COLLECTION = "1"
_STAMP = "%Y%m%d%H%M%S"
_STAMP_DIGITS = 14
_FARTHEST_ROW = timedelta(days=1)  # a row that was seen further from its file's time is another's
_TITLE = re.compile(r"<PAGE_TITLE>(.*?)</PAGE_TITLE>", re.DOTALL)
_PUBLISHED = re.compile(r"<PAGE_PRECISEPUBTIMESTAMP>(\d{14})</PAGE_PRECISEPUBTIMESTAMP>")
_SOURCE_LANGUAGE = re.compile(r"srclc:([a-z]{3})")
_LANGUAGES = {
    "en": "English",
    "eng": "English",
    "zh": "Chinese",
    "zho": "Chinese",
    "ja": "Japanese",
    "jpn": "Japanese",
}

_SEEN_FORMAT = "%Y%m%dT%H%M%SZ"
_HEAD_CHARACTERS = 300
_THROTTLE_PHRASES = ("limit requests", "too many requests", "rate limit")

_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_Row = tuple[int, NewsRecord | None]
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class _ArticleList(BaseModel):
    articles: list[Any]


class _StoredPoll(BaseModel):
    events: list[Any]
    fetched_at: decode.Moment


def parse_doc(raw: RawFile) -> tuple[pl.DataFrame, Counter[str]]:
    """Parse one answer into ``ARTICLE_SCHEMA``, with counts.

    Raises:
        EmptyNewsAnswer: an answer without articles.
        SourceTransient: an empty body, or a throttle notice.
        SourceRejected: GDELT's one-sentence refusal of the query.
        SchemaDrift: JSON beyond repair, or JSON that is not an article list.
    """
    text, replaced = decode.decode_lossy(raw.content)
    head = text.strip()[:_HEAD_CHARACTERS]
    if not head:
        raise SourceTransient(f"{raw.name}: an empty body; GDELT is overloaded, ask again later")
    if _is_throttle_notice(head):
        raise SourceTransient(
            f"{raw.name}, line 1: a throttle notice or web page, not an article list: "
            f"{head[:120]!r}; wait, then ask again"
        )
    # GDELT sends its notices as one plain sentence.
    if not head.startswith(("{", "[")):
        raise SourceRejected(
            f"{raw.name}, line 1: GDELT refused the query: {head[:200]!r}; correct the query, "
            "asking again will not help"
        )
    document, repairs = load_json(text, raw.name)
    # A stored poll states its own fetch time; the archive was read much later.
    if isinstance(document, dict) and "events" in document:
        poll = decode.check_document(document, raw.name, _StoredPoll)
        entries, fetched_at = poll.events, poll.fetched_at.astimezone(UTC)
        spelling = ("timestamp", "source_name", "")  # a poll's country is not GDELT's own
    else:
        # GDELT answers {} where it has none.
        known = {"articles": []} if document == {} else document
        entries = decode.check_document(known, raw.name, _ArticleList).articles
        spelling, fetched_at = ("seendate", "domain", "sourcecountry"), raw.fetched_at
    if not entries:
        raise EmptyNewsAnswer(
            f"{raw.name}: an answer with no article; that is a rate limit or a failure, "
            "not 'no news': ask again later"
        )

    # Counted by record: the JSON's lines are not the articles'.
    rows = [(number, _read_doc_entry(entry, *spelling)) for number, entry in enumerate(entries, 1)]
    expected = "an article with url, seendate and a headline (counted in records)"
    counts = Counter({"repairs": repairs, "bytes replaced": replaced})
    return _build_articles(rows, raw, fetched_at, expected, counts)


def parse_bulk(raw: RawFile) -> tuple[pl.DataFrame, Counter[str]]:
    """Parse a file of one record a line, GKG or GAL, into ``ARTICLE_SCHEMA``, with counts.

    Of GAL ``seen_at`` is the file's timestamp, ``published_at`` the record's date.
    """
    content, file_time = raw.content, read_file_time(raw.name)
    if raw.name.endswith(".zip"):
        content = decode.unzip_only(content, raw.name, MAX_BULK_BYTES)
    elif raw.name.endswith(".gz"):
        content = decode.gunzip(content, raw.name, MAX_BULK_BYTES)
    text, replaced = decode.decode_lossy(content)

    is_gal = raw.name.endswith(GAL_SUFFIXES)
    counts = Counter({"repairs": 0, "bytes replaced": replaced})
    rows: list[_Row] = []
    # Not str.splitlines: titles hold vertical tabs and Unicode line separators.
    for number, line in enumerate(text.split("\n"), 1):
        if line:
            record = (
                _read_gal_line(line, file_time, counts)
                if is_gal
                else _read_gkg_row(line, file_time)
            )
            rows.append((number, record))
    expected = "a GAL article" if is_gal else "a GKG row"
    return _build_articles(rows, raw, raw.fetched_at, expected, counts)


def read_file_time(name: str) -> datetime:
    """Return the time in a 15-minute file's name (``20260215001500.gal.json.gz``)."""
    moment = parse_utc(name.rsplit("/", 1)[-1][:_STAMP_DIGITS], _STAMP)
    if moment is None:
        raise SchemaDrift(
            f"{name}: a GDELT file is named YYYYMMDDHHMMSS.<kind>; restore the published name, "
            "which states when GDELT saw the pages"
        )

    return moment


def raise_if_throttled(start: bytes) -> None:
    """Reject a throttle notice or a page that comes with status 200 in place of a list.

    Throttled if GDELT wants fewer requests.
    """
    head = start.decode("utf-8", "replace").strip()[:_HEAD_CHARACTERS]
    if _is_throttle_notice(head):
        raise Throttled(f"a throttle notice or web page, not an article list: {head[:120]!r}")


def load_json(text: str, name: str) -> tuple[object, int]:
    """Decode JSON, repaired where the strict reading fails; return the number of repairs, too."""
    try:
        return decode.parse_json(text, name)
    except SchemaDrift:
        pass

    clean, dropped = _CONTROL.subn("", text)
    # The pattern takes whole escapes first, so a lone backslash in a match is a stray one.
    strays = sum(match[0] == "\\" for match in _ESCAPE.finditer(clean))
    clean = _ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else "\\\\", clean)
    document, mended = decode.parse_json(clean, f"{name} (after repair)", strict=False)
    return document, dropped + strays + mended


def parse_utc(text: object, form: str = "") -> datetime | None:
    """Return the time in UTC that ``text`` states in ``form`` (ISO 8601 without), None for none."""
    if not isinstance(text, str):
        return None

    try:
        if form:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None  # a zone can lead out of the years that there are


def _is_throttle_notice(head: str) -> bool:
    is_list = head.startswith(("{", "["))
    is_notice = any(phrase in head.lower() for phrase in _THROTTLE_PHRASES)
    return not is_list and (head.startswith("<") or is_notice)


def _read_doc_entry(entry: object, seen: str, domain: str, country: str) -> NewsRecord | None:
    """Return a listed article, or None where address, time or headline is not what it should be.

    ``seen``, ``domain`` and ``country`` are its keys; "" where it has no country.
    """
    if not isinstance(entry, dict) or not is_web_address(entry.get("url")):
        return None
    seen_at = parse_utc(entry.get(seen), _SEEN_FORMAT)
    title = decode.read_title(entry.get("title"))
    if seen_at is None or title is None:
        return None

    place = entry.get(country) if country else None
    return NewsRecord(
        url=entry["url"],
        title=title,
        domain=str(entry.get(domain) or urlsplit(entry["url"]).hostname or ""),
        language=str(entry.get("language") or ""),
        country=str(place) if place else None,
        published_at=None,
        seen_at=seen_at,
    )


def _build_articles(
    rows: Sequence[_Row], raw: RawFile, fetched_at: datetime, expected: str, counts: Counter[str]
) -> tuple[pl.DataFrame, Counter[str]]:
    """Build the articles of a file from its numbered records, of which None is an unreadable one.

    A record without a title is left out.
    """
    if not rows:
        raise EmptyNewsAnswer(
            f"{raw.name}: no line in it; a quarter hour without news does not happen, "
            "fetch the file again"
        )
    unreadable = [number for number, record in rows if record is None]
    # A few bad records are the publisher's; many mean that this parser no longer fits.
    if len(unreadable) > MAX_UNREADABLE_SHARE * len(rows):
        raise SchemaDrift(
            f"{raw.name}, line {unreadable[0]}: not {expected}; {len(unreadable)} of {len(rows)} "
            "records are unreadable, so the format changed or the file is cut: fetch it again, "
            "then compare with the publisher's documentation"
        )

    records = [record for _, record in rows if record is not None and record.title]
    frame = build_article_frame(records, raw, fetched_at)
    counts.update(
        {
            "files": 1,
            "records": len(rows),
            "articles": frame.height,
            "without a title": len(rows) - len(records) - len(unreadable),
            "unreadable": len(unreadable),
        }
    )
    return frame, counts


def _read_gkg_row(row: str, file_time: datetime) -> NewsRecord | None:
    """Return the article of a row; None where it is not the row of a web page."""
    cells = row.split("\t")
    if len(cells) < GKG_COLUMNS or cells[_COLLECTION] != _WEB_COLLECTION:
        return None
    row_time = parse_utc(cells[_DATE], _STAMP) if is_web_address(cells[_ADDRESS]) else None
    match = _TITLE.search(cells[_EXTRAS])
    title = decode.read_title(html.unescape(match[1]) if match else None)
    if row_time is None or title is None or abs(row_time - file_time) > _FARTHEST_ROW:
        return None

    published = _PUBLISHED.search(cells[_EXTRAS])
    code = _SOURCE_LANGUAGE.search(cells[_TRANSLATION])
    # Only translated rows name the language they were translated from.
    language = code[1] if code else "eng"
    return NewsRecord(
        url=cells[_ADDRESS],
        title=title,
        domain=cells[_SITE],
        language=_LANGUAGES.get(language, language),
        published_at=parse_utc(published[1], _STAMP) if published else None,
        # A row stamped after its file, or before it: the later time is the safe one.
        seen_at=max(row_time, file_time),
    )


def _read_gal_line(line: str, seen_at: datetime, counts: Counter[str]) -> NewsRecord | None:
    """Return the article of a line, or None; count the repairs of its JSON."""
    try:
        # Lines of a JSON array that was written line by line end in a comma.
        entry, repairs = load_json(line.rstrip().rstrip(","), "a line")
    except SchemaDrift:
        return None
    if not isinstance(entry, dict):
        return None
    counts["repairs"] += repairs
    published_at = parse_utc(entry.get("date"))
    title = decode.read_title(entry.get("title"))
    if published_at is None or title is None or not is_web_address(entry.get("url")):
        return None

    language = str(entry.get("lang") or "")
    return NewsRecord(
        url=entry["url"],
        title=title,
        body=str(entry.get("desc") or ""),
        domain=str(entry.get("domain") or urlsplit(entry["url"]).hostname or ""),
        language=_LANGUAGES.get(language.lower(), language),
        published_at=published_at,
        seen_at=seen_at,
    )
