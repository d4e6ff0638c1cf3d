"""Live traffic: files that a person fetched, then what the PeMS Data Clearinghouse has that is new.

What belongs here: which files are wanted, and the site's protocol (logging in, listing a year's
files, downloading one). What does not: HTTP (``common.http``), formats (``pems.source``).

A finished file never changes, so none is fetched twice. A day's file that lacks slots may still
grow: it is asked for again on later nights, after the ledger's pauses. The lists of files are asked
for once a day: a second refresh of the same day asks nothing, unless something of the first one
failed. A log-in answers 200 whether it worked or not; the page then offers ``Logout``. A lost
session answers with a web page in place of a list or a file, and is opened again once. The site's
terms: one session at a time, no shared accounts.
"""

import logging
from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, TypeVar
from urllib.parse import urljoin

from compevo_core.errors import SchemaDrift, SourceAbsent, SourceBlocked, SourceTransient
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import read_json
from compevo_pipeline.sources.common.hosts import PemsAccess
from compevo_pipeline.sources.common.http import Client, FileRequest
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.common.live import LiveContext, read_new_saved_files
from compevo_pipeline.sources.pems.source import FILE_NAME, FOLDER, SOURCE, describe_short

SITE = "https://pems.dot.ca.gov/"
LIST_SOURCE = "pems_lists"
MAX_FILE_BYTES = 512 * 2**20
LOOKBACK = timedelta(days=62)  # a month's file appears when the month is over

_Answer = TypeVar("_Answer")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearinghouseFile:
    """One file that the clearinghouse offers, with the first and the last day in it."""

    name: str
    url: str
    first: date
    last: date


class _SessionLost(SourceBlocked):
    """A web page in place of data: the session has ended."""


@dataclass(kw_only=True)
class Clearinghouse:
    """One session; the client keeps its cookie."""

    client: Client
    access: PemsAccess
    _is_signed_in: bool = False

    def list_files(self, kind: str, year: int) -> list[ClearinghouseFile]:
        """Return the files of one kind (``station_hour``) and year; none where there are none.

        A list that was answered today is not asked for again.
        """
        name = f"d{self.access.district:02d}_{kind}_{year}.json"
        known = self.client.ledger.get(LIST_SOURCE, name)
        if known and known.asked_at.date() == self.client.clock().date() and not known.note:
            kept = self.client.raw.read(known)
            if kept is not None:
                return parse_list(kept.content, name)

        query = {
            "srq": "clearinghouse",
            "district_id": f"{self.access.district}",
            "geotag": "null",
            "yy": f"{year}",
            "type": kind,
            "returnformat": "text",
        }
        request = FileRequest(url=SITE, source=LIST_SOURCE, name=name, params=query)
        return self._ask_in_session(lambda: parse_list(self.client.read_page(request), name))

    def download(self, file: ClearinghouseFile, *, is_final: bool = True) -> RawFile | None:
        """Return a file, or None where its rows are stored; unless final, it is asked for again."""
        request = FileRequest(
            url=file.url, source=SOURCE, name=file.name, is_final=is_final, max_bytes=MAX_FILE_BYTES
        )

        def ask() -> RawFile | None:
            try:
                return self.client.fetch(request)
            except (SchemaDrift, SourceBlocked) as error:
                raise _SessionLost(f"{file.name}: {error}") from error

        return self._ask_in_session(ask)

    def _ask_in_session(self, ask: Callable[[], _Answer]) -> _Answer:
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
        if b"Logout" not in self.client.submit(SITE, form):
            raise SourceBlocked(
                f"{SITE} refused the log-in: check COMPEVO_PEMS_USER and COMPEVO_PEMS_PASSWORD by "
                "logging in with a browser, where new terms may wait to be accepted"
            )
        self._is_signed_in = True


def fetch_live(live: LiveContext) -> Iterator[RawFile]:
    """Yield new files of the folder ``traffic``, then new files of the clearinghouse.

    SourceAbsent without an account and a file fetched by hand; SourceBlocked if the log-in failed.
    """
    yield from read_new_saved_files(live, FOLDER, "*_text_station_*", source=SOURCE)
    if live.pems is not None:
        start, end = live.span(LOOKBACK)
        site = Clearinghouse(client=live.client, access=live.pems)
        for kind in live.pems.files:
            years = range(start.year, end.year + 1)
            for file in (file for year in years for file in site.list_files(kind, year)):
                if file.first <= end.date() and file.last >= start.date():
                    yield from _fetch_file(live, site, file)

        # The newest table of stations up to the last day is kept among the raw files; it appears a
        # few times a year: in January the newest may be last year's.
        meta_years = (end.year - 1, end.year)
        listed = [file for year in meta_years for file in site.list_files("meta", year)]
        listed = [file for file in listed if file.first <= end.date()]
        if listed and live.ledger.is_due(SOURCE, listed[-1].name, live.now):
            site.download(listed[-1])
    elif not live.ledger.list_entries(f"{SOURCE}-saved"):
        raise SourceAbsent(
            "live traffic needs a PeMS account (free, at https://pems.dot.ca.gov): set "
            "COMPEVO_PEMS_USER and COMPEVO_PEMS_PASSWORD, or put station_hour files that you "
            f"downloaded there into the folder {FOLDER} of COMPEVO_ARCHIVE"
        )


def parse_list(content: bytes, name: str) -> list[ClearinghouseFile]:
    """Read a list of files, in the order of their days.

    SourceBlocked for a web page, where the session has ended; SchemaDrift for an unknown form.
    """
    if content.lstrip().startswith(b"<"):
        raise _SessionLost(f"{name}: a web page in place of a list: the session has ended")

    document: Any = read_json(content, name)
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
    match = FILE_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"file_name is {name!r}")
    year, month = int(match["year"]), int(match["month"])
    first = date(year, month, int(match["day"] or 1))
    last = first if match["day"] else first.replace(day=monthrange(year, month)[1])
    return ClearinghouseFile(
        name=name, url=urljoin(SITE, str(entry["url"])), first=first, last=last
    )


def _fetch_file(
    live: LiveContext, site: Clearinghouse, file: ClearinghouseFile
) -> Iterator[RawFile]:
    """Yield a file that is new or was short; note one that is short, to be asked for again."""
    known = live.ledger.get(SOURCE, file.name)
    if not live.ledger.is_due(SOURCE, file.name, live.now):
        return
    before = known if known is not None and known.state is EntryState.SHORT else None
    try:
        raw = site.download(file, is_final=before is None)
    except (SourceAbsent, SourceTransient) as error:
        if before is None:
            raise
        # Its rows so far are stored, so this failure must not stop newer files.
        log.warning("%s is as short as before: %s", file.name, error)
        raw = None

    note = before.note if before is not None else ""
    if raw is not None:
        note = describe_short(raw)
    if note:
        unchanged = before.tries + 1 if before is not None and before.note == note else 0
        live.ledger.mark_short(SOURCE, file.name, note=note, now=live.now, unchanged=unchanged)
    if raw is not None:
        yield raw
