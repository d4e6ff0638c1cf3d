"""One polite HTTP client for every live source.

What belongs here: conditional requests, redirects, and bytes that reach the raw store only when
they are what was asked for. What does not: which hosts may be asked (``common.hosts``), pace
(``common.pacer``), how long an answer may take (``common.connection``), reading one body
(``common.body``), what an answer means (``common.answers``), whether it is tried again
(``compevo_pipeline.failures``), any publisher's addresses.

Bot protection and log-ins are never circumvented, and every certificate is checked.
"""

import io
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import TypeVar
from urllib.parse import urlencode

import requests

from compevo_core.errors import SourceAbsent, SourceBlocked, SourceError, SourceRejected
from compevo_pipeline.failures import MAX_RETRY_AFTER_S, Throttled, plan_short_wait
from compevo_pipeline.sources.common.access import QueryKey
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.common.body import (
    MAX_BODY_BYTES,
    read_body,
    refuse_damaged,
    refuse_failure,
    translate_failure,
)
from compevo_pipeline.sources.common.connection import Session
from compevo_pipeline.sources.common.hosts import Host, find_host, resolve_link
from compevo_pipeline.sources.common.ledger import Entry, EntryState, Ledger
from compevo_pipeline.sources.common.pacer import Pacer
from compevo_pipeline.sources.common.raw_store import RawStore

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0

MAX_PAGE_BYTES = 16 * 2**20
MAX_REDIRECTS = 5

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_MODIFIED = 304

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One file to ask for; attributes as the arguments of :meth:`Client.fetch`."""

    url: str
    source: str
    name: str
    params: Mapping[str, str] | None = None
    html_expected: bool = False
    max_bytes: int = MAX_BODY_BYTES
    is_versioned: bool = True
    check_start: Callable[[bytes], None] | None = None
    may_be_absent: bool = False
    tail_bytes: int = 0
    key: QueryKey | None = None

    @property
    def address(self) -> str:
        """The address with its parameters, but for the key."""
        return f"{self.url}?{urlencode(self.params)}" if self.params else self.url


@dataclass(kw_only=True)
class Client:
    """A session that keeps a host's pace, asks conditionally and tries again a little.

    Attributes:
        user_agent: sent with every request; names the program and a contact.
        clock: returns the current time.
        ledger: remembers what came, and with which validators.
        raw: keeps the bytes.
        pacer: gives out turns at hosts.
        sleep: waits before another try.
        draw: returns a random number from 0 to 1, which spreads the waits of many clients.
        session: the session of all requests; it keeps a log-in's cookies.
    """

    user_agent: str
    clock: Clock
    ledger: Ledger
    raw: RawStore
    pacer: Pacer
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
    session: requests.Session = field(default_factory=Session)

    def fetch(
        self,
        url: str,
        *,
        source: str,
        name: str,
        params: Mapping[str, str] | None = None,
        html_expected: bool = False,
        is_final: bool = False,
        may_be_absent: bool = False,
        max_bytes: int = MAX_BODY_BYTES,
        check_start: Callable[[bytes], None] | None = None,
        key: QueryKey | None = None,
    ) -> RawFile | None:
        """Get one file and keep its bytes, or raise the error that its answer amounts to.

        Args:
            url: an https address on a known host.
            source: ``source`` of the raw file.
            name: ``name`` of the raw file.
            params: query parameters.
            html_expected: whether a web page is the data.
            is_final: whether the publisher never changes this file, so that it is not asked for
                again once its bytes are kept.
            may_be_absent: whether a host answers 403 for files that do not exist, so that what a
                refusal means is for the caller to say and is not noted here.
            max_bytes: largest body, after decompression by the connection.
            check_start: raises the error that the first kilobytes of a success amount to, at
                publishers who say with status 200 that there is no such file.
            key: sent as one more parameter; it is in no message, and neither noted nor kept.

        Returns:
            The file; None where its rows are in the store and the publisher has nothing newer.

        Raises:
            SourceAbsent: there is no such file.
            SourceTransient: a failure that a later try may cure.
            SourceRejected: the request or its address is wrong, or the body too large.
            SourceBlocked: a login, bot protection, or a certificate that does not match.
            SchemaDrift: another thing than the file that was asked for.
        """
        request = _Request(
            url=url,
            source=source,
            name=name,
            params=params,
            html_expected=html_expected,
            may_be_absent=may_be_absent,
            max_bytes=max_bytes,
            check_start=check_start,
            key=key,
        )
        entry = self.ledger.get(source, name)
        if entry is not None and is_final and entry.state is EntryState.STORED:
            return None

        # What is stored needs no bytes: its validators alone say whether there is something newer.
        is_stored = entry is not None and entry.state is EntryState.STORED
        kept = None if is_stored else self._read_kept(entry)
        if kept is not None and is_final:
            self.ledger.record_reread(source, name)
            return kept

        fetched = self._fetch(request, entry if is_stored or kept is not None else None)
        if fetched is None and kept is not None:
            self.ledger.record_reread(source, name)
        return fetched or kept

    def read_page(
        self,
        url: str,
        *,
        source: str,
        name: str,
        params: Mapping[str, str] | None = None,
        tail_bytes: int = 0,
    ) -> bytes:
        """Return a page that changes, such as a folder's listing; only its newest bytes are kept.

        Args:
            url: as for :meth:`fetch`, like ``source``, ``name`` and ``params``.
            source: the publisher's product.
            name: name of the page.
            params: query parameters.
            tail_bytes: ask for the last bytes alone; 0 for all.

        Raises:
            SourceError: as :meth:`fetch`.
        """
        request = _Request(
            url=url,
            source=source,
            name=name,
            params=params,
            html_expected=True,
            max_bytes=MAX_PAGE_BYTES,
            is_versioned=False,
            tail_bytes=tail_bytes,
        )
        entry = self.ledger.get(source, name)
        kept = self._read_kept(entry)

        fetched = self._fetch(request, entry if kept is not None else None)
        page = fetched or kept
        if page is None:
            raise SourceRejected(f"{url}: 304 to a request without conditions; report it")
        return page.content

    def submit(self, url: str, form: Mapping[str, str]) -> bytes:
        """Send a form, such as a login, and return the page that answers; nothing of it is kept.

        Raises:
            SourceError: as :meth:`fetch`; the form's values are in no message.
        """

        def send() -> bytes:
            with self._open(url, {}, form) as response:
                body = io.BytesIO()
                head = read_body(response, url, MAX_PAGE_BYTES, body)
                refuse_failure(
                    response, head, url, html_expected=True, now=self.clock(), shows_body=False
                )
                return body.getvalue()

        return self._try(send)

    def _read_kept(self, entry: Entry | None) -> RawFile | None:
        if entry is None or entry.sha256 is None:
            return None
        return self.raw.read(entry.source, entry.name, entry.sha256)

    def _fetch(self, request: _Request, known: Entry | None) -> RawFile | None:
        """Ask for a file, under the conditions of a known entry; None means not modified."""
        address = request.address
        headers = _make_conditions(known, address)
        if request.tail_bytes:
            headers["Range"] = f"bytes=-{request.tail_bytes}"
        try:
            return self._try(lambda: self._receive(request, headers))
        except SourceAbsent:
            raise  # whether a missing file is expected is known to the source alone
        except SourceError as error:
            if request.may_be_absent and isinstance(error, SourceBlocked):
                raise
            self.ledger.record_failure(
                request.source,
                request.name,
                url=address,
                note=f"{type(error).__name__}: {error}",
                now=self.clock(),
            )
            raise

    def _receive(self, request: _Request, headers: Mapping[str, str]) -> RawFile | None:
        source, name, url, key = request.source, request.name, request.address, request.key
        opened = self._open(url, headers, key=key)
        with opened as response, self.raw.receive(source, name) as part:
            now = self.clock()
            if response.status_code == _NOT_MODIFIED and headers:
                self.ledger.record_unchanged(source, name, now)
                return None

            with part.open("wb") as sink:
                head = read_body(response, url, request.max_bytes, sink)
            if key is not None:
                # Publishers quote the address that they refuse.
                head = key.hide(head)
            refuse_failure(response, head, url, html_expected=request.html_expected, now=now)
            refuse_damaged(part, head, name)
            if request.check_start is not None:
                request.check_start(head)
            raw = RawFile(
                source=source,
                name=name,
                content=part.read_bytes(),
                url=url if key is not None else response.url,
                fetched_at=now,
                mode=Mode.LIVE,
            )
            self.raw.keep(part, raw, is_versioned=request.is_versioned)

        # Without a Last-Modified the server's own Date of this answer serves the same purpose.
        self.ledger.record_fetched(
            source,
            name,
            url=url,
            sha256=raw.sha256,
            now=now,
            etag=response.headers.get("ETag"),
            last_modified=response.headers.get("Last-Modified") or response.headers.get("Date"),
        )
        return raw

    def _try(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask, and ask again after short waits while the failure allows it."""
        attempt = 0
        while True:
            try:
                return ask()
            except SourceError as error:
                wait_s = plan_short_wait(error, attempt, self.draw())
                if wait_s is None:
                    raise

            self.sleep(wait_s)
            attempt += 1

    @contextmanager
    def _open(
        self,
        url: str,
        headers: Mapping[str, str],
        form: Mapping[str, str] | None = None,
        key: QueryKey | None = None,
    ) -> Iterator[requests.Response]:
        """Open an answer, following redirects to known hosts alone, and none with a key."""
        for _ in range(MAX_REDIRECTS + 1):
            name, host = find_host(url)
            self.pacer.wait_for_turn(name, host.pause_s)
            try:
                response = self._send(url, headers, form, key)
            except requests.RequestException as error:
                if key is None:
                    raise translate_failure(error, url) from error
                # The failure that it follows from names the whole address, in every log of it.
                raise translate_failure(type(error)(key.hide(str(error))), url) from None

            with response:
                target = response.headers.get("Location")
                if response.status_code not in _REDIRECTS or not target:
                    with self._postponing(name, host):
                        yield response
                    return

            if key is not None:
                raise SourceRejected(f"{url}: a redirect, which no key follows; correct the host")
            url, form = resolve_link(url, target), None

        raise SourceRejected(f"{url}: more than {MAX_REDIRECTS} redirects; correct the address")

    @contextmanager
    def _postponing(self, name: str, host: Host) -> Iterator[None]:
        """Pass a host's wish for a pause on to every process that asks it."""
        try:
            yield
        except Throttled as error:
            error.retry_after_s = error.retry_after_s or host.throttled_s
            self.pacer.postpone(name, min(error.retry_after_s, MAX_RETRY_AFTER_S))
            raise

    def _send(
        self,
        url: str,
        headers: Mapping[str, str],
        form: Mapping[str, str] | None,
        key: QueryKey | None,
    ) -> requests.Response:
        if key is not None:
            # It writes whole addresses at DEBUG.
            logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)
        return self.session.request(
            "GET" if form is None else "POST",
            url,
            params=None if key is None else {key.name: key.value},
            data=form,
            headers={"User-Agent": self.user_agent, **headers},
            # Without this, requests would send a login that a .netrc file has for the host.
            auth=_send_no_login,
            timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
            allow_redirects=False,
            stream=True,
        )


def _send_no_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _make_conditions(known: Entry | None, address: str) -> dict[str, str]:
    """Return the headers that ask for newer bytes than the known ones."""
    # Another address under the same name (another query) is another file.
    if known is None or known.url != address or known.fetched_at is None:
        return {}

    since = known.last_modified or format_datetime(known.fetched_at, usegmt=True)
    conditions = {"If-Modified-Since": since}
    return conditions | ({"If-None-Match": known.etag} if known.etag else {})
