"""A folder of NEMWeb: the page that lists it, and the names and stamps of its files.

What belongs here: reading one listing. What does not: which folders and files are wanted
(``aemo.live``), fetching.

A listing names each file twice, as a link and as its text, and links in the server's own spelling
of the path: links are followed letter by letter, since paths are case-sensitive since 2026 and a
``#`` in a name is encoded once or twice.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.decode import decode_lossy
from compevo_pipeline.sources.common.hosts import resolve_link
from compevo_pipeline.sources.common.http import Client
from compevo_pipeline.sources.common.nem import NEM_OFFSET

SOURCE = "aemo_listings"
WEEK = timedelta(days=7)

_LINK = re.compile(r"""href\s*=\s*["']([^"'<>]+\.zip)["']""", re.IGNORECASE)
_STAMP = re.compile(r"(?<!\d)(\d{14}|\d{12}|\d{8})(?!\d)")
_STAMP_FORMATS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """One file of a folder.

    Attributes:
        name: its file name as the listing spells it.
        url: its address, with the link letter by letter.
        first: start in UTC of what it covers, by the first stamp of its name.
        last: end of that; equal to ``first`` for a file of one interval.
    """

    name: str
    url: str
    first: datetime
    last: datetime

    def overlaps(self, start: datetime, end: datetime) -> bool:
        """Whether it may hold something of the span."""
        return self.first <= end and self.last >= start


def read_listing(
    client: Client, folders: Sequence[str], prefixes: Sequence[str]
) -> list[ListedFile]:
    """Return the files of a folder whose name starts with a prefix, by name.

    Args:
        client: asks the publisher.
        folders: addresses of the folder in the spellings that were seen; the first that exists
            is read.
        prefixes: starts of the file names, in capitals or not.

    Raises:
        SourceAbsent: no such folder, or it is empty.
        SchemaDrift: the folder has files, and none of that name: they were renamed.
        SourceError: as :meth:`Client.fetch`.
    """
    url, page = _read_first(client, folders)
    links = dict.fromkeys(html.unescape(link) for link in _LINK.findall(decode_lossy(page)[0]))
    if not links:
        raise SourceAbsent(f"{url}: the folder lists no zip file; look whether AEMO moved it")

    files = {}
    for link in links:
        name = link.rsplit("/", 1)[-1]
        stamp = _read_stamp(unquote(unquote(name)), prefixes)
        if stamp is not None:
            first, last = stamp
            files[name] = ListedFile(name=name, url=resolve_link(url, link), first=first, last=last)

    if not files:
        raise SchemaDrift(
            f"{url}: {len(links)} zip files, none named {' or '.join(prefixes)} (the first is "
            f"{next(iter(links))[-80:]!r}); AEMO renamed them, extend aemo.live"
        )
    return [files[name] for name in sorted(files)]


def _read_first(client: Client, folders: Sequence[str]) -> tuple[str, bytes]:
    absent: SourceAbsent | None = None
    for folder in folders:
        name = re.sub(r"[^A-Za-z0-9]+", "_", folder.removeprefix("https://")).strip("_")
        try:
            return folder, client.read_page(folder, source=SOURCE, name=f"{name}.html")
        except SourceAbsent as error:
            absent = absent or error

    raise absent or SourceAbsent("no folder was named; report it")


def _read_stamp(name: str, prefixes: Sequence[str]) -> tuple[datetime, datetime] | None:
    """Return what a file name's first stamp covers: a day alone names a week of files."""
    if not name.upper().startswith(tuple(prefix.upper() for prefix in prefixes)):
        return None
    match = _STAMP.search(name)
    if match is None:
        return None

    try:
        stamp = datetime.strptime(match[1], _STAMP_FORMATS[len(match[1])])  # noqa: DTZ007 - NEM time
        first = (stamp - NEM_OFFSET).replace(tzinfo=UTC)
        return first, first + (WEEK if len(match[1]) == 8 else timedelta(0))
    except (ValueError, OverflowError):
        return None
