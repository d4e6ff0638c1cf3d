"""The PeMS Data Clearinghouse: logging in, listing a year's files, downloading one.

What belongs here: the site's protocol. What does not: which files are wanted (``pems.live``), HTTP
(``common.http``), the files' formats (``pems.source``).

A log-in answers 200 whether it worked or not; the page then offers ``Logout``. A lost session
answers with a web page in place of a list or a file, and is opened again once.

Published at https://pems.dot.ca.gov/?dnode=Clearinghouse. Its terms: one session at a time, no
shared accounts.
"""

import json
import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TypeVar
from urllib.parse import urljoin

from compevo_core.errors import SchemaDrift, SourceBlocked
from compevo_pipeline.sources.common.access import PemsAccess
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.http import Client

SITE = "https://pems.dot.ca.gov/"
SOURCE = "pems"
LIST_SOURCE = "pems_lists"

MAX_FILE_BYTES = 512 * 2**20

_SIGNED_IN = b"Logout"
_FILE_NAME = re.compile(r"d\d\d_text_[a-z0-9_]+_(\d{4})_(\d\d)(?:_(\d\d))?\.txt(?:\.gz)?")

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearinghouseFile:
    """One file that the clearinghouse offers.

    Attributes:
        name: its file name.
        url: its address.
        first: first day that it is of.
        last: last day; the same for a day's file.
    """

    name: str
    url: str
    first: date
    last: date


class _SessionLost(SourceBlocked):
    """A web page in place of data: the session has ended."""


@dataclass(kw_only=True)
class Clearinghouse:
    """One session.

    Attributes:
        client: keeps the session's cookie.
        access: the account.
    """

    client: Client
    access: PemsAccess
    _is_signed_in: bool = False

    def list_files(self, kind: str, year: int) -> list[ClearinghouseFile]:
        """Return the files of one kind (``station_hour``) and year; none where there are none.

        Raises:
            SourceBlocked: the log-in failed.
            SchemaDrift: the list is not in the known form.
        """
        name = name_list(self.access, kind, year)
        params = {
            "srq": "clearinghouse",
            "district_id": f"{self.access.district}",
            "geotag": "null",
            "yy": f"{year}",
            "type": kind,
            "returnformat": "text",
        }

        def ask() -> list[ClearinghouseFile]:
            page = self.client.read_page(SITE, source=LIST_SOURCE, name=name, params=params)
            return parse_list(page, name)

        return self._in_session(ask)

    def download(self, file: ClearinghouseFile) -> RawFile | None:
        """Return a file, or None where its rows are stored.

        Raises:
            SourceBlocked: the log-in failed, or the session was lost twice.
        """

        def ask() -> RawFile | None:
            try:
                return self.client.fetch(
                    file.url,
                    source=SOURCE,
                    name=file.name,
                    is_final=True,
                    max_bytes=MAX_FILE_BYTES,
                )
            except (SchemaDrift, SourceBlocked) as error:
                raise _SessionLost(f"{file.name}: {error}") from error

        return self._in_session(ask)

    def _in_session(self, ask: Callable[[], _Answer]) -> _Answer:
        if not self._is_signed_in:
            self._sign_in()
        try:
            return ask()
        except _SessionLost:
            # Sessions end after a while; one that ends at once is another trouble.
            self._sign_in()
            return ask()

    def _sign_in(self) -> None:
        form = {
            "redirect": "",
            "username": self.access.user,
            "password": self.access.password,
            "login": "Login",
        }
        if _SIGNED_IN not in self.client.submit(SITE, form):
            raise SourceBlocked(
                f"{SITE} refused the log-in: check COMPEVO_PEMS_USER and COMPEVO_PEMS_PASSWORD by "
                "logging in with a browser, where new terms may wait to be accepted"
            )
        self._is_signed_in = True


def name_list(access: PemsAccess, kind: str, year: int) -> str:
    """Return the name of a list in the ledger."""
    return f"d{access.district:02d}_{kind}_{year}.json"


def parse_list(content: bytes, name: str) -> list[ClearinghouseFile]:
    """Read a list of files, in the order of their days.

    Raises:
        SourceBlocked: a web page: the session has ended.
        SchemaDrift: not the known form.
    """
    if content.lstrip().startswith(b"<"):
        raise _SessionLost(f"{name}: a web page in place of a list: the session has ended")

    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SchemaDrift(f"{name}: not JSON ({error}); compare with the clearinghouse") from error

    # A year without files is an empty list where months would be an object.
    months = document.get("data") if isinstance(document, dict) else document
    if not months:
        return []
    try:
        files = [_read_entry(entry) for month in months.values() for entry in month]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SchemaDrift(
            f"{name}: not months of files with file_name and url ({type(error).__name__}: {error});"
            " compare with the clearinghouse"
        ) from error
    return sorted(files, key=lambda file: (file.first, file.name))


def _read_entry(entry: dict[str, object]) -> ClearinghouseFile:
    name = str(entry["file_name"])
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"file_name is {name!r}")
    year, month = int(match[1]), int(match[2])
    first = date(year, month, int(match[3] or 1))
    last = first if match[3] else first.replace(day=monthrange(year, month)[1])
    return ClearinghouseFile(
        name=name, url=urljoin(SITE, str(entry["url"])), first=first, last=last
    )
