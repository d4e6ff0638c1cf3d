"""GDELT's lists of its 15-minute files (``masterfilelist.txt``, ``lastupdate.txt``).

What belongs here: reading the lists, rewriting their addresses to a host whose certificate is
right, checking a fetched file against its size and MD5. What does not: fetching (``gdelt.live``),
the formats of the files (``gdelt.bulk``).

Published at https://storage.googleapis.com/data.gdeltproject.org/gdeltv2/masterfilelist.txt.
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.gdelt.json_repair import parse_utc

SAFE_ROOT = "https://storage.googleapis.com/data.gdeltproject.org"
_LINE = re.compile(
    r"^(\d{1,12}) ([0-9a-f]{32}) https?://data\.gdeltproject\.org(/\S+/(\d{14})\.(\S+))$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFile:
    """One listed file.

    Attributes:
        stamp: its quarter hour, UTC.
        kind: what follows the timestamp in its name (``gkg.csv.zip``).
        size: in bytes.
        md5: hex digest.
        url: its address below :data:`SAFE_ROOT`.
    """

    stamp: datetime
    kind: str
    size: int
    md5: str
    url: str


def parse_list(content: bytes, name: str) -> tuple[list[BulkFile], int]:
    """Read a file list; return its files and the number of malformed lines, which are left out.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: a web page, or no well-formed line at all.
    """
    lines = [line for line in read_text(content, name).split("\n") if line.strip()]
    files = [file for line in lines if (file := _read_line(line.strip())) is not None]
    if not files:
        raise SchemaDrift(
            f"{name}, line 1: no line has the form 'size md5 url'; the list's format changed or "
            "the file is cut, fetch it again"
        )
    return files, len(lines) - len(files)


def verify_file(content: bytes, listed: BulkFile) -> None:
    """Check a fetched file against its listing.

    Raises:
        SourceTransient: size or MD5 differ; fetch once more, then set the file aside.
    """
    # MD5 is what GDELT publishes; it guards against damage here, not against forgery.
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if len(content) != listed.size or digest != listed.md5:
        raise SourceTransient(
            f"{listed.url}: {len(content)} bytes with MD5 {digest}, but the list states "
            f"{listed.size} and {listed.md5}; fetch it once more, then set it aside"
        )


def _read_line(line: str) -> BulkFile | None:
    match = _LINE.match(line)
    stamp = parse_utc(match[4], "%Y%m%d%H%M%S") if match else None
    if match is None or stamp is None:
        return None

    return BulkFile(
        stamp=stamp,
        kind=match[5],
        size=int(match[1]),
        md5=match[2],
        url=SAFE_ROOT + match[3],
    )
