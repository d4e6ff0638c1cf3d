"""GDELT's 15-minute bulk files: GKG 2.1 (zipped tab-separated text) and GAL (gzipped JSON lines).

What belongs here: the two formats. What does not: lists of files, checksums (``gdelt.file_lists``),
the API (``gdelt.doc``).

GKG has 27 tab-separated columns without header or quoting, split on newlines only; the title is in
the last one as ``<PAGE_TITLE>`` with HTML entities, and not every row has one. GAL has one JSON
object a line. In both, the file's own timestamp is when GDELT had seen the page; a publication time
inside may be wrong or in another zone, so an article counts as available at the later of the two.

Published below https://storage.googleapis.com/data.gdeltproject.org/ (``gdeltv2``,
``gdeltv3/gal``).
"""

import codecs
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.articles import (
    EmptyNewsAnswer,
    NewsRecord,
    NewsReport,
    build_article_frame,
    is_web_address,
    refuse_unreadable,
)
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import decode_line_lossy, decode_lossy
from compevo_pipeline.sources.common.text import read_title
from compevo_pipeline.sources.common.unpack import gunzip, stream_only_member
from compevo_pipeline.sources.gdelt.json_repair import load_json, parse_utc

GKG_COLUMNS = 27
GKG_SUFFIXES = (".gkg.csv.zip", ".gkg.csv")
GAL_SUFFIXES = (".gal.json.gz", ".gal.json")
MAX_BULK_BYTES = 256 * 2**20
"""Largest accepted file, unpacked; a quarter hour of GKG is about 26 MB."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _GkgRow:
    """The columns of a row that are needed."""

    time: datetime
    site: str
    address: str
    translation: str
    extras: str


def parse_gkg(raw: RawFile) -> tuple[pl.DataFrame, NewsReport]:
    """Parse a GKG file into ``ARTICLE_SCHEMA``; count rows without a title and leave them out.

    Raises:
        SchemaDrift: not one member in the zip, or too many rows without 27 columns, a date and an
            address.
        SourceTransient: a damaged zip.
        EmptyNewsAnswer: no row at all.
    """
    file_time = read_file_time(raw.name)
    parts = (
        stream_only_member(raw.content, raw.name, MAX_BULK_BYTES)
        if raw.name.endswith(".zip")
        else [raw.content]
    )

    records: list[NewsRecord] = []
    unreadable: list[int] = []
    total = untitled = replaced = 0
    for line, content in _number_rows(parts):
        total += 1
        text, replaced_here = decode_line_lossy(content)
        replaced += replaced_here

        row = _read_gkg_row(text)
        if row is None:
            unreadable.append(line)
            continue

        found = _TITLE.search(row.extras)
        title = read_title(html.unescape(found[1]) if found else None)
        if title is None:
            unreadable.append(line)
        elif not title:
            untitled += 1
        else:
            # A row stamped after its file, or before it: the later time is the safe one.
            records.append(_make_gkg_record(row, title, max(row.time, file_time)))

    _refuse_file(raw.name, unreadable, total, "a GKG row")
    frame = build_article_frame(records, raw, raw.fetched_at)
    report = NewsReport(
        files=1,
        records=total,
        articles=frame.height,
        untitled=untitled,
        unreadable=len(unreadable),
        replaced_bytes=replaced,
    )
    return frame, report


def parse_gal(raw: RawFile) -> tuple[pl.DataFrame, NewsReport]:
    """Parse a GAL file into ``ARTICLE_SCHEMA``.

    ``seen_at`` is the file's timestamp, ``published_at`` the record's date.

    Raises:
        SchemaDrift: not gzip, or too many lines that are no article.
        SourceTransient: a damaged gzip.
        EmptyNewsAnswer: no line at all.
    """
    is_packed = raw.name.endswith(".gz")
    content = gunzip(raw.content, raw.name, MAX_BULK_BYTES) if is_packed else raw.content
    text, replaced = decode_lossy(content)
    file_time = read_file_time(raw.name)

    records: list[NewsRecord] = []
    unreadable: list[int] = []
    total = 0
    untitled = 0
    repairs = 0
    for line, row in _numbered_lines(text):
        total += 1
        entry, repaired = _read_gal_entry(row, raw.name)
        repairs += repaired

        published_at = _read_gal_date(entry.get("date"))
        title = read_title(entry.get("title"))
        if published_at is None or title is None or not is_web_address(entry.get("url")):
            unreadable.append(line)
        elif not title:
            untitled += 1
        else:
            records.append(_make_gal_record(entry, title, published_at, file_time))

    _refuse_file(raw.name, unreadable, total, "a GAL article")
    frame = build_article_frame(records, raw, raw.fetched_at)
    report = NewsReport(
        files=1,
        records=total,
        articles=frame.height,
        untitled=untitled,
        unreadable=len(unreadable),
        repairs=repairs,
        replaced_bytes=replaced,
    )
    return frame, report


def read_file_time(name: str) -> datetime:
    """Return the time in a 15-minute file's name (``20260215001500.gal.json.gz``).

    Raises:
        SchemaDrift: the name does not start with fourteen digits that are a time.
    """
    moment = parse_utc(name.rsplit("/", 1)[-1][:_STAMP_DIGITS], _STAMP)
    if moment is None:
        raise SchemaDrift(
            f"{name}: a GDELT file is named YYYYMMDDHHMMSS.<kind>; restore the published name, "
            "which states when GDELT saw the pages"
        )

    return moment


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    # Not str.splitlines: titles hold vertical tabs and Unicode line separators.
    for line, row in enumerate(text.split("\n"), 1):
        if row:
            yield line, row


def _number_rows(parts: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a file that comes in parts, with their lines; empty rows are left out."""
    for line, row in enumerate(_split_rows(parts), 1):
        content = row.removeprefix(codecs.BOM_UTF8) if line == 1 else row
        if content:
            yield line, content


def _split_rows(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what newlines end, and what follows the last one."""
    begun: list[bytes] = []
    for part in parts:
        if b"\n" not in part:
            begun.append(part)
            continue

        rows = b"".join([*begun, part]).split(b"\n")
        begun = [rows.pop()]
        for row in rows:
            yield row.removesuffix(b"\r")
    yield b"".join(begun)


def _refuse_file(name: str, unreadable: list[int], total: int, expected: str) -> None:
    if total == 0:
        raise EmptyNewsAnswer(
            f"{name}: no line in it; a quarter hour without news does not happen, "
            "fetch the file again"
        )

    refuse_unreadable(unreadable, total, name, expected)


def _read_gkg_row(text: str) -> _GkgRow | None:
    """Return what is needed of a row; None where it is none of a web page."""
    cells = text.split("\t")
    row_time = _read_stamp(cells[_DATE]) if len(cells) >= GKG_COLUMNS else None
    if (
        row_time is None
        or cells[_COLLECTION] != _WEB_COLLECTION
        or not is_web_address(cells[_ADDRESS])
    ):
        return None
    return _GkgRow(
        time=row_time,
        site=cells[_SITE],
        address=cells[_ADDRESS],
        translation=cells[_TRANSLATION],
        extras=cells[_EXTRAS],
    )


def _read_stamp(text: str) -> datetime | None:
    """Return the time of fourteen digits, as ``parse_utc`` does, in a tenth of its time."""
    if len(text) != _STAMP_DIGITS or not text.isascii() or not text.isdigit():
        return parse_utc(text, _STAMP)
    try:
        # Year, month, day, hour, minute, second; written out, for two of them are read a row.
        return datetime(
            int(text[:4]),
            int(text[4:6]),
            int(text[6:8]),
            int(text[8:10]),
            int(text[10:12]),
            int(text[12:]),
            tzinfo=UTC,
        )
    except ValueError:
        return None


def _make_gkg_record(row: _GkgRow, title: str, seen_at: datetime) -> NewsRecord:
    published = _PUBLISHED.search(row.extras)
    code = _SOURCE_LANGUAGE.search(row.translation)
    # Only translated rows name the language they were translated from.
    language = code[1] if code else "eng"
    return NewsRecord(
        url=row.address,
        title=title,
        domain=row.site,
        language=_LANGUAGES.get(language, language),
        published_at=_read_stamp(published[1]) if published else None,
        seen_at=seen_at,
    )


def _read_gal_entry(row: str, name: str) -> tuple[dict[str, Any], int]:
    """Return a line's object and its repairs; an empty object where the line is beyond repair."""
    try:
        # Lines of a JSON array that was written line by line end in a comma.
        entry, repairs = load_json(row.rstrip().rstrip(","), name)
    except SchemaDrift:
        return {}, 0

    return (entry, repairs) if isinstance(entry, dict) else ({}, 0)


def _read_gal_date(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None

    try:
        moment = datetime.fromisoformat(text)
        # GDELT's times are UTC where they name no zone.
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        # A zone can lead out of the years that there are.
        return None


def _make_gal_record(
    entry: dict[str, Any], title: str, published_at: datetime, seen_at: datetime
) -> NewsRecord:
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
