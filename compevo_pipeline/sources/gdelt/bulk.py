"""GDELT's 15-minute bulk files: GKG 2.1 (zipped tab-separated text) and GAL (gzipped JSON lines).

What belongs here: the two formats. What does not: lists of files, checksums (``gdelt_lists``), the API (``gdelt_doc``).

GKG: 27 tab-separated columns without header or quoting, split on newlines only; the title stands in the last one as
``<PAGE_TITLE>`` with HTML entities, and not every row has one. GAL: one JSON object a line. In both, the file's own
stamp is when GDELT had seen the page; a publication time inside may be wrong or in another zone, so an article counts
as available at the later of the two.
"""

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.articles import (
    EmptyNewsAnswer,
    NewsReport,
    Record,
    addressable,
    article_frame,
    check_unreadable,
)
from compevo_pipeline.sources.common.base import RawFile, decode_lossy, gunzip, unzip
from compevo_pipeline.sources.gdelt.doc import loads_repaired, parse_stamp

GKG_COLUMNS = 27
GKG_SUFFIXES = (".gkg.csv.zip", ".gkg.csv")
GAL_SUFFIXES = (".gal.json.gz", ".gal.json")
MAX_BULK_BYTES = 256 * 2**20
"""A quarter hour of GKG is about 26 MB."""

_WEB, _EXTRAS = "1", 26
_STAMP = "%Y%m%d%H%M%S"
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


def parse_gkg(raw: RawFile) -> tuple[pl.DataFrame, NewsReport]:
    """Parse a GKG file into ``ARTICLE_SCHEMA``; rows without a title are counted and left out.

    Raises:
        SchemaDrift: not one member in the zip, or too many rows without 27 columns, a date and an address.
        SourceTransient: a torn zip.
        EmptyNewsAnswer: no row at all.
    """
    content = _only_member(raw) if raw.name.endswith(".zip") else raw.content
    text, replaced = decode_lossy(content)
    stamp = file_stamp(raw.name)
    records: list[Record] = []
    bad: list[int] = []
    untitled = total = 0
    for line, row in _lines(text):
        total += 1
        cells = row.split("\t")
        seen = parse_stamp(cells[1], _STAMP) if len(cells) >= GKG_COLUMNS else None
        if seen is None or cells[2] != _WEB or not addressable(cells[4]):
            bad.append(line)
            continue
        title = _TITLE.search(cells[_EXTRAS])
        if title is None or not title[1].strip():
            untitled += 1
            continue
        records.append(_gkg_record(cells, html.unescape(title[1]), max(seen, stamp)))
    return _finish(
        raw, records, bad, total, "a GKG row", untitled=untitled, replaced_bytes=replaced
    )


def parse_gal(raw: RawFile) -> tuple[pl.DataFrame, NewsReport]:
    """Parse a GAL file into ``ARTICLE_SCHEMA``; ``seen_at`` is the file's stamp, ``published_at`` the record's date.

    Raises:
        SchemaDrift: not gzip, or too many lines that are no article.
        SourceTransient: a torn gzip.
        EmptyNewsAnswer: no line at all.
    """
    content = (
        gunzip(raw.content, raw.name, MAX_BULK_BYTES) if raw.name.endswith(".gz") else raw.content
    )
    text, replaced = decode_lossy(content)
    stamp = file_stamp(raw.name)
    records: list[Record] = []
    bad: list[int] = []
    untitled = total = repairs = 0
    for line, row in _lines(text):
        total += 1
        entry, mended = _gal_entry(row, raw.name)
        repairs += mended
        published = _gal_date(entry.get("date"))
        if published is None or not addressable(entry.get("url")):
            bad.append(line)
        elif not str(entry.get("title") or "").strip():
            untitled += 1
        else:
            records.append(_gal_record(entry, published, stamp))
    return _finish(
        raw,
        records,
        bad,
        total,
        "a GAL article",
        untitled=untitled,
        repairs=repairs,
        replaced_bytes=replaced,
    )


def file_stamp(name: str) -> datetime:
    """Return the time in a 15-minute file's name (``20260215001500.gal.json.gz``).

    Raises:
        SchemaDrift: the name does not start with fourteen digits that are a time.
    """
    stamp = parse_stamp(name.rsplit("/", 1)[-1][:14], _STAMP)
    if stamp is None:
        message = f"{name}: a GDELT file is named YYYYMMDDHHMMSS.<kind>; keep the published name, it tells when it was seen"
        raise SchemaDrift(message)
    return stamp


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for line, row in enumerate(text.split("\n"), 1):
        if row:
            yield line, row


def _only_member(raw: RawFile) -> bytes:
    members = list(unzip(raw.content, raw.name, MAX_BULK_BYTES))
    if len(members) != 1:
        message = f"{raw.name}: holds {len(members)} files, a GKG zip holds one; fetch it again"
        raise SchemaDrift(message)
    return members[0][1]


def _gkg_record(cells: list[str], title: str, seen: datetime) -> Record:
    published = _PUBLISHED.search(cells[_EXTRAS])
    code = _SOURCE_LANGUAGE.search(cells[25])
    language = code[1] if code else "eng"
    return Record(
        url=cells[4],
        title=title,
        domain=cells[3],
        language=_LANGUAGES.get(language, language),
        published_at=parse_stamp(published[1], _STAMP) if published else None,
        seen_at=seen,
    )


def _gal_entry(row: str, name: str) -> tuple[dict[str, Any], int]:
    """Return a line's object, or an empty one where the line is beyond repair (the caller counts it)."""
    try:
        entry, repairs = loads_repaired(row.rstrip().rstrip(","), name)
    except SchemaDrift:
        return {}, 0
    return (entry, repairs) if isinstance(entry, dict) else ({}, 0)


def _gal_date(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _gal_record(entry: dict[str, Any], published: datetime, stamp: datetime) -> Record:
    language = str(entry.get("lang") or "")
    return Record(
        url=entry["url"],
        title=str(entry["title"]),
        body=str(entry.get("desc") or ""),
        domain=str(entry.get("domain") or urlsplit(entry["url"]).hostname or ""),
        language=_LANGUAGES.get(language.lower(), language),
        published_at=published,
        seen_at=stamp,
    )


def _finish(
    raw: RawFile, records: list[Record], bad: list[int], total: int, what: str, **counts: int
) -> tuple[pl.DataFrame, NewsReport]:
    if total == 0:
        message = f"{raw.name}: no line in it; a quarter hour without news does not happen, fetch the file again"
        raise EmptyNewsAnswer(message)
    check_unreadable(bad, total, raw.name, what)
    frame = article_frame(records, raw, raw.fetched_at)
    return frame, NewsReport(
        files=1, records=total, articles=frame.height, unreadable=len(bad), **counts
    )
