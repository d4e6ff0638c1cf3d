"""GDELT's file lists (``masterfilelist.txt``, ``lastupdate.txt``): which 15-minute files there are, with checksums.

What belongs here: reading the lists, rewriting their addresses to a host whose certificate is right, checking a fetched
file against its size and MD5. What does not: fetching, the formats of the files (``gdelt_bulk``).
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.base import decode_text, refuse_html

SAFE_ROOT = "https://storage.googleapis.com/data.gdeltproject.org"
_LINE = re.compile(r"^(\d+) ([0-9a-f]{32}) https?://data\.gdeltproject\.org(/\S+/(\d{14})\.(\S+))$")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFile:
    """One listed file: its stamp, kind (``gkg.csv.zip``), size in bytes, MD5 and an address that can be trusted."""

    stamp: datetime
    kind: str
    size: int
    md5: str
    url: str


def parse_list(content: bytes, name: str) -> tuple[list[BulkFile], int]:
    """Read a file list; return its files and how many malformed lines were left out.

    Raises:
        SchemaDrift: a web page, or no well-formed line at all.
    """
    refuse_html(content, name)
    lines = [line for line in decode_text(content, name).split("\n") if line.strip()]
    matches = [match for line in lines if (match := _LINE.match(line.strip()))]
    if not matches:
        message = f"{name}, line 1: no line says 'size md5 url'; the list's format changed or the file is cut, fetch it again"
        raise SchemaDrift(message)
    files = [
        BulkFile(
            stamp=datetime.strptime(match[4], "%Y%m%d%H%M%S").replace(tzinfo=UTC),
            kind=match[5],
            size=int(match[1]),
            md5=match[2],
            url=SAFE_ROOT + match[3],
        )
        for match in matches
    ]
    return files, len(lines) - len(files)


def verify(content: bytes, listed: BulkFile) -> None:
    """Check a fetched file against its listing; MD5 guards against damage here, not against forgery.

    Raises:
        SourceTransient: size or MD5 differ; fetch once more, then set the file aside.
    """
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if len(content) != listed.size or digest != listed.md5:
        message = (
            f"{listed.url}: {len(content)} bytes with MD5 {digest}, the list says {listed.size} and {listed.md5}; "
            "fetch it once more, then set it aside"
        )
        raise SourceTransient(message)
